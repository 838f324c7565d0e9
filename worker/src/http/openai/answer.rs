//! From a response's steps to HTTP: one object, or server-sent events.
//!
//! Not here: the steps (`lifecycle`), the objects' fields (`http::openai::wire`).

use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tracing::info;
use warmpath_common::headers;
use warmpath_shell::api_error::ApiError as _;
use warmpath_worker_output::logprobs::{PromptProbabilities, TokenProbabilities};

use super::calls::GrowingCalls;
use super::logprobs::{self, ListedTokens, Logprobs, Pieces, TextEnd};
use super::wire::{self, Choice, Content, Delta, Object, ObjectKind, Timings, Usage, finish_reason};
use crate::app::App;
use crate::engine::{FetchedState, Started};
use crate::error::RequestError;
use crate::http::body::Body;
use crate::http::context::RequestContext;
use crate::http::delivery;
use crate::http::delivery::sse::{self, write_event};
use crate::http::delivery::whole::set_journal_header;
use crate::lifecycle::journal::{self, ResponseIdentity, RouterInstructions};
use crate::lifecycle::message::WholeMessage;
use crate::lifecycle::message_stream::{MessageEnd, MessageStep, Messages};
use crate::lifecycle::tokenized_prompt::LeftOut;
use crate::lifecycle::{self, Arrival, StartedResponse};
use crate::loaded_model::generator::Generator;
use crate::request::{BodyReader, Delivery};

/// Properties of a generating endpoint.
pub struct Endpoint {
    /// Format of its responses.
    pub shape: ObjectKind,
    /// Reader of its bodies.
    pub read: BodyReader,
}

/// Responds to a request to a generating endpoint.
pub async fn create(
    app: &App,
    endpoint: Endpoint,
    mut context: RequestContext,
    mut body: Body,
) -> Result<Response, RequestError> {
    let generator = app.open_generator()?;
    let instructions = context.take_journal(&mut body)?;
    let mut messages = start(app, context, instructions, body, endpoint.read).await?;
    let facts = Facts::of(messages.answer());
    let left_out = messages.answer().spec().left_out.clone();
    let head = ObjectHead::new(endpoint.shape, generator, &messages.answer().spec().identity);
    let mut response = match messages.answer().spec().delivery {
        Delivery::Whole => delivery::whole::respond(messages.lines(), whole(head, messages), |error| error).await?,
        Delivery::Stream | Delivery::StreamWithUsage => stream(head, messages),
    };
    facts.describe(&mut response);
    tell_left_out(app, &mut response, &left_out);
    Ok(response)
}

/// Returns the response to a request once its first choice has a slot.
///
/// Errors: any [`RequestError`] before the first token.
pub async fn start(
    app: &App,
    context: RequestContext,
    instructions: RouterInstructions,
    body: Body,
    read_body: BodyReader,
) -> Result<Messages, RequestError> {
    let mut span = app.tracer.request(&context.trace, "worker.request", context.arrived);
    span.name("warmpath.request_id", context.id.as_str());
    let generator = app.open_generator()?;
    let transfers = app.transfers.as_ref().zip(context.kv_peer.as_ref());
    let arrival = Arrival {
        peer: transfers.and_then(|(transfers, hint)| transfers.offer(hint, &generator.engine)),
        span,
        id: context.id,
        at: context.arrived,
        wanted_slot: context.wanted_slot,
        expected_tokens: context.predicted_cached_tokens.unwrap_or_default(),
        cache_salt: context.cache_salt?,
        tenant: context.tenant,
        priority_max: context.priority_max,
        instructions,
        body: body.0,
        read: read_body,
    };
    Ok(Messages::new(lifecycle::start(&generator, &app.metrics, arrival).await?))
}

/// Longest list of tools in a header; further names are omitted. Units: bytes.
///
/// Source: proxies accept headers of 4 to 8 KiB in total.
const TOOLS_BYTES_MAX: usize = 1024;

/// Properties of a response for its headers.
pub struct Facts {
    started: Started,
    prompt_tokens: u32,
    unconstrained: Vec<String>,
}

impl Facts {
    /// Returns the properties of a response at its start.
    pub fn of(answer: &StartedResponse) -> Self {
        let unconstrained_tools = answer.spec().answer.as_ref().map(|format| format.unconstrained.clone());
        Self {
            started: answer.started(),
            prompt_tokens: answer.prompt_tokens(),
            unconstrained: unconstrained_tools.unwrap_or_default(),
        }
    }

    /// Adds headers to a response: the length of its prompts, the start of its first choice, the position at which the
    /// prompt diverges from an earlier response, and the tools whose arguments may violate their schemas.
    pub fn describe(self, response: &mut Response) {
        let headers = response.headers_mut();
        headers.insert(HeaderName::from_static(headers::SLOT), HeaderValue::from(self.started.slot.0));
        headers.insert(HeaderName::from_static(headers::PROMPT_TOKENS), HeaderValue::from(self.prompt_tokens));
        let cached_tokens = self.started.cached_tokens();
        headers.insert(HeaderName::from_static(headers::CACHED_TOKENS), HeaderValue::from(cached_tokens));
        if let Some(FetchedState { n_bytes, took }) = self.started.fetched {
            let transfer_header = HeaderValue::try_from(format!("{n_bytes};{}", took.as_millis()));
            headers.insert(HeaderName::from_static(headers::KV_FETCHED), transfer_header.expect("numbers are plain"));
        }
        if let Some(left_answer_at) = self.started.left_answer_at {
            headers.insert(HeaderName::from_static(headers::ANSWER_BREAK), HeaderValue::from(left_answer_at));
        }
        let mut list = String::new();
        for name in &self.unconstrained {
            if list.len() + name.len() + 2 > TOOLS_BYTES_MAX {
                break;
            }
            list += if list.is_empty() { "" } else { ", " };
            list += name;
        }
        if let (false, Ok(list)) = (list.is_empty(), HeaderValue::try_from(list)) {
            headers.insert(HeaderName::from_static(headers::UNCONSTRAINED_TOOLS), list);
        }
    }
}

/// Reports what a request's prompt lacks: in headers, in metrics, and once in the log.
pub fn tell_left_out(app: &App, response: &mut Response, LeftOut { tools, parts }: &LeftOut) {
    let is_first = |kind| app.left_out_logged.lock().unwrap_or_else(PoisonError::into_inner).insert(kind);
    for kind in tools {
        app.metrics.left_out_tools.with_label_values(&[*kind]).inc();
        if is_first(kind) {
            let header = headers::LEFT_OUT_TOOLS;
            info!(kind, header, "a request has a tool that this worker does not run; the tool is ignored");
        }
    }
    for kind in parts {
        app.metrics.left_out_parts.with_label_values(&[*kind]).inc();
        if is_first(kind) {
            let header = headers::LEFT_OUT_PARTS;
            info!(kind, header, "a request's history has a part that the model cannot read; a text is in its place");
        }
    }
    for (header, kinds) in [(headers::LEFT_OUT_TOOLS, tools), (headers::LEFT_OUT_PARTS, parts)] {
        if !kinds.is_empty() {
            let list = HeaderValue::try_from(kinds.join(", ")).expect("kinds are plain words");
            response.headers_mut().insert(HeaderName::from_static(header), list);
        }
    }
}

/// Returns the names of the custom tools that an answer may call.
fn custom_tools(answer: &StartedResponse) -> Arc<[String]> {
    answer.spec().answer.as_ref().map_or_else(Default::default, |format| Arc::clone(&format.custom_tools))
}

/// Fields that every object of one response has.
struct ObjectHead {
    shape: ObjectKind,
    id: String,
    created: u64,
    model: String,
    system_fingerprint: String,
    generator: Arc<Generator>,
}

impl ObjectHead {
    fn new(shape: ObjectKind, generator: Arc<Generator>, identity: &ResponseIdentity) -> Self {
        Self {
            shape,
            id: format!("{}{}", shape.id_prefix(), identity.id()),
            created: identity.created,
            model: generator.common.model.names.first().cloned().unwrap_or_default(),
            system_fingerprint: generator.system_fingerprint(),
            generator,
        }
    }

    fn object<'a>(&'a self, object: &'static str, choices: Vec<Choice<'a>>) -> Object<'a> {
        Object {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.system_fingerprint,
            choices,
            truncated: false,
            usage: None,
            timings: None,
        }
    }

    fn logprobs(&self, tokens: ListedTokens<'_>, end: &mut TextEnd) -> Logprobs {
        let prompts = &self.generator.common.prompts;
        let pieces = Pieces { spelled: &|token| prompts.piece(token), said: &|token| prompts.answer_piece(token) };
        match self.shape {
            ObjectKind::Chat => logprobs::of_chat(tokens.answer, pieces),
            ObjectKind::Completion => logprobs::of_completion(tokens, pieces, end),
        }
    }
}

/// A choice that is being assembled.
#[derive(Default)]
struct WholeChoice {
    message: WholeMessage,
    prompt: Option<PromptProbabilities>,
    probabilities: Vec<TokenProbabilities>,
    finish_reason: Option<&'static str>,
}

async fn whole(head: ObjectHead, mut messages: Messages) -> Result<Response, RequestError> {
    let mut wholes: Vec<WholeChoice> = (0..messages.answer().n_choices()).map(|_| WholeChoice::default()).collect();
    for (whole, echo) in wholes.iter_mut().zip(&messages.answer().spec().prompt_texts) {
        whole.message.content.push_str(echo);
    }
    while let Some(step) = messages.next().await? {
        match step {
            MessageStep::Delta { choice, delta, probabilities } => {
                wholes[choice].message.extend(delta);
                wholes[choice].probabilities.extend(probabilities);
            }
            MessageStep::Prompt { choice, probabilities } => wholes[choice].prompt = Some(probabilities),
            MessageStep::Finished { choice, ending } => wholes[choice].finish_reason = Some(finish_reason(ending)),
        }
    }
    let answer = messages.answer();
    let custom_tools = custom_tools(answer);
    let choices = wholes.iter().enumerate().map(|(index, whole)| {
        let content = match head.shape {
            ObjectKind::Chat => Content::Message(wire::Message::new(&whole.message, &custom_tools)),
            ObjectKind::Completion => Content::Text(&whole.message.content),
        };
        let listed_tokens = ListedTokens { prompt: whole.prompt.as_ref(), answer: &whole.probabilities };
        let logprobs = answer
            .spec()
            .generation
            .probabilities
            .is_some()
            .then(|| head.logprobs(listed_tokens, &mut TextEnd::default()));
        Choice { index, content, logprobs, finish_reason: whole.finish_reason }
    });
    let mut object = head.object(head.shape.object(), choices.collect());
    let totals = messages.totals();
    object.truncated = totals.truncated;
    object.usage = Some(Some(Usage::from(totals)));
    object.timings = Some(Timings::from(totals));
    Ok(Json(object).into_response())
}

fn stream(head: ObjectHead, messages: Messages) -> Response {
    let usage = messages.answer().spec().delivery == Delivery::StreamWithUsage;
    let silence_max = messages.answer().spec().silence_max;
    let n_choices = messages.answer().n_choices();
    let ends = vec![TextEnd::default(); n_choices];
    let custom_tools = custom_tools(messages.answer());
    let calls = (0..n_choices).map(|_| GrowingCalls::new(Arc::clone(&custom_tools))).collect();
    let is_journaled = messages.answer().spec().is_journaled;
    let exactness = journal::exactness(&messages.answer().spec().generation.sampling);
    // A continued response has already begun.
    let is_begun = messages.answer().spec().past.is_some();
    let events = EventWriter { usage, ends, calls, head, messages, is_begun };
    let events = futures::stream::unfold(Some(events), |events| async {
        let mut events = events?;
        let mut bytes = Vec::new();
        let mut goes_on = true;
        while goes_on && bytes.is_empty() {
            goes_on = events.write_next(&mut bytes).await;
        }
        Some((Ok(Bytes::from(bytes)), goes_on.then_some(events)))
    });
    let comment = if is_journaled { sse::JOURNALED_COMMENT } else { sse::COMMENT };
    let mut response = sse::response(sse::kept_alive(events, silence_max, comment));
    if is_journaled {
        set_journal_header(&mut response, exactness);
    }
    response
}

/// Writer of a response as server-sent events.
struct EventWriter {
    head: ObjectHead,
    messages: Messages,
    /// Whether the client requested a last chunk with the token counts.
    usage: bool,
    /// End of the text of each choice whose log probabilities were sent.
    ends: Vec<TextEnd>,
    /// Calls of each choice so far.
    calls: Vec<GrowingCalls>,
    /// Whether an event has been written. Before that, the router can still retry the request at another worker.
    is_begun: bool,
}

impl EventWriter {
    /// Writes the events before the first text. In a chat, this is each choice's role. In a completion, it is the
    /// prompt if requested, unless its log probabilities are not computed yet.
    fn write_start(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.is_begun, true) {
            return;
        }
        if self.head.shape == ObjectKind::Chat {
            for index in 0..self.messages.answer().n_choices() {
                let delta = Delta { role: Some("assistant"), content: Some(None), ..Delta::default() };
                self.write_choice(out, self.choice(index, Content::Delta(delta)));
            }
        }
        let spec = self.messages.answer().spec();
        let is_told_later = spec.generation.probabilities.is_some_and(|wish| wish.of_prompt);
        for (index, echo) in spec.prompt_texts.iter().enumerate().filter(|_| !is_told_later) {
            self.write_choice(out, self.choice(index, Content::Text(echo)));
        }
    }

    /// Writes the events of the next step; returns whether another follows.
    async fn write_next(&mut self, out: &mut Vec<u8>) -> bool {
        loop {
            match self.messages.next().await {
                Ok(Some(MessageStep::Delta { delta, probabilities, .. }))
                    if delta.is_empty() && probabilities.is_empty() => {}
                Ok(Some(MessageStep::Delta { choice, delta, probabilities })) => {
                    self.write_start(out);
                    let has_probabilities = self.messages.answer().spec().generation.probabilities.is_some();
                    let contents: Vec<_> = match self.head.shape {
                        ObjectKind::Chat => {
                            Delta::of(&delta, &mut self.calls[choice]).into_iter().map(Content::Delta).collect()
                        }
                        ObjectKind::Completion => vec![Content::Text(&delta.content)],
                    };
                    // There is no event for text that is withheld because it may become a stop text or a call.
                    if matches!(&contents[..], [Content::Delta(part)] if part.is_empty() && !has_probabilities) {
                        continue;
                    }
                    let listed_tokens = ListedTokens { prompt: None, answer: &probabilities };
                    let mut logprobs =
                        has_probabilities.then(|| self.head.logprobs(listed_tokens, &mut self.ends[choice]));
                    for content in contents {
                        let logprobs = logprobs.take();
                        self.write_choice(out, Choice { logprobs, ..self.choice(choice, content) });
                    }
                    self.messages.end_write(Some(choice), out);
                    return true;
                }
                Ok(Some(MessageStep::Prompt { choice, probabilities })) => {
                    self.write_start(out);
                    self.write_prompt(out, choice, &probabilities);
                    return true;
                }
                Ok(Some(MessageStep::Finished { choice, ending })) => {
                    self.write_start(out);
                    self.write_end_of_choice(out, choice, ending);
                    self.messages.end_write(Some(choice), out);
                    return true;
                }
                Ok(None) => {
                    self.write_end(out);
                    self.messages.end_write(None, out);
                    return false;
                }
                Err(error) => {
                    error.log();
                    write_event(out, &error.body());
                    // Without a line of the journal after the error, the router may continue at another worker.
                    if !error.may_succeed_elsewhere() {
                        self.messages.end_write(None, out);
                    }
                    return false;
                }
            }
        }
    }

    fn write_prompt(&mut self, out: &mut Vec<u8>, index: usize, probabilities: &PromptProbabilities) {
        let listed_tokens = ListedTokens { prompt: Some(probabilities), answer: &[] };
        let logprobs = Some(self.head.logprobs(listed_tokens, &mut self.ends[index]));
        let text = self.messages.answer().spec().prompt_texts.get(index).map_or("", String::as_str);
        self.write_choice(out, Choice { logprobs, ..self.choice(index, Content::Text(text)) });
    }

    fn choice<'a>(&self, index: usize, content: Content<'a>) -> Choice<'a> {
        Choice { index, content, logprobs: None, finish_reason: None }
    }

    fn write_choice(&self, out: &mut Vec<u8>, choice: Choice<'_>) {
        let mut chunk = self.head.object(self.head.shape.chunk_object(), vec![choice]);
        chunk.usage = self.usage.then_some(None);
        write_event(out, &chunk);
    }

    /// Writes the end of one choice; the last one has the timings unless a chunk with the token counts follows.
    fn write_end_of_choice(&self, out: &mut Vec<u8>, index: usize, ending: MessageEnd) {
        let answer = self.messages.answer();
        let content = match self.head.shape {
            ObjectKind::Chat => Content::Delta(Delta::default()),
            ObjectKind::Completion => Content::Text(""),
        };
        let choice = Choice { finish_reason: Some(finish_reason(ending)), ..self.choice(index, content) };
        let mut chunk = self.head.object(self.head.shape.chunk_object(), vec![choice]);
        chunk.truncated = answer.is_complete() && answer.totals().truncated;
        chunk.usage = self.usage.then_some(None);
        chunk.timings = (answer.is_complete() && !self.usage).then(|| answer.totals().into());
        write_event(out, &chunk);
    }

    fn write_end(&self, out: &mut Vec<u8>) {
        if self.usage {
            let mut chunk = self.head.object(self.head.shape.chunk_object(), Vec::new());
            let totals = self.messages.totals();
            chunk.usage = Some(Some(totals.into()));
            chunk.timings = Some(totals.into());
            write_event(out, &chunk);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}
