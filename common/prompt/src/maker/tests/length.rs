//! Tests of the lower bound on a prompt's tokens: it never exceeds them, and a prompt that is far too long is not
//! tokenized.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::cancel::unless_cancelled;
use crate::error::TooManyTokens;
use crate::vocabulary::token_bound::TokenBound;

/// Longer than any text that is always tokenized to its end.
const LONG_BYTES: usize = 150 << 10;

fn least(maker: &PromptMaker) -> Option<&TokenBound> {
    maker.vocabulary.token_bound.as_ref()
}

/// Returns texts that match the longest tokens of vocabularies: runs, code, words with spaces.
fn repetitive_text() -> impl Strategy<Value = String> {
    let unit = prop_oneof![
        "[ .\\-=_*#/\\\\a0\\n\\t]",
        "[a-z]{1,12} ",
        "\\PC{1,3}",
        Just("\u{2581}".to_owned()),
        Just(" \u{2581}".to_owned()),
        Just("\r\n".to_owned()),
        Just("    ".to_owned()),
    ];
    let run = (unit, 1..200usize).prop_map(|(unit, n)| unit.repeat(n));
    prop::collection::vec(run, 1..6).prop_map(|runs| runs.concat())
}

/// Returns a maker whose tokenizer takes long runs uncut.
fn maker_of(name: &str) -> &'static (&'static str, PromptMaker) {
    MAKERS.iter().find(|(of, _)| *of == name).unwrap()
}

#[test]
fn vocabularies_without_loss_have_a_bound() {
    for (name, maker) in MAKERS.iter() {
        assert!(least(maker).is_some(), "{name}");
    }
}

#[test]
fn prompts_that_are_far_too_long_are_not_tokenized() {
    for (name, maker) in MAKERS.iter() {
        for text in [".", "a", "word ", "x    \n"].map(|text| text.repeat((4 << 20) / text.len())) {
            let before = maker.cache_counters().tokenized_bytes;
            let refused = maker.chat_within(&chat(&[&text]), 8192);
            let Err(PromptError::TooManyTokens(TooManyTokens { n_tokens_min: 8193.. })) = refused else {
                panic!("{name}: {:?}: {refused:?}", &text[..10]);
            };
            let taken = maker.cache_counters().tokenized_bytes - before;
            assert!(taken < 1 << 20, "{name}: {taken} bytes of {:?} were tokenized", &text[..10]);
        }
    }
}

#[test]
fn tokenizing_stops_between_portions_when_there_are_too_many_tokens() {
    let (_, maker) = MAKERS.iter().find(|(_, maker)| maker.vocabulary.cuts_at_words()).unwrap();
    let text = "Words that come again and again. ".repeat(200_000);
    let prompt = maker.prepare_text(text, Scope::default());
    let refused = maker.tokens_within(&prompt, 1_000_000).unwrap_err();
    assert!((1_000_001..1_100_000).contains(&refused.n_tokens_min), "{refused:?}");
}

/// Returns the result of tokenizing a text until this many portions of it have begun, and how many have.
fn tokenized_until(maker: &PromptMaker, text: &str, n_portions_max: usize) -> (Option<Vec<Token>>, usize) {
    let n_begun = Rc::new(Cell::new(0));
    let counted = Rc::clone(&n_begun);
    let is_cancelled = move || {
        counted.set(counted.get() + 1);
        counted.get() > n_portions_max
    };
    let tokens = unless_cancelled(is_cancelled, || maker.text(text));
    (tokens, n_begun.get())
}

#[test]
fn work_that_was_cancelled_ends_at_the_next_portion() {
    for vocab in ["qwen2", "llama-bpe", "bert-bge", "llama-spm"] {
        let maker = open(vocab, "");
        let text = format!("{vocab} counts words that come again and again. ").repeat(20_000);
        let (tokens, n_portions) = tokenized_until(&maker, &text, usize::MAX);
        assert!(n_portions >= text.len() >> 17, "{vocab}: {n_portions} portions of {} bytes", text.len());
        assert_eq!(tokens.unwrap(), whole(&maker, &text), "{vocab}");
        let other = text.to_uppercase();
        let tokenized_before = maker.cache_counters().tokenized_bytes;
        assert_eq!(tokenized_until(&maker, &other, 3), (None, 4), "{vocab}");
        assert_eq!(
            maker.cache_counters().tokenized_bytes,
            tokenized_before,
            "{vocab}: half a text is not cached as a fragment"
        );
        assert_eq!(maker.text(&other), whole(&maker, &other), "{vocab}: the next request is not affected");
    }
}

#[test]
fn texts_far_too_long_for_an_encoder_are_not_tokenized() {
    let maker = PromptMaker::open(&fixtures().join("vocab/bert-bge.gguf"), PromptOptions::default()).unwrap();
    for text in [".", "a", "word ", "\u{4e16}"].map(|text| text.repeat((4 << 20) / text.len())) {
        let prompt = maker.prepare_text(text.clone(), Scope::default());
        let refused = maker.tokens_within(&prompt, 512).unwrap_err();
        assert!(refused.n_tokens_min > 512, "{:?}: {refused:?}", &text[..3]);
        assert!(maker.pair("a question", &text, 512).is_err(), "{:?}", &text[..3]);
    }
    assert_eq!(maker.cache_counters().tokenized_bytes, 0);
    let spaced = format!("a{}b", " ".repeat(1 << 20));
    assert_eq!(maker.text(&spaced), whole(&maker, &spaced), "white space has no tokens");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_text_has_no_fewer_tokens_than_the_bound((name, maker, text) in any_maker().prop_flat_map(|(name, maker)| {
        (Just(*name), Just(maker), prop_oneof![calm_text(), repetitive_text(), hostile_text(maker)])
    })) {
        let least = least(maker).expect("it has a bound");
        let tokens = maker.vocabulary.tokenize_plain(&text);
        prop_assert!(least.count(text.as_bytes(), usize::MAX) <= tokens.len(), "{}: {:?}", name, text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_prompt_that_fits_is_never_refused_and_one_that_does_not_is(
        (name, maker) in prop::sample::select(vec!["qwen2", "llama-bpe"]).prop_map(maker_of),
        text in repetitive_text(),
    ) {
        let text = text.repeat(LONG_BYTES / text.len().max(1) + 1);
        let prompt = maker.prepare_text(text.clone(), Scope::default());
        let tokens = whole(maker, &text);
        prop_assert_eq!(&maker.tokens_within(&prompt, tokens.len()).unwrap().tokens, &tokens, "{}", name);
        prop_assert!(maker.check_length(&prompt, tokens.len()).is_ok());
        let refused = maker.tokens_within(&prompt, tokens.len() / 2);
        if prompt.unseen_bytes() > LONG_BYTES {
            let n_tokens_min = refused.unwrap_err().n_tokens_min;
            prop_assert!((tokens.len() / 2 + 1..=tokens.len()).contains(&n_tokens_min), "{}: {}", name, n_tokens_min);
        }
    }
}
