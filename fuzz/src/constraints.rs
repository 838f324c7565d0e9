//! Constraints of responses: grammars and JSON schemas, each followed by a text.

use std::sync::{Arc, LazyLock};

use serde_json::Value;
use warmpath_common::ids::Token;
use warmpath_constraint::RuleCompiler;
use warmpath_constraint::gbnf::{Exhausted, Grammar, GrammarMatcher, GrammarVocabulary};
use warmpath_constraint::schema::normalize;

/// Byte between the constraint and the text.
const BEFORE_TEXT: u8 = 0;

/// Work of one step, as in the engine.
const FUEL: u64 = 1_500_000;

/// Token that ends a response; those before it are the bytes.
const END: Token = 256;

fn parts(input: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(BEFORE_TEXT, input) {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, &[]),
    }
}

/// Matches a text against a grammar: at once, byte by byte, and as tokens of one byte.
pub(crate) fn grammar(input: &[u8]) {
    let (grammar, text) = parts(input);
    let Ok(grammar) = std::str::from_utf8(grammar) else { return };
    let token_of_name = |text: &str| (text == "<think>").then_some(END + 1);
    let Ok(grammar) = Grammar::new(grammar, GrammarVocabulary { n_vocab: END + 2, named: &token_of_name }) else {
        return;
    };
    let grammar = Arc::new(grammar);
    let Ok(matcher) = GrammarMatcher::new(&grammar, FUEL) else { return };
    // No exhaustion is an error: the work is limited.
    let _ = take_tokens(matcher.clone(), text);
    let _ = compare(matcher, text);
}

/// Compares the text at once with the text byte by byte.
fn compare(matcher: GrammarMatcher, text: &[u8]) -> Result<(), Exhausted> {
    let (mut whole, mut by_bytes) = (matcher.clone(), matcher);
    whole.refuel(FUEL);
    let is_allowed = whole.take_text(text)?;
    let mut n_allowed = 0;
    for byte in text {
        by_bytes.refuel(FUEL);
        if !by_bytes.take_text(&[*byte])? {
            break;
        }
        n_allowed += 1;
    }
    assert_eq!(is_allowed, n_allowed == text.len(), "{n_allowed} bytes are allowed, and the whole text");
    if is_allowed {
        assert_eq!(whole.accepts(), by_bytes.accepts(), "whether the response may end");
    }
    Ok(())
}

/// Takes tokens, some of which the grammar may name: what is allowed is what can be taken.
fn take_tokens(mut matcher: GrammarMatcher, text: &[u8]) -> Result<(), Exhausted> {
    for &byte in text {
        matcher.refuel(FUEL);
        let is_allowed = matcher.allows(Token::from(byte), &[byte])?;
        matcher.refuel(FUEL);
        let is_taken = matcher.take(Token::from(byte), &[byte])?;
        assert_eq!(is_allowed, is_taken, "token {byte}");
        if !is_taken {
            break;
        }
    }
    Ok(())
}

static COMPILER: LazyLock<RuleCompiler> = LazyLock::new(|| {
    let bytes = (0..=u8::MAX).map(|byte| if byte == 0xFF { Vec::new() } else { vec![byte] });
    let words: Vec<Vec<u8>> = bytes.chain([Vec::new()]).collect();
    RuleCompiler::new(words, &[END], |_| None).expect("there is a token that ends")
});

/// Follows a schema with a text: a text that the schema's grammar accepts is a value that the schema allows.
pub(crate) fn schema(input: &[u8]) {
    let (schema, text) = parts(input);
    // The byte 0xFF marks special tokens.
    let (Ok(schema), Ok(text)) = (serde_json::from_slice::<Value>(schema), std::str::from_utf8(text)) else { return };
    let Ok(normal_form) = normalize(&schema) else { return };
    let Ok(pattern) = COMPILER.compile(&normal_form) else { return };
    let mut constraint = pattern.begin();
    if constraint.take_text(text.as_bytes()).is_err() || !constraint.is_complete() {
        return;
    }
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        // JSON does not limit numbers; serde_json does.
        Err(error) if error.to_string().starts_with("number out of range") => return,
        Err(error) => panic!("the schema's grammar accepts a text that is not JSON: {error}"),
    };
    // What the validator cannot read, such as a pattern, has no second opinion.
    let Ok(validator) = jsonschema::validator_for(&schema) else { return };
    assert!(validator.is_valid(&value), "the schema's grammar accepts a value that the schema does not: {value}");
}
