//! Starts engines on generated models, submits requests and collects responses.

use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::timeout;
use warmpath_bench::model::Preset;
use warmpath_bench::model::adapter::write_adapter;
use warmpath_bench::model::cache::cached_model;
use warmpath_common::block_hash::{BlockHash, ChainRoot};
use warmpath_common::ids::{RequestId, SlotId, Token};
use warmpath_common::lora::{Applied, Scale};
use warmpath_prompt::MediaRun;
use warmpath_worker::engine::{
    AdapterFile, Engine, EngineConfig, EngineError, EngineEvent, EngineHandle, EngineUpdate, EventReceiver, Finished,
    Generation, PastToken, PeerOffer, ProbabilityOptions, ProbabilitySource, SampledToken, Sampling, ShiftOptions,
    Started, Submission, events,
};
use warmpath_worker_core::tenants::TenantId;
use warmpath_worker_output::logprobs::{PromptProbabilities, TokenProbabilities};

/// Time limit of every wait in these tests.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Whether this build computes on a GPU, whose kernels for few and for many tokens round differently.
pub const ON_GPU: bool = cfg!(any(feature = "cuda", feature = "metal", feature = "rocm", feature = "vulkan"));

/// Number of text tokens of the generated models' vocabulary from which prompts are drawn.
pub const N_TEXT_TOKENS: u32 = 256;

pub fn model(preset: Preset, seed: u64) -> PathBuf {
    cached_model(preset, seed, Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/models"))).unwrap()
}

pub fn config(preset: Preset) -> EngineConfig {
    EngineConfig { model: model(preset, 1), threads: 1, ..EngineConfig::default() }
}

pub fn start(config: EngineConfig) -> (EngineHandle, UnboundedReceiver<EngineUpdate>) {
    let (sender, updates) = mpsc::unbounded_channel();
    let engine = Engine::start(config, |_| true, sender).unwrap_or_else(|error| panic!("{error}"));
    (engine, updates)
}

/// Ends an engine whose requests are all complete.
pub async fn stop(engine: EngineHandle) {
    timeout(PATIENCE, engine.drain(PATIENCE, ready(()))).await.expect("the engine ends");
}

/// Returns the root of the chain of one tenant.
pub fn root(salt: u8) -> BlockHash {
    root_with(salt, None)
}

/// Returns the root of the chain of one tenant with one adapter.
fn root_with(salt: u8, adapter: Option<Applied>) -> BlockHash {
    let lora = adapter.map(|applied| format!("{} {}", applied.adapter, applied.scale)).unwrap_or_default();
    ChainRoot { model_fingerprint: &[7; 32], lora: lora.as_bytes(), cache_salt: &[salt] }.hash()
}

/// Returns the adapter with this index, applied at its full strength.
pub fn applied(adapter: u16) -> Option<Applied> {
    Some(Applied { adapter, scale: Scale::ONE })
}

/// Returns an adapter to load, for the model of `preset` and seed 1.
pub fn adapter(preset: Preset, adapter_seed: u64) -> AdapterFile {
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("adapter-{}-{adapter_seed}", preset.name());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.gguf", std::process::id()));
    if !path.exists() {
        write_adapter(preset, 1, adapter_seed, &path).unwrap();
    }
    AdapterFile { name, path, scale: Scale::ONE }
}

/// A request; greedy, of a fixed length, continuing past ends of generation, unless changed.
#[derive(Debug, Clone)]
pub struct Ask {
    pub id: String,
    pub prompt: Vec<Token>,
    pub past: Vec<SampledToken>,
    pub salt: u8,
    pub tenant: Option<TenantId>,
    pub priority: i32,
    pub adapter: Option<Applied>,
    pub generation: Generation,
    pub cache_prompt: bool,
    pub shifts: ShiftOptions,
    pub wanted_slot: Option<SlotId>,
    pub expected_tokens: u32,
    pub last_message_token: Option<u32>,
    pub runs: Vec<MediaRun>,
}

pub fn ask(prompt: &[Token], max_tokens: u32) -> Ask {
    Ask {
        id: "test".to_owned(),
        prompt: prompt.to_vec(),
        past: Vec::new(),
        salt: 0,
        tenant: None,
        priority: 0,
        adapter: None,
        generation: Generation {
            max_tokens: Some(max_tokens),
            stop: Vec::new(),
            ignore_eos: true,
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            ..Generation::default()
        },
        cache_prompt: true,
        shifts: ShiftOptions::default(),
        wanted_slot: None,
        expected_tokens: 0,
        last_message_token: None,
        runs: Vec::new(),
    }
}

/// Returns `n` tokens that depend only on `seed`.
pub fn tokens(seed: u32, n: usize) -> Vec<Token> {
    let mut state = seed.wrapping_mul(0x9E37_79B9) ^ 0x5EED;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % N_TEXT_TOKENS
    };
    (0..n).map(|_| next()).collect()
}

impl Ask {
    /// Requests the model's probabilities of the tokens, with the `n_top` most likely ones of each.
    pub fn listing(mut self, n_top: usize) -> Self {
        self.generation.probabilities =
            Some(ProbabilityOptions { n_top, source: ProbabilitySource::Model, of_prompt: false });
        self
    }

    pub fn submit(&self, engine: &EngineHandle) -> Result<Answering, EngineError> {
        self.submit_with(engine, None)
    }

    /// Submits with the offer of another worker's state.
    pub fn submit_with(&self, engine: &EngineHandle, peer: Option<PeerOffer>) -> Result<Answering, EngineError> {
        let (sender, events) = events();
        engine.submit(Submission {
            request_id: RequestId::new(&self.id).unwrap(),
            prompt: self.prompt.iter().copied().chain(self.past.iter().map(|sampled| sampled.token)).collect(),
            past: self.past.iter().map(|sampled| PastToken { sampled: *sampled, probabilities: None }).collect(),
            past_end: None,
            chain_root: root_with(self.salt, self.adapter),
            tenant: self.tenant,
            adapter: self.adapter,
            generation: self.generation.clone(),
            cache_prompt: self.cache_prompt,
            shifts: self.shifts,
            wanted_slot: self.wanted_slot,
            expected_tokens: self.expected_tokens,
            breakpoints: self.last_message_token.into_iter().collect(),
            priority: self.priority,
            peer,
            runs: self.runs.clone(),
            events: sender,
        })?;
        Ok(Answering { events, answer: Answer::default() })
    }

    /// Submits and waits for the whole response.
    pub async fn answer(&self, engine: &EngineHandle) -> Answer {
        self.submit(engine).unwrap().answer().await
    }
}

/// A response in progress.
pub struct Answering {
    events: EventReceiver,
    answer: Answer,
}

/// Result of a request.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub started: Option<Started>,
    pub text: String,
    pub tokens: Vec<Token>,
    pub sampled: Vec<SampledToken>,
    pub prompt: Option<PromptProbabilities>,
    pub probabilities: Vec<TokenProbabilities>,
    pub finished: Option<Finished>,
    pub failed: Option<EngineError>,
}

impl Answering {
    /// Waits for the next event and returns whether there was one.
    pub async fn next(&mut self) -> bool {
        let event = timeout(PATIENCE, self.events.recv()).await.expect("an event arrives");
        match event {
            Some(EngineEvent::Started(started)) => self.answer.started = Some(started),
            Some(EngineEvent::Prompt(probabilities)) => self.answer.prompt = Some(probabilities),
            Some(EngineEvent::Text { text, token, n_draws, probabilities, .. }) => {
                self.answer.sampled.push(SampledToken { token, n_draws });
                self.answer.text.push_str(&text);
                self.answer.tokens.push(token);
                self.answer.probabilities.extend(probabilities);
            }
            Some(EngineEvent::Finished(finished)) => self.answer.finished = Some(finished),
            Some(EngineEvent::Failed(error)) => self.answer.failed = Some(error),
            None => return false,
        }
        true
    }

    /// Waits until there are `n` tokens.
    pub async fn tokens(&mut self, n: usize) {
        while self.answer.tokens.len() < n {
            assert!(self.next().await, "the answer ends after {} tokens", self.answer.tokens.len());
        }
    }

    pub fn so_far(&self) -> &Answer {
        &self.answer
    }

    /// Waits for the end, whatever it is.
    pub async fn answer(mut self) -> Answer {
        while self.next().await {}
        self.answer
    }
}

impl Answer {
    pub fn finished(&self) -> &Finished {
        self.finished.as_ref().unwrap_or_else(|| panic!("no end: {self:?}"))
    }

    pub fn cached_tokens(&self) -> u32 {
        self.started.unwrap().cached_tokens()
    }
}

/// Waits until `is_so` returns true; calls it repeatedly.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}
