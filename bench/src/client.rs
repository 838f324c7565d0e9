//! A streaming client of the chat endpoint that measures latencies and reads what was reused.
//!
//! The conversations are made in `chat_load` and `demo`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use eventsource_stream::Eventsource as _;
use futures::StreamExt as _;
use reqwest::header::HeaderMap;
use serde::Serialize;
use serde_json::{Value, json};
use warmpath_common::headers;

/// Time after which the client gives up waiting for a whole response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// Text of the message.
    pub content: String,
}

impl Message {
    /// Returns a message of `role`.
    pub fn new(role: &'static str, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// A response and its measurements.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    /// Text of the response.
    #[serde(skip)]
    pub text: String,
    /// Name of the worker, if the server reports it.
    pub worker: Option<String>,
    /// Slot, if the server reports it.
    pub slot: Option<String>,
    /// Reason for the route, if the server reports it.
    pub route: Option<String>,
    /// Number of prompt tokens that the router expected to be reused, if it reports that.
    pub predicted_cached_tokens: Option<u64>,
    /// Number of prompt tokens.
    pub prompt_tokens: u64,
    /// Number of prompt tokens that were reused.
    pub cached_tokens: u64,
    /// Number of generated tokens.
    pub completion_tokens: u64,
    /// Time from sending to the first piece of the response. Units: milliseconds.
    pub ttft_ms: f64,
    /// Time per token after the first; absent for responses of one token. Units: milliseconds.
    pub tpot_ms: Option<f64>,
}

/// Chat client of one server.
#[derive(Debug, Clone)]
pub struct ChatClient {
    http: reqwest::Client,
    url: String,
    model: Option<String>,
}

impl ChatClient {
    /// Returns a client of the server at `base_url` (`http://host:port`), for `model` or else the server's only model.
    ///
    /// Errors: when the HTTP client cannot be built.
    pub fn new(base_url: &str, model: Option<String>) -> anyhow::Result<Self> {
        // One connection per request: llama-server closes a connection after 100 requests or 5 s, and a request on a
        // connection that is just being closed fails.
        let builder = reqwest::Client::builder().no_proxy().timeout(ANSWER_TIMEOUT).pool_max_idle_per_host(0);
        let http = builder.build()?;
        Ok(Self { http, url: format!("{}/v1/chat/completions", base_url.trim_end_matches('/')), model })
    }

    /// Requests the next message of a conversation with greedy decoding, and measures.
    ///
    /// Errors: refused connections, error statuses (with the server's message), broken or incomplete streams.
    pub async fn ask(&self, messages: &[Message], max_tokens: u32) -> anyhow::Result<Answer> {
        self.send(&self.body(messages, max_tokens)).await
    }

    /// Like [`Self::ask`], but for a response of exactly `n_tokens`: end-of-sequence tokens are ignored.
    ///
    /// Errors: those of [`Self::ask`].
    pub async fn ask_exactly(&self, messages: &[Message], n_tokens: u32) -> anyhow::Result<Answer> {
        let mut body = self.body(messages, n_tokens);
        body["ignore_eos"] = json!(true);
        self.send(&body).await
    }

    /// Like [`Self::ask`], but for a response constrained by a field of the body, given as name and value.
    ///
    /// Errors: those of [`Self::ask`].
    pub async fn ask_following(
        &self,
        messages: &[Message],
        max_tokens: u32,
        (name, value): (&str, Value),
    ) -> anyhow::Result<Answer> {
        let mut body = self.body(messages, max_tokens);
        body[name] = value;
        self.send(&body).await
    }

    fn body(&self, messages: &[Message], max_tokens: u32) -> Value {
        json!({
            "model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0,
            "stream": true, "stream_options": {"include_usage": true},
        })
    }

    async fn send(&self, body: &Value) -> anyhow::Result<Answer> {
        let sent = Instant::now();
        let response = self.http.post(&self.url).json(body).send().await.context("sending a chat request")?;
        let status = response.status();
        if !status.is_success() {
            bail!("the server answered {status}: {}", response.text().await.unwrap_or_default());
        }
        let mut reading = Reading::new(response.headers());
        let mut events = response.bytes_stream().eventsource();
        while let Some(event) = events.next().await {
            let event = event.context("reading the answer's stream")?;
            if event.data == "[DONE]" {
                return reading.finish(sent);
            }
            reading.take(&serde_json::from_str(&event.data).context("reading a chunk")?, sent)?;
        }
        bail!("the stream ended before the answer did")
    }
}

/// A response while it is read.
struct Reading {
    answer: Answer,
    first: Option<Instant>,
    last: Option<Instant>,
    saw_usage: bool,
}

impl Reading {
    fn new(response: &HeaderMap) -> Self {
        let header = |name: &str| response.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let answer = Answer {
            text: String::new(),
            worker: header(headers::WORKER),
            slot: header(headers::SLOT),
            route: header(headers::ROUTE),
            predicted_cached_tokens: header(headers::PREDICTED_CACHED_TOKENS).and_then(|text| text.parse().ok()),
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            ttft_ms: 0.0,
            tpot_ms: None,
        };
        Self { answer, first: None, last: None, saw_usage: false }
    }

    fn take(&mut self, chunk: &Value, sent: Instant) -> anyhow::Result<()> {
        if let Some(error) = chunk.get("error") {
            bail!("the stream ended with an error: {error}");
        }
        if let Some(text) = chunk.pointer("/choices/0/delta/content").and_then(Value::as_str)
            && !text.is_empty()
        {
            self.answer.text.push_str(text);
            self.arrived(sent);
        }
        if chunk.pointer("/choices/0/finish_reason").is_some_and(Value::is_string) {
            self.arrived(sent);
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
            self.answer.prompt_tokens = count("/prompt_tokens").context("usage has no prompt_tokens")?;
            self.answer.completion_tokens = count("/completion_tokens").context("usage has no completion_tokens")?;
            self.answer.cached_tokens = count("/prompt_tokens_details/cached_tokens").unwrap_or(0);
            self.saw_usage = true;
        }
        Ok(())
    }

    fn arrived(&mut self, sent: Instant) {
        let now = Instant::now();
        if self.first.is_none() {
            self.first = Some(now);
            self.answer.ttft_ms = now.duration_since(sent).as_secs_f64() * 1e3;
        }
        self.last = Some(now);
    }

    fn finish(mut self, sent: Instant) -> anyhow::Result<Answer> {
        if !self.saw_usage {
            bail!("the stream ended without usage, {} ms after it was asked for", sent.elapsed().as_millis());
        }
        if let (Some(first), Some(last), 2..) = (self.first, self.last, self.answer.completion_tokens) {
            let steps = (self.answer.completion_tokens - 1) as f64;
            self.answer.tpot_ms = Some(last.duration_since(first).as_secs_f64() * 1e3 / steps);
        }
        Ok(self.answer)
    }
}
