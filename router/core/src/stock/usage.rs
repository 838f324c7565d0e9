//! What an answer says of the tokens behind it: OpenAI's `usage`, and llama-server's `timings` where they are.
//!
//! Not here: what follows from it (`stock`). The idea: a whole answer is one JSON text; of a stream every event may say
//! something, mostly the last ones, so events are looked at as they pass and nothing is held back but a line's beginning.

use serde::Deserialize;

/// Is the longest line of a stream that is looked at. Units: bytes.
///
/// Source: own choice: a chunk with usage and timings has a few hundred.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Is what an answer says; each part is absent where it does not say it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Is the prompt's length. Units: tokens.
    pub prompt_tokens: Option<u32>,
    /// Is how much of it was reused. Units: tokens.
    pub cached_tokens: Option<u32>,
    /// Is the answer's length. Units: tokens.
    pub completion_tokens: Option<u32>,
    /// Is the time that the rest of the prompt took. Units: milliseconds.
    pub prefill_ms: Option<f64>,
    /// Is the time of each token of the answer. Units: milliseconds.
    pub decode_step_ms: Option<f64>,
}

#[derive(Deserialize)]
struct Answer {
    usage: Option<Counts>,
    timings: Option<Timings>,
}

/// Source: OpenAI's API reference, "usage"; fields may be null or missing elsewhere.
#[derive(Deserialize)]
struct Counts {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

/// Source: llama.cpp's `tools/server/README.md`, "timings".
#[derive(Deserialize)]
struct Timings {
    cache_n: Option<u32>,
    prompt_n: Option<u32>,
    prompt_ms: Option<f64>,
    predicted_n: Option<u32>,
    predicted_per_token_ms: Option<f64>,
}

impl Usage {
    /// Adds what a JSON text says; what is no such text says nothing.
    pub fn read(&mut self, json: &[u8]) {
        let Ok(Answer { usage, timings }) = serde_json::from_slice::<Answer>(json) else { return };
        if let Some(timings) = timings {
            self.prompt_tokens =
                timings.cache_n.zip(timings.prompt_n).map(|(cached, rest)| cached.saturating_add(rest));
            self.cached_tokens = timings.cache_n;
            self.prefill_ms = timings.prompt_ms;
            self.completion_tokens = timings.predicted_n;
            self.decode_step_ms = timings.predicted_per_token_ms;
        }
        if let Some(usage) = usage {
            let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
            self.prompt_tokens = usage.prompt_tokens.or(self.prompt_tokens);
            self.cached_tokens = cached.or(self.cached_tokens);
            self.completion_tokens = usage.completion_tokens.or(self.completion_tokens);
        }
    }

    /// Returns the prompt's length and how much of it was reused, where both are said.
    pub fn reuse(&self) -> Option<(u32, u32)> {
        let prompt = self.prompt_tokens.filter(|tokens| *tokens > 0)?;
        Some((prompt, self.cached_tokens?.min(prompt)))
    }
}

/// Looks at the events of a stream.
#[derive(Debug, Default)]
pub struct EventReader {
    usage: Usage,
    n_events: u32,
    is_done: bool,
    /// Is the beginning of a line whose end has not come.
    line: Vec<u8>,
    /// Says that the line is too long to be looked at.
    is_skipped: bool,
}

impl EventReader {
    /// Looks at the next piece of the stream.
    pub fn read(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            self.extend(&rest[..end]);
            self.end_line();
            rest = &rest[end + 1..];
        }
        self.extend(rest);
    }

    /// Returns what the stream has said.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns how many events with data the stream had.
    pub fn n_events(&self) -> u32 {
        self.n_events
    }

    /// Returns whether the stream has said that it is at its end.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    fn extend(&mut self, part: &[u8]) {
        self.is_skipped |= self.line.len() + part.len() > LINE_BYTES_MAX;
        if !self.is_skipped {
            self.line.extend_from_slice(part);
        }
    }

    fn end_line(&mut self) {
        if let Some(data) = self.line.strip_prefix(b"data:").filter(|_| !self.is_skipped) {
            self.is_done = data.trim_ascii() == b"[DONE]";
            self.n_events += u32::from(!self.is_done);
            let says = |name: &[u8]| data.windows(name.len()).any(|window| window == name);
            if says(b"\"usage\"") || says(b"\"timings\"") {
                self.usage.read(data);
            }
        }
        self.line.clear();
        self.is_skipped = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENAI: &str = r#"{"usage": {"prompt_tokens": 90, "completion_tokens": 8, "total_tokens": 98,
        "prompt_tokens_details": {"cached_tokens": 64}}}"#;
    const LLAMA: &str = r#"{"timings": {"cache_n": 236, "prompt_n": 4, "prompt_ms": 30.5, "predicted_n": 35,
        "predicted_per_token_ms": 18.9, "new_field": []}}"#;

    fn read(json: &str) -> Usage {
        let mut usage = Usage::default();
        usage.read(json.as_bytes());
        usage
    }

    #[test]
    fn usage_and_timings_are_read_and_usage_wins() {
        assert_eq!(read(OPENAI).reuse(), Some((90, 64)));
        let llama = read(LLAMA);
        assert_eq!(llama.reuse(), Some((240, 236)));
        assert_eq!((llama.prefill_ms, llama.decode_step_ms), (Some(30.5), Some(18.9)));
        let both = format!("{},{}", OPENAI.strip_suffix('}').expect("an object"), &LLAMA[1..]);
        assert_eq!((read(&both).prompt_tokens, read(&both).prefill_ms), (Some(90), Some(30.5)), "{both}");
    }

    #[test]
    fn what_is_not_said_is_absent_and_nonsense_says_nothing() {
        for json in ["", "{", "[]", "{}", r#"{"usage": null}"#, r#"{"usage": {"prompt_tokens": -1}}"#] {
            assert_eq!(read(json), Usage::default(), "{json}");
        }
        assert_eq!(read(r#"{"usage": {"prompt_tokens": 9}}"#).reuse(), None);
        assert_eq!(read(r#"{"usage": {"prompt_tokens": 9, "prompt_tokens_details": null}}"#).reuse(), None);
        let more = r#"{"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 99}}}"#;
        assert_eq!(read(more).reuse(), Some((9, 9)), "no more than all is reused");
    }

    #[test]
    fn events_are_read_wherever_the_stream_is_cut() {
        let usage = OPENAI.replace('\n', " ");
        let stream = format!(": a comment\n\ndata: {{\"choices\": []}}\r\n\r\ndata:{usage}\n\ndata: [DONE]\n\n");
        for size in 1..stream.len() {
            let mut reader = EventReader::default();
            stream.as_bytes().chunks(size).for_each(|piece| reader.read(piece));
            let said = (reader.usage().reuse(), reader.n_events(), reader.is_done());
            assert_eq!(said, (Some((90, 64)), 2, true), "pieces of {size}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_not_kept_and_the_next_one_is_read() {
        let mut reader = EventReader::default();
        (0..1000).for_each(|_| reader.read(&[b'a'; 1000]));
        assert!(reader.line.len() <= LINE_BYTES_MAX);
        reader.read(format!("\ndata: {}\n\n", LLAMA.replace('\n', " ")).as_bytes());
        assert_eq!(reader.usage().reuse(), Some((240, 236)));
        assert!(!reader.is_done());
    }
}
