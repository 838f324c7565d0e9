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
use warmpath_worker_core::slots::slot_plan::Reuse;
use warmpath_worker_core::store::chunk_index::{ChunkId, Prefix, UsedChunk};
use warmpath_worker_core::store::transfer_plan::{self, PromptState, StateOffer};
use warmpath_worker_core::tenants::Tenant;

use super::KvState;
use super::store::{Cache, SequenceState};
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
struct IncomingTransfer {
    id: TransferId,
    purpose: TransferPurpose,
    inbox: Arc<Inbox>,
    root: BlockHash,
    /// Hashes of the prompt's first blocks, to the last ordered one.
    chain: Vec<BlockHash>,
    tokens: Vec<Token>,
    /// Chunks of the prefix, which are not evicted during the transfer.
    chunks: Vec<ChunkId>,
    n_bytes: u64,
    ordered_at: Instant,
    deadline: Instant,
    tenant: Tenant,
    priority: i32,
}

impl Drop for IncomingTransfer {
    /// Ends the fetching task: the inbox is closed.
    fn drop(&mut self) {
        self.inbox.close();
    }
}

/// A transfer that no request waits for any more.
pub(crate) struct EndedTransfer {
    pub(crate) id: TransferId,
    /// Chunks of the prefix, not evicted before [`Cache::release`].
    pub(crate) chunks: Vec<ChunkId>,
    pub(crate) report: FetchedState,
}

/// Transfers from other workers.
pub(crate) struct IncomingTransfers {
    /// State that can be exchanged with other workers; `None` if none can.
    exchange: Option<Exchange>,
    /// Transfers in progress.
    in_progress: Vec<IncomingTransfer>,
    n_ordered: u64,
}

impl IncomingTransfers {
    /// Returns the transfers without any in progress; `exchange` is `None` if state cannot be exchanged.
    pub(crate) fn new(exchange: Option<Exchange>) -> Self {
        Self { exchange, in_progress: Vec::new(), n_ordered: 0 }
    }

    /// Returns the transfer that a new request waits for, and the number of prompt tokens that are cached after it.
    ///
    /// This is a transfer in progress that has at least one block for the request, or one that is ordered now.
    pub(crate) fn await_transfer(
        &mut self,
        admission: &mut Admission,
        n_usable: u32,
        kv: &mut KvState<'_>,
    ) -> Option<(TransferId, u32)> {
        let offer = admission.submission.peer.take();
        if kv.reusable(admission) == Reuse::Forbidden {
            return None;
        }
        let block_size = kv.table.block_size_tokens() as usize;
        let n_last = admission.submission.prompt.len().saturating_sub(1);
        let reach = |transfer: &IncomingTransfer| {
            let n_common = transfer.chain.iter().zip(&admission.chain).take_while(|(a, b)| a == b).count();
            (transfer.id, (n_common * block_size).min(n_last) as u32)
        };
        // A prefetch has no deadline that a request could set, so no request waits for it.
        let for_requests = self.in_progress.iter().filter(|transfer| transfer.purpose == TransferPurpose::Request);
        let shared_prefix = for_requests.map(reach).find(|(_, n)| *n as usize >= n_usable as usize + block_size);
        if shared_prefix.is_some() {
            return shared_prefix;
        }
        let submission = &admission.submission;
        let blocks = WantedBlocks {
            prefix: Prefix { root: submission.chain_root, chain: &admission.chain, tokens: &submission.prompt },
            n_prompt: submission.prompt.len(),
            n_usable,
            room_bytes: kv.cache.index().limits().ram_bytes,
            tenant: admission.tenant,
            priority: submission.priority,
            purpose: TransferPurpose::Request,
        };
        self.order(&blocks, offer?, kv)?;
        self.in_progress.last().map(reach)
    }

    /// Orders a prefix before a request needs it, unless it is cached already.
    pub(crate) fn prefetch(&mut self, order: PrefetchOrder, kv: &mut KvState<'_>) {
        let PrefetchOrder { root, tokens, chain, room_bytes, tenant, offer } = order;
        let n_resident = kv.table.iter().map(|(_, slot)| slot.n_common(&tokens, &root)).max();
        let blocks = WantedBlocks {
            prefix: Prefix { root, chain: &chain, tokens: &tokens },
            // No request computes the last token here, so all blocks may be fetched.
            n_prompt: tokens.len() + 1,
            n_usable: u32::try_from(n_resident.unwrap_or_default()).unwrap_or(u32::MAX),
            room_bytes,
            tenant,
            priority: 0,
            purpose: TransferPurpose::Ahead,
        };
        let _ = self.order(&blocks, offer, kv);
    }

    /// Orders the blocks that are faster to fetch than to compute, and adds the transfer at the end of the list; `None`
    /// if there are no such blocks.
    fn order(&mut self, blocks: &WantedBlocks<'_>, offer: PeerOffer, kv: &mut KvState<'_>) -> Option<()> {
        let exchange = self.exchange?;
        let Prefix { root, chain, tokens } = blocks.prefix;
        let block_size = kv.table.block_size_tokens();
        let block_bytes = exchange.token_bytes * u64::from(block_size);

        // The core decides which blocks are faster to fetch, and how long the request may wait for them.
        let stored_prefix = kv.cache.index().find(&blocks.prefix);
        let local = PromptState {
            n_prompt: u32::try_from(blocks.n_prompt).ok()?,
            n_prompt_blocks: chain.len(),
            n_usable: blocks.n_usable,
            n_stored_blocks: stored_prefix.n_blocks,
            block_size_tokens: block_size,
            block_bytes,
            room_bytes: blocks.room_bytes,
        };
        let PeerSpeed { ms_per_byte, latency_ms } = offer.speed;
        let peer = StateOffer { n_blocks: offer.n_blocks, ms_per_byte, latency_ms };
        let plan = transfer_plan::plan(&peer, &local, kv.cache.costs())?;
        let (start, end) = (plan.blocks.start, plan.blocks.end);
        let (wait, prefill_ms_per_block) = match blocks.purpose {
            TransferPurpose::Request => {
                let wait = Duration::try_from_secs_f64(plan.time_max_ms / 1e3).unwrap_or(WAIT_MAX);
                (wait.min(WAIT_MAX), plan.prefill_ms_per_block)
            }
            // No request waits for a prefetch.
            TransferPurpose::Ahead => (WAIT_MAX, f64::INFINITY),
        };

        // Received state could not be used, because a request can restore only a whole prefix.
        let is_absent = |chunk: UsedChunk| kv.cache.payload(chunk.id).is_none();
        let is_in_vain = kv.cache.is_disk_late() && stored_prefix.first(start).any(is_absent);
        if blocks.purpose == TransferPurpose::Request && is_in_vain {
            return None;
        }

        // The order goes to the fetching task; if that has gone, nothing is fetched.
        let tokens = &tokens[..end * block_size as usize];
        let run = WantedRun {
            identity: exchange.identity,
            root,
            first_block: start,
            parent: start.checked_sub(1).map(|before| chain[before]),
            blocks: chain[start..end].to_vec(),
            tokens: tokens[start * block_size as usize..].to_vec(),
            block_bytes,
        };
        let (ordered_at, inbox) = (Instant::now(), Arc::new(Inbox::default()));
        let deadline = ordered_at + wait;
        let order = FetchOrder { run, prefill_ms_per_block, deadline, inbox: Arc::clone(&inbox) };
        offer.order.send(order).ok()?;

        // The stored blocks before the run must not be evicted in the meantime.
        let chunks: Vec<ChunkId> = stored_prefix.first(start).map(|chunk| chunk.id).collect();
        chunks.iter().for_each(|chunk| kv.cache.index_mut().hold(*chunk));
        self.n_ordered += 1;
        self.in_progress.push(IncomingTransfer {
            id: TransferId(self.n_ordered),
            purpose: blocks.purpose,
            inbox,
            root,
            chain: chain[..end].to_vec(),
            tokens: tokens.to_vec(),
            chunks,
            n_bytes: 0,
            ordered_at,
            deadline,
            tenant: blocks.tenant,
            priority: blocks.priority,
        });
        Some(())
    }

    /// Stores the state that has arrived; returns the transfers that have ended or are late.
    ///
    /// `is_awaited` returns whether a request waits for a transfer.
    pub(crate) fn take_received(
        &mut self,
        cache: &mut Cache,
        is_awaited: impl Fn(TransferId) -> bool,
    ) -> Vec<EndedTransfer> {
        let mut ended_transfers = Vec::new();
        for mut transfer in std::mem::take(&mut self.in_progress) {
            let is_awaited = transfer.purpose == TransferPurpose::Ahead || is_awaited(transfer.id);
            let (received_runs, took) = transfer.inbox.take();
            for received_run in received_runs.into_iter().filter(|_| is_awaited) {
                transfer.store(received_run, cache);
            }
            if is_awaited && took.is_none() && Instant::now() < transfer.deadline {
                self.in_progress.push(transfer);
                continue;
            }
            let took = took.unwrap_or_else(|| transfer.ordered_at.elapsed());
            ended_transfers.push(EndedTransfer {
                id: transfer.id,
                chunks: std::mem::take(&mut transfer.chunks),
                report: FetchedState { n_bytes: transfer.n_bytes, took },
            });
        }
        ended_transfers
    }

    /// Returns the deadlines of the transfers in progress.
    pub(crate) fn deadlines(&self) -> impl Iterator<Item = Instant> {
        self.in_progress.iter().map(|transfer| transfer.deadline)
    }
}

impl IncomingTransfer {
    fn store(&mut self, received_run: Received, cache: &mut Cache) {
        self.n_bytes += received_run.payload.len() as u64;
        let end = received_run.first_block + received_run.n_blocks;
        let prefix = Prefix { root: self.root, chain: &self.chain[..end], tokens: &self.tokens };
        let sequence = SequenceState { prefix, tenant: self.tenant, priority: self.priority };
        self.chunks.extend(cache.store_received(&received_run, &sequence));
    }
}
