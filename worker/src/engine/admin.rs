//! Inspection and manual changes of the cache: its content, pins, single slots.
//!
//! A query is a command, executed between two steps and answered through its own channel. A query that needs an idle
//! slot waits until the slot is idle. The engine thread never reads or writes a disk for a query.
//!
//! Not here: the endpoints (`crate::http`), the contents of the cache (`kv::contents`), a slot's state
//! (`kv::saved_slot`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::TrySendError;

use tokio::sync::oneshot;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::prefetch::HotPrefix;
use warmpath_common::summary::Tier;
use warmpath_worker_core::chunk_index::{
    EntryView, Evicted, PIN_MAX, PinView, ShareTotals, ShareView, StoreLimits, Totals,
};
use warmpath_worker_core::prefix_tree::chain_of;

use super::api::EngineError;
use super::handle::{EngineCommand, EngineHandle, HeldPlace};
use super::kv::saved_slot::SlotState;
use super::step::EngineState;

/// Maximum number of queries that wait for the engine; further ones are refused.
///
/// Source: a few operators and scrapers send them, and each may have a slot's whole state in memory.
pub(super) const INQUIRIES_MAX: usize = 8;

/// Maximum number of tenants in one view of the cache.
///
/// Source: a screen of a terminal; the largest tenants are the ones that matter when space is scarce.
pub const TENANTS_SHOWN_MAX: usize = 20;

/// Reason why the cache was not inspected or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// Too many queries wait.
    #[error("{INQUIRIES_MAX} inquiries wait for the engine already")]
    Busy,
    /// The worker has no store, so no prefix can be pinned.
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
    /// State in idle and busy slots; an entry is a slot. Shared state counts for each slot.
    pub resident: Totals,
    /// State stored in memory.
    pub ram: Totals,
    /// State stored on disk, including state that is also in memory.
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

/// Page of the stored entries, which are ordered by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPage {
    /// Last id before the page; `None` for the start.
    pub after: Option<u64>,
    /// Maximum number of entries.
    pub entries_max: usize,
}

/// The cache between two steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheView {
    /// Content of each tier.
    pub totals: CacheTotals,
    /// Limits of the store.
    pub limits: StoreLimits,
    /// Maximum number of tokens that idle slots keep.
    pub resident_tokens_max: u64,
    /// Named pins, the oldest first.
    pub pins: Vec<NamedPin>,
    /// Tenants with the most cached state, the largest first, at most `TENANTS_SHOWN_MAX`.
    pub tenants: Vec<TenantView>,
    /// A page of the stored entries.
    pub entries: Vec<EntryView>,
    /// Id after which the next page starts; `None` on the last page.
    pub next_after: Option<u64>,
    /// Current time on the clock of the entries' times. Units: milliseconds.
    pub now_ms: u64,
}

/// Cached state of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantView {
    /// Tokens in idle and busy slots.
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
    /// Tokens of the prefix, of which only whole blocks are pinned.
    pub tokens: Vec<Token>,
}

/// Sender of the result to the caller.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, CacheError>>;

/// A query or change of the cache.
pub(crate) enum AdminQuery {
    Look(EntryPage, Reply<CacheView>),
    Hot(usize, Reply<Vec<HotPrefix>>),
    Clear(Reply<CacheTotals>),
    Pin(NewPin, Vec<BlockHash>, Reply<NamedPin>),
    Unpin(String, Reply<bool>),
    Export(SlotId, Reply<SlotState>),
    Import(SlotId, SlotState, Reply<u32>),
    Erase(SlotId, Reply<u32>),
}

/// A query with its place.
pub(crate) struct WaitingQuery {
    pub inquiry: AdminQuery,
    pub _place: HeldPlace,
}

impl WaitingQuery {
    /// Returns the slot that must be idle for the query.
    pub(super) fn wants_idle(&self) -> Option<SlotId> {
        match self.inquiry {
            AdminQuery::Export(slot, _) | AdminQuery::Import(slot, ..) | AdminQuery::Erase(slot, _) => Some(slot),
            AdminQuery::Look(..)
            | AdminQuery::Hot(..)
            | AdminQuery::Clear(_)
            | AdminQuery::Pin(..)
            | AdminQuery::Unpin(..) => None,
        }
    }

    /// Returns whether the caller no longer waits for the result.
    pub(super) fn is_abandoned(&self) -> bool {
        match &self.inquiry {
            AdminQuery::Look(_, reply) => reply.is_closed(),
            AdminQuery::Hot(_, reply) => reply.is_closed(),
            AdminQuery::Clear(reply) => reply.is_closed(),
            AdminQuery::Pin(.., reply) => reply.is_closed(),
            AdminQuery::Unpin(_, reply) => reply.is_closed(),
            AdminQuery::Export(_, reply) => reply.is_closed(),
            AdminQuery::Import(.., reply) | AdminQuery::Erase(_, reply) => reply.is_closed(),
        }
    }
}

impl EngineHandle {
    /// Returns the content of each tier after the last step.
    pub fn cache_totals(&self) -> Arc<CacheTotals> {
        self.shared.view.cache.load_full()
    }

    /// Returns a view of the cache, with a page of its entries.
    ///
    /// Cost: waits for the step in progress; the engine lists all entries. Errors: `Busy`, `Engine`.
    pub async fn cache_view(&self, page: EntryPage) -> Result<CacheView, CacheError> {
        self.inquire(|reply| AdminQuery::Look(page, reply)).await
    }

    /// Returns the most valuable prefixes, those in slots first, with at most `n_tokens_max` tokens. Common tokens
    /// count once.
    ///
    /// Cost: waits for the step in progress; the engine sorts all entries. Errors: `Busy`, `Engine`.
    pub async fn hot_prefixes(&self, n_tokens_max: usize) -> Result<Vec<HotPrefix>, CacheError> {
        self.inquire(|reply| AdminQuery::Hot(n_tokens_max, reply)).await
    }

    /// Removes all stored state and that of idle slots; returns the removed totals. Pins stay.
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

    /// Removes a pin and returns whether it existed. Errors: `Busy`, `Engine`.
    pub async fn unpin(&self, name: String) -> Result<bool, CacheError> {
        self.inquire(|reply| AdminQuery::Unpin(name, reply)).await
    }

    /// Returns the whole state of a slot, once it is idle.
    ///
    /// Errors: `SlotEmpty`, `Export`, `Busy`, `Engine`. Panics: on the engine thread, if there is no such slot.
    pub async fn export_slot(&self, slot: SlotId) -> Result<SlotState, CacheError> {
        self.inquire(|reply| AdminQuery::Export(slot, reply)).await
    }

    /// Imports a state into a slot, once it is idle, and returns the number of tokens. The slot's former state is
    /// stored first.
    ///
    /// Errors: `Unfit`, after which the slot is empty; `Busy`, `Engine`. Panics: like [`Self::export_slot`].
    pub async fn import_slot(&self, slot: SlotId, state: SlotState) -> Result<u32, CacheError> {
        self.inquire(|reply| AdminQuery::Import(slot, state, reply)).await
    }

    /// Removes the state of a slot, once it is idle, and returns its number of tokens. Its stored part stays.
    ///
    /// Errors: `Busy`, `Engine`. Panics: like [`Self::export_slot`].
    pub async fn erase_slot(&self, slot: SlotId) -> Result<u32, CacheError> {
        self.inquire(|reply| AdminQuery::Erase(slot, reply)).await
    }

    async fn inquire<T>(&self, ask: impl FnOnce(Reply<T>) -> AdminQuery) -> Result<T, CacheError> {
        let place = self.shared.inquiries.take().ok_or(CacheError::Busy)?;
        let (reply, answer) = oneshot::channel();
        let asked = Box::new(WaitingQuery { inquiry: ask(reply), _place: place });
        self.shared.commands.try_send(EngineCommand::Inquire(asked)).map_err(|error| match error {
            TrySendError::Full(_) => CacheError::Busy,
            TrySendError::Disconnected(_) => EngineError::Stopped.into(),
        })?;
        answer.await.unwrap_or_else(|_| {
            let draining = self.shared.view.draining.load(Ordering::Acquire);
            Err(CacheError::Engine(if draining { EngineError::Draining } else { EngineError::Stopped }))
        })
    }
}

impl EngineState<'_> {
    /// Executes a query and sends the result, unless the caller has gone.
    pub(super) fn answer(&mut self, asked: WaitingQuery) {
        let kv = &mut self.kv;
        let is_change = matches!(asked.inquiry, AdminQuery::Clear(_) | AdminQuery::Import(..) | AdminQuery::Erase(..));
        match asked.inquiry {
            AdminQuery::Look(page, reply) => drop(reply.send(Ok(kv.view(page)))),
            AdminQuery::Hot(n_tokens_max, reply) => drop(reply.send(Ok(kv.hot_prefixes(n_tokens_max)))),
            AdminQuery::Clear(reply) => {
                self.generator.forget_answers();
                drop(reply.send(Ok(kv.clear())));
            }
            AdminQuery::Pin(pin, chain, reply) => drop(reply.send(kv.pin(pin, &chain))),
            AdminQuery::Unpin(name, reply) => drop(reply.send(Ok(kv.unpin(&name)))),
            AdminQuery::Export(slot, reply) => kv.begin_export(slot, reply),
            AdminQuery::Import(slot, state, reply) => drop(reply.send(kv.import_slot(slot, &state))),
            AdminQuery::Erase(slot, reply) => drop(reply.send(Ok(kv.erase(slot)))),
        }
        if is_change {
            self.publisher.report.touch();
        }
    }
}
