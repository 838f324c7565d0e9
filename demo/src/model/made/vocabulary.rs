//! The vocabulary of made models: a byte-level BPE trained on an embedded text, with ChatML's control tokens.
//!
//! Vocabularies of other files are in `tokenizer`. 256 byte tokens can represent any text; merges are learned until
//! every word of the text is one token, so that an answer of whole words tokenizes back to itself.

use std::collections::HashMap;

use warmpath_tokenizer::alphabet::spelled;

/// Text that the merges are learned from.
const CORPUS: &str = include_str!("corpus.txt");

/// Maximum number of merges.
///
/// Source: the embedded text needs fewer; a limit for a longer one.
const MERGES_MAX: usize = 4096;

/// Chat template: ChatML with a default system prompt and tools, as Qwen2.5's models expect it.
pub const CHAT_TEMPLATE: &str = include_str!("chat_template.jinja");

/// Control tokens in the order of their ids, after the text tokens.
pub const CONTROL_TOKENS: [&str; 8] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
];

/// Special tokens that text may contain too, such as the markers of a tool call.
pub const USER_DEFINED_TOKENS: [&str; 4] = ["<tool_call>", "</tool_call>", "<think>", "</think>"];

/// A trained vocabulary in GGUF's form.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    /// Text tokens, then [`CONTROL_TOKENS`], then [`USER_DEFINED_TOKENS`]; bytes as byte-level vocabularies spell them.
    pub tokens: Vec<String>,
    /// Merges, best first: two tokens separated by a space.
    pub merges: Vec<String>,
    /// Number of text tokens.
    pub n_text: usize,
}

impl Vocabulary {
    /// Returns the id of `token`.
    ///
    /// Cost: O(n).
    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokens.iter().position(|text| text == token).and_then(|id| u32::try_from(id).ok())
    }
}

/// Returns the trained vocabulary, the same one every time.
pub fn train() -> Vocabulary {
    let mut tokens: Vec<String> = (0..=u8::MAX).map(|byte| spelled(byte).to_string()).collect();
    let mut ids: HashMap<String, usize> = tokens.iter().cloned().zip(0..).collect();
    let mut words = words(CORPUS);
    let mut merges = Vec::new();
    while merges.len() < MERGES_MAX {
        let Some((left, right)) = most_frequent_pair(&words) else { break };
        let token = format!("{}{}", tokens[left], tokens[right]);
        // Two different merges may give the same token.
        let id = ids.get(&token).copied().unwrap_or(tokens.len());
        for word in &mut words {
            merge_in(&mut word.tokens, left, right, id);
        }
        merges.push(format!("{} {}", tokens[left], tokens[right]));
        if id == tokens.len() {
            ids.insert(token.clone(), id);
            tokens.push(token);
        }
    }
    let n_text = tokens.len();
    tokens.extend(CONTROL_TOKENS.iter().chain(&USER_DEFINED_TOKENS).map(|&token| token.to_owned()));
    Vocabulary { tokens, merges, n_text }
}

/// A word of the text that merges are learned from.
struct Word {
    tokens: Vec<usize>,
    n_occurrences: usize,
}

/// Returns the distinct words of `text` as byte tokens, in order of first occurrence.
///
/// Only letters with the space before them are merged; digits, punctuation and line ends stay single, so that a word's
/// token never depends on what follows it.
fn words(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut places: HashMap<Vec<usize>, usize> = HashMap::new();
    let mut add = |word: &[u8]| {
        let tokens: Vec<usize> = word.iter().map(|&byte| byte.into()).collect();
        let place = *places.entry(tokens.clone()).or_insert(words.len());
        match words.get_mut(place) {
            Some(word) => word.n_occurrences += 1,
            None => words.push(Word { tokens, n_occurrences: 1 }),
        }
    };
    for word in text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| word.len() > 1) {
        add(format!(" {word}").as_bytes());
        add(word.as_bytes());
    }
    words
}

/// Returns the most frequent pair of neighbours; of equally frequent ones, the smallest.
fn most_frequent_pair(words: &[Word]) -> Option<(usize, usize)> {
    let mut counts: HashMap<(usize, usize), usize> = HashMap::new();
    for word in words {
        for pair in word.tokens.windows(2) {
            *counts.entry((pair[0], pair[1])).or_default() += word.n_occurrences;
        }
    }
    counts.into_iter().max_by_key(|&(pair, count)| (count, std::cmp::Reverse(pair))).map(|(pair, _)| pair)
}

/// Writes the token `id` in place of each pair of these tokens.
fn merge_in(word: &mut Vec<usize>, left: usize, right: usize, id: usize) {
    let mut i = 0;
    while i + 1 < word.len() {
        if word[i] == left && word[i + 1] == right {
            word[i] = id;
            word.remove(i + 1);
        }
        i += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_vocabulary_is_trained_every_time() {
        let (one, other) = (train(), train());
        assert_eq!(one.tokens, other.tokens);
        assert_eq!(one.merges, other.merges);
    }

    #[test]
    fn every_token_occurs_once_and_words_are_whole() {
        let vocabulary = train();
        let distinct: std::collections::HashSet<_> = vocabulary.tokens.iter().collect();
        assert_eq!(distinct.len(), vocabulary.tokens.len());
        assert!((1000..=4400).contains(&vocabulary.tokens.len()), "{}", vocabulary.tokens.len());
        for word in ["Ġharbour", "Ġlighthouse", "harbour"] {
            assert_eq!(vocabulary.id(word).is_some(), word != "Ġlighthouse", "{word}");
        }
    }
}
