//! Texts for benchmarks whose figures depend on the text: real ones by kind, from `scripts/corpora.py`.
//!
//! Not here: made words, for what only depends on lengths (`prompts`).

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use clap::ValueEnum;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

use crate::inputs::prompts::words;
use crate::output::names;
use crate::servers::peers::ROOT;

/// Size of a made word with the space after it. Units: bytes.
const WORD_BYTES: usize = 7;
/// Size of a token of real text. Units: bytes. Source: code and prose have 3 to 4.5 with vocabularies of 49,000 to
/// 152,000 tokens.
const TOKEN_BYTES: usize = 4;

/// Kind of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TextKind {
    /// Words of a list of 64.
    Made,
    /// Sources of crates.
    Rust,
    /// Python's library.
    Python,
    /// npm's source.
    Javascript,
    /// Data of crates.
    Json,
    /// Documentation of crates.
    Markdown,
    /// Manual pages.
    German,
    /// Manual pages.
    Japanese,
    /// Manual pages.
    Chinese,
}

/// Text of one kind.
#[derive(Debug)]
pub struct Corpus {
    /// Its text; `None` if it is made.
    text: Option<String>,
}

impl TextKind {
    /// Kinds with real text.
    pub fn real() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied().filter(|kind| *kind != Self::Made)
    }

    /// Returns the text of this kind, which is fetched first if it is missing.
    ///
    /// Errors: it cannot be fetched.
    pub fn corpus(self) -> anyhow::Result<Corpus> {
        if self == Self::Made {
            return Ok(Corpus { text: None });
        }
        let path = Path::new(ROOT).join("target/corpora").join(format!("{self}.txt"));
        if !path.exists() {
            let status = Command::new(Path::new(ROOT).join("scripts/corpora.py")).status();
            anyhow::ensure!(status.context("starting scripts/corpora.py")?.success(), "scripts/corpora.py failed");
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Corpus { text: Some(text) })
    }
}

impl std::fmt::Display for TextKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&names::name(*self))
    }
}

impl Corpus {
    /// Returns the whole text; empty if it is made.
    pub fn whole(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Returns as many words, or as much text as so many made words are.
    pub fn words(&self, seed: u64, n_words: usize) -> String {
        self.sample(seed, n_words * WORD_BYTES)
    }

    /// Returns about as many tokens: a made word is one in most vocabularies.
    pub fn tokens(&self, seed: u64, n_tokens: usize) -> String {
        self.sample(seed, n_tokens * if self.text.is_some() { TOKEN_BYTES } else { WORD_BYTES })
    }

    /// Returns at most `n_bytes` of text that depend on `seed` only.
    pub fn sample(&self, seed: u64, n_bytes: usize) -> String {
        let Some(text) = &self.text else { return words(seed, n_bytes / WORD_BYTES) };
        let last_start = text.len().saturating_sub(n_bytes);
        let start = text.ceil_char_boundary(ChaCha8Rng::seed_from_u64(seed).random_range(0..=last_start));
        let end = text.floor_char_boundary((start + n_bytes).min(text.len()));
        text[start..end].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_repeat_for_a_seed_and_end_between_characters() {
        let real = Corpus { text: Some("ein Wörterbüchlein für Füße\n".repeat(100)) };
        let made = TextKind::Made.corpus().expect("nothing is fetched");
        for corpus in [real, made] {
            assert_eq!(corpus.sample(7, 200), corpus.sample(7, 200));
            assert_ne!(corpus.sample(7, 200), corpus.sample(8, 200));
            assert!((0..50).all(|seed| (150..=200).contains(&corpus.sample(seed, 200).len())));
        }
        assert_eq!(Corpus { text: Some("kurz".to_owned()) }.sample(1, 100), "kurz");
    }
}
