//! Traces: which prompts arrive when, as blocks that may be shared, in the format of Mooncake's public traces.
//!
//! Generated traces are in `shapes`; serving them is in `world`. An id names a block *and everything before it*, like a
//! block hash, so a prompt is its list of ids. One id stands for one token in the worker's cache, because the number of
//! tokens in a block does not matter there.

pub mod lru;
pub mod shapes;
pub mod siblings;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use warmpath_common::block_hash::{BlockHash, BlockKey};

use crate::virtual_time::simulated::kv::Prompt;

/// Root of every chain: the traces have one model and one tenant.
const ROOT: BlockHash = BlockHash([0; 32]);

/// One request as a line of a trace file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Time of arrival. Units: milliseconds from the trace's start.
    pub timestamp: f64,
    /// Length of the prompt. Units: tokens.
    pub input_length: u32,
    /// Length of the response. Units: tokens.
    pub output_length: u32,
    /// Ids of the prompt's blocks; the last block may be partial.
    pub hash_ids: Vec<u32>,
    /// Number of whole blocks that the session's previous turn had; absent for a first turn, and in files.
    #[serde(skip)]
    pub previous_blocks: Option<u32>,
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Time of arrival. Units: seconds from the trace's start, or from the end of the response that it follows.
    pub at_s: f64,
    /// Request whose response its client awaits before; `None` if the time of arrival is fixed.
    pub follows: Option<usize>,
    /// Length of the prompt, at least 1. Units: tokens.
    pub prompt_tokens: u32,
    /// Length of the response, at least 1. Units: tokens.
    pub answer_tokens: u32,
    /// Prompt for the worker's cache, with the ids of the blocks as tokens.
    pub prompt: Arc<Prompt>,
    /// Block keys for the router's index.
    pub keys: Vec<BlockKey>,
    /// Burst of siblings to which the request belongs, if any.
    pub burst: Option<usize>,
    /// Number of whole blocks that the session's previous turn had; `None` if it is no follow-up of a made trace.
    pub previous_blocks: Option<u32>,
}

/// A whole trace, in the order of arrival.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The requests.
    pub requests: Vec<Request>,
    /// First requests of sessions, each of which begins when another session has ended; empty in an open loop.
    pub later: Vec<usize>,
    /// Length of a block. Units: tokens.
    pub block_tokens: u32,
}

impl Trace {
    /// Reads a trace from a file with one JSON object per line.
    ///
    /// Errors: a file that cannot be read, a line whose number of blocks does not fit its length.
    pub fn read(path: &Path, block_tokens: u32) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let parse = |(n, line): (usize, std::io::Result<String>)| -> anyhow::Result<Line> {
            let line = line?;
            serde_json::from_str(&line).with_context(|| format!("line {} of {}", n + 1, path.display()))
        };
        let lines = BufReader::new(file).lines().enumerate().map(parse).collect::<anyhow::Result<Vec<Line>>>()?;
        Self::new(lines, block_tokens)
    }

    /// Returns the trace of `lines`, in the order of their times.
    ///
    /// Errors: no lines; a line whose number of blocks does not fit its length.
    pub fn new(mut lines: Vec<Line>, block_tokens: u32) -> anyhow::Result<Self> {
        anyhow::ensure!(block_tokens > 0, "a block has at least one token");
        anyhow::ensure!(!lines.is_empty(), "the trace has no requests");
        lines.sort_by(|a, b| a.timestamp.total_cmp(&b.timestamp));
        let queue_delay_ms = lines[0].timestamp;
        lines.iter_mut().for_each(|line| line.timestamp -= queue_delay_ms);
        let requests = lines.into_iter().map(|line| Request::new(line, block_tokens)).collect::<anyhow::Result<_>>()?;
        Ok(Self { requests, later: Vec::new(), block_tokens })
    }

    /// Returns the number of prompt tokens of all requests.
    pub fn prompt_tokens(&self) -> u64 {
        self.requests.iter().map(|request| u64::from(request.prompt_tokens)).sum()
    }

    /// Returns the number of distinct blocks.
    pub fn n_unique_blocks(&self) -> usize {
        let ids = self.requests.iter().flat_map(Request::ids);
        ids.collect::<std::collections::HashSet<_>>().len()
    }

    /// Returns the time between the first and the last request. Units: seconds.
    pub fn duration_s(&self) -> f64 {
        self.requests.last().map_or(0.0, |last| last.at_s)
    }

    /// Moves each request by a random part of `tick_s` seconds, so that requests of one tick of a coarse clock do not
    /// arrive at once.
    pub fn spread(&mut self, tick_s: f64, seed: u64) {
        for (n, request) in (0u64..).zip(&mut self.requests) {
            let unit = (mix(seed ^ mix(n)) >> 11) as f64 / (1u64 << 53) as f64;
            request.at_s += unit * tick_s;
        }
        self.requests.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    }

    /// Multiplies all times by `factor`.
    pub fn stretch(&mut self, factor: f64) {
        self.requests.iter_mut().for_each(|request| request.at_s *= factor);
    }
}

impl Request {
    /// Returns the request of a line.
    ///
    /// Errors: a line whose number of blocks does not fit its length.
    pub fn new(line: Line, block_tokens: u32) -> anyhow::Result<Self> {
        let n_blocks = line.input_length.div_ceil(block_tokens) as usize;
        anyhow::ensure!(
            line.hash_ids.len() == n_blocks && n_blocks > 0,
            "{} tokens in blocks of {block_tokens} are {n_blocks} blocks, not {}: is --block-tokens right?",
            line.input_length,
            line.hash_ids.len()
        );
        let chain: Vec<BlockHash> = line.hash_ids.iter().copied().map(hash_of).collect();
        let prompt = Prompt { tokens: line.hash_ids, chain, root: ROOT };
        Ok(Self {
            at_s: line.timestamp / 1e3,
            follows: None,
            prompt_tokens: line.input_length,
            answer_tokens: line.output_length.max(1),
            keys: prompt.keys().collect(),
            prompt: Arc::new(prompt),
            burst: None,
            previous_blocks: line.previous_blocks,
        })
    }

    /// Returns the ids of the blocks.
    pub fn ids(&self) -> &[u32] {
        &self.prompt.tokens
    }

    /// Returns how many of the prompt's blocks can be reused at most; its last token is always computed.
    pub fn reusable_blocks(&self, block_tokens: u32) -> usize {
        (self.prompt_tokens.saturating_sub(1) / block_tokens) as usize
    }

    /// Returns the keys of the reusable blocks.
    pub fn reusable_keys(&self, block_tokens: u32) -> &[BlockKey] {
        &self.keys[..self.reusable_blocks(block_tokens).min(self.keys.len())]
    }
}

/// Returns a hash for an id: different for different ids, with all of its first 8 bytes used.
fn hash_of(id: u32) -> BlockHash {
    let mut bytes = [0; 32];
    for (lane, chunk) in (0u64..).zip(bytes.chunks_exact_mut(8)) {
        chunk.copy_from_slice(&mix(u64::from(id) | lane << 32).to_le_bytes());
    }
    BlockHash(bytes)
}

/// Returns a number that looks random; different numbers give different results.
///
/// Source: the finalizer of splitmix64 (Steele, Lea, Flood 2014).
pub fn mix(number: u64) -> u64 {
    warmpath_common::mix::mix(number.wrapping_add(0x9e37_79b9_7f4a_7c15))
}
