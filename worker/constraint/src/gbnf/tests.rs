//! Texts that grammars allow, compared with a naive matcher, and the cost of hostile grammars.

mod hostile;
mod naive;

use std::sync::Arc;

use proptest::prelude::*;
use warmpath_common::ids::Token;

use super::{Exhausted, Grammar, GrammarError, GrammarMatcher, GrammarVocabulary};

const FUEL: u64 = 1_500_000;

/// Compiles a grammar with a vocabulary of two named tokens.
fn compile(text: &str) -> Result<Arc<Grammar>, GrammarError> {
    let named = |text: &str| match text {
        "<think>" => Some(1000),
        "</think>" => Some(1001),
        _ => None,
    };
    Grammar::new(text, GrammarVocabulary { n_vocab: 2000, named: &named }).map(Arc::new)
}

fn follow(grammar: &str) -> GrammarMatcher {
    let grammar = compile(grammar).unwrap_or_else(|error| panic!("{error}: {grammar}"));
    GrammarMatcher::new(&grammar, FUEL).expect("the start is within the limit")
}

/// Feeds a text byte by byte; returns how many bytes were allowed.
fn feed(follower: &mut GrammarMatcher, text: &str) -> Result<usize, Exhausted> {
    for (n, byte) in text.bytes().enumerate() {
        follower.refuel(FUEL);
        if !follower.take(Token::from(byte), &[byte])? {
            return Ok(n);
        }
    }
    Ok(text.len())
}

/// Checks that `right` texts follow a grammar, and that each `wrong` text fails at its `^` or, if it has no `^`, is
/// incomplete.
fn check(grammar: &str, right: &[&str], wrong: &[&str]) {
    for text in right {
        let mut follower = follow(grammar);
        assert_eq!(feed(&mut follower, text), Ok(text.len()), "{text:?} matches {grammar}");
        assert!(follower.accepts(), "{text:?} is complete: {grammar}");
    }
    for text in wrong {
        let mut follower = follow(grammar);
        let n_right = text.find('^').unwrap_or(text.len());
        let text = text.replacen('^', "", 1);
        assert_eq!(feed(&mut follower, &text), Ok(n_right), "{text:?} against {grammar}");
        assert!(n_right < text.len() || !follower.accepts(), "{text:?} is not complete: {grammar}");
    }
}

#[test]
fn every_construct_has_llama_cpps_meaning() {
    check("root ::= \"yes\" | \"no\"", &["yes", "no"], &["", "y", "^x", "yes^s", "n^a"]);
    check("root ::= \"b\" \"cd\" | \"bc\" \"e\"", &["bcd", "bce"], &["bc", "bc^f"]);
    check("root ::= [a-c-] [^a-c\\]]", &["ad", "-é", "c\n"], &["^d", "a^b", "b^]"]);
    check("root ::= [a-c-e]", &["-", "e", "b"], &["^d"]);
    check("root ::= . .", &["é\n", "😀."], &["é", "ab^c"]);
    check("root ::= \"\\x41\\u00e9\\U0001F600\\t\\\"\\\\\\[\\]\\-\"", &["Aé😀\t\"\\[]-"], &["A^e"]);
    check("root ::= \"ab\"* \"c\"", &["c", "ababc"], &["aba^c", "a^a"]);
    check(
        "root ::= \"a\"{2} \"b\"{1,} \"c\"{0,2} \"d\"{,3}\n".replace("{,3}", "{0}").as_str(),
        &["aab", "aabbbcc"],
        &["a^b", "aabccc".replacen("ccc", "cc^c", 1).as_str()],
    );
    check("root ::= (\"a\" | # one\n \"b\"\n)+ x?\nx ::= \"!\"\n", &["a", "bab!"], &["", "a!^!"]);
    check("root ::= \"a\"\nroot ::= \"b\"", &["b"], &["^a"]);
    check("root ::= ", &[""], &["^a"]);
    check("root ::= | \"a\" [] [^] \"\"", &["", "a"], &["a^a"]);
    check("root ::= \"a\"{0,3000}", &["", "aaaa"], &["^b"]);
    check("root ::= \"x\" | a \"!\"\na ::= a2 | \"\"\na2 ::= \"y\" a", &["x", "!", "yyy!"], &["y", "y^x"]);
    check("root ::= [z-a] | \"b\"", &["b"], &["^a", "^z"]);
    check("root ::= .", &[], &["^\0"]);
}

#[test]
fn an_expression_that_may_be_empty_may_be_repeated() {
    for grammar in [
        "root ::= ((\"x\"*)*)*",
        "root ::= (\"x\"? | \"\")+ *{0,7}?",
        "root ::= a a a\na ::= b*\nb ::= c* c*\nc ::= [x]?",
    ] {
        check(grammar, &["", "x", "xxxxx"], &["x^y"]);
    }
    check("root ::= (\"x\"* \"y\"*)* \"z\"", &["z", "xyxxyyz"], &["xyx", "xy^a"]);
}

#[test]
fn deep_recursion_and_long_lists_are_matched() {
    let (open, close) = ("(".repeat(20_000), ")".repeat(20_000));
    let nested = format!("{open}x{close}");
    let unclosed = format!("{open}x{}^x", &close[1..]);
    check("root ::= \"x\" | \"(\" root \")\"", &[&nested], &[&unclosed]);
    let list = vec!["1"; 20_000].join(",");
    for grammar in
        ["root ::= \"1\" | \"1,\" root", "root ::= \"1\" (\",1\")*", "root ::= [1] rest\nrest ::= \"\" | \",\" root"]
    {
        check(grammar, &[&list], &[&format!("{list},^,")]);
    }
}

#[test]
fn nesting_beyond_the_memory_limit_is_an_error() {
    let mut follower = follow("root ::= \"x\" | \"(\" root \")\"");
    assert_eq!(feed(&mut follower, &"(".repeat(150_000)), Err(Exhausted));
    assert!(follower.n_trimmed() > 0);
}

#[test]
fn tokens_are_matched_by_name_and_by_text() {
    let mut follower = follow("root ::= <think> !</think>* </think> [a-z]+ <[7]>?");
    assert_eq!(follower.take(1001, b""), Ok(false));
    for (token, text) in [(1000, ""), (5, "é"), (6, "\u{e9}"), (1000, ""), (1001, ""), (7, "ab")] {
        follower.refuel(FUEL);
        assert!(!follower.accepts());
        assert_eq!(follower.take(token, text.as_bytes()), Ok(true), "{token}");
    }
    assert!(follower.accepts());
    let mut by_name = follower.clone();
    assert_eq!(follower.take(7, b"7"), Ok(true));
    assert_eq!(follower.take(8, b"a"), Ok(false));
    assert_eq!(by_name.take(7, b"ab"), Ok(true), "the token matches by its text or by its name");
    assert_eq!(by_name.take(8, b"cd"), Ok(true), "the token matches by its text");
}

#[test]
fn a_token_may_end_within_a_character() {
    let mut follower = follow("root ::= [é-ï] | \"字\"");
    assert_eq!(follower.allows(1, &[0xC3]), Ok(true));
    assert_eq!(follower.allows(1, &[0xC2]), Ok(false));
    assert_eq!(follower.allows(1, &[0xE5, 0xAD]), Ok(true));
    assert_eq!(follower.allows(1, &[0xE5, 0xAE]), Ok(false));
    assert_eq!(follower.take(1, &[0xC3]), Ok(true));
    assert!(!follower.accepts());
    assert_eq!(follower.allows(1, &[0xA8]), Ok(false));
    assert_eq!(follower.take(1, &[0xA9]), Ok(true));
    assert!(follower.accepts());
}

fn check_refused(grammar: &str, words: &str) {
    let refused = compile(grammar).expect_err(&grammar[..grammar.len().min(80)]).to_string();
    assert!(refused.contains(words), "{refused}");
}

#[test]
fn errors_have_the_reason_and_the_line() {
    check_refused("root ::= \"a\"\n\nroot = \"b\"", "line 3: `::=` after `root` is missing before `= \"b\"`");
    check_refused("root ::= (\"a\"", "`)` is missing at the end of the line");
    check_refused("root ::= \"a\")", "a new line, or the end is missing before `)`");
    check_refused("root ::= \"a\n", "line 2: a literal or character class is not closed");
    check_refused("root ::= [a", "not closed");
    check_refused("root ::= \"\\q\"", "`\\q` is not an escape");
    check_refused("root ::= \"\\x4\"", "2 hexadecimal digits");
    check_refused("root ::= *", "nothing before `*`");
    check_refused("root ::= \"\"+", "nothing before `+`");
    check_refused("root ::= \"a\"{x}", "a number is missing");
    check_refused("root ::= \"a\"{1,2", "`}` is missing");
    check_refused("root ::= (\"a\" # {\n { 5 # 6\n ,\t2 })", "line 3: something is repeated at least 5 and at most 2");
    check_refused("root ::= \"a\"{99999999999999999999,}", "the maximum is 2000");
    check_refused("root ::= <nothing>", "`<nothing>` is not a token");
    check_refused("root ::= <[2000]>", "is not a token");
    check_refused("root ::= !x", "a token, as");
    check_refused("root ::= undefined", "`undefined` is not defined");
    check_refused("start ::= \"a\"", "no rule `root`");
    check_refused("| \"a\"", "the name of a rule is missing");
    check_refused("root ::= root \"a\" | \"b\"", "`root` may begin with itself");
    check_refused("root ::= a\na ::= [x]* b\nb ::= (a)? \"y\"", "may begin with itself");
    check_refused("root ::= \"a\" root", "is infinite");
    check_refused("root ::= \"\\x00\"", "is infinite");
    check_refused(&"x".repeat(1_100_000), "bytes");
    check_refused(&format!("root ::= {}", "[a]{2000} ".repeat(100)), "symbols");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn allows_the_same_texts_as_a_naive_matcher(rules in naive::rules(), texts in prop::collection::vec("[abé]{0,7}", 12)) {
        let text = naive::written(&rules);
        let naive = naive::Naive::new(&rules);
        match compile(&text) {
            Err(error) => prop_assert!(
                naive.begins_with_itself() || !naive.is_possible(0), "{} refused: {}", text, error
            ),
            Ok(grammar) => for answer in &texts {
                naive::compare(&naive, GrammarMatcher::new(&grammar, FUEL).unwrap(), answer)?;
            },
        }
    }
}
