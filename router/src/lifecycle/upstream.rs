//! One attempt at one worker: sends the request and waits for the first byte of the answer.
//!
//! Not here: who gets the next attempt (`lifecycle`), the rest of the answer (`relay`).
//! The idea: an answer without streaming is taken in whole before any of it is shown, so that a worker that breaks off in
//! the middle of it can still be replaced; of a stream, the first piece.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use warmpath_common::dialects::anthropic;
use warmpath_router_core::retry::Failure;

use super::early::Comments;
use super::{Arrival, Choice, headers};
use crate::config::{RequestConfig, WHOLE_ANSWER_BYTES_MAX};
use crate::fleet::client::CallError;
use crate::fleet::members::Member;

/// Is the way to one worker.
pub(super) struct Upstream<'a> {
    pub(super) member: &'a Member,
    pub(super) limits: &'a RequestConfig,
    pub(super) comments: &'a Comments,
}

/// Is the pieces of a body, each awaited no longer than the limit.
pub(super) type Pieces = BoxStream<'static, Result<Bytes, Failure>>;

/// Is the head of an answer.
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
}

/// Says what a body is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyKind {
    /// Server-sent events, behind which another one can be put.
    Events,
    /// Anything else.
    Other,
}

impl Head {
    /// Returns what the body is made of.
    pub(super) fn body_kind(&self) -> BodyKind {
        let kind = headers::text(&self.headers, header::CONTENT_TYPE.as_str()).unwrap_or_default();
        if kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream") {
            BodyKind::Events
        } else {
            BodyKind::Other
        }
    }
}

/// Is an answer of which the client may see something.
pub(super) enum Answer {
    Whole { head: Head, body: Bytes },
    Stream { head: Head, first: Bytes, rest: Pieces },
}

impl Answer {
    pub(super) fn head(&self) -> &Head {
        match self {
            Self::Whole { head, .. } | Self::Stream { head, .. } => head,
        }
    }
}

/// Is a worker's own words for not serving now.
pub(super) struct Refusal {
    head: Head,
    body: Bytes,
}

impl Refusal {
    /// Returns the refusal as the client gets it.
    pub(super) fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.head.status;
        *response.headers_mut() = headers::to_client(&self.head.headers);
        response
    }
}

/// Says how an attempt failed, before the client saw anything.
pub(super) struct AttemptError {
    pub(super) failure: Failure,
    pub(super) refusal: Option<Refusal>,
}

impl From<Failure> for AttemptError {
    fn from(failure: Failure) -> Self {
        Self { failure, refusal: None }
    }
}

impl Upstream<'_> {
    /// Sends the request and waits until there is something to show.
    pub(super) async fn attempt(&self, arrival: &Arrival, choice: &Choice) -> Result<Answer, AttemptError> {
        let client = &self.member.client;
        let url = client.url(&arrival.path);
        let target = (arrival.method.clone(), &url);
        let call = client.call(target, headers::to_worker(arrival, choice), arrival.body.clone());
        let response = tokio::time::timeout(self.limits.response_timeout, call).await;
        let response = response.map_err(|_| Failure::Timeout)?.map_err(|error| failure(&error))?;
        let (parts, body) = response.into_parts();
        let head = Head { status: parts.status, headers: parts.headers };
        let mut pieces = pieces(body, self.limits.idle_timeout);
        let refused = match head.status {
            // A stock server asks for the client's own key, and the client hears of it; it has no key of a Warmpath worker's.
            StatusCode::UNAUTHORIZED if self.member.stock.is_none() => return Err(Failure::Refused.into()),
            StatusCode::TOO_MANY_REQUESTS => Some(Failure::Full),
            StatusCode::SERVICE_UNAVAILABLE => Some(Failure::Unready),
            status if status.as_u16() == anthropic::OVERLOADED => Some(Failure::Unready),
            _ => None,
        };
        if let Some(failure) = refused {
            let refusal = match take_in(&mut pieces).await {
                Ok(TakenIn::Whole(body)) => Some(Refusal { head, body }),
                Ok(TakenIn::Part(_)) | Err(_) => None,
            };
            return Err(AttemptError { failure, refusal });
        }
        if head.body_kind() == BodyKind::Events {
            let first = self.comments.skip(&mut pieces).await?;
            return Ok(Answer::Stream { head, first, rest: pieces });
        }
        match take_in(&mut pieces).await? {
            TakenIn::Whole(body) => Ok(Answer::Whole { head, body }),
            TakenIn::Part(first) => Ok(Answer::Stream { head, first, rest: pieces }),
        }
    }
}

fn failure(error: &CallError) -> Failure {
    if error.is_connect() { Failure::Connect } else { Failure::Broken }
}

fn pieces(body: Body, idle_timeout: Duration) -> Pieces {
    let body = body.into_data_stream();
    futures::stream::unfold(body, move |mut body| async move {
        match tokio::time::timeout(idle_timeout, body.next()).await {
            Ok(Some(piece)) => Some((piece.map_err(|_| Failure::Broken), body)),
            Ok(None) => None,
            Err(_) => Some((Err(Failure::Timeout), body)),
        }
    })
    .boxed()
}

/// Is what has been taken in of a body.
enum TakenIn {
    Whole(Bytes),
    /// There is more, and what is here is as much as is held back.
    Part(Bytes),
}

async fn take_in(pieces: &mut Pieces) -> Result<TakenIn, Failure> {
    let mut body = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        body.extend_from_slice(&piece?);
        if body.len() > WHOLE_ANSWER_BYTES_MAX {
            return Ok(TakenIn::Part(body.freeze()));
        }
    }
    Ok(TakenIn::Whole(body.freeze()))
}
