//! Texts for synthetic conversations: deterministic words, so that a run can be repeated.
//!
//! Conversations are built from them in `chat_load` and `demo`.

use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

const WORDS: [&str; 64] = [
    "river", "stone", "market", "engine", "window", "garden", "signal", "harbour", "letter", "winter", "copper",
    "forest", "ladder", "mirror", "needle", "office", "paper", "quarry", "record", "silver", "tunnel", "valley",
    "wagon", "yellow", "answer", "bridge", "candle", "dollar", "effort", "figure", "ground", "handle", "island",
    "jacket", "kernel", "lesson", "memory", "number", "object", "packet", "quiet", "reason", "season", "theory",
    "update", "volume", "weight", "yearly", "between", "carries", "follows", "holds", "makes", "moves", "opens",
    "reads", "sends", "shows", "takes", "turns", "under", "waits", "with", "writes",
];

/// Returns `n_words` words that depend on `seed` only.
pub fn words(seed: u64, n_words: usize) -> String {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut text = String::with_capacity(n_words * 7);
    for word_idx in 0..n_words {
        if word_idx > 0 {
            text.push(' ');
        }
        text.push_str(WORDS.choose(&mut rng).expect("the list of words is not empty"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_for_a_seed_and_differs_between_seeds() {
        assert_eq!(words(7, 50), words(7, 50));
        assert_ne!(words(7, 50), words(8, 50));
        assert_eq!(words(7, 50).split(' ').count(), 50);
        assert_eq!(words(7, 0), "");
    }
}
