//! The vocabulary of made models: a byte-level BPE trained on an embedded text, with ChatML's control tokens.
//!
//! Vocabularies of other files are in `tokenizer`. 256 byte tokens can represent any text; merges are learned until
//! every word of the text is one token, so that an answer of whole words tokenizes back to itself.

use std::collections::HashMap;

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
    /// Text tokens, then [`CONTROL_TOKENS`], then [`USER_DEFINED_TOKENS`]; bytes as their printable stand-ins.
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
        self.tokens.iter().position(|known| known == token).and_then(|id| u32::try_from(id).ok())
    }
}

/// Returns the trained vocabulary, the same one every time.
pub fn train() -> Vocabulary {
    let stand_ins = byte_stand_ins();
    let mut tokens: Vec<String> = stand_ins.iter().map(|&stand_in| stand_in.to_string()).collect();
    let mut ids: HashMap<String, usize> = tokens.iter().cloned().zip(0..).collect();
    let mut words = words(CORPUS);
    let mut merges = Vec::new();
    while merges.len() < MERGES_MAX {
        let Some((left, right)) = most_frequent_pair(&words) else { break };
        let token = format!("{}{}", tokens[left], tokens[right]);
        // Two different merges may give the same token.
        let merged = ids.get(&token).copied().unwrap_or(tokens.len());
        for (word, _) in &mut words {
            merge_in(word, (left, right), merged);
        }
        merges.push(format!("{} {}", tokens[left], tokens[right]));
        if merged == tokens.len() {
            ids.insert(token.clone(), merged);
            tokens.push(token);
        }
    }
    let n_text = tokens.len();
    tokens.extend(CONTROL_TOKENS.iter().chain(&USER_DEFINED_TOKENS).map(|&token| token.to_owned()));
    Vocabulary { tokens, merges, n_text }
}

/// Returns the printable character that represents each byte in a byte-level vocabulary.
///
/// Source: GPT-2's `bytes_to_unicode`: printable bytes stand for themselves, the others for U+0100 onwards.
pub fn byte_stand_ins() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let byte = u8::try_from(byte).expect("an index below 256");
        match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).expect("U+0100 to U+0143 are characters")
            }
        }
    })
}

/// Returns the distinct words of `text` as byte tokens, with their numbers of occurrences, in order of first
/// occurrence.
///
/// Only letters with the space before them are merged; digits, punctuation and line ends stay single, so that a word's
/// token never depends on what follows it.
fn words(text: &str) -> Vec<(Vec<usize>, usize)> {
    let mut order: Vec<(Vec<usize>, usize)> = Vec::new();
    let mut seen: HashMap<Vec<usize>, usize> = HashMap::new();
    let mut add = |word: &[u8]| {
        let word: Vec<usize> = word.iter().map(|&byte| byte.into()).collect();
        let idx = *seen.entry(word.clone()).or_insert(order.len());
        match order.get_mut(idx) {
            Some((_, count)) => *count += 1,
            None => order.push((word, 1)),
        }
    };
    for word in text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| word.len() > 1) {
        add(format!(" {word}").as_bytes());
        add(word.as_bytes());
    }
    order
}

/// Returns the most frequent pair of neighbours; of equally frequent ones, the smallest.
fn most_frequent_pair(words: &[(Vec<usize>, usize)]) -> Option<(usize, usize)> {
    let mut counts: HashMap<(usize, usize), usize> = HashMap::new();
    for (word, count) in words {
        for pair in word.windows(2) {
            *counts.entry((pair[0], pair[1])).or_default() += count;
        }
    }
    counts.into_iter().max_by_key(|&(pair, count)| (count, std::cmp::Reverse(pair))).map(|(pair, _)| pair)
}

fn merge_in(word: &mut Vec<usize>, (left, right): (usize, usize), merged: usize) {
    let mut i = 0;
    while i + 1 < word.len() {
        if word[i] == left && word[i + 1] == right {
            word[i] = merged;
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

    #[test]
    fn every_byte_has_its_own_stand_in() {
        let distinct: std::collections::HashSet<_> = byte_stand_ins().into_iter().collect();
        assert_eq!(distinct.len(), 256);
        assert_eq!(byte_stand_ins()[b' ' as usize], 'Ġ');
        assert_eq!(byte_stand_ins()[b'\n' as usize], 'Ċ');
    }
}
