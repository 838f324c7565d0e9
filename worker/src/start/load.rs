//! Loads the model and the parts that depend on it, and reports the progress.
//!
//! Not here: the steps before and after (`start`).

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};
use warmpath_common::model::{Capability, Fingerprint, KvTransfer, ModelInfo, Pooling};
use warmpath_common::openai::ChatPrompt;
use warmpath_common::summary::Stamp;
use warmpath_gguf::VocabularyChanges;
use warmpath_prompt::{MediaReader, PromptMaker, PromptOptions};
use warmpath_shell::log::timed;

use super::{RunError, WorkerIdentity, kernels};
use crate::app::Phase;
use crate::backends;
use crate::config::generation::{ModelDefaults, UnusableDefault};
use crate::config::{Config, EmbeddingConfig, HttpConfig, PromptConfig};
use crate::embedder::vector::Norm;
use crate::embedder::{self, EmbedConfig, EmbedHandle};
use crate::engine::{
    self, Engine, EngineConfig, EngineHandle, EngineUpdate, Generation, MemoryPlan, MemoryUse, Projector,
    ProjectorConfig, ProjectorNeed,
};
use crate::loaded_model::Embedder;
use crate::loaded_model::LoadedModel;
use crate::loaded_model::common::CommonState;
use crate::loaded_model::common::VocabularyFile;
use crate::loaded_model::generator::Generator;
use crate::metrics::Metrics;
use crate::prompt_pools::PromptPools;
use crate::slot_context::SlotContext;
use crate::summary::SummaryPublisher;

/// Name of a tool that no template contains.
const TOOL_PROBE: &str = "warmpath_probe";

/// A model to load, and the receiver of the progress.
pub struct LoadJob {
    /// Configuration.
    pub config: Config,
    /// Identity of the worker.
    pub identity: WorkerIdentity,
    /// Receives the progress.
    pub phase: Arc<watch::Sender<Phase>>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
}

/// Component that runs the model.
enum Computes {
    Engine(EngineHandle),
    Embedder(EmbedHandle),
}

impl Computes {
    /// Returns the model's description, its number of parameters and the size of its tensors.
    fn facts(&self) -> (String, u64, u64) {
        match self {
            Self::Engine(engine) => {
                let facts = engine.facts();
                (facts.description.clone(), facts.n_params, facts.model_bytes)
            }
            Self::Embedder(embedder) => {
                let facts = embedder.facts();
                (facts.description.clone(), facts.n_params, facts.model_bytes)
            }
        }
    }
}

/// Results of the blocking work.
struct LoadedParts {
    computes: Computes,
    prompts: PromptMaker,
    vocabulary: Vec<u8>,
    defaults: Generation,
    updates: mpsc::UnboundedReceiver<EngineUpdate>,
}

/// Stops the loading when the future that waits for it is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the state of the loaded worker; dropping the future stops the loading.
///
/// Errors: `Backends`, `Model`, `Prompt`, `Engine`, `Panicked`.
pub async fn load(job: LoadJob) -> Result<LoadedModel, RunError> {
    let stop = Arc::new(AtomicBool::new(false));
    let _stop = StopOnDrop(Arc::clone(&stop));
    let LoadJob { config, identity, phase, metrics } = job;
    let progress = LoadProgress::new(phase, stop);
    let began = Instant::now();
    let cpu_variant = backends::load(&config.backends).await.map_err(RunError::Backends)?;
    debug!(step = "loading backends", ms = began.elapsed().as_millis(), "start");
    metrics.cpu_variant_info.with_label_values(&[&cpu_variant]).set(1);
    // Memory is planned before weights are read, so a model that does not fit is refused within seconds.
    let plan_result =
        tokio::task::spawn_blocking(move || timed("planning memory", || fitting(with_devices(config)?, plan_memory)));
    let (config, plan) = plan_result.await.map_err(RunError::Panicked)??;
    let worker_config = config.clone();
    let load_result = tokio::task::spawn_blocking(move || load_parts(&worker_config, progress)).await;
    let parts = load_result.map_err(RunError::Panicked)??;

    // An optional projector may turn out to be of no use when it is loaded.
    let has_projector = projector(&parts.computes).is_some();
    let memory = plan.map(|MemoryPlan { memory, .. }| MemoryUse {
        projector: if has_projector { memory.projector } else { 0 },
        ..memory
    });

    // The declaration for routers depends on the self-test and the memory plan.
    let model = declare(&config, &parts);
    warn_of_context(config.engine.context_tokens_total, &model);
    metrics.slots.set(i64::from(model.n_slots));

    // What routers read: the summaries, and the vocabulary, a file that is made once.
    let labels = [model.names[0].as_str(), &model.fingerprint.to_string(), env!("CARGO_PKG_VERSION")];
    metrics.info.with_label_values(&labels).set(1);
    let stamp = Stamp { worker_uid: identity.uid, boot_epoch: identity.boot_epoch, seq: 0 };
    let (publisher, _) = SummaryPublisher::start(stamp, model.clone(), parts.updates, metrics);
    let etag = format!("\"{}-{}\"", model.fingerprint, &model.chat_template_fingerprint.to_string()[..16]);
    let vocabulary = VocabularyFile { bytes: Bytes::from(parts.vocabulary), etag };
    let pools = PromptPools::new(usize::from(model.n_slots) + config.engine.queue_max);
    let loaded_at_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let adapter_files = config.engine.adapters.into_iter().map(|adapter| adapter.path).collect();
    let (description, n_params, model_bytes) = parts.computes.facts();
    let common = CommonState {
        model,
        prompts: parts.prompts,
        publisher,
        vocabulary,
        model_path: config.engine.model,
        loaded_at_s,
        pools,
        description,
        n_params,
        model_bytes,
        memory,
    };
    Ok(match parts.computes {
        Computes::Engine(engine) => LoadedModel::Generator(Arc::new(Generator {
            common,
            engine,
            defaults: parts.defaults,
            reasoning_output: config.reasoning_output,
            silence_max: config.http.silence_max,
            adapter_files,
        })),
        Computes::Embedder(embedder) => {
            let norm = config.embedding.map_or(Norm::P(2), |embedding| embedding.norm);
            LoadedModel::Embedder(Arc::new(Embedder { common, handle: embedder, norm }))
        }
    })
}

/// Completes the configuration with the devices of each part.
///
/// Errors: `Engine` if a device or a buffer does not exist.
fn with_devices(config: Config) -> Result<Config, RunError> {
    let engine_config = match embed_config(&config) {
        None => engine::with_devices(config.engine.clone()),
        Some(embed) => embedder::with_devices(embed).map(|embed| embed.engine),
    };
    Ok(Config { engine: engine_config.map_err(RunError::Engine)?, ..config })
}

/// Returns the memory that the worker will take, without loading weights; `None` if llama.cpp cannot determine it.
///
/// Errors: `Backends`; `Model` for a file that is no model; `Engine` for a device that does not exist.
pub async fn project(config: Config) -> Result<Option<MemoryPlan>, RunError> {
    backends::load(&config.backends).await.map_err(RunError::Backends)?;
    let project = move || {
        warmpath_gguf::Model::open(&config.engine.model).map_err(RunError::Model)?;
        let config = with_devices(config)?;
        let available = warmpath_shell::machine::available_bytes().unwrap_or(u64::MAX);
        Ok(match embed_config(&config) {
            None => engine::project_memory(&config.engine, available),
            Some(embed) => embedder::project_memory(&embed, available),
        })
    };
    tokio::task::spawn_blocking(project).await.map_err(RunError::Panicked)?
}

/// Returns the configuration that fits into the memory, as `plan_memory` finds it, and the memory that it will take. An
/// optional projector is left out if the model fits only without it.
///
/// Errors: those of `plan_memory`.
fn fitting(
    config: Config,
    plan_memory: impl Fn(&Config) -> Result<Option<MemoryPlan>, RunError>,
) -> Result<(Config, Option<MemoryPlan>), RunError> {
    let fitted_config = |config: Config, plan: Option<MemoryPlan>| {
        let cells = plan.as_ref().and_then(|plan| plan.fitted_cells);
        let context_tokens_total = cells.unwrap_or(config.engine.context_tokens_total);
        (Config { engine: EngineConfig { context_tokens_total, ..config.engine }, ..config }, plan)
    };
    let too_large = match plan_memory(&config) {
        Ok(plan) => return Ok(fitted_config(config, plan)),
        Err(error) => error,
    };
    let optional = config.engine.projector.as_ref().filter(|projector| projector.need == ProjectorNeed::Optional);
    let Some(ProjectorConfig { path, .. }) = optional.cloned() else { return Err(too_large) };
    let text_only = Config { engine: EngineConfig { projector: None, ..config.engine }, ..config };
    let plan = plan_memory(&text_only)?;
    engine::warn_of_text_only(&path, &warmpath_shell::chain(&too_large));
    Ok(fitted_config(text_only, plan))
}

/// Returns the memory that the worker will take, if llama.cpp and the machine tell it.
///
/// Errors: `Engine` if the machine has too little memory.
fn plan_memory(config: &Config) -> Result<Option<MemoryPlan>, RunError> {
    let Some(available) = warmpath_shell::machine::available_bytes() else { return Ok(None) };
    let plan = match embed_config(config) {
        None => engine::plan_memory(&config.engine, available),
        Some(embed) => embedder::plan_memory(&embed, available),
    };
    plan.map_err(RunError::Engine)
}

/// Returns the settings of the embedder, if the worker embeds or ranks.
fn embed_config(config: &Config) -> Option<EmbedConfig> {
    let EmbeddingConfig { pooling, .. } = config.embedding.as_ref()?;
    Some(EmbedConfig { engine: config.engine.clone(), pooling: *pooling })
}

fn load_parts(config: &Config, mut progress: LoadProgress) -> Result<LoadedParts, RunError> {
    let path = &config.engine.model;
    let PromptConfig { chat_template, tools_first, tool_keys_sorted, chat_template_kwargs } = config.prompt.clone();
    kernels::warn_of_weights(path, &config.engine.placement);
    let defaults = request_defaults(config)?;
    let options = PromptOptions {
        chat_template: chat_template.clone(),
        tools_first,
        tool_keys_sorted,
        chat_template_kwargs: Some(chat_template_kwargs.clone()),
        ..PromptOptions::default()
    };
    let prompts = timed("opening vocabulary and templates", || PromptMaker::open(path, options));
    let prompts = prompts.map_err(RunError::Prompt)?;
    let kwargs = Some(chat_template_kwargs.to_json()).filter(|_| !chat_template_kwargs.variables().is_empty());
    let declaration = timed("declaring the vocabulary", || prompts.declaration(path));
    let changes = VocabularyChanges {
        chat_template: chat_template.as_deref(),
        tools_first,
        tool_keys_sorted,
        chat_template_kwargs: kwargs.as_deref(),
        declaration: declaration.as_deref(),
    };
    let vocabulary = timed("copying the vocabulary", || warmpath_gguf::changed_vocabulary(path, changes));
    let vocabulary = vocabulary.map_err(RunError::Model)?;
    let (sender, updates) = mpsc::unbounded_channel();
    let report = move |share| progress.report(share);
    let computes = match embed_config(config) {
        None => Engine::start(config.engine.clone(), report, sender).map(Computes::Engine),
        Some(embed) => embedder::start(embed, report, sender).map(Computes::Embedder),
    };
    let computes = computes.map_err(RunError::Engine)?;
    let prompts = match projector(&computes) {
        Some(projector) => prompts.with_media(Arc::clone(projector) as Arc<dyn MediaReader>),
        None => prompts,
    };
    Ok(LoadedParts { computes, prompts, vocabulary, defaults, updates })
}

/// Returns the defaults of requests, and logs those of the model's file.
///
/// Errors: `Model`.
fn request_defaults(config: &Config) -> Result<Generation, RunError> {
    let header = warmpath_gguf::check(&config.engine.model).map_err(RunError::Model)?;
    let of_model = ModelDefaults::read(&header, &config.engine.metadata_overrides);
    // An embedding worker has no use for them.
    if config.embedding.is_none() {
        for UnusableDefault { key, reason } in of_model.unusable() {
            warn!(key, reason, "a default of requests in the model's file is not used");
        }
        let in_force = of_model.fields().filter(|(field, _)| !config.generation.has(field));
        let in_force: Vec<_> = in_force.map(|(field, value)| format!("{field} {value}")).collect();
        if !in_force.is_empty() {
            info!(defaults = in_force.join(", "), "the model's file sets defaults of requests");
        }
    }
    Ok(config.generation.over(&of_model))
}

/// Returns the model's projector.
fn projector(computes: &Computes) -> Option<&Arc<Projector>> {
    match computes {
        Computes::Engine(engine) => engine.projector(),
        Computes::Embedder(_) => None,
    }
}

fn declare(config: &Config, parts: &LoadedParts) -> ModelInfo {
    let vocabulary = parts.prompts.vocabulary();
    let trained_tokens = |n_ctx_train: u32| (n_ctx_train > 0).then_some(n_ctx_train);
    let engine = &config.engine;
    let common = ModelInfo {
        names: config.identity.model_names.clone(),
        chat_template_fingerprint: parts.prompts.chat_template_fingerprint(),
        chat_template_kwargs: parts.prompts.chat_template_kwargs().to_json(),
        add_bos: vocabulary.add_bos,
        add_eos: vocabulary.add_eos,
        media: projector(&parts.computes).map(|projector| projector.reading()),
        ..ModelInfo::text(Fingerprint([0; 32]), engine.block_size_tokens, 0, engine.n_slots, vocabulary.n_vocab)
    };
    match &parts.computes {
        Computes::Engine(engine) => {
            let facts = engine.facts();
            ModelInfo {
                fingerprint: facts.model_fingerprint,
                kv_fingerprint: facts.kv_fingerprint,
                block_size_tokens: facts.block_size_tokens,
                context_tokens: facts.context_tokens,
                n_ctx_train: trained_tokens(facts.n_ctx_train),
                n_slots: facts.n_slots,
                memory: facts.memory,
                n_vocab: facts.n_vocab,
                capabilities: capabilities(&parts.prompts),
                adapters: facts.adapters.clone(),
                adapter_in_force: config.adapter_in_force,
                kv_transfer: facts.exchange.filter(|_| exchanges_state(&config.http)).map(|exchange| KvTransfer {
                    layout: exchange.identity.fingerprint(),
                    bytes_per_token: exchange.token_bytes,
                }),
                ..common
            }
        }
        // No state is stored, so there is no KV layout.
        Computes::Embedder(embedder) => {
            let facts = embedder.facts();
            let is_rank = facts.embedding.pooling == Pooling::Rank;
            ModelInfo {
                fingerprint: facts.model_fingerprint,
                context_tokens: facts.text_tokens_max,
                n_ctx_train: trained_tokens(facts.n_ctx_train),
                n_vocab: facts.n_vocab,
                capabilities: vec![if is_rank { Capability::Rerank } else { Capability::Embedding }],
                embedding: Some(facts.embedding),
                ..common
            }
        }
    }
}

/// Returns whether the worker exchanges KV state with workers that a router names.
///
/// Without a token it only accepts hints to its own machine, which is useful only if the whole fleet is on that
/// machine.
fn exchanges_state(http: &HttpConfig) -> bool {
    http.kv_transfer.is_some() && (http.token_file.is_some() || http.listen.ip().is_loopback())
}

/// Logs a warning if the configured context is larger than any prompt can use.
fn warn_of_context(ctx_size: u32, model: &ModelInfo) {
    // Each text to embed may use the whole context.
    let n_slots = if model.embedding.is_some() { 1 } else { model.n_slots };
    let slot = SlotContext { n_slots, ..SlotContext::of(model) };
    if let Some(useful) = slot.useful_ctx_size(ctx_size) {
        warn!(
            ctx_size,
            slots = n_slots,
            trained_tokens = model.n_ctx_train,
            slot_tokens = model.context_tokens,
            "--ctx-size is larger than useful: the model was trained for {} tokens, and no slot exceeds that. \
             --ctx-size {useful} does the same; a longer context needs a model file with rope scaling",
            model.n_ctx_train.unwrap_or_default()
        );
    }
}

/// Returns the capabilities of a generating model, by what its chat template renders.
fn capabilities(prompts: &PromptMaker) -> Vec<Capability> {
    let chat = |tools: Option<Vec<serde_json::Value>>| {
        let message = serde_json::json!({"messages": [{"role": "user", "content": "question"}], "tools": tools});
        serde_json::from_value(message).ok().and_then(|chat: ChatPrompt| prompts.render(&chat).ok())
    };
    let tool = serde_json::json!({"type": "function", "function": {
        "name": TOOL_PROBE, "description": "a probe", "parameters": {"type": "object", "properties": {}},
    }});
    let mut capabilities = vec![Capability::Completion];
    capabilities.extend(chat(None).map(|_| Capability::Chat));
    capabilities.extend(chat(Some(vec![tool])).filter(|text| text.contains(TOOL_PROBE)).map(|_| Capability::Tools));
    capabilities
}

/// Reporter of the loaded share: over HTTP, and on the terminal as a bar or as log lines.
struct LoadProgress {
    phase: Arc<watch::Sender<Phase>>,
    stop: Arc<AtomicBool>,
    bar: Option<ProgressBar>,
    percent: u8,
    /// Time of the last log line, or of the start.
    logged: Instant,
}

/// Shortest time between two log lines about the loaded share. Source: own choice: a small model needs none.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(3);

impl LoadProgress {
    fn new(phase: Arc<watch::Sender<Phase>>, stop: Arc<AtomicBool>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("loading {wide_bar} {percent} % {elapsed}");
            ProgressBar::new(100).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { phase, stop, bar, percent: 0, logged: Instant::now() }
    }

    /// Reports the loaded share, 0 to 1; returns whether to continue.
    fn report(&mut self, share: f32) -> bool {
        // A float cast saturates, so any share gives a percentage.
        let percent = ((share * 100.0) as u8).min(100);
        if percent != self.percent {
            self.phase.send_replace(Phase::Loading { percent });
            match &self.bar {
                Some(bar) => bar.set_position(u64::from(percent)),
                None if self.logged.elapsed() >= PROGRESS_INTERVAL => {
                    info!(percent, "loading");
                    self.logged = Instant::now();
                }
                None => {}
            }
            self.percent = percent;
        }
        !self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for LoadProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::flags::Flags;
    use crate::config::resolve;
    use crate::engine::StartError;

    /// Returns a configuration with a projector.
    fn config(need: ProjectorNeed) -> Config {
        let arguments = ["warmpath-worker", "--model", "m.gguf"].map(Into::into);
        let flags = Flags::from_command_line(arguments).expect("the flags parse").run().expect("a run");
        let mut config = resolve(flags).expect("the flags fit together");
        let path = PathBuf::from("mmproj.gguf");
        config.engine.projector =
            Some(ProjectorConfig { path, need, offload: false, min_tokens: None, max_tokens: None });
        config
    }

    fn plan(cells: u32) -> MemoryPlan {
        let memory = MemoryUse {
            mapped: 0,
            copied: 0,
            context: 0,
            compute: 0,
            stored: 0,
            draft_model: 0,
            projector: 0,
            available: 0,
        };
        MemoryPlan { memory, fitted_cells: Some(cells), devices: Vec::new() }
    }

    fn too_little() -> RunError {
        RunError::Engine(StartError::Config { reason: "too little memory".to_owned() })
    }

    #[test]
    fn an_optional_projector_is_left_out_if_the_model_fits_only_without_it() {
        let without = |config: &Config| match &config.engine.projector {
            Some(_) => Err(too_little()),
            None => Ok(Some(plan(512))),
        };
        let (text_only, _) = fitting(config(ProjectorNeed::Optional), without).expect("the model fits");
        assert_eq!((text_only.engine.projector, text_only.engine.context_tokens_total), (None, 512));
        fitting(config(ProjectorNeed::Required), without).expect_err("the projector is required");
        fitting(config(ProjectorNeed::Optional), |_| Err(too_little())).expect_err("nothing fits");
        let (whole, _) = fitting(config(ProjectorNeed::Optional), |_| Ok(None)).expect("both fit");
        assert!(whole.engine.projector.is_some());
    }
}
