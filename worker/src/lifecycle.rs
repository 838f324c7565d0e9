//! One request from its body to the end of its response, for all endpoints.
//!
//! All slow work before the engine is one blocking step (parse, render, tokenize, check, submit). The response is then
//! a stream of steps; dropping it, for example when a client disconnects, frees its slots. Not here: the shapes of
//! requests (`request`) and of responses (`http`), running the model (the engine).

mod arguments;
pub mod chat;
mod chat_answer;
pub mod journal;
pub mod message;
pub mod message_stream;
mod output_parser;
pub mod prompt_fingerprint;
pub mod prompts;
mod reasoning;
mod response_stream;
#[cfg(test)]
pub(crate) mod testing;
pub mod tokenized_prompt;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{RequestId, SlotId};
use warmpath_common::lora::{self, Applied};
use warmpath_shell::trace::Span;
use warmpath_worker_core::tenants::TenantId;

use crate::engine::{self, EngineError, EventReceiver, Generation, PeerOffer, Submission};
use crate::error::RequestError;
use crate::loaded_model::generator::Generator;
use crate::metrics::Metrics;
use crate::request::generation::{CheckContext, probabilities, seed_of_choice};
use crate::request::{BodyReader, CommonFields, PRIORITY_ABS_MAX, Request, ShiftFields};
use crate::response_format::WantedSchema;
use warmpath_constraint::CompiledSchema;

use journal::{PastOutput, RouterInstructions};
use response_stream::{ChoiceState, RequestTimer};
pub use response_stream::{ResponseSpec, ResponseStep, ResponseTotals, StartedResponse};
use tokenized_prompt::TokenizedPrompt;

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
    /// Highest priority that the router allows; higher ones are reduced to it.
    pub priority_max: Option<i32>,
    /// State for this request that another worker offers.
    pub peer: Option<PeerOffer>,
    /// The router's instructions for the response.
    pub instructions: RouterInstructions,
    /// Body.
    pub body: Bytes,
    /// Reader of the endpoint's bodies.
    pub read: BodyReader,
}

/// A request that is ready for the engine.
struct PreparedRequest {
    request_id: RequestId,
    prompts: Vec<TokenizedPrompt>,
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
    peer: Option<PeerOffer>,
    past: PastOutput,
}

/// A choice in the engine, and the receiver of its events.
type Submitted = (ChoiceState, EventReceiver);

/// Returns the response to a request once its first choice has a slot.
///
/// Errors: any [`RequestError`] before the first token.
pub async fn start(
    generator: &Arc<Generator>,
    metrics: &Arc<Metrics>,
    mut arrival: Arrival,
) -> Result<StartedResponse, RequestError> {
    generator.check_queue()?;
    let mut timer = RequestTimer::start(&mut arrival, metrics);
    let on_the_way = generator.engine.announce();
    let reader = Arc::clone(generator);
    let work = move || {
        let _on_the_way = on_the_way;
        prepare(&reader, arrival)
    };
    let preparation = generator.common.pools.compute.run(work).await;
    timer.prepared();
    let (spec, submitted) = preparation.inspect_err(|_| timer.failed("prepare"))?;
    StartedResponse::begin(spec, submitted, timer).await
}

fn prepare(generator: &Generator, arrival: Arrival) -> Result<(ResponseSpec, Vec<Submitted>), RequestError> {
    // The fields that need no prompt are checked first, so that a bad request is refused before anything is tokenized.
    let Request { shared, prompt, answer: fields } = (arrival.read)(&arrival.body)?;
    let CommonFields { options, generation: generation_fields, refused } = shared;
    generator.check_model(options.model.as_deref())?;
    refused.check()?;
    let wanted_schema = generation_fields.wanted_schema()?;
    let leaves_ignore_eos = generation_fields.leaves_ignore_eos();
    let tokenize = |text: &str| generator.tokenize_plain(text);
    let n_vocab = generator.common.model.n_vocab;
    // Only drafts use a prediction, so it is not tokenized otherwise.
    let drafts = generator.engine.facts().drafted_max > 0;
    let tokenize_predicted = |text: &str| if drafts { tokenize(text) } else { Vec::new() };
    let drafts = generation_fields.draft_wish(&tokenize_predicted)?;
    let mut generation =
        generation_fields.resolve(&CheckContext { n_vocab, tokenize: &tokenize, defaults: &generator.defaults })?;
    generation.drafts = drafts;

    // Prompts, and the rules that they bring: formats of calls, schema, reasoning.
    let n = options.n_choices()?;
    let salt = options.cache_salt.as_deref().or(arrival.cache_salt.as_deref()).unwrap_or_default();
    let mut prompts = prompts::read(generator, prompt, salt)?;
    check_prompts(generator, &prompts, n)?;
    generation.schema = wanted_schema.map(|schema| compile(generator, schema)).transpose()?;
    if leaves_ignore_eos && (generation.schema.is_some() || prompts.iter().any(TokenizedPrompt::may_call)) {
        generation.ignore_eos = false;
    }
    constrain(generator, &mut prompts, &mut generation)?;
    if let Some(wish) = generation.probabilities.as_mut().filter(|_| prompts.iter().any(|prompt| prompt.is_echoed)) {
        probabilities::add_those_of_prompt(wish)?;
    }

    // A continued response: what another worker has sent must fit this request, and its seed must be known.
    let RouterInstructions { identity, wants_journal, past: past_output } = arrival.instructions;
    past_output
        .as_ref()
        .map_or(Ok(()), |past_output| past_output.check(prompts.len().saturating_mul(n as usize), n_vocab))?;
    // A continuation has no logits of the prompt, which its log probabilities would need.
    let lists_prompt = generation.probabilities.is_some_and(|wish| wish.of_prompt);
    let is_journaled = wants_journal && !lists_prompt;
    if is_journaled {
        // llama.cpp replaces this seed by a random one.
        let seed = generation.sampling.seed.filter(|seed| *seed != u32::MAX);
        generation.sampling.seed = Some(seed.unwrap_or_else(|| identity.seed()));
    }

    // The response's half stays here, and the engine's half is submitted.
    let spec = ResponseSpec {
        delivery: options.delivery(),
        identity,
        is_journaled,
        past: past_output.clone(),
        silence_max: options.silence_max(generator.silence_max)?,
        fields,
        generation: generation.clone(),
        prompt_texts: prompt_texts(&prompts, n),
        answer: prompts.iter().find_map(|prompt| prompt.answer.clone()),
        fingerprint: prompts.first_mut().and_then(|prompt| prompt.fingerprint.take()),
        left_out: prompts.first_mut().map(|prompt| std::mem::take(&mut prompt.left_out)).unwrap_or_default(),
    };
    let adapter = lora::resolve(&generator.common.model, options.model.as_deref(), options.lora.as_deref())?;
    let hinted_slot = arrival.wanted_slot.filter(|slot| slot.0 < generator.common.model.n_slots);
    let request = PreparedRequest {
        prompts,
        n,
        chain_root: generator.chain_root(adapter, salt),
        tenant: arrival.tenant,
        adapter,
        generation,
        cache_prompt: options.cache_prompt != Some(false),
        priority: options.priority()?.min(arrival.priority_max.unwrap_or(PRIORITY_ABS_MAX)),
        shifts: options.shifts()?,
        wanted_slot: options.wanted_slot(generator.common.model.n_slots)?.or(hinted_slot),
        expected_tokens: arrival.expected_tokens,
        request_id: arrival.id,
        peer: arrival.peer,
        past: past_output.unwrap_or_default(),
    };
    Ok((spec, submit(generator, request)?))
}

/// Adds the constraints of a chat's response to the generation.
///
/// A response that follows a client's grammar has no reasoning, and all of it is content. A response that follows a
/// schema may have reasoning before it, and may be a tool call instead. Errors: `Field` if tools are combined with a
/// grammar, and for a bound of reasoning that the format cannot keep.
fn constrain(
    generator: &Generator,
    prompts: &mut [TokenizedPrompt],
    generation: &mut Generation,
) -> Result<(), RequestError> {
    for prompt in prompts.iter_mut() {
        let Some(answer) = &prompt.answer else { continue };
        if generation.sampling.grammar.is_none() && generation.schema.is_none() {
            answer.constrain(generation)?;
        } else if answer.may_call() && generation.sampling.grammar.is_none() {
            answer.constrain_either(generation)?;
        } else if answer.may_call() {
            return Err(RequestError::field("grammar", "`grammar` cannot be combined with `tools` that may be called"));
        } else if generation.schema.is_none() || !answer.let_reason(generation) {
            prompt.answer = None;
        }
    }
    for prompt in prompts {
        prompt.bound = reasoning::bound(generator, generation, prompt)?;
    }
    Ok(())
}

/// Returns the text of each choice's prompt; empty if the response does not repeat them.
fn prompt_texts(prompts: &[TokenizedPrompt], n: u32) -> Vec<String> {
    let of_choices = |prompt: &TokenizedPrompt| prompt.text.clone().map(|text| std::iter::repeat_n(text, n as usize));
    prompts.iter().filter_map(of_choices).flatten().collect()
}

fn compile(generator: &Generator, schema: WantedSchema) -> Result<CompiledSchema, RequestError> {
    let WantedSchema { param, schema } = schema;
    let result = generator.engine.compiler().and_then(|compiler| compiler.compile(&schema));
    result.map_err(|reason| RequestError::field(param, reason))
}

fn check_prompts(generator: &Generator, prompts: &[TokenizedPrompt], n: u32) -> Result<(), RequestError> {
    let n_sequences = prompts.len().saturating_mul(n as usize);
    if n_sequences > generator.n_places() {
        let reason =
            format!("{n_sequences} choices are requested; this worker allows at most {}", generator.n_places());
        return Err(RequestError::field("n", reason));
    }
    prompts.iter().try_for_each(|prompt| generator.check_prompt(&prompt.tokens, &prompt.runs))
}

/// Submits every choice to the engine. If one is refused, the earlier ones are cancelled by dropping their receivers.
fn submit(generator: &Generator, mut request: PreparedRequest) -> Result<Vec<Submitted>, RequestError> {
    let mut submissions = Vec::with_capacity(request.prompts.len() * request.n as usize);
    for prompt in std::mem::take(&mut request.prompts) {
        for k in 0..request.n {
            let mut generation = request.generation.clone();
            // The same seed would give the same text for each choice.
            generation.sampling.seed = generation.sampling.seed.map(|seed| seed_of_choice(seed, k));
            generation.bound.clone_from(&prompt.bound);
            let (events, receiver) = engine::events();
            let past_tokens = request.past.tokens(submissions.len());
            let said = past_tokens.iter().map(|past_token| past_token.sampled.token);
            let submission = Submission {
                request_id: request.request_id.clone(),
                prompt: prompt.tokens.iter().copied().chain(said).collect(),
                past: past_tokens.to_vec(),
                past_end: request.past.end(submissions.len()),
                chain_root: request.chain_root,
                tenant: request.tenant,
                adapter: request.adapter,
                generation,
                cache_prompt: request.cache_prompt,
                shifts: request.shifts.resolve(&prompt.tokens, generator.common.prompts.vocabulary().bos),
                expected_tokens: request.expected_tokens,
                wanted_slot: request.wanted_slot.filter(|_| submissions.is_empty()),
                breakpoints: prompt.breakpoints.clone(),
                priority: request.priority,
                // With several choices, the other ones wait for the transfer of the first.
                peer: request.peer.take(),
                runs: prompt.runs.clone(),
                events,
            };
            let n_past = submission.past.len();
            let has_grammar = submission.generation.sampling.grammar.is_some();
            let has_calls = submission.generation.calls.is_some();
            generator.engine.submit(submission).map_err(|error| match error {
                EngineError::Sampler { reason } if has_grammar => RequestError::field("grammar", reason),
                EngineError::Sampler { reason } if has_calls => RequestError::field("tools", reason),
                EngineError::Shift(obstacle) => RequestError::field("cache_reuse", obstacle.to_string()),
                error => error.into(),
            })?;
            submissions.push((ChoiceState::new(prompt.tokens.len(), n_past, k), receiver));
        }
    }
    Ok(submissions)
}
