//! Grammars that take much work: every step stays within its limit, and the response either continues or fails.
//!
//! Work is counted in steps, so the outcome is the same on every machine. The limit of some is small, so that grammars
//! which other matchers follow exceed it.

use super::{FUEL, compile};
use crate::gbnf::GrammarMatcher;

/// Number of tokens of a response, if the grammar allows that many.
const ANSWER_TOKENS: usize = 300;

/// Limit of work for a grammar that is to exceed it.
const LITTLE_FUEL: u64 = 500;

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
        (format!("root ::= [^\\r\\n]{}", "+".repeat(10)), "abcdefgh", End::GoesOn),
        (chain(10, "+"), "abcdefgh", End::GoesOn),
        (chain(100, "*"), "abcdefgh", End::GoesOn),
        ("root ::= \"x\" | \"x\" root | \"x\" root root".to_owned(), "x", End::GoesOn),
        ("root ::= \"x\" root root root | \"x\"? \"\"".to_owned(), "x", End::TooMuch),
        ("root ::= (\"x\" | \"xx\" | \"xxx\" root)* \"y\"".to_owned(), "x", End::GoesOn),
        ("root ::= (\"a\"{0,30}){0,30}".to_owned(), "aaaaaaaa", End::TooMuchAtOnce),
        ("root ::= ((\"a\"{0,6}){0,6}){0,6}".to_owned(), "aaaaaaaa", End::Over),
        (format!("root ::= {}", "\"a\"? ".repeat(200)), "aaaa", End::TooMuchAtOnce),
        (format!("root ::= {}", "(\"a\" | ".repeat(500) + "\"b\"" + &")".repeat(500)), "a", End::Over),
        (format!("root ::= {}", "[ab]* ".repeat(200)), "abab", End::TooMuchAtOnce),
        (
            format!("root ::= ({})+", (0..2_000).map(|i| format!("\"{i}\"")).collect::<Vec<_>>().join(" | ")),
            "1234",
            End::GoesOn,
        ),
        (format!("root ::= \"{}\"", "x".repeat(490_000)), "xxxxxxxx", End::GoesOn),
        (format!("root ::= r0\n{}", many.collect::<String>()), "x", End::GoesOn),
        ("root ::= (.* \"a\" .*)* | (\"a\" root \"a\")* root2\nroot2 ::= .{0,50}".to_owned(), "aab", End::GoesOn),
    ]
}

#[test]
fn hostile_grammars_continue_or_fail_within_their_work() {
    let mut wrong = Vec::new();
    for (text, said, expected) in hostile() {
        let fuel = match expected {
            End::GoesOn | End::Over => FUEL,
            End::TooMuch | End::TooMuchAtOnce => LITTLE_FUEL,
        };
        let found = end(&text, said, fuel);
        if found != expected {
            wrong.push((text[..text.len().min(60)].to_owned(), found, expected));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn end(text: &str, said: &str, fuel: u64) -> End {
    let grammar = compile(text).unwrap_or_else(|error| panic!("{error}"));
    let Ok(mut follower) = GrammarMatcher::new(&grammar, fuel) else { return End::TooMuchAtOnce };
    for _ in 0..ANSWER_TOKENS {
        follower.refuel(fuel);
        match follower.take(1, said.as_bytes()) {
            Ok(true) => {}
            Ok(false) => return End::Over,
            Err(_) => return End::TooMuch,
        }
    }
    End::GoesOn
}
