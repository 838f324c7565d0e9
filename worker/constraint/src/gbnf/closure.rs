//! Completion of a row: from the items with which it begins to the items that wait for a character.
//!
//! `earley` chooses the items with which a row begins, and uses the row.
//!
//! First, items at the end of their alternative continue at their callers. Then each called rule begins once. All its
//! callers are known at that point, because rules are processed by descending rank. A call at the end of an alternative
//! passes its own callers on, like a tail call. So the memory of a right-recursive list does not grow with its length.

use std::collections::BinaryHeap;

use hashbrown::{HashMap, HashSet};

use super::earley::{Automaton, CALLERS_COST, CallersId, EarleyItem, Exhausted, ITEM_COST};
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
    pub(super) fn complete(&mut self, automaton: &mut Automaton, kernel: &[EarleyItem]) -> Result<(), Exhausted> {
        self.work.extend(kernel);
        self.look_at_all(automaton)?;
        while let Some((_, rule)) = self.called.pop() {
            let Some(calls) = self.calls.get_mut(&rule) else { continue };
            let callers = std::mem::take(&mut calls.callers);
            automaton.pay(CALLERS_COST + ITEM_COST * callers.len() as u64)?;
            let callers = automaton.intern(callers);
            calls.begun = Some(callers);
            self.work.extend(automaton.grammar().starts(rule).iter().map(|dot| EarleyItem { dot: *dot, callers }));
            self.look_at_all(automaton)?;
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

    fn look_at_all(&mut self, automaton: &mut Automaton) -> Result<(), Exhausted> {
        while let Some(item) = self.work.pop() {
            automaton.pay(ITEM_COST)?;
            if self.seen.insert(item) {
                self.look_at(automaton, item)?;
            }
        }
        Ok(())
    }

    fn look_at(&mut self, automaton: &mut Automaton, item: EarleyItem) -> Result<(), Exhausted> {
        match automaton.grammar().symbol(item.dot) {
            Symbol::Chars(_) | Symbol::Token(_) | Symbol::OtherToken(_) => self.terminals.push(item),
            Symbol::Done => self.accepts = true,
            Symbol::End => self.work.extend(automaton.callers(item.callers).iter()),
            Symbol::Rule(rule) => self.call(automaton, item, rule)?,
        }
        Ok(())
    }

    fn call(&mut self, automaton: &mut Automaton, item: EarleyItem, rule: u32) -> Result<(), Exhausted> {
        let back = EarleyItem { dot: automaton.grammar().behind(item.dot), ..item };
        let props = &automaton.grammar().rules[rule as usize];
        if props.is_nullable {
            self.work.push(back);
        }
        let calls = self.calls.entry(rule).or_insert_with(|| {
            self.called.push((props.rank, rule));
            RuleCallers::default()
        });
        if automaton.grammar().symbol(back.dot) != Symbol::End {
            debug_assert!(calls.begun.is_none(), "only rules of higher rank call a rule");
            calls.callers.push(back);
            return Ok(());
        }
        // A rule whose only symbol is a call of itself adds no callers.
        if calls.begun == Some(item.callers) {
            return Ok(());
        }
        debug_assert!(calls.begun.is_none(), "only rules of higher rank call a rule");
        let handed = automaton.callers(item.callers);
        calls.callers.extend(handed.iter());
        let n_handed = handed.len() as u64;
        automaton.pay(n_handed)
    }
}
