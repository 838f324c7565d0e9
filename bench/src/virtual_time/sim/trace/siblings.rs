//! Bursts of siblings in addition to a trace: requests with one new prefix that arrive before any worker can have
//! computed it.
//!
//! The other requests come from the trace. Bursts arrive at even intervals,
//! each request at a random router; the number of workers that a burst is routed to is counted.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::world::History;
use super::{Line, Request, Trace};

/// Number of requests in a burst of siblings.
///
/// Source: the goal for several routers (`docs/benchmarks.md`).
const SIBLINGS: usize = 16;
/// Time within which the requests of a burst arrive. Source: as [`SIBLINGS`].
const BURST: Duration = Duration::from_millis(50);
/// Length of the prefix that siblings share. Units: tokens.
///
/// Source: SGLang's generated shared prefixes, as in `shapes`.
const SHARED_TOKENS: u32 = 2048;
/// Length of each sibling's own part. Source: as [`SHARED_TOKENS`]. Units: tokens.
const OWN_TOKENS: u32 = 128;
/// Length of a sibling's response. Units: tokens.
const ANSWER_TOKENS: u32 = 256;

/// Adds bursts to a trace, within its duration.
///
/// Errors: none that a trace of whole blocks could cause.
pub fn add(trace: &mut Trace, n_bursts: usize) -> anyhow::Result<()> {
    let used = trace.requests.iter().flat_map(Request::ids).max();
    let mut next_id = used.map_or(0, |last| last + 1);
    let mut blocks = |n_tokens: u32, block_tokens: u32| {
        let first = next_id;
        next_id += n_tokens.div_ceil(block_tokens);
        (first..next_id).collect::<Vec<u32>>()
    };
    let duration_s = trace.duration_s();
    for burst in 0..n_bursts {
        let begins_s = duration_s * (burst as f64 + 0.5) / n_bursts as f64;
        let shared_ids = blocks(SHARED_TOKENS, trace.block_tokens);
        for idx in 0..SIBLINGS {
            let at_s = begins_s + BURST.mul_f64(idx as f64 / SIBLINGS as f64).as_secs_f64();
            let hash_ids = [shared_ids.clone(), blocks(OWN_TOKENS, trace.block_tokens)].concat();
            let input_length = shared_ids.len() as u32 * trace.block_tokens + OWN_TOKENS;
            let timestamp = at_s * 1e3;
            let line = Line { timestamp, input_length, output_length: ANSWER_TOKENS, hash_ids, previous_blocks: None };
            trace.requests.push(Request { burst: Some(burst), ..Request::new(line, trace.block_tokens)? });
        }
    }
    trace.requests.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    Ok(())
}

/// Returns, for each burst, the number of workers that it was routed to.
pub fn workers_per_burst(trace: &Trace, history: &History) -> Vec<usize> {
    let mut workers_of_each: Vec<BTreeSet<usize>> = Vec::new();
    for (request, served) in trace.requests.iter().zip(&history.served) {
        let (Some(burst), Some(served)) = (request.burst, served) else { continue };
        workers_of_each.resize(workers_of_each.len().max(burst + 1), BTreeSet::new());
        workers_of_each[burst].insert(served.worker);
    }
    workers_of_each.iter().map(BTreeSet::len).collect()
}
