//! From a request's body to what routing needs: the model, the prompt's length and the keys of its blocks.
//!
//! Not here: rendering and tokenizing (`warmpath-prompt`), the choice (`warmpath-router-core`).
//! The idea: new text costs milliseconds, so it is tokenized where that stalls nobody. What is cheap happens at once, because going
//! there costs more: a long chat whose history was seen before has little that is new. What is plainly wrong is refused;
//! what merely cannot be worked out here is routed by load, and the worker says what it thinks of it.

mod block_key_cache;
mod body;
mod reading;

use std::borrow::Cow;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hashbrown::DefaultHashBuilder;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use warmpath_common::block_hash::{BlockHash, BlockKey, ChainRoot};
use warmpath_common::dialects::Spelling;
use warmpath_common::lora;
use warmpath_common::model::{Capability, ModelInfo};
use warmpath_common::prompts::RawPrompt;
use warmpath_prompt::{Scope, unless_cancelled};
use warmpath_router_core::diagnostics::prefix_breaks::{MessageHash, Role};
use warmpath_router_core::fleet::{FleetView, WorkerView};

use crate::config::PROMPTS_WAITING_MAX;
use crate::error::RequestError;
use crate::fleet::Fleet;
use crate::salt::Salt;

use block_key_cache::BlockKeyCache;
use body::{Body, Options, Parsed};
use reading::Reading;

/// Is how many bytes of a body are taken for a token, where nothing better is known.
///
/// Source: English text in JSON, by common tokenizers.
const BYTES_PER_TOKEN: usize = 4;

/// Is how much of a text prompt names its conversation. Units: bytes.
const AFFINITY_BYTES: usize = 256;

/// Is the longest body that is parsed and rendered where it was read. Units: bytes.
///
/// Source: docs/decisions/0021-prompt-path.md: that takes a microsecond for some 400 bytes, hence two thirds of a millisecond at most.
const READ_HERE_BYTES_MAX: usize = 256 << 10;

/// Is the most messages that are rendered where they were read.
///
/// Source: the cost of some templates grows with the square of their number; of these many, that of Gemma 4 runs 60,000 instructions, two
/// milliseconds ([`warmpath_prompt::TEMPLATE_FUEL_MAX`]).
const RENDERED_HERE_MESSAGES_MAX: usize = 128;

/// Is the most text that was not seen before and is tokenized where it was read. Units: bytes.
///
/// Source: docs/decisions/0021-prompt-path.md: the way to another thread and back takes as long as some kilobytes.
const TOKENIZED_HERE_BYTES_MAX: usize = 4096;

/// Says how an endpoint spells its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
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
    /// There is none: texts are embedded, each by itself.
    Embeddings,
    /// There is none: documents are scored, each by itself.
    Rerank,
    /// There is none; the request only names a model, if that, which must be able to do this.
    Aside(Option<Capability>),
}

impl Shape {
    /// Returns what a worker must be able to do to answer; absent where any can.
    pub fn wanted(self) -> Option<Capability> {
        match self {
            Self::Chat | Self::Completion | Self::Infill | Self::Messages | Self::Responses => {
                Some(Capability::Completion)
            }
            Self::Embeddings => Some(Capability::Embedding),
            Self::Rerank => Some(Capability::Rerank),
            Self::Aside(wanted) => wanted,
        }
    }

    /// Returns whether text is generated, so that there is a prompt and a first token.
    pub fn is_generation(self) -> bool {
        matches!(self, Self::Chat | Self::Completion | Self::Infill | Self::Messages | Self::Responses)
    }
}

/// Is a body with the salt that its headers gave.
#[derive(Debug, Clone)]
pub struct RawRequest {
    /// Says how the body spells its prompt.
    pub shape: Shape,
    /// Is the body.
    pub body: Bytes,
    /// Salt of the headers.
    pub salt: Salt,
}

/// Is what routing needs to know of a request.
#[derive(Debug)]
pub struct Prepared {
    /// Is the name under which the request asks for the model.
    pub model_name: Option<String>,
    /// Is the model that this means.
    pub model: Arc<ModelInfo>,
    /// Is what its worker must be able to do; absent where any will do.
    pub wanted: Option<Capability>,
    /// Is what is known of the prompt.
    pub prompt: Prompt,
    /// Names the conversation.
    pub affinity: u64,
    /// Lists what is remembered of a chat's messages.
    pub marks: Vec<MessageHash>,
    /// Says whether the request has one prompt, so that reuse can be compared with what was predicted.
    pub has_one_prompt: bool,
    /// Is what the phases took.
    pub phases: Phases,
}

/// Is what is known of a prompt.
#[derive(Debug)]
pub enum Prompt {
    /// It was tokenized.
    Known {
        /// Is its length. Units: tokens.
        n_tokens: u32,
        /// Root of its chain: model, adapter and salt.
        root: BlockHash,
        /// Lists the keys of its full blocks; none where the request forbids reuse.
        keys: Vec<BlockKey>,
    },
    /// It could not be tokenized.
    Estimated {
        /// Is its guessed length. Units: tokens.
        n_tokens: u32,
        /// Says why, for metrics.
        cause: &'static str,
    },
}

/// Is what the phases of preparing took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Phases {
    /// Is the time to parse the body.
    pub parse: Duration,
    /// Is the time to render and tokenize.
    pub prompt: Duration,
    /// Is the time to hash.
    pub hash: Duration,
}

/// Bounds how many prompts are prepared, running ones by processors, waiting ones by places, and remembers their blocks.
pub struct PromptPool {
    processors: Arc<Semaphore>,
    places: Arc<Semaphore>,
    chains: Arc<BlockKeyCache>,
}

impl Default for PromptPool {
    fn default() -> Self {
        let n_processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            processors: Arc::new(Semaphore::new(n_processors)),
            places: Arc::new(Semaphore::new(n_processors + PROMPTS_WAITING_MAX)),
            chains: Arc::default(),
        }
    }
}

impl PromptPool {
    /// Returns what routing needs to know of a request.
    ///
    /// Errors: `Json`, `Field` where the body is plainly wrong; `Lookup` where no such model is there.
    pub async fn prepare(
        &self,
        fleet: &Arc<Fleet>,
        view: Arc<FleetView>,
        draft: RawRequest,
    ) -> Result<Prepared, RequestError> {
        if draft.body.len() > READ_HERE_BYTES_MAX {
            return self.finish_elsewhere(fleet, move || Begun::read(&view, draft)).await;
        }
        let mut begun = Begun::read(&view, draft)?;
        if begun.reading.n_unrendered() > RENDERED_HERE_MESSAGES_MAX {
            return self.finish_elsewhere(fleet, || Ok(begun)).await;
        }
        begun.render(fleet)?;
        if begun.reading.unseen_bytes() > TOKENIZED_HERE_BYTES_MAX {
            return self.finish_elsewhere(fleet, || Ok(begun)).await;
        }
        Ok(begun.finish(&self.chains))
    }

    /// Does long work where it stalls nobody.
    ///
    /// Where too many prompts wait already, this one is left to the worker: tokenizing must not become the bottleneck.
    async fn finish_elsewhere(
        &self,
        fleet: &Arc<Fleet>,
        begin: impl FnOnce() -> Result<Begun, RequestError> + Send + 'static,
    ) -> Result<Prepared, RequestError> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        let processor = Arc::clone(&self.processors).acquire_owned().await;
        let (fleet, chains) = (Arc::clone(fleet), Arc::clone(&self.chains));
        let cancelled = CancellationToken::new();
        let _client = cancelled.clone().drop_guard();
        let prepared = tokio::task::spawn_blocking(move || {
            let has_place = place.is_some();
            let work = || {
                let mut begun = begin()?;
                if has_place {
                    begun.render(&fleet)?;
                } else {
                    begun.reading = Reading::Unknown("busy");
                }
                Ok(begun.finish(&chains))
            };
            let prepared = unless_cancelled(move || cancelled.is_cancelled(), work);
            // The work may outlive a client that leaves, for a portion of its text; its places are taken until it ends.
            drop((place, processor));
            prepared.unwrap_or_else(|| Err(RequestError::Internal { reason: "the client has left".to_owned() }))
        });
        prepared.await.map_err(|error| RequestError::Internal { reason: error.to_string() })?
    }
}

/// Is a request whose prompt is on its way to its tokens.
struct Begun {
    draft: RawRequest,
    options: Options,
    /// Text that the chain begins with.
    salt: String,
    /// Turns a chat's names into those of the dialect that the client speaks.
    spelling: Spelling,
    model: Arc<ModelInfo>,
    affinity: u64,
    marks: Vec<MessageHash>,
    has_one_prompt: bool,
    /// Largest context of the model's workers; absent where some of them are stock servers, which may have any.
    context_tokens_max: Option<u32>,
    reading: Reading,
    phases: Phases,
}

impl Begun {
    fn read(view: &FleetView, draft: RawRequest) -> Result<Self, RequestError> {
        let mut phases = Phases::default();
        let Body { mut options, mut parsed, spelling } = timed(&mut phases.parse, || body::parse(&draft))?;
        // An empty name is none: llama.vim sends it.
        options.model.take_if(|name| name.is_empty());
        let salt = draft.salt.with_body(options.cache_salt.as_deref())?.to_owned();
        if let Parsed::Chat(chat) = &mut parsed {
            // What has been tokenized under other salts is not known to it.
            chat.cache_salt = Some(salt.clone());
        }
        let model = view.lookup(options.model.as_deref(), draft.shape.wanted(), Instant::now())?;
        let affinity = affinity(&parsed, &salt, &draft);
        let marks = match &parsed {
            Parsed::Chat(chat) => chat.messages.iter().map(mark).collect(),
            Parsed::Raw(_) | Parsed::Foreign(_) | Parsed::None => Vec::new(),
        };
        let has_one_prompt =
            options.n.unwrap_or(1) == 1 && !matches!(&parsed, Parsed::Raw(prompts) if prompts.len() != 1);
        let is_meant = |of: &&Arc<ModelInfo>| of.fingerprint == model.fingerprint;
        let of_model = |worker: &&Arc<WorkerView>| worker.models().any(|of| is_meant(&of));
        let has_stock = view.workers.iter().filter(of_model).any(|worker| worker.stock.is_some());
        let contexts = view.workers.iter().flat_map(|worker| worker.models()).filter(is_meant);
        let context_tokens_max = contexts.map(|of| of.context_tokens).max().filter(|_| !has_stock);
        let reading = Reading::Parsed(parsed);
        Ok(Self {
            draft,
            options,
            salt,
            spelling,
            model,
            affinity,
            marks,
            has_one_prompt,
            context_tokens_max,
            reading,
            phases,
        })
    }

    /// Renders the prompt, unless that is done.
    fn render(&mut self, fleet: &Fleet) -> Result<(), RequestError> {
        let reading = std::mem::replace(&mut self.reading, Reading::Unknown("refused"));
        let rendered = timed(&mut self.phases.prompt, || reading.rendered(fleet, &self.model, Scope::of(&self.salt)));
        self.reading = rendered.map_err(|error| error.respelled(&self.spelling))?;
        let Some(context_tokens) = self.context_tokens_max else { return Ok(()) };
        let checked = timed(&mut self.phases.prompt, || self.reading.check_length(context_tokens));
        checked.map_err(|many| RequestError::PromptTooLong { n_tokens: many.into(), context_tokens })
    }

    /// Tokenizes and hashes what is rendered.
    fn finish(self, chains: &BlockKeyCache) -> Prepared {
        let Self { draft, options, salt, model, affinity, marks, has_one_prompt, reading, mut phases, .. } = self;
        let tokens = timed(&mut phases.prompt, || reading.into_tokens(&model, Scope::of(&salt)));
        let applied = lora::resolve(&model, options.model.as_deref(), options.lora.as_deref());
        let root = applied.ok().map(|applied| {
            let lora = model.lora_root(applied);
            ChainRoot { model_fingerprint: &model.fingerprint.0, lora: &lora, cache_salt: salt.as_bytes() }.hash()
        });
        let length = |n_tokens: usize| u32::try_from(n_tokens).unwrap_or(u32::MAX);
        let prompt = match (tokens, root) {
            // Which adapter it would be, the worker says.
            (Ok(tokens), None) => Prompt::Estimated { n_tokens: length(tokens.len()), cause: "adapter" },
            (Ok(tokens), Some(root)) => {
                let hash = || chains.keys(&root, &tokens, model.block_size_tokens);
                let may_reuse = options.cache_prompt != Some(false);
                let keys = if may_reuse { timed(&mut phases.hash, hash) } else { Vec::new() };
                Prompt::Known { n_tokens: length(tokens.len()), root, keys }
            }
            (Err(cause), _) if matches!(draft.shape, Shape::Aside(_)) => Prompt::Estimated { n_tokens: 0, cause },
            (Err(cause), _) => Prompt::Estimated { n_tokens: length(draft.body.len() / BYTES_PER_TOKEN), cause },
        };
        let wanted = draft.shape.wanted();
        Prepared { model_name: options.model, model, wanted, prompt, affinity, marks, has_one_prompt, phases }
    }
}

fn timed<T>(took: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *took += start.elapsed();
    result
}

/// Hashes messages, all alike for as long as the router runs, with secret seeds.
static MARKS: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);

/// Most of a message's beginning, and of its end, by which it is known when something in it has changed; no more than a quarter
/// of it. Units: bytes.
///
/// Source: own choice: longer than what system prompts of different agents have in common.
const MARKED_BYTES_MAX: usize = 64;

/// Returns what is remembered of a message: what it says and whose it is.
fn mark(message: &serde_json::Map<String, serde_json::Value>) -> MessageHash {
    let mut hasher = MARKS.build_hasher();
    for (name, value) in message {
        name.hash(&mut hasher);
        match value {
            serde_json::Value::String(text) => text.hash(&mut hasher),
            other => other.to_string().hash(&mut hasher),
        }
    }
    let role = message.get("role").and_then(|role| role.as_str()).unwrap_or_default();
    let content = message.get("content").map(|content| match content {
        serde_json::Value::String(text) => Cow::Borrowed(text.as_bytes()),
        other => Cow::Owned(other.to_string().into_bytes()),
    });
    let content = content.unwrap_or_default();
    let n_marked = (content.len() / 4).min(MARKED_BYTES_MAX);
    let ends = [&content[..n_marked], &content[content.len() - n_marked..]].map(|end| MARKS.hash_one(end));
    MessageHash { hash: hasher.finish(), ends, role: Role::of(role) }
}

/// Returns a number that stays the same from turn to turn of one conversation: of its salt, its system prompt and its
/// first question, or of the beginning of its text.
fn affinity(parsed: &Parsed, salt: &str, draft: &RawRequest) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    let mut add = |bytes: &[u8]| std::hash::Hasher::write(&mut hasher, bytes);
    add(salt.as_bytes());
    let head = |bytes: &[u8]| bytes[..bytes.len().min(AFFINITY_BYTES)].to_vec();
    match parsed {
        Parsed::Chat(chat) => {
            let is_user = |message: &&serde_json::Map<String, serde_json::Value>| {
                message.get("role").is_some_and(|role| role == "user")
            };
            let first_user = chat.messages.iter().position(|message| is_user(&message)).unwrap_or(0);
            for message in &chat.messages[..=first_user] {
                add(serde_json::to_string(message).unwrap_or_default().as_bytes());
            }
        }
        Parsed::Raw(prompts) => match prompts.first() {
            Some(RawPrompt::Text(text)) => add(&head(text.as_bytes())),
            Some(RawPrompt::Tokens(tokens)) => {
                tokens.iter().take(AFFINITY_BYTES / 4).for_each(|token| add(&token.to_le_bytes()));
            }
            Some(RawPrompt::Mixed(parts)) => add(&head(format!("{parts:?}").as_bytes())),
            Some(RawPrompt::Infill(infill)) => add(&head(infill.input_prefix.as_bytes())),
            None => {}
        },
        // Texts to embed are no conversation: they go anywhere.
        Parsed::None => add(&draft.body),
        Parsed::Foreign(_) => {}
    }
    std::hash::Hasher::finish(&hasher)
}
