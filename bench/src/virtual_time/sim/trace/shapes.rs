//! Generated traces: the shapes of traffic that a fleet must handle, from a seed.
//!
//! Traces are read in `trace`. There are few parameters, each documented here, and none of them is known to the router.
//! Another seed gives another trace of the same shape.

use clap::ValueEnum;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use super::{Line, Trace};
use crate::output::names;

/// Length of a block. Units: tokens.
///
/// Source: SGLang's generated shared prefixes in `generated_shared_prefix.jsonl` have blocks of this length.
const BLOCK_TOKENS: u32 = 64;

/// A shape of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum TraceShape {
    /// Conversations that grow turn by turn, after one system prompt.
    Chat,
    /// Groups of prompts that share a long prefix, like SGLang's generated-shared-prefix workload.
    SharedPrefix,
    /// Loops of an agent: long contexts after a long list of tools that grow by tool results and are soon sent again.
    Agent,
    /// Questions about documents, a few of which are popular.
    Rag,
    /// Conversations of many tenants, each with a system prompt of its own; a few tenants are large.
    Tenants,
}

impl TraceShape {
    /// Returns a trace of about `n_requests` requests.
    ///
    /// Errors: none that a number of requests above 0 could cause.
    pub fn trace(self, n_requests: usize, seed: u64) -> anyhow::Result<Trace> {
        let mut maker = Maker::new(seed);
        match self {
            Self::SharedPrefix => maker.groups(n_requests, 16),
            Self::Rag => maker.documents(n_requests, 400),
            Self::Chat | Self::Agent | Self::Tenants => {
                let enough = n_requests + n_requests / 4;
                // The last dialogues are cut off, so more are made than needed.
                let (system_prompts, dialogue) = self.sessions();
                let goes_on = |maker: &Maker, _| maker.lines.len() < enough;
                maker.dialogues(&system_prompts, dialogue, DIALOGUE_INTERVAL_S, goes_on);
            }
        }
        maker.lines.truncate(n_requests);
        Trace::new(maker.lines, BLOCK_TOKENS)
    }

    /// Returns a trace of dialogues that begin at a rate for some time.
    ///
    /// Errors: a shape without dialogues, or no request in that time.
    pub fn trace_of_sessions(self, sessions_per_s: f64, seconds: f64, seed: u64) -> anyhow::Result<Trace> {
        let is_dialogue = matches!(self, Self::Chat | Self::Agent | Self::Tenants);
        anyhow::ensure!(is_dialogue, "the shape {} has no sessions", names::name(self));
        let (mut maker, (system_prompts, dialogue)) = (Maker::new(seed), self.sessions());
        maker.dialogues(&system_prompts, dialogue, 1.0 / sessions_per_s, |_, start_s| start_s < seconds);
        maker.lines.retain(|line| line.timestamp < seconds * 1e3);
        Trace::new(maker.lines, BLOCK_TOKENS)
    }

    /// Returns the system prompts, and the course of the dialogues after them.
    fn sessions(self) -> (Vec<SystemPrompt>, Dialogue) {
        let system_prompt = |weight, n_tokens| SystemPrompt { weight, n_tokens };
        match self {
            Self::Agent => (vec![system_prompt(1.0, 4096)], AGENT),
            Self::Tenants => {
                let system_prompts = (0..40).map(|n| system_prompt(1.0 / f64::from(n + 1), 1024 + n * 64));
                (system_prompts.collect(), CHAT)
            }
            Self::Chat | Self::SharedPrefix | Self::Rag => (vec![system_prompt(1.0, 512)], CHAT),
        }
    }
}

/// Course of a dialogue: means of geometric and exponential draws.
#[derive(Debug, Clone, Copy)]
struct Dialogue {
    turns: f64,
    first_tokens: f64,
    turn_tokens: f64,
    answer_tokens: f64,
    /// Time from one turn to the next. Units: seconds.
    pause_s: f64,
}

/// A person's dialogue: some turns, with pauses for thought.
///
/// Source: own choice, of the order of ShareGPT's conversations.
const CHAT: Dialogue =
    Dialogue { turns: 5.0, first_tokens: 400.0, turn_tokens: 150.0, answer_tokens: 250.0, pause_s: 40.0 };
/// A program's dialogue: many turns, large tool results, short pauses.
///
/// Source: own choice, of the order of coding agents' traces.
const AGENT: Dialogue =
    Dialogue { turns: 20.0, first_tokens: 1500.0, turn_tokens: 900.0, answer_tokens: 150.0, pause_s: 6.0 };
/// Mean time between the beginnings of two dialogues. Units: seconds.
const DIALOGUE_INTERVAL_S: f64 = 2.0;
/// Longest prompt. Units: tokens.
const PROMPT_TOKENS_MAX: u32 = 128_000;

/// A system prompt with which dialogues begin.
struct SystemPrompt {
    /// Share of the dialogues that begin with it, relative to the other weights.
    weight: f64,
    n_tokens: u32,
}

struct Maker {
    rng: ChaCha8Rng,
    next_id: u32,
    lines: Vec<Line>,
}

impl Maker {
    fn new(seed: u64) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(seed), next_id: 0, lines: Vec::new() }
    }

    /// Makes dialogues after system prompts as long as `goes_on` returns true for the start of the last one.
    fn dialogues(
        &mut self,
        system_prompts: &[SystemPrompt],
        dialogue: Dialogue,
        interval_s: f64,
        goes_on: impl Fn(&Self, f64) -> bool,
    ) {
        let block_ids: Vec<Vec<u32>> =
            system_prompts.iter().map(|prompt| self.blocks(prompt.n_tokens.div_ceil(BLOCK_TOKENS))).collect();
        let mut start_s = 0.0;
        while goes_on(self, start_s) {
            start_s += self.exponential(interval_s);
            let idx = weighted(&mut self.rng, system_prompts.iter().map(|prompt| prompt.weight));
            let n_tokens = system_prompts[idx].n_tokens;
            let prefix = block_ids[idx][..(n_tokens / BLOCK_TOKENS) as usize].to_vec();
            self.dialogue(prefix, n_tokens, start_s, dialogue);
        }
        self.lines.sort_by(|a, b| a.timestamp.total_cmp(&b.timestamp));
    }

    fn dialogue(&mut self, mut ids: Vec<u32>, mut n_tokens: u32, start_s: f64, dialogue: Dialogue) {
        let (mut at_s, mut previous_blocks) = (start_s, None);
        n_tokens += self.tokens(dialogue.first_tokens);
        loop {
            let n_whole = (n_tokens / BLOCK_TOKENS) as usize;
            let n_new = n_whole.saturating_sub(ids.len()) as u32;
            let new_ids = self.blocks(n_new);
            ids.extend(new_ids);
            let mut hash_ids = ids.clone();
            if !n_tokens.is_multiple_of(BLOCK_TOKENS) {
                hash_ids.extend(self.blocks(1));
            }
            let output_length = self.tokens(dialogue.answer_tokens);
            let timestamp = at_s * 1e3;
            self.lines.push(Line { timestamp, input_length: n_tokens, output_length, hash_ids, previous_blocks });
            previous_blocks = Some(ids.len() as u32);
            n_tokens += output_length + self.tokens(dialogue.turn_tokens);
            if self.unit() * dialogue.turns < 1.0 || n_tokens > PROMPT_TOKENS_MAX {
                return;
            }
            at_s += self.exponential(dialogue.pause_s);
        }
    }

    /// Makes groups of prompts, each with 2,048 shared tokens and 128 of its own, at random times.
    fn groups(&mut self, n_requests: usize, group_size: usize) {
        for _ in 0..n_requests.div_ceil(group_size) {
            let prefix = self.blocks(2048 / BLOCK_TOKENS);
            for _ in 0..group_size {
                let suffix = self.blocks(128 / BLOCK_TOKENS);
                let hash_ids = [prefix.clone(), suffix].concat();
                let timestamp = self.unit() * n_requests as f64 * 1e3;
                self.lines.push(Line {
                    timestamp,
                    input_length: 2176,
                    output_length: 256,
                    hash_ids,
                    previous_blocks: None,
                });
            }
        }
        self.lines.sort_by(|a, b| a.timestamp.total_cmp(&b.timestamp));
    }

    /// Makes questions about documents of 1 to 8 thousand tokens; the n-th most popular document is asked about 1/n as
    /// often.
    fn documents(&mut self, n_requests: usize, n_documents: u32) {
        let system = self.blocks(4);
        let document = |maker: &mut Self| {
            let n_blocks = (1000 + maker.rng.next_u32() % 7000) / BLOCK_TOKENS;
            maker.blocks(n_blocks)
        };
        let documents: Vec<Vec<u32>> = (0..n_documents).map(|_| document(self)).collect();
        let weights = (1..=n_documents).map(|rank| 1.0 / f64::from(rank));
        for n in 0..n_requests {
            let document = &documents[weighted(&mut self.rng, weights.clone())];
            let question = self.blocks(2);
            let hash_ids = [&system[..], document, &question].concat();
            let input_length = hash_ids.len() as u32 * BLOCK_TOKENS;
            let output_length = self.tokens(200.0);
            let timestamp = (n as f64 + self.unit()) * 1e3;
            self.lines.push(Line { timestamp, input_length, output_length, hash_ids, previous_blocks: None });
        }
    }

    fn blocks(&mut self, n: u32) -> Vec<u32> {
        let first = self.next_id;
        self.next_id += n;
        (first..self.next_id).collect()
    }

    fn unit(&mut self) -> f64 {
        unit(&mut self.rng)
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        exponential(&mut self.rng, mean)
    }

    /// Returns a number of tokens, at least 1.
    fn tokens(&mut self, mean: f64) -> u32 {
        (self.exponential(mean) as u32).max(1)
    }
}

/// Returns a number from 0 (inclusive) to 1 (exclusive).
pub fn unit(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns an index, each as often as its weight says.
pub fn weighted(rng: &mut ChaCha8Rng, mut weights: impl Iterator<Item = f64> + Clone) -> usize {
    let mut draw = unit(rng) * weights.clone().sum::<f64>();
    let is_drawn = |weight: f64| {
        draw -= weight;
        draw < 0.0
    };
    weights.position(is_drawn).unwrap_or(0)
}

/// Returns a number from the exponential distribution with this mean.
pub fn exponential(rng: &mut ChaCha8Rng, mean: f64) -> f64 {
    -mean * (1.0 - unit(rng)).ln()
}
