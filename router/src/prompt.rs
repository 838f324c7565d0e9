//! From a request's body to the inputs of routing: the model, the prompt's length and the keys of its blocks.
//!
//! Tokenizing new text takes milliseconds, so it runs on threads for long work. Cheap work runs on the thread that read
//! the body, because moving it costs more: a long chat with a known history has little new text. Invalid requests are
//! refused. A prompt that is valid but cannot be tokenized here is routed by load.
//!
//! Not here: rendering and tokenizing (`warmpath-prompt`), the choice (`warmpath-router-core`).

mod block_key_cache;
pub mod body;
mod hashes;
mod stage;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;
use warmpath_common::block_hash::{BlockHash, BlockKey, ChainRoot};
use warmpath_common::dialects::Spelling;
use warmpath_common::lora;
use warmpath_common::model::{Capability, ModelInfo};
use warmpath_common::whole::Whole;
use warmpath_prompt::{DroppedReasoning, PromptTokens, Scope, unless_cancelled};
use warmpath_router_core::diagnostics::prefix_breaks::ChatHashes;
use warmpath_router_core::diagnostics::tool_lists::ToolsBehindText;
use warmpath_router_core::fleet::{FleetView, WorkerView};
use warmpath_shell::processors::Processors;
use warmpath_shell::refusal::respelled;

use crate::config::PROMPTS_WAITING_MAX;
use crate::error::RequestError;
use crate::fleet::Fleet;
use crate::salt::Salt;

use block_key_cache::BlockKeyCache;
use body::{Delivery, Options, Parsed, ParsedBody, Purpose};
pub use hashes::{SessionHash, session_of_headers};
use stage::PromptStage;

/// Assumed bytes of a body per token, if nothing better is known.
///
/// Source: English text in JSON, by common tokenizers.
const BYTES_PER_TOKEN: usize = 4;

/// Longest body that is parsed and rendered on the thread that read it. Units: bytes.
///
/// Source: docs/decisions/0021-prompt-path.md: a microsecond for some 400 bytes, hence two thirds of a millisecond at
/// most.
const READ_HERE_BYTES_MAX: usize = 256 << 10;

/// Most messages that are rendered on the thread that read them.
///
/// Source: the cost of some templates grows with the square of their number; for this number, Gemma 4's template runs
/// 60,000 instructions, two milliseconds ([`warmpath_prompt::TEMPLATE_FUEL_MAX`]).
const RENDERED_HERE_MESSAGES_MAX: usize = 128;

/// Kind of an endpoint, which decides the form of the prompt in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointKind {
    /// `messages`.
    Chat,
    /// `prompt`.
    Completion,
    /// `input_prefix` and `input_suffix`.
    Infill,
    /// Anthropic's `messages`, and `system`.
    Messages,
    /// `input`, and `instructions`.
    Responses,
    /// None: each text is embedded by itself.
    Embeddings,
    /// None: each document is scored by itself.
    Rerank,
    /// None: the request may name a model, which must have this capability.
    Passthrough(Option<Capability>),
}

impl EndpointKind {
    /// Returns the capability that a worker needs; `None` if any worker will do.
    pub fn wanted(self) -> Option<Capability> {
        match self {
            Self::Chat | Self::Completion | Self::Infill | Self::Messages | Self::Responses => {
                Some(Capability::Completion)
            }
            Self::Embeddings => Some(Capability::Embedding),
            Self::Rerank => Some(Capability::Rerank),
            Self::Passthrough(wanted) => wanted,
        }
    }

    /// Returns whether text is generated, so that there is a prompt and a first token.
    pub fn is_generation(self) -> bool {
        matches!(self, Self::Chat | Self::Completion | Self::Infill | Self::Messages | Self::Responses)
    }

    /// Returns whether the body may have messages with media.
    pub fn may_have_images(self) -> bool {
        matches!(self, Self::Chat | Self::Messages | Self::Responses | Self::Passthrough(_))
    }
}

/// A body that is not parsed yet, with the salt in its headers.
#[derive(Debug, Clone)]
pub struct RawRequest {
    /// Kind of its endpoint.
    pub endpoint: EndpointKind,
    /// The body.
    pub body: Bytes,
    /// Salt in the headers.
    pub salt: Salt,
    /// Whether a model name that no worker has means the only model.
    pub any_model_name: bool,
    /// Whether the client asks where the conversation broke its prefix.
    pub reports_prefix: bool,
    /// Session in the headers.
    pub session: Option<SessionHash>,
}

/// Properties of a request that routing needs.
#[derive(Debug)]
pub struct Prepared {
    /// Name of the requested model; its own name if no worker has the one in the request.
    pub model_name: Option<String>,
    /// Body with the model's own name; absent if a worker has the name in the request.
    pub renamed_body: Option<Bytes>,
    /// The model of that name.
    pub model: Arc<ModelInfo>,
    /// Capability that its worker needs; `None` if any worker will do.
    pub wanted: Option<Capability>,
    /// Form of the response.
    pub delivery: Delivery,
    /// What the request is for.
    pub purpose: Purpose,
    /// The prompt.
    pub prompt: PreparedPrompt,
    /// Hashes of a chat.
    pub chat: ChatHashes,
    /// A chat's tools, if the template renders them behind its system text.
    pub tools: Option<ToolsBehindText>,
    /// Earlier reasoning that the template leaves out, if the client asks for a report.
    pub dropped_reasoning: Option<DroppedReasoning>,
    /// Number of choices of all prompts, as requested; 1 where no text is generated.
    pub n_sequences: u32,
    /// Times of the phases.
    pub phases: Phases,
}

/// A prompt as far as the router knows it.
#[derive(Debug)]
pub enum PreparedPrompt {
    /// The prompt was tokenized.
    Known {
        /// Length. Units: tokens.
        n_tokens: u32,
        /// Root of its hash chain: model, adapter and salt.
        root: BlockHash,
        /// Keys of its full blocks; empty if the request forbids reuse.
        keys: Vec<BlockKey>,
        /// Places of its media tokens, in their order.
        media: Vec<Range<u32>>,
    },
    /// The prompt could not be tokenized.
    Estimated {
        /// Estimated length. Units: tokens.
        n_tokens: u32,
        /// Reason, for metrics.
        cause: &'static str,
    },
}

/// Times of the phases of preparation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Phases {
    /// Time to parse the body.
    pub parse: Duration,
    /// Time to render and tokenize.
    pub prompt: Duration,
    /// Time to hash.
    pub hash: Duration,
}

/// Pool that prepares prompts: one running per processor, a limited number waiting. It caches the keys of their blocks.
pub struct PromptPool {
    processors: Processors,
    places: Arc<Semaphore>,
    chains: Arc<BlockKeyCache>,
}

impl Default for PromptPool {
    fn default() -> Self {
        let processors = Processors::all();
        let places = Arc::new(Semaphore::new(processors.n_free() + PROMPTS_WAITING_MAX));
        Self { processors, places, chains: Arc::default() }
    }
}

impl PromptPool {
    /// Returns the properties of a request that routing needs.
    ///
    /// Errors: `Json`, `Field` if the body is plainly invalid; `Lookup` if there is no such model.
    pub async fn prepare(
        &self,
        fleet: &Arc<Fleet>,
        view: Arc<FleetView>,
        draft: RawRequest,
    ) -> Result<Prepared, RequestError> {
        if draft.body.len() > READ_HERE_BYTES_MAX {
            return self.finish_elsewhere(fleet, move || UntokenizedRequest::read(&view, draft)).await;
        }
        let mut request = UntokenizedRequest::read(&view, draft)?;
        let is_long = request.stage.n_unrendered() > RENDERED_HERE_MESSAGES_MAX || request.stage.has_media();
        // For a report the prompt is rendered several times.
        if is_long || request.draft.reports_prefix {
            return self.finish_elsewhere(fleet, || Ok(request)).await;
        }
        request.render(fleet)?;
        if !request.stage.is_quick() {
            return self.finish_elsewhere(fleet, || Ok(request)).await;
        }
        Ok(request.finish(&self.chains))
    }

    /// Runs long work on a thread for it; other work goes first between two portions of a text.
    ///
    /// If too many prompts wait already, this one is left to the worker: tokenizing must not become the bottleneck.
    async fn finish_elsewhere(
        &self,
        fleet: &Arc<Fleet>,
        begin: impl FnOnce() -> Result<UntokenizedRequest, RequestError> + Send + 'static,
    ) -> Result<Prepared, RequestError> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        let (fleet, chains) = (Arc::clone(fleet), Arc::clone(&self.chains));
        let prepared = self.processors.run(move |is_cancelled| {
            let has_place = place.is_some();
            let work = || {
                let mut request = begin()?;
                if has_place {
                    request.render(&fleet)?;
                } else {
                    request.stage = PromptStage::Unknown("busy");
                }
                Ok(request.finish(&chains))
            };
            let prepared = unless_cancelled(is_cancelled, work);
            // The work may outlive a disconnected client, for a portion of its text; its place is taken until it ends.
            drop(place);
            prepared.unwrap_or_else(|| Err(RequestError::Internal { reason: "the client has left".to_owned() }))
        });
        prepared.await.map_err(|error| RequestError::Internal { reason: error.to_string() })?
    }
}

/// A request whose prompt is not tokenized yet.
struct UntokenizedRequest {
    draft: RawRequest,
    options: Options,
    /// Body with the model's own name in place of one that no worker has.
    renamed_body: Option<Bytes>,
    /// Salt of the prompt's chain.
    salt: String,
    /// Converts a chat's field names to those of the client's dialect.
    spelling: Spelling,
    model: Arc<ModelInfo>,
    chat: ChatHashes,
    /// A chat's tools and its system text.
    tools: Option<ToolsBehindText>,
    dropped_reasoning: Option<DroppedReasoning>,
    /// Number of choices of all prompts, as requested.
    n_sequences: u32,
    /// Largest context of the model's workers; `None` if some are stock servers, whose context may be of any size.
    context_tokens_max: Option<u32>,
    stage: PromptStage,
    phases: Phases,
}

impl UntokenizedRequest {
    fn read(view: &FleetView, draft: RawRequest) -> Result<Self, RequestError> {
        let mut phases = Phases::default();
        let ParsedBody { mut options, mut parsed, spelling } =
            timed(&mut phases.parse, || body::parse(draft.endpoint, &draft.body))?;
        // An empty name counts as absent: llama.vim sends it.
        options.model.take_if(|name| name.is_empty());
        let salt = draft.salt.with_body(options.cache_salt.as_deref())?.to_owned();
        if let Parsed::Chat(chat) = &mut parsed {
            // Text that was tokenized under other salts must not be visible to this request.
            chat.cache_salt = Some(salt.clone());
        }
        let (wanted, now) = (draft.endpoint.wanted(), Instant::now());
        let model = match options.model.as_deref().filter(|_| draft.any_model_name) {
            Some(name) => view.lookup_any(name, wanted, now)?,
            None => view.lookup(options.model.as_deref(), wanted, now)?,
        };
        let mut renamed_body = None;
        if let Some(name) = options.model.as_mut().filter(|name| !model.answers_to(name)) {
            name.clone_from(&model.names[0]);
            renamed_body = Some(body::with_model(&draft.body, name)?);
        }
        let session = draft.session.or_else(|| options.prompt_cache_key.as_ref().and_then(hashes::session_of_key));
        let chat = match &parsed {
            Parsed::Chat(chat) => hashes::of_chat(chat, session),
            Parsed::Raw(_) | Parsed::Foreign(_) | Parsed::None => ChatHashes::default(),
        };
        let tools = hashes::tools_behind_text(&chat);
        let n_prompts = match &parsed {
            Parsed::Raw(prompts) => u32::try_from(prompts.len()).unwrap_or(u32::MAX),
            Parsed::Chat(_) | Parsed::Foreign(_) | Parsed::None => 1,
        };
        let n_sequences = n_prompts.saturating_mul(options.n.map_or(1, |Whole(n)| n));
        let is_meant = |of: &&Arc<ModelInfo>| of.fingerprint == model.fingerprint;
        let of_model = |worker: &&Arc<WorkerView>| worker.models().any(|of| is_meant(&of));
        let has_stock = view.workers.iter().filter(of_model).any(|worker| worker.stock.is_some());
        let contexts = view.workers.iter().flat_map(|worker| worker.models()).filter(is_meant);
        let context_tokens_max = contexts.map(|of| of.context_tokens).max().filter(|_| !has_stock);
        let stage = PromptStage::Parsed(parsed);
        Ok(Self {
            draft,
            options,
            renamed_body,
            salt,
            spelling,
            model,
            chat,
            tools,
            dropped_reasoning: None,
            n_sequences,
            context_tokens_max,
            stage,
            phases,
        })
    }

    /// Renders the prompt, unless that is done.
    fn render(&mut self, fleet: &Fleet) -> Result<(), RequestError> {
        if self.draft.reports_prefix {
            self.dropped_reasoning = self.stage.dropped_reasoning(fleet, &self.model);
        }
        let stage = std::mem::replace(&mut self.stage, PromptStage::Unknown("refused"));
        let rendered = timed(&mut self.phases.prompt, || stage.rendered(fleet, &self.model, Scope::of(&self.salt)));
        self.stage = rendered.map_err(|error| respelled(error, &self.spelling))?;
        let Some(context_tokens) = self.context_tokens_max else { return Ok(()) };
        let checked = timed(&mut self.phases.prompt, || self.stage.check_length(context_tokens));
        checked.map_err(|many| RequestError::PromptTooLong { n_tokens: many.into(), context_tokens })
    }

    /// Tokenizes and hashes the rendered prompt.
    fn finish(self, chains: &BlockKeyCache) -> Prepared {
        let Self { draft, options, renamed_body, salt, model, chat, tools, n_sequences, .. } = self;
        let dropped_reasoning = self.dropped_reasoning;
        let (stage, mut phases) = (self.stage, self.phases);
        let tools = tools.filter(|_| stage.has_tools_behind_system_text());
        let tokens = timed(&mut phases.prompt, || stage.into_tokens(&model, Scope::of(&salt)));
        let applied = lora::resolve(&model, options.model.as_deref(), options.lora.as_deref());
        let root = applied.ok().map(|applied| {
            let lora = model.lora_root(applied);
            ChainRoot { model_fingerprint: &model.fingerprint.0, lora: &lora, cache_salt: salt.as_bytes() }.hash()
        });
        let length = |n_tokens: usize| u32::try_from(n_tokens).unwrap_or(u32::MAX);
        let prompt = match (tokens, root) {
            // Only the worker knows which adapter it is.
            (Ok(made), None) => PreparedPrompt::Estimated { n_tokens: length(made.tokens.len()), cause: "adapter" },
            (Ok(PromptTokens { tokens, runs, .. }), Some(root)) => {
                let hash = || chains.keys(&root, &tokens, model.block_size_tokens);
                let may_reuse = options.cache_prompt != Some(false);
                let keys = if may_reuse { timed(&mut phases.hash, hash) } else { Vec::new() };
                let media = runs.iter().map(|run| run.start..run.end()).collect();
                PreparedPrompt::Known { n_tokens: length(tokens.len()), root, keys, media }
            }
            (Err(cause), _) if matches!(draft.endpoint, EndpointKind::Passthrough(_)) => {
                PreparedPrompt::Estimated { n_tokens: 0, cause }
            }
            (Err(cause), _) => {
                PreparedPrompt::Estimated { n_tokens: length(draft.body.len() / BYTES_PER_TOKEN), cause }
            }
        };
        let purpose = if draft.endpoint.is_generation() { options.purpose() } else { Purpose::Response };
        let (wanted, model_name) = (draft.endpoint.wanted(), options.model);
        Prepared {
            model_name,
            renamed_body,
            model,
            wanted,
            delivery: options.delivery,
            purpose,
            prompt,
            chat,
            tools,
            dropped_reasoning,
            n_sequences,
            phases,
        }
    }
}

fn timed<T>(took: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *took += start.elapsed();
    result
}
