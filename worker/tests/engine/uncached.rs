//! Checks responses with llama.cpp's own uncached logits, for models with almost equal logits.
//!
//! The tokens of a response are computed twice in a fresh context: once with the prompt at once and the response token
//! by token, and once with the prompt in pieces and the response at once. The difference between the two is the
//! rounding of this model on this machine. A response is correct if no token's logit is lower than the highest one by
//! more than this difference, and if its probabilities are about as close to the uncached ones on average. Not here:
//! how the responses were computed (`real_weights`), llama.cpp's calls (`by_hand`).

use warmpath_common::ids::Token;
use warmpath_worker::engine::EngineConfig;

use super::by_hand::ByHand;
use super::support::Answer;

/// Number of tokens of a piece if a prompt is computed in pieces.
const PIECE_TOKENS: usize = 48;
/// Number of the most likely tokens whose differences to the best one are compared.
const N_COMPARED: usize = 8;

/// Context from which a response continues.
#[derive(Debug, Clone)]
pub enum Past {
    /// A prompt.
    Prompt(Vec<Token>),
    /// A text of which `n_dropped` tokens after the first `n_kept` were dropped and the rest moved, and the tokens
    /// after it.
    Moved { text: Vec<Token>, n_kept: u32, n_dropped: u32, then: Vec<Token> },
    /// A prompt whose answer outgrows a context of so many tokens, of which the older half is dropped each time.
    Outgrown { prompt: Vec<Token>, context_tokens: u32 },
}

/// Division of the tokens into batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// As in an engine without a cache: the prompt at once, the response token by token.
    Steps,
    /// The prompt in pieces, the response at once.
    Pieces,
}

/// Checks responses of engines with one configuration.
pub struct Uncached {
    by_hand: ByHand,
    /// Findings since the start or the last [`Self::verdict`].
    found: Found,
    /// Largest difference between the two uncached computations so far. Units: logits.
    rounding: f32,
    /// Sum of the differences of their log probabilities over all tokens so far.
    noise: f32,
    n_noise: usize,
}

/// Findings about responses.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    n_tokens: usize,
    n_not_likeliest: usize,
    /// Largest difference between the most likely token and the response's. Units: logits.
    behind_max: f32,
    /// Sum of the differences between the responses' log probabilities and the uncached ones.
    logprob_differences: f32,
}

/// Result of checking responses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// Number of tokens that were checked.
    pub n_tokens: usize,
    /// Number of tokens that are not the most likely by the uncached logits.
    pub n_not_likeliest: usize,
    /// Largest difference between the most likely token and the response's. Units: logits.
    pub behind_max: f32,
    /// Mean difference between the responses' log probabilities and the uncached ones.
    pub logprob_difference: f32,
    /// Largest difference between the two uncached computations. Units: logits.
    pub rounding: f32,
    /// Mean difference between the log probabilities of the two uncached computations.
    pub noise: f32,
}

/// Maximum mean difference of an engine's log probabilities, as a multiple of the difference between two uncached
/// computations.
///
/// Source: measured with weights of 16 bits on an Intel Xeon: at most 0.97, and at least 21 with a wrong block of 16
/// tokens or with a missing or a wrong token.
const NOISE_MAX: f32 = 4.0;
/// Difference of log probabilities below the precision of 32-bit floats.
const PRECISION: f32 = 1e-4;

impl Verdict {
    /// Returns whether the differences are only rounding; each of two compared tokens may differ by it.
    pub fn is_right(&self) -> bool {
        self.n_tokens > 0
            && self.behind_max <= 2.0 * self.rounding + PRECISION
            && self.logprob_difference <= NOISE_MAX * self.noise + PRECISION
    }
}

impl Uncached {
    pub fn new(config: &EngineConfig) -> Self {
        let by_hand = ByHand::new(config);
        Self { by_hand, found: Found::default(), rounding: 0.0, noise: 0.0, n_noise: 0 }
    }

    /// Checks a response with probabilities, which was generated greedily and past ends of generation.
    pub fn check(&mut self, past: &Past, answer: &Answer) {
        let uncached = self.logits(past, &answer.tokens, Cut::Steps);
        let pieces = self.logits(past, &answer.tokens, Cut::Pieces);
        assert_eq!(answer.probabilities.len(), answer.tokens.len());
        for (idx, token) in answer.tokens.iter().enumerate() {
            let best = self.likeliest(&uncached[idx]);
            let behind = |logits: &[f32], token: Token| logits[best[0] as usize] - logits[token as usize];
            for other in best.iter().skip(1) {
                self.rounding =
                    self.rounding.max((behind(&uncached[idx], *other) - behind(&pieces[idx], *other)).abs());
            }
            let found = &mut self.found;
            found.n_tokens += 1;
            found.n_not_likeliest += usize::from(*token != best[0]);
            found.behind_max = found.behind_max.max(behind(&uncached[idx], *token));
            let expected = logprob(&uncached[idx], *token);
            found.logprob_differences += (answer.probabilities[idx].chosen.logprob - expected).abs();
            self.noise += (logprob(&pieces[idx], *token) - expected).abs();
            self.n_noise += 1;
        }
    }

    /// Returns the result since the last verdict; the rounding is that since the start.
    pub fn verdict(&mut self) -> Verdict {
        let Found { n_tokens, n_not_likeliest, behind_max, logprob_differences } = std::mem::take(&mut self.found);
        let logprob_difference = logprob_differences / n_tokens.max(1) as f32;
        let noise = self.noise / self.n_noise.max(1) as f32;
        Verdict { n_tokens, n_not_likeliest, behind_max, logprob_difference, rounding: self.rounding, noise }
    }

    /// Returns the most likely tokens that do not end the text, in descending order.
    fn likeliest(&self, logits: &[f32]) -> Vec<Token> {
        let mut tokens: Vec<Token> = (0..logits.len() as Token).collect();
        let order = |a: &Token, b: &Token| logits[*b as usize].total_cmp(&logits[*a as usize]);
        tokens.select_nth_unstable_by(2 * N_COMPARED, order);
        tokens.truncate(2 * N_COMPARED);
        tokens.sort_by(order);
        tokens.retain(|token| !self.by_hand.is_end(*token));
        tokens.truncate(N_COMPARED);
        tokens
    }

    /// Returns the logits from which each token of an answer would be chosen.
    fn logits(&mut self, past: &Past, answer: &[Token], cut: Cut) -> Vec<Vec<f32>> {
        self.by_hand.clear();
        let (last, context_tokens) = match past {
            Past::Prompt(prompt) => (prompt, u32::MAX),
            Past::Outgrown { prompt, context_tokens } => (prompt, *context_tokens),
            Past::Moved { text, n_kept, n_dropped, then } => {
                self.compute(text, cut);
                self.by_hand.shift(*n_kept, *n_dropped);
                (then, u32::MAX)
            }
        };
        let forced = &answer[..answer.len() - 1];
        let mut logits = vec![self.compute(last, cut)];
        if cut == Cut::Pieces && context_tokens == u32::MAX {
            logits.extend(self.by_hand.compute_listed(forced, forced.len()));
            return logits;
        }
        for token in forced {
            if self.by_hand.n_held() == context_tokens {
                self.by_hand.shift(0, context_tokens / 2);
            }
            logits.extend(self.by_hand.compute_listed(&[*token], 1));
        }
        logits
    }

    /// Computes tokens and returns the logits of the last.
    fn compute(&mut self, tokens: &[Token], cut: Cut) -> Vec<f32> {
        let piece_tokens = if cut == Cut::Pieces { PIECE_TOKENS } else { tokens.len() };
        let logits = tokens.chunks(piece_tokens).map(|piece| self.by_hand.compute_listed(piece, 1));
        logits.last().unwrap().pop().unwrap()
    }
}

fn logprob(logits: &[f32], token: Token) -> f32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    logits[token as usize] - most - sum.ln() as f32
}
