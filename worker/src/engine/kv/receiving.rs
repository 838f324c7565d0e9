//! KV state from another worker: transfers that requests wait for, and prefetched prefixes.
//!
//! When a request arrives, the engine decides which blocks of its prompt to fetch (`transfer_plan` in the core) and
//! sends the order to the fetching task. The request keeps its place in the queue, and later ones may start before it.
//! Between two steps, received state is stored like that of a slot. At the deadline, or when the task ends, the request
//! starts with the state that has arrived. Requests with the same prefix wait for the same transfer.
//!
//! Not here: the connection and the verification (`crate::kv_transfer`), state for others (`sending`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;
use warmpath_worker_core::chunk_index::{ChunkId, Prefix};
use warmpath_worker_core::slot_plan::Reuse;
use warmpath_worker_core::tenants::Tenant;
use warmpath_worker_core::transfer_plan::{self, Own, StateOffer};

use super::KvState;
use super::store::SequenceState;
use crate::engine::api::facts::Exchange;
use crate::engine::api::peers::{FetchOrder, FetchedState, Inbox, PeerOffer, PeerSpeed};
use crate::engine::sequence::admission::Admission;
use crate::store::exchange::{Received, WantedRun};

/// Longest wait of a request for another worker, whatever the time of computing the blocks.
///
/// Source: some 37 GB at 10 Gbit/s, more than the state of a prompt; a longer transfer hangs.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Identifier of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TransferId(u64);

/// Reason for a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransferPurpose {
    /// A request waits for it.
    Request,
    /// Requests may need it later.
    Ahead,
}

/// Blocks of which the missing ones are ordered.
struct WantedBlocks<'a> {
    prefix: Prefix<'a>,
    /// Number of the prompt's tokens, of which the last one is always computed.
    n_prompt: usize,
    n_usable: u32,
    room_bytes: u64,
    tenant: Tenant,
    priority: i32,
    purpose: TransferPurpose,
}

/// A prefix to fetch before a request needs it.
pub(crate) struct PrefetchOrder {
    pub(crate) root: BlockHash,
    pub(crate) tokens: Vec<Token>,
    pub(crate) chain: Vec<BlockHash>,
    /// Maximum number of bytes to fetch.
    pub(crate) room_bytes: u64,
    pub(crate) tenant: Tenant,
    pub(crate) offer: PeerOffer,
}

/// A transfer in progress.
struct Receiving {
    id: TransferId,
    purpose: TransferPurpose,
    inbox: Arc<Inbox>,
    root: BlockHash,
    /// Hashes of the prompt's first blocks, to the last wanted one.
    chain: Vec<BlockHash>,
    tokens: Vec<Token>,
    /// Chunks of the prefix, which are not evicted during the transfer.
    held: Vec<ChunkId>,
    n_bytes: u64,
    ordered: Instant,
    deadline: Instant,
    tenant: Tenant,
    priority: i32,
}

/// A transfer that no request waits for any more.
pub(crate) struct EndedTransfer {
    pub(crate) id: TransferId,
    /// Chunks of the prefix, not evicted before [`super::store::Cache::release`].
    pub(crate) chunks: Vec<ChunkId>,
    pub(crate) fetched: FetchedState,
}

/// Transfers from other workers.
pub(crate) struct IncomingTransfers {
    /// State that can be exchanged with other workers.
    exchange: Option<Exchange>,
    /// Transfers in progress.
    receiving: Vec<Receiving>,
    n_ordered: u64,
}

impl IncomingTransfers {
    /// Returns the transfers without any in progress; `exchange` is `None` if state cannot be exchanged.
    pub(crate) fn new(exchange: Option<Exchange>) -> Self {
        Self { exchange, receiving: Vec::new(), n_ordered: 0 }
    }
}

impl Drop for Receiving {
    /// Ends the fetching task: the inbox is closed.
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl KvState<'_> {
    /// Returns the transfer that a new request waits for, and the number of prompt tokens that are cached after it.
    ///
    /// This is a transfer in progress that has at least one block for the request, or one that is ordered now.
    pub(crate) fn await_transfer(&mut self, admission: &mut Admission, n_usable: u32) -> Option<(TransferId, u32)> {
        let offer = admission.submission.peer.take();
        if self.reusable(admission) == Reuse::Forbidden {
            return None;
        }
        let block_size = self.table.block_size_tokens() as usize;
        let n_last = admission.submission.prompt.len().saturating_sub(1);
        let reach = |receiving: &Receiving| {
            let n_common = receiving.chain.iter().zip(&admission.chain).take_while(|(a, b)| a == b).count();
            (receiving.id, (n_common * block_size).min(n_last) as u32)
        };
        // A prefetch has no deadline that a request could set, so no request waits for it.
        let for_requests =
            self.transfers.receiving.iter().filter(|receiving| receiving.purpose == TransferPurpose::Request);
        let found = for_requests.map(reach).find(|(_, n)| *n as usize >= n_usable as usize + block_size);
        if found.is_some() {
            return found;
        }
        let submission = &admission.submission;
        let wanted = WantedBlocks {
            prefix: Prefix { root: submission.chain_root, chain: &admission.chain, tokens: &submission.prompt },
            n_prompt: submission.prompt.len(),
            n_usable,
            room_bytes: self.cache.index().limits().ram_bytes,
            tenant: admission.tenant,
            priority: submission.priority,
            purpose: TransferPurpose::Request,
        };
        self.order(&wanted, offer?)?;
        self.transfers.receiving.last().map(reach)
    }

    /// Orders a prefix before a request needs it, unless it is cached already.
    pub(crate) fn prefetch(&mut self, prefetch: PrefetchOrder) {
        let PrefetchOrder { root, tokens, chain, room_bytes, tenant, offer } = prefetch;
        let n_resident = self.table.iter().map(|(_, held)| held.n_common(&tokens, &root)).max();
        let wanted = WantedBlocks {
            prefix: Prefix { root, chain: &chain, tokens: &tokens },
            // No request computes the last token here, so all blocks may be fetched.
            n_prompt: tokens.len() + 1,
            n_usable: u32::try_from(n_resident.unwrap_or_default()).unwrap_or(u32::MAX),
            room_bytes,
            tenant,
            priority: 0,
            purpose: TransferPurpose::Ahead,
        };
        let _ = self.order(&wanted, offer);
    }

    /// Orders the blocks that are faster to fetch than to compute, and adds the transfer at the end of the list; `None`
    /// if there are no such blocks.
    fn order(&mut self, wanted: &WantedBlocks<'_>, offer: PeerOffer) -> Option<()> {
        let exchange = self.transfers.exchange?;
        let Prefix { root, chain, tokens } = wanted.prefix;
        let found = self.cache.index().find(&wanted.prefix);
        let block_size = self.table.block_size_tokens();
        let own = Own {
            n_prompt: u32::try_from(wanted.n_prompt).ok()?,
            n_prompt_blocks: chain.len(),
            n_usable: wanted.n_usable,
            n_stored_blocks: found.n_blocks,
            block_size_tokens: block_size,
            block_bytes: exchange.token_bytes * u64::from(block_size),
            room_bytes: wanted.room_bytes,
        };
        let PeerSpeed { ms_per_byte, latency_ms } = offer.speed;
        let offered = StateOffer { n_blocks: offer.n_blocks, ms_per_byte, latency_ms };
        let transfer = transfer_plan::plan(&offered, &own, self.cache.costs())?;
        let (start, end) = (transfer.blocks.start, transfer.blocks.end);
        let tokens = &tokens[..end * block_size as usize];
        let run = WantedRun {
            identity: exchange.identity,
            root,
            first_block: start,
            parent: start.checked_sub(1).map(|before| chain[before]),
            blocks: chain[start..end].to_vec(),
            tokens: tokens[start * block_size as usize..].to_vec(),
            block_bytes: own.block_bytes,
        };
        let (wait, prefill_ms_per_block) = match wanted.purpose {
            TransferPurpose::Request => {
                let wait = Duration::try_from_secs_f64(transfer.time_max_ms / 1e3).unwrap_or(WAIT_MAX);
                (wait.min(WAIT_MAX), transfer.prefill_ms_per_block)
            }
            // No request waits for a prefetch.
            TransferPurpose::Ahead => (WAIT_MAX, f64::INFINITY),
        };
        let (ordered, inbox) = (Instant::now(), Arc::new(Inbox::default()));
        let deadline = ordered + wait;
        // Received state could not be used, because a request can restore only a whole prefix.
        let is_absent = |(chunk, _): (ChunkId, usize)| self.cache.payload(chunk).is_none();
        let is_in_vain = self.cache.is_disk_late() && found.first(start).any(is_absent);
        if wanted.purpose == TransferPurpose::Request && is_in_vain {
            return None;
        }
        let order = FetchOrder { run, prefill_ms_per_block, deadline, inbox: Arc::clone(&inbox) };
        offer.order.send(order).ok()?;
        let held: Vec<ChunkId> = found.first(start).map(|(chunk, _)| chunk).collect();
        held.iter().for_each(|chunk| self.cache.index_mut().hold(*chunk));
        self.transfers.n_ordered += 1;
        self.transfers.receiving.push(Receiving {
            id: TransferId(self.transfers.n_ordered),
            purpose: wanted.purpose,
            inbox,
            root,
            chain: chain[..end].to_vec(),
            tokens: tokens.to_vec(),
            held,
            n_bytes: 0,
            ordered,
            deadline,
            tenant: wanted.tenant,
            priority: wanted.priority,
        });
        Some(())
    }

    /// Stores received state; returns the transfers that have ended or are late.
    ///
    /// `is_awaited` returns whether a request waits for a transfer.
    pub(crate) fn take_received(&mut self, is_awaited: impl Fn(TransferId) -> bool) -> Vec<EndedTransfer> {
        let mut ended = Vec::new();
        for mut receiving in std::mem::take(&mut self.transfers.receiving) {
            let is_awaited = receiving.purpose == TransferPurpose::Ahead || is_awaited(receiving.id);
            let (received, took) = receiving.inbox.take();
            for received in received.into_iter().filter(|_| is_awaited) {
                self.store_received(&mut receiving, received);
            }
            if is_awaited && took.is_none() && Instant::now() < receiving.deadline {
                self.transfers.receiving.push(receiving);
                continue;
            }
            let took = took.unwrap_or_else(|| receiving.ordered.elapsed());
            ended.push(EndedTransfer {
                id: receiving.id,
                chunks: std::mem::take(&mut receiving.held),
                fetched: FetchedState { n_bytes: receiving.n_bytes, took },
            });
        }
        ended
    }

    fn store_received(&mut self, receiving: &mut Receiving, received: Received) {
        receiving.n_bytes += received.payload.len() as u64;
        let end = received.first_block + received.n_blocks;
        let prefix = Prefix { root: receiving.root, chain: &receiving.chain[..end], tokens: &receiving.tokens };
        let kept = SequenceState { prefix, tenant: receiving.tenant, priority: receiving.priority };
        receiving.held.extend(self.cache.store_received(&received, &kept));
    }

    /// Returns the deadlines of the transfers in progress.
    pub(crate) fn transfer_deadlines(&self) -> impl Iterator<Item = Instant> {
        self.transfers.receiving.iter().map(|receiving| receiving.deadline)
    }
}
