//! The central property: a response is the one of a fresh context, whatever was computed before it or beside it.

use std::ops::Range;

use rand::{Rng, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use warmpath_bench::model::{Oracle, Preset};
use warmpath_common::ids::Token;
use warmpath_common::lora::Applied;
use warmpath_worker::engine::{EngineConfig, EngineHandle, PrefixCache, Switch};

use super::draft_heads;
use super::draft_models::drafting;
use super::drafts::{forced, half_right, know, right, wrong};
use super::support::{
    Answer, Ask, N_TEXT_TOKENS, ON_GPU, adapter, applied, ask, config, model, start, stop, tokens, until,
};

/// Number of groups of up to five requests in one run.
const N_WAVES: usize = 36;

/// Minimum number of responses that must have reused state, or a run proves nothing. Runs differ a little, because the
/// free slots depend on time. Models that cannot be rewound reuse least.
const REUSED_MIN: usize = 4;

/// A conversation: its text so far, prompts and responses.
struct Conversation {
    salt: u8,
    adapter: Option<Applied>,
    tokens: Vec<Token>,
}

/// Fewest tokens of a run with drafts that must have been drafted or accepted, or the run proves nothing. Nothing is
/// drafted beside a prompt, so on a busy machine, where more requests coincide, there are fewer: 97 were accepted where
/// a quiet one had more than 100.
const DRAFTED_MIN: u64 = 20;

/// Random traffic of one run.
struct Traffic {
    rng: ChaCha8Rng,
    answer_tokens: Range<u32>,
    n_adapters: u16,
    systems: Vec<Vec<Token>>,
    conversations: Vec<Conversation>,
    stop_texts: Vec<String>,
}

/// A request of a group.
struct Request {
    ask: Ask,
    conversation: usize,
    /// Number of tokens after which the client disconnects; `None` if it stays.
    leaves_after: Option<usize>,
}

impl Traffic {
    fn new(seed: u64, answer_tokens: Range<u32>, n_adapters: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let systems = [40, 90, 3].map(|n| random_tokens(&mut rng, n)).to_vec();
        let n_adapters = u16::try_from(n_adapters).unwrap();
        Self { rng, answer_tokens, n_adapters, systems, conversations: Vec::new(), stop_texts: Vec::new() }
    }

    fn wave(&mut self) -> Vec<Request> {
        let n = self.rng.random_range(1..=5);
        (0..n).map(|_| self.request()).collect()
    }

    fn request(&mut self) -> Request {
        let conversation = match self.conversations.len() {
            n if n < 2 || (n < 5 && self.rng.random_bool(0.1)) => self.open(),
            n => self.rng.random_range(0..n),
        };
        let tokens = &mut self.conversations[conversation].tokens;
        if self.rng.random_bool(0.3) {
            let n_kept = self.rng.random_range(1..=tokens.len());
            tokens.truncate(n_kept);
        }
        if self.rng.random_bool(0.8) || tokens.len() > 320 {
            tokens.truncate(320);
            let n = self.rng.random_range(1..60);
            tokens.extend(random_tokens(&mut self.rng, n));
        }
        let mut ask = ask(tokens, self.rng.random_range(self.answer_tokens.clone()));
        ask.last_message_token = Some(tokens.len() as u32 * 2 / 3);
        ask.salt = self.conversations[conversation].salt;
        ask.adapter = self.conversations[conversation].adapter;
        self.vary(&mut ask);
        let leaves_after = self.rng.random_bool(0.15).then(|| self.rng.random_range(0..6));
        Request { ask, conversation, leaves_after }
    }

    fn open(&mut self) -> usize {
        let system = self.rng.random_range(0..self.systems.len());
        let tokens = self.systems[system].clone();
        let salt = self.rng.random_range(0..2);
        let adapter = match self.n_adapters {
            0 => None,
            n => self.rng.random_range(0..=n).checked_sub(1).and_then(applied),
        };
        self.conversations.push(Conversation { salt, adapter, tokens });
        self.conversations.len() - 1
    }

    fn vary(&mut self, ask: &mut Ask) {
        let rng = &mut self.rng;
        ask.cache_prompt = rng.random_bool(0.9);
        ask.generation.ignore_eos = rng.random_bool(0.5);
        let sampling = &mut ask.generation.sampling;
        // A random choice among many almost equally likely tokens depends on the rounding of a GPU.
        if rng.random_bool(0.4) && !ON_GPU {
            sampling.temperature = 8.0;
            sampling.seed = Some(rng.random_range(0..1000));
            sampling.min_p = 0.0;
        }
        if rng.random_bool(0.2) {
            sampling.repeat_penalty = 1.3;
            sampling.presence_penalty = 0.4;
            sampling.dry_multiplier = if rng.random_bool(0.2) { 0.8 } else { 0.0 };
        }
        if rng.random_bool(0.3) && !self.stop_texts.is_empty() {
            let idx = rng.random_range(0..self.stop_texts.len());
            ask.generation.stop = vec![self.stop_texts[idx].clone()];
        }
    }

    /// Continues a conversation with a response, and makes stop texts from texts of responses.
    fn learn(&mut self, request: &Request, answer: &Answer) {
        let tokens = &mut self.conversations[request.conversation].tokens;
        if request.ask.prompt == *tokens {
            tokens.extend(&answer.tokens);
        }
        let middle: String = answer.text.chars().skip(4).take(3).collect();
        if !middle.is_empty() && self.stop_texts.len() < 40 {
            self.stop_texts.push(middle);
        }
    }
}

fn random_tokens(rng: &mut impl Rng, n: usize) -> Vec<Token> {
    (0..n).map(|_| rng.random_range(0..N_TEXT_TOKENS)).collect()
}

async fn run_wave(engine: &EngineHandle, wave: &[Request]) -> Vec<Option<Answer>> {
    let mut answering = Vec::new();
    for request in wave {
        let mut answer = request.ask.submit(engine).unwrap();
        if request.leaves_after == Some(0) {
            answering.push(None);
            continue;
        }
        // Other requests run before a client disconnects late.
        if let Some(n) = request.leaves_after {
            while answer.so_far().tokens.len() < n && answer.next().await {}
            answering.push(None);
        } else {
            answering.push(Some(answer));
        }
    }
    let mut answers = Vec::new();
    for answer in answering {
        answers.push(match answer {
            Some(answer) => Some(answer.answer().await),
            None => None,
        });
    }
    answers
}

/// A run of random traffic against an engine.
#[derive(Debug, Clone)]
pub struct Life {
    pub preset: Preset,
    pub seed: u64,
    pub n_waves: usize,
    /// Number of groups after which the engine ends and starts again; 0 for never.
    pub restart_every: usize,
    /// Bounds of the responses' lengths.
    pub answer_tokens: Range<u32>,
}

impl Life {
    fn short(preset: Preset, seed: u64) -> Self {
        Self { preset, seed, n_waves: N_WAVES, restart_every: 0, answer_tokens: 0..24 }
    }
}

/// Totals of an engine over all its starts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used {
    pub n_answers: usize,
    pub n_reused: usize,
    pub n_oracled: usize,
    pub ram_tokens: u64,
    pub disk_tokens: u64,
    pub saves: u64,
    pub restores: u64,
    pub checkpoint_uses: u64,
    pub prefix_waits: u64,
    pub failed_starts: u64,
    pub drafted_tokens: u64,
    pub accepted_tokens: u64,
}

impl Used {
    /// Waits until the engine is idle, and adds its totals.
    async fn add(&mut self, engine: &EngineHandle) {
        until("the engine rests", || (engine.counters().busy_slots, engine.counters().queued) == (0, 0)).await;
        let counters = engine.counters();
        assert_eq!((counters.failed, counters.decode_failures), (0, 0));
        self.ram_tokens += counters.cached_ram_tokens;
        self.disk_tokens += counters.cached_disk_tokens;
        self.saves += counters.saves;
        self.restores += counters.restores;
        self.checkpoint_uses += counters.checkpoint_uses;
        self.prefix_waits += counters.prefix_waits;
        self.failed_starts += counters.failed_starts;
        self.drafted_tokens += counters.drafted_tokens;
        self.accepted_tokens += counters.accepted_tokens;
    }
}

/// Runs random traffic and compares every response with that of a cold engine.
pub async fn compare(life: Life, change: impl Fn(&mut EngineConfig)) -> Used {
    let Life { preset, seed, .. } = life;
    let mut warm_config =
        EngineConfig { model: model(preset, seed), n_slots: 3, context_tokens_total: 3 * 1024, ..config(preset) };
    change(&mut warm_config);
    let cold = EngineConfig {
        n_slots: 1,
        context_tokens_total: 1024,
        prefix_cache: PrefixCache::Disabled,
        speculation: None,
        draft_model: None,
        ..warm_config.clone()
    };
    let (mut warm, mut updates) = start(warm_config.clone());
    let (cold, _cold_updates) = start(cold);
    let oracle = (preset == Preset::Tiny).then(|| Oracle::new(preset, seed).unwrap());
    let mut traffic = Traffic::new(seed, life.answer_tokens.clone(), warm_config.adapters.len());
    let mut used = Used::default();
    for n_wave in 1..=life.n_waves {
        let wave = traffic.wave();
        let mut expected = Vec::new();
        for request in &wave {
            let answer = request.ask.answer(&cold).await;
            know(&request.ask.prompt, &answer.tokens);
            expected.push(answer);
        }
        let answers = run_wave(&warm, &wave).await;
        for ((request, answer), expected) in wave.iter().zip(answers).zip(&expected) {
            let Some(answer) = answer else { continue };
            check_answer(&life, (request, &answer), expected);
            if let Some(oracle) = &oracle
                && is_plain(&request.ask)
            {
                assert_eq!(answer.tokens, oracle.answer(&request.ask.prompt, answer.tokens.len()));
                used.n_oracled += 1;
            }
            used.n_answers += 1;
            used.n_reused += usize::from(answer.cached_tokens() > 0);
            traffic.learn(request, &answer);
        }
        if life.restart_every > 0 && n_wave % life.restart_every == 0 {
            used.add(&warm).await;
            stop(warm).await;
            (warm, updates) = start(warm_config.clone());
        }
    }
    used.add(&warm).await;
    println!("{preset:?} {seed}: {used:?}");
    assert!(used.n_answers > 2 * life.n_waves / 3, "{used:?} says little");
    assert!(used.n_reused >= REUSED_MIN, "{used:?} says little");
    // The oracle cannot check responses with an adapter.
    let asks_oracle = oracle.is_some() && warm_config.adapters.is_empty();
    assert!(!asks_oracle || used.n_oracled > life.n_waves / 8);
    stop(warm).await;
    stop(cold).await;
    drop(updates);
    used
}

fn check_answer(life: &Life, (request, answer): (&Request, &Answer), expected: &Answer) {
    let Life { preset, seed, .. } = life;
    assert_eq!(expected.cached_tokens(), 0);
    assert_eq!(answer.tokens, expected.tokens, "{preset:?} {seed}: {request:?}", request = request.ask);
    assert_eq!(answer.text, expected.text);
    assert_eq!(answer.finished().reason, expected.finished().reason);
    assert_eq!(answer.finished().stopping_word, expected.finished().stopping_word);
}

async fn check(preset: Preset, seed: u64, change: impl Fn(&mut EngineConfig)) {
    compare(Life::short(preset, seed), change).await;
}

/// Returns whether the response is the model's own choice at every token.
fn is_plain(ask: &Ask) -> bool {
    let sampling = &ask.generation.sampling;
    ask.adapter.is_none() && !ask.generation.ignore_eos && sampling.temperature == 0.0 && sampling.repeat_penalty == 1.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_are_those_of_a_fresh_context_whatever_was_computed_before() {
    for seed in [1, 2, 3] {
        check(Preset::Tiny, seed, |_| {}).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_in_a_shared_buffer_with_flash_attention_and_small_batches() {
    let change = |config: &mut EngineConfig| {
        config.kv_unified = Switch::On;
        config.flash_attn = Switch::On;
        config.batch_tokens = 40;
        config.ubatch_tokens = 16;
    };
    check(Preset::Tiny, 4, change).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_where_sequences_run_with_different_adapters() {
    let with_adapters = |config: &mut EngineConfig| {
        config.adapters = [11, 12].map(|seed| adapter(Preset::Tiny, seed)).to_vec();
    };
    // The adapters are made for the model of seed 1.
    check(Preset::Tiny, 1, with_adapters).await;
    let life = Life { n_waves: 2 * N_WAVES, ..Life::short(Preset::Tiny, 1) };
    let used = compare(life, |config| {
        with_adapters(config);
        config.n_slots = 4;
        config.context_tokens_total = 4 * 1024;
        config.kv_unified = Switch::On;
        config.batch_tokens = 64;
        config.ubatch_tokens = 32;
    });
    assert!(used.await.n_reused > 2 * REUSED_MIN);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_with_a_sliding_window() {
    check(Preset::TinySwa, 5, |_| {}).await;
    check(Preset::TinySwa, 6, |config| config.kv_unified = Switch::On).await;
}

#[cfg_attr(
    any(feature = "cuda", feature = "metal", feature = "rocm", feature = "vulkan"),
    ignore = "random weights tie so closely that a GPU's rounding decides"
)]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_where_only_the_end_can_be_resumed() {
    check(Preset::TinyRecurrent, 7, |_| {}).await;
    check(Preset::TinyHybrid, 8, |_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_whatever_is_drafted() {
    let drafting = |preset, seed, change: fn(&mut EngineConfig)| compare(Life::short(preset, seed), change);
    let half = drafting(Preset::Tiny, 1, |config| config.speculation = forced(half_right)).await;
    assert!(half.accepted_tokens > 100 && half.drafted_tokens > half.accepted_tokens + 50, "{half:?}");
    let unified = drafting(Preset::Tiny, 2, |config| {
        config.speculation = forced(half_right);
        config.kv_unified = Switch::On;
        config.flash_attn = Switch::On;
        config.batch_tokens = 40;
        config.ubatch_tokens = 16;
    });
    assert!(unified.await.accepted_tokens > 100);
    let all = drafting(Preset::Tiny, 3, |config| config.speculation = forced(right)).await;
    assert!(all.accepted_tokens > 200, "{all:?}");
    let none = drafting(Preset::Tiny, 4, |config| config.speculation = forced(wrong)).await;
    assert!(none.drafted_tokens > 1000 && none.accepted_tokens < 10, "{none:?}");
}

#[cfg_attr(
    any(feature = "cuda", feature = "metal", feature = "rocm", feature = "vulkan"),
    ignore = "random weights tie so closely that a GPU's rounding decides"
)]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_whatever_is_drafted_and_rolled_back() {
    let drafting = |preset, seed, kv_unified| {
        compare(Life::short(preset, seed), move |config| {
            config.speculation = forced(half_right);
            config.kv_unified = kv_unified;
        })
    };
    for (preset, seed, kv_unified) in [
        (Preset::TinyHybrid, 8, Switch::Off),
        (Preset::TinyNemotronH, 9, Switch::On),
        (Preset::TinyQwen35, 9, Switch::On),
    ] {
        let half = drafting(preset, seed, kv_unified).await;
        assert!(half.accepted_tokens > 50 && half.drafted_tokens > half.accepted_tokens + 50, "{half:?}");
    }
}

#[cfg_attr(
    any(feature = "cuda", feature = "metal", feature = "rocm", feature = "vulkan"),
    ignore = "random weights tie so closely that a GPU's rounding decides"
)]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_with_draft_heads() {
    let life = Life { restart_every: 12, ..Life::short(Preset::TinyQwen35Mtp, 10) };
    let used = compare(life, |config| *config = draft_heads::drafting(config)).await;
    assert!(used.drafted_tokens > DRAFTED_MIN && used.accepted_tokens > DRAFTED_MIN / 2, "{used:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_with_a_draft_model() {
    let agreeing = |config: &mut EngineConfig| *config = drafting(config, config.model.clone());
    let own = compare(Life::short(Preset::Tiny, 1), agreeing).await;
    assert!(own.accepted_tokens > DRAFTED_MIN && own.drafted_tokens > own.accepted_tokens, "{own:?}");
    let small = compare(Life::short(Preset::Tiny, 2), |config| {
        agreeing(config);
        config.kv_unified = Switch::On;
        config.flash_attn = Switch::On;
        config.batch_tokens = 40;
        config.ubatch_tokens = 16;
    });
    let small = small.await;
    assert!(small.accepted_tokens > DRAFTED_MIN, "{small:?}");
    let other = compare(Life::short(Preset::Tiny, 3), |config| *config = drafting(config, model(Preset::Tiny, 4)));
    let other = other.await;
    assert!(other.drafted_tokens > DRAFTED_MIN && other.accepted_tokens < other.drafted_tokens / 2, "{other:?}");
    let sliding = compare(Life::short(Preset::TinySwa, 5), agreeing).await;
    assert!(sliding.accepted_tokens > DRAFTED_MIN, "{sliding:?}");
    let adapters = compare(Life::short(Preset::Tiny, 1), |config| {
        agreeing(config);
        config.adapters = [11, 12].map(|seed| adapter(Preset::Tiny, seed)).to_vec();
    });
    let adapters = adapters.await;
    assert!(adapters.drafted_tokens > DRAFTED_MIN, "{adapters:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_with_drafts_and_adapters_or_a_sliding_window() {
    let adapters = compare(Life::short(Preset::Tiny, 1), |config| {
        config.speculation = forced(half_right);
        config.adapters = [11, 12].map(|seed| adapter(Preset::Tiny, seed)).to_vec();
    });
    assert!(adapters.await.accepted_tokens > 100);
    for kv_unified in [Switch::Off, Switch::On] {
        let sliding = compare(Life::short(Preset::TinySwa, 5), |config| {
            config.speculation = forced(half_right);
            config.kv_unified = kv_unified;
        });
        assert!(sliding.await.accepted_tokens > 50);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn one_wrong_token_anywhere_changes_the_answer() {
    for preset in [Preset::Tiny, Preset::TinySwa, Preset::TinyRecurrent, Preset::TinyHybrid] {
        let (engine, _updates) = start(EngineConfig { n_slots: 1, context_tokens_total: 1024, ..config(preset) });
        let prompt = tokens(1, 300);
        let right = ask(&prompt, 8).answer(&engine).await.tokens;
        for place in [0, 150, 299] {
            let mut n_seen = 0;
            for other in 1..=6 {
                let mut wrong = prompt.clone();
                wrong[place] = (wrong[place] + other) % N_TEXT_TOKENS;
                n_seen += u32::from(ask(&wrong, 8).answer(&engine).await.tokens != right);
            }
            // A recurrent state loses a part of the distant tokens.
            let n_least = if preset == Preset::TinyRecurrent { 1 } else { 6 };
            assert!(
                n_seen >= n_least,
                "token {place} changes too few responses of {preset:?}, so these tests prove nothing"
            );
        }
        stop(engine).await;
    }
}
