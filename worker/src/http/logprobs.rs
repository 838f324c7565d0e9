//! Log probabilities as clients get them: OpenAI's shape for chats and its older one for completions.
//!
//! Not here: which numbers they are (`warmpath_worker_core::probabilities`).

use schemars::JsonSchema;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};
use warmpath_common::ids::Token;
use warmpath_worker_core::probabilities::{Likely, PromptProbabilities, TokenProbabilities};

use super::wire::Shape;
use crate::engine::ProbabilitySource;

/// Is what stands for the logarithm of 0, which JSON cannot say. Source: OpenAI's own answers.
const LOGPROB_MIN: f32 = -9999.0;

/// Returns the bytes of a token.
pub type Pieces<'a> = &'a dyn Fn(Token) -> Vec<u8>;

/// Is the log probabilities of a choice or of a part of it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Logprobs {
    /// In a chat.
    Chat {
        /// Lists the tokens of the text.
        content: Vec<ChatToken>,
        /// Is always null: a refusal is text like any other.
        refusal: (),
    },
    /// In a completion.
    Completion(ByToken),
}

/// Is the log probabilities of a completion: the same tokens in each list.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, JsonSchema)]
pub struct ByToken {
    /// Lists the tokens' texts.
    tokens: Vec<String>,
    /// Lists their log probabilities; null for a prompt's first token.
    token_logprobs: Vec<Option<f32>>,
    /// Lists the likeliest tokens at each place, the chosen one among them.
    #[schemars(with = "Vec<Option<std::collections::BTreeMap<String, f32>>>")]
    top_logprobs: Vec<Option<ByText>>,
    /// Lists where each token starts in the choice's text. Units: characters.
    text_offset: Vec<usize>,
}

/// Is what is told of a choice or of a part of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Told<'a> {
    /// Is the prompt that stands before the answer's text, in completions alone.
    pub prompt: Option<&'a PromptProbabilities>,
    /// Lists the answer's tokens.
    pub answer: &'a [TokenProbabilities],
}

/// Is one token of a chat.
#[derive(Debug, Clone, PartialEq, serde::Serialize, JsonSchema)]
pub struct ChatToken {
    #[serde(flatten)]
    chosen: ChatLikely,
    top_logprobs: Vec<ChatLikely>,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize, JsonSchema)]
struct ChatLikely {
    id: Token,
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// Maps tokens' texts to log probabilities, the likeliest first; of tokens with one text the likeliest counts.
#[derive(Debug, Clone, PartialEq)]
pub struct ByText(Vec<(String, f32)>);

impl Serialize for ByText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (text, logprob) in &self.0 {
            map.serialize_entry(text, logprob)?;
        }
        map.end()
    }
}

/// Returns the log probabilities of tokens in the shape of their endpoint.
///
/// Units: `n_chars` is where their text starts in the choice's, and is moved to where it ends.
pub fn describe(shape: Shape, told: Told<'_>, pieces: Pieces<'_>, n_chars: &mut usize) -> Logprobs {
    if shape == Shape::Chat {
        let content = told.answer.iter().map(|token| ChatToken {
            chosen: likely(token.chosen, pieces),
            top_logprobs: token.top.iter().map(|top| likely(*top, pieces)).collect(),
        });
        return Logprobs::Chat { content: content.collect(), refusal: () };
    }
    let mut list = ByToken::default();
    let of_prompt = told.prompt.iter().flat_map(|prompt| {
        std::iter::once((prompt.first, None)).chain(prompt.rest.iter().map(|token| (token.chosen.token, Some(token))))
    });
    let of_answer = told.answer.iter().map(|token| (token.chosen.token, Some(token)));
    for (token, known) in of_prompt.chain(of_answer) {
        let bytes = pieces(token);
        list.text_offset.push(*n_chars);
        // A character that several tokens spell starts with the first of them.
        *n_chars += bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        list.tokens.push(String::from_utf8_lossy(&bytes).into_owned());
        list.token_logprobs.push(known.map(|known| logprob(known.chosen)));
        list.top_logprobs.push(known.map(|known| by_text(known, pieces)));
    }
    Logprobs::Completion(list)
}

/// Returns the list that llama-server gives: `top_logprobs` of the model's own probabilities, or `top_probs` of those that
/// the tokens were drawn with.
pub fn native(probabilities: &[TokenProbabilities], pieces: Pieces<'_>, source: ProbabilitySource) -> Value {
    let one = |one: Likely| {
        let shown = likely(one, pieces);
        match source {
            ProbabilitySource::Model => json!(shown),
            ProbabilitySource::Sampler => {
                json!({"id": shown.id, "token": shown.token, "bytes": shown.bytes, "prob": one.logprob.exp()})
            }
        }
    };
    let entry = |token: &TokenProbabilities| {
        let mut entry = one(token.chosen);
        let name = if source == ProbabilitySource::Model { "top_logprobs" } else { "top_probs" };
        // What could not be drawn has no probability.
        let possible = |likely: &&Likely| source == ProbabilitySource::Model || likely.logprob > f32::NEG_INFINITY;
        entry[name] = token.top.iter().filter(possible).map(|likely| one(*likely)).collect();
        entry
    };
    probabilities.iter().map(entry).collect()
}

fn by_text(token: &TokenProbabilities, pieces: Pieces<'_>) -> ByText {
    let mut entries: Vec<(String, f32)> = Vec::with_capacity(token.top.len() + 1);
    for one in token.top.iter().chain([&token.chosen]) {
        let text = text(one.token, pieces);
        if entries.iter().all(|(known, _)| *known != text) {
            entries.push((text, logprob(*one)));
        }
    }
    ByText(entries)
}

fn likely(likely: Likely, pieces: Pieces<'_>) -> ChatLikely {
    let bytes = pieces(likely.token);
    let token = String::from_utf8_lossy(&bytes).into_owned();
    ChatLikely { id: likely.token, token, logprob: logprob(likely), bytes }
}

fn text(token: Token, pieces: Pieces<'_>) -> String {
    String::from_utf8_lossy(&pieces(token)).into_owned()
}

fn logprob(likely: Likely) -> f32 {
    likely.logprob.max(LOGPROB_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(token: Token) -> Vec<u8> {
        [&b"a"[..], "é".as_bytes(), b"\xc3", b"a"][token as usize].to_vec()
    }

    fn tokens() -> Vec<TokenProbabilities> {
        let likely = |(token, logprob)| Likely { token, logprob };
        let token = |chosen, top: &[_]| TokenProbabilities {
            chosen: likely(chosen),
            top: top.iter().copied().map(likely).collect(),
        };
        vec![token((1, -0.5), &[(1, -0.5), (0, -1.0), (3, -2.0)]), token((2, f32::NEG_INFINITY), &[(0, -0.25)])]
    }

    fn answer(answer: &[TokenProbabilities]) -> Told<'_> {
        Told { prompt: None, answer }
    }

    #[test]
    fn a_chat_lists_each_token_with_its_bytes() {
        let got = describe(Shape::Chat, answer(&tokens()), &piece, &mut 0);
        let a = |logprob| json!({"id": 0, "token": "a", "logprob": logprob, "bytes": [97]});
        let e = json!({"id": 1, "token": "é", "logprob": -0.5, "bytes": [195, 169]});
        let mut first = e.clone();
        first["top_logprobs"] = json!([e, a(-1.0), {"id": 3, "token": "a", "logprob": -2.0, "bytes": [97]}]);
        let mut second = json!({"id": 2, "token": "\u{fffd}", "logprob": -9999.0, "bytes": [195]});
        second["top_logprobs"] = json!([a(-0.25)]);
        assert_eq!(serde_json::to_value(got).unwrap(), json!({"content": [first, second], "refusal": null}));
    }

    #[test]
    fn a_completion_lists_tokens_by_text_with_the_chosen_one_among_them_and_goes_on_counting_characters() {
        let mut n_chars = 4;
        let got = serde_json::to_value(describe(Shape::Completion, answer(&tokens()), &piece, &mut n_chars)).unwrap();
        assert_eq!(n_chars, 6);
        let expected = json!({
            "tokens": ["é", "\u{fffd}"],
            "token_logprobs": [-0.5, -9999.0],
            "top_logprobs": [{"é": -0.5, "a": -1.0}, {"a": -0.25, "\u{fffd}": -9999.0}],
            "text_offset": [4, 5],
        });
        assert_eq!(got, expected);
    }

    #[test]
    fn a_prompts_first_token_has_none_and_a_character_of_two_tokens_counts_once() {
        let rest = |token| TokenProbabilities { chosen: Likely { token, logprob: -1.0 }, top: Vec::new() };
        let prompt = PromptProbabilities { first: 0, rest: vec![rest(2), rest(4)] };
        let told = Told { prompt: Some(&prompt), answer: &tokens()[..1] };
        let bytes = |token| if token == 4 { b"\xa9".to_vec() } else { piece(token) };
        let got = serde_json::to_value(describe(Shape::Completion, told, &bytes, &mut 0)).unwrap();
        assert_eq!(got["token_logprobs"], json!([null, -1.0, -1.0, -0.5]));
        assert_eq!(got["top_logprobs"][0], Value::Null);
        assert_eq!(got["text_offset"], json!([0, 1, 2, 2]));
    }
}
