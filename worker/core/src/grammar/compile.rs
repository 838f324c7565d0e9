//! Makes a grammar that was read into one that can be followed: what no text can match is left out, rules are ordered.
//!
//! Not here: reading it (`reader`), following it (`automaton`).
//! The idea: once every rule that is left matches some text, whatever the grammar allows next can also be completed. Rules are
//! ranked so that who may begin with another one comes before it; left recursion, which llama.cpp refuses too, has no such
//! rank. The one exception costs nothing: a repetition of what may be empty ends where it begins.

use std::ops::Range;

use hashbrown::HashMap;

use super::chars::CharSet;
use super::reader::{Drafts, Symbol, read};
use super::{GrammarError, Tokens};

/// Is a place in alternatives: what is left of them from there on. Alternatives that end alike share their last places, since
/// what is left is all that matters.
pub(super) type Dot = u32;

/// Is where the text is over, and where an alternative is.
pub(super) const DONE: Dot = 0;
const END: Dot = 1;

/// Is a grammar that can be followed; share it among the answers that do.
#[derive(Debug)]
pub struct Grammar {
    /// Lists the symbol at each place and the place behind it.
    places: Vec<(Symbol, Dot)>,
    pub(super) rules: Vec<Rule>,
    pub(super) sets: Vec<CharSet>,
    pub(super) root: u32,
    /// Lists where a set begins or is over, ascending: no set tells two characters apart that have no bound between them.
    pub(super) bounds: Vec<u32>,
    /// Says that no set tells characters beyond ASCII apart.
    pub(super) is_alike_beyond_ascii: bool,
    starts: Vec<Dot>,
}

/// Is a rule of a grammar.
#[derive(Debug)]
pub(super) struct Rule {
    starts: Range<usize>,
    pub(super) is_nullable: bool,
    /// Is above that of every rule with which it may begin.
    pub(super) rank: u32,
}

impl Grammar {
    /// Reads a grammar and makes it ready to be followed.
    ///
    /// Cost: milliseconds, some 0.15 s for the largest. Errors: what is wrong, fit for the client.
    pub fn new(text: &str, tokens: Tokens<'_>) -> Result<Self, GrammarError> {
        let drafts = read(text, tokens)?;
        compile(drafts).map_err(|reason| GrammarError { line: None, reason })
    }

    /// Returns how much memory it takes. Units: bytes.
    pub fn n_bytes(&self) -> usize {
        let ranges: usize = self.sets.iter().map(CharSet::n_bytes).sum();
        size_of::<Self>() + ranges + size_of_val(&*self.places) + size_of_val(&*self.rules) + size_of_val(&*self.starts)
    }

    /// Returns what stands at a place.
    pub(super) fn symbol(&self, dot: Dot) -> Symbol {
        self.places[dot as usize].0
    }

    /// Returns the place behind a symbol.
    pub(super) fn behind(&self, dot: Dot) -> Dot {
        self.places[dot as usize].1
    }

    /// Lists where the alternatives of a rule begin.
    pub(super) fn starts(&self, rule: u32) -> &[Dot] {
        &self.starts[self.rules[rule as usize].starts.clone()]
    }
}

fn compile(drafts: Drafts) -> Result<Grammar, String> {
    let Drafts { rules: drafted, names, sets, .. } = drafts;
    let names_of: HashMap<u32, &str> = names.iter().map(|(name, rule)| (*rule, name.as_str())).collect();
    let name_of = |rule: u32| names_of.get(&drafted[rule as usize].owner).copied().unwrap_or_default();
    if let Some(rule) = (0_u32..).zip(&drafted).find(|(_, draft)| draft.alternatives.is_none()).map(|(rule, _)| rule) {
        return Err(format!("`{}` is referred to and is no rule", name_of(rule)));
    }
    let root = *names.get("root").ok_or("there is no rule `root`, where an answer begins")?;
    let mut rules: Vec<Vec<Vec<Symbol>>> = Vec::with_capacity(drafted.len());
    rules.extend(drafted.iter().map(|draft| draft.alternatives.clone().unwrap_or_default()));
    let matches_text = |symbol: Symbol| match symbol {
        Symbol::Chars(set) => !sets[set as usize].is_empty(),
        _ => true,
    };
    let is_possible = rules_of(&rules, matches_text);
    if !is_possible[root as usize] {
        return Err("no text can follow it: what it asks for never ends".to_owned());
    }
    let can_be = |symbol: &Symbol| match symbol {
        Symbol::Rule(rule) => is_possible[*rule as usize],
        symbol => matches_text(*symbol),
    };
    for alternatives in &mut rules {
        alternatives.retain(|alternative| alternative.iter().all(can_be));
    }
    let is_nullable = rules_of(&rules, |_| false);
    let ranks = ranks(&rules, &is_nullable).map_err(|rule| {
        let name = name_of(rule);
        format!("the rule `{name}` may begin with itself (left recursion); write `{name} ::= x (y x)*` instead")
    })?;
    Ok(lay_out(&rules, |rule| (is_nullable[rule], ranks[rule]), (sets, root)))
}

fn lay_out(
    rules: &[Vec<Vec<Symbol>>],
    props: impl Fn(usize) -> (bool, u32),
    (sets, root): (Vec<CharSet>, u32),
) -> Grammar {
    let mut bounds: Vec<u32> = sets.iter().flat_map(CharSet::bounds).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let is_alike_beyond_ascii = sets.iter().all(CharSet::is_alike_beyond_ascii);
    let mut places = vec![(Symbol::Done, DONE), (Symbol::End, END)];
    let mut known = HashMap::new();
    let mut starts = Vec::new();
    let mut laid = Vec::with_capacity(rules.len());
    for (idx, alternatives) in rules.iter().enumerate() {
        let from = starts.len();
        for alternative in alternatives {
            let start = alternative.iter().rev().fold(END, |behind, symbol| {
                *known.entry((*symbol, behind)).or_insert_with(|| {
                    places.push((*symbol, behind));
                    Dot::try_from(places.len() - 1).expect("the symbols are counted")
                })
            });
            starts.push(start);
        }
        let (is_nullable, rank) = props(idx);
        laid.push(Rule { starts: from..starts.len(), is_nullable, rank });
    }
    Grammar { places, rules: laid, sets, root, bounds, is_alike_beyond_ascii, starts }
}

/// Returns which rules have an alternative all of whose symbols are as wished: `is_wished` tells it of what is no rule.
///
/// Cost: the symbols.
fn rules_of(rules: &[Vec<Vec<Symbol>>], is_wished: impl Fn(Symbol) -> bool) -> Vec<bool> {
    let mut found = vec![false; rules.len()];
    // For each rule the alternatives that wait for it; for each of these whose it is and how many it waits for.
    let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); rules.len()];
    let mut missing: Vec<(usize, usize)> = Vec::new();
    let mut news = Vec::new();
    for (idx, alternatives) in rules.iter().enumerate() {
        for alternative in alternatives {
            if !alternative.iter().all(|symbol| matches!(symbol, Symbol::Rule(_)) || is_wished(*symbol)) {
                continue;
            }
            let mut n_missing = 0;
            for symbol in alternative {
                if let Symbol::Rule(rule) = symbol {
                    waiting[*rule as usize].push(missing.len());
                    n_missing += 1;
                }
            }
            missing.push((idx, n_missing));
            if n_missing == 0 {
                news.push(idx);
            }
        }
    }
    while let Some(rule) = news.pop() {
        if std::mem::replace(&mut found[rule], true) {
            continue;
        }
        for alternative in std::mem::take(&mut waiting[rule]) {
            let (owner, n_missing) = &mut missing[alternative];
            *n_missing -= 1;
            if *n_missing == 0 {
                news.push(*owner);
            }
        }
    }
    found
}

/// Returns the rules' ranks, each above those of the rules with which it may begin, or a rule that may begin with itself.
fn ranks(rules: &[Vec<Vec<Symbol>>], is_nullable: &[bool]) -> Result<Vec<u32>, u32> {
    const OPEN: u32 = u32::MAX;
    let firsts: Vec<Vec<u32>> = (0_u32..).zip(rules).map(|(rule, own)| firsts(rule, own, is_nullable)).collect();
    let mut ranks: Vec<Option<u32>> = vec![None; rules.len()];
    let mut next = 0;
    for rule in 0..rules.len() {
        if ranks[rule].is_some() {
            continue;
        }
        // The rules on the way here, each with how many of those that it may begin with have been looked at.
        let mut way = vec![(rule, 0)];
        ranks[rule] = Some(OPEN);
        while let Some((rule, n_seen)) = way.last_mut() {
            if let Some(first) = firsts[*rule].get(*n_seen) {
                *n_seen += 1;
                match ranks[*first as usize] {
                    Some(OPEN) => return Err(*first),
                    Some(_) => {}
                    None => {
                        ranks[*first as usize] = Some(OPEN);
                        way.push((*first as usize, 0));
                    }
                }
            } else {
                ranks[*rule] = Some(next);
                next += 1;
                way.pop();
            }
        }
    }
    Ok(ranks.into_iter().flatten().collect())
}

/// Lists the rules with which one may begin. Without itself where it does nothing then but end, as when what a repetition
/// repeats is empty.
fn firsts(rule: u32, alternatives: &[Vec<Symbol>], is_nullable: &[bool]) -> Vec<u32> {
    let mut firsts = Vec::new();
    for alternative in alternatives {
        for (idx, symbol) in alternative.iter().enumerate() {
            let Symbol::Rule(first) = symbol else { break };
            if *first != rule || idx + 1 < alternative.len() {
                firsts.push(*first);
            }
            if !is_nullable[*first as usize] {
                break;
            }
        }
    }
    firsts.sort_unstable();
    firsts.dedup();
    firsts
}
