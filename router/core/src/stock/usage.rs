//! Token counts and times in a response: OpenAI's `usage`, and llama-server's `timings`, if present.
//!
//! `stock` draws the conclusions; `event_stream` reads the events of a stream, each of which may carry counts.

use serde::Deserialize;
use warmpath_common::whole::Whole;

/// Token counts and times of a response; each field is `None` if the response does not have it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Length of the prompt. Units: tokens.
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens that were reused. Units: tokens.
    pub cached_tokens: Option<u32>,
    /// Length of the response. Units: tokens.
    pub completion_tokens: Option<u32>,
    /// Time for the part of the prompt that was computed. Units: milliseconds.
    pub prefill_ms: Option<f64>,
    /// Time of each token of the response. Units: milliseconds.
    pub decode_step_ms: Option<f64>,
}

#[derive(Deserialize)]
struct Answer {
    usage: Option<Counts>,
    timings: Option<Timings>,
    /// First event of an Anthropic message, which has the counts of the prompt.
    message: Option<Counted>,
    /// Response object in the last event of an OpenAI response, which has the counts.
    response: Option<Counted>,
}

#[derive(Deserialize)]
struct Counted {
    usage: Option<Counts>,
}

/// Source: OpenAI's and Anthropic's API references, "usage"; fields may be null or missing elsewhere.
#[derive(Deserialize)]
struct Counts {
    prompt_tokens: Option<Whole<u32>>,
    completion_tokens: Option<Whole<u32>>,
    prompt_tokens_details: Option<Details>,
    output_tokens: Option<Whole<u32>>,
    input_tokens_details: Option<Details>,
    /// The whole prompt in an OpenAI response; only the computed part of it in an Anthropic message.
    input_tokens: Option<Whole<u32>>,
    cache_read_input_tokens: Option<Whole<u32>>,
    cache_creation_input_tokens: Option<Whole<u32>>,
}

impl Counts {
    fn prompt(&self) -> Option<u32> {
        let parts = [self.cache_read_input_tokens, self.cache_creation_input_tokens];
        let sum = |input: u32| parts.into_iter().filter_map(number).fold(input, u32::saturating_add);
        number(self.prompt_tokens).or_else(|| number(self.input_tokens).map(sum))
    }

    fn cached(&self) -> Option<u32> {
        let details = self.prompt_tokens_details.as_ref().or(self.input_tokens_details.as_ref());
        number(self.cache_read_input_tokens.or_else(|| details?.cached_tokens))
    }
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<Whole<u32>>,
}

/// Source: llama.cpp's `tools/server/README.md`, "timings".
#[derive(Deserialize)]
struct Timings {
    cache_n: Option<Whole<u32>>,
    prompt_n: Option<Whole<u32>>,
    prompt_ms: Option<f64>,
    predicted_n: Option<Whole<u32>>,
    predicted_per_token_ms: Option<f64>,
}

fn number(count: Option<Whole<u32>>) -> Option<u32> {
    count.map(|Whole(n)| n)
}

impl Usage {
    /// Reads the counts of a JSON text; other text is ignored.
    pub fn read(&mut self, json: &[u8]) {
        let Ok(answer) = serde_json::from_slice::<Answer>(json) else { return };
        let Answer { usage, timings, message, response } = answer;
        let usage = usage.or_else(|| message.or(response)?.usage);
        if let Some(timings) = timings {
            self.prompt_tokens =
                number(timings.cache_n).zip(number(timings.prompt_n)).map(|(cached, rest)| cached.saturating_add(rest));
            self.cached_tokens = number(timings.cache_n);
            self.prefill_ms = timings.prompt_ms;
            self.completion_tokens = number(timings.predicted_n);
            self.decode_step_ms = timings.predicted_per_token_ms;
        }
        if let Some(usage) = usage {
            self.prompt_tokens = usage.prompt().or(self.prompt_tokens);
            self.cached_tokens = usage.cached().or(self.cached_tokens);
            self.completion_tokens = number(usage.completion_tokens.or(usage.output_tokens)).or(self.completion_tokens);
        }
    }

    /// Returns the prompt's length and how many of its tokens were reused, if both are known.
    pub fn reuse(&self) -> Option<(u32, u32)> {
        let prompt = self.prompt_tokens.filter(|tokens| *tokens > 0)?;
        Some((prompt, self.cached_tokens?.min(prompt)))
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
    fn usage_and_timings_are_read_and_usage_takes_precedence() {
        assert_eq!(read(OPENAI).reuse(), Some((90, 64)));
        assert_eq!(read(&OPENAI.replace("90", "90.0").replace("64", "6.4e1")).reuse(), Some((90, 64)));
        let llama = read(LLAMA);
        assert_eq!(llama.reuse(), Some((240, 236)));
        assert_eq!((llama.prefill_ms, llama.decode_step_ms), (Some(30.5), Some(18.9)));
        let both = format!("{},{}", OPENAI.strip_suffix('}').expect("an object"), &LLAMA[1..]);
        assert_eq!((read(&both).prompt_tokens, read(&both).prefill_ms), (Some(90), Some(30.5)), "{both}");
    }

    #[test]
    fn the_counts_of_both_dialects_are_read() {
        let message = r#"{"usage": {"input_tokens": 4, "cache_read_input_tokens": 236, "output_tokens": 8}}"#;
        assert_eq!((read(message).reuse(), read(message).completion_tokens), (Some((240, 236)), Some(8)));
        let created =
            r#"{"usage": {"input_tokens": 4, "cache_creation_input_tokens": 6, "cache_read_input_tokens": 0}}"#;
        assert_eq!(read(created).reuse(), Some((10, 0)));
        let response =
            r#"{"usage": {"input_tokens": 240, "input_tokens_details": {"cached_tokens": 236}, "output_tokens": 8}}"#;
        assert_eq!((read(response).reuse(), read(response).completion_tokens), (Some((240, 236)), Some(8)));
    }

    #[test]
    fn missing_counts_are_absent_and_nonsense_is_ignored() {
        for json in ["", "{", "[]", "{}", r#"{"usage": null}"#, r#"{"usage": {"prompt_tokens": -1}}"#] {
            assert_eq!(read(json), Usage::default(), "{json}");
        }
        assert_eq!(read(r#"{"usage": {"prompt_tokens": 9}}"#).reuse(), None);
        assert_eq!(read(r#"{"usage": {"prompt_tokens": 9, "prompt_tokens_details": null}}"#).reuse(), None);
        let more = r#"{"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 99}}}"#;
        assert_eq!(read(more).reuse(), Some((9, 9)), "no more than all is reused");
    }
}
