//! One request from its body to the end of its answer, whichever endpoint it came to.
//!
//! Not here: the shapes of requests and responses (`http::chat`, `http::completions`), running the model (the engine).
//! The idea: everything that costs time before the engine happens in one blocking step (parse, render, tokenize, check,
//! submit); the answer is then a stream of steps. Dropping it, as when a client leaves, frees its slots.

mod answer;

use std::sync::Arc;
use std::time::Instant;

use serde::Deserialize;
use tokio::sync::mpsc;
use warmpath_common::block_hash::{BlockHash, ChainRoot};
use warmpath_common::ids::{RequestId, SlotId, Token};

use crate::engine::{EngineError, Event, Generation, Submission};
use crate::error::RequestError;
use crate::fields::{GenerationFields, Vocabulary};
use crate::http::body::Body;
use crate::metrics::Metrics;
use crate::serving::Serving;
use crate::unsupported::Unsupported;

pub use answer::{Answer, Delivery, Step, Totals};
use answer::{Choice, Clock};

/// Is the most choices of one prompt, as OpenAI has it.
pub const CHOICES_MAX: u32 = 128;

/// Is a request that has arrived, before its body is parsed.
pub struct Arrival {
    /// Names the request.
    pub id: RequestId,
    /// Is when it arrived.
    pub at: Instant,
    /// Is the slot that the router would like.
    pub wanted_slot: Option<SlotId>,
    /// Is the tenant's salt from the headers, which the body's replaces.
    pub cache_salt: Option<String>,
    /// Is the body.
    pub body: Body,
    /// Reads the prompts out of the body, as the endpoint spells them.
    pub read_prompts: ReadPrompts,
}

/// Reads the prompts out of a body. Shape: at least one prompt.
pub type ReadPrompts = fn(&Serving, &Body) -> Result<Vec<Vec<Token>>, RequestError>;

/// Is the fields of a body that every endpoint reads alike, besides those of generation.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Options {
    model: Option<String>,
    cache_salt: Option<String>,
    n: Option<u32>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    cache_prompt: Option<bool>,
    id_slot: Option<i32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// Is a request that the engine can take.
struct Draft {
    request_id: RequestId,
    prompts: Vec<Vec<Token>>,
    /// Is the number of choices of each prompt.
    n: u32,
    chain_root: BlockHash,
    generation: Generation,
    cache_prompt: bool,
    wanted_slot: Option<SlotId>,
}

/// Is one choice in the engine, and the way its events come.
type Submitted = (Choice, mpsc::UnboundedReceiver<Event>);

/// Returns the answer to a request once its first choice has a slot.
///
/// Errors: any [`RequestError`] that shows before the first token.
pub async fn start(serving: &Arc<Serving>, metrics: &Arc<Metrics>, arrival: Arrival) -> Result<Answer, RequestError> {
    serving.check_room()?;
    let clock = Clock::start(arrival.at, metrics);
    let prepared = serving.prepare(move |serving| prepare(serving, arrival)).await;
    metrics.prompt.observe(clock.elapsed_s());
    let (delivery, submitted) = prepared?;
    Answer::begin(delivery, submitted, clock).await
}

fn prepare(serving: &Serving, arrival: Arrival) -> Result<(Delivery, Vec<Submitted>), RequestError> {
    let options: Options = arrival.body.parse()?;
    serving.check_model(options.model.as_deref())?;
    arrival.body.parse::<Unsupported>()?.check()?;
    let fields: GenerationFields = arrival.body.parse()?;
    let tokenize = |text: &str| serving.tokenize_plain(text);
    let generation = fields.resolve(&Vocabulary { n_vocab: serving.model.n_vocab, tokenize: &tokenize })?;
    let n = options.n.unwrap_or(1);
    if !(1..=CHOICES_MAX).contains(&n) {
        return Err(RequestError::field("n", format!("`n` must be 1 to {CHOICES_MAX}; it is {n}")));
    }
    let prompts = (arrival.read_prompts)(serving, &arrival.body)?;
    check_prompts(serving, &prompts, n)?;
    let salt = options.cache_salt.as_deref().or(arrival.cache_salt.as_deref()).unwrap_or_default();
    let fingerprint = &serving.model.fingerprint.0;
    let hinted = arrival.wanted_slot.filter(|slot| slot.0 < serving.model.n_slots);
    let draft = Draft {
        prompts,
        n,
        chain_root: ChainRoot { model_fingerprint: fingerprint, lora: &[], cache_salt: salt.as_bytes() }.hash(),
        generation,
        cache_prompt: options.cache_prompt != Some(false),
        wanted_slot: wanted_slot(serving, &options)?.or(hinted),
        request_id: arrival.id,
    };
    Ok((options.delivery(), submit(serving, draft)?))
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
}

/// Returns the slot that the body names; -1 is llama-server's word for any.
fn wanted_slot(serving: &Serving, options: &Options) -> Result<Option<SlotId>, RequestError> {
    match options.id_slot {
        None | Some(-1) => Ok(None),
        Some(id) => {
            let slot = u16::try_from(id).ok().filter(|slot| *slot < serving.model.n_slots);
            let reason = || format!("`id_slot` must be below {}, or -1; it is {id}", serving.model.n_slots);
            slot.map(|slot| Some(SlotId(slot))).ok_or_else(|| RequestError::field("id_slot", reason()))
        }
    }
}

fn check_prompts(serving: &Serving, prompts: &[Vec<Token>], n: u32) -> Result<(), RequestError> {
    let n_sequences = prompts.len().saturating_mul(n as usize);
    if n_sequences > serving.n_places() {
        let reason = format!("{n_sequences} choices are asked for; this worker holds at most {}", serving.n_places());
        return Err(RequestError::field("n", reason));
    }
    let (context_tokens, n_vocab) = (serving.model.context_tokens, serving.model.n_vocab);
    for prompt in prompts {
        if prompt.is_empty() {
            return Err(RequestError::field("prompt", "the prompt is empty"));
        }
        if prompt.len() >= context_tokens as usize {
            return Err(RequestError::PromptTooLong { n_tokens: prompt.len(), context_tokens });
        }
        if let Some(token) = prompt.iter().find(|token| **token >= n_vocab) {
            let reason = format!("the prompt holds token {token}; the vocabulary has {n_vocab} tokens");
            return Err(RequestError::field("prompt", reason));
        }
    }
    Ok(())
}

/// Hands every choice to the engine; when one is refused, those before it end as their receivers are dropped.
fn submit(serving: &Serving, draft: Draft) -> Result<Vec<Submitted>, RequestError> {
    let mut submitted = Vec::with_capacity(draft.prompts.len() * draft.n as usize);
    for prompt in draft.prompts {
        for k in 0..draft.n {
            let mut generation = draft.generation.clone();
            // The same seed would give the same text for each choice.
            generation.sampling.seed = generation.sampling.seed.map(|seed| seed.wrapping_add(k));
            let (events, receiver) = mpsc::unbounded_channel();
            let submission = Submission {
                request_id: draft.request_id.clone(),
                prompt: prompt.clone(),
                chain_root: draft.chain_root,
                generation,
                cache_prompt: draft.cache_prompt,
                wanted_slot: draft.wanted_slot.filter(|_| submitted.is_empty()),
                events,
            };
            let has_grammar = submission.generation.sampling.grammar.is_some();
            serving.engine.submit(submission).map_err(|error| match error {
                EngineError::Sampler { reason } if has_grammar => RequestError::field("grammar", reason),
                error => error.into(),
            })?;
            submitted.push((Choice::new(prompt.len(), k), receiver));
        }
    }
    Ok(submitted)
}
