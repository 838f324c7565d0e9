//! The command line of `warmpath-worker`, with llama-server's names for the flags that both have.
//!
//! Not here: defaults that depend on the machine, and checks of combined values (`resolve` in `config`).

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory as _, Parser};
use warmpath_common::block_hash::BLOCK_SIZE_TOKENS_DEFAULT;
use warmpath_shell::command_line::{self, ConfigFlags, ParsedCommandLine};
use warmpath_shell::listen::ListenFlags;
use warmpath_shell::log::LogFormat;
use warmpath_shell::tls::TlsFlags;
use warmpath_shell::trace::export::TraceFlags;

use super::chat::ChatFlags;
use super::generation::GenerationFlags;
use super::kv_transfer::KvTransferFlags;
use super::llama_server::{self, IgnoredFlag, NoTranslation, Translated};
use super::media::MediaFlags;
use super::placement::PlacementFlags;
use super::rope::RopeFlags;
use super::source::SourceFlags;
use super::speculation::SpeculationFlags;
use super::values::{CacheType, Pooling, Switch};
use crate::embedder::TEXTS_PER_BATCH_DEFAULT;
use crate::model_files::FilesAction;
use crate::version;

/// Default number of sequences that run at the same time. Source: llama-server.
const SLOTS_DEFAULT: u16 = 4;

/// Flags of the command line, unchecked.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "warmpath-worker",
    version,
    long_version = version::long(),
    about = "Serves one GGUF model with llama.cpp and tells routers what it has cached"
)]
pub struct Flags {
    /// Origin of the model.
    #[command(flatten)]
    pub source: SourceFlags,

    /// Name under which clients may request the model; may be repeated. `*` in it matches any text, as in `claude-*`;
    /// `*` alone matches every name. The default is the value of --hf-repo, or else the file's name without the number
    /// of a split model.
    #[arg(short, long = "alias", env = "WARMPATH_ALIAS", value_name = "NAME", value_delimiter = ',')]
    pub aliases: Vec<String>,

    /// Address to serve HTTP on; port 0 selects a free port.
    #[arg(long, env = "WARMPATH_LISTEN", value_name = "ADDR:PORT", default_value = "127.0.0.1:8081")]
    pub listen: SocketAddr,

    /// Additional address that serves /livez, /readyz, /health and /metrics without TLS and tokens, for probes and
    /// scrapers.
    #[arg(long, env = "WARMPATH_ADMIN_LISTEN", value_name = "ADDR:PORT")]
    pub admin_listen: Option<SocketAddr>,

    /// Name of this worker in headers and logs. The default is its host name and port.
    #[arg(long, env = "WARMPATH_NAME")]
    pub name: Option<String>,

    /// Number of sequences that run at the same time (-np) [default: 4; with --embedding 32 texts per batch].
    #[arg(long, visible_alias = "parallel", env = "WARMPATH_SLOTS")]
    pub slots: Option<u16>,

    /// Context of all slots together, in tokens. Unlike in llama-server it is divided equally, so a prompt and its
    /// response have --ctx-size / --slots tokens. 0 means the model's trained context for each slot, reduced to what
    /// fits (--fit) [default: the same, but at most 8192 per slot]. With --embedding it is the longest text, by default
    /// at most 2048.
    #[arg(short, long, env = "WARMPATH_CTX_SIZE", value_name = "TOKENS")]
    pub ctx_size: Option<u32>,

    /// Longest sequence of a slot, in tokens; 0 is no limit. Without --ctx-size the context of all slots together is
    /// this times --slots. Unlike in llama-server, a slot has at most its share of --ctx-size.
    #[arg(long, env = "WARMPATH_KV_UNIFIED_PER_SLOT", value_name = "TOKENS")]
    #[arg(conflicts_with_all = ["embedding", "rerank"])]
    pub kv_unified_per_slot: Option<u32>,

    /// Whether a default context that does not fit into memory is reduced (-fit).
    #[arg(long, env = "WARMPATH_FIT", value_name = "WHEN", default_value = "on", action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new())]
    pub fit: bool,

    /// Memory that a reduced context leaves free (-fitt).
    #[arg(long, env = "WARMPATH_FIT_TARGET", value_name = "MIB", default_value_t = 1024)]
    pub fit_target: u64,

    /// Minimum to which a slot's context is reduced (-fitc).
    #[arg(long, env = "WARMPATH_FIT_CTX", value_name = "TOKENS", default_value_t = 4096)]
    pub fit_ctx: u32,

    /// Threads for generating, at most: fewer compute while other programs take the processors. The default is the
    /// number of processors, or what a container's limit leaves of them.
    #[arg(short, long, env = "WARMPATH_THREADS", value_name = "N")]
    pub threads: Option<u16>,

    /// Threads for processing prompts (-tb), at most. The default is --threads.
    #[arg(long, env = "WARMPATH_THREADS_BATCH", value_name = "N")]
    pub threads_batch: Option<u16>,

    /// Folder of llama.cpp's backends, for builds that load them at start-up, as in our container images [default:
    /// ../lib/warmpath beside the program].
    #[arg(long, env = "WARMPATH_BACKENDS_DIR", value_name = "DIR")]
    pub backends_dir: Option<PathBuf>,

    /// CPU kernels of such a build, for example haswell. The default is the newest one that this processor supports.
    #[arg(long, env = "WARMPATH_CPU_VARIANT", value_name = "NAME")]
    pub cpu_variant: Option<String>,

    /// Flags of devices and of reading the model's file.
    #[command(flatten)]
    pub placement: PlacementFlags,

    /// Flags of rotary position encoding, and of the model's metadata.
    #[command(flatten)]
    pub rope: RopeFlags,

    /// Maximum number of prompt tokens that are planned together; they are computed in steps of --ubatch-size.
    #[arg(short, long, env = "WARMPATH_BATCH_SIZE", value_name = "TOKENS", default_value_t = 2048)]
    pub batch_size: u32,

    /// Maximum number of tokens per step (-ub); a running stream waits for at most one step of prompt tokens.
    #[arg(long, env = "WARMPATH_UBATCH_SIZE", value_name = "TOKENS", default_value_t = 512)]
    pub ubatch_size: u32,

    /// Type of the keys in the KV cache (-ctk). auto is f16, or bf16 if the self-test finds it faster on this CPU; bf16
    /// is less precise.
    #[arg(long, env = "WARMPATH_CACHE_TYPE_K", value_name = "TYPE", default_value = "f16")]
    pub cache_type_k: CacheType,

    /// Type of the values in the KV cache (-ctv); auto as for the keys.
    #[arg(long, env = "WARMPATH_CACHE_TYPE_V", value_name = "TYPE", default_value = "f16")]
    pub cache_type_v: CacheType,

    /// Tokens per block of the hash chain.
    #[arg(long, env = "WARMPATH_BLOCK_SIZE", value_name = "TOKENS", default_value_t = BLOCK_SIZE_TOKENS_DEFAULT)]
    pub block_size: u32,

    /// Memory for stored KV state besides that of the slots; 0 stores none [default: a quarter of the available
    /// memory].
    #[arg(long, env = "WARMPATH_CACHE_RAM", value_name = "MIB")]
    pub cache_ram: Option<u64>,

    /// Folder for KV state that survives restarts. Each worker needs its own folder.
    #[arg(long, env = "WARMPATH_CACHE_DISK", value_name = "DIR")]
    pub cache_disk: Option<PathBuf>,

    /// Maximum disk space for KV state.
    #[arg(long, env = "WARMPATH_CACHE_DISK_SIZE", value_name = "MIB", default_value_t = 10240)]
    pub cache_disk_size: u64,

    /// Maximum number of tokens that idle slots keep in the KV buffer [default: half of its cells if slots share one;
    /// no limit with --slot-save-path].
    #[arg(long, env = "WARMPATH_PREFIX_CACHE_MAX_TOKENS", value_name = "TOKENS")]
    pub prefix_cache_max_tokens: Option<u64>,

    /// Minimum length of a run of tokens whose state is moved to another position when a prompt changes before it; 0
    /// moves none. Moved state is approximate, and so are the responses that use it. Without a number 32.
    #[arg(long, env = "WARMPATH_CACHE_REUSE", value_name = "TOKENS", default_value_t = 0)]
    #[arg(num_args = 0..=1, default_missing_value = "32")]
    pub cache_reuse: u32,

    /// Drop the oldest tokens when a response fills its context, and continue.
    #[arg(long, env = "WARMPATH_CONTEXT_SHIFT", overrides_with = "no_context_shift")]
    pub context_shift: bool,

    /// End a response that fills its context. This is the default; the flag exists because llama-server has it.
    #[arg(long, overrides_with = "context_shift")]
    pub no_context_shift: bool,

    /// Flags of speculative decoding.
    #[command(flatten)]
    pub speculation: SpeculationFlags,

    /// Compute every prompt completely, without cached state.
    #[arg(long, env = "WARMPATH_DISABLE_PREFIX_CACHE")]
    pub disable_prefix_cache: bool,

    /// Flash attention (-fa); auto selects the faster setting by a self-test at start-up.
    #[arg(long, env = "WARMPATH_FLASH_ATTN", value_name = "WHEN", default_value = "auto")]
    #[arg(num_args = 0..=1, default_missing_value = "on")]
    pub flash_attn: Switch,

    /// One KV buffer for all slots (-kvu); auto selects the faster setting by a self-test at start-up.
    #[arg(long, env = "WARMPATH_KV_UNIFIED", value_name = "WHEN", default_value = "auto")]
    #[arg(num_args = 0..=1, default_missing_value = "on")]
    pub kv_unified: Switch,

    /// Chat template that replaces the model's: the name of one of llama.cpp's built-in templates, or Jinja. The
    /// default for a model without a template is chatml.
    #[arg(long, env = "WARMPATH_CHAT_TEMPLATE", value_name = "NAME|JINJA")]
    pub chat_template: Option<String>,

    /// File with a chat template that replaces the model's.
    #[arg(long, env = "WARMPATH_CHAT_TEMPLATE_FILE", value_name = "FILE", conflicts_with = "chat_template")]
    pub chat_template_file: Option<PathBuf>,

    /// Render tools before the system text if the chat template renders them after it, so that chats with the same
    /// tools and different system texts share the tools' KV state. This changes the prompt. All workers of a model need
    /// the same setting. The worker does not start if the template does not allow it.
    #[arg(long, env = "WARMPATH_TOOLS_FIRST", conflicts_with_all = ["embedding", "rerank"])]
    pub tools_first: bool,

    /// Render the keys of tools in one order, so that a client that sends equal tools with their keys in another order
    /// keeps its prefix. The order of the tools stays the client's. This changes the prompt. All workers of a model
    /// need the same setting.
    #[arg(long, env = "WARMPATH_TOOL_KEYS_SORTED", conflicts_with_all = ["embedding", "rerank"])]
    pub tool_keys_sorted: bool,

    /// Folder in which clients may save the state of slots, so idle slots keep their state. Without it, saving is
    /// refused.
    #[arg(long, env = "WARMPATH_SLOT_SAVE_PATH", value_name = "DIR")]
    pub slot_save_path: Option<PathBuf>,

    /// Compute embeddings of texts instead of generating, with an embedding model.
    #[arg(long, visible_alias = "embeddings", env = "WARMPATH_EMBEDDING")]
    pub embedding: bool,

    /// Score documents for queries instead of generating: short for --embedding with --pooling rank.
    #[arg(long, visible_alias = "reranking", env = "WARMPATH_RERANK")]
    pub rerank: bool,

    /// Pooling of a text's tokens, with --embedding [default: the one in the model's file].
    #[arg(long, env = "WARMPATH_POOLING", value_name = "TYPE")]
    pub pooling: Option<Pooling>,

    /// Norm by which vectors are divided: -1 for none, 0 for the largest absolute value (scaled to 32760), p for the
    /// p-norm. With 2 vectors have length 1.
    #[arg(long, env = "WARMPATH_EMBD_NORMALIZE", value_name = "N", default_value_t = 2, allow_negative_numbers = true)]
    pub embd_normalize: i64,

    /// LoRA adapter to load, a GGUF file; may be repeated. Clients request it as MODEL:NAME, where NAME is the file's
    /// name.
    #[arg(long, env = "WARMPATH_LORA", value_name = "FILE", value_delimiter = ',')]
    pub lora: Vec<PathBuf>,

    /// LoRA adapter to load, with its scale; may be repeated.
    #[arg(long, env = "WARMPATH_LORA_SCALED", value_name = "FILE:SCALE", value_delimiter = ',')]
    pub lora_scaled: Vec<String>,

    /// Apply no adapter to requests that name none. Without this flag, a single adapter is applied to them.
    #[arg(long, env = "WARMPATH_LORA_INIT_WITHOUT_APPLY")]
    pub lora_init_without_apply: bool,

    /// Flags of images and audio.
    #[command(flatten)]
    pub media: MediaFlags,

    /// Maximum number of requests that wait for a slot; further ones are refused.
    #[arg(long, env = "WARMPATH_QUEUE_MAX", value_name = "N", default_value_t = 128)]
    pub queue_max: usize,

    /// Seconds of silence after which a stream sends a keep-alive comment; -1 for never.
    #[arg(long, env = "WARMPATH_SSE_PING_INTERVAL", value_name = "SECONDS", default_value_t = 5)]
    #[arg(allow_negative_numbers = true)]
    pub sse_ping_interval: i64,

    /// Seconds in which a client must read pending data of its response; otherwise the response is cancelled.
    #[arg(long, env = "WARMPATH_IDLE_TIMEOUT", value_name = "SECONDS", default_value_t = 60.0)]
    pub idle_timeout: f64,

    /// Longest request body.
    #[arg(long, env = "WARMPATH_BODY_MAX", value_name = "BYTES", default_value_t = 16 << 20)]
    pub body_max: usize,

    /// File of accepted tokens, one per line, of at least 32 characters. Every request must present one, except those
    /// for health and metrics. Read again when it changes. Routers have the same flag.
    #[arg(long, visible_alias = "api-key-file", env = "WARMPATH_FLEET_TOKEN_FILE", value_name = "FILE")]
    pub fleet_token_file: Option<PathBuf>,

    /// Flags of KV state from and for other workers.
    #[command(flatten)]
    pub kv_transfer: KvTransferFlags,

    /// Flags of TLS with routers and other clients.
    #[command(flatten)]
    pub tls: TlsFlags,

    /// Flags of the listener for clients.
    #[command(flatten)]
    pub listener: ListenFlags,

    /// Seconds for running responses to finish after SIGTERM.
    #[arg(long, env = "WARMPATH_DRAIN_TIMEOUT", value_name = "SECONDS", default_value_t = 30.0)]
    pub drain_timeout: f64,

    /// Flags of traces.
    #[command(flatten)]
    pub trace: TraceFlags,

    /// Format of the log lines on stderr.
    #[arg(long, env = "WARMPATH_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Defaults of chats.
    #[command(flatten)]
    pub chat: ChatFlags,

    /// Defaults of requests.
    #[command(flatten)]
    pub generation: GenerationFlags,

    /// Print the memory that the worker would take of each device, as JSON, then exit. Weights are not loaded. The
    /// model is downloaded first, if necessary and unless --offline forbids it.
    #[arg(long)]
    pub print_memory: bool,

    /// Fetch the files of the model, or remove those of --hf-repo from the cache folder, then exit. Fetching prints its
    /// progress as lines of JSON.
    #[arg(long, value_name = "ACTION", conflicts_with = "print_memory")]
    pub files: Option<FilesAction>,

    /// Flags of the configuration.
    #[command(flatten)]
    pub config: ConfigFlags,

    /// Flags of llama-server that were dropped.
    #[arg(skip)]
    pub ignored: Vec<IgnoredFlag>,
}

/// Prefixes of llama-server's variables that the worker does not read.
const VARIABLES: [&str; 2] = ["LLAMA_ARG_", "LLAMA_API_KEY"];

/// Adds a reference to the list of llama-server's flags to an error about an unknown flag.
fn with_page(error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let tip = format!("{} lists llama-server's flags and their replacements", llama_server::PAGE);
    command_line::with_tip(error, tip)
}

impl Flags {
    /// Parses a command line, whose first element is the program; llama-server's spellings are accepted, too.
    ///
    /// Errors: those of [`command_line::parse`].
    pub fn from_command_line(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<ParsedCommandLine<Self>, clap::Error> {
        let unknown_argument = |refusal: NoTranslation| Self::command().error(ErrorKind::UnknownArgument, refusal);
        let Translated { arguments, ignored } = llama_server::translate(arguments).map_err(unknown_argument)?;
        let command_line = command_line::parse::<Self>(arguments).map_err(with_page)?;
        Ok(command_line.map(|flags| Self { ignored, ..flags }))
    }

    /// Returns whether the worker embeds texts instead of generating.
    pub(super) fn embeds(&self) -> bool {
        self.embedding || self.rerank
    }

    /// Returns a flag that excludes projectors, if one is set.
    pub(super) fn projector_obstacle(&self) -> Option<&'static str> {
        let obstacles = [
            (self.embeds(), if self.rerank { "--rerank" } else { "--embedding" }),
            (self.speculation.spec_draft_model.is_some(), "--spec-draft-model"),
            (self.cache_reuse > 0, "--cache-reuse"),
            (self.context_shift, "--context-shift"),
        ];
        obstacles.into_iter().find_map(|(is_set, flag)| is_set.then_some(flag))
    }

    /// Returns the number of slots.
    pub(super) fn n_slots(&self) -> u16 {
        let default = if self.embeds() { TEXTS_PER_BATCH_DEFAULT } else { SLOTS_DEFAULT };
        self.slots.unwrap_or(default)
    }

    /// Returns the longest sequence of a slot that a flag allows.
    pub(super) fn slot_limit(&self) -> Option<u32> {
        self.kv_unified_per_slot.filter(|limit| *limit > 0)
    }

    /// Logs the flags that have no effect, and the variables of llama-server that are set but not read.
    pub fn log_ignored(&self) {
        for IgnoredFlag { name, reason } in &self.ignored {
            tracing::info!(flag = name, reason, "this flag of llama-server has no effect here");
        }
        let is_theirs =
            |name: &OsString| name.to_str().is_some_and(|name| VARIABLES.iter().any(|prefix| name.starts_with(prefix)));
        for name in std::env::vars_os().map(|(name, _)| name).filter(is_theirs) {
            let variable = name.to_string_lossy();
            tracing::warn!(%variable, page = llama_server::PAGE, "variables of llama-server are not read");
        }
        if let (Some(limit), Some(total)) = (self.slot_limit(), self.ctx_size.filter(|total| *total > 0)) {
            let (slots, share) = (self.n_slots(), total / u32::from(self.n_slots()).max(1));
            if limit > share {
                let reason = "it is more than a slot's share of --ctx-size";
                tracing::warn!(limit, share, slots, reason, "--kv-unified-per-slot has no effect");
            }
        }
    }
}
