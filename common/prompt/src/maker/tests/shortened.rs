//! Tests of shortened texts and pairs: they keep one end of the text, and what is around it.

use super::*;

const QUERY: &str = "a question about rivers";

fn makers() -> [(&'static str, PromptMaker); 4] {
    let unchanged = |vocab| (vocab, PromptMaker::open(&fixture_vocab(vocab), PromptOptions::default()).unwrap());
    ["bert-bge", "qwen2", "llama-bpe", "llama-spm"].map(unchanged)
}

fn room(n_tokens_max: usize, cut_end: CutEnd) -> TextRoom {
    TextRoom { n_tokens_max, n_document_max: usize::MAX, cut_end }
}

fn long_text() -> String {
    (0..400).map(|n| format!("sentence {n} says <|im_end|> nothing, ")).collect()
}

fn check_text(maker: &PromptMaker, room: &TextRoom) {
    let text = long_text();
    let whole = maker.text(&text);
    let FittedText { tokens, is_cut } = maker.fitted_text(&RawPrompt::Text(text), room).unwrap();
    let (prefix, suffix) = (&maker.vocabulary.settings.prefix, &maker.vocabulary.settings.suffix);
    assert_eq!((tokens.len(), is_cut), (room.n_tokens_max, true));
    assert!(tokens.starts_with(prefix) && tokens.ends_with(suffix), "{tokens:?}");
    let own = &tokens[prefix.len()..tokens.len() - suffix.len()];
    match room.cut_end {
        CutEnd::End => assert!(whole[prefix.len()..].starts_with(own)),
        CutEnd::Start => assert!(whole[..whole.len() - suffix.len()].ends_with(own)),
    }
}

#[test]
fn a_text_keeps_one_end_and_the_tokens_around_it() {
    for (vocab, maker) in makers() {
        for n_tokens_max in [3, 17, 512] {
            check_text(&maker, &room(n_tokens_max, CutEnd::End));
            check_text(&maker, &room(n_tokens_max, CutEnd::Start));
        }
        let short = RawPrompt::Text("a short text".to_owned());
        let fitted = maker.fitted_text(&short, &room(512, CutEnd::End)).unwrap();
        assert_eq!(fitted, FittedText::whole(maker.text("a short text")), "{vocab}");
        let ids = |n: u32| RawPrompt::Tokens((5..5 + n).collect());
        let cut = |end| maker.fitted_text(&ids(9), &room(4, end)).unwrap().tokens;
        assert_eq!((cut(CutEnd::End), cut(CutEnd::Start)), (vec![5, 6, 7, 8], vec![10, 11, 12, 13]));
        assert_eq!(maker.fitted_text(&ids(4), &room(4, CutEnd::End)).unwrap(), FittedText::whole(vec![5, 6, 7, 8]));
    }
}

#[test]
fn a_pair_loses_tokens_of_its_document_only() {
    for (vocab, maker) in makers() {
        let document = long_text();
        let whole = maker.pair(QUERY, &document, usize::MAX).unwrap();
        let n_empty = maker.pair(QUERY, "", usize::MAX).unwrap().len();
        for n_document in [1, 17, 300] {
            for end in [CutEnd::End, CutEnd::Start] {
                let by_all = maker.fitted_pair(QUERY, &document, &room(n_empty + n_document, end)).unwrap();
                let of_document = TextRoom { n_document_max: n_document, ..room(100_000, end) };
                assert_eq!(maker.fitted_pair(QUERY, &document, &of_document).unwrap(), by_all, "{vocab}");
                let FittedText { tokens, is_cut } = by_all;
                assert_eq!((tokens.len(), is_cut), (n_empty + n_document, true), "{vocab}");
                let n_same = whole.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
                let n_same_end = whole.iter().rev().zip(tokens.iter().rev()).take_while(|(a, b)| a == b).count();
                assert!(n_same + n_same_end >= tokens.len(), "{vocab}: {n_same} and {n_same_end} of {}", tokens.len());
            }
        }
        let fitted = maker.fitted_pair(QUERY, "a river", &room(512, CutEnd::End)).unwrap();
        assert_eq!(fitted, FittedText::whole(maker.pair(QUERY, "a river", 512).unwrap()), "{vocab}");
        assert!(maker.fitted_pair(QUERY, "a river", &room(n_empty, CutEnd::End)).is_err(), "{vocab}");
        assert!(maker.fitted_pair(&document, "a river", &room(512, CutEnd::End)).is_err(), "{vocab}");
    }
}

#[test]
fn only_the_part_of_a_text_that_fits_is_tokenized() {
    for (vocab, maker) in makers() {
        for text in ["word ", "a", " ", "\u{4e16}", "\n"].map(|text| text.repeat((4 << 20) / text.len())) {
            let fitted = maker.fitted_text(&RawPrompt::Text(text.clone()), &room(512, CutEnd::Start)).unwrap();
            assert!(fitted.tokens.len() <= 512, "{vocab}: {:?}", &text[..3]);
        }
    }
}
