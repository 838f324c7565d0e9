//! Kept state: the part that survives a restart, and the memory that it takes.
//!
//! Reuse while a server runs is measured in `traffic`. Kept state counts only if it is used, so both scenarios repeat
//! their requests and count the tokens that are not computed.

use std::path::Path;

use anyhow::Context as _;
use warmpath_gguf::Header;

use super::contender::{Contender, Programs, Running, Setup};
use super::goals::Verdict;
use super::outcome::Assessment;
use super::scenario::Scenario;
use super::shapes::Texts;
use crate::client::{Answer, Message};
use crate::output::figures::{Measure, Sample, Unit};
use crate::summary::median;

/// Number of slots of the servers.
const N_SLOTS: u16 = 4;
/// Context of a slot. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 8192;
/// Number of conversations before and after the restart.
const RESTART_CONVERSATIONS: u64 = 10;
/// Length of each of them. Units: tokens.
const RESTART_TOKENS: u32 = 900;
/// Number of conversations that share one prefix.
const SHARING_CONVERSATIONS: u64 = 50;
/// Length of that prefix. Units: tokens.
const SHARED_TOKENS: u32 = 2000;
/// Length of each conversation's own question. Units: tokens.
const QUESTION_TOKENS: u32 = 256;
/// Length of each response. Units: tokens.
const ANSWER_TOKENS: u32 = 16;
/// Share of the reused tokens that must be reused again after a restart.
const COME_BACK_MIN: f64 = 0.95;
/// Maximum size of the cache, as a multiple of the distinct tokens' bytes.
const BYTES_MAX: f64 = 1.1;
/// Share of the conversations' own tokens that must be reused when they are repeated, for the size to count.
///
/// Source: the last, partial block of each is not kept, which is 16 of 270 tokens on average.
const OWN_REUSED_MIN: f64 = 0.85;
/// Size of one number of the KV cache, which all servers keep in 16 bits by default. Units: bytes.
const NUMBER_BYTES: u64 = 2;

fn setup() -> Setup {
    Setup { n_slots: N_SLOTS, slot_context_tokens: SLOT_CONTEXT_TOKENS, ..Setup::default() }
}

fn cached_tokens(answers: &[Answer]) -> u64 {
    answers.iter().map(|answer| answer.cached_tokens).sum()
}

fn ttft_ms(answers: &[Answer]) -> f64 {
    median(&answers.iter().map(|answer| answer.ttft_ms).collect::<Vec<_>>()).unwrap_or(0.0)
}

/// Result of a restart.
#[derive(Debug, Clone, PartialEq)]
struct Restart {
    /// Tokens that were reused when the traffic was repeated before the restart.
    held_tokens: u64,
    /// Tokens that were reused when it was repeated after the restart.
    came_back_tokens: u64,
    /// Median TTFT of the first traffic. Units: milliseconds.
    cold_ttft_ms: f64,
    /// Median TTFT of the traffic after the restart. Units: milliseconds.
    after_ttft_ms: f64,
}

/// Runs conversations twice, restarts the server as an operator would, and runs them again.
///
/// Errors: a server that does not start or end, a request that fails.
pub async fn restart(programs: &Programs, contender: Contender, texts: Texts) -> anyhow::Result<Assessment> {
    let dir = tempfile::tempdir()?;
    let setup = Setup { cache_disk: Some(dir.path().to_owned()), ..setup() };
    let server = programs.start(contender, &setup).await?;
    let cold_answers = ask_all(&server, texts).await?;
    let held_answers = ask_all(&server, texts).await?;
    server.stop().await?;
    let server = programs.start(contender, &setup).await?;
    let after = ask_all(&server, texts).await?;
    server.stop().await?;
    let restart = Restart {
        held_tokens: cached_tokens(&held_answers),
        came_back_tokens: cached_tokens(&after),
        cold_ttft_ms: ttft_ms(&cold_answers),
        after_ttft_ms: ttft_ms(&after),
    };
    Ok(Assessment::of(Scenario::Restart, contender, restart.samples(), restart.verdicts(contender)))
}

async fn ask_all(server: &Running, texts: Texts) -> anyhow::Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for conversation in 0..RESTART_CONVERSATIONS {
        let messages = texts.user(conversation, RESTART_TOKENS);
        answers.push(server.client.ask_exactly(&messages, ANSWER_TOKENS).await?);
    }
    Ok(answers)
}

impl Restart {
    /// Returns the share of the reused tokens that was reused again after the restart.
    fn share(&self) -> f64 {
        self.came_back_tokens as f64 / self.held_tokens.max(1) as f64
    }

    /// Returns a sample of each figure.
    fn samples(&self) -> Vec<Sample> {
        vec![
            Measure::higher("came back", Unit::Share).sample(self.share()),
            Measure::lower("TTFT cold", Unit::Ms).sample(self.cold_ttft_ms),
            Measure::lower("TTFT after the restart", Unit::Ms).sample(self.after_ttft_ms),
        ]
    }

    /// Returns the verdict; none for other servers than the worker.
    fn verdicts(&self, contender: Contender) -> Vec<Verdict> {
        let verdict = Verdict::at_least("came back", "95 %", self.share(), COME_BACK_MIN);
        if contender == Contender::Worker { vec![verdict] } else { Vec::new() }
    }
}

/// Memory of conversations with one prefix.
#[derive(Debug, Clone, PartialEq)]
struct Footprint {
    /// Tokens of all of them, with the prefix counted once.
    distinct_tokens: u64,
    /// Size of a token's KV state. Units: bytes.
    token_bytes: u64,
    /// Size of the RAM tier; only the worker reports it. Units: bytes.
    cache_bytes: Option<u64>,
    /// Growth of the process; absent if the system does not report it. Units: bytes.
    rss_growth_bytes: Option<i64>,
    /// Share of the tokens after the prefix that was reused when all conversations were repeated, which shows what was
    /// really kept.
    own_reused: f64,
}

/// Runs the conversations that share a prefix, reads the memory, and repeats them all.
///
/// Errors: a server that does not start, a request that fails, a worker whose `/cache` lacks the size.
pub async fn footprint(programs: &Programs, contender: Contender, texts: Texts) -> anyhow::Result<Assessment> {
    let token_bytes = kv_token_bytes(&programs.model)?;
    let server = programs.start(contender, &setup()).await?;
    let before = server.rss_bytes();
    let system = texts.text(0, SHARED_TOKENS);
    // The prefix and the template around an empty question, which all conversations have in common.
    let system_alone = [Message::new("system", system.as_str()), Message::new("user", "")];
    let n_shared_tokens = server.client.ask_exactly(&system_alone, 1).await?.prompt_tokens;
    let mut distinct_tokens = n_shared_tokens;
    for conversation in 1..=SHARING_CONVERSATIONS {
        let messages = texts.under(&system, conversation, QUESTION_TOKENS);
        let answer = server.client.ask_exactly(&messages, ANSWER_TOKENS).await?;
        distinct_tokens += answer.prompt_tokens - n_shared_tokens + answer.completion_tokens;
    }
    let after = server.rss_bytes();
    let cache_bytes = if contender.is_peer() { None } else { Some(ram_tier_bytes(&server).await?) };
    let mut again = Vec::new();
    for conversation in 1..=SHARING_CONVERSATIONS {
        again.push(server.client.ask_exactly(&texts.under(&system, conversation, QUESTION_TOKENS), 1).await?);
    }
    server.stop().await?;
    let own_tokens: u64 = again.iter().map(|answer| answer.prompt_tokens - n_shared_tokens).sum();
    let own_cached_tokens: u64 = again.iter().map(|answer| answer.cached_tokens.saturating_sub(n_shared_tokens)).sum();
    let footprint = Footprint {
        distinct_tokens,
        token_bytes,
        cache_bytes,
        rss_growth_bytes: before.zip(after).map(|(before, after)| after as i64 - before as i64),
        own_reused: own_cached_tokens as f64 / own_tokens as f64,
    };
    Ok(Assessment::of(Scenario::SharedRam50, contender, footprint.samples(), footprint.verdicts()))
}

async fn ram_tier_bytes(server: &Running) -> anyhow::Result<u64> {
    let cache = server.cache().await.context("asking for /cache")?;
    let bytes = cache.pointer("/tiers/ram/bytes").and_then(serde_json::Value::as_u64);
    bytes.with_context(|| format!("/cache does not say tiers.ram.bytes: {cache}"))
}

impl Footprint {
    fn distinct_bytes(&self) -> f64 {
        (self.distinct_tokens * self.token_bytes) as f64
    }

    /// Returns a sample of each figure.
    fn samples(&self) -> Vec<Sample> {
        let cache = self.cache_bytes.map(|bytes| ("cache", bytes as f64));
        let grown = self.rss_growth_bytes.map(|bytes| ("process growth", bytes as f64));
        let sizes = cache.into_iter().chain(grown).map(|(name, bytes)| Measure::lower(name, Unit::Bytes).sample(bytes));
        sizes.chain([Measure::higher("own tokens kept", Unit::Share).sample(self.own_reused)]).collect()
    }

    /// Returns the verdicts on the worker: a small size counts only if the state is used.
    fn verdicts(&self) -> Vec<Verdict> {
        let Some(cache_bytes) = self.cache_bytes else { return Vec::new() };
        let ratio = cache_bytes as f64 / self.distinct_bytes();
        let bytes = Verdict::at_most("cache to distinct tokens", "1.1x", ratio, BYTES_MAX);
        vec![bytes, Verdict::at_least("own tokens kept", "85 %", self.own_reused, OWN_REUSED_MIN)]
    }
}

/// Returns the size of one token's KV state in a model with full attention. Units: bytes.
///
/// Errors: the file cannot be read, or does not describe its attention.
pub fn kv_token_bytes(model: &Path) -> anyhow::Result<u64> {
    let header = warmpath_gguf::check(model)?;
    let key = |name: &str| format!("{}.{name}", header.architecture());
    let required_key =
        |name: &str| header.unsigned(&key(name)).with_context(|| format!("the model has no {}", key(name)));
    let n_heads = required_key("attention.head_count")?;
    let head = |header: &Header, name: &str| match header.unsigned(&key(name)) {
        Some(length) => Ok(length),
        None => anyhow::Ok(required_key("embedding_length")? / n_heads),
    };
    let row = head(&header, "attention.key_length")? + head(&header, "attention.value_length")?;
    let kv_heads: u64 = match header.numbers(&key("attention.head_count_kv")) {
        Some(by_layer) => by_layer.into_iter().filter_map(|n| u64::try_from(n).ok()).sum(),
        None => required_key("block_count")? * header.unsigned(&key("attention.head_count_kv")).unwrap_or(n_heads),
    };
    Ok(kv_heads * row * NUMBER_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_back_is_a_part_of_what_was_held() {
        let restart = Restart { held_tokens: 1000, came_back_tokens: 949, cold_ttft_ms: 300.0, after_ttft_ms: 9.0 };
        assert!(!restart.verdicts(Contender::Worker)[0].passed);
        assert!(restart.verdicts(Contender::PeerChosen).is_empty());
    }

    #[test]
    fn few_bytes_count_only_if_they_are_of_use() {
        let footprint = |cache_bytes, own_reused| Footprint {
            distinct_tokens: 100,
            token_bytes: 10,
            cache_bytes,
            rss_growth_bytes: Some(5 << 20),
            own_reused,
        };
        let passed =
            |footprint: Footprint| footprint.verdicts().iter().map(|verdict| verdict.passed).collect::<Vec<_>>();
        assert_eq!(passed(footprint(Some(1100), 0.95)), [true, true]);
        assert_eq!(passed(footprint(Some(1101), 0.95)), [false, true]);
        assert_eq!(passed(footprint(Some(0), 0.5)), [true, false]);
        assert_eq!(footprint(None, 0.9).verdicts(), []);
    }

    #[test]
    fn a_made_models_token_has_the_bytes_of_its_layers() {
        let dir = tempfile::tempdir().expect("a folder");
        let model = dir.path().join("tiny.gguf");
        crate::model::write_model(crate::model::Preset::Tiny, 1, None, &model).expect("the model is made");
        // Four layers, two key and value heads of 64, 16 bits.
        assert_eq!(kv_token_bytes(&model).expect("the model says its attention"), 4 * 2 * (64 + 64) * 2);
    }
}
