//! Log probabilities of a chosen token and of the most likely ones.
//!
//! llama.cpp's samplers choose the token; the format for clients is in `http::openai::wire`.
//!
//! By default the probabilities are the softmax of the model's logits, before the sampler changes them, as in OpenAI's
//! API and llama-server. Only the few most likely ones are sorted.

use std::cmp::Ordering;

use warmpath_common::ids::Token;

/// A token and its probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// Token.
    pub token: Token,
    /// Natural logarithm of its probability; minus infinity for an impossible token.
    pub logprob: f32,
}

/// Probability of one token of a response, and of the most likely tokens at its position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenProbabilities {
    /// Token that was chosen.
    pub chosen: TokenLogprob,
    /// Most likely tokens in descending order; ties: the lowest id first.
    pub top: Vec<TokenLogprob>,
}

/// Probability of each token of a prompt, given those before it.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptProbabilities {
    /// First token of the prompt, which has no token before it.
    pub first: Token,
    /// Probabilities of the other tokens.
    pub rest: Vec<TokenProbabilities>,
}

/// Returns the probabilities by a model's logits of `chosen_token` and of the `n_top` most likely tokens.
///
/// Shape: `logits[n_vocab]`, by token id; `chosen_token` is below `n_vocab`. A logit that is not a number counts as
/// minus infinity. Cost: O(`n_vocab` + `n_top` log `n_top`).
pub fn of_logits(logits: &[f32], chosen_token: Token, n_top: usize) -> TokenProbabilities {
    let number = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit };
    let logit_max = logits.iter().copied().map(number).fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(number(*logit) - logit_max).exp()).filter(|p| !p.is_nan()).sum();
    let log_sum = f64::from(logit_max) + sum.ln();
    let logprob = |logit: f32| {
        let logprob = (f64::from(number(logit)) - log_sum) as f32;
        if logprob.is_nan() { f32::NEG_INFINITY } else { logprob.min(0.0) }
    };
    let all: Vec<TokenLogprob> =
        (0..).zip(logits).map(|(token, logit)| TokenLogprob { token, logprob: logprob(*logit) }).collect();
    let chosen = TokenLogprob {
        token: chosen_token,
        logprob: all.get(chosen_token as usize).map_or(f32::NEG_INFINITY, |it| it.logprob),
    };
    TokenProbabilities { chosen, top: likeliest(all, n_top) }
}

/// Returns the `n_top` most likely of some tokens, in descending order.
pub fn likeliest(mut all: Vec<TokenLogprob>, n_top: usize) -> Vec<TokenLogprob> {
    let order = |a: &TokenLogprob, b: &TokenLogprob| {
        b.logprob.partial_cmp(&a.logprob).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
    };
    if n_top < all.len() {
        if n_top > 0 {
            all.select_nth_unstable_by(n_top - 1, order);
        }
        all.truncate(n_top);
    }
    all.sort_unstable_by(order);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_the_softmax_and_add_up_to_one() {
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, 0.0, f32::NAN];
        let got = of_logits(&logits, 4, 10);
        let sum: f64 = got.top.iter().map(|likely| f64::from(likely.logprob).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        let order: Vec<Token> = got.top.iter().map(|likely| likely.token).collect();
        assert_eq!(order, [1, 3, 0, 4, 2, 5], "tokens of equal probability are ordered by their ids");
        assert!((f64::from(got.chosen.logprob) - (1.0 / (2.0 * 3f64.exp() + 1f64.exp() + 1.0)).ln()).abs() < 1e-6);
        assert_eq!(got.top[4].logprob, f32::NEG_INFINITY);
    }

    #[test]
    fn the_likeliest_few_are_the_first_of_all() {
        let logits: Vec<f32> = (0..1000_u32).map(|n| ((n * 7919) % 1000) as f32 / 10.0).collect();
        let all = of_logits(&logits, 0, logits.len()).top;
        for n_top in [0, 1, 2, 20, 999] {
            assert_eq!(of_logits(&logits, 0, n_top).top, all[..n_top], "{n_top}");
        }
    }

    #[test]
    fn nan_logits_have_probability_zero() {
        let got = of_logits(&[f32::NAN, f32::NAN], 0, 2);
        assert!(got.top.iter().all(|likely| likely.logprob == f32::NEG_INFINITY), "{got:?}");
    }
}
