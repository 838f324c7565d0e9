//! From an answer's steps to a response: one object, or server-sent events as they come.
//!
//! Not here: the steps (`lifecycle`), the objects' fields (`http::wire`).

use std::convert::Infallible;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Body as ResponseBody;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use warmpath_common::headers;

use super::body::Body;
use super::context::RequestContext;
use super::error::{error_body, log_error};
use super::state::App;
use super::wire::{Choice, Content, Delta, Message, Object, Shape, Timings, Usage, finish_reason};
use crate::error::RequestError;
use crate::lifecycle::{self, Answer, Arrival, Delivery, ReadPrompts, Step};
use crate::serving::Serving;

/// Is what sets one endpoint that generates apart from the other.
pub struct Endpoint {
    /// Is the shape of its answers.
    pub shape: Shape,
    /// Reads its prompts.
    pub read_prompts: ReadPrompts,
}

/// Answers a request to an endpoint that generates.
pub async fn create(
    app: &App,
    endpoint: Endpoint,
    context: RequestContext,
    body: Body,
) -> Result<Response, RequestError> {
    let serving = app.admitting()?;
    let arrival = Arrival {
        id: context.id,
        at: context.arrived,
        wanted_slot: context.wanted_slot,
        expected_tokens: context.predicted_cached_tokens.unwrap_or_default(),
        cache_salt: context.cache_salt,
        body,
        read_prompts: endpoint.read_prompts,
    };
    let answer = lifecycle::start(&serving, &app.metrics, arrival).await?;
    let started = answer.started();
    let head = Head::new(endpoint.shape, &serving);
    let mut response = match answer.delivery() {
        Delivery::Whole => whole(&head, answer).await?,
        Delivery::Stream | Delivery::StreamWithUsage => stream(head, answer),
    };
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static(headers::SLOT), HeaderValue::from(started.slot.0));
    headers.insert(HeaderName::from_static(headers::CACHED_TOKENS), HeaderValue::from(started.cached_tokens()));
    Ok(response)
}

/// Is what every object of one answer has in common.
struct Head {
    shape: Shape,
    id: String,
    created: u64,
    model: String,
    system_fingerprint: String,
}

impl Head {
    fn new(shape: Shape, serving: &Serving) -> Self {
        Self {
            shape,
            id: format!("{}{}", shape.id_prefix(), uuid::Uuid::new_v4().simple()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            model: serving.model.names.first().cloned().unwrap_or_default(),
            system_fingerprint: serving.system_fingerprint(),
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
}

async fn whole(head: &Head, mut answer: Answer) -> Result<Response, RequestError> {
    let mut texts = vec![(String::new(), None); answer.n_choices()];
    while let Some(step) = answer.next().await? {
        match step {
            Step::Text { choice, text } => texts[choice].0.push_str(&text),
            Step::Finished { choice, reason } => texts[choice].1 = Some(finish_reason(reason)),
        }
    }
    let choices = texts.iter().enumerate().map(|(index, (text, finish_reason))| {
        let content = match head.shape {
            Shape::Chat => Content::Message(Message { role: "assistant", content: text }),
            Shape::Completion => Content::Text(text),
        };
        Choice { index, content, logprobs: (), finish_reason: *finish_reason }
    });
    let mut object = head.object(head.shape.object(), choices.collect());
    object.truncated = answer.totals().truncated;
    object.usage = Some(Some(Usage::from(answer.totals())));
    object.timings = Some(Timings::from(answer.totals()));
    Ok(Json(object).into_response())
}

fn stream(head: Head, answer: Answer) -> Response {
    let mut first = Vec::new();
    let events = Events { usage: answer.delivery() == Delivery::StreamWithUsage, head, answer };
    events.write_roles(&mut first);
    let first = futures::stream::iter((!first.is_empty()).then(|| Ok::<_, Infallible>(Bytes::from(first))));
    let rest = futures::stream::unfold(Some(events), |events| async {
        let mut events = events?;
        let mut bytes = Vec::new();
        let goes_on = events.write_next(&mut bytes).await;
        Some((Ok(Bytes::from(bytes)), goes_on.then_some(events)))
    });
    let body = ResponseBody::from_stream(futures::StreamExt::chain(first, rest));
    let described = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // Tells nginx not to gather the stream.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (described, body).into_response()
}

/// Writes an answer as server-sent events.
struct Events {
    head: Head,
    answer: Answer,
    /// Says whether the client asked for a last chunk with the token counts.
    usage: bool,
}

impl Events {
    /// Writes what stands before the first text of a chat: each choice's role.
    fn write_roles(&self, out: &mut Vec<u8>) {
        if self.head.shape == Shape::Chat {
            for index in 0..self.answer.n_choices() {
                let delta = Delta { role: Some("assistant"), content: Some("") };
                self.write_choice(out, self.choice(index, Content::Delta(delta)));
            }
        }
    }

    /// Writes the events of the next step; returns whether another follows.
    async fn write_next(&mut self, out: &mut Vec<u8>) -> bool {
        loop {
            match self.answer.next().await {
                Ok(Some(Step::Text { text, .. })) if text.is_empty() => {}
                Ok(Some(Step::Text { choice, text })) => {
                    let content = match self.head.shape {
                        Shape::Chat => Content::Delta(Delta { role: None, content: Some(&text) }),
                        Shape::Completion => Content::Text(&text),
                    };
                    self.write_choice(out, self.choice(choice, content));
                    return true;
                }
                Ok(Some(Step::Finished { choice, reason })) => {
                    self.write_end_of_choice(out, choice, finish_reason(reason));
                    return true;
                }
                Ok(None) => {
                    self.write_end(out);
                    return false;
                }
                Err(error) => {
                    log_error(&error);
                    write_event(out, &error_body(&error));
                    return false;
                }
            }
        }
    }

    fn choice<'a>(&self, index: usize, content: Content<'a>) -> Choice<'a> {
        Choice { index, content, logprobs: (), finish_reason: None }
    }

    fn write_choice(&self, out: &mut Vec<u8>, choice: Choice<'_>) {
        let mut chunk = self.head.object(self.head.shape.chunk_object(), vec![choice]);
        chunk.usage = self.usage.then_some(None);
        write_event(out, &chunk);
    }

    /// Writes the end of one choice; the last one carries the timings unless a chunk with the counts follows.
    fn write_end_of_choice(&self, out: &mut Vec<u8>, index: usize, finish_reason: &'static str) {
        let content = match self.head.shape {
            Shape::Chat => Content::Delta(Delta::default()),
            Shape::Completion => Content::Text(""),
        };
        let choice = Choice { finish_reason: Some(finish_reason), ..self.choice(index, content) };
        let mut chunk = self.head.object(self.head.shape.chunk_object(), vec![choice]);
        chunk.truncated = self.answer.is_complete() && self.answer.totals().truncated;
        chunk.usage = self.usage.then_some(None);
        chunk.timings = (self.answer.is_complete() && !self.usage).then(|| self.answer.totals().into());
        write_event(out, &chunk);
    }

    fn write_end(&self, out: &mut Vec<u8>) {
        if self.usage {
            let mut chunk = self.head.object(self.head.shape.chunk_object(), Vec::new());
            chunk.usage = Some(Some(self.answer.totals().into()));
            chunk.timings = Some(self.answer.totals().into());
            write_event(out, &chunk);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}

/// Writes one server-sent event; JSON has no line breaks of its own, so one `data:` line holds it.
fn write_event(out: &mut Vec<u8>, content: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *out, content).expect("the objects of an answer all have a JSON form");
    out.extend_from_slice(b"\n\n");
}
