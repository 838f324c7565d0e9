//! Grammars that are designed to be expensive: every step stays within its limit of work, and the response either
//! continues or fails.
//!
//! Without the limit a step would take hours. Work is counted in steps, so the outcome is the same on every machine.

use super::{FUEL, compile};
use crate::grammar::GrammarMatcher;

/// Number of tokens of a response, if the grammar allows that many.
const ANSWER_TOKENS: usize = 300;

/// Outcome of a response.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The response continues.
    GoesOn,
    /// The grammar allows no further token.
    Over,
    /// A token takes too much work.
    TooMuch,
    /// The start takes too much work.
    TooMuchAtOnce,
}

/// Returns grammars, each with a text that is repeated, and the outcome.
fn hostile() -> Vec<(String, &'static str, End)> {
    let chain = |n: usize, op: &str| -> String {
        let rules = (0..n).map(|i| format!("r{i} ::= r{}{op}\n", i + 1));
        format!("root ::= r0\n{}r{n} ::= [^\\r\\n]\n", rules.collect::<String>())
    };
    let many = (0..3000).map(|i| format!("r{i} ::= \"{i}\" root? | \"x\" r{}\n", (i * 7 + 1) % 3000));
    vec![
        (format!("root ::= [^\\r\\n]{}", "+".repeat(50)), "abcdefgh", End::GoesOn),
        (chain(50, "+"), "abcdefgh", End::GoesOn),
        (chain(2000, "*"), "abcdefgh", End::GoesOn),
        ("root ::= \"x\" | \"x\" root | \"x\" root root".to_owned(), "x", End::GoesOn),
        ("root ::= \"x\" root root root | \"x\"? \"\"".to_owned(), "x", End::TooMuch),
        ("root ::= (\"x\" | \"xx\" | \"xxx\" root)* \"y\"".to_owned(), "x", End::GoesOn),
        ("root ::= (\"a\"{0,2000}){0,2000}".to_owned(), "aaaaaaaa", End::TooMuch),
        ("root ::= ((\"a\"{0,44}){0,44}){0,44}".to_owned(), "aaaaaaaa", End::GoesOn),
        (format!("root ::= {}", "\"a\"? ".repeat(20_000)), "aaaa", End::TooMuchAtOnce),
        (format!("root ::= {}", "(\"a\" | ".repeat(14_000) + "\"b\"" + &")".repeat(14_000)), "a", End::Over),
        (format!("root ::= {}", "[ab]* ".repeat(15_000)), "abab", End::TooMuchAtOnce),
        (
            format!("root ::= ({})+", (0..12_000).map(|i| format!("\"{i}\"")).collect::<Vec<_>>().join(" | ")),
            "1234",
            End::GoesOn,
        ),
        (format!("root ::= \"{}\"", "x".repeat(490_000)), "xxxxxxxx", End::GoesOn),
        (format!("root ::= r0\n{}", many.collect::<String>()), "x", End::GoesOn),
        (
            "root ::= s\ns ::= a s b | \"x\" | a b s\na ::= [xy]? c\nb ::= s? \"y\"\nc ::= \"x\"".to_owned(),
            "xy",
            End::TooMuch,
        ),
        ("root ::= (.* \"a\" .*)* | (\"a\" root \"a\")* root2\nroot2 ::= .{0,2000}".to_owned(), "aab", End::GoesOn),
    ]
}

#[test]
fn hostile_grammars_continue_or_fail_within_their_work() {
    for (text, said, expected) in hostile() {
        let name = &text[..text.len().min(60)];
        assert_eq!(end(&text, said), expected, "{name}");
    }
}

fn end(text: &str, said: &str) -> End {
    let grammar = compile(text).unwrap_or_else(|error| panic!("{error}"));
    let Ok(mut follower) = GrammarMatcher::new(&grammar, FUEL) else { return End::TooMuchAtOnce };
    for _ in 0..ANSWER_TOKENS {
        follower.refuel(FUEL);
        match follower.take(1, said.as_bytes()) {
            Ok(true) => {}
            Ok(false) => return End::Over,
            Err(_) => return End::TooMuch,
        }
    }
    End::GoesOn
}
