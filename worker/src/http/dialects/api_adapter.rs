//! Endpoints of other dialects: a request is converted to a chat, and the chat's response to the dialect.
//!
//! Between the conversion and the writer, a request runs through the common lifecycle of chats. Errors are reported
//! with the client's field names. Not here: the conversion (`warmpath_common::dialects`), a dialect's objects and
//! events (`http::dialects::anthropic`, `http::dialects::responses`).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt;
use warmpath_common::dialects::{Converted, DialectError, ToolNames};
use warmpath_common::fields;
use warmpath_common::ids::RequestId;
use warmpath_shell::api_error::ApiError as _;
use warmpath_shell::refusal::respelled;

use super::content_parts::{MessagePart, MessageParts, MessagePiece};
use crate::app::App;
use crate::engine::FinishReason;
use crate::error::RequestError;
use crate::http::body::Body;
use crate::http::context::RequestContext;
use crate::http::delivery::{sse, whole};
use crate::http::openai::answer::{self, Facts};
use crate::lifecycle::ResponseTotals;
use crate::lifecycle::journal::{self, ResponseIdentity};
use crate::lifecycle::message::MessageDelta;
use crate::lifecycle::message_stream::{MessageEnd, MessageStep, Messages};
use crate::lifecycle::prompt_fingerprint::{PromptComparison, PromptFingerprint};
use crate::lifecycle::tokenized_prompt::LeftOut;
use crate::request::{ChatRequest, Delivery, read_chat};
use crate::tools::ToolFields;

/// Writer of a response in a dialect.
pub trait DialectWriter: Send + Sized + 'static {
    /// Parts of the request that the response repeats.
    type Repeated: Send + 'static;

    /// Returns the chat of a body.
    fn convert(body: &[u8]) -> Result<Converted, DialectError>;

    /// Parses the parts that the response repeats.
    fn read_repeated(body: &Body) -> Result<Self::Repeated, RequestError>;

    /// Returns the writer of one response.
    fn new(beginning: Beginning, repeated: Self::Repeated) -> Self;

    /// Returns the whole response as JSON.
    fn whole(self, message: &CompleteMessage<'_>) -> Vec<u8>;

    /// Returns an error of ours in the dialect's form.
    fn present(error: Response, id: &RequestId) -> Response;

    /// Writes the events before the first part.
    fn begin(&mut self, out: &mut Vec<u8>);

    /// Writes the start of a part.
    fn open(&mut self, out: &mut Vec<u8>, part: &MessagePart);

    /// Writes the new text of a part.
    fn grow(&mut self, out: &mut Vec<u8>, part: &MessagePart, text: &str);

    /// Writes the end of a part.
    fn close(&mut self, out: &mut Vec<u8>, part: &MessagePart, end: PartEnd);

    /// Writes a keep-alive event.
    fn keep_alive(&mut self, out: &mut Vec<u8>);

    /// Writes the end of the response.
    fn end(&mut self, out: &mut Vec<u8>, message: &CompleteMessage<'_>);

    /// Writes that the response failed after these parts.
    fn fail(&mut self, out: &mut Vec<u8>, parts: &[MessagePart], error: &RequestError);
}

/// Properties of a response at its start.
#[derive(Debug, Clone)]
pub struct Beginning {
    /// First name of the model.
    pub model: String,
    /// Identity of the response.
    pub identity: ResponseIdentity,
    /// Length of the prompt. Units: tokens.
    pub prompt_tokens: u32,
    /// Number of the prompt's tokens that were reused.
    pub cached_tokens: u32,
    /// Tools that the chat's functions stand for.
    pub tools: ToolNames,
    /// Fingerprint of the prompt.
    pub fingerprint: Option<Box<PromptFingerprint>>,
}

impl Beginning {
    /// Returns the response's id, from which a later request learns what changed in its prompt.
    pub fn id(&self, prefix: &str) -> String {
        let fingerprint = self.fingerprint.as_ref().map(|fingerprint| fingerprint.encode());
        format!("{prefix}_{}{}", self.identity.id(), fingerprint.unwrap_or_default())
    }

    /// Compares the prompt with that of an earlier response.
    pub fn compare(&self, id: &str) -> PromptComparison {
        self.fingerprint.as_ref().map_or(PromptComparison::NotFound, |fingerprint| fingerprint.compare(id))
    }

    /// Returns how many tokens of an earlier prompt of `n_tokens` were not reused.
    pub fn missed_tokens(&self, n_tokens: u32) -> u32 {
        n_tokens.min(self.prompt_tokens).saturating_sub(self.cached_tokens)
    }
}

/// A complete response.
#[derive(Debug)]
pub struct CompleteMessage<'a> {
    /// Its parts.
    pub parts: &'a [MessagePart],
    /// End of the response.
    pub ending: MessageEnd,
    /// Stop text of the client or of the chat template that ended it, if one did.
    pub stop_text: Option<&'a str>,
    /// Its tokens.
    pub totals: ResponseTotals,
}

/// End of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartEnd {
    /// The part is complete.
    Whole,
    /// The response reached its limit within it.
    CutShort,
}

/// Responds to a request of a dialect.
pub async fn create<W: DialectWriter>(
    app: &App,
    mut context: RequestContext,
    mut body: Body,
) -> Result<Response, RequestError> {
    let generator = app.open_generator()?;
    let instructions = context.take_journal(&mut body)?;
    let id = context.id.clone();
    generator.check_queue()?;
    let convert = move || Ok((W::convert(&body.0)?, W::read_repeated(&body)?));
    let convert = generator.common.pools.compute.run(convert);
    let (Converted { body, spelling, tools }, repeated) = convert.await?;
    let messages = answer::start(app, context, instructions, Body(body.into()), ChatRequest::read).await;
    let messages = messages.map_err(|error| respelled(error, &spelling))?;
    let answer = messages.answer();
    // The conversion has already taken the tools out.
    let left_out = LeftOut { tools: tools.left_out().to_vec(), parts: answer.spec().left_out.parts.clone() };
    let (facts, delivery) = (Facts::of(answer), answer.spec().delivery);
    let beginning = Beginning {
        model: generator.common.model.names.first().cloned().unwrap_or_default(),
        identity: answer.spec().identity.clone(),
        prompt_tokens: answer.prompt_tokens(),
        cached_tokens: answer.cached_tokens(),
        tools,
        fingerprint: answer.spec().fingerprint.clone(),
    };
    let mut writing =
        DialectStream { writer: W::new(beginning, repeated), messages, parts: MessageParts::default(), ending: None };
    let mut response = match delivery {
        Delivery::Whole => {
            whole::respond(writing.messages.lines(), writing.whole(), move |error| W::present(error, &id)).await?
        }
        Delivery::Stream | Delivery::StreamWithUsage => writing.stream(),
    };
    facts.describe(&mut response);
    answer::tell_left_out(app, &mut response, &left_out);
    Ok(response)
}

/// Returns the number of tokens of a request's prompt.
///
/// Errors: those of the conversion and of a chat's prompt.
pub async fn count_tokens(
    app: &App,
    context: RequestContext,
    body: Body,
    convert: fn(&[u8]) -> Result<Converted, DialectError>,
) -> Result<usize, RequestError> {
    let salt = context.cache_salt?.unwrap_or_default();
    let generator = app.generator()?;
    let reader = Arc::clone(&generator);
    let count = move || {
        let Converted { body, spelling, .. } = convert(&body.0)?;
        let count = || {
            let chat = read_chat(&body, &salt)?;
            reader.check_model(chat.model.as_deref())?;
            fields::read::<ToolFields>(&body)?.resolve(&chat.messages, reader.reasoning_output)?;
            reader.count_tokens(&chat)
        };
        count().map_err(|error: RequestError| respelled(error, &spelling))
    };
    generator.common.pools.count.run(count).await
}

/// Returns the time. Units: seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A response in progress.
struct DialectStream<W> {
    writer: W,
    messages: Messages,
    parts: MessageParts,
    /// End of the response; `None` until then.
    ending: Option<MessageEnd>,
}

impl<W: DialectWriter> DialectStream<W> {
    async fn whole(mut self) -> Result<Response, RequestError> {
        while let Some(step) = self.messages.next().await? {
            match step {
                MessageStep::Delta { delta, .. } => {
                    for piece in pieces(&delta) {
                        self.parts.push(piece);
                    }
                }
                MessageStep::Finished { ending, .. } => self.ending = Some(ending),
                MessageStep::Prompt { .. } => {}
            }
        }
        let body = self.writer.whole(&message(&self.parts, &self.messages, self.ending));
        Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
    }

    fn stream(mut self) -> Response {
        let spec = self.messages.answer().spec();
        let (is_journaled, exactness) = (spec.is_journaled, journal::exactness(&spec.generation.sampling));
        let is_continued = spec.past.is_some();
        let mut first = Vec::new();
        self.writer.begin(&mut first);
        if is_continued {
            first.clear();
        } else {
            self.messages.end_write(None, &mut first);
        }
        let first = futures::stream::once(std::future::ready(Ok::<_, Infallible>(Bytes::from(first))));
        let later_events = futures::stream::unfold(Some(self), |writing| async {
            let mut writing = writing?;
            let mut bytes = Vec::new();
            let goes_on = writing.write_next(&mut bytes).await;
            Some((Ok(Bytes::from(bytes)), goes_on.then_some(writing)))
        });
        let mut response = sse::response(first.chain(later_events.fuse()));
        if is_journaled {
            whole::set_journal_header(&mut response, exactness);
        }
        response
    }

    /// Writes the next events; returns whether others follow.
    async fn write_next(&mut self, out: &mut Vec<u8>) -> bool {
        while out.is_empty() {
            let silence_max = self.messages.answer().spec().silence_max;
            match sse::unless_silent(silence_max, self.messages.next()).await {
                Err(sse::Silent) => {
                    // The client has items of a continued response, and an event without items would replace them.
                    match self.messages.answer().spec().past.is_some() && self.parts.list().is_empty() {
                        true => out.extend_from_slice(sse::COMMENT),
                        false => self.writer.keep_alive(out),
                    }
                    self.messages.end_write(None, out);
                }
                Ok(Ok(Some(MessageStep::Delta { delta, .. }))) => {
                    for piece in pieces(&delta) {
                        self.write_piece(out, piece);
                    }
                    if !out.is_empty() {
                        self.messages.end_write(Some(0), out);
                    }
                }
                Ok(Ok(Some(MessageStep::Finished { ending, .. }))) => self.ending = Some(ending),
                Ok(Ok(Some(MessageStep::Prompt { .. }))) => {}
                Ok(Ok(None)) => {
                    self.write_end(out);
                    self.messages.end_write(None, out);
                    return false;
                }
                Ok(Err(error)) => {
                    error.log();
                    self.writer.fail(out, self.parts.list(), &error);
                    // With this line of the journal, the router does not continue the stream at another worker.
                    if !error.may_succeed_elsewhere() {
                        self.messages.end_write(None, out);
                    }
                    return false;
                }
            }
        }
        true
    }

    fn write_piece(&mut self, out: &mut Vec<u8>, piece: MessagePiece<'_>) {
        let Some(change) = self.parts.push(piece) else { return };
        let parts = self.parts.list();
        if let Some(closed_idx) = change.closed {
            self.writer.close(out, &parts[closed_idx], PartEnd::Whole);
        }
        let Some(part) = parts.last() else { return };
        if change.opened {
            self.writer.open(out, part);
        }
        if !change.grown.is_empty() {
            self.writer.grow(out, part, change.grown);
        }
    }

    fn write_end(&mut self, out: &mut Vec<u8>) {
        let message = message(&self.parts, &self.messages, self.ending);
        if let Some(open_part) = self.parts.open() {
            let is_cut = message.ending.reason == FinishReason::Length;
            self.writer.close(out, open_part, if is_cut { PartEnd::CutShort } else { PartEnd::Whole });
        }
        self.writer.end(out, &message);
    }
}

fn message<'a>(parts: &'a MessageParts, messages: &'a Messages, ending: Option<MessageEnd>) -> CompleteMessage<'a> {
    CompleteMessage {
        parts: parts.list(),
        ending: ending.unwrap_or(MessageEnd { reason: FinishReason::EndOfGeneration, has_tool_calls: false }),
        stop_text: messages.answer().stop_text(),
        totals: messages.totals(),
    }
}

/// Returns the pieces of a delta in their order: reasoning, then content, then calls.
fn pieces(delta: &MessageDelta) -> impl Iterator<Item = MessagePiece<'_>> {
    let said = [MessagePiece::Thought(&delta.reasoning_content), MessagePiece::Text(&delta.content)];
    said.into_iter().chain(delta.tool_calls.iter().map(MessagePiece::Call))
}

#[cfg(test)]
mod tests;
