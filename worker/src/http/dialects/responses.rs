//! `/v1/responses`, as in OpenAI's API, without storage of responses.
//!
//! A message's parts are the response's items. Each item is added, grows and is done, and every event has a number. Not
//! here: the conversion to a chat (`warmpath_common::dialects::responses`), the objects' fields (`wire`).

mod repeated;
pub mod wire;

use std::cell::Cell;
use std::convert::Infallible;

use axum::Json;
use axum::extract::State;
use axum::http::{Method, Uri};
use axum::response::Response;
use serde_json::{Value, json};
use warmpath_common::dialects::{CallForm, Converted, DialectError, Tool, responses};
use warmpath_common::ids::RequestId;
use warmpath_shell::refusal::{Name, Refusal, stored_response};

use self::repeated::Repeated;
use self::wire::{Content, Event, Incomplete, Item, Numbered, PartPosition, ResponseFailure, ResponseObject, Stage};
use super::api_adapter::{self, Beginning, CompleteMessage, DialectWriter, PartEnd, now_s};
use super::cache_diagnostics::CacheDiagnostics;
use super::content_parts::{MessagePart, PartKind};
use crate::app::App;
use crate::engine::FinishReason;
use crate::error::RequestError;
use crate::http::body::Body;
use crate::http::context::RequestContext;
use crate::http::delivery::sse;
use crate::http::delivery::sse::write_named_event;
use crate::http::openai::free_text::FreeText;

/// Number of the event `response.in_progress`, the second one.
///
/// Source: repetitions keep it, so that all later events have the same numbers at a worker that continues the stream.
const IN_PROGRESS_NUMBER: u64 = 1;

/// Responds to a request for a response.
pub async fn create(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    api_adapter::create::<ResponseWriter>(&app, context, body).await
}

/// Responds with the number of tokens of a request's prompt.
pub async fn count_tokens(
    State(app): State<App>,
    context: RequestContext,
    body: Body,
) -> Result<Json<Value>, RequestError> {
    let input_tokens = api_adapter::count_tokens(&app, context, body, responses::responses).await?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": input_tokens})))
}

/// Responds to any request for a stored response, or below the path of responses.
pub async fn stored(method: Method, uri: Uri, Name(rest): Name) -> Result<Infallible, RequestError> {
    match stored_response(&method, &rest) {
        Some(id) => Err(Refusal::NotStored { id: id.to_owned() }.into()),
        None => Err(Refusal::path(&uri).into()),
    }
}

/// Writer of a response.
pub struct ResponseWriter {
    id: String,
    beginning: Beginning,
    repeated: Repeated,
    diagnostics: Option<CacheDiagnostics>,
    /// Ids of the items so far.
    item_ids: Vec<String>,
    /// Number of events so far; each event has its number.
    n_events: Cell<u64>,
    /// Parser of the open item's text, if that is a custom tool's call.
    free_text: FreeText,
}

impl ResponseWriter {
    /// Returns the response at one of its stages.
    fn object<'a>(&'a self, stage: Stage, output: Vec<Item<'a>>) -> ResponseObject<'a> {
        let incomplete_details = (stage == Stage::Incomplete).then_some(Incomplete { reason: "max_output_tokens" });
        ResponseObject {
            id: &self.id,
            object: "response",
            created_at: self.beginning.identity.created,
            completed_at: (stage == Stage::Completed).then(now_s),
            status: stage.word(),
            error: None,
            incomplete_details,
            model: &self.beginning.model,
            output,
            usage: None,
            background: false,
            previous_response_id: (),
            store: false,
            truncation: "disabled",
            prompt_cache_diagnostics: self.diagnostics,
            repeated: &self.repeated,
        }
    }

    /// Returns the response when it has ended.
    fn ended<'a>(&'a self, message: &CompleteMessage<'a>) -> ResponseObject<'a> {
        let stage = if is_cut(message) { Stage::Incomplete } else { Stage::Completed };
        let output = self.items(message.parts, stage);
        ResponseObject { usage: Some(message.totals.into()), ..self.object(stage, output) }
    }

    /// Returns the items, of which the last may have been cut short.
    fn items<'a>(&'a self, parts: &'a [MessagePart], last: Stage) -> Vec<Item<'a>> {
        let stage = |part: &MessagePart| if part.index + 1 == parts.len() { last } else { Stage::Completed };
        parts.iter().zip(&self.item_ids).map(|(part, id)| Item::at(stage(part), part, id, self.tool(part))).collect()
    }

    /// Returns the tool of a call, if its client listed it.
    fn tool(&self, part: &MessagePart) -> Option<&Tool> {
        match &part.kind {
            PartKind::Call { name, .. } => self.beginning.tools.tool(name),
            PartKind::Thought | PartKind::Text => None,
        }
    }

    /// Returns the form of a call; absent for other parts and for tools that the client did not list.
    fn form(&self, part: &MessagePart) -> Option<CallForm> {
        self.tool(part).map(|tool| tool.form)
    }

    fn add_id(&mut self, part: &MessagePart) {
        let prefix = match part.kind {
            PartKind::Thought => "rs",
            PartKind::Text => "msg",
            PartKind::Call { .. } => match self.form(part) {
                Some(CallForm::Custom) => "ctc",
                Some(CallForm::ToolSearch) => "tsc",
                Some(CallForm::Function) | None => "fc",
            },
        };
        let id = self.beginning.identity.part_id("item", self.item_ids.len());
        self.item_ids.push(format!("{prefix}_{id}"));
    }

    /// Writes an event under the next number.
    fn write(&self, out: &mut Vec<u8>, event: &Event<'_>) {
        let sequence_number = self.n_events.replace(self.n_events.get() + 1);
        write_named_event(out, event.name(), &Numbered { event, sequence_number });
    }

    fn place(&self, part: &MessagePart) -> PartPosition<'_> {
        PartPosition { item_id: &self.item_ids[part.index], output_index: part.index, content_index: 0 }
    }
}

/// Returns whether a limit ended the response; a request that only fills the cache has all that it asked for.
fn is_cut(message: &CompleteMessage<'_>) -> bool {
    message.ending.reason == FinishReason::Length && message.totals.completion_tokens > 0
}

impl DialectWriter for ResponseWriter {
    type Repeated = Repeated;

    fn convert(body: &[u8]) -> Result<Converted, DialectError> {
        responses::responses(body)
    }

    fn read_repeated(body: &Body) -> Result<Repeated, RequestError> {
        Ok(body.parse::<Repeated>()?.filled())
    }

    fn new(beginning: Beginning, repeated_fields: Repeated) -> Self {
        let compared_id = repeated_fields.comparison_response_id();
        Self {
            id: beginning.id("resp"),
            diagnostics: compared_id.map(|compared_id| CacheDiagnostics::of(&beginning, compared_id)),
            beginning,
            repeated: repeated_fields,
            item_ids: Vec::new(),
            n_events: Cell::default(),
            free_text: FreeText::default(),
        }
    }

    fn whole(mut self, message: &CompleteMessage<'_>) -> Vec<u8> {
        message.parts.iter().for_each(|part| self.add_id(part));
        serde_json::to_vec(&self.ended(message)).expect("a response has a JSON form")
    }

    fn present(error: Response, _: &RequestId) -> Response {
        error
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        self.write(out, &Event::Created { response: self.object(Stage::InProgress, Vec::new()) });
        self.write(out, &Event::InProgress { response: self.object(Stage::InProgress, Vec::new()) });
    }

    fn open(&mut self, out: &mut Vec<u8>, part: &MessagePart) {
        self.add_id(part);
        self.free_text = FreeText::default();
        let place = self.place(part);
        let item = Item::at(Stage::InProgress, part, place.item_id, self.tool(part));
        self.write(out, &Event::ItemAdded { output_index: part.index, item });
        if let Some(part) = Content::of(part, "") {
            self.write(out, &Event::ContentAdded { place, part });
        }
    }

    fn grow(&mut self, out: &mut Vec<u8>, part: &MessagePart, text: &str) {
        match self.form(part) {
            Some(CallForm::Custom) => {}
            // Its item alone has its arguments.
            Some(CallForm::ToolSearch) => return,
            Some(CallForm::Function) | None => {
                self.write(out, &Event::delta(part, self.place(part), text));
                return;
            }
        }
        let delta = self.free_text.push(text);
        if !delta.is_empty() {
            let PartPosition { item_id, output_index, .. } = self.place(part);
            self.write(out, &Event::InputDelta { item_id, output_index, delta: &delta });
        }
    }

    fn close(&mut self, out: &mut Vec<u8>, part: &MessagePart, end: PartEnd) {
        let place = self.place(part);
        if let Some(done) = Event::done(part, place, self.tool(part)) {
            self.write(out, &done);
        }
        if let Some(content) = Content::of(part, &part.text) {
            self.write(out, &Event::ContentDone { place, part: content });
        }
        let stage = if end == PartEnd::Whole { Stage::Completed } else { Stage::Incomplete };
        let item = Item::at(stage, part, place.item_id, self.tool(part));
        self.write(out, &Event::ItemDone { output_index: part.index, item });
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        if !self.item_ids.is_empty() {
            // Clients replace their items by those of a repeated event.
            out.extend_from_slice(sse::COMMENT);
            return;
        }
        // Codex's limit of silence counts events, and a comment is none.
        let event = Event::InProgress { response: self.object(Stage::InProgress, Vec::new()) };
        write_named_event(out, event.name(), &Numbered { event: &event, sequence_number: IN_PROGRESS_NUMBER });
    }

    fn end(&mut self, out: &mut Vec<u8>, message: &CompleteMessage<'_>) {
        let response = self.ended(message);
        let event = if is_cut(message) { Event::Incomplete { response } } else { Event::Completed { response } };
        self.write(out, &event);
    }

    fn fail(&mut self, out: &mut Vec<u8>, parts: &[MessagePart], error: &RequestError) {
        let message = error.to_string();
        let error = Some(ResponseFailure { code: "server_error", message: &message });
        let response = ResponseObject { error, ..self.object(Stage::Failed, self.items(parts, Stage::Incomplete)) };
        self.write(out, &Event::Failed { response });
    }
}
