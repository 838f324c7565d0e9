//! The log lines of tasks on the test's own thread; the tracker has a thread of its own.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, NoSubscriber, set_default};
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// Messages of this thread, as long as this lives.
pub struct Logged {
    lines: Arc<Mutex<Vec<String>>>,
    _guard: DefaultGuard,
    /// A second subscriber. With one alone, the first thread that reaches a log statement decides for all threads
    /// whether it is logged, and the thread of another test has no subscriber.
    _second: Dispatch,
}

struct Collector(Arc<Mutex<Vec<String>>>);

#[derive(Default)]
struct Message(String);

impl Logged {
    /// Starts to collect messages.
    pub fn start() -> Self {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let _second = Dispatch::new(NoSubscriber::default());
        Self { _guard: set_default(Collector(Arc::clone(&lines))), _second, lines }
    }

    /// Returns how often this message was logged.
    pub fn n(&self, message: &str) -> usize {
        self.lines.lock().expect("no test panics here").iter().filter(|line| *line == message).count()
    }
}

impl Subscriber for Collector {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        self.0.lock().expect("no test panics here").push(message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
