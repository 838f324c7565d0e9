//! Log probabilities in responses: OpenAI's form for chats and its older one for completions.
//!
//! Not here: the numbers (`warmpath_worker_output::logprobs`).

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};
use warmpath_common::ids::Token;
use warmpath_worker_output::logprobs::{PromptProbabilities, TokenLogprob, TokenProbabilities};

use crate::engine::ProbabilitySource;

/// Value for the logarithm of 0, which JSON cannot represent. Source: OpenAI's own responses.
const LOGPROB_MIN: f32 = -9999.0;

/// The bytes of tokens.
#[derive(Clone, Copy)]
pub struct Pieces<'a> {
    /// Function that returns the bytes of a token, including the text of control tokens.
    pub spelled: &'a dyn Fn(Token) -> Vec<u8>,
    /// Function that returns the bytes that a token adds to the response's text: none for a control token.
    pub said: &'a dyn Fn(Token) -> Vec<u8>,
}

/// Log probabilities of a choice or of a part of it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Logprobs {
    /// In a chat.
    Chat {
        /// Tokens of the text.
        content: Vec<ChatToken>,
        /// Always null: a refusal is text like any other.
        refusal: (),
    },
    /// In a completion.
    Completion(ByToken),
}

/// Log probabilities of a completion: the same tokens in each list.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, JsonSchema)]
pub struct ByToken {
    /// Texts of the tokens; `bytes:` and the bytes if they are not text.
    tokens: Vec<String>,
    /// Their log probabilities; null for a prompt's first token.
    token_logprobs: Vec<Option<f32>>,
    /// The most likely tokens at each position, including the chosen one.
    #[schemars(with = "Vec<Option<std::collections::BTreeMap<String, f32>>>")]
    top_logprobs: Vec<Option<ByText>>,
    /// Start of each token in the choice's text. Units: characters.
    text_offset: Vec<usize>,
}

/// Tokens of a choice or of a part of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct ListedTokens<'a> {
    /// Prompt before the response's text, only in completions.
    pub prompt: Option<&'a PromptProbabilities>,
    /// Tokens of the response.
    pub answer: &'a [TokenProbabilities],
}

/// A token of a chat.
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

/// Log probabilities by the tokens' texts, the most likely first. Of several tokens with the same text, the chosen one
/// is listed, or else the most likely one.
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

/// Position in a choice's text after its listed tokens.
#[derive(Debug, Clone, Default)]
pub struct TextEnd {
    n_chars: usize,
    /// Bytes of an incomplete character, which is counted in `n_chars`.
    incomplete: Vec<u8>,
}

impl TextEnd {
    /// Moves the end past a token's bytes; returns the start of the token. Units: characters.
    ///
    /// A character with bytes of several tokens starts with the first of them. An invalid sequence is one character,
    /// U+FFFD.
    fn extend(&mut self, bytes: &[u8]) -> usize {
        let start = self.n_chars;
        for byte in bytes {
            self.incomplete.push(*byte);
            if self.incomplete.len() > 1 && error_len(&self.incomplete).is_some_and(|len| len.is_some()) {
                self.incomplete.drain(..self.incomplete.len() - 1);
            }
            self.n_chars += usize::from(self.incomplete.len() == 1);
            if error_len(&self.incomplete) != Some(None) {
                self.incomplete.clear();
            }
        }
        start
    }

    /// Ends a text, so that later bytes do not complete its last character.
    fn close(&mut self) {
        self.incomplete.clear();
    }
}

/// Returns the log probabilities of a chat's tokens.
pub fn of_chat(tokens: &[TokenProbabilities], pieces: Pieces<'_>) -> Logprobs {
    let content = tokens.iter().map(|token| ChatToken {
        chosen: likely(token.chosen, pieces),
        top_logprobs: token.top.iter().map(|top| likely(*top, pieces)).collect(),
    });
    Logprobs::Chat { content: content.collect(), refusal: () }
}

/// Returns the log probabilities of a completion's tokens, and moves `end` past their text.
pub fn of_completion(tokens: ListedTokens<'_>, pieces: Pieces<'_>, end: &mut TextEnd) -> Logprobs {
    let mut list = ByToken::default();
    let mut push = |token: Token, probabilities: Option<&TokenProbabilities>, start: usize| {
        list.text_offset.push(start);
        list.tokens.push(text(token, pieces));
        list.token_logprobs.push(probabilities.map(|probabilities| logprob(probabilities.chosen)));
        list.top_logprobs.push(probabilities.map(|probabilities| by_text(probabilities, pieces)));
    };
    if let Some(prompt) = tokens.prompt {
        push(prompt.first, None, end.extend(&(pieces.spelled)(prompt.first)));
        for probabilities in &prompt.rest {
            push(
                probabilities.chosen.token,
                Some(probabilities),
                end.extend(&(pieces.spelled)(probabilities.chosen.token)),
            );
        }
        end.close();
    }
    for probabilities in tokens.answer {
        push(probabilities.chosen.token, Some(probabilities), end.extend(&(pieces.said)(probabilities.chosen.token)));
    }
    Logprobs::Completion(list)
}

/// Returns llama-server's list: `top_logprobs` with the model's own probabilities, or `top_probs` with those from which
/// the tokens were drawn.
pub fn native(probabilities: &[TokenProbabilities], pieces: Pieces<'_>, source: ProbabilitySource) -> Value {
    let one = |one: TokenLogprob| {
        let likely_tokens = likely(one, pieces);
        match source {
            ProbabilitySource::Model => json!(likely_tokens),
            ProbabilitySource::Sampler => {
                json!({"id": likely_tokens.id, "token": likely_tokens.token, "bytes": likely_tokens.bytes, "prob": one.logprob.exp()})
            }
        }
    };
    let entry = |token: &TokenProbabilities| {
        let mut entry = one(token.chosen);
        let name = if source == ProbabilitySource::Model { "top_logprobs" } else { "top_probs" };
        // A token that could not be drawn has no probability.
        let possible =
            |likely: &&TokenLogprob| source == ProbabilitySource::Model || likely.logprob > f32::NEG_INFINITY;
        entry[name] = token.top.iter().filter(possible).map(|likely| one(*likely)).collect();
        entry
    };
    probabilities.iter().map(entry).collect()
}

fn by_text(token: &TokenProbabilities, pieces: Pieces<'_>) -> ByText {
    let of_chosen = text(token.chosen.token, pieces);
    let mut entries: Vec<(String, f32)> = Vec::with_capacity(token.top.len() + 1);
    let mut known_tokens = HashSet::with_capacity(token.top.len() + 1);
    for one in token.top.iter().chain([&token.chosen]) {
        let text = text(one.token, pieces);
        let is_hidden = one.token != token.chosen.token && text == of_chosen;
        if !is_hidden && known_tokens.insert(text.clone()) {
            entries.push((text, logprob(*one)));
        }
    }
    ByText(entries)
}

fn likely(likely: TokenLogprob, pieces: Pieces<'_>) -> ChatLikely {
    let bytes = (pieces.spelled)(likely.token);
    let token = String::from_utf8_lossy(&bytes).into_owned();
    ChatLikely { id: likely.token, token, logprob: logprob(likely), bytes }
}

/// Returns a token's text, or its bytes as `bytes:\xe8` if they are not valid text.
///
/// Source: OpenAI's completions, in which printable ASCII next to such bytes represents itself. A backslash is escaped
/// as well, so that the spelling is unambiguous.
fn text(token: Token, pieces: Pieces<'_>) -> String {
    let spell = |byte: u8| match byte {
        b' '..=b'~' if byte != b'\\' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    String::from_utf8((pieces.spelled)(token)).unwrap_or_else(|error| {
        let text: String = error.as_bytes().iter().copied().map(spell).collect();
        format!("bytes:{text}")
    })
}

/// Returns `None` if `bytes` are text, otherwise how many of them are invalid: `Some(None)` if further bytes could
/// complete them.
fn error_len(bytes: &[u8]) -> Option<Option<usize>> {
    std::str::from_utf8(bytes).err().map(|error| error.error_len())
}

fn logprob(likely: TokenLogprob) -> f32 {
    likely.logprob.max(LOGPROB_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(token: Token) -> Vec<u8> {
        [&b"a"[..], "é".as_bytes(), b"\xc3", b"a"][token as usize].to_vec()
    }

    fn tokens() -> Vec<TokenProbabilities> {
        let likely = |(token, logprob)| TokenLogprob { token, logprob };
        let token = |chosen, top: &[_]| TokenProbabilities {
            chosen: likely(chosen),
            top: top.iter().copied().map(likely).collect(),
        };
        vec![token((1, -0.5), &[(1, -0.5), (0, -1.0), (3, -2.0)]), token((2, f32::NEG_INFINITY), &[(0, -0.25)])]
    }

    fn answer(answer: &[TokenProbabilities]) -> ListedTokens<'_> {
        ListedTokens { prompt: None, answer }
    }

    fn completion(told: ListedTokens<'_>, piece: &dyn Fn(Token) -> Vec<u8>, end: &mut TextEnd) -> Value {
        let pieces = Pieces { spelled: piece, said: piece };
        serde_json::to_value(of_completion(told, pieces, end)).unwrap()
    }

    #[test]
    fn a_chat_lists_each_token_with_its_bytes() {
        let pieces = Pieces { spelled: &piece, said: &piece };
        let got = of_chat(&tokens(), pieces);
        let a = |logprob| json!({"id": 0, "token": "a", "logprob": logprob, "bytes": [97]});
        let e = json!({"id": 1, "token": "é", "logprob": -0.5, "bytes": [195, 169]});
        let mut first = e.clone();
        first["top_logprobs"] = json!([e, a(-1.0), {"id": 3, "token": "a", "logprob": -2.0, "bytes": [97]}]);
        let mut second = json!({"id": 2, "token": "\u{fffd}", "logprob": -9999.0, "bytes": [195]});
        second["top_logprobs"] = json!([a(-0.25)]);
        assert_eq!(serde_json::to_value(got).unwrap(), json!({"content": [first, second], "refusal": null}));
    }

    #[test]
    fn a_completion_lists_tokens_by_text_and_counts_characters_across_parts() {
        let mut end = TextEnd { n_chars: 4, incomplete: Vec::new() };
        let got = completion(answer(&tokens()), &piece, &mut end);
        assert_eq!(end.n_chars, 6);
        let expected = json!({
            "tokens": ["é", r"bytes:\xc3"],
            "token_logprobs": [-0.5, -9999.0],
            "top_logprobs": [{"é": -0.5, "a": -1.0}, {"a": -0.25, r"bytes:\xc3": -9999.0}],
            "text_offset": [4, 5],
        });
        assert_eq!(got, expected);
    }

    #[test]
    fn bytes_that_are_not_text_have_distinct_spellings() {
        let bytes: [&[u8]; 5] = [b"\xe8", b"\xaa\x9e", b" \xf0\x9f", b"\\xe8\xe8\n~", b"\\xe8"];
        let piece = |token: Token| bytes[token as usize].to_vec();
        let top: Vec<TokenLogprob> = (0..).zip(bytes).map(|(token, _)| TokenLogprob { token, logprob: -1.0 }).collect();
        let told = [TokenProbabilities { chosen: top[1], top }];
        let got = completion(answer(&told), &piece, &mut TextEnd::default());
        let expected = [r"bytes:\xe8", r"bytes:\xaa\x9e", r"bytes: \xf0\x9f", r"bytes:\x5cxe8\xe8\x0a~", r"\xe8"];
        let got_top = got["top_logprobs"][0].as_object().unwrap();
        assert_eq!(got_top.len(), 5);
        assert!(expected.iter().all(|text| got_top.contains_key(*text)), "{got_top:?}");
        assert_eq!(got["tokens"], json!([expected[1]]));
    }

    #[test]
    fn of_tokens_with_the_same_text_the_chosen_one_is_listed() {
        let likely = |token, logprob| TokenLogprob { token, logprob };
        for top in [vec![likely(0, -0.5), likely(3, -1.5)], vec![likely(0, -0.5)], Vec::new()] {
            let told = [TokenProbabilities { chosen: likely(3, -1.5), top }];
            let got = completion(answer(&told), &piece, &mut TextEnd::default());
            assert_eq!(got["top_logprobs"], json!([{"a": -1.5}]));
            assert_eq!(got["token_logprobs"], json!([-1.5]));
        }
    }

    #[test]
    fn a_prompts_first_token_has_no_probability_and_a_character_of_two_tokens_counts_once() {
        let rest = |token| TokenProbabilities { chosen: TokenLogprob { token, logprob: -1.0 }, top: Vec::new() };
        let prompt = PromptProbabilities { first: 0, rest: vec![rest(2), rest(4)] };
        let told = ListedTokens { prompt: Some(&prompt), answer: &tokens()[..1] };
        let bytes = |token| if token == 4 { b"\xa9".to_vec() } else { piece(token) };
        let got = completion(told, &bytes, &mut TextEnd::default());
        assert_eq!(got["token_logprobs"], json!([null, -1.0, -1.0, -0.5]));
        assert_eq!(got["top_logprobs"][0], Value::Null);
        assert_eq!(got["text_offset"], json!([0, 1, 2, 2]));
    }

    #[test]
    fn control_tokens_of_a_response_are_named_and_add_no_text() {
        let spelled = |token| if token == 9 { b"<|end|>".to_vec() } else { piece(token) };
        let said = |token| if token == 9 { Vec::new() } else { piece(token) };
        let told = [9, 1, 9, 0].map(|token| {
            let chosen = TokenLogprob { token, logprob: -1.0 };
            TokenProbabilities { chosen, top: vec![chosen] }
        });
        let pieces = Pieces { spelled: &spelled, said: &said };
        let got = of_completion(answer(&told), pieces, &mut TextEnd::default());
        let got = serde_json::to_value(got).unwrap();
        assert_eq!(got["tokens"], json!(["<|end|>", "é", "<|end|>", "a"]));
        assert_eq!(got["text_offset"], json!([0, 0, 1, 1]));
    }

    proptest::proptest! {
        #[test]
        fn the_number_of_characters_does_not_depend_on_the_tokens(
            pieces in proptest::collection::vec(proptest::collection::vec(
                proptest::sample::select(vec![b'a', 0xC3, 0xA9, 0xE8, 0xAA, 0x9E, 0xF0, 0x9F, 0x98, 0x80, 0xED, 0xFF]), 0..4), 0..8)
        ) {
            let mut end = TextEnd::default();
            let mut bytes = Vec::new();
            for piece in pieces {
                end.extend(&piece);
                bytes.extend(piece);
                proptest::prop_assert_eq!(end.n_chars, String::from_utf8_lossy(&bytes).chars().count());
            }
        }
    }
}
