//! The worker's configuration: flags, checked against each other and completed from the machine.
//!
//! `resolve` is the only path from flags to the configuration; each part of the worker receives its own struct. Not
//! here: the flags (`config::flags`), values that depend on the loaded model (the engine's facts).

mod adapters;
pub mod chat;
mod embedding;
pub mod flags;
pub mod generation;
pub mod kv_transfer;
pub mod llama_server;
pub mod media;
pub mod placement;
pub mod rope;
pub mod source;
pub mod speculation;
mod store;
mod values;

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use warmpath_common::lora::Applied;
use warmpath_common::model::Pooling;
use warmpath_common::names::is_pattern;
use warmpath_prompt::TemplateKwargs;
use warmpath_shell::hosts::{AllowedHosts, HostError};
use warmpath_shell::image_urls::ImageHost;
use warmpath_shell::tls::ServerFiles;
use warmpath_shell::trace::export::TraceConfig;

use crate::backends::BackendConfig;
use crate::download::ModelSource;
use crate::embedder::vector::Norm;
use crate::engine::{
    AtContextEnd, CacheType, EngineConfig, Fit, IdleState, PrefixCache, SLOT_CELLS_STEP,
    SLOT_CONTEXT_TOKENS_DEFAULT_MAX, SelfTest, ShiftConfig, Switch,
};
use crate::request;
use crate::tools::ReasoningOutput;
use flags::Flags;
use generation::GivenDefaults;
use kv_transfer::KvTransferConfig;
use media::MediaConfig;

/// Longest time that a flag may set. Source: a day, longer than any request or drain takes.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest time for a request's head, including the idle time before it.
///
/// Source: longer than the 90 s for which routers keep an idle connection, so that the worker does not close one while
/// a request is being sent.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(120);

/// Longest time for a whole request body.
///
/// Source: the router's default for its clients.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// The whole configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Settings of HTTP.
    pub http: HttpConfig,
    /// Origin of the model's file.
    pub source: ModelSource,
    /// Settings of images and audio.
    pub media: MediaConfig,
    /// Settings of llama.cpp's backends.
    pub backends: BackendConfig,
    /// Settings of the engine, without its projector. An embedding worker uses them, too, except those of generation.
    pub engine: EngineConfig,
    /// Adapter of requests that name none.
    pub adapter_in_force: Option<Applied>,
    /// Settings of embeddings; `None` if the worker generates text.
    pub embedding: Option<EmbeddingConfig>,
    /// Identity of the worker.
    pub identity: IdentityConfig,
    /// Settings of the prompt maker.
    pub prompt: PromptConfig,
    /// Defaults of requests that flags set; the model's file may set others.
    pub generation: GivenDefaults,
    /// Field that gets reasoning unless a request says so.
    pub reasoning_output: ReasoningOutput,
    /// Destination of traces; `None` if tracing is off.
    pub trace: Option<TraceConfig>,
    /// Time for running responses to finish after the signal to stop.
    pub drain_timeout: Duration,
}

/// Settings of HTTP.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Address to bind.
    pub listen: std::net::SocketAddr,
    /// Address for probes and scrapers without TLS and tokens; `None` if only `listen` serves them.
    pub admin_listen: Option<std::net::SocketAddr>,
    /// File of the required tokens; `None` if no token is required.
    pub token_file: Option<PathBuf>,
    /// TLS files; `None` for plain HTTP.
    pub tls: Option<ServerFiles>,
    /// Settings of KV transfers; `None` if the worker exchanges no state.
    pub kv_transfer: Option<KvTransferConfig>,
    /// Most connections of clients at a time.
    pub connections_max: usize,
    /// Host names by which clients may address this worker.
    pub allowed_hosts: AllowedHosts,
    /// Host names by which probes and scrapers may address the admin listener.
    pub admin_allowed_hosts: AllowedHosts,
    /// Longest request body. Units: bytes.
    pub body_bytes_max: usize,
    /// Hosts from which images are fetched.
    pub image_url_hosts: Vec<ImageHost>,
    /// Folder for saved slots; `None` if clients may not save them.
    pub slot_save_path: Option<PathBuf>,
    /// Longest silence of a stream before its client gets a keep-alive comment; `None` for no limit.
    ///
    /// Source of the default: common proxies close a connection after a minute of silence; 15 s are a quarter of it.
    pub silence_max: Option<Duration>,
    /// Longest time in which a client must read pending data of its response.
    ///
    /// Source of the default: longer than network delays, and shorter than other requests should wait for the
    /// response's slot.
    pub idle_timeout: Duration,
}

/// Identity of the worker. Absent parts are derived from the machine once the port is known.
#[derive(Debug, Clone)]
pub struct IdentityConfig {
    /// Name in headers.
    pub name: Option<String>,
    /// Names of the model, at least one.
    pub model_names: Vec<String>,
}

/// Settings of the prompt maker.
#[derive(Debug, Clone, Default)]
pub struct PromptConfig {
    /// Chat template that replaces the model's.
    pub chat_template: Option<String>,
    /// Whether tools are rendered in front of the system text.
    pub tools_first: bool,
    /// Whether the keys of tools are rendered in one order.
    pub tool_keys_sorted: bool,
    /// Default variables of the chat template.
    pub chat_template_kwargs: TemplateKwargs,
}

/// Settings of embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingConfig {
    /// Pooling of a text's tokens; `None` for the one in the model's file.
    pub pooling: Option<Pooling>,
    /// Default norm of vectors.
    pub norm: Norm,
}

/// Error in a flag's value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value is outside its range.
    #[error("--{flag}: {reason}")]
    Range {
        /// Long form of the flag.
        flag: Cow<'static, str>,
        /// Requirement that the value does not meet.
        reason: String,
    },
    /// The chat template cannot be read.
    #[error("--chat-template-file: cannot read {}", path.display())]
    ChatTemplate {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
}

/// Returns the configuration that `flags` describe on this machine.
///
/// Errors: [`ConfigError`], naming the flag. Reads: the chat template's file, the existence of the folder for slots,
/// the number of processors, the name of the cache folder, the environment variables and the token file of Hugging
/// Face's clients.
pub fn resolve(flags: Flags) -> Result<Config, ConfigError> {
    check_ranges(&flags)?;
    let variables = |name: &str| std::env::var_os(name);
    let source =
        source::source(&flags.source, media::of_repository(&flags.media, flags.projector_obstacle()), &variables)?;
    Ok(Config {
        http: http_config(&flags)?,
        media: media::media_config(&flags.media, &flags.source, &variables)?,
        backends: backends(&flags),
        engine: engine_config(&flags, &source)?,
        adapter_in_force: adapters::in_force(&flags, &adapters::files(&flags)?)?,
        embedding: embedding::embedding_config(&flags)?,
        prompt: PromptConfig {
            chat_template: chat_template(&flags)?,
            tools_first: flags.tools_first,
            tool_keys_sorted: flags.tool_keys_sorted,
            chat_template_kwargs: chat::template_kwargs(&flags.chat)?,
        },
        reasoning_output: flags.chat.reasoning_format,
        generation: GivenDefaults::new(&flags.generation)?,
        trace: flags.trace.config(),
        drain_timeout: timeout("drain-timeout", flags.drain_timeout)?,
        identity: identity_config(flags, &source)?,
        source,
    })
}

/// Returns the settings of llama.cpp's backends.
pub fn backends(flags: &Flags) -> BackendConfig {
    BackendConfig { folder: flags.backends_dir.clone(), cpu_variant: flags.cpu_variant.clone() }
}

fn check_ranges(flags: &Flags) -> Result<(), ConfigError> {
    let at_least_one = [
        ("slots", u64::from(flags.slots.unwrap_or(1))),
        ("block-size", u64::from(flags.block_size)),
        ("batch-size", u64::from(flags.batch_size)),
        ("ubatch-size", u64::from(flags.ubatch_size)),
        ("threads", u64::from(flags.threads.unwrap_or(1))),
        ("threads-batch", u64::from(flags.threads_batch.unwrap_or(1))),
        ("spec-draft-threads", u64::from(flags.speculation.spec_draft_threads.unwrap_or(1))),
        ("spec-draft-threads-batch", u64::from(flags.speculation.spec_draft_threads_batch.unwrap_or(1))),
        ("body-max", flags.body_max as u64),
    ];
    match at_least_one.into_iter().find(|(_, value)| *value == 0) {
        Some((flag, _)) => Err(ConfigError::Range { flag: flag.into(), reason: "must be at least 1".to_owned() }),
        None => Ok(()),
    }
}

/// Returns the cells of all slots together; 0 for those of the trained context. Slots that are limited cannot use more.
fn context_tokens_total(flags: &Flags, n_slots: u16) -> u32 {
    let usable = flags.slot_limit().map(|limit| limit.saturating_mul(n_slots.into()));
    match (flags.ctx_size, usable) {
        (Some(0), _) | (None, None) => 0,
        (Some(given), usable) => usable.map_or(given, |usable| given.min(usable)),
        (None, Some(usable)) => usable,
    }
}

/// Refuses a context in which a slot has less than llama.cpp's minimum, because llama.cpp would enlarge it beyond the
/// configured memory.
fn check_context(flags: &Flags, n_slots: u16) -> Result<(), ConfigError> {
    if flags.slot_limit().is_some_and(|limit| limit < SLOT_CELLS_STEP) {
        let reason = format!("must be 0, or at least {SLOT_CELLS_STEP} tokens");
        return Err(ConfigError::Range { flag: "kv-unified-per-slot".into(), reason });
    }
    let total = flags.ctx_size.unwrap_or(0);
    let each = total / u32::from(n_slots).max(1);
    if total == 0 || each >= SLOT_CELLS_STEP || flags.embeds() {
        return Ok(());
    }
    let cells_min = SLOT_CELLS_STEP * u32::from(n_slots);
    let reason = format!(
        "{total} tokens for {n_slots} slots are {each} per slot, and the minimum is {SLOT_CELLS_STEP}: set \
         {cells_min} or more, or fewer --slots"
    );
    Err(ConfigError::Range { flag: "ctx-size".into(), reason })
}

fn http_config(flags: &Flags) -> Result<HttpConfig, ConfigError> {
    let slot_save_path = flags.slot_save_path.clone();
    if slot_save_path.as_ref().is_some_and(|path| !path.is_dir()) {
        return Err(ConfigError::Range {
            flag: "slot-save-path".into(),
            reason: "must be an existing folder".to_owned(),
        });
    }
    let silence_max = request::silence_max(flags.sse_ping_interval)
        .map_err(|reason| ConfigError::Range { flag: "sse-ping-interval".into(), reason })?;
    let host = |error: HostError| ConfigError::Range { flag: "allowed-host".into(), reason: error.to_string() };
    Ok(HttpConfig {
        listen: flags.listen,
        admin_listen: flags.admin_listen,
        token_file: flags.fleet_token_file.clone(),
        tls: flags.tls.clone().files(),
        kv_transfer: flags.kv_transfer.config()?,
        connections_max: flags.listener.connections_max(),
        allowed_hosts: flags.listener.allowed_hosts(flags.listen).map_err(host)?,
        admin_allowed_hosts: flags.listener.admin_allowed_hosts().map_err(host)?,
        body_bytes_max: flags.body_max,
        image_url_hosts: flags.media.urls.image_url_hosts.clone(),
        slot_save_path,
        silence_max,
        idle_timeout: timeout("idle-timeout", flags.idle_timeout)?,
    })
}

fn engine_config(flags: &Flags, source: &ModelSource) -> Result<EngineConfig, ConfigError> {
    let threads = flags.threads.unwrap_or_else(|| {
        let n = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        u16::try_from(n).unwrap_or(u16::MAX)
    });
    let n_slots = flags.n_slots();
    check_context(flags, n_slots)?;
    let slot_tokens_default = flags.ctx_size.map_or(SLOT_CONTEXT_TOKENS_DEFAULT_MAX, |_| u32::MAX);
    Ok(EngineConfig {
        // The path of a model that is downloaded is not known yet.
        model: source.local().cloned().unwrap_or_default(),
        n_slots,
        context_tokens_total: context_tokens_total(flags, n_slots),
        slot_tokens_max: flags.slot_limit().unwrap_or(slot_tokens_default),
        slot_limit: flags.slot_limit(),
        fit: flags
            .fit
            .then(|| Fit { spare_bytes: flags.fit_target.saturating_mul(1 << 20), slot_tokens_min: flags.fit_ctx }),
        threads,
        threads_batch: flags.threads_batch.unwrap_or(threads),
        placement: placement::placement(&flags.placement)?,
        rope: rope::settings(&flags.rope)?,
        metadata_overrides: rope::metadata_overrides(&flags.rope)?,
        batch_tokens: flags.batch_size,
        ubatch_tokens: flags.ubatch_size.min(flags.batch_size),
        cache_type_k: cache_type(flags.cache_type_k),
        cache_type_v: cache_type(flags.cache_type_v),
        flash_attn: switch(flags.flash_attn),
        kv_unified: switch(flags.kv_unified),
        self_test: SelfTest::Run { cache: cache_folder() },
        queue_max: flags.queue_max,
        block_size_tokens: flags.block_size,
        prefix_cache: if flags.disable_prefix_cache { PrefixCache::Disabled } else { PrefixCache::Enabled },
        store: store::store_config(flags)?,
        prefix_tokens_max: flags.prefix_cache_max_tokens,
        idle_state: if flags.slot_save_path.is_some() { IdleState::Slot } else { IdleState::Store },
        shifts: shift_config(flags),
        adapters: adapters::files(flags)?,
        speculation: speculation::config(&flags.speculation)?,
        draft_model: speculation::draft_model(&flags.speculation, threads, flags.threads_batch),
        ..EngineConfig::default()
    })
}

fn shift_config(flags: &Flags) -> ShiftConfig {
    let at_context_end = if flags.context_shift { AtContextEnd::Shift } else { AtContextEnd::Stop };
    ShiftConfig { cache_reuse_tokens: flags.cache_reuse, at_context_end }
}

/// Returns the folder for this program's cached data, which may be deleted.
fn cache_folder() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    folder.map(|folder| folder.join("warmpath"))
}

fn switch(switch: values::Switch) -> Switch {
    match switch {
        values::Switch::Auto => Switch::Auto,
        values::Switch::On => Switch::On,
        values::Switch::Off => Switch::Off,
    }
}

fn cache_type(cache_type: values::CacheType) -> CacheType {
    match cache_type {
        values::CacheType::Auto => CacheType::Auto,
        values::CacheType::F32 => CacheType::F32,
        values::CacheType::F16 => CacheType::F16,
        values::CacheType::Bf16 => CacheType::Bf16,
        values::CacheType::Q8_0 => CacheType::Q8_0,
        values::CacheType::Q5_1 => CacheType::Q5_1,
        values::CacheType::Q5_0 => CacheType::Q5_0,
        values::CacheType::Iq4Nl => CacheType::Iq4Nl,
        values::CacheType::Q4_1 => CacheType::Q4_1,
        values::CacheType::Q4_0 => CacheType::Q4_0,
    }
}

fn chat_template(flags: &Flags) -> Result<Option<String>, ConfigError> {
    if let Some(template_name) = &flags.chat_template {
        return named_chat_template(template_name).map(Some);
    }
    let Some(path) = &flags.chat_template_file else { return Ok(None) };
    let file_text = std::fs::read_to_string(path);
    let template = file_text.map_err(|source| ConfigError::ChatTemplate { path: path.clone(), source })?;
    if template.contains('\0') {
        return Err(ConfigError::Range {
            flag: "chat-template-file".into(),
            reason: "the file contains a NUL".to_owned(),
        });
    }
    Ok(Some(template))
}

/// Returns a built-in template by its name, or the given text as a template.
fn named_chat_template(name_or_source: &str) -> Result<String, ConfigError> {
    if let Some(source) = warmpath_prompt::builtin_chat_template(name_or_source) {
        return Ok(source.to_owned());
    }
    // A text without a Jinja tag cannot render messages: it is a wrong name, or the name of a file.
    if name_or_source.contains("{{") || name_or_source.contains("{%") {
        return Ok(name_or_source.to_owned());
    }
    let names: Vec<_> = warmpath_prompt::builtin_chat_template_names().collect();
    let reason = format!("{name_or_source} is neither Jinja nor a built-in template; those are {}", names.join(", "));
    Err(ConfigError::Range { flag: "chat-template".into(), reason })
}

fn timeout(flag: &'static str, seconds: f64) -> Result<Duration, ConfigError> {
    let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| *timeout <= TIMEOUT_MAX);
    timeout.ok_or_else(|| ConfigError::Range {
        flag: flag.into(),
        reason: format!("must be 0 to {} seconds", TIMEOUT_MAX.as_secs()),
    })
}

fn identity_config(flags: Flags, source: &ModelSource) -> Result<IdentityConfig, ConfigError> {
    let visible = |name: &String| !name.is_empty() && name.len() <= 128 && name.bytes().all(|b| b.is_ascii_graphic());
    if flags.name.as_ref().is_some_and(|name| !visible(name)) {
        return Err(ConfigError::Range {
            flag: "name".into(),
            reason: "must be 1 to 128 visible ASCII characters".to_owned(),
        });
    }
    let mut model_names: Vec<String> = flags.aliases.into_iter().filter(|alias| !alias.is_empty()).collect();
    // Responses contain the first name, so it must not be a pattern.
    if model_names.first().is_none_or(|name| is_pattern(name)) {
        match model_names.iter().position(|name| !is_pattern(name)) {
            Some(place) => model_names.swap(0, place),
            None => model_names.insert(0, source.model_name()),
        }
    }
    Ok(IdentityConfig { name: flags.name, model_names })
}

#[cfg(test)]
mod tests;
