//! Policies that the router does not offer: published rules of others.
//!
//! The router's own policies are in `warmpath-router-core`, ours without a term in `ablation`. Every rival chooses
//! among the candidates of the production code, with the same matches and loads, so that only the rule differs.

use std::collections::HashMap;

use warmpath_common::ids::RequestId;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::routing::choose::Candidate;

use super::super::trace::Request;

/// Kind of rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// The worker that got the conversation before; a new conversation goes to the least loaded worker.
    Sticky,
    /// The fewest uncached tokens plus a tenth of the waiting ones.
    #[value(name = "uncached+0.1queue")]
    TenthQueue,
    /// SGLang's: the longest prefix while the fleet is balanced, the shortest queue otherwise.
    #[value(name = "sglang")]
    SglangSwitch,
    /// Dynamo's: blocks to prefill plus different blocks in use, each with those of the request.
    ///
    /// Source: `worker_logit` and `potential_blocks_and_tokens` of Dynamo's kv-router, at its default weights, without
    /// output blocks.
    #[value(name = "dynamo")]
    DynamoCost,
    /// llm-d's: weighted scores of prefix, queue and cache use.
    #[value(name = "llm-d")]
    LlmdScorers,
}

/// Thresholds of [`Kind::SglangSwitch`]: matched share of the prompt, difference and ratio of the numbers of requests.
///
/// Source: the defaults that SGLang documents for its router.
const SGLANG: (f64, f64, f64) = (0.5, 32.0, 1.0001);
/// Weights of [`Kind::LlmdScorers`]: prefix, queue, cache use.
///
/// Source: the `prefix-cache-scorer`, `queue-scorer` and `kv-cache-utilization-scorer` of llm-d's inference scheduling
/// guide.
const LLMD: (f64, f64, f64) = (3.0, 2.0, 2.0);
/// Weight of the waiting tokens in [`Kind::TenthQueue`].
///
/// Source: docs/decisions/0000-measured-before.md.
const QUEUE_WEIGHT: f64 = 0.1;
/// Number of leading blocks that do not identify a conversation.
///
/// Source: in Mooncake's conversation trace every request starts with the same block.
const COMMON_BLOCKS: usize = 1;

/// One router's rule with the state that only this rule has.
#[derive(Debug)]
pub struct Rival {
    kind: Kind,
    block_tokens: u32,
    /// Worker that each block was last sent to, for [`Kind::Sticky`].
    homes: HashMap<u32, WorkerIdx>,
    /// Requests in flight, for [`Kind::DynamoCost`].
    sent: HashMap<RequestId, SentRequest>,
    /// What each worker has of them.
    in_flight: HashMap<WorkerIdx, InFlight>,
}

#[derive(Debug)]
struct SentRequest {
    worker: WorkerIdx,
    /// Uncached tokens of the prompt until its first token has arrived, then 0.
    prefill_tokens: u64,
    /// Whole blocks of the prompt.
    ids: Vec<u32>,
}

/// Requests in flight at a worker.
#[derive(Debug, Default)]
struct InFlight {
    prefill_tokens: u64,
    active: ActiveBlocks,
}

/// Whole blocks of the prompts in flight, each with the number of its prompts, for [`Kind::DynamoCost`].
#[derive(Debug, Default)]
struct ActiveBlocks(HashMap<u32, u32>);

impl ActiveBlocks {
    fn add(&mut self, ids: &[u32]) {
        ids.iter().for_each(|id| *self.0.entry(*id).or_default() += 1);
    }

    fn remove(&mut self, ids: &[u32]) {
        for id in ids {
            let Some(n_prompts) = self.0.get_mut(id) else { continue };
            *n_prompts -= 1;
            if *n_prompts == 0 {
                self.0.remove(id);
            }
        }
    }

    /// Returns the number of different blocks with those of another prompt.
    fn n_with(&self, ids: &[u32]) -> usize {
        self.0.len() + ids.iter().filter(|id| !self.0.contains_key(id)).count()
    }
}

impl Rival {
    /// Returns a rule without any requests.
    pub fn new(kind: Kind, block_tokens: u32) -> Self {
        Self { kind, block_tokens, homes: HashMap::new(), sent: HashMap::new(), in_flight: HashMap::new() }
    }

    /// Returns the candidate that gets a request.
    pub fn pick<'c, 'a>(&self, request: &Request, candidates: &'c [Candidate<'a>]) -> Option<&'c Candidate<'a>> {
        let uncached_tokens = |c: &Candidate<'_>| c.work.uncached_tokens();
        let tokens_ahead = |c: &Candidate<'_>| c.load.prefill_tokens_ahead();
        match self.kind {
            Kind::Sticky => {
                let mut known_ids = request.ids().iter().skip(COMMON_BLOCKS).rev();
                let home = known_ids.find_map(|id| self.homes.get(id));
                let at_home = candidates.iter().find(|c| Some(&c.worker.idx) == home);
                at_home.or_else(|| least(candidates, tokens_ahead))
            }
            Kind::TenthQueue => least(candidates, |c| uncached_tokens(c) + QUEUE_WEIGHT * tokens_ahead(c)),
            Kind::SglangSwitch => sglang(candidates),
            Kind::DynamoCost => least(candidates, |c| {
                let ids = self.whole_blocks(request);
                let in_flight = self.in_flight.get(&c.worker.idx);
                let n_blocks = in_flight.map_or(ids.len(), |in_flight| in_flight.active.n_with(ids));
                let prefill_tokens = in_flight.map_or(0, |in_flight| in_flight.prefill_tokens);
                (prefill_tokens as f64 + uncached_tokens(c)) / f64::from(self.block_tokens) + n_blocks as f64
            }),
            Kind::LlmdScorers => self.llmd(candidates),
        }
    }

    /// Records a request that was sent to a worker, which has `cached_tokens` of its prompt.
    pub fn sent(&mut self, worker: WorkerIdx, request: &Request, id: &RequestId, cached_tokens: u32) {
        match self.kind {
            Kind::Sticky => self.homes.extend(request.ids().iter().map(|id| (*id, worker))),
            Kind::DynamoCost => {
                let ids = self.whole_blocks(request).to_vec();
                let prefill_tokens = u64::from(request.prompt_tokens - cached_tokens);
                let in_flight = self.in_flight.entry(worker).or_default();
                in_flight.prefill_tokens += prefill_tokens;
                in_flight.active.add(&ids);
                self.sent.insert(id.clone(), SentRequest { worker, prefill_tokens, ids });
            }
            _ => {}
        }
    }

    /// Records that the prompt of a request has been computed.
    pub fn first_token(&mut self, id: &RequestId) {
        let Some(request) = self.sent.get_mut(id) else { return };
        let prefill_tokens = std::mem::take(&mut request.prefill_tokens);
        self.in_flight.entry(request.worker).or_default().prefill_tokens -= prefill_tokens;
    }

    /// Records that a request has left its worker.
    pub fn ended(&mut self, id: &RequestId) {
        self.first_token(id);
        if let Some(request) = self.sent.remove(id) {
            self.in_flight.entry(request.worker).or_default().active.remove(&request.ids);
        }
    }

    fn whole_blocks<'r>(&self, request: &'r Request) -> &'r [u32] {
        &request.ids()[..(request.prompt_tokens / self.block_tokens) as usize]
    }

    fn llmd<'c, 'a>(&self, candidates: &'c [Candidate<'a>]) -> Option<&'c Candidate<'a>> {
        let (fewest, most) = queue_lengths(candidates)?;
        let tokens_max = |c: &Candidate<'_>| {
            let blocks = c.worker.blocks.n_blocks as f64;
            blocks * f64::from(self.block_tokens) + c.worker.load.free_cells as f64
        };
        least(candidates, |c| {
            let prefix = f64::from(c.work.cached_tokens) / f64::from(c.work.prompt_tokens);
            let queue = if most > fewest { (most - n_requests(c)) / (most - fewest) } else { 1.0 };
            let free_share = c.worker.load.free_cells as f64 / tokens_max(c).max(1.0);
            -(LLMD.0 * prefix + LLMD.1 * queue + LLMD.2 * free_share)
        })
    }
}

fn sglang<'c, 'a>(candidates: &'c [Candidate<'a>]) -> Option<&'c Candidate<'a>> {
    let (threshold, difference, ratio) = SGLANG;
    let (fewest, most) = queue_lengths(candidates)?;
    if most - fewest > difference && most > fewest * ratio {
        return least(candidates, n_requests);
    }
    let longest = least(candidates, |c| -f64::from(c.work.cached_tokens))?;
    let share = f64::from(longest.work.cached_tokens) / f64::from(longest.work.prompt_tokens);
    if share > threshold { Some(longest) } else { least(candidates, |c| c.worker.blocks.n_blocks as f64) }
}

fn n_requests(candidate: &Candidate<'_>) -> f64 {
    candidate.load.n_requests() as f64
}

/// Returns the fewest and the most requests at a candidate.
fn queue_lengths(candidates: &[Candidate<'_>]) -> Option<(f64, f64)> {
    let lengths = || candidates.iter().map(n_requests);
    lengths().reduce(f64::min).zip(lengths().reduce(f64::max))
}

/// Returns the first candidate with the smallest `value`.
fn least<'c, 'a>(candidates: &'c [Candidate<'a>], value: impl Fn(&Candidate<'a>) -> f64) -> Option<&'c Candidate<'a>> {
    candidates.iter().min_by(|a, b| value(a).total_cmp(&value(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_several_prompts_share_are_active_once() {
        let mut active = ActiveBlocks::default();
        active.add(&[1, 2, 3]);
        active.add(&[1, 2, 4]);
        assert_eq!(active.n_with(&[]), 4);
        assert_eq!(active.n_with(&[1, 2, 3, 5]), 5);
        active.remove(&[1, 2, 3]);
        assert_eq!(active.n_with(&[1, 2, 3]), 4);
        active.remove(&[1, 2, 4]);
        assert_eq!(active.n_with(&[1]), 1);
    }
}
