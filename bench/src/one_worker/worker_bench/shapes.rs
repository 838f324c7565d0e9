//! The texts of the scenarios: which messages are equal, which differ, how long they are.
//!
//! The order of requests is decided in `traffic`. Lengths are given in tokens and made in words; a request to a server
//! tells how many tokens a word has.

use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

use crate::client::Message;
use crate::inputs::prompts::words;

/// Source of texts of a given length; their contents depend on a seed.
#[derive(Debug, Clone, Copy)]
pub struct Texts {
    /// Seed of all texts; a new one avoids cache hits from an earlier run.
    pub seed: u64,
    /// Average number of tokens per word.
    pub tokens_per_word: f64,
}

impl Texts {
    /// Returns a text of about `n_tokens`; the same `idx` gives the same text.
    pub fn text(&self, idx: u64, n_tokens: u32) -> String {
        words(self.seed * 1_000_000 + idx, (f64::from(n_tokens) / self.tokens_per_word).ceil() as usize)
    }

    /// Returns a conversation of one user message.
    pub fn user(&self, idx: u64, n_tokens: u32) -> Vec<Message> {
        vec![Message::new("user", self.text(idx, n_tokens))]
    }

    /// Returns a conversation with the system prompt `system` and a user message of `n_tokens`.
    pub fn under(&self, system: &str, idx: u64, n_tokens: u32) -> Vec<Message> {
        vec![Message::new("system", system), Message::new("user", self.text(idx, n_tokens))]
    }

    /// Returns `items` in an order that depends on the seed only.
    pub fn shuffled<T>(&self, items: impl Iterator<Item = T>) -> Vec<T> {
        let mut items: Vec<T> = items.collect();
        items.shuffle(&mut ChaCha8Rng::seed_from_u64(self.seed));
        items
    }

    /// Returns a prompt, and the prompts to which it grows: each begins with the whole previous one.
    pub fn grown(&self, idx: u64, n_tokens: u32, growth: Growth) -> Vec<Vec<Message>> {
        let mut text = self.text(idx, n_tokens);
        let mut conversations = vec![vec![Message::new("user", text.clone())]];
        for round in 0..growth.n_rounds {
            text.push(' ');
            text.push_str(&words(self.seed * 1_000_000 + idx + 1 + round, growth.n_words));
            conversations.push(vec![Message::new("user", text.clone())]);
        }
        conversations
    }
}

/// Growth of a prompt.
#[derive(Debug, Clone, Copy)]
pub struct Growth {
    /// Number of times that it grows.
    pub n_rounds: u64,
    /// Number of words that are added each time.
    pub n_words: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: Texts = Texts { seed: 3, tokens_per_word: 2.0 };

    #[test]
    fn texts_have_the_words_that_make_the_tokens() {
        assert_eq!(TEXTS.text(1, 100).split(' ').count(), 50);
        assert_eq!(TEXTS.text(1, 101).split(' ').count(), 51);
    }

    #[test]
    fn each_index_and_each_seed_has_its_own_texts() {
        assert_eq!(TEXTS.text(1, 100), TEXTS.text(1, 100));
        assert_ne!(TEXTS.text(1, 100), TEXTS.text(2, 100));
        assert_ne!(TEXTS.text(1, 100), Texts { seed: 4, ..TEXTS }.text(1, 100));
    }

    #[test]
    fn a_grown_prompt_begins_with_the_whole_previous_one() {
        let conversations = TEXTS.grown(10, 40, Growth { n_rounds: 4, n_words: 3 });
        assert_eq!(conversations.len(), 5);
        for pair in conversations.windows(2) {
            let rest = pair[1][0].content.strip_prefix(&pair[0][0].content).expect("it begins with the one before");
            assert_eq!(rest.split_whitespace().count(), 3, "{rest:?}");
        }
    }

    #[test]
    fn a_shuffled_order_has_the_same_items_and_repeats_for_a_seed() {
        let order = TEXTS.shuffled(0..24);
        assert_eq!(order, TEXTS.shuffled(0..24));
        assert_ne!(order, Texts { seed: 4, ..TEXTS }.shuffled(0..24));
        assert_ne!(order, (0..24).collect::<Vec<_>>());
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..24).collect::<Vec<_>>());
    }

    #[test]
    fn users_under_one_system_prompt_differ_behind_it() {
        let (one, other) = (TEXTS.under("be brief", 1, 20), TEXTS.under("be brief", 2, 20));
        assert_eq!(one[0], other[0]);
        assert_ne!(one[1], other[1]);
    }
}
