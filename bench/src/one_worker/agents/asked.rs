//! One request in an agent's dialect and its result: the text, the reused tokens, the time to the first token.
//!
//! Not here: the content of requests (`session`).

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use eventsource_stream::Eventsource as _;
use futures::StreamExt as _;
use serde_json::Value;

use super::shape::Dialect;
use crate::client::has_output;

/// Longest time for a complete answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1800);

/// An answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct MeasuredAnswer {
    pub(super) text: String,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) completion_tokens: u64,
    /// Time from sending to the first event with a part of the answer. Units: milliseconds.
    pub(super) ttft_ms: f64,
    /// Time from that event to the last one with a part of the answer. Units: milliseconds.
    pub(super) after_first_ms: f64,
}

/// Client of a server in one dialect.
pub(super) struct DialectClient {
    http: reqwest::Client,
    url: String,
    dialect: Dialect,
}

impl DialectClient {
    /// Returns a client of the server at `base_url`.
    ///
    /// Errors: the HTTP client cannot be built.
    pub(super) fn new(base_url: &str, dialect: Dialect) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().timeout(ANSWER_TIMEOUT).pool_max_idle_per_host(0).build()?;
        Ok(Self { http, url: format!("{}{}", base_url.trim_end_matches('/'), dialect.path()), dialect })
    }

    /// Sends a body and reads the stream to its end.
    ///
    /// Errors: a refused connection, an error status with its message, a stream that breaks off.
    pub(super) async fn ask(&self, body: &Value) -> anyhow::Result<MeasuredAnswer> {
        let sent_at = Instant::now();
        let response = self.http.post(&self.url).json(body).send().await.context("sending a request")?;
        if !response.status().is_success() {
            bail!("{}: {}", response.status(), response.text().await.unwrap_or_default());
        }
        let mut answer = MeasuredAnswer::default();
        let mut events = response.bytes_stream().eventsource();
        while let Some(event) = events.next().await {
            let event = event.context("reading the answer's stream")?;
            let Ok(event) = serde_json::from_str::<Value>(&event.data) else { continue };
            if answer.take(&event, self.dialect)? {
                let now_ms = sent_at.elapsed().as_secs_f64() * 1e3;
                if answer.ttft_ms == 0.0 {
                    answer.ttft_ms = now_ms;
                }
                answer.after_first_ms = now_ms - answer.ttft_ms;
            }
        }
        anyhow::ensure!(answer.prompt_tokens > 0, "the stream ended without a count of its prompt's tokens");
        Ok(answer)
    }
}

impl MeasuredAnswer {
    /// Reads an event; returns whether it contains a part of the answer.
    fn take(&mut self, event: &Value, dialect: Dialect) -> anyhow::Result<bool> {
        if event.get("error").is_some_and(|error| !error.is_null()) {
            bail!("the stream ended with an error: {event}");
        }
        let count = |pointer: &str| event.pointer(pointer).and_then(Value::as_u64);
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        Ok(match dialect {
            Dialect::Chat => {
                self.text += text("/choices/0/delta/content");
                self.count(count("/usage/prompt_tokens"), count("/usage/prompt_tokens_details/cached_tokens"));
                self.count_answer(count("/usage/completion_tokens"));
                has_output(&event["choices"][0]["delta"])
            }
            Dialect::Messages => {
                self.text += text("/delta/text");
                let (uncached_tokens, read) = ("/message/usage/input_tokens", "/message/usage/cache_read_input_tokens");
                let cached_tokens = count(read).unwrap_or_default();
                self.count(
                    count(uncached_tokens).map(|uncached_tokens| uncached_tokens + cached_tokens),
                    Some(cached_tokens),
                );
                self.count_answer(count("/usage/output_tokens"));
                event["type"] == "content_block_delta"
            }
            Dialect::Responses => {
                if event["type"] == "response.output_text.delta" {
                    self.text += text("/delta");
                }
                let usage = "/response/usage/input_tokens";
                self.count(count(usage), count(&format!("{usage}_details/cached_tokens")));
                self.count_answer(count("/response/usage/output_tokens"));
                event["type"].as_str().is_some_and(|kind| kind.ends_with(".delta"))
            }
        })
    }

    fn count(&mut self, prompt_tokens: Option<u64>, cached_tokens: Option<u64>) {
        if let Some(prompt_tokens) = prompt_tokens {
            self.prompt_tokens = prompt_tokens;
            self.cached_tokens = cached_tokens.unwrap_or_default();
        }
    }

    fn count_answer(&mut self, completion_tokens: Option<u64>) {
        self.completion_tokens = completion_tokens.unwrap_or(self.completion_tokens);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(dialect: Dialect, events: &[(Value, bool)]) {
        let mut asked = MeasuredAnswer::default();
        for (event, is_content) in events {
            assert_eq!(asked.take(event, dialect).expect("no error"), *is_content, "{event}");
        }
        let counts = [asked.prompt_tokens, asked.cached_tokens, asked.completion_tokens];
        assert_eq!((asked.text.as_str(), counts), ("a", [9, 4, 3]));
    }

    #[test]
    fn each_dialect_s_events_are_read() {
        let delta = |delta: Value| json!({"choices": [{"delta": delta}]});
        let usage = json!({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens": 3});
        let chat = [
            (delta(json!({"role": "assistant", "content": null})), false),
            (delta(json!({"content": "a"})), true),
            (delta(json!({"tool_calls": [{"index": 0}]})), true),
            (json!({"choices": [], "usage": usage}), false),
        ];
        check(Dialect::Chat, &chat);
        let begin =
            json!({"type": "message_start", "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 4}}});
        let text = json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}});
        let end = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}});
        check(Dialect::Messages, &[(begin, false), (text, true), (end, false)]);
        let usage = json!({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3});
        let text = json!({"type": "response.output_text.delta", "delta": "a"});
        let call = json!({"type": "response.function_call_arguments.delta", "delta": "{"});
        let end = json!({"type": "response.completed", "response": {"error": null, "usage": usage}});
        check(Dialect::Responses, &[(text, true), (call, true), (end, false)]);
    }

    #[test]
    fn an_error_event_is_an_error() {
        let error = json!({"type": "error", "error": {"message": "full"}});
        assert!(MeasuredAnswer::default().take(&error, Dialect::Messages).is_err());
    }
}
