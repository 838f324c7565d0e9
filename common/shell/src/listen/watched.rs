//! Bodies that report to their connection whether client or server has to act next.
//!
//! Silent connections are handled in `connections`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};

use super::connections::Seat;

/// Body of a request: until its end the server waits for the client.
pub(super) struct Upload {
    body: Incoming,
    seat: Arc<Seat>,
}

impl Upload {
    pub(super) fn new(body: Incoming, seat: Arc<Seat>) -> Self {
        if body.is_end_stream() {
            seat.await_server();
        } else {
            seat.await_client();
        }
        Self { body, seat }
    }
}

impl hyper::body::Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(_))) if !self.body.is_end_stream() => self.seat.client_sent(),
            Poll::Ready(_) => self.seat.await_server(),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // A handler that does not need the rest answers now.
        self.seat.await_server();
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
