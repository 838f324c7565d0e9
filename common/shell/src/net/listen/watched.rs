//! Bodies that report to their connection whether client or server has to act next, and the rest of a request's body
//! that its handler has not read.
//!
//! Silent connections are handled in `connections`.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::header::EXPECT;
use tokio::time::timeout;

use super::connections::Seat;

/// Longest time for which the rest of a request's body is read and discarded before its response is sent. If the
/// connection were closed with unread bytes, the client would not get the response.
///
/// Source: own choice: in a local network 16 MiB arrive within a second, and slower clients have usually read the
/// response by then.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Body of a request: until its end the server waits for the client.
pub(super) struct Upload {
    /// Body. The lock is held for one poll; only one of the handler and [`Unread`] takes it at a time.
    body: Arc<Mutex<Arriving>>,
    seat: Arc<Seat>,
}

/// Handle to the rest of a request's body, for after its handler.
pub(super) struct Unread(Arc<Mutex<Arriving>>);

struct Arriving {
    body: Incoming,
    /// Whether the client waits for the server to read before it sends (`expect: 100-continue`).
    awaits_reader: bool,
    /// Whether the whole body has been read; absent until it has ended or failed.
    is_whole: Option<bool>,
}

impl Upload {
    /// Returns a request whose body is one of these.
    pub(super) fn within(request: Request<Incoming>, seat: &Arc<Seat>) -> (Request<Body>, Unread) {
        let (head, body) = request.into_parts();
        if body.is_end_stream() {
            seat.await_server();
        } else {
            seat.await_client();
        }
        let awaits_reader = !body.is_end_stream() && head.headers.contains_key(EXPECT);
        let body = Arc::new(Mutex::new(Arriving { body, awaits_reader, is_whole: None }));
        let upload = Self { body: Arc::clone(&body), seat: Arc::clone(seat) };
        (Request::from_parts(head, Body::new(upload)), Unread(body))
    }

    fn arriving(&self) -> MutexGuard<'_, Arriving> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl hyper::body::Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut arriving = self.arriving();
        arriving.awaits_reader = false;
        let frame = Pin::new(&mut arriving.body).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(_))) if !arriving.body.is_end_stream() => self.seat.client_sent(),
            Poll::Ready(last) => {
                arriving.is_whole = Some(!matches!(last, Some(Err(_))));
                self.seat.await_server();
            }
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.arriving().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.arriving().body.size_hint()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // A handler that does not need the rest answers now.
        self.seat.await_server();
    }
}

impl Unread {
    /// Reads and discards what the handler has left of the body. Returns whether the connection can serve another
    /// request; otherwise the response has to announce that it closes.
    pub(super) async fn discard(self, seat: &Seat) -> bool {
        let Some(arriving) = Arc::into_inner(self.0) else {
            // The response reads the body.
            return true;
        };
        let Arriving { mut body, awaits_reader, is_whole } =
            arriving.into_inner().unwrap_or_else(PoisonError::into_inner);
        if awaits_reader {
            return false;
        }
        if let Some(is_whole) = is_whole {
            return is_whole;
        }
        if !body.is_end_stream() {
            // Until the response begins.
            seat.await_client();
        }
        let drain = async {
            loop {
                match body.frame().await {
                    None => break true,
                    Some(Ok(_)) => seat.client_sent(),
                    Some(Err(_)) => break false,
                }
            }
        };
        timeout(DISCARD_TIMEOUT, drain).await.unwrap_or(false)
    }
}

/// Body of a response: after its end the server waits for the client.
pub(super) struct Download {
    body: Body,
    seat: Arc<Seat>,
}

impl Download {
    pub(super) fn new(body: Body, seat: Arc<Seat>) -> Self {
        seat.await_server();
        Self { body, seat }
    }
}

impl hyper::body::Body for Download {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.seat.answered();
    }
}
