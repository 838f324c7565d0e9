//! Tests of the splitters' own cases. That they cut as llama.cpp does is tested in `warmpath-prompt`, which has it.

use proptest::prelude::*;

use super::*;

const ALL: [Splitter; 10] = [
    Splitter::Gpt2,
    Splitter::DigitsThenGpt2,
    Splitter::Llama3,
    Splitter::Qwen2,
    Splitter::Qwen35,
    Splitter::Gpt4o,
    Splitter::Tekken,
    Splitter::DeepSeek3,
    Splitter::KimiK2,
    Splitter::Default,
];

fn pieces(splitter: Splitter, text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    splitter.split(text, &Classes::new(), &mut |piece: &[u8]| pieces.push(String::from_utf8(piece.to_vec()).unwrap()));
    pieces
}

#[test]
fn each_splitter_has_its_own_pieces() {
    let text = "don'T  stop 12345\n\nfooBar(x)";
    for (splitter, expected) in [
        (Splitter::Gpt2, vec!["don", "'", "T", " ", " stop", " 12345", "\n", "\n", "fooBar"]),
        (Splitter::DigitsThenGpt2, vec!["don", "'", "T", " ", " stop", " ", "1", "2", "3"]),
        (Splitter::Llama3, vec!["don", "'T", " ", " stop", " ", "123", "45", "\n\n", "fooBar"]),
        (Splitter::Qwen2, vec!["don", "'T", " ", " stop", " ", "1", "2", "3", "4"]),
        (Splitter::Gpt4o, vec!["don'T", " ", " stop", " ", "123", "45", "\n\n", "foo", "Bar"]),
        (Splitter::Tekken, vec!["don", "'T", " ", " stop", " ", "1", "2", "3", "4"]),
        (Splitter::DeepSeek3, vec!["don", "'T", " ", " stop", " ", "123", "45", "\n\n", "fooBar"]),
        (Splitter::KimiK2, vec!["don'T", " ", " stop", " ", "123", "45", "\n\n", "fooBar", "(x"]),
        (Splitter::Default, vec!["don", "'", "T", " ", " stop", " ", "123", "45", "\n"]),
    ] {
        let made = pieces(splitter, text);
        assert!(
            made.starts_with(&expected.iter().map(|piece| (*piece).to_owned()).collect::<Vec<_>>()),
            "{splitter:?}: {made:?}"
        );
    }
    assert_eq!(pieces(Splitter::Qwen2, "e\u{301}a"), ["e", "\u{301}a"]);
    assert_eq!(pieces(Splitter::Qwen35, "e\u{301}a"), ["e\u{301}a"]);
    assert_eq!(pieces(Splitter::KimiK2, "a中b"), ["a", "中", "b"]);
    assert_eq!(pieces(Splitter::Gpt4o, "ABÄBcÄ"), ["ABÄBcÄ"]);
    assert_eq!(pieces(Splitter::Gpt4o, "ABÄB"), ["ABÄ", "B"], "a letter that is both ends the word");
    assert_eq!(pieces(Splitter::DeepSeek3, "の・中\u{1}\u{2}."), ["の", "・", "中", "\u{1}\u{2}", "."]);
}

proptest! {
    #[test]
    fn the_pieces_are_the_text(text in "[aZé中の\u{301} \u{3000}\n\r\t.$'slLeE07²\u{1}🙂/]{0,40}|\\PC{0,20}") {
        for splitter in ALL {
            let made = pieces(splitter, &text);
            prop_assert!(made.iter().all(|piece| !piece.is_empty()));
            prop_assert_eq!(made.concat(), text.clone(), "{:?}", splitter);
        }
    }
}
