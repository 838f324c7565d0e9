//! Transfers of KV state as the network's tasks order them: wakes, prefetched prefixes, runs for other workers.
//!
//! Not here: their execution (`kv::receiving`, `kv::sending`).

use std::sync::mpsc::TrySendError;

use tokio::sync::oneshot;
use warmpath_common::prefetch::HotPrefix;
use warmpath_worker_core::slots::prefix_tree::chain_of;
use warmpath_worker_core::tenants::{Tenant, TenantId};

use super::EngineHandle;
use super::commands::EngineCommand;
use crate::engine::api::{EngineError, PeerOffer};
use crate::engine::kv::receiving::PrefetchOrder;
use crate::engine::kv::sending::{RunEnd, RunLookup, SendError, SentRun};

impl EngineHandle {
    /// Wakes the engine to take fetched state.
    pub fn wake(&self) {
        self.shared.waker.wake();
    }

    /// Orders the missing blocks of a prefix before a request needs them. Orders nothing, and drops the offer's
    /// channel, if no block is missing, if they have more than `room_bytes`, or if computing them is faster.
    ///
    /// Cost: a hash of every block. If the engine's queue is full, nothing is ordered.
    pub fn prefetch(&self, prefix: HotPrefix, room_bytes: u64, offer: PeerOffer) {
        let state = &self.shared;
        let HotPrefix { root, tokens } = prefix;
        let chain = chain_of(state.block_hasher, &root, &tokens, state.facts.block_size_tokens);
        // The state is charged to the tenant that uses it first.
        let tenant = Tenant::without_share(TenantId::of_root(&root));
        let prefetch = Box::new(PrefetchOrder { root, tokens, chain, room_bytes, tenant, offer });
        let _ = state.commands.try_send(EngineCommand::Prefetch(prefetch));
    }

    /// Returns the first of these runs whose last block is cached. If a slot is still computing the run, only its
    /// computed blocks are returned.
    ///
    /// Cost: waits for the step in progress, for reads from the disk unless it is late, and for exports from a slot.
    /// Errors: `Missing`, `Busy`, `Engine`.
    pub async fn run_to(&self, ends: Vec<RunEnd>) -> Result<SentRun, SendError> {
        let place = self.shared.sends.take().ok_or(SendError::Busy)?;
        let (reply, answer) = oneshot::channel();
        let sending = Box::new(RunLookup::new(ends, reply, place));
        self.shared.commands.try_send(EngineCommand::Send(sending)).map_err(|error| match error {
            TrySendError::Full(_) => SendError::Busy,
            TrySendError::Disconnected(_) => EngineError::Stopped.into(),
        })?;
        answer.await.unwrap_or_else(|_| Err(EngineError::Stopped.into()))
    }

    /// Returns whether a run is being sent or looked up.
    pub fn is_sending(&self) -> bool {
        self.shared.sends.n_taken() > 0
    }
}
