//! Grammars that are made to be expensive: every step stays within its work, and the answer continues or fails.

use std::time::{Duration, Instant};

use super::{FUEL, compile};
use crate::grammar::GrammarMatcher;

/// Upper limit of every step on a machine that does other work too. Steps take some 10 ms there, compiling 150 ms; the
/// printed times are more precise.
const STEP_MAX: Duration = Duration::from_secs(5);

/// Returns grammars, each with a text that is repeated again and again.
fn hostile() -> Vec<(String, &'static str)> {
    let chain = |n: usize, op: &str| -> String {
        let rules = (0..n).map(|i| format!("r{i} ::= r{}{op}\n", i + 1));
        format!("root ::= r0\n{}r{n} ::= [^\\r\\n]\n", rules.collect::<String>())
    };
    let many = (0..3000).map(|i| format!("r{i} ::= \"{i}\" root? | \"x\" r{}\n", (i * 7 + 1) % 3000));
    vec![
        (format!("root ::= [^\\r\\n]{}", "+".repeat(50)), "abcdefgh"),
        (chain(50, "+"), "abcdefgh"),
        (chain(2000, "*"), "abcdefgh"),
        ("root ::= \"x\" | \"x\" root | \"x\" root root".to_owned(), "x"),
        ("root ::= \"x\" root root root | \"x\"? \"\"".to_owned(), "x"),
        ("root ::= (\"x\" | \"xx\" | \"xxx\" root)* \"y\"".to_owned(), "x"),
        ("root ::= (\"a\"{0,2000}){0,2000}".to_owned(), "aaaaaaaa"),
        ("root ::= ((\"a\"{0,44}){0,44}){0,44}".to_owned(), "aaaaaaaa"),
        (format!("root ::= {}", "\"a\"? ".repeat(20_000)), "aaaa"),
        (format!("root ::= {}", "(\"a\" | ".repeat(14_000) + "\"b\"" + &")".repeat(14_000)), "a"),
        (format!("root ::= {}", "[ab]* ".repeat(15_000)), "abab"),
        (format!("root ::= ({})+", (0..12_000).map(|i| format!("\"{i}\"")).collect::<Vec<_>>().join(" | ")), "1234"),
        (format!("root ::= \"{}\"", "x".repeat(490_000)), "xxxxxxxx"),
        (format!("root ::= r0\n{}", many.collect::<String>()), "x"),
        ("root ::= s\ns ::= a s b | \"x\" | a b s\na ::= [xy]? c\nb ::= s? \"y\"\nc ::= \"x\"".to_owned(), "xy"),
        ("root ::= (.* \"a\" .*)* | (\"a\" root \"a\")* root2\nroot2 ::= .{0,2000}".to_owned(), "aab"),
    ]
}

#[test]
fn hostile_grammars_go_on_or_fail_within_their_work() {
    for (text, said) in hostile() {
        let name = &text[..text.len().min(60)];
        let began = Instant::now();
        let grammar = match compile(&text) {
            Ok(grammar) => grammar,
            Err(error) => {
                println!("{name}: refused ({error})");
                continue;
            }
        };
        let compiled = began.elapsed();
        assert!(compiled < STEP_MAX, "{name} took {compiled:?} to compile");
        let Ok(mut follower) = GrammarMatcher::new(&grammar, FUEL) else {
            println!("{name}: too much at once");
            continue;
        };
        let (mut longest, mut end) = (Duration::ZERO, "goes on");
        let mut n_taken = 0;
        for _ in 0..300 {
            let began = Instant::now();
            follower.refuel(FUEL);
            let taken = follower.take(1, said.as_bytes());
            longest = longest.max(began.elapsed());
            match taken {
                Ok(true) => n_taken += 1,
                Ok(false) => end = "is over",
                Err(_) => end = "is too much",
            }
            if taken != Ok(true) {
                break;
            }
        }
        println!("{name}: compiled in {compiled:?}, {end} after {n_taken} tokens, the longest took {longest:?}");
        assert!(longest < STEP_MAX, "{name} took {longest:?} for a step");
    }
}
