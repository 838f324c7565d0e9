//! Builds llama.cpp's sampler of a grammar of tool calls after checking what its parser takes on trust.
//!
//! Not here: when the grammar counts (`call_grammar`), grammars of clients (`grammar`).
//! The idea: the parser recurses per group and per rule, copies what is repeated, and counts up to 2^64 when a repetition's
//! maximum is below its minimum. So the text is scanned first, as the parser reads it, adding up what it would grow to;
//! then it is parsed on a stack that is large enough for what is let through.

use std::iter::Peekable;
use std::str::Chars;

use llama_cpp_2::GrammarError;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::sampling::LlamaSampler;

/// Is the longest grammar. Units: bytes. Source: some 300 bytes for each parameter of the tools.
const BYTES_MAX: usize = 2 << 20;

/// Is the most groups, nested or not; llama.cpp's parser recurses once per level.
const GROUPS_MAX: usize = 8192;

/// Is the most elements that a grammar may grow to, a rule counted as [`RULE_ELEMENTS`].
///
/// Source: 30,000 rules, or fifteen texts of up to 2,000 characters in a JSON schema; some 30 MB in llama.cpp.
const ELEMENTS_MAX: u64 = 1_000_000;

/// Is what a rule's bookkeeping costs, in elements of 8 bytes.
const RULE_ELEMENTS: u64 = 32;

/// Is the number of repetitions above which llama.cpp refuses a minimum and ignores a maximum.
///
/// Source: `MAX_REPETITION_THRESHOLD` in `llama-grammar.cpp`.
const REPETITIONS_MAX: u64 = 2000;

/// Is the stack on which a grammar is parsed: 8 kB for each level that [`GROUPS_MAX`] allows; the check for left recursion
/// needs some 200 bytes for each of at most [`ELEMENTS_MAX`] / [`RULE_ELEMENTS`] + [`BYTES_MAX`] rules.
const STACK_BYTES: usize = 64 << 20;

/// Returns the sampler of a grammar of tool calls, which begins to count where one of `patterns` is found, if there are any.
pub(super) fn build(model: &LlamaModel, text: &str, patterns: Option<&[String]>) -> Result<LlamaSampler, String> {
    check(text)?;
    on_large_stack(|| match patterns {
        Some(patterns) => LlamaSampler::grammar_lazy_patterns(model, text, "root", patterns, &[]),
        None => LlamaSampler::grammar(model, text, "root"),
    })
}

fn on_large_stack(parse: impl FnOnce() -> Result<LlamaSampler, GrammarError> + Send) -> Result<LlamaSampler, String> {
    let parsed = std::thread::scope(|scope| {
        let parser = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
        parser.spawn_scoped(scope, parse).map(|parse| parse.join())
    });
    match parsed {
        Ok(Ok(Ok(sampler))) => Ok(sampler),
        Ok(Ok(Err(error))) => Err(format!("the grammar does not parse ({error})")),
        Ok(Err(_)) => Err("the grammar's parser failed".to_owned()),
        Err(error) => Err(format!("there is no thread to parse the grammar: {error}")),
    }
}

/// Refuses a grammar that would grow too large or too deep; what is wrong otherwise is left to the parser.
fn check(text: &str) -> Result<(), String> {
    if text.len() > BYTES_MAX {
        return Err(format!("the grammar has {} bytes, at most {BYTES_MAX} are read", text.len()));
    }
    let mut scan = Scan { chars: text.chars().peekable(), symbol: 0, n_groups: 0, n_elements: text.len() as u64 };
    while let Some(c) = scan.chars.next() {
        scan.take(c)?;
        if scan.n_groups > GROUPS_MAX {
            return Err(format!("the grammar has more than {GROUPS_MAX} groups"));
        }
        if scan.n_elements > ELEMENTS_MAX {
            return Err("the grammar's repetitions are too large taken together".to_owned());
        }
    }
    Ok(())
}

/// Is a walk over a grammar's text.
struct Scan<'a> {
    chars: Peekable<Chars<'a>>,
    /// Is the elements of the last symbol, which a repetition would copy.
    symbol: u64,
    n_groups: usize,
    n_elements: u64,
}

impl Scan<'_> {
    fn take(&mut self, c: char) -> Result<(), String> {
        match c {
            '"' => self.symbol = self.skip_past('"'),
            '[' => self.symbol = self.skip_past(']'),
            '<' => {
                self.chars.by_ref().find(|c| *c == '>');
                self.symbol = 1;
            }
            '#' => self.skip_comment(),
            '{' => self.take_repetition()?,
            '*' | '+' | '?' => self.repeat(1),
            '(' => self.n_groups += 1,
            ' ' | '\t' | '\r' | '\n' => {}
            _ => self.symbol = 1,
        }
        Ok(())
    }

    /// Skips a literal or a character class and returns the number of its characters, at least.
    fn skip_past(&mut self, end: char) -> u64 {
        let mut n = 0;
        while let Some(c) = self.chars.next() {
            match c {
                '\\' => drop(self.chars.next()),
                c if c == end => break,
                _ => {}
            }
            n += 1;
        }
        n
    }

    fn skip_comment(&mut self) {
        while self.chars.next_if(|c| !matches!(c, '\r' | '\n')).is_some() {}
    }

    fn skip_space(&mut self) {
        while let Some(c) = self.chars.next_if(|c| matches!(c, ' ' | '\t' | '\r' | '\n' | '#')) {
            if c == '#' {
                self.skip_comment();
            }
        }
    }

    fn take_repetition(&mut self) -> Result<(), String> {
        self.skip_space();
        let n_min = self.number();
        self.skip_space();
        let mut n_max = n_min;
        if self.chars.next_if_eq(&',').is_some() {
            self.skip_space();
            n_max = self.number();
            self.skip_space();
        }
        self.chars.next_if_eq(&'}');
        if let (Some(min), Some(max)) = (n_min, n_max)
            && max < min
        {
            return Err(format!("the grammar repeats something at least {min} and at most {max} times"));
        }
        let n_times = n_max.unwrap_or(0).max(n_min.unwrap_or(0)).min(REPETITIONS_MAX);
        self.repeat(n_times);
        Ok(())
    }

    /// Returns the number that stands here, or `None` where none does; a huge one counts as the largest.
    fn number(&mut self) -> Option<u64> {
        let mut number = None;
        while let Some(digit) = self.chars.next_if(char::is_ascii_digit).and_then(|c| c.to_digit(10)) {
            number = Some(number.unwrap_or(0_u64).saturating_mul(10).saturating_add(u64::from(digit)));
        }
        number
    }

    fn repeat(&mut self, n_times: u64) {
        let n_copies = n_times + 1;
        self.n_elements = self.n_elements.saturating_add(n_copies.saturating_mul(self.symbol + RULE_ELEMENTS));
        self.symbol = self.symbol.saturating_mul(n_times.max(1)).saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_refused(text: &str, words: &str) {
        let refused = check(text).expect_err(&text[..text.len().min(80)]);
        assert!(refused.contains(words), "{refused}");
    }

    #[test]
    fn lets_ordinary_grammars_through() {
        for text in [
            r#"root ::= "yes" | "no""#,
            r##"root ::= "#{9,1}\"{9,1}" [^{9,1}\]{9,1}] x* # {9,1} "
               x ::= "a"{ 2 , 5 } ("b" | [0-9]{1,15}){0,200} <think> !<think>"##,
            &format!("root ::= \"{}\"", "x".repeat(100_000)),
            &format!("root ::= {}\"a\"{}", "(".repeat(GROUPS_MAX), ")".repeat(GROUPS_MAX)),
        ] {
            check(text).unwrap_or_else(|refused| panic!("{refused}: {}", &text[..text.len().min(80)]));
        }
    }

    #[test]
    fn refuses_a_maximum_below_the_minimum_wherever_it_hides() {
        check_refused(r#"root ::= "a"{5,2}"#, "at least 5 and at most 2");
        check_refused("root ::= (\"a\" # {\n { 5 # 6\n ,\t2 })", "at least 5 and at most 2");
        check_refused(r#"root ::= "\"" [\]"] <"> "a"{5,2}"#, "at least 5");
        check_refused("root ::= \"#\" [#] x # \"\r{5,2}", "at least 5");
        check_refused("root ::= \"a\"{99999999999999999999,1}", "at most 1 times");
    }

    #[test]
    fn refuses_what_grows_too_large() {
        check_refused(&"x".repeat(BYTES_MAX + 1), "bytes");
        check_refused(&"(".repeat(GROUPS_MAX + 1), "groups");
        check_refused(&format!("root ::= \"{}\"{{2000}}", "x".repeat(1000)), "repetitions");
        check_refused(&format!("root ::= \"{}\"{{40}}{{40}}", "{".repeat(1000)), "repetitions");
        check_refused(&format!("root ::= {}", "a{0,2000} ".repeat(20)), "repetitions");
        check_refused(&format!("root ::= {}", "a? ".repeat(30_000)), "repetitions");
    }
}
