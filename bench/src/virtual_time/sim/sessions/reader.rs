//! Files of recorded agent sessions, as a trace whose requests follow one another.
//!
//! A recorded id names a block of its session. Here an id also names everything before the block, as in every trace, so
//! a block that has moved is another one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::path::Path;

use anyhow::Context as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::trace::{Line, Request, Trace};
use super::{FIRST_SESSIONS_EVERY_S, Sessions};

/// Longest pause. Units: seconds.
///
/// Source: thirty years, more than any session takes.
const PAUSE_S_MAX: f64 = 1e9;

/// A line of the file.
#[derive(Debug, Deserialize)]
struct Session {
    /// Length of the tools at the head of the prompt. Units: tokens.
    tools: u32,
    /// Length of the system text behind the tools. Units: tokens.
    system: u32,
    /// Length of a block. Units: tokens.
    block: u32,
    requests: Vec<SessionRequest>,
}

/// A request; in the file an array of these fields.
#[derive(Debug, Deserialize)]
struct SessionRequest {
    /// Pause after the previous response. Units: seconds.
    think_s: f64,
    /// Time that the recorded server took, which the simulation replaces.
    _api_s: IgnoredAny,
    input_tokens: u32,
    output_tokens: u32,
    /// Depth of the sub-agent, whose requests are in the order of all others.
    _lane: IgnoredAny,
    /// Block ids of the prompt in turn: the first one of a run, and the length of the run.
    runs: Vec<u32>,
}

/// Reads sessions, in a random order; the first `n_active` begin one after the other, the rest as those end.
///
/// Errors: a file that cannot be read, that has no sessions, or a line that is none, with its number.
pub(super) fn read(path: &Path, n_active: usize, seed: u64) -> anyhow::Result<Sessions> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut sessions = Vec::new();
    for (n, line) in BufReader::new(file).lines().enumerate() {
        let at = || format!("line {} of {}", n + 1, path.display());
        let line = line.with_context(at)?;
        if line.trim().is_empty() {
            continue;
        }
        let session: Session = serde_json::from_str(&line).with_context(at)?;
        anyhow::ensure!(!session.requests.is_empty(), "{}: the session has no requests", at());
        sessions.push((at(), session));
    }
    let block_tokens = sessions.first().with_context(|| format!("{} has no sessions", path.display()))?.1.block;
    anyhow::ensure!(block_tokens > 0, "a block has at least one token");
    sessions.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    let mut reader = Reader { block_tokens, ..Reader::default() };
    for (n, (at, session)) in sessions.into_iter().enumerate() {
        let begins = if n < n_active { Begins::At(n as f64 * FIRST_SESSIONS_EVERY_S) } else { Begins::Later };
        reader.add(session, begins).context(at)?;
    }
    let Reader { requests, later, ranges, new_tokens, .. } = reader;
    Ok(Sessions { trace: Trace { requests, later, block_tokens }, ranges, new_tokens })
}

/// Beginning of a session.
enum Begins {
    /// At a time. Units: seconds.
    At(f64),
    /// When another session has ended.
    Later,
}

/// Sessions read so far.
#[derive(Default)]
struct Reader {
    block_tokens: u32,
    requests: Vec<Request>,
    later: Vec<usize>,
    ranges: Vec<Range<usize>>,
    new_tokens: Vec<u32>,
    n_ids: u32,
    /// Ids of the blocks of each pair of sizes of tools and system text.
    heads: HashMap<(u32, u32), Vec<u32>>,
}

impl Reader {
    fn add(&mut self, session: Session, begins: Begins) -> anyhow::Result<()> {
        let Session { tools, system, block, requests } = session;
        anyhow::ensure!(block == self.block_tokens, "blocks of {block} tokens among those of {}", self.block_tokens);
        let first = self.requests.len();
        let mut head = self.heads.remove(&(tools, system)).unwrap_or_default();
        let n_head = (u64::from(tools) + u64::from(system)) / u64::from(block);
        // Ids of the session's own blocks, by the id of the block before and the recorded id.
        let mut ids = HashMap::new();
        for (n, request) in requests.into_iter().enumerate() {
            let recorded_ids = self.recorded_ids(&request).with_context(|| format!("request {}", n + 1))?;
            let n_ids_before = self.n_ids;
            let mut chained_ids = Vec::with_capacity(recorded_ids.len());
            let mut is_head = true;
            for (depth, id) in recorded_ids.into_iter().enumerate() {
                // The first request of a session counts its head from 1.
                is_head &= (depth as u64) < n_head && id == Some(depth as u32 + 1);
                let before = chained_ids.last().copied();
                let chained_id = match id {
                    Some(_) if is_head && depth < head.len() => head[depth],
                    Some(id) if !is_head => match ids.entry((before, id)) {
                        Entry::Occupied(known) => *known.get(),
                        Entry::Vacant(new) => *new.insert(self.new_id()?),
                    },
                    _ => self.new_id()?,
                };
                if is_head && depth == head.len() {
                    head.push(chained_id);
                }
                chained_ids.push(chained_id);
            }
            let n_known = chained_ids.iter().take_while(|id| **id <= n_ids_before).count();
            let line = Line {
                timestamp: request.think_s * 1e3,
                input_length: request.input_tokens,
                output_length: request.output_tokens,
                hash_ids: chained_ids,
                previous_blocks: None,
            };
            let mut request = Request::new(line, block)?;
            request.follows = (n > 0).then(|| self.requests.len() - 1);
            let n_known = n_known.min(request.reusable_blocks(block)) as u32;
            self.new_tokens.push(request.prompt_tokens - n_known * block);
            self.requests.push(request);
        }
        match begins {
            Begins::At(at_s) => self.requests[first].at_s = at_s,
            Begins::Later => {
                self.requests[first].at_s = 0.0;
                self.later.push(first);
            }
        }
        self.heads.insert((tools, system), head);
        self.ranges.push(first..self.requests.len());
        Ok(())
    }

    /// Returns the recorded id of each block; `None` for a partial last block that has none.
    fn recorded_ids(&self, request: &SessionRequest) -> anyhow::Result<Vec<Option<u32>>> {
        let SessionRequest { think_s, input_tokens, runs, .. } = request;
        anyhow::ensure!((0.0..PAUSE_S_MAX).contains(think_s), "a pause of {think_s} s");
        anyhow::ensure!(*input_tokens > 0, "the prompt is empty");
        anyhow::ensure!(runs.len().is_multiple_of(2), "{} numbers are no pairs of first id and count", runs.len());
        let pairs = || runs.chunks_exact(2).map(|pair| (u64::from(pair[0]), u64::from(pair[1])));
        let n_recorded: u64 = pairs().map(|(_, count)| count).sum();
        let n_blocks = u64::from(input_tokens.div_ceil(self.block_tokens));
        let n_whole = u64::from(input_tokens / self.block_tokens);
        anyhow::ensure!(
            n_recorded == n_blocks || n_recorded == n_whole,
            "{input_tokens} tokens in blocks of {} are {n_blocks} blocks, not {n_recorded}",
            self.block_tokens
        );
        let in_range = pairs().all(|(first, count)| first + count <= u64::from(u32::MAX));
        anyhow::ensure!(in_range, "an id is larger than {}", u32::MAX);
        let ids = pairs().flat_map(|(first, count)| (first..first + count).map(|id| Some(id as u32)));
        Ok(ids.chain((n_recorded < n_blocks).then_some(None)).collect())
    }

    fn new_id(&mut self) -> anyhow::Result<u32> {
        self.n_ids = self.n_ids.checked_add(1).context("the sessions have too many different blocks")?;
        Ok(self.n_ids)
    }
}
