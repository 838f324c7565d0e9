//! A response in one piece, which follows the lines of its journal.
//!
//! The lines are sent while the response is computed. The HTTP head is sent before them, so the status of the response
//! follows the lines, and the body of the response follows the status. Only a router that asks for it gets this form.
//!
//! Not here: the lines (`lifecycle::journal`), the journal of a stream (`http::openai::answer`).

use std::convert::Infallible;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use warmpath_common::headers;
use warmpath_common::journal::STATUS_START;

use crate::error::RequestError;
use crate::lifecycle::journal::JournalLines;

/// Adds the header with which a router recognizes that a response has a journal, and how exact a continuation is.
pub fn set_journal_header(response: &mut Response, exactness: &'static str) {
    response.headers_mut().insert(HeaderName::from_static(headers::JOURNAL), HeaderValue::from_static(exactness));
}

/// Returns a response in one piece: immediately, as a stream of lines, if it has a journal; otherwise once it is
/// computed.
///
/// `present` puts an error into the dialect of the request. Errors: those of `whole_response`, if there is no journal.
pub async fn respond<F>(
    lines: Option<JournalLines>,
    whole_response: F,
    present: impl FnOnce(Response) -> Response + Send + 'static,
) -> Result<Response, RequestError>
where
    F: Future<Output = Result<Response, RequestError>> + Send + 'static,
{
    let Some(JournalLines { receiver, exactness }) = lines else { return whole_response.await };
    let state = Some((receiver, Box::pin(whole_response), present));
    let pieces = futures::stream::unfold(state, |state| async {
        let (mut receiver, mut whole_response, present) = state?;
        tokio::select! {
            biased;
            Some(line) = receiver.recv() => {
                Some((Ok::<_, Infallible>(Bytes::from(line)), Some((receiver, whole_response, present))))
            }
            response = &mut whole_response => {
                let response = response.unwrap_or_else(|error| present(error.into_response()));
                // The last lines, from which another worker continues if this one has failed.
                let mut piece = String::new();
                while let Ok(line) = receiver.try_recv() {
                    piece.push_str(&line);
                }
                Some((Ok(behind_lines(piece, response).await), None))
            }
        }
    });
    let mut response = Response::new(Body::from_stream(pieces));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    set_journal_header(&mut response, exactness);
    Ok(response)
}

/// Returns the last lines, followed by the status and the body of the response.
async fn behind_lines(lines: String, response: Response) -> Bytes {
    let mut piece = format!("{lines}{STATUS_START}{}\n", response.status().as_u16()).into_bytes();
    // The body is in memory, so it can be read.
    piece.extend(to_bytes(response.into_body(), usize::MAX).await.unwrap_or_default());
    piece.into()
}
