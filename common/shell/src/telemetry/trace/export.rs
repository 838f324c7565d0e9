//! Export of spans to a collector: OTLP over HTTP, in JSON.
//!
//! Spans themselves are in `trace`.
//!
//! Spans wait in a bounded queue and are sent in batches by one task. If the collector is unavailable or slow, they are
//! dropped and counted, and no request waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, Uri, header};
use clap::Args;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::ServerName;
use serde_json::{Value as Json, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::{Attribute, AttributeValue, Recorder, SpanKind, SpanRecord, Tracer, unix_ns};
use crate::net::connect::{Connector, Secured};
use crate::net::tls::{ClientFiles, TlsError};

/// Most spans that wait to be sent; further ones are dropped.
///
/// Source: own choice: one second's spans of 500 requests per second, eight each.
const SPANS_QUEUED_MAX: usize = 4096;

/// Most spans of one message.
///
/// Source: the default of OpenTelemetry's batch processor.
const BATCH_MAX: usize = 512;

/// Longest time for which a span waits for others. Source: own choice: traces are read minutes later.
const BATCH_PAUSE: Duration = Duration::from_secs(1);

/// Longest time for the collector's response.
///
/// Source: the default of OpenTelemetry's OTLP exporter.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Path that is appended to the endpoint.
///
/// Source: OTLP specification, section OTLP/HTTP.
const TRACES_PATH: &str = "/v1/traces";

/// Destination of spans, and the share of recorded traces.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceConfig {
    /// URL of the collector, without the path of traces.
    pub endpoint: String,
    /// Recorded share of the traces that start here. Range: 0 to 1.
    pub ratio: f64,
}

/// Flags of tracing.
#[derive(Debug, Clone, Args)]
pub struct TraceFlags {
    /// URL of an OpenTelemetry collector for traces of requests, as http://10.0.0.9:4318; without it none are sent.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// Recorded share of the traces that start here; whether a client's trace is recorded depends on its sampling flag.
    #[arg(long, env = "WARMPATH_TRACE_RATIO", value_name = "RATIO", default_value_t = 1.0)]
    pub trace_ratio: f64,
}

impl TraceFlags {
    /// Returns the configuration of tracing; absent if there is no endpoint.
    pub fn config(&self) -> Option<TraceConfig> {
        let endpoint = self.otlp_endpoint.clone().filter(|endpoint| !endpoint.is_empty())?;
        Some(TraceConfig { endpoint, ratio: self.trace_ratio })
    }
}

/// Reason why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The endpoint is not a valid URL.
    #[error("--otlp-endpoint {endpoint}: it must be http://HOST:PORT or https://HOST:PORT, optionally with a path")]
    Endpoint {
        /// Given endpoint.
        endpoint: String,
    },
    /// The ratio is not between 0 and 1.
    #[error("--trace-ratio must be a share, 0 to 1")]
    Ratio,
    /// TLS cannot be set up.
    #[error("--otlp-endpoint")]
    Tls(#[from] TlsError),
}

/// Message to the exporting task.
#[derive(Debug)]
pub(super) enum ExportMessage {
    Span(SpanRecord),
    Flush(oneshot::Sender<()>),
}

impl Tracer {
    /// Returns the tracer of `service`, and starts the task that exports its spans.
    ///
    /// Errors: every [`TraceError`]; the collector is not contacted.
    pub fn start(config: &TraceConfig, service: &'static str, tasks: &mut JoinSet<()>) -> Result<Self, TraceError> {
        let refuse = || TraceError::Endpoint { endpoint: config.endpoint.clone() };
        let base = config.endpoint.trim_end_matches('/');
        let target: Uri = format!("{base}{TRACES_PATH}").parse().map_err(|_| refuse())?;
        let host = target.host().ok_or_else(refuse)?.trim_matches(['[', ']']).to_owned();
        let tls = match target.scheme_str() {
            Some("http") => None,
            Some("https") => {
                let name = ServerName::try_from(host).map_err(|_| refuse())?;
                Some(Secured { config: ClientFiles::default().open()?, name })
            }
            _ => return Err(refuse()),
        };
        if !(0.0..=1.0).contains(&config.ratio) {
            return Err(TraceError::Ratio);
        }
        let client = Client::builder(TokioExecutor::new()).build(Connector::new(tls, SEND_TIMEOUT));
        let (spans, inbox) = mpsc::channel(SPANS_QUEUED_MAX);
        let recorder = Arc::new(Recorder { spans, ratio: config.ratio, n_lost: AtomicU64::new(0) });
        let exporter = Exporter { client, target, service, recorder: Arc::clone(&recorder), is_failing: false };
        tasks.spawn(exporter.run(inbox));
        Ok(Self(Some(recorder)))
    }
}

struct Exporter {
    client: Client<Connector, Full<Bytes>>,
    target: Uri,
    service: &'static str,
    recorder: Arc<Recorder>,
    /// Whether the last message failed, so that a failure is logged once.
    is_failing: bool,
}

impl Exporter {
    async fn run(mut self, mut inbox: mpsc::Receiver<ExportMessage>) {
        let mut batch = Vec::new();
        while let Some(first) = inbox.recv().await {
            let mut waiting = Vec::new();
            sort(first, &mut batch, &mut waiting);
            let batch_end = tokio::time::sleep(BATCH_PAUSE);
            tokio::pin!(batch_end);
            while batch.len() < BATCH_MAX && waiting.is_empty() {
                tokio::select! {
                    () = &mut batch_end => break,
                    message = inbox.recv() => match message {
                        Some(message) => sort(message, &mut batch, &mut waiting),
                        None => break,
                    },
                }
            }
            self.send(std::mem::take(&mut batch)).await;
            for done in waiting {
                // An error means that the caller of `flush` has gone.
                let _ = done.send(());
            }
        }
    }

    async fn send(&mut self, batch: Vec<SpanRecord>) {
        if batch.is_empty() {
            return;
        }
        let body = message(self.service, &batch).to_string();
        let request = Request::post(self.target.clone()).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(Full::from(body)).expect("a URL and a type are a request");
        let reason = match tokio::time::timeout(SEND_TIMEOUT, self.client.request(request)).await {
            Ok(Ok(response)) if response.status().is_success() => {
                self.is_failing = false;
                return;
            }
            Ok(Ok(response)) => format!("it responded with {}", response.status()),
            Ok(Err(error)) => crate::chain(&error),
            Err(_) => "it did not respond in time".to_owned(),
        };
        self.recorder.n_lost.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(collector = %self.target, %reason, "spans cannot be sent; they are dropped");
        }
    }
}

fn sort(message: ExportMessage, batch: &mut Vec<SpanRecord>, waiting: &mut Vec<oneshot::Sender<()>>) {
    match message {
        ExportMessage::Span(record) => batch.push(record),
        ExportMessage::Flush(done) => waiting.push(done),
    }
}

/// Returns the OTLP message. Source: OTLP's `trace.proto` in the JSON mapping: ids in hexadecimal, 64-bit numbers as
/// texts, enumerations as numbers.
fn message(service: &str, batch: &[SpanRecord]) -> Json {
    let spans: Vec<Json> = batch.iter().map(span).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": [
            {"key": "service.name", "value": {"stringValue": service}},
            {"key": "service.version", "value": {"stringValue": env!("CARGO_PKG_VERSION")}},
        ]},
        "scopeSpans": [{"scope": {"name": "warmpath"}, "spans": spans}],
    }]})
}

fn span(record: &SpanRecord) -> Json {
    let attribute = |Attribute { key, value }: &Attribute| match value {
        AttributeValue::Name(name) => json!({"key": key, "value": {"stringValue": name}}),
        AttributeValue::Count(count) => json!({"key": key, "value": {"intValue": count.to_string()}}),
    };
    let kind = match record.kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
    };
    let mut span = json!({
        "traceId": format!("{:032x}", record.trace),
        "spanId": format!("{:016x}", record.id),
        "name": record.name,
        "kind": kind,
        "startTimeUnixNano": unix_ns(record.start).to_string(),
        "endTimeUnixNano": unix_ns(record.end).to_string(),
        "attributes": record.attributes.iter().map(attribute).collect::<Vec<_>>(),
    });
    if let Some(parent) = record.parent {
        span["parentSpanId"] = json!(format!("{parent:016x}"));
    }
    if let Some(state) = record.state.as_ref().and_then(|state| state.to_str().ok()) {
        span["traceState"] = json!(state);
    }
    if let Some(failure) = record.failure {
        span["status"] = json!({"code": 2, "message": failure});
    }
    span
}
