//! A streaming client of the chat endpoint that measures latencies and reads the reuse.
//!
//! The conversations are made in `chat_load`, `demo` and `load`.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use eventsource_stream::{EventStreamError, Eventsource as _};
use futures::StreamExt as _;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde::Serialize;
use serde_json::{Value, json};
use warmpath_common::headers;

/// Time after which the client gives up waiting for a whole response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Time for which an idle connection is kept.
///
/// Source: llama-server and uvicorn close a connection after 5 s without a request, and a request on a connection that
/// is just being closed fails.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);

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
#[derive(Debug, Clone, Default, Serialize)]
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
    /// Times between two pieces of the response (ITL). Units: milliseconds.
    #[serde(skip)]
    pub itl_ms: Vec<f64>,
    /// Time from sending to the end of the response. Units: milliseconds.
    pub e2e_ms: f64,
}

/// Reason why a request got no whole response.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The request could not be sent, or no response began.
    #[error("sending a chat request")]
    Send(#[source] reqwest::Error),
    /// The server refused the request.
    #[error("the server answered {status}: {body}")]
    Status {
        /// Status of the response.
        status: StatusCode,
        /// Body of the response.
        body: String,
    },
    /// The response broke off.
    #[error("reading the answer's stream")]
    Stream(#[source] EventStreamError<reqwest::Error>),
    /// The response ended before its `[DONE]`.
    #[error("the stream ended before the answer")]
    Incomplete,
    /// An event is not JSON.
    #[error("reading a chunk")]
    Chunk(#[source] serde_json::Error),
    /// The response ended with an error event.
    #[error("the stream ended with an error: {0}")]
    Event(Value),
    /// The response has no `usage`, or one without a count.
    #[error("the answer's usage has no {0}")]
    NoUsage(&'static str),
}

impl AskError {
    /// Returns a short name for tables.
    pub fn kind(&self) -> String {
        match self {
            Self::Send(error) | Self::Stream(EventStreamError::Transport(error)) if error.is_timeout() => {
                "timeout".to_owned()
            }
            Self::Send(_) => "connection".to_owned(),
            Self::Status { status, .. } => format!("status {}", status.as_u16()),
            Self::Stream(_) | Self::Incomplete => "broken stream".to_owned(),
            Self::Chunk(_) => "invalid event".to_owned(),
            Self::Event(_) => "error event".to_owned(),
            Self::NoUsage(_) => "no usage".to_owned(),
        }
    }
}

/// An OpenAI endpoint that is running already.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Base URL, with or without `/v1`.
    pub base_url: String,
    /// API key, if it needs one.
    pub api_key: Option<String>,
    /// Time for a whole response.
    pub timeout: Duration,
}

/// Chat client of one server.
#[derive(Debug, Clone)]
pub struct ChatClient {
    http: reqwest::Client,
    /// URL that ends with `/v1`.
    base_url: String,
    model: Option<String>,
    api_key: Option<String>,
}

impl ChatClient {
    /// Returns a client of the server at `base_url` (`http://host:port`), for `model`, or for the server's only model.
    ///
    /// Errors: the HTTP client cannot be built.
    pub fn new(base_url: &str, model: Option<String>) -> anyhow::Result<Self> {
        // One connection per request: llama-server closes a connection after 100 requests or 5 s, and a request on a
        // connection that is being closed fails.
        let builder = reqwest::Client::builder().no_proxy().timeout(ANSWER_TIMEOUT).pool_max_idle_per_host(0);
        Ok(Self { http: builder.build()?, base_url: versioned(base_url), model, api_key: None })
    }

    /// Returns a client of an endpoint, for `model`, or for the endpoint's only model. It keeps its connections, as
    /// OpenAI's libraries do.
    ///
    /// Errors: the HTTP client cannot be built; no model is given, and the endpoint does not list exactly one.
    pub async fn of_endpoint(endpoint: &Endpoint, model: Option<String>) -> anyhow::Result<Self> {
        let builder = reqwest::Client::builder().no_proxy().timeout(endpoint.timeout);
        let http = builder.pool_idle_timeout(IDLE_CONNECTION).build()?;
        let (base_url, api_key) = (versioned(&endpoint.base_url), endpoint.api_key.clone());
        let client = Self { http, base_url, model, api_key };
        let model = match client.model {
            Some(_) => return Ok(client),
            None => client.only_model().await?,
        };
        Ok(Self { model: Some(model), ..client })
    }

    /// Returns the model that requests name.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    async fn only_model(&self) -> anyhow::Result<String> {
        let url = format!("{}/models", self.base_url);
        let response = self.with_key(self.http.get(&url)).send().await?.error_for_status()?;
        let list: Value = response.json().await.with_context(|| format!("reading {url}"))?;
        let models = list["data"].as_array().into_iter().flatten();
        let names: Vec<&str> = models.filter_map(|model| model["id"].as_str()).collect();
        match names.as_slice() {
            [name] => Ok((*name).to_owned()),
            names => anyhow::bail!("{url} lists {} models ({}): name one with --model", names.len(), names.join(", ")),
        }
    }

    fn with_key(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Requests the next message of a conversation with greedy decoding, and measures.
    ///
    /// Errors: refused connections, error statuses (with the server's message), broken or incomplete streams.
    pub async fn ask(&self, messages: &[Message], max_tokens: u32) -> anyhow::Result<Answer> {
        Ok(self.send(&self.body(messages, max_tokens), Instant::now()).await?)
    }

    /// Like [`Self::ask`], but for a response of exactly `n_tokens`: end-of-sequence tokens are ignored.
    ///
    /// Errors: those of [`Self::ask`].
    pub async fn ask_exactly(&self, messages: &[Message], n_tokens: u32) -> anyhow::Result<Answer> {
        let mut body = self.body(messages, n_tokens);
        body["ignore_eos"] = json!(true);
        Ok(self.send(&body, Instant::now()).await?)
    }

    /// Like [`Self::ask`], but for a response constrained by a field of the body, named `name`.
    ///
    /// Errors: those of [`Self::ask`].
    pub async fn ask_following(
        &self,
        messages: &[Message],
        max_tokens: u32,
        name: &str,
        value: Value,
    ) -> anyhow::Result<Answer> {
        let mut body = self.body(messages, max_tokens);
        body[name] = value;
        Ok(self.send(&body, Instant::now()).await?)
    }

    /// Returns the body of a streamed request with greedy decoding.
    pub fn body(&self, messages: &[Message], max_tokens: u32) -> Value {
        json!({
            "model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0,
            "stream": true, "stream_options": {"include_usage": true},
        })
    }

    /// Sends a streamed request and measures; latencies count from `since`.
    ///
    /// Errors: every [`AskError`].
    pub async fn send(&self, body: &Value, since: Instant) -> Result<Answer, AskError> {
        let request = self.http.post(format!("{}/chat/completions", self.base_url)).json(body);
        let response = self.with_key(request).send().await.map_err(AskError::Send)?;
        let status = response.status();
        if !status.is_success() {
            return Err(AskError::Status { status, body: response.text().await.unwrap_or_default() });
        }
        let mut reading = Reading::new(response.headers(), since);
        let mut events = response.bytes_stream().eventsource();
        while let Some(event) = events.next().await {
            let event = event.map_err(AskError::Stream)?;
            if event.data == "[DONE]" {
                return reading.finish();
            }
            reading.take(&serde_json::from_str(&event.data).map_err(AskError::Chunk)?)?;
        }
        Err(AskError::Incomplete)
    }
}

/// Returns the URL with `/v1` at its end.
fn versioned(base_url: &str) -> String {
    let base_url = base_url.trim_end_matches('/');
    format!("{}/v1", base_url.strip_suffix("/v1").unwrap_or(base_url))
}

/// Returns whether a chunk's delta contains a piece of the response: text, reasoning or a tool call.
pub fn has_output(delta: &Value) -> bool {
    let is_empty = |value: &Value| match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        value => value.is_null(),
    };
    ["content", "reasoning_content", "reasoning", "tool_calls"].iter().any(|part| !is_empty(&delta[*part]))
}

/// A response while it is read.
struct Reading {
    answer: Answer,
    since: Instant,
    /// Arrival of the last piece of the response.
    last: Option<Instant>,
    saw_usage: bool,
}

impl Reading {
    fn new(response: &HeaderMap, since: Instant) -> Self {
        let header = |name: &str| response.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let answer = Answer {
            worker: header(headers::WORKER),
            slot: header(headers::SLOT),
            route: header(headers::ROUTE),
            predicted_cached_tokens: header(headers::PREDICTED_CACHED_TOKENS).and_then(|text| text.parse().ok()),
            ..Answer::default()
        };
        Self { answer, since, last: None, saw_usage: false }
    }

    fn take(&mut self, chunk: &Value) -> Result<(), AskError> {
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            return Err(AskError::Event(error.clone()));
        }
        let choice = &chunk["choices"][0];
        self.answer.text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        if has_output(&choice["delta"]) {
            self.arrived();
        } else if choice["finish_reason"].is_string() {
            self.ended();
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            let count = |name: &'static str| usage[name].as_u64().ok_or(AskError::NoUsage(name));
            self.answer.prompt_tokens = count("prompt_tokens")?;
            self.answer.completion_tokens = count("completion_tokens")?;
            self.answer.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
            self.saw_usage = true;
        }
        Ok(())
    }

    /// Records that a piece of the response has arrived.
    fn arrived(&mut self) {
        let now = Instant::now();
        match self.last {
            None => self.answer.ttft_ms = ms(now - self.since),
            Some(last) => self.answer.itl_ms.push(ms(now - last)),
        }
        self.last = Some(now);
    }

    /// Records that the response has ended without a further piece, as after a token without text.
    fn ended(&mut self) {
        let now = Instant::now();
        if self.last.is_none() {
            self.answer.ttft_ms = ms(now - self.since);
        }
        self.last = Some(now);
    }

    fn finish(mut self) -> Result<Answer, AskError> {
        if !self.saw_usage {
            return Err(AskError::NoUsage("counts"));
        }
        self.answer.e2e_ms = ms(self.since.elapsed());
        if let (Some(last), 2..) = (self.last, self.answer.completion_tokens) {
            let after_first_ms = ms(last - self.since) - self.answer.ttft_ms;
            self.answer.tpot_ms = Some(after_first_ms / (self.answer.completion_tokens - 1) as f64);
        }
        Ok(self.answer)
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
