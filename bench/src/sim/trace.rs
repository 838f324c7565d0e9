//! Traces: which prompts come when, as blocks that may be shared, in the format of Mooncake's public traces.
//!
//! Not here: made traces (`shapes`), serving them (`world`).
//! The idea: an id names a block *and everything before it*, as a block hash does, so a prompt is its list of ids. One id
//! stands for one token in the worker's cache: what a block holds does not matter to who holds it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use warmpath_common::block_hash::{BlockHash, BlockKey};

/// Is one request as a line of a trace file says it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Is when the request comes. Units: milliseconds from the trace's start.
    pub timestamp: f64,
    /// Is the prompt's length. Units: tokens.
    pub input_length: u32,
    /// Is the answer's length. Units: tokens.
    pub output_length: u32,
    /// Names the prompt's blocks; the last may be partial.
    pub hash_ids: Vec<u32>,
}

/// Is one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Is when it comes. Units: seconds from the trace's start.
    pub at_s: f64,
    /// Is the prompt's length, at least 1. Units: tokens.
    pub prompt_tokens: u32,
    /// Is the answer's length, at least 1. Units: tokens.
    pub answer_tokens: u32,
    /// Names the blocks, as the worker's cache takes them: one token for each.
    pub ids: Vec<u32>,
    /// Names the blocks as the worker's cache does.
    pub chain: Vec<BlockHash>,
    /// Names the blocks as the router's index does.
    pub keys: Vec<BlockKey>,
    /// Names the burst of siblings that it is one of, if it is.
    pub burst: Option<usize>,
}

/// Is a whole trace, in the order of arrival.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Lists the requests.
    pub requests: Vec<Request>,
    /// Is the length of a block. Units: tokens.
    pub block_tokens: u32,
}

impl Trace {
    /// Reads a trace from a file with one JSON object a line.
    ///
    /// Errors: a file that cannot be read, a line that is not a request of whole and one last partial block.
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
        let start_ms = lines[0].timestamp;
        lines.iter_mut().for_each(|line| line.timestamp -= start_ms);
        let requests = lines.into_iter().map(|line| Request::new(line, block_tokens)).collect::<anyhow::Result<_>>()?;
        Ok(Self { requests, block_tokens })
    }

    /// Returns the prompt tokens of all requests.
    pub fn prompt_tokens(&self) -> u64 {
        self.requests.iter().map(|request| u64::from(request.prompt_tokens)).sum()
    }

    /// Returns the number of different blocks.
    pub fn n_unique_blocks(&self) -> usize {
        let ids = self.requests.iter().flat_map(|request| &request.ids);
        ids.collect::<std::collections::HashSet<_>>().len()
    }

    /// Returns the time between the first and the last request. Units: seconds.
    pub fn duration_s(&self) -> f64 {
        self.requests.last().map_or(0.0, |last| last.at_s)
    }

    /// Moves each request by a random part of `tick_s` seconds: what a clock that ticks so seldom has put together comes apart.
    pub fn spread(&mut self, tick_s: f64, seed: u64) {
        for (n, request) in (0u64..).zip(&mut self.requests) {
            let unit = (mix(seed ^ mix(n)) >> 11) as f64 / (1u64 << 53) as f64;
            request.at_s += unit * tick_s;
        }
        self.requests.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    }

    /// Makes all times `factor` times as long.
    pub fn stretch(&mut self, factor: f64) {
        self.requests.iter_mut().for_each(|request| request.at_s *= factor);
    }
}

impl Request {
    /// Returns the request that a line says.
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
        Ok(Self {
            at_s: line.timestamp / 1e3,
            prompt_tokens: line.input_length,
            answer_tokens: line.output_length.max(1),
            keys: chain.iter().map(BlockHash::key).collect(),
            chain,
            ids: line.hash_ids,
            burst: None,
        })
    }

    /// Returns how many of the prompt's blocks can be reused at most: its last token is always computed.
    pub fn reusable_blocks(&self, block_tokens: u32) -> usize {
        (self.prompt_tokens.saturating_sub(1) / block_tokens) as usize
    }

    /// Returns the keys of those.
    pub fn reusable_keys(&self, block_tokens: u32) -> &[BlockKey] {
        &self.keys[..self.reusable_blocks(block_tokens).min(self.keys.len())]
    }
}

/// Returns the hash that stands for an id: any that differs for different ids and spreads over its first 8 bytes.
fn hash_of(id: u32) -> BlockHash {
    let mut bytes = [0; 32];
    for (lane, chunk) in (0u64..).zip(bytes.chunks_exact_mut(8)) {
        chunk.copy_from_slice(&mix(u64::from(id) | lane << 32).to_le_bytes());
    }
    BlockHash(bytes)
}

/// Returns a number that looks random and is another one for every other number.
///
/// Source: the finalizer of splitmix64 (Steele, Lea, Flood 2014).
pub fn mix(number: u64) -> u64 {
    warmpath_common::mix::mix(number.wrapping_add(0x9e37_79b9_7f4a_7c15))
}
