//! The channel of one response's events from the engine to its reader.
//!
//! The engine never waits for a reader, and buffers events only up to a limit: a sequence with more than
//! [`UNREAD_BYTES_MAX`] of unread events is omitted from steps until they are read. It keeps its slot and its state.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures::Stream;
use tokio::sync::mpsc;
use warmpath_worker_output::logprobs::{TokenLogprob, TokenProbabilities};

use super::events::EngineEvent;
use super::waker::Waker;

/// Maximum size of one response's unread events; with more, the response waits. Units: bytes.
///
/// Source: some 3,000 tokens with 20 alternatives each, so that a short delay of a reader does not delay the response.
pub const UNREAD_BYTES_MAX: usize = 1 << 20;

/// The engine's end of the channel.
#[derive(Debug)]
pub struct EventSender {
    events: mpsc::UnboundedSender<EngineEvent>,
    unread: Arc<UnreadEvents>,
}

/// The reader's end of the channel. Once it is dropped, the engine frees the slot within one step.
#[derive(Debug)]
pub struct EventReceiver {
    events: mpsc::UnboundedReceiver<EngineEvent>,
    unread: Arc<UnreadEvents>,
}

/// What both ends know of the unread events.
#[derive(Debug, Default)]
struct UnreadEvents {
    /// Size of the events. A relaxed atomic, because the waker orders a read before the engine's next look.
    n_bytes: AtomicUsize,
    /// Waker of the engine that sends the events, once it has the submission.
    waker: OnceLock<Waker>,
}

impl UnreadEvents {
    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

/// Returns both ends of the channel of one response's events.
pub fn events() -> (EventSender, EventReceiver) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let unread = Arc::new(UnreadEvents::default());
    let receiver = EventReceiver { events: receiver, unread: Arc::clone(&unread) };
    (EventSender { events: sender, unread }, receiver)
}

impl EventSender {
    /// Names the waker of the engine that sends the events: the reader wakes it once it has read enough, or leaves.
    pub(crate) fn wake_by_reader(&self, waker: &Waker) {
        let _ = self.unread.waker.set(waker.clone());
    }

    /// Sends an event; it is dropped if the reader has left.
    pub fn send(&self, event: EngineEvent) {
        self.unread.n_bytes.fetch_add(size_bytes(&event), Ordering::Relaxed);
        let _ = self.events.send(event);
    }

    /// Returns whether the reader has left.
    pub fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    /// Returns whether the reader must read before more is generated.
    pub fn is_full(&self) -> bool {
        self.unread.n_bytes.load(Ordering::Relaxed) > UNREAD_BYTES_MAX
    }
}

impl EventReceiver {
    /// Returns the next event; `None` once the engine has dropped its end.
    pub async fn recv(&mut self) -> Option<EngineEvent> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<EngineEvent>> {
        let poll = self.events.poll_recv(context);
        if let Poll::Ready(Some(event)) = &poll {
            let n_bytes = size_bytes(event);
            let before = self.unread.n_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
            if before > UNREAD_BYTES_MAX && before - n_bytes <= UNREAD_BYTES_MAX {
                self.unread.wake();
            }
        }
        poll
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        // The engine drops its end with the last event.
        if !self.events.is_closed() {
            self.events.close();
            self.unread.wake();
        }
    }
}

impl Stream for EventReceiver {
    type Item = EngineEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<EngineEvent>> {
        self.poll(context)
    }
}

/// Returns the memory of an event.
fn size_bytes(event: &EngineEvent) -> usize {
    let of_list = |list: &[TokenProbabilities]| {
        let n_top: usize = list.iter().map(|token| token.top.len()).sum();
        size_of_val(list) + n_top * size_of::<TokenLogprob>()
    };
    let more = match event {
        EngineEvent::Text { text, own_probabilities, probabilities, .. } => {
            text.len() + of_list(own_probabilities.as_slice()) + of_list(probabilities)
        }
        EngineEvent::Prompt(probabilities) => of_list(&probabilities.rest),
        EngineEvent::Started(_) | EngineEvent::Finished(_) | EngineEvent::Failed(_) => 0,
    };
    size_of::<EngineEvent>() + more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(n_bytes: usize) -> EngineEvent {
        let text = "x".repeat(n_bytes);
        EngineEvent::Text { text, token: 1, n_draws: 1, end: None, own_probabilities: None, probabilities: Vec::new() }
    }

    #[tokio::test]
    async fn a_channel_is_full_until_enough_is_read_and_loses_nothing() {
        let (sender, mut receiver) = events();
        let mut n_sent = 0;
        while !sender.is_full() {
            sender.send(text(100_000));
            n_sent += 1;
        }
        assert_eq!(n_sent, UNREAD_BYTES_MAX / 100_000 + 1);
        receiver.recv().await.expect("an event");
        assert!(!sender.is_full());
        sender.send(text(0));
        drop(sender);
        let mut n_read = 1;
        while receiver.recv().await.is_some() {
            n_read += 1;
        }
        assert_eq!(n_read, n_sent + 1);
        assert_eq!(receiver.unread.n_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn alternative_tokens_count_in_an_event_s_size() {
        let likely = TokenLogprob { token: 1, logprob: -1.0 };
        let probabilities = TokenProbabilities { chosen: likely, top: vec![likely; 20] };
        let event = |own_probabilities, probabilities| EngineEvent::Text {
            text: String::new(),
            token: 1,
            n_draws: 1,
            end: None,
            own_probabilities,
            probabilities,
        };
        let own = Some(probabilities.clone());
        let alternatives = size_bytes(&event(own, vec![probabilities; 3])) - size_bytes(&event(None, Vec::new()));
        assert!(alternatives >= 4 * 20 * size_of::<TokenLogprob>(), "{alternatives}");
    }

    #[test]
    fn the_engine_detects_that_its_reader_has_gone() {
        let (sender, receiver) = events();
        assert!(!sender.is_closed());
        drop(receiver);
        assert!(sender.is_closed());
        sender.send(text(1));
    }
}
