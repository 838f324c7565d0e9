//! Inspection and manual changes of the cache: the whole of it, pins, single slots.
//!
//! An inquiry is a command like any other, executed between two steps and answered over its own channel. An inquiry
//! that needs an idle slot waits until its slot is idle. No bytes are read from or written to a disk here.
//!
//! Not here: the endpoints (`crate::http`), a slot's state (`saved_slot`), the store's own work
//! (`warmpath_worker_core::chunk_index`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::TrySendError;

use tokio::sync::oneshot;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::summary::Tier;
use warmpath_worker_core::chunk_index::{
    ChunkId, EntryView, Evicted, Limits, PIN_MAX, PinId, PinView, Prefix, ShareTotals, ShareView, Totals,
};
use warmpath_worker_core::prefix_tree::chain_of;
use warmpath_worker_core::tenants::TenantId;

use super::api::EngineError;
use super::handle::{Command, EngineHandle, Place};
use super::kv::saved_slot::SlotState;
use super::step::Scheduler;

/// Most inquiries that wait for the engine; further ones are refused.
///
/// Source: own choice; they come from operators and scrapers, and each may carry a slot's whole state.
pub(super) const INQUIRIES_MAX: usize = 8;

/// Most tenants in one view of the cache.
///
/// Source: own choice: those that matter when space is scarce.
pub const TENANTS_SHOWN_MAX: usize = 20;

/// Reason why the cache was not inspected or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// Too many inquiries wait.
    #[error("{INQUIRIES_MAX} inquiries wait for the engine already")]
    Busy,
    /// Nothing is ever stored, so nothing can be pinned.
    #[error("this worker stores no KV state, so there is nothing to pin")]
    NoStore,
    /// The limit of pins is reached.
    #[error("there are {PIN_MAX} pins already")]
    TooManyPins,
    /// The slot has no state that could be saved.
    #[error("slot {slot} holds no KV state")]
    SlotEmpty {
        /// The slot.
        slot: SlotId,
    },
    /// A state does not fit into a slot.
    #[error("the state does not fit into slot {slot}: {reason}")]
    Unfit {
        /// The slot.
        slot: SlotId,
        /// Reason.
        reason: String,
    },
    /// llama.cpp did not export a slot's state.
    #[error("the state of slot {slot} cannot be exported: {reason}")]
    Export {
        /// The slot.
        slot: SlotId,
        /// Reason.
        reason: String,
    },
    /// The engine has stopped.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Content of each tier, and evictions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CacheTotals {
    /// State in slots, running ones included; an entry is a slot. Shared state counts for each slot.
    pub resident: Totals,
    /// State stored in memory.
    pub ram: Totals,
    /// State stored on disk, also if it is in memory.
    pub disk: Totals,
    /// Evictions from the store, by tier and reason.
    pub evicted: Vec<Evicted>,
    /// Shares of the store in memory.
    pub ram_shares: ShareTotals,
    /// Shares of the store on disk.
    pub disk_shares: ShareTotals,
}

impl CacheTotals {
    /// Returns the content of one tier.
    pub fn of(&self, tier: Tier) -> Totals {
        match tier {
            Tier::Resident => self.resident,
            Tier::Ram => self.ram,
            Tier::Disk => self.disk,
        }
    }
}

/// Part of the stored entries to list: they are in the order of their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Last id before the page; `None` for the start.
    pub after: Option<u64>,
    /// Most entries of the page.
    pub entries_max: usize,
}

/// The cache between two steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheView {
    /// Content of each tier.
    pub totals: CacheTotals,
    /// Limits of the store.
    pub limits: Limits,
    /// Most tokens that idle slots keep.
    pub resident_tokens_max: u64,
    /// Named pins, the oldest first.
    pub pins: Vec<NamedPin>,
    /// The tenants with the most cached state, the largest first, at most `TENANTS_SHOWN_MAX`.
    pub tenants: Vec<TenantView>,
    /// A page of the stored entries.
    pub entries: Vec<EntryView>,
    /// Id after which the next page starts; `None` on the last page.
    pub next_after: Option<u64>,
    /// Present time on the clock of the entries' times. Units: milliseconds.
    pub now_ms: u64,
}

/// Cached state of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantView {
    /// Tokens in slots, running ones included.
    pub resident_tokens: u64,
    /// State in the store, without pinned state.
    pub stored: ShareView,
}

/// A pin with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPin {
    /// Name of the pin.
    pub name: String,
    /// Extent of the pin.
    pub view: PinView,
}

/// A prefix to pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPin {
    /// Name of the pin; one of the same name is replaced.
    pub name: String,
    /// Root of the prefix's chain.
    pub root: BlockHash,
    /// The prefix; only whole blocks of it count.
    pub tokens: Vec<Token>,
}

/// Sender of the answer to the caller.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, CacheError>>;

/// An inspection or change.
pub(crate) enum AdminQuery {
    Look(Page, Reply<CacheView>),
    Clear(Reply<CacheTotals>),
    Pin(NewPin, Vec<BlockHash>, Reply<NamedPin>),
    Unpin(String, Reply<bool>),
    Export(SlotId, Reply<SlotState>),
    Import(SlotId, SlotState, Reply<u32>),
    Erase(SlotId, Reply<u32>),
}

/// An inquiry with its place among those that wait.
pub(crate) struct Asked {
    pub inquiry: AdminQuery,
    pub _place: Place,
}

impl Asked {
    /// Returns the slot that must be idle for it.
    pub(super) fn wants_idle(&self) -> Option<SlotId> {
        match self.inquiry {
            AdminQuery::Export(slot, _) | AdminQuery::Import(slot, ..) | AdminQuery::Erase(slot, _) => Some(slot),
            AdminQuery::Look(..) | AdminQuery::Clear(_) | AdminQuery::Pin(..) | AdminQuery::Unpin(..) => None,
        }
    }

    /// Returns whether the caller no longer waits for the answer.
    pub(super) fn is_abandoned(&self) -> bool {
        match &self.inquiry {
            AdminQuery::Look(_, reply) => reply.is_closed(),
            AdminQuery::Clear(reply) => reply.is_closed(),
            AdminQuery::Pin(.., reply) => reply.is_closed(),
            AdminQuery::Unpin(_, reply) => reply.is_closed(),
            AdminQuery::Export(_, reply) => reply.is_closed(),
            AdminQuery::Import(.., reply) | AdminQuery::Erase(_, reply) => reply.is_closed(),
        }
    }
}

/// Names of the pins.
#[derive(Debug, Default)]
pub(crate) struct PinNames {
    names: BTreeMap<PinId, String>,
    n_named: u64,
}

impl PinNames {
    fn find(&self, name: &str) -> Option<PinId> {
        self.names.iter().find(|(_, other)| *other == name).map(|(pin, _)| *pin)
    }

    fn show(&self, view: PinView) -> NamedPin {
        NamedPin { name: self.names.get(&view.pin).cloned().unwrap_or_default(), view }
    }
}

impl EngineHandle {
    /// Returns the content of each tier after the last step.
    pub fn cache_totals(&self) -> Arc<CacheTotals> {
        self.shared.view.cache.load_full()
    }

    /// Returns the present cache, and a page of its entries.
    ///
    /// Cost: waits for the step in progress; the engine lists all entries. Errors: `Busy`, `Engine`.
    pub async fn cache_view(&self, page: Page) -> Result<CacheView, CacheError> {
        self.inquire(|reply| AdminQuery::Look(page, reply)).await
    }

    /// Removes everything that is stored and the state of idle slots, and returns how much that was; pins stay.
    ///
    /// Errors: `Busy`, `Engine`.
    pub async fn clear_cache(&self) -> Result<CacheTotals, CacheError> {
        self.inquire(AdminQuery::Clear).await
    }

    /// Pins a prefix, stored or not, and returns how much of it is stored.
    ///
    /// Errors: `NoStore`, `TooManyPins`, `Busy`, `Engine`.
    pub async fn pin(&self, pin: NewPin) -> Result<NamedPin, CacheError> {
        let sequence = (&pin.root, pin.tokens.as_slice());
        let chain = chain_of(self.shared.block_hasher, sequence, self.facts().block_size_tokens);
        self.inquire(|reply| AdminQuery::Pin(pin, chain, reply)).await
    }

    /// Ends a pin and returns whether there was one. Errors: `Busy`, `Engine`.
    pub async fn unpin(&self, name: String) -> Result<bool, CacheError> {
        self.inquire(|reply| AdminQuery::Unpin(name, reply)).await
    }

    /// Returns the whole state of a slot, once it is idle.
    ///
    /// Errors: `SlotEmpty`, `Export`, `Busy`, `Engine`. Panics: on the engine thread, if there is no such slot.
    pub async fn export_slot(&self, slot: SlotId) -> Result<SlotState, CacheError> {
        self.inquire(|reply| AdminQuery::Export(slot, reply)).await
    }

    /// Puts a state into a slot, once it is idle, and returns its number of tokens; the slot's former state is stored.
    ///
    /// Errors: `Unfit`, after which the slot is empty; `Busy`, `Engine`. Panics: like [`Self::export_slot`].
    pub async fn import_slot(&self, slot: SlotId, state: SlotState) -> Result<u32, CacheError> {
        self.inquire(|reply| AdminQuery::Import(slot, state, reply)).await
    }

    /// Removes the state of a slot, once it is idle, and returns how many tokens that was; its stored part stays.
    ///
    /// Errors: `Busy`, `Engine`. Panics: like [`Self::export_slot`].
    pub async fn erase_slot(&self, slot: SlotId) -> Result<u32, CacheError> {
        self.inquire(|reply| AdminQuery::Erase(slot, reply)).await
    }

    async fn inquire<T>(&self, ask: impl FnOnce(Reply<T>) -> AdminQuery) -> Result<T, CacheError> {
        let place = self.shared.inquiries.take().ok_or(CacheError::Busy)?;
        let (reply, answer) = oneshot::channel();
        let asked = Box::new(Asked { inquiry: ask(reply), _place: place });
        self.shared.commands.try_send(Command::Inquire(asked)).map_err(|error| match error {
            TrySendError::Full(_) => CacheError::Busy,
            TrySendError::Disconnected(_) => EngineError::Stopped.into(),
        })?;
        answer.await.unwrap_or_else(|_| {
            let draining = self.shared.view.draining.load(Ordering::Acquire);
            Err(CacheError::Engine(if draining { EngineError::Draining } else { EngineError::Stopped }))
        })
    }
}

impl Scheduler<'_> {
    /// Executes an inquiry and sends the answer; a caller that is gone needs none.
    pub(super) fn answer(&mut self, asked: Asked) {
        match asked.inquiry {
            AdminQuery::Look(page, reply) => drop(reply.send(Ok(self.look(page)))),
            AdminQuery::Clear(reply) => drop(reply.send(Ok(self.clear_cache()))),
            AdminQuery::Pin(pin, chain, reply) => drop(reply.send(self.pin(pin, &chain))),
            AdminQuery::Unpin(name, reply) => drop(reply.send(Ok(self.unpin(&name)))),
            AdminQuery::Export(slot, reply) => self.begin_export(slot, reply),
            AdminQuery::Import(slot, state, reply) => drop(reply.send(self.import_slot(slot, &state))),
            AdminQuery::Erase(slot, reply) => drop(reply.send(Ok(self.erase_slot(slot)))),
        }
    }

    /// Publishes the content of each tier, if it has changed.
    pub(super) fn show_cache(&self) {
        let totals = self.cache_totals();
        if **self.view.cache.load() != totals {
            self.view.cache.store(Arc::new(totals));
        }
    }

    fn cache_totals(&self) -> CacheTotals {
        let held = self.table.iter().map(|(_, slot)| slot.tokens().len() as u64).filter(|n_tokens| *n_tokens > 0);
        let (n_slots, n_tokens) = held.fold((0, 0), |(n_slots, sum), n_tokens| (n_slots + 1, sum + n_tokens));
        let index = self.cache.index();
        CacheTotals {
            resident: Totals { n_chunks: n_slots, n_tokens, n_bytes: n_tokens * self.cache.token_bytes() },
            ram: index.totals(Tier::Ram),
            disk: index.totals(Tier::Disk),
            evicted: index.evicted(),
            ram_shares: index.share_totals(Tier::Ram),
            disk_shares: index.share_totals(Tier::Disk),
        }
    }

    fn look(&self, page: Page) -> CacheView {
        let index = self.cache.index();
        let mut entries = if page.entries_max > 0 { index.entries() } else { Vec::new() };
        entries.retain(|entry| page.after.is_none_or(|after| entry.chunk > ChunkId(after)));
        let is_last = entries.len() <= page.entries_max;
        entries.truncate(page.entries_max);
        CacheView {
            totals: self.cache_totals(),
            limits: *index.limits(),
            resident_tokens_max: self.prefix_tokens_max,
            tenants: self.tenants(),
            pins: index.pins().into_iter().map(|view| self.pins.show(view)).collect(),
            next_after: entries.last().filter(|_| !is_last).map(|entry| entry.chunk.0),
            entries,
            now_ms: self.cache.now_ms(),
        }
    }

    /// Returns the tenants with the most cached state.
    fn tenants(&self) -> Vec<TenantView> {
        let stored = self.cache.index().shares();
        let view = |stored: ShareView| (stored.tenant, TenantView { resident_tokens: 0, stored });
        let mut tenants: BTreeMap<TenantId, TenantView> = stored.into_iter().map(view).collect();
        for (slot, held) in self.table.iter().filter(|(_, slot)| !slot.tokens().is_empty()) {
            let tenant = self.owners[usize::from(slot.0)].tenant.id;
            let stored = ShareView { tenant, ram_bytes: 0, disk_bytes: 0 };
            let view = tenants.entry(tenant).or_insert(TenantView { resident_tokens: 0, stored });
            view.resident_tokens += held.tokens().len() as u64;
        }
        let mut tenants: Vec<TenantView> = tenants.into_values().collect();
        let token_bytes = self.cache.token_bytes();
        tenants.sort_by_key(|view| {
            let resident_bytes = view.resident_tokens * token_bytes;
            std::cmp::Reverse(view.stored.ram_bytes + view.stored.disk_bytes + resident_bytes)
        });
        tenants.truncate(TENANTS_SHOWN_MAX);
        tenants
    }

    fn clear_cache(&mut self) -> CacheTotals {
        let before = self.cache_totals();
        self.cache.clear();
        self.forget_answers();
        let busy = self.busy_slots();
        let idle: Vec<SlotId> = self.table.iter().map(|(slot, _)| slot).filter(|slot| !busy.contains(slot)).collect();
        for slot in idle {
            self.erase_slot(slot);
        }
        let left = self.cache_totals().resident;
        let resident = Totals {
            n_chunks: before.resident.n_chunks - left.n_chunks,
            n_tokens: before.resident.n_tokens - left.n_tokens,
            n_bytes: before.resident.n_bytes - left.n_bytes,
        };
        CacheTotals { resident, evicted: Vec::new(), ..before }
    }

    fn pin(&mut self, pin: NewPin, chain: &[BlockHash]) -> Result<NamedPin, CacheError> {
        if !self.cache.stores() {
            return Err(CacheError::NoStore);
        }
        let id = self.pins.find(&pin.name).unwrap_or(PinId(self.pins.n_named));
        let prefix = Prefix { root: pin.root, chain, tokens: &pin.tokens };
        let view = self.cache.index_mut().pin(id, &prefix).map_err(|_| CacheError::TooManyPins)?;
        self.pins.n_named += 1;
        self.pins.names.insert(id, pin.name);
        Ok(self.pins.show(view))
    }

    fn unpin(&mut self, name: &str) -> bool {
        let Some(id) = self.pins.find(name) else { return false };
        self.pins.names.remove(&id);
        self.cache.index_mut().unpin(id)
    }

    pub(super) fn erase_slot(&mut self, slot: SlotId) -> u32 {
        let n_tokens = self.n_held(slot);
        self.llama.clear(slot);
        self.table.forget(slot);
        self.unsaved.remove(&slot);
        self.idle_ms[usize::from(slot.0)] = 0.0;
        self.report.touch();
        n_tokens
    }
}
