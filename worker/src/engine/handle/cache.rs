//! Inspection and manual changes of the cache: its content, pins, single slots.
//!
//! Not here: the endpoints (`crate::http`), the queries themselves (`commands`), their execution (`step::queries`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::TrySendError;

use tokio::sync::oneshot;
use warmpath_common::ids::SlotId;
use warmpath_common::prefetch::HotPrefix;
use warmpath_worker_core::slots::prefix_tree::chain_of;

use super::EngineHandle;
use super::commands::{AdminQuery, EngineCommand, WaitingQuery};
use crate::engine::api::EngineError;
use crate::engine::api::cache::{CacheError, CacheTotals, CacheView, EntryPage, NamedPin, NewPin, Reply, SlotState};

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
        let chain = chain_of(self.shared.block_hasher, &pin.root, &pin.tokens, self.facts().block_size_tokens);
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
        let query = Box::new(WaitingQuery { inquiry: ask(reply), _place: place });
        self.shared.commands.try_send(EngineCommand::Inquire(query)).map_err(|error| match error {
            TrySendError::Full(_) => CacheError::Busy,
            TrySendError::Disconnected(_) => EngineError::Stopped.into(),
        })?;
        answer.await.unwrap_or_else(|_| {
            let draining = self.shared.view.draining.load(Ordering::Acquire);
            Err(CacheError::Engine(if draining { EngineError::Draining } else { EngineError::Stopped }))
        })
    }
}
