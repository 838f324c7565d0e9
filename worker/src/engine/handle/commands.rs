//! Commands for the engine thread, among them the queries of the admin API.
//!
//! The thread executes commands between two steps. A query is answered through its own channel. A query that needs an
//! idle slot waits until the slot is idle. The engine thread never reads or writes a disk for a query.

use std::time::Instant;

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::SlotId;
use warmpath_common::prefetch::HotPrefix;

use crate::engine::api::cache::{CacheTotals, CacheView, EntryPage, NamedPin, NewPin, Reply, SlotState};
use crate::engine::kv::receiving::PrefetchOrder;
use crate::engine::kv::sending::RunLookup;
use crate::engine::self_test::SelfTestReport;
use crate::engine::sequence::admission::Admission;
use crate::engine::sequence::places::HeldPlace;

/// Command for the engine thread.
pub(crate) enum EngineCommand {
    Submit(Box<Admission>),
    Inquire(Box<WaitingQuery>),
    Send(Box<RunLookup>),
    Prefetch(Box<PrefetchOrder>),
    SelfTested(Box<SelfTestReport>),
    Wake,
    Drain { deadline: Instant },
}

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
    pub(crate) fn wants_idle(&self) -> Option<SlotId> {
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
    pub(crate) fn is_abandoned(&self) -> bool {
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
