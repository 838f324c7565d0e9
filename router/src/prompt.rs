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
mod prepared;
mod stage;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;
use warmpath_common::block_hash::ChainRoot;
use warmpath_common::dialects::Spelling;
use warmpath_common::host::RequestFields;
use warmpath_common::lora;
use warmpath_common::model::{Capability, ModelInfo};
use warmpath_common::whole::Whole;
use warmpath_prompt::{DroppedReasoning, PromptTokens, Scope, unless_cancelled};
use warmpath_router_core::diagnostics::prefix_breaks::ChatHashes;
use warmpath_router_core::diagnostics::tool_lists::ToolsBehindText;
use warmpath_router_core::fleet::{FleetView, LookupError, WorkerView};
use warmpath_shell::processors::Processors;
use warmpath_shell::refusal::respelled;

use crate::config::PROMPTS_WAITING_MAX;
use crate::endpoint::EndpointKind;
use crate::error::RequestError;
use crate::fleet::Fleet;
use crate::keys::ApiKey;
use crate::salt::Salt;

use block_key_cache::BlockKeyCache;
use body::{Options, Parsed, ParsedBody, Purpose};
pub use hashes::{SessionHash, session_of_headers};
pub use prepared::{Phases, Prepared, PreparedPrompt};
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
    /// API key that the client presented, if keys are required.
    pub key: Option<Arc<ApiKey>>,
}

impl RawRequest {
    fn may_use(&self, model_name: &str) -> bool {
        self.key.as_ref().is_none_or(|key| key.may_use(model_name))
    }

    /// Checks that the key may use a model, before anything is looked up: so a name that is refused shows nothing, and
    /// its model is not loaded.
    ///
    /// Errors: `ForbiddenModel`.
    fn check_name(&self, view: &FleetView, name: Option<&str>) -> Result<(), RequestError> {
        let Some(key) = self.key.as_ref().filter(|key| !key.may_use_all()) else { return Ok(()) };
        let names = view.names();
        let is_permitted = match name {
            Some(name) if !self.any_model_name || names.iter().any(|known| known == name) => key.may_use(name),
            // The only model is meant.
            _ => names.iter().any(|known| key.may_use(known)),
        };
        if is_permitted { Ok(()) } else { Err(key.forbidden(name.unwrap_or_default()).into()) }
    }

    /// Removes the names that the key may not use from an error's advice.
    fn without_hidden_names(&self, mut error: LookupError) -> LookupError {
        if let LookupError::Ambiguous { known }
        | LookupError::Unknown { known, .. }
        | LookupError::Incapable { able: known, .. } = &mut error
        {
            known.retain(|name| self.may_use(name));
        }
        error
    }
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
    /// Errors: `Json`, `Field` if the body is plainly invalid; `Lookup` if there is no such model; `ForbiddenModel`.
    pub async fn prepare(
        &self,
        fleet: &Arc<Fleet>,
        view: Arc<FleetView>,
        raw_request: RawRequest,
    ) -> Result<Prepared, RequestError> {
        if raw_request.body.len() > READ_HERE_BYTES_MAX {
            return self.finish_elsewhere(fleet, move || UntokenizedRequest::read(&view, raw_request)).await;
        }
        let mut request = UntokenizedRequest::read(&view, raw_request)?;
        let is_long = request.stage.n_unrendered() > RENDERED_HERE_MESSAGES_MAX || request.stage.has_media();
        // For a report the prompt is rendered several times.
        if is_long || request.raw_request.reports_prefix {
            return self.finish_elsewhere(fleet, || Ok(request)).await;
        }
        request.render(fleet)?;
        if !request.stage.is_quick() {
            return self.finish_elsewhere(fleet, || Ok(request)).await;
        }
        Ok(request.finish(&self.chains))
    }

    /// Returns the result of `work` on a body of this length: on this thread if it is short, otherwise on one for long
    /// work. Units: bytes.
    ///
    /// Errors: `Internal` if the work panics.
    pub async fn on_body<T: Send + 'static>(
        &self,
        n_bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        if n_bytes <= READ_HERE_BYTES_MAX {
            return Ok(work());
        }
        let result = self.processors.run(move |_| work()).await;
        result.map_err(|error| RequestError::Internal { reason: error.to_string() })
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
    raw_request: RawRequest,
    options: Options,
    /// Body with the parameters that its name sets, or with the model's own name in place of one that no worker has.
    changed_body: Option<Bytes>,
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
    fn read(view: &FleetView, mut raw_request: RawRequest) -> Result<Self, RequestError> {
        let mut phases = Phases::default();
        let parse = |raw_request: &RawRequest| body::parse(raw_request.endpoint, &raw_request.body);
        let mut parsed_body = timed(&mut phases.parse, || parse(&raw_request))?;
        // The parameters that a name sets may change the prompt, too.
        let mut changed_body = None;
        if let Some(fields) = set_params(view, &raw_request, &parsed_body) {
            raw_request.body = body::with_fields(&raw_request.body, fields)?;
            parsed_body = timed(&mut phases.parse, || parse(&raw_request))?;
            changed_body = Some(raw_request.body.clone());
        }
        let ParsedBody { mut options, mut parsed, spelling } = parsed_body;
        // An empty name counts as absent: llama.vim sends it.
        options.model.take_if(|name| name.is_empty());
        let salt = raw_request.salt.with_body(options.cache_salt.as_deref())?.to_owned();
        if let Parsed::Chat(chat) = &mut parsed {
            // Text that was tokenized under other salts must not be visible to this request.
            chat.cache_salt = Some(salt.clone());
        }
        let (wanted, now) = (raw_request.endpoint.wanted(), Instant::now());
        raw_request.check_name(view, options.model.as_deref())?;
        let lookup = match options.model.as_deref().filter(|_| raw_request.any_model_name) {
            Some(name) => view.lookup_any(name, wanted, now),
            None => view.lookup(options.model.as_deref(), wanted, now),
        };
        let model = lookup.map_err(|error| raw_request.without_hidden_names(error))?;
        if let Some(key) = &raw_request.key
            && !model.names.iter().any(|name| key.may_use(name))
        {
            return Err(key.forbidden(options.model.as_deref().unwrap_or_default()).into());
        }
        if let Some(name) = options.model.as_mut().filter(|name| !model.answers_to(name)) {
            name.clone_from(&model.names[0]);
            let model_field = [("model".to_owned(), name.as_str().into())].into_iter().collect();
            changed_body = Some(body::with_fields(&raw_request.body, &model_field)?);
        }
        let session =
            raw_request.session.or_else(|| options.prompt_cache_key.as_ref().and_then(hashes::session_of_key));
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
            raw_request,
            options,
            changed_body,
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
        if self.raw_request.reports_prefix {
            self.dropped_reasoning = self.stage.dropped_reasoning(fleet, &self.model);
        }
        let stage = std::mem::replace(&mut self.stage, PromptStage::Unknown("refused"));
        let rendered_stage =
            timed(&mut self.phases.prompt, || stage.rendered(fleet, &self.model, Scope::of(&self.salt)));
        self.stage = rendered_stage.map_err(|error| respelled(error, &self.spelling))?;
        let Some(context_tokens) = self.context_tokens_max else { return Ok(()) };
        let length_check = timed(&mut self.phases.prompt, || self.stage.check_length(context_tokens));
        length_check.map_err(|many| RequestError::PromptTooLong { n_tokens: many.into(), context_tokens })
    }

    /// Tokenizes and hashes the rendered prompt.
    fn finish(self, chains: &BlockKeyCache) -> Prepared {
        let Self { raw_request, options, changed_body, salt, model, chat, tools, n_sequences, .. } = self;
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
            (Err(cause), _) if matches!(raw_request.endpoint, EndpointKind::Passthrough(_)) => {
                PreparedPrompt::Estimated { n_tokens: 0, cause }
            }
            (Err(cause), _) => {
                PreparedPrompt::Estimated { n_tokens: length(raw_request.body.len() / BYTES_PER_TOKEN), cause }
            }
        };
        let purpose = if raw_request.endpoint.is_generation() { options.purpose() } else { Purpose::Response };
        let (wanted, model_name) = (raw_request.endpoint.wanted(), options.model);
        Prepared {
            model_name,
            changed_body,
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

/// Returns the fields that the name in a request about a prompt sets; `None` if it sets none.
fn set_params<'a>(view: &'a FleetView, raw_request: &RawRequest, body: &ParsedBody) -> Option<&'a RequestFields> {
    let is_about_prompt = raw_request.endpoint.wanted() == Some(Capability::Completion);
    let name = body.options.model.as_deref().filter(|name| !name.is_empty());
    view.hosts.set_params(name).filter(|_| is_about_prompt)
}

fn timed<T>(took: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *took += start.elapsed();
    result
}
