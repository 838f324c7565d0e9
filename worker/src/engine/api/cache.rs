//! The cache as the admin API sees it: its content, pins, slots and their state.
//!
//! Not here: the endpoints (`crate::http`), the queries (`handle::queries`), their execution (`kv::contents`).

use bytes::Bytes;
use tokio::sync::oneshot;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{RequestId, SlotId, Token};
use warmpath_common::summary::Tier;
use warmpath_worker_core::store::chunk_index::{
    EntryView, Evicted, PIN_MAX, PinView, ShareTotals, ShareView, StoreLimits, Totals,
};

use super::errors::EngineError;

/// Maximum number of queries that wait for the engine; further ones are refused.
///
/// Source: a few operators and scrapers send them, and each may have a slot's whole state in memory.
pub(crate) const INQUIRIES_MAX: usize = 8;

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

/// Maximum number of checkpoints exported with a slot's state.
///
/// Source: the first default of llama-server's `--ctx-checkpoints`; for a sliding window, each checkpoint is as large
/// as the final state.
pub const CHECKPOINTS_MAX: usize = 8;

/// Complete state of a slot, for a later import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    /// Root of the tokens' chain.
    pub root: BlockHash,
    /// Tokens.
    pub tokens: Vec<Token>,
    /// Number of tokens, from the first on, whose state is exact; all unless there was a shift.
    pub n_exact: usize,
    /// State of the tokens as llama.cpp exports it.
    pub state: Vec<u8>,
    /// Partial states at the ends of whole blocks of the exact tokens, by ascending position; none if the state can be
    /// cut back.
    pub checkpoints: Vec<SlotCheckpoint>,
}

/// Partial state after a slot's first tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotCheckpoint {
    /// Number of the tokens before it, whole blocks.
    pub n_tokens: usize,
    /// The state as llama.cpp exports it.
    pub partial: Bytes,
}

/// State of one slot, for `/slots`.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotView {
    /// The slot.
    pub id: SlotId,
    /// Request that runs in the slot; `None` if it is idle.
    pub request_id: Option<RequestId>,
    /// Tokens in the slot's KV state, of the prompt and the response.
    pub held_tokens: u32,
    /// Number of its first tokens that later requests may reuse: all of them, unless some were shifted.
    pub exact_tokens: u32,
    /// Tokens of the running prompt.
    pub prompt_tokens: u32,
    /// Number of these tokens that were reused.
    pub cached_tokens: u32,
    /// Tokens generated so far.
    pub decoded_tokens: u32,
    /// Number of tokens that may still be generated; `None` if only the context limits them, and if the slot is idle.
    pub remaining_tokens: Option<u32>,
}
