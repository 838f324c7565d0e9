//! The response that a client got: texts, length and end, in any dialect, streamed or in one piece.
//!
//! Not here: sending the request (`load`). Two responses are the same for their clients if these parts are equal, so a
//! stream that was interrupted by a failure can be compared with a response in one piece from an undisturbed worker.

use std::collections::BTreeSet;

use anyhow::{bail, ensure};
use serde_json::Value;

/// Path of chats.
pub const CHAT: &str = "/v1/chat/completions";
/// Path of OpenAI's completions.
pub const COMPLETIONS: &str = "/v1/completions";
/// Path of Anthropic's messages.
pub const MESSAGES: &str = "/v1/messages";
/// Path of OpenAI's responses.
pub const RESPONSES: &str = "/v1/responses";
/// Path of llama-server's completions.
pub const NATIVE: &str = "/completion";

/// The part of a response that must be the same.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said {
    /// Text of each choice.
    pub texts: Vec<String>,
    /// Number of generated tokens, of all choices.
    pub output_tokens: u64,
    /// Reason for its end, as the dialect names it.
    pub end: String,
}

impl Said {
    /// Returns the parts of a whole response.
    pub fn of_whole(path: &str, response: &Value) -> Self {
        Self::read_whole(path, response).without_empty_ends()
    }

    fn read_whole(path: &str, response: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let count = |value: &Value| value.as_u64().unwrap_or_default();
        match path {
            CHAT | COMPLETIONS => {
                let choices = response["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
                let of_choice = |choice: &Value| text(&choice["message"]["content"]) + &text(&choice["text"]);
                Self {
                    texts: choices.iter().map(of_choice).collect(),
                    output_tokens: count(&response["usage"]["completion_tokens"]),
                    end: choices.last().map(|choice| text(&choice["finish_reason"])).unwrap_or_default(),
                }
            }
            NATIVE => Self {
                texts: vec![text(&response["content"])],
                output_tokens: count(&response["tokens_predicted"]),
                end: text(&response["stop_type"]),
            },
            _ => {
                let content = if path == MESSAGES { &response["content"] } else { &response["output"][0]["content"] };
                Self {
                    texts: vec![text(&content[0]["text"])],
                    output_tokens: count(&response["usage"]["output_tokens"]),
                    end: text(&response["stop_reason"]) + &text(&response["incomplete_details"]["reason"]),
                }
            }
        }
    }

    /// Returns whether each text of `self` is a prefix of the same text of `expected`.
    pub fn begins(&self, expected: &Self) -> bool {
        let nothing = String::new();
        let of_whole = |idx| expected.texts.get(idx).unwrap_or(&nothing);
        self.texts.iter().enumerate().all(|(idx, text)| of_whole(idx).starts_with(text.as_str()))
    }

    /// Returns it without empty texts at its end: a dialect that streams blocks of text sends none for an empty one.
    fn without_empty_ends(mut self) -> Self {
        let n_texts = self.texts.iter().rposition(|text| !text.is_empty()).map_or(0, |last| last + 1);
        self.texts.truncate(n_texts);
        self
    }

    fn add(&mut self, choice: &Value, text: &Value) {
        let idx = choice.as_u64().and_then(|idx| usize::try_from(idx).ok()).unwrap_or_default();
        if idx >= self.texts.len() {
            self.texts.resize(idx + 1, String::new());
        }
        self.texts[idx] += text.as_str().unwrap_or_default();
    }
}

/// Reader of a stream, piece by piece.
#[derive(Debug)]
pub struct StreamReader {
    path: &'static str,
    /// Start of a line whose end has not arrived.
    line: Vec<u8>,
    said: Said,
    ids: BTreeSet<String>,
    n_events: usize,
    n_failovers: u32,
    is_over: bool,
}

impl StreamReader {
    /// Returns the reader of a response to a request to this path.
    pub fn new(path: &'static str) -> Self {
        Self {
            path,
            line: Vec::new(),
            said: Said::default(),
            ids: BTreeSet::new(),
            n_events: 0,
            n_failovers: 0,
            is_over: false,
        }
    }

    /// Takes the next piece.
    ///
    /// Errors: an error event, an event behind the end, a line of the journal, anything that is not an event.
    pub fn push(&mut self, piece: &[u8]) -> anyhow::Result<()> {
        self.line.extend_from_slice(piece);
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            self.take(std::str::from_utf8(&line)?.trim_end())?;
        }
        Ok(())
    }

    /// Returns the number of events so far.
    pub fn n_events(&self) -> usize {
        self.n_events
    }

    /// Returns how often the stream was continued at another worker, according to its comments.
    pub fn n_failovers(&self) -> u32 {
        self.n_failovers
    }

    /// Returns the response so far.
    pub fn so_far(&self) -> &Said {
        &self.said
    }

    /// Returns the complete response at the end of the stream.
    ///
    /// Errors: the stream has no end, or several ids.
    pub fn finish(self) -> anyhow::Result<Said> {
        ensure!(self.is_over, "the stream has no end after {} events: {:?}", self.n_events, self.said);
        ensure!(self.ids.len() <= 1, "the stream has the ids {:?}", self.ids);
        Ok(self.said.without_empty_ends())
    }

    fn take(&mut self, line: &str) -> anyhow::Result<()> {
        ensure!(!line.starts_with(":wp"), "the journal reached a client: {line}");
        if let Some(count) = line.strip_prefix(": x-warmpath-failovers: ") {
            let count = count.split(';').next().unwrap_or_default();
            self.n_failovers = count.trim().parse().unwrap_or(self.n_failovers + 1);
        }
        let Some(data) = line.strip_prefix("data: ") else { return Ok(()) };
        ensure!(!self.is_over, "an event behind the end: {data}");
        self.n_events += 1;
        if data == "[DONE]" {
            self.is_over = true;
            return Ok(());
        }
        let event: Value = serde_json::from_str(data)?;
        if !event["error"].is_null() || event["type"] == "error" {
            bail!("an error event: {event}");
        }
        match self.path {
            NATIVE => self.take_native(&event),
            _ => self.take_event(&event),
        }
        Ok(())
    }

    fn take_native(&mut self, event: &Value) {
        self.said.add(&event["index"], &event["content"]);
        if event["stop"] == true {
            self.said.output_tokens += event["tokens_predicted"].as_u64().unwrap_or_default();
            self.said.end = event["stop_type"].as_str().unwrap_or_default().to_owned();
            self.is_over = true;
        }
    }

    fn take_event(&mut self, event: &Value) {
        for id in [&event["id"], &event["message"]["id"], &event["response"]["id"]] {
            self.ids.extend(id.as_str().map(str::to_owned));
        }
        let said = &mut self.said;
        for choice in event["choices"].as_array().into_iter().flatten() {
            said.add(&choice["index"], &choice["delta"]["content"]);
            said.add(&choice["index"], &choice["text"]);
            said.end = choice["finish_reason"].as_str().unwrap_or(&said.end).to_owned();
        }
        let of_part = if self.path == RESPONSES { &event["delta"] } else { &event["delta"]["text"] };
        if of_part.is_string() {
            said.add(&Value::Null, of_part);
        }
        let ends = [&event["delta"]["stop_reason"], &event["response"]["incomplete_details"]["reason"]];
        said.end += &ends.map(|end| end.as_str().unwrap_or_default()).concat();
        for usage in [&event["usage"], &event["response"]["usage"]] {
            let n_tokens = usage["completion_tokens"].as_u64().or(usage["output_tokens"].as_u64());
            said.output_tokens = n_tokens.unwrap_or(said.output_tokens);
        }
        let last = ["message_stop", "response.incomplete", "response.completed"];
        self.is_over = last.iter().any(|last| event["type"] == **last);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(path: &'static str, text: &str) -> anyhow::Result<Said> {
        let mut reader = StreamReader::new(path);
        // Pieces end anywhere.
        for piece in text.as_bytes().chunks(7) {
            reader.push(piece)?;
        }
        reader.finish()
    }

    #[test]
    fn a_stream_has_the_text_of_the_whole_response() {
        let stream = "data: {\"id\":\"a\",\"choices\":[{\"index\":1,\"delta\":{\"content\":\"b\"}}]}\n\n\
            : x-warmpath-failovers: 2; exact\n\n\
            data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\
            \"finish_reason\":\"stop\"}]}\n\n\
            data: {\"id\":\"a\",\"choices\":[],\"usage\":{\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
        let choice = |text: &str| json!({"message": {"content": text}, "finish_reason": "stop"});
        let whole = json!({"choices": [choice("a"), choice("b")], "usage": {"completion_tokens": 2}});
        let said = read(CHAT, stream).expect("it has an end");
        assert_eq!(said, Said::of_whole(CHAT, &whole));
        let begun = Said { texts: vec!["a".to_owned()], ..Said::default() };
        assert!(begun.begins(&said) && !said.begins(&begun));
        let mut reader = StreamReader::new(CHAT);
        reader.push(stream.as_bytes()).expect("events");
        assert_eq!((reader.n_failovers(), reader.n_events()), (2, 4));
    }

    #[test]
    fn an_empty_answer_is_the_same_streamed_and_whole() {
        let stream = "data: {\"type\":\"message_start\",\"message\":{\"id\":\"a\"}}\n\n\
            data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\
            \"usage\":{\"output_tokens\":1}}\n\ndata: {\"type\":\"message_stop\"}\n\n";
        let whole = json!({"content": [], "stop_reason": "end_turn", "usage": {"output_tokens": 1}});
        let said = read(MESSAGES, stream).expect("it has an end");
        assert_eq!(said, Said::of_whole(MESSAGES, &whole));
        assert_eq!((said.texts.len(), said.output_tokens), (0, 1));
    }

    #[test]
    fn a_stream_without_an_end_or_with_anything_else_is_an_error() {
        let event = "data: {\"id\":\"a\",\"choices\":[]}\n\n";
        for (text, expected) in [
            (event.to_owned(), "no end"),
            (format!("{event}data: {{\"id\":\"b\"}}\n\ndata: [DONE]\n\n"), "ids"),
            (format!("{event}data: {{\"error\":{{}}}}\n\ndata: [DONE]\n\n"), "an error event"),
            (format!("data: [DONE]\n\n{event}"), "behind the end"),
            (format!("{event}:wp 0 1\n"), "journal"),
        ] {
            let error = read(CHAT, &text).expect_err("it is broken").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
