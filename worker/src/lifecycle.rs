//! One request from its body to the end of its response, for all endpoints.
//!
//! Everything that takes time before the engine happens in one blocking step (parse, render, tokenize, check, submit).
//! The response is then a stream of steps. Dropping it, as when a client disconnects, frees its slots.
//!
//! Not here: the formats of requests and responses (`http::chat`, `http::completions`), running the model (the engine).

mod answer;
mod arguments;
pub mod chat;
pub mod message;
mod reading;
#[cfg(test)]
pub(crate) mod testing;

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{RequestId, SlotId, Token};
use warmpath_common::lora::{self, Applied, Wanted};
use warmpath_prompt::TokenCount;
use warmpath_shell::trace::Span;
use warmpath_worker_core::shift_plan::REUSE_TOKENS_DEFAULT;
use warmpath_worker_core::tenants::TenantId;

use crate::engine::{self, CompiledSchema, EngineError, EventReceiver, Generation, ShiftWish, Submission};
use crate::error::RequestError;
use crate::fields::{self, Basis, GenerationFields};
use crate::http::body::Body;
use crate::metrics::Metrics;
use crate::response_format::WantedSchema;
use crate::room::SlotRoom;
use crate::serving::Serving;
use crate::unsupported::Unsupported;

pub use answer::{Answer, Delivery, Form, Step, Totals};
use answer::{Choice, Clock};
use chat::ChatAnswer;

/// Largest priority of a request; its negative is the smallest.
///
/// Source: own choice; only the order counts.
const PRIORITY_ABS_MAX: i32 = 100;

/// Most choices of one prompt, as in OpenAI's API.
pub const CHOICES_MAX: u32 = 128;

/// A request that has arrived, before its body is parsed.
pub struct Arrival {
    /// Id of the request.
    pub id: RequestId,
    /// Its span, which ends with its response.
    pub span: Span,
    /// Time of its arrival.
    pub at: Instant,
    /// Slot that the router prefers.
    pub wanted_slot: Option<SlotId>,
    /// Cached tokens that the router predicts.
    pub expected_tokens: u32,
    /// Salt in the headers; one in the body replaces it.
    pub cache_salt: Option<String>,
    /// Tenant from the router.
    pub tenant: Option<TenantId>,
    /// Highest priority that the router allows; a higher one counts as this.
    pub priority_max: Option<i32>,
    /// The body.
    pub body: Body,
    /// Reader of the prompts in the endpoint's form.
    pub read_prompts: ReadPrompts,
}

/// Returns the prompts in a body, tokenized under its salt. Shape: at least one prompt.
pub type ReadPrompts = fn(&Serving, &Body, &str) -> Result<Vec<ReadPrompt>, RequestError>;

/// A prompt of a request.
#[derive(Debug, Clone)]
pub struct ReadPrompt {
    /// Tokens of the prompt.
    pub tokens: Vec<Token>,
    /// Start of its last message, if it is known and useful.
    pub last_message_token: Option<u32>,
    /// Text of the prompt if the response repeats it.
    pub text: Option<String>,
    /// Whether a response's text begins with the prompt's, and its log probabilities with those of the prompt.
    pub is_echoed: bool,
    /// How its response is constrained and parsed; `None` if the whole response is its content.
    pub answer: Option<Arc<ChatAnswer>>,
    /// Kinds of tools that were left out of it.
    pub left_out: Vec<&'static str>,
}

impl ReadPrompt {
    /// Returns whether its answer may be tool calls.
    fn may_call(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.may_call())
    }
}

/// Fields of a body that every endpoint has, besides those of generation.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Options {
    /// Name of the model; absent means the only one there is.
    model: Option<String>,
    /// Separates this request's prefixes from those with another salt.
    #[serde(deserialize_with = "warmpath_common::salt::of_body")]
    #[schemars(length(min = 1))]
    cache_salt: Option<String>,
    /// Number of choices of each prompt.
    #[serde(alias = "n_cmpl")]
    #[schemars(range(min = 1, max = 128))]
    n: Option<u32>,
    /// Whether the response is streamed as server-sent events.
    stream: Option<bool>,
    /// Further options of a stream.
    #[serde(deserialize_with = "object")]
    stream_options: Option<StreamOptions>,
    /// Seconds that a stream may be silent before a comment keeps it alive; -1 is for ever.
    #[schemars(range(min = -1, max = 86400))]
    sse_ping_interval: Option<i64>,
    /// Whether cached state is used and new state is kept; absent means yes.
    cache_prompt: Option<bool>,
    /// Slot that is preferred if it costs no reuse, counted from 0 again beyond the last one; -1 is any.
    #[schemars(range(min = -1))]
    id_slot: Option<i32>,
    /// Priority of the request's state in the cache, compared with that of others.
    #[schemars(range(min = -100, max = 100))]
    priority: Option<i32>,
    /// Shortest run of tokens whose state is moved to its position in the prompt; 0 and `false` move none.
    #[serde(alias = "n_cache_reuse")]
    cache_reuse: Option<CacheReuse>,
    /// Number of the prompt's tokens that stay when the context is shifted; -1 is all.
    #[schemars(range(min = -1, max = 4294967295_u32))]
    n_keep: Option<i64>,
    /// Number of tokens that are dropped when the context is shifted; 0 is half of the others.
    #[schemars(range(min = 0, max = 4294967295_u32))]
    n_discard: Option<i64>,
    /// Adapters to apply, by their indexes, with their scales; at most one of them above 0.
    lora: Option<Vec<Wanted>>,
}

/// `cache_reuse` in its two forms: a length, or a bool.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a number of tokens, or true or false")]
enum CacheReuse {
    Tokens(#[schemars(range(min = 0, max = 4294967295_u32))] i64),
    Switch(bool),
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct StreamOptions {
    /// Whether a last event counts the tokens.
    include_usage: Option<bool>,
}

/// Parses an object or null: to serde an array is a struct without names.
fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    struct OnlyObject<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for OnlyObject<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_unit<E>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<T>, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }

    deserializer.deserialize_any(OnlyObject(PhantomData))
}

/// A request that the engine can take.
struct Draft {
    request_id: RequestId,
    prompts: Vec<ReadPrompt>,
    /// Number of choices of each prompt.
    n: u32,
    chain_root: BlockHash,
    tenant: Option<TenantId>,
    adapter: Option<Applied>,
    generation: Generation,
    cache_prompt: bool,
    priority: i32,
    shifts: ShiftFields,
    wanted_slot: Option<SlotId>,
    expected_tokens: u32,
}

/// A choice in the engine, and the receiver of its events.
type Submitted = (Choice, EventReceiver);

/// Returns the response to a request once its first choice has a slot.
///
/// Errors: any [`RequestError`] before the first token.
pub async fn start(
    serving: &Arc<Serving>,
    metrics: &Arc<Metrics>,
    mut arrival: Arrival,
) -> Result<Answer, RequestError> {
    serving.check_room()?;
    let mut clock = Clock::start(&mut arrival, metrics);
    let on_the_way = serving.engine.announce();
    let work = move |serving: &Serving| {
        let _on_the_way = on_the_way;
        prepare(serving, arrival)
    };
    let prepared = serving.prepare(work).await;
    clock.prepared();
    let (form, submitted) = prepared.inspect_err(|_| clock.failed("prepare"))?;
    Answer::begin(form, submitted, clock).await
}

fn prepare(serving: &Serving, arrival: Arrival) -> Result<(Form, Vec<Submitted>), RequestError> {
    let options: Options = arrival.body.parse()?;
    serving.check_model(options.model.as_deref())?;
    arrival.body.parse::<Unsupported>()?.check()?;
    let fields: GenerationFields = arrival.body.parse()?;
    let wanted_schema = fields.wanted_schema()?;
    let tokenize = |text: &str| serving.tokenize_plain(text);
    let n_vocab = serving.model.n_vocab;
    let leaves_ignore_eos = fields.leaves_ignore_eos();
    let mut generation = fields.resolve(&Basis { n_vocab, tokenize: &tokenize, defaults: &serving.defaults })?;
    let n = options.n.unwrap_or(1);
    if !(1..=CHOICES_MAX).contains(&n) {
        return Err(RequestError::field("n", format!("`n` must be 1 to {CHOICES_MAX}; it is {n}")));
    }
    let salt = options.cache_salt.as_deref().or(arrival.cache_salt.as_deref()).unwrap_or_default();
    let mut prompts = (arrival.read_prompts)(serving, &arrival.body, salt)?;
    check_prompts(serving, &prompts, n)?;
    generation.schema = wanted_schema.map(|wanted| compile(serving, wanted)).transpose()?;
    if leaves_ignore_eos && (generation.schema.is_some() || prompts.iter().any(ReadPrompt::may_call)) {
        generation.ignore_eos = false;
    }
    constrain(&mut prompts, &mut generation)?;
    if let Some(wish) = &mut generation.probabilities {
        wish.of_prompt = prompts.iter().any(|prompt| prompt.is_echoed);
    }
    let form = Form {
        delivery: options.delivery(),
        silence_max: options.silence_max(serving.silence_max)?,
        generation: generation.clone(),
        prompt_texts: prompt_texts(&prompts, n),
        answer: prompts.iter().find_map(|prompt| prompt.answer.clone()),
        left_out: prompts.iter_mut().flat_map(|prompt| std::mem::take(&mut prompt.left_out)).collect(),
    };
    let adapter = lora::resolve(&serving.model, options.model.as_deref(), options.lora.as_deref())?;
    let hinted = arrival.wanted_slot.filter(|slot| slot.0 < serving.model.n_slots);
    let draft = Draft {
        prompts,
        n,
        chain_root: serving.chain_root(adapter, salt),
        tenant: arrival.tenant,
        adapter,
        generation,
        cache_prompt: options.cache_prompt != Some(false),
        priority: priority(&options)?.min(arrival.priority_max.unwrap_or(PRIORITY_ABS_MAX)),
        shifts: shift_fields(&options)?,
        wanted_slot: wanted_slot(serving, &options)?.or(hinted),
        expected_tokens: arrival.expected_tokens,
        request_id: arrival.id,
    };
    Ok((form, submit(serving, draft)?))
}

impl Options {
    fn delivery(&self) -> Delivery {
        let usage = self.stream_options.as_ref().and_then(|options| options.include_usage);
        match (self.stream.unwrap_or(false), usage.unwrap_or(false)) {
            (false, _) => Delivery::Whole,
            (true, false) => Delivery::Stream,
            (true, true) => Delivery::StreamWithUsage,
        }
    }

    fn silence_max(&self, default: Option<Duration>) -> Result<Option<Duration>, RequestError> {
        let param = "sse_ping_interval";
        let wish = self.sse_ping_interval.map(fields::silence_max).transpose();
        let wish = wish.map_err(|reason| RequestError::field(param, format!("`{param}` {reason}")))?;
        Ok(wish.unwrap_or(default))
    }
}

/// Adds the constraints of a chat's response to the generation.
///
/// A response that follows a client's grammar has no reasoning and is its own content. One that follows a schema may
/// have reasoning before it, and may be a tool call instead. Errors: `Field` if tools may be called beside a grammar.
fn constrain(prompts: &mut [ReadPrompt], generation: &mut Generation) -> Result<(), RequestError> {
    for prompt in prompts {
        let Some(answer) = &prompt.answer else { continue };
        if generation.sampling.grammar.is_none() && generation.schema.is_none() {
            answer.constrain(generation)?;
        } else if answer.may_call() && generation.sampling.grammar.is_none() {
            answer.constrain_either(generation)?;
        } else if answer.may_call() {
            return Err(RequestError::field("grammar", "`grammar` cannot be combined with `tools` that may be called"));
        } else if generation.schema.is_none() || !answer.let_think(generation) {
            prompt.answer = None;
        }
    }
    Ok(())
}

/// Returns the text of each choice's prompt; empty if the response does not repeat them.
fn prompt_texts(prompts: &[ReadPrompt], n: u32) -> Vec<String> {
    let of_choices = |prompt: &ReadPrompt| prompt.text.clone().map(|text| std::iter::repeat_n(text, n as usize));
    prompts.iter().filter_map(of_choices).flatten().collect()
}

fn priority(options: &Options) -> Result<i32, RequestError> {
    let priority = options.priority.unwrap_or_default();
    if !(-PRIORITY_ABS_MAX..=PRIORITY_ABS_MAX).contains(&priority) {
        let reason = format!("`priority` must be -{PRIORITY_ABS_MAX} to {PRIORITY_ABS_MAX}; it is {priority}");
        return Err(RequestError::field("priority", reason));
    }
    Ok(priority)
}

/// Checked fields about context shifts.
#[derive(Debug, Clone, Copy)]
struct ShiftFields {
    cache_reuse_tokens: Option<u32>,
    /// Prompt tokens to keep besides a first control token; `None` for the whole prompt.
    n_keep: Option<u32>,
    n_discard: Option<u32>,
}

impl ShiftFields {
    /// Returns the settings for a prompt: the token that begins every text is kept besides the others.
    fn resolve(self, prompt: &[Token], bos: Option<Token>) -> ShiftWish {
        let n_prompt = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let n_first = u32::from(bos.is_some() && prompt.first().copied() == bos);
        ShiftWish {
            cache_reuse_tokens: self.cache_reuse_tokens,
            n_keep: self.n_keep.map_or(n_prompt, |n_keep| n_keep.saturating_add(n_first)),
            n_discard: self.n_discard,
        }
    }
}

/// Returns the fields about context shifts; absent ones have llama-server's values: keep nothing, drop half.
fn shift_fields(options: &Options) -> Result<ShiftFields, RequestError> {
    let within = |param: &'static str, n: i64, least: i64| match u32::try_from(n) {
        Ok(n) => Ok(Some(n)),
        Err(_) if n == least => Ok(None),
        Err(_) => Err(RequestError::field(param, format!("`{param}` must be {least} to {}; it is {n}", u32::MAX))),
    };
    let cache_reuse_tokens = match options.cache_reuse {
        None => None,
        Some(CacheReuse::Switch(true)) => Some(REUSE_TOKENS_DEFAULT),
        Some(CacheReuse::Switch(false)) => Some(0),
        Some(CacheReuse::Tokens(n)) => within("cache_reuse", n, 0)?,
    };
    let n_discard = within("n_discard", options.n_discard.unwrap_or(0), 0)?;
    Ok(ShiftFields {
        cache_reuse_tokens,
        n_keep: within("n_keep", options.n_keep.unwrap_or(0), -1)?,
        n_discard: n_discard.filter(|n_discard| *n_discard > 0),
    })
}

/// Returns the slot that a request names; -1 means any, as in llama-server. llama.vim counts its requests in `id_slot`,
/// so slots repeat after the last one, as in llama-server.
fn wanted_slot(serving: &Serving, options: &Options) -> Result<Option<SlotId>, RequestError> {
    match options.id_slot {
        None | Some(-1) => Ok(None),
        Some(id) => {
            let n_slots = u32::from(serving.model.n_slots.max(1));
            let slot = u32::try_from(id).ok().and_then(|id| u16::try_from(id % n_slots).ok());
            let reason = || format!("`id_slot` must be -1 or more; it is {id}");
            slot.map(|slot| Some(SlotId(slot))).ok_or_else(|| RequestError::field("id_slot", reason()))
        }
    }
}

fn compile(serving: &Serving, wanted: WantedSchema) -> Result<CompiledSchema, RequestError> {
    let WantedSchema { param, schema } = wanted;
    serving.engine.compile_schema(&schema).map_err(|reason| RequestError::field(param, reason))
}

fn check_prompts(serving: &Serving, prompts: &[ReadPrompt], n: u32) -> Result<(), RequestError> {
    let n_sequences = prompts.len().saturating_mul(n as usize);
    if n_sequences > serving.n_places() {
        let reason = format!("{n_sequences} choices are asked for; this worker holds at most {}", serving.n_places());
        return Err(RequestError::field("n", reason));
    }
    prompts.iter().try_for_each(|prompt| check_prompt(serving, &prompt.tokens))
}

/// Checks that a slot can run a prompt.
///
/// Errors: `Field` if it is empty or has a token that the vocabulary lacks; `PromptTooLong`.
pub fn check_prompt(serving: &Serving, prompt: &[Token]) -> Result<(), RequestError> {
    let (context_tokens, n_vocab) = (serving.model.context_tokens, serving.model.n_vocab);
    if prompt.is_empty() {
        return Err(RequestError::field("prompt", "the prompt is empty"));
    }
    if prompt.len() >= context_tokens as usize {
        let (n_tokens, room) = (TokenCount::Exactly(prompt.len()), SlotRoom::of(&serving.model));
        return Err(RequestError::PromptTooLong { n_tokens, room });
    }
    if let Some(token) = prompt.iter().find(|token| **token >= n_vocab) {
        let reason = format!("the prompt holds token {token}; the vocabulary has {n_vocab} tokens");
        return Err(RequestError::field("prompt", reason));
    }
    Ok(())
}

/// Submits every choice to the engine; if one is refused, those before it end as their receivers are dropped.
fn submit(serving: &Serving, draft: Draft) -> Result<Vec<Submitted>, RequestError> {
    let mut submitted = Vec::with_capacity(draft.prompts.len() * draft.n as usize);
    for prompt in draft.prompts {
        for k in 0..draft.n {
            let mut generation = draft.generation.clone();
            // The same seed would give the same text for each choice.
            generation.sampling.seed = generation.sampling.seed.map(|seed| seed.wrapping_add(k));
            let (events, receiver) = engine::events();
            let submission = Submission {
                request_id: draft.request_id.clone(),
                prompt: prompt.tokens.clone(),
                chain_root: draft.chain_root,
                tenant: draft.tenant,
                adapter: draft.adapter,
                generation,
                cache_prompt: draft.cache_prompt,
                shifts: draft.shifts.resolve(&prompt.tokens, serving.prompts.vocabulary().bos),
                expected_tokens: draft.expected_tokens,
                wanted_slot: draft.wanted_slot.filter(|_| submitted.is_empty()),
                last_message_token: prompt.last_message_token,
                priority: draft.priority,
                events,
            };
            let has_grammar = submission.generation.sampling.grammar.is_some();
            let has_calls = submission.generation.calls.is_some();
            serving.engine.submit(submission).map_err(|error| match error {
                EngineError::Sampler { reason } if has_grammar => RequestError::field("grammar", reason),
                EngineError::Sampler { reason } if has_calls => RequestError::field("tools", reason),
                EngineError::Shift(obstacle) => RequestError::field("cache_reuse", obstacle.to_string()),
                error => error.into(),
            })?;
            submitted.push((Choice::new(prompt.tokens.len(), k), receiver));
        }
    }
    Ok(submitted)
}
