//! Traces: the time that each part of a request took, as spans that are exported to a collector by OTLP.
//!
//! Export is in `trace::export`; router and worker create the spans.
//!
//! A span is recorded when its part of the request has ended, from times that are measured anyway. It has numbers and
//! names, never text of the client or the model. A trace continues the client's `traceparent` and is passed on to the
//! worker; the process that starts it decides whether it is recorded.

pub mod export;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use axum::http::{HeaderMap, HeaderValue};
use tokio::sync::mpsc;

use self::export::ExportMessage;

/// Header with the ids of trace and parent.
///
/// Source: W3C Trace Context, section 3.2.
pub const TRACEPARENT: &str = "traceparent";

/// Header with further data of tracing systems.
///
/// Source: W3C Trace Context, section 3.3.
pub const TRACESTATE: &str = "tracestate";

/// Version of `traceparent`.
const VERSION: &str = "00";
const TRACEPARENT_BYTES: usize = 55;

/// Flag of a trace that is recorded.
///
/// Source: W3C Trace Context, section 3.2.2.5.
const SAMPLED: u8 = 1;

/// Role of a span in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Work within the process.
    Internal,
    /// Handling of a received call.
    Server,
    /// An outgoing call.
    Client,
}

/// Attribute value of a span; texts of requests and answers have no variant.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    /// Name: of a worker, a model's endpoint, a reason.
    Name(String),
    /// Number.
    Count(u64),
}

/// Attribute of a span.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribute {
    /// Name.
    pub key: &'static str,
    /// Value.
    pub value: AttributeValue,
}

/// Source of spans; without a collector it records none.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Arc<Recorder>>);

#[derive(Debug)]
struct Recorder {
    spans: mpsc::Sender<ExportMessage>,
    /// Recorded share of the traces that start here.
    ratio: f64,
    n_lost: AtomicU64,
}

/// A span in the form that is exported.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SpanRecord {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    state: Option<HeaderValue>,
    name: &'static str,
    kind: SpanKind,
    start: Instant,
    end: Instant,
    attributes: Vec<Attribute>,
    failure: Option<&'static str>,
}

/// Span of a part of a request; it ends when it is dropped.
#[derive(Debug)]
pub struct Span(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    record: SpanRecord,
    /// Recorder; absent if the trace is not recorded.
    recorder: Option<Arc<Recorder>>,
}

impl Tracer {
    /// Returns how many spans were dropped because the collector was unavailable or slow.
    pub fn n_lost(&self) -> u64 {
        self.0.as_ref().map_or(0, |recorder| recorder.n_lost.load(Ordering::Relaxed))
    }

    /// Starts the span of a request that has arrived: in its client's trace, or in a new one.
    pub fn request(&self, headers: &HeaderMap, name: &'static str, arrived_at: Instant) -> Span {
        let Some(recorder) = &self.0 else { return Span(None) };
        // An invalid header is ignored; `ratio` then decides whether the trace is recorded.
        let client_trace = headers.get(TRACEPARENT).and_then(|value| parse(value.to_str().ok()?));
        let new_trace = || {
            let trace: u128 = rand::random_range(1..=u128::MAX);
            // The lower half of the id is as random as the whole.
            (trace, None, (trace as u64 as f64) < recorder.ratio * u64::MAX as f64)
        };
        let (trace, parent, is_sampled) =
            client_trace.map_or_else(new_trace, |(trace, parent, flag)| (trace, Some(parent), flag));
        // A `tracestate` is only valid with the parent that came with it.
        let state = parent.and_then(|_| headers.get(TRACESTATE).cloned());
        let record = SpanRecord {
            trace,
            id: rand::random_range(1..=u64::MAX),
            parent,
            state,
            name,
            kind: SpanKind::Server,
            start: arrived_at,
            end: arrived_at,
            attributes: Vec::new(),
            failure: None,
        };
        Span(Some(Box::new(Open { record, recorder: is_sampled.then(|| Arc::clone(recorder)) })))
    }

    /// Waits until every ended span has been sent, or until sending it has failed.
    pub async fn flush(&self) {
        let Some(recorder) = &self.0 else { return };
        let (done, wait) = tokio::sync::oneshot::channel();
        if recorder.spans.send(ExportMessage::Flush(done)).await.is_ok() {
            // An error means that the exporter has stopped.
            let _ = wait.await;
        }
    }
}

impl Span {
    /// Returns a span that belongs to no trace.
    pub fn none() -> Self {
        Self(None)
    }

    /// Starts a child span now.
    pub fn child(&self, name: &'static str, kind: SpanKind) -> Self {
        let Some(open_span) = &self.0 else { return Self(None) };
        let now = Instant::now();
        let record = open_span.record.part(name, kind, now, now);
        Self(Some(Box::new(Open { record, recorder: open_span.recorder.clone() })))
    }

    /// Records a child span that has ended.
    pub fn part(&self, name: &'static str, start: Instant, end: Instant, attributes: Vec<Attribute>) {
        if let Some(Open { record, recorder: Some(recorder) }) = self.0.as_deref() {
            recorder.take(SpanRecord { attributes, ..record.part(name, SpanKind::Internal, start, end) });
        }
    }

    /// Sets an attribute to a name.
    pub fn name(&mut self, key: &'static str, name: impl Into<String>) {
        self.set(key, || AttributeValue::Name(name.into()));
    }

    /// Sets an attribute to a number.
    pub fn count(&mut self, key: &'static str, count: impl Into<u64>) {
        self.set(key, || AttributeValue::Count(count.into()));
    }

    fn set(&mut self, key: &'static str, value: impl FnOnce() -> AttributeValue) {
        if let Some(Open { record, recorder: Some(_) }) = self.0.as_deref_mut() {
            record.attributes.push(Attribute { key, value: value() });
        }
    }

    /// Marks the span as failed, with the kind of failure.
    pub fn fail(&mut self, failure: &'static str) {
        if let Some(open_span) = &mut self.0 {
            open_span.record.failure = Some(failure);
        }
    }

    /// Returns the trace's id for logs; absent if there is no trace.
    pub fn trace_id(&self) -> Option<String> {
        self.0.as_ref().map(|open_span| format!("{:032x}", open_span.record.trace))
    }

    /// Returns the `traceparent` header for calls that continue this trace; absent if there is no trace.
    pub fn traceparent(&self) -> Option<HeaderValue> {
        let open_span = self.0.as_ref()?;
        let flags = if open_span.recorder.is_some() { SAMPLED } else { 0 };
        let text = format!("{VERSION}-{:032x}-{:016x}-{flags:02x}", open_span.record.trace, open_span.record.id);
        HeaderValue::from_str(&text).ok()
    }
}

impl SpanRecord {
    /// Returns a child of this span.
    fn part(&self, name: &'static str, kind: SpanKind, start: Instant, end: Instant) -> Self {
        Self {
            trace: self.trace,
            id: rand::random_range(1..=u64::MAX),
            parent: Some(self.id),
            state: self.state.clone(),
            name,
            kind,
            start,
            end,
            attributes: Vec::new(),
            failure: None,
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(Open { mut record, recorder: Some(recorder) }) = self.0.take().map(|open_span| *open_span) {
            record.end = Instant::now();
            recorder.take(record);
        }
    }
}

impl Recorder {
    fn take(&self, record: SpanRecord) {
        if self.spans.try_send(ExportMessage::Span(record)).is_err() {
            self.n_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the trace, the parent and whether the trace is recorded, from a valid `traceparent`.
///
/// Source: W3C Trace Context, section 3.2.2: a later version may have more text after a dash; `ff` and ids of zeros are
/// invalid.
fn parse(text: &str) -> Option<(u128, u64, bool)> {
    let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let (head, rest) = text.split_at_checked(TRACEPARENT_BYTES)?;
    let mut parts = head.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let has_form = [version.len(), trace.len(), parent.len(), flags.len()] == [2, 32, 16, 2]
        && [version, trace, parent, flags].into_iter().all(is_hex)
        && version != "ff"
        && (rest.is_empty() || (version != VERSION && rest.starts_with('-')));
    let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| has_form && *trace != 0)?;
    let parent = u64::from_str_radix(parent, 16).ok().filter(|parent| *parent != 0)?;
    Some((trace, parent, u8::from_str_radix(flags, 16).ok()? & SAMPLED != 0))
}

/// Returns the wall-clock time of a moment. Units: nanoseconds since 1970.
fn unix_ns(moment: Instant) -> u128 {
    let ago = moment.elapsed();
    let then = SystemTime::now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH);
    then.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_one_or_none() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
        assert_eq!(parse(good), Some((trace, 0x00f0_67aa_0ba9_02b7, true)));
        assert_eq!(parse(&good.replace("-01", "-00")), Some((trace, 0x00f0_67aa_0ba9_02b7, false)));
        assert!(parse(&format!("{}-more", good.replacen("00", "01", 1))).is_some(), "a later version");
        for wrong in [
            "",
            &good[1..],
            &format!("{good}-more"),
            &good.replacen("00", "ff", 1),
            &good.to_uppercase(),
            &good.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &good.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &good.replace('-', "+"),
            &"\u{e9}".repeat(40),
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_parent_decides_what_is_recorded_or_without_one_the_ratio() {
        let (spans, mut sent) = mpsc::channel(8);
        let tracer =
            |ratio| Tracer(Some(Arc::new(Recorder { spans: spans.clone(), ratio, n_lost: AtomicU64::new(0) })));
        let given = |flags: &str| {
            let value = format!("00-{}-{}-{flags}", "a".repeat(32), "b".repeat(16));
            HeaderMap::from_iter([(TRACEPARENT.parse().expect("a name"), value.parse().expect("a value"))])
        };
        let mut is_recorded = |ratio, headers: &HeaderMap| {
            let span = tracer(ratio).request(headers, "request", Instant::now());
            let says = span.traceparent().is_some_and(|value| value.as_bytes().ends_with(b"-01"));
            drop(span);
            let is_sent = sent.try_recv().is_ok();
            assert_eq!(says, is_sent);
            is_sent
        };
        assert!(is_recorded(0.0, &given("01")) && !is_recorded(1.0, &given("00")));
        assert!(is_recorded(1.0, &HeaderMap::new()) && !is_recorded(0.0, &HeaderMap::new()));
        assert!(Tracer::default().request(&given("01"), "request", Instant::now()).traceparent().is_none());
    }
}
