//! The rows of a grammar: all its possible positions at one position of a text, and the effect of a character.
//!
//! Rows are completed in `closure`; tokens and their bytes are in `matcher`.
//!
//! An item is a dot in an alternative with a set of callers, at which it continues when the alternative ends. Callers
//! are items themselves. Sets of callers are stored once, and so are rows: the same text in the same context gives the
//! same row, for responses of any length. The next row for a row and a character is cached, so matching soon becomes a
//! table look-up.
//! Source: Earley 1970 and Tomita's graph-structured stack, with Leo's treatment of right recursion as tail calls.

use std::sync::Arc;

use hashbrown::HashMap;
use warmpath_common::ids::Token;

use super::callers::{Callers, CallersId, EarleyItem, Exhausted, ROOT_CALLERS};
use super::charset::is_text;
use super::closure::Closure;
use super::lower::{DONE, Grammar};
use super::parser::Symbol;

/// Memory of a response's rows above which unused ones are dropped. Units: bytes.
///
/// Source: 64 responses at a time take 1 GiB in total.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// Maximum memory of the rows in use. Units: bytes. Source: a text nested some 100,000 deep.
const USED_BYTES_MAX: usize = KEPT_BYTES_MAX / 2;

/// Work of storing a row. Source: docs/decisions/0032.
const ROW_COST: u64 = 100;

/// Memory of a row in addition to its items. Units: bytes. Source: its table of the first 128 characters.
const ROW_BYTES: usize = 700;

pub(super) type RowId = u32;

/// Marks in a table of next rows: `UNKNOWN` if the row has not been computed, `NONE` if the grammar does not allow the
/// character.
const UNKNOWN: RowId = RowId::MAX;
const NONE: RowId = RowId::MAX - 1;

const N_ASCII: usize = 128;

/// Index in a row's table for all characters beyond ASCII, if the grammar does not distinguish them.
const BEYOND: usize = N_ASCII;
const FIRST_BEYOND_ASCII: u32 = 0x80;
const N_TABLE: usize = N_ASCII + 1;

#[derive(Debug, Clone)]
struct EarleyRow {
    /// Items with which the row begins; they identify it.
    kernel: Arc<[EarleyItem]>,
    /// Items that wait for a character or token.
    terminals: Box<[EarleyItem]>,
    accepts: bool,
    /// Next row by character; `None` until a row is known.
    next: Option<Box<[RowId; N_TABLE]>>,
}

/// Rows that a response has reached.
#[derive(Debug, Clone)]
pub(super) struct Automaton {
    callers: Callers,
    rows: Vec<EarleyRow>,
    row_ids: HashMap<Arc<[EarleyItem]>, RowId>,
    /// Next row by the range between two of the grammar's bounds.
    next: HashMap<(RowId, usize), RowId>,
    /// Number of times that rows were dropped and the others renumbered.
    pub(super) n_trimmed: u32,
    closure: Closure,
}

impl Automaton {
    /// Returns the rows of a grammar, at first only the first row.
    ///
    /// Errors: the first row takes more than `fuel`.
    pub(super) fn new(grammar: &Arc<Grammar>, fuel: u64) -> Result<(Self, RowId), Exhausted> {
        let mut automaton = Self::empty(Arc::clone(grammar), fuel);
        let root = automaton.callers.intern(vec![EarleyItem { dot: DONE, callers: ROOT_CALLERS }]);
        debug_assert_eq!(root, ROOT_CALLERS);
        let starts = grammar.starts(grammar.root).iter();
        let first = automaton.row(starts.map(|dot| EarleyItem { dot: *dot, callers: root }).collect())?;
        Ok((automaton, first))
    }

    fn empty(grammar: Arc<Grammar>, fuel: u64) -> Self {
        Self {
            callers: Callers::new(grammar, fuel),
            rows: Vec::new(),
            row_ids: HashMap::new(),
            next: HashMap::new(),
            n_trimmed: 0,
            closure: Closure::default(),
        }
    }

    /// Sets the limit of work until the next call. Units: characters of cached rows, some 5 ns each.
    pub(super) fn refuel(&mut self, fuel: u64) {
        self.callers.fuel = fuel;
    }

    /// Returns whether the text may end.
    pub(super) fn accepts(&self, row: RowId) -> bool {
        self.rows[row as usize].accepts
    }

    /// Returns the row after a character; `None` if the grammar does not allow it.
    pub(super) fn step(&mut self, row: RowId, c: u32) -> Result<Option<RowId>, Exhausted> {
        self.callers.pay(1)?;
        let slot = match c as usize {
            ascii @ ..N_ASCII => Some(ascii),
            _ if self.callers.grammar.is_alike_beyond_ascii => Some(BEYOND),
            _ => None,
        };
        let known_row = match (slot, &self.rows[row as usize].next) {
            (Some(slot), Some(next)) => next[slot],
            (Some(_), None) => UNKNOWN,
            (None, _) => self.next.get(&(row, self.band(c))).copied().unwrap_or(UNKNOWN),
        };
        match known_row {
            UNKNOWN => {}
            NONE => return Ok(None),
            next => return Ok(Some(next)),
        }
        let grammar = Arc::clone(&self.callers.grammar);
        let next = self.advance(row, |symbol| match symbol {
            Symbol::Chars(set) => grammar.sets[set as usize].meets(c, c),
            _ => false,
        })?;
        let known_row = next.unwrap_or(NONE);
        if let Some(slot) = slot {
            self.rows[row as usize].next.get_or_insert_with(|| Box::new([UNKNOWN; N_TABLE]))[slot] = known_row;
        } else {
            self.next.insert((row, self.band(c)), known_row);
            self.callers.n_bytes += 32;
        }
        Ok(next)
    }

    /// Returns the row after a token that is matched by its name, not by its text.
    pub(super) fn step_token(&mut self, row: RowId, token: Token) -> Result<Option<RowId>, Exhausted> {
        self.advance(row, |symbol| match symbol {
            Symbol::Token(wanted) => wanted == token,
            Symbol::OtherToken(unwanted) => unwanted != token,
            _ => false,
        })
    }

    /// Returns whether a character from `first` to `last`, all of them beyond ASCII, may come next.
    pub(super) fn allows_one_of(&mut self, row: RowId, first: u32, last: u32) -> Result<bool, Exhausted> {
        if self.callers.grammar.is_alike_beyond_ascii {
            return Ok(is_text(first, last) && self.step(row, FIRST_BEYOND_ASCII)?.is_some());
        }
        let terminals = &self.rows[row as usize].terminals;
        let meets = |item: &EarleyItem| match self.callers.grammar.symbol(item.dot) {
            Symbol::Chars(set) => self.callers.grammar.sets[set as usize].meets(first, last),
            _ => false,
        };
        let (is_allowed, n_items) = (terminals.iter().any(meets), terminals.len());
        self.callers.pay(n_items as u64)?;
        Ok(is_allowed)
    }

    /// Returns the symbols that a row waits for.
    pub(super) fn awaited(&self, row: RowId) -> impl Iterator<Item = Symbol> {
        self.rows[row as usize].terminals.iter().map(|item| self.callers.grammar.symbol(item.dot))
    }

    /// Returns the union of two rows.
    pub(super) fn join(&mut self, a: RowId, b: RowId) -> Result<RowId, Exhausted> {
        let kernels = [a, b].map(|row| Arc::clone(&self.rows[row as usize].kernel));
        self.row(kernels.concat())
    }

    fn advance(&mut self, row: RowId, is_met: impl Fn(Symbol) -> bool) -> Result<Option<RowId>, Exhausted> {
        let terminals = &self.rows[row as usize].terminals;
        let n_items = terminals.len() as u64;
        let met = terminals.iter().filter(|item| is_met(self.callers.grammar.symbol(item.dot)));
        let kernel: Vec<EarleyItem> =
            met.map(|item| EarleyItem { dot: self.callers.grammar.behind(item.dot), ..*item }).collect();
        self.callers.pay(n_items)?;
        if kernel.is_empty() { Ok(None) } else { self.row(kernel).map(Some) }
    }

    /// Returns the row that begins with these items.
    fn row(&mut self, mut kernel: Vec<EarleyItem>) -> Result<RowId, Exhausted> {
        kernel.sort_unstable();
        kernel.dedup();
        if let Some(row) = self.row_ids.get(kernel.as_slice()) {
            return Ok(*row);
        }
        self.callers.pay(ROW_COST)?;
        let closed = self.closure.complete(&mut self.callers, &kernel);
        let (terminals, accepts) = self.closure.take();
        closed?;
        let kernel: Arc<[EarleyItem]> = kernel.into();
        let id = RowId::try_from(self.rows.len()).expect("the rows' bytes are limited");
        self.callers.n_bytes += ROW_BYTES + size_of::<EarleyItem>() * (kernel.len() + terminals.len());
        self.row_ids.insert(Arc::clone(&kernel), id);
        self.rows.push(EarleyRow { kernel, terminals, accepts, next: None });
        Ok(id)
    }

    /// Drops unused rows if the rows take too much memory: only the rows `in_use` stay, with new numbers.
    ///
    /// Errors: the rows in use take too much memory.
    pub(super) fn trim(&mut self, in_use: &mut [RowId]) -> Result<(), Exhausted> {
        if self.callers.n_bytes <= KEPT_BYTES_MAX {
            return Ok(());
        }
        let kernels: Vec<Arc<[EarleyItem]>> =
            in_use.iter().map(|row| Arc::clone(&self.rows[*row as usize].kernel)).collect();
        let mut is_used = vec![false; self.callers.sets().len()];
        let mut news: Vec<CallersId> =
            kernels.iter().flat_map(|kernel| kernel.iter()).map(|item| item.callers).collect();
        news.push(ROOT_CALLERS);
        while let Some(id) = news.pop() {
            if !std::mem::replace(&mut is_used[id as usize], true) {
                news.extend(self.callers.set(id).iter().map(|item| item.callers));
            }
        }
        let old = std::mem::replace(self, Self::empty(Arc::clone(&self.callers.grammar), self.callers.fuel));
        self.n_trimmed = old.n_trimmed + 1;
        let mut numbers = vec![ROOT_CALLERS; old.callers.sets().len()];
        let moved = |items: &Arc<[EarleyItem]>, numbers: &[CallersId]| -> Vec<EarleyItem> {
            items.iter().map(|item| EarleyItem { callers: numbers[item.callers as usize], ..*item }).collect()
        };
        // A set of callers refers only to sets that were created before it.
        for (id, callers) in old.callers.sets().iter().enumerate().filter(|(id, _)| is_used[*id]) {
            numbers[id] = self.callers.intern(moved(callers, &numbers));
        }
        for (row, kernel) in in_use.iter_mut().zip(&kernels) {
            *row = self.row(moved(kernel, &numbers))?;
        }
        if self.callers.n_bytes > USED_BYTES_MAX { Err(Exhausted) } else { Ok(()) }
    }

    /// Returns the index of the grammar's bounds between which a character lies.
    fn band(&self, c: u32) -> usize {
        self.callers.grammar.bounds.partition_point(|bound| *bound <= c)
    }
}
