//! A naive matcher of grammars, and random grammars for it.
//!
//! For an expression at a position, the matcher tries all possibilities until it finds no further end of the
//! expression. It uses neither the parser nor the rows.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::super::GrammarMatcher;

/// Expression: a rule or a part of one.
#[derive(Debug, Clone)]
pub enum Expr {
    Literal(String),
    /// A class: its characters, and whether it is negated.
    Class(Vec<char>, bool),
    Rule(usize),
    Sequence(Vec<Expr>),
    Choice(Vec<Expr>),
    Repeat(Box<Expr>, usize, Option<usize>),
}

const N_RULES: usize = 3;

/// Returns three rules, the first of which is the root.
pub fn rules() -> impl Strategy<Value = Vec<Expr>> {
    let leaf = prop_oneof![
        3 => "[abé]{0,2}".prop_map(Expr::Literal),
        2 => (prop::collection::vec(prop::sample::select(vec!['a', 'b', 'é']), 1..3), any::<bool>()).prop_map(|(chars, is_negated)| Expr::Class(chars, is_negated)),
        2 => (0..N_RULES).prop_map(Expr::Rule),
    ];
    let expr = leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Expr::Sequence),
            prop::collection::vec(inner.clone(), 1..4).prop_map(Expr::Choice),
            (inner, 0..3_usize, prop::option::of(0..3_usize)).prop_map(|(expr, min, more)| Expr::Repeat(
                Box::new(expr),
                min,
                more.map(|more| min + more)
            )),
        ]
    });
    prop::collection::vec(expr, N_RULES)
}

/// Writes the rules in GBNF.
pub fn written(rules: &[Expr]) -> String {
    let name = |rule: usize| if rule == 0 { "root".to_owned() } else { format!("r{rule}") };
    let rule = |(idx, expr): (usize, &Expr)| format!("{} ::= {}\n", name(idx), write(expr, &name));
    rules.iter().enumerate().map(rule).collect()
}

fn write(expr: &Expr, name: &impl Fn(usize) -> String) -> String {
    let all = |exprs: &[Expr], by: &str| exprs.iter().map(|expr| write(expr, name)).collect::<Vec<_>>().join(by);
    match expr {
        Expr::Literal(text) => format!("\"{text}\""),
        Expr::Class(chars, is_negated) => {
            format!("[{}{}]", if *is_negated { "^" } else { "" }, chars.iter().collect::<String>())
        }
        Expr::Rule(rule) => name(*rule),
        Expr::Sequence(exprs) => format!("({})", all(exprs, " ")),
        Expr::Choice(exprs) => format!("({})", all(exprs, " | ")),
        Expr::Repeat(expr, min, max) => {
            let times = match (min, max) {
                (0, None) => "*".to_owned(),
                (1, None) => "+".to_owned(),
                (0, Some(1)) => "?".to_owned(),
                (min, None) => format!("{{{min},}}"),
                (min, Some(max)) => format!("{{{min},{max}}}"),
            };
            format!("({}){times}", write(expr, name))
        }
    }
}

/// Matcher of texts against rules.
pub struct Naive<'a> {
    rules: &'a [Expr],
    is_possible: Vec<bool>,
    is_nullable: Vec<bool>,
}

/// Intermediate results for each rule at each position of a text.
struct Known {
    /// Positions at which the rule can end.
    ends: Vec<Vec<Vec<bool>>>,
    /// Whether the rule can continue beyond the text, or end with it.
    outlasts: Vec<Vec<bool>>,
}

impl<'a> Naive<'a> {
    pub fn new(rules: &'a [Expr]) -> Self {
        let mut naive = Self { rules, is_possible: vec![false; N_RULES], is_nullable: vec![false; N_RULES] };
        for _ in 0..=N_RULES {
            naive.is_possible = rules.iter().map(|rule| naive.possible(rule)).collect();
            naive.is_nullable = rules.iter().map(|rule| naive.nullable(rule)).collect();
        }
        naive
    }

    pub fn is_possible(&self, rule: usize) -> bool {
        self.is_possible[rule]
    }

    fn possible(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Literal(_) | Expr::Class(..) => true,
            Expr::Rule(rule) => self.is_possible[*rule],
            Expr::Sequence(exprs) => exprs.iter().all(|expr| self.possible(expr)),
            Expr::Choice(exprs) => exprs.iter().any(|expr| self.possible(expr)),
            Expr::Repeat(expr, min, _) => *min == 0 || self.possible(expr),
        }
    }

    fn nullable(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Literal(text) => text.is_empty(),
            Expr::Class(..) => false,
            Expr::Rule(rule) => self.is_nullable[*rule],
            Expr::Sequence(exprs) => exprs.iter().all(|expr| self.nullable(expr)),
            Expr::Choice(exprs) => exprs.iter().any(|expr| self.nullable(expr)),
            Expr::Repeat(expr, min, _) => *min == 0 || self.nullable(expr),
        }
    }

    /// Returns whether a rule may begin with itself.
    pub fn begins_with_itself(&self) -> bool {
        let mut begins: Vec<Vec<bool>> =
            self.rules.iter().map(|rule| (0..N_RULES).map(|first| self.begins(rule, first)).collect()).collect();
        for _ in 0..N_RULES {
            let known = begins.clone();
            for firsts in &mut begins {
                for via in (0..N_RULES).filter(|via| firsts[*via]).collect::<Vec<_>>() {
                    (0..N_RULES).for_each(|first| firsts[first] |= known[via][first]);
                }
            }
        }
        (0..N_RULES).any(|rule| begins[rule][rule])
    }

    fn begins(&self, expr: &Expr, first: usize) -> bool {
        match expr {
            Expr::Literal(_) | Expr::Class(..) => false,
            Expr::Rule(rule) => *rule == first,
            Expr::Sequence(exprs) => {
                let n_reached = exprs.iter().take_while(|expr| self.nullable(expr)).count() + 1;
                exprs.iter().take(n_reached).any(|expr| self.begins(expr, first))
            }
            Expr::Choice(exprs) => exprs.iter().any(|expr| self.begins(expr, first)),
            Expr::Repeat(expr, ..) => self.begins(expr, first),
        }
    }

    /// Returns whether a text matches the root, and whether it is the start of a text that matches the root.
    pub fn judge(&self, text: &[char]) -> (bool, bool) {
        let n = text.len() + 1;
        let mut known = Known { ends: vec![vec![vec![false; n]; n]; N_RULES], outlasts: vec![vec![false; n]; N_RULES] };
        loop {
            let mut is_new = false;
            for (idx, rule) in self.rules.iter().enumerate() {
                for at in 0..n {
                    let ends = self.ends(&known, rule, (text, at));
                    let outlasts = self.outlasts(&known, rule, (text, at));
                    is_new |= ends != known.ends[idx][at] || outlasts != known.outlasts[idx][at];
                    known.ends[idx][at] = ends;
                    known.outlasts[idx][at] = outlasts;
                }
            }
            if !is_new {
                return (known.ends[0][0][text.len()], known.outlasts[0][0]);
            }
        }
    }

    fn ends(&self, known: &Known, expr: &Expr, (text, at): (&[char], usize)) -> Vec<bool> {
        let mut ends = vec![false; text.len() + 1];
        match expr {
            Expr::Literal(literal) => {
                let literal: Vec<char> = literal.chars().collect();
                if text[at..].starts_with(&literal) {
                    ends[at + literal.len()] = true;
                }
            }
            Expr::Class(chars, is_negated) => {
                if text.get(at).is_some_and(|c| chars.contains(c) != *is_negated) {
                    ends[at + 1] = true;
                }
            }
            Expr::Rule(rule) => ends.clone_from(&known.ends[*rule][at]),
            Expr::Choice(exprs) => {
                exprs.iter().for_each(|expr| merge(&mut ends, &self.ends(known, expr, (text, at))));
            }
            Expr::Sequence(exprs) => {
                ends[at] = true;
                for expr in exprs {
                    ends = self.then(known, &ends, (expr, text));
                }
            }
            Expr::Repeat(expr, min, max) => {
                let mut turn = vec![false; text.len() + 1];
                turn[at] = true;
                for n in 0..=max.unwrap_or(min + text.len() + 1) {
                    if n >= *min {
                        merge(&mut ends, &turn);
                    }
                    turn = self.then(known, &turn, (expr, text));
                }
            }
        }
        ends
    }

    fn then(&self, known: &Known, starts: &[bool], (expr, text): (&Expr, &[char])) -> Vec<bool> {
        let mut ends = vec![false; text.len() + 1];
        for at in (0..=text.len()).filter(|at| starts[*at]) {
            merge(&mut ends, &self.ends(known, expr, (text, at)));
        }
        ends
    }

    fn outlasts(&self, known: &Known, expr: &Expr, (text, at): (&[char], usize)) -> bool {
        let from_any = |starts: &[bool], expr: &Expr| {
            (0..=text.len()).any(|at| starts[at] && self.outlasts(known, expr, (text, at)))
        };
        match expr {
            Expr::Literal(literal) => literal.chars().collect::<Vec<_>>().starts_with(&text[at..]),
            Expr::Class(..) => at == text.len() || self.ends(known, expr, (text, at))[text.len()],
            Expr::Rule(rule) => known.outlasts[*rule][at],
            Expr::Choice(exprs) => exprs.iter().any(|expr| self.outlasts(known, expr, (text, at))),
            Expr::Sequence(exprs) => {
                let mut starts = vec![false; text.len() + 1];
                starts[at] = true;
                for (idx, expr) in exprs.iter().enumerate() {
                    if from_any(&starts, expr) && exprs[idx + 1..].iter().all(|expr| self.possible(expr)) {
                        return true;
                    }
                    starts = self.then(known, &starts, (expr, text));
                }
                starts[text.len()]
            }
            Expr::Repeat(expr, min, max) => {
                let mut starts = vec![false; text.len() + 1];
                starts[at] = true;
                for n in 0..=max.unwrap_or(min + text.len() + 1) {
                    if n >= *min && starts[text.len()] {
                        return true;
                    }
                    let is_last = max.is_some_and(|max| n >= max);
                    if !is_last && from_any(&starts, expr) && (n + 1 >= *min || self.possible(expr)) {
                        return true;
                    }
                    starts = self.then(known, &starts, (expr, text));
                }
                false
            }
        }
    }
}

fn merge(into: &mut [bool], more: &[bool]) {
    into.iter_mut().zip(more).for_each(|(into, more)| *into |= more);
}

/// Checks that `follower` allows the same bytes of a text as the naive matcher.
pub fn compare(naive: &Naive<'_>, mut follower: GrammarMatcher, text: &str) -> Result<(), TestCaseError> {
    let chars: Vec<char> = text.chars().collect();
    for n in 0..=chars.len() {
        let (is_right, is_begun) = naive.judge(&chars[..n]);
        prop_assert!(is_begun || n > 0, "the root is possible");
        prop_assert_eq!(follower.accepts(), is_right, "{:?}", &chars[..n]);
        let Some(c) = chars.get(n) else { break };
        let mut buffer = [0; 4];
        let bytes = c.encode_utf8(&mut buffer).as_bytes();
        let (_, may_follow) = naive.judge(&chars[..=n]);
        follower.refuel(super::FUEL);
        prop_assert_eq!(follower.allows(1, bytes), Ok(may_follow), "{:?}", &chars[..=n]);
        let mut siblings = (0xC0..=0xFF_u32).filter_map(char::from_u32).filter(|_| bytes.len() > 1);
        let may_begin = may_follow || siblings.any(|c| naive.judge(&[&chars[..n], &[c]].concat()).1);
        for (idx, byte) in bytes.iter().enumerate() {
            let expected = if idx + 1 < bytes.len() { may_begin } else { may_follow };
            prop_assert_eq!(follower.take(1, &[*byte]), Ok(expected), "{:?}", &chars[..=n]);
            if !expected {
                return Ok(());
            }
        }
    }
    Ok(())
}
