//! Predictor of a made model's output, for tests: it computes the model's function and runs no model.

use warmpath_common::ids::Token;

use crate::model::made::hash_net::{HashNet, N_ANSWERS, N_END_BITS};
use crate::model::made::preset::Preset;
use crate::model::made::tokenizer::Tokenizer;

/// Predictor of a made model's output, which does not run the model.
#[derive(Debug)]
pub struct Oracle {
    net: HashNet,
    answers: Vec<Token>,
    end: Option<Token>,
}

impl Oracle {
    /// Returns the predictor for the model of `preset` and `seed` with our own vocabulary.
    ///
    /// Errors: none with our own vocabulary, which has enough words.
    pub fn new(preset: Preset, seed: u64) -> anyhow::Result<Self> {
        let tokenizer = Tokenizer::own(seed)?;
        Ok(Self { net: HashNet::new(&preset.spec(), seed), answers: tokenizer.answers, end: tokenizer.end })
    }

    /// Returns the greedy answer of `n` tokens to `prompt`, continued past end tokens.
    pub fn answer(&self, prompt: &[Token], n: usize) -> Vec<Token> {
        let mut tokens = prompt.to_vec();
        for _ in 0..n {
            let state = self.net.state(&tokens);
            let end_bits = (1 << N_END_BITS) - 1;
            let token = match self.end {
                Some(end) if state & end_bits == end_bits => end,
                _ => self.answers[state as usize % N_ANSWERS],
            };
            tokens.push(token);
        }
        tokens.split_off(prompt.len())
    }
}
