//! Compilation of a parsed grammar: parts that no text can match are removed, and rules are ranked.
//!
//! Parsing is in `parser`, matching in `earley`.
//!
//! Since every remaining rule matches some text, every allowed token can be completed. A rule's rank is above the ranks
//! of the rules that it may begin with. Left recursion has no such rank and is an error, as in llama.cpp. The only
//! exception is a repetition whose expression may be empty.

use std::ops::Range;

use hashbrown::HashMap;

use super::charset::CharSet;
use super::parser::{Drafts, Symbol, read};
use super::{GrammarError, GrammarVocabulary};

/// Position in an alternative, identified by the remaining symbols. Alternatives with the same end share their last
/// positions.
pub(super) type Dot = u32;

/// Position at the end of the text. `END` is the position at the end of an alternative.
pub(super) const DONE: Dot = 0;
const END: Dot = 1;

/// A compiled grammar, which all its responses should share.
#[derive(Debug)]
pub struct Grammar {
    /// Symbol at each position, and the next position.
    places: Vec<(Symbol, Dot)>,
    pub(super) rules: Vec<LoweredRule>,
    pub(super) sets: Vec<CharSet>,
    pub(super) root: u32,
    /// Starts and ends of all sets, ascending. Two characters without a bound between them are in the same sets.
    pub(super) bounds: Vec<u32>,
    /// Whether each set contains all characters beyond ASCII or none.
    pub(super) is_alike_beyond_ascii: bool,
    starts: Vec<Dot>,
}

/// A rule of a grammar.
#[derive(Debug)]
pub(super) struct LoweredRule {
    starts: Range<usize>,
    pub(super) is_nullable: bool,
    /// Rank, above that of every rule that this one may begin with.
    pub(super) rank: u32,
}

impl Grammar {
    /// Parses a grammar and compiles it.
    ///
    /// Cost: milliseconds, some 0.15 s for the largest. Errors: a description of the error, for the client.
    pub fn new(text: &str, tokens: GrammarVocabulary<'_>) -> Result<Self, GrammarError> {
        let drafts = read(text, tokens)?;
        compile(drafts).map_err(|reason| GrammarError { line: None, reason })
    }

    /// Returns the memory that the grammar takes. Units: bytes.
    pub fn n_bytes(&self) -> usize {
        let ranges: usize = self.sets.iter().map(CharSet::n_bytes).sum();
        size_of::<Self>() + ranges + size_of_val(&*self.places) + size_of_val(&*self.rules) + size_of_val(&*self.starts)
    }

    /// Returns the symbol at a position.
    pub(super) fn symbol(&self, dot: Dot) -> Symbol {
        self.places[dot as usize].0
    }

    /// Returns the position after a symbol.
    pub(super) fn behind(&self, dot: Dot) -> Dot {
        self.places[dot as usize].1
    }

    /// Returns the first positions of a rule's alternatives.
    pub(super) fn starts(&self, rule: u32) -> &[Dot] {
        &self.starts[self.rules[rule as usize].starts.clone()]
    }
}

fn compile(drafts: Drafts) -> Result<Grammar, String> {
    let Drafts { rules: drafted, names, sets, .. } = drafts;
    let names_of: HashMap<u32, &str> = names.iter().map(|(name, rule)| (*rule, name.as_str())).collect();
    let name_of = |rule: u32| names_of.get(&drafted[rule as usize].owner).copied().unwrap_or_default();
    if let Some(rule) = (0_u32..).zip(&drafted).find(|(_, draft)| draft.alternatives.is_none()).map(|(rule, _)| rule) {
        return Err(format!("`{}` is not defined", name_of(rule)));
    }
    let root = *names.get("root").ok_or("there is no rule `root`")?;
    let mut rules: Vec<Vec<Vec<Symbol>>> = Vec::with_capacity(drafted.len());
    rules.extend(drafted.iter().map(|draft| draft.alternatives.clone().unwrap_or_default()));
    // Alternatives that no text can match are removed, so that every allowed token can be completed.
    let matches_text = |symbol: Symbol| match symbol {
        Symbol::Chars(set) => !sets[set as usize].is_empty(),
        _ => true,
    };
    let is_possible = rules_of(&rules, matches_text);
    if !is_possible[root as usize] {
        return Err("no text matches it: every text that it describes is infinite".to_owned());
    }
    let can_be = |symbol: &Symbol| match symbol {
        Symbol::Rule(rule) => is_possible[*rule as usize],
        symbol => matches_text(*symbol),
    };
    for alternatives in &mut rules {
        alternatives.retain(|alternative| alternative.iter().all(can_be));
    }
    // A rule ranks above the rules that it may begin with; left recursion has no such order.
    let is_nullable = rules_of(&rules, |_| false);
    let ranks = ranks(&rules, &is_nullable).map_err(|rule| {
        let name = name_of(rule);
        format!("the rule `{name}` may begin with itself (left recursion); write `{name} ::= x (y x)*` instead")
    })?;
    Ok(lay_out(&rules, &is_nullable, &ranks, sets, root))
}

fn lay_out(rules: &[Vec<Vec<Symbol>>], is_nullable: &[bool], ranks: &[u32], sets: Vec<CharSet>, root: u32) -> Grammar {
    let mut bounds: Vec<u32> = sets.iter().flat_map(CharSet::bounds).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let is_alike_beyond_ascii = sets.iter().all(CharSet::is_alike_beyond_ascii);
    let mut places = vec![(Symbol::Done, DONE), (Symbol::End, END)];
    let mut dots = HashMap::new();
    let mut starts = Vec::new();
    let mut laid = Vec::with_capacity(rules.len());
    for (idx, alternatives) in rules.iter().enumerate() {
        let from = starts.len();
        for alternative in alternatives {
            let start = alternative.iter().rev().fold(END, |behind, symbol| {
                *dots.entry((*symbol, behind)).or_insert_with(|| {
                    places.push((*symbol, behind));
                    Dot::try_from(places.len() - 1).expect("the symbols are counted")
                })
            });
            starts.push(start);
        }
        laid.push(LoweredRule { starts: from..starts.len(), is_nullable: is_nullable[idx], rank: ranks[idx] });
    }
    Grammar { places, rules: laid, sets, root, bounds, is_alike_beyond_ascii, starts }
}

/// Returns for each rule whether it qualifies: one of its alternatives has only qualifying rules, and other symbols for
/// which `is_wished` is true.
///
/// Cost: O(symbols).
fn rules_of(rules: &[Vec<Vec<Symbol>>], is_wished: impl Fn(Symbol) -> bool) -> Vec<bool> {
    let mut qualifies = vec![false; rules.len()];
    // For each rule, the alternatives that wait for it; for each of these, its rule and the number of missing symbols.
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
        if std::mem::replace(&mut qualifies[rule], true) {
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
    qualifies
}

/// Returns the rules' ranks, each above those of the rules that it may begin with. Errors: a rule that may begin with
/// itself.
fn ranks(rules: &[Vec<Vec<Symbol>>], is_nullable: &[bool]) -> Result<Vec<u32>, u32> {
    const OPEN: u32 = u32::MAX;
    let firsts: Vec<Vec<u32>> = (0_u32..).zip(rules).map(|(rule, own)| firsts(rule, own, is_nullable)).collect();
    let mut ranks: Vec<Option<u32>> = vec![None; rules.len()];
    let mut next = 0;
    for rule in 0..rules.len() {
        if ranks[rule].is_some() {
            continue;
        }
        // The rules on the current path, each with the number of its first rules that were visited.
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

/// Returns the rules that a rule may begin with. The rule itself is excluded if it is the last symbol of an
/// alternative, because then it only ends: this is a repetition whose expression is empty.
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
