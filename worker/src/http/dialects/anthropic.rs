//! `/v1/messages` and `/v1/messages/count_tokens`, as in Anthropic's API.
//!
//! One message has the response's parts as its blocks; in a stream each block is opened, grows and is closed. Not here:
//! the conversion to a chat (`warmpath_common::dialects::anthropic`), the objects' fields (`wire`).

pub mod wire;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use warmpath_common::dialects::{Converted, DialectError, anthropic};
use warmpath_common::ids::RequestId;
use warmpath_shell::api_error::ApiError as _;
use warmpath_shell::dialect_errors::as_anthropic;

use self::wire::{AppliedEdits, Block, Delta, End, Event, Message as WireMessage, SIGNATURE, Usage, stop_reason};
use super::api_adapter::{self, Beginning, CompleteMessage, DialectWriter, PartEnd};
use super::cache_diagnostics::Diagnostics;
use super::content_parts::{MessagePart, PartKind};
use crate::app::App;
use crate::error::RequestError;
use crate::http::body::Body;
use crate::http::context::RequestContext;
use crate::http::delivery::sse::write_named_event;

/// Responds to a request for a message.
pub async fn create(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    api_adapter::create::<MessageWriter>(&app, context, body).await
}

/// Responds with the number of tokens of a request's prompt.
pub async fn count_tokens(
    State(app): State<App>,
    context: RequestContext,
    body: Body,
) -> Result<Json<Value>, RequestError> {
    let input_tokens = api_adapter::count_tokens(&app, context, body, anthropic::count_tokens).await?;
    Ok(Json(json!({"input_tokens": input_tokens})))
}

/// Parts of a request that its message repeats.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Repeated {
    /// The client's stop texts.
    stop_sequences: Option<Vec<String>>,
    /// Question why the cache was missed.
    diagnostics: Option<DiagnosticsField>,
    /// Edits of the prompt that the client wishes; none is made.
    context_management: Option<IgnoredAny>,
}

/// A client's question why the cache was missed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DiagnosticsField {
    /// Id of the message with which the prompt is compared; null in the first request of a conversation.
    previous_message_id: Option<String>,
}

/// Writer of a response as a message.
pub struct MessageWriter {
    id: String,
    beginning: Beginning,
    repeated: Repeated,
    diagnostics: Option<Diagnostics>,
}

impl MessageWriter {
    fn message<'a>(&'a self, content: Vec<Block<'a>>, end: End<'a>, usage: Usage) -> WireMessage<'a> {
        WireMessage {
            id: &self.id,
            kind: "message",
            role: "assistant",
            model: &self.beginning.model,
            content,
            end,
            usage,
            diagnostics: self.diagnostics,
            context_management: self.applied_edits(),
        }
    }

    /// Returns the edits of the prompt that were made, if the client wished some.
    fn applied_edits(&self) -> Option<AppliedEdits> {
        self.repeated.context_management.as_ref().map(|_| AppliedEdits::default())
    }

    fn usage(&self, output_tokens: u32) -> Usage {
        let Beginning { prompt_tokens, cached_tokens, .. } = self.beginning;
        Usage {
            input_tokens: prompt_tokens.saturating_sub(cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached_tokens,
            output_tokens,
        }
    }

    /// Returns the end of a message. A stop text of the chat template's own ends the model's turn.
    fn end_of<'a>(&self, message: &CompleteMessage<'a>) -> End<'a> {
        let stop_texts = self.repeated.stop_sequences.iter().flatten();
        let stop_sequence = message.stop_text.filter(|text| stop_texts.clone().any(|one| one == text));
        End { stop_reason: Some(stop_reason(message, stop_sequence)), stop_sequence }
    }
}

fn write(out: &mut Vec<u8>, event: &Event<'_>) {
    write_named_event(out, event.name(), event);
}

impl DialectWriter for MessageWriter {
    type Repeated = Repeated;

    fn convert(body: &[u8]) -> Result<Converted, DialectError> {
        anthropic::messages(body)
    }

    fn read_repeated(body: &Body) -> Result<Repeated, RequestError> {
        body.parse()
    }

    fn new(beginning: Beginning, repeated_fields: Repeated) -> Self {
        let previous = repeated_fields.diagnostics.as_ref().and_then(|field| field.previous_message_id.as_deref());
        let diagnostics = previous.and_then(|previous| Diagnostics::of(&beginning, previous));
        Self { id: beginning.id("msg"), beginning, repeated: repeated_fields, diagnostics }
    }

    fn whole(self, message: &CompleteMessage<'_>) -> Vec<u8> {
        let content = message.parts.iter().map(Block::whole).collect();
        let whole_message = self.message(content, self.end_of(message), self.usage(message.totals.completion_tokens));
        serde_json::to_vec(&whole_message).expect("a message has a JSON form")
    }

    fn present(error: Response, id: &RequestId) -> Response {
        as_anthropic(error, id)
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        let message = self.message(Vec::new(), End::default(), self.usage(0));
        write(out, &Event::MessageStart { message });
        write(out, &Event::Ping);
    }

    fn open(&mut self, out: &mut Vec<u8>, part: &MessagePart) {
        write(out, &Event::ContentBlockStart { index: part.index, content_block: Block::empty(part) });
    }

    fn grow(&mut self, out: &mut Vec<u8>, part: &MessagePart, text: &str) {
        write(out, &Event::ContentBlockDelta { index: part.index, delta: Delta::of(part, text) });
    }

    fn close(&mut self, out: &mut Vec<u8>, part: &MessagePart, _: PartEnd) {
        if part.kind == PartKind::Thought {
            let delta = Delta::Signature { signature: SIGNATURE };
            write(out, &Event::ContentBlockDelta { index: part.index, delta });
        }
        write(out, &Event::ContentBlockStop { index: part.index });
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        write(out, &Event::Ping);
    }

    fn end(&mut self, out: &mut Vec<u8>, message: &CompleteMessage<'_>) {
        let usage = self.usage(message.totals.completion_tokens);
        write(
            out,
            &Event::MessageDelta { delta: self.end_of(message), usage, context_management: self.applied_edits() },
        );
        write(out, &Event::MessageStop);
    }

    fn fail(&mut self, out: &mut Vec<u8>, _: &[MessagePart], error: &RequestError) {
        let message = error.to_string();
        write_named_event(out, "error", &anthropic::ErrorBody::new(error.class().status().as_u16(), &message));
    }
}
