//! Parser of GBNF, compatible with llama.cpp's, from text to rules of symbols.
//!
//! `lower` determines which rules can match.
//!
//! Groups and repetitions become separate rules during parsing, with a list of the open groups instead of recursion.
//! The repeated expression is a reference, so the size of a repetition depends only on the number of repetitions.
//! Source: `llama_grammar_parser` in llama.cpp's `llama-grammar.cpp`.

use std::ops::RangeInclusive;

use hashbrown::HashMap;
use warmpath_common::ids::Token;

use super::charset::CharSet;
use super::{GrammarError, GrammarVocabulary};

/// Largest grammar. Units: bytes. Source: tool calls have some 300 bytes for each parameter.
const BYTES_MAX: usize = 1 << 20;

/// Maximum number of symbols of all rules, with expanded repetitions. Source: docs/decisions/0032; some 25 MB during
/// parsing.
const SYMBOLS_MAX: usize = 500_000;

/// Number of repetitions above which a minimum is rejected and a maximum ignored.
///
/// Source: `MAX_REPETITION_THRESHOLD` in `llama-grammar.cpp`.
const REPETITIONS_MAX: usize = 2000;

/// Longest piece of a grammar that an error quotes. Units: characters. Source: half a line.
const QUOTED_CHARS_MAX: usize = 40;

/// One symbol of an alternative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Symbol {
    /// A character of the set with this number.
    Chars(u32),
    /// This token.
    Token(Token),
    /// Any token except this one.
    OtherToken(Token),
    /// The rule with this number.
    Rule(u32),
    /// The end of the alternative.
    End,
    /// The end of the text.
    Done,
}

/// A parsed rule.
#[derive(Debug, Default)]
pub(super) struct ParsedRule {
    /// Named rule of the grammar: this rule itself, or the rule that it is a part of.
    pub(super) owner: u32,
    /// Alternatives; `None` until the rule is defined.
    pub(super) alternatives: Option<Vec<Vec<Symbol>>>,
}

/// A parsed grammar.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    pub(super) rules: Vec<ParsedRule>,
    pub(super) names: HashMap<String, u32>,
    pub(super) sets: Vec<CharSet>,
    numbers: HashMap<CharSet, u32>,
    n_symbols: usize,
}

/// Parses a grammar.
///
/// Errors: a description of the error and its line.
pub(super) fn read(text: &str, tokens: GrammarVocabulary<'_>) -> Result<Drafts, GrammarError> {
    if text.len() > BYTES_MAX {
        let reason = format!("it has {} bytes; the maximum is {BYTES_MAX}", text.len());
        return Err(GrammarError { line: None, reason });
    }
    let mut reader = GrammarReader { text, at: 0, tokens, drafts: Drafts::default() };
    reader.grammar().map_err(|reason| GrammarError { line: Some(reader.line()), reason })?;
    Ok(reader.drafts)
}

type Read<T> = Result<T, String>;

/// Whether a line break counts as white space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineBreaks {
    End,
    GoOn,
}

/// Rule or group that is being parsed.
struct OpenRule {
    rule: u32,
    done: Vec<Vec<Symbol>>,
    current: Vec<Symbol>,
    /// Start of the expression that a repetition repeats.
    last: usize,
}

impl OpenRule {
    fn new(rule: u32) -> Self {
        Self { rule, done: Vec::new(), current: Vec::new(), last: 0 }
    }
}

struct GrammarReader<'a> {
    text: &'a str,
    at: usize,
    tokens: GrammarVocabulary<'a>,
    drafts: Drafts,
}

impl<'a> GrammarReader<'a> {
    fn grammar(&mut self) -> Read<()> {
        self.space(LineBreaks::GoOn);
        while self.peek().is_some() {
            self.rule()?;
            self.space(LineBreaks::GoOn);
        }
        Ok(())
    }

    fn rule(&mut self) -> Read<()> {
        let name = self.name();
        if name.is_empty() {
            return Err(self.expected("the name of a rule"));
        }
        let rule = self.drafts.named(name);
        self.space(LineBreaks::End);
        if !self.skip("::=") {
            return Err(self.expected(&format!("`::=` after `{}`", quoted(name))));
        }
        self.space(LineBreaks::GoOn);
        let mut groups = vec![OpenRule::new(rule)];
        while self.part(&mut groups)? {
            if self.drafts.n_symbols > SYMBOLS_MAX {
                return Err(format!("its repetitions expand to more than {SYMBOLS_MAX} symbols"));
            }
        }
        let Some(group) = groups.pop().filter(|_| groups.is_empty()) else { return Err(self.expected("`)`")) };
        self.drafts.close(group);
        match self.peek() {
            None | Some('\r' | '\n') => Ok(()),
            Some(_) => Err(self.expected("a new line, or the end")),
        }
    }

    /// Parses one part of the innermost group; returns whether there was one.
    fn part(&mut self, groups: &mut Vec<OpenRule>) -> Read<bool> {
        let Some(c) = self.peek() else { return Ok(false) };
        let n_open = groups.len();
        let Some(inner) = groups.last_mut() else { return Ok(false) };
        match c {
            '"' | '[' | '<' | '!' | '.' => {
                inner.last = inner.current.len();
                let n_before = inner.current.len();
                self.terminal(c, &mut inner.current)?;
                self.drafts.n_symbols += inner.current.len() - n_before;
            }
            c if is_word(c) => {
                inner.last = inner.current.len();
                let name = self.name();
                let rule = self.drafts.named(name);
                self.push(Symbol::Rule(rule), &mut inner.current);
            }
            // A repetition applies to the part before it, which starts at `last`.
            '*' | '+' | '?' | '{' => {
                let (min, max) = self.repetition(c, n_open)?;
                if inner.last == inner.current.len() {
                    return Err(format!("there is nothing before `{c}` to repeat"));
                }
                self.drafts.repeat(inner, min, max)?;
            }
            '|' => {
                self.at += 1;
                inner.done.push(std::mem::take(&mut inner.current));
                inner.last = 0;
                self.drafts.n_symbols += 1;
                self.space(LineBreaks::GoOn);
                return Ok(true);
            }
            // A group becomes a separate rule, so that nested groups need no recursion here.
            '(' => {
                self.at += 1;
                let rule = self.drafts.part_of(inner.rule);
                groups.push(OpenRule::new(rule));
                self.space(LineBreaks::GoOn);
                return Ok(true);
            }
            ')' if n_open > 1 => {
                self.at += 1;
                if let Some(group) = groups.pop()
                    && let Some(outer) = groups.last_mut()
                {
                    outer.last = outer.current.len();
                    self.push(Symbol::Rule(group.rule), &mut outer.current);
                    self.drafts.close(group);
                }
            }
            _ => return Ok(false),
        }
        self.space(lines(groups.len()));
        Ok(true)
    }

    fn push(&mut self, symbol: Symbol, current: &mut Vec<Symbol>) {
        self.drafts.n_symbols += 1;
        current.push(symbol);
    }

    /// Parses an expression that matches characters or a token.
    fn terminal(&mut self, c: char, into: &mut Vec<Symbol>) -> Read<()> {
        match c {
            '"' => {
                self.at += 1;
                while !self.skip("\"") {
                    let c = self.character()?;
                    into.push(self.drafts.chars(CharSet::of(&[c..=c])));
                }
            }
            '[' => {
                self.at += 1;
                let is_negated = self.skip("^");
                let ranges = self.ranges()?;
                // llama.cpp ignores an empty class, negated or not.
                if !ranges.is_empty() {
                    let set = if is_negated { CharSet::without(&ranges) } else { CharSet::of(&ranges) };
                    into.push(self.drafts.chars(set));
                }
            }
            '.' => {
                self.at += 1;
                into.push(self.drafts.chars(CharSet::without(&[])));
            }
            _ => {
                let is_negated = self.skip("!");
                let token = self.token()?;
                into.push(if is_negated { Symbol::OtherToken(token) } else { Symbol::Token(token) });
            }
        }
        Ok(())
    }

    fn ranges(&mut self) -> Read<Vec<RangeInclusive<u32>>> {
        let mut ranges = Vec::new();
        while !self.skip("]") {
            let first = self.character()?;
            let text = &self.text[self.at..];
            let last = if text.starts_with('-') && !text.starts_with("-]") {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            ranges.push(first..=last);
        }
        Ok(ranges)
    }

    /// Parses one character of a literal or class, or an escape sequence.
    fn character(&mut self) -> Read<u32> {
        let Some(c) = self.next() else { return Err("a literal or character class is not closed".to_owned()) };
        if c != '\\' {
            return Ok(u32::from(c));
        }
        match self.next() {
            Some('x') => self.hex(2),
            Some('u') => self.hex(4),
            Some('U') => self.hex(8),
            Some('t') => Ok(u32::from('\t')),
            Some('r') => Ok(u32::from('\r')),
            Some('n') => Ok(u32::from('\n')),
            Some(c @ ('\\' | '"' | '[' | ']' | '-')) => Ok(u32::from(c)),
            Some(c) => {
                Err(format!("`\\{c}` is not an escape; the escapes are \\x \\u \\U \\t \\r \\n \\\\ \\\" \\[ \\] \\-"))
            }
            None => Err("a literal or character class is not closed".to_owned()),
        }
    }

    fn hex(&mut self, n_digits: usize) -> Read<u32> {
        let digits = self.text.get(self.at..self.at + n_digits);
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let value = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let value = value.ok_or_else(|| self.expected(&format!("{n_digits} hexadecimal digits")))?;
        self.at += n_digits;
        Ok(value)
    }

    /// Parses `<text>` or `<[id]>`.
    fn token(&mut self) -> Read<Token> {
        let input = &self.text[self.at..];
        let end = input.find('>').filter(|_| input.starts_with('<'));
        let Some(end) = end else { return Err(self.expected("a token, as `<text>` or `<[number]>`")) };
        let text = &input[..=end];
        let token = match text.strip_prefix("<[") {
            Some(id) => id.strip_suffix("]>").filter(|id| is_number(id)).and_then(|id| id.parse().ok()),
            None => (self.tokens.named)(text),
        };
        let token = token.filter(|token| *token < self.tokens.n_vocab);
        let token = token.ok_or_else(|| format!("`{}` is not a token of the vocabulary", quoted(text)))?;
        self.at += text.len();
        Ok(token)
    }

    /// Parses a repetition: the minimum, and the maximum if there is one.
    fn repetition(&mut self, c: char, n_open: usize) -> Read<(usize, Option<usize>)> {
        self.at += 1;
        match c {
            '*' => return Ok((0, None)),
            '+' => return Ok((1, None)),
            '?' => return Ok((0, Some(1))),
            _ => self.space(lines(n_open)),
        }
        let Some(min) = self.number() else { return Err(self.expected("a number")) };
        self.space(lines(n_open));
        let mut max = Some(min);
        if self.skip(",") {
            self.space(lines(n_open));
            max = self.number();
            self.space(lines(n_open));
        }
        if !self.skip("}") {
            return Err(self.expected(if max.is_some() { "`}`" } else { "a number or `}`" }));
        }
        if let Some(max) = max.filter(|max| *max < min) {
            return Err(format!("something is repeated at least {min} and at most {max} times"));
        }
        if min > REPETITIONS_MAX {
            return Err(format!("something is repeated at least {min} times; the maximum is {REPETITIONS_MAX}"));
        }
        Ok((min, max.filter(|max| *max <= REPETITIONS_MAX)))
    }

    /// Parses the number at this position, if there is one; a number that is too large becomes the largest.
    fn number(&mut self) -> Option<usize> {
        let digits = self.while_in(|c| c.is_ascii_digit());
        is_number(digits).then(|| digits.parse().unwrap_or(usize::MAX))
    }

    fn space(&mut self, lines: LineBreaks) {
        loop {
            match self.peek() {
                Some(' ' | '\t') => self.at += 1,
                Some('\r' | '\n') if lines == LineBreaks::GoOn => self.at += 1,
                Some('#') => drop(self.while_in(|c| !matches!(c, '\r' | '\n'))),
                _ => return,
            }
        }
    }

    fn name(&mut self) -> &'a str {
        self.while_in(is_word)
    }

    fn while_in(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let text = &self.text[self.at..];
        let len = text.find(|c| !belongs(c)).unwrap_or(text.len());
        self.at += len;
        &text[..len]
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn skip(&mut self, text: &str) -> bool {
        let is_here = self.text[self.at..].starts_with(text);
        self.at += if is_here { text.len() } else { 0 };
        is_here
    }

    fn line(&self) -> usize {
        1 + self.text[..self.at].matches('\n').count()
    }

    fn expected(&self, what: &str) -> String {
        let line = self.text[self.at..].lines().next().unwrap_or_default();
        match line.trim() {
            "" => format!("{what} is missing at the end of the line"),
            line => format!("{what} is missing before `{}`", quoted(line)),
        }
    }
}

impl Drafts {
    /// Returns the number of the rule with this name.
    fn named(&mut self, name: &str) -> u32 {
        if let Some(rule) = self.names.get(name) {
            return *rule;
        }
        let rule = self.part_of(self.n_rules());
        self.names.insert(name.to_owned(), rule);
        rule
    }

    /// Returns the number of a new rule that is a part of another one.
    fn part_of(&mut self, rule: u32) -> u32 {
        let owner = self.rules.get(rule as usize).map_or(rule, |draft| draft.owner);
        let number = self.n_rules();
        self.rules.push(ParsedRule { owner, alternatives: None });
        number
    }

    fn n_rules(&self) -> u32 {
        u32::try_from(self.rules.len()).expect("there are fewer rules than symbols, which are counted")
    }

    fn close(&mut self, mut group: OpenRule) {
        self.n_symbols += 1;
        group.done.push(group.current);
        self.rules[group.rule as usize].alternatives = Some(group.done);
    }

    fn chars(&mut self, set: CharSet) -> Symbol {
        let next = u32::try_from(self.sets.len()).expect("there are fewer sets than bytes, which are counted");
        let number = *self.numbers.entry(set).or_insert_with_key(|set| {
            self.sets.push(set.clone());
            next
        });
        Symbol::Chars(number)
    }

    /// Repeats the last expression at least `min` and at most `max` times.
    fn repeat(&mut self, group: &mut OpenRule, min: usize, max: Option<usize>) -> Read<()> {
        let n_turns = max.unwrap_or(min + 1);
        self.n_symbols += 4 * n_turns + 4;
        if self.n_symbols > SYMBOLS_MAX {
            return Err(format!("its repetitions expand to more than {SYMBOLS_MAX} symbols"));
        }
        // A part of several symbols becomes a rule, so that each repetition is one symbol.
        let unit = match &group.current[group.last..] {
            [only] => *only,
            several => {
                let alternatives = Some(vec![several.to_vec()]);
                let rule = self.part_of(group.rule);
                self.rules[rule as usize].alternatives = alternatives;
                Symbol::Rule(rule)
            }
        };
        group.current.truncate(group.last);
        group.current.extend(std::iter::repeat_n(unit, min));
        match max {
            // tail ::= unit tail | ""
            None => {
                let tail = self.part_of(group.rule);
                self.rules[tail as usize].alternatives = Some(vec![vec![unit, Symbol::Rule(tail)], Vec::new()]);
                group.current.push(Symbol::Rule(tail));
            }
            // One rule for each optional repetition, the last one first: tail ::= unit (the tail after it) | ""
            Some(_) => {
                let mut tail = None;
                for _ in min..n_turns {
                    let rule = self.part_of(group.rule);
                    let turn = [unit].into_iter().chain(tail.map(Symbol::Rule)).collect();
                    self.rules[rule as usize].alternatives = Some(vec![turn, Vec::new()]);
                    tail = Some(rule);
                }
                group.current.extend(tail.map(Symbol::Rule));
            }
        }
        Ok(())
    }
}

/// Returns whether a line break counts as white space: it does within groups.
fn lines(n_open: usize) -> LineBreaks {
    if n_open > 1 { LineBreaks::GoOn } else { LineBreaks::End }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-'
}

fn is_number(digits: &str) -> bool {
    !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
}

fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_CHARS_MAX).collect()
}
