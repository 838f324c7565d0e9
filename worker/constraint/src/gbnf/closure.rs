//! Completion of a row: from the items with which it begins to the items that wait for a character.
//!
//! `earley` chooses the items with which a row begins, and uses the row.
//!
//! First, items at the end of their alternative continue at their callers. Then each called rule begins once. All its
//! callers are known at that point, because rules are processed by descending rank. A call at the end of an alternative
//! passes its own callers on, like a tail call. So the memory of a right-recursive list does not grow with its length.

use std::collections::BinaryHeap;

use hashbrown::{HashMap, HashSet};

use super::callers::{CALLERS_COST, Callers, CallersId, EarleyItem, Exhausted, ITEM_COST};
use super::parser::Symbol;

/// Work space for the completion of a row; empty between two rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Closure {
    seen: HashSet<EarleyItem>,
    work: Vec<EarleyItem>,
    calls: HashMap<u32, RuleCallers>,
    /// Called rules that have not begun, by rank.
    called: BinaryHeap<(u32, u32)>,
    terminals: Vec<EarleyItem>,
    accepts: bool,
}

/// Callers of a rule in this row.
#[derive(Debug, Clone, Default)]
struct RuleCallers {
    callers: Vec<EarleyItem>,
    /// Set of the callers once the rule has begun.
    begun: Option<CallersId>,
}

impl Closure {
    /// Completes the row that begins with `kernel`.
    pub(super) fn complete(&mut self, sets: &mut Callers, kernel: &[EarleyItem]) -> Result<(), Exhausted> {
        self.work.extend(kernel);
        self.look_at_all(sets)?;
        while let Some((_, rule)) = self.called.pop() {
            let Some(calls) = self.calls.get_mut(&rule) else { continue };
            let callers = std::mem::take(&mut calls.callers);
            sets.pay(CALLERS_COST + ITEM_COST * callers.len() as u64)?;
            let callers = sets.intern(callers);
            calls.begun = Some(callers);
            self.work.extend(sets.grammar.starts(rule).iter().map(|dot| EarleyItem { dot: *dot, callers }));
            self.look_at_all(sets)?;
        }
        Ok(())
    }

    /// Returns the items that wait for a character or token, and whether the text may end; clears the rest.
    pub(super) fn take(&mut self) -> (Box<[EarleyItem]>, bool) {
        self.seen.clear();
        self.work.clear();
        self.calls.clear();
        self.called.clear();
        self.terminals.sort_unstable();
        let terminals = self.terminals.as_slice().into();
        self.terminals.clear();
        (terminals, std::mem::take(&mut self.accepts))
    }

    fn look_at_all(&mut self, sets: &mut Callers) -> Result<(), Exhausted> {
        while let Some(item) = self.work.pop() {
            sets.pay(ITEM_COST)?;
            if self.seen.insert(item) {
                self.look_at(sets, item)?;
            }
        }
        Ok(())
    }

    fn look_at(&mut self, sets: &mut Callers, item: EarleyItem) -> Result<(), Exhausted> {
        match sets.grammar.symbol(item.dot) {
            Symbol::Chars(_) | Symbol::Token(_) | Symbol::OtherToken(_) => self.terminals.push(item),
            Symbol::Done => self.accepts = true,
            Symbol::End => self.work.extend(sets.set(item.callers).iter()),
            Symbol::Rule(rule) => self.call(sets, item, rule)?,
        }
        Ok(())
    }

    fn call(&mut self, sets: &mut Callers, item: EarleyItem, rule: u32) -> Result<(), Exhausted> {
        let back = EarleyItem { dot: sets.grammar.behind(item.dot), ..item };
        let props = &sets.grammar.rules[rule as usize];
        if props.is_nullable {
            self.work.push(back);
        }
        let calls = self.calls.entry(rule).or_insert_with(|| {
            self.called.push((props.rank, rule));
            RuleCallers::default()
        });
        if sets.grammar.symbol(back.dot) != Symbol::End {
            debug_assert!(calls.begun.is_none(), "only rules of higher rank call a rule");
            calls.callers.push(back);
            return Ok(());
        }
        // A rule whose only symbol is a call of itself adds no callers.
        if calls.begun == Some(item.callers) {
            return Ok(());
        }
        debug_assert!(calls.begun.is_none(), "only rules of higher rank call a rule");
        let handed = sets.set(item.callers);
        calls.callers.extend(handed.iter());
        let n_handed = handed.len() as u64;
        sets.pay(n_handed)
    }
}
