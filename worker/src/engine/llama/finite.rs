//! Logits that show whether the state behind them is finite.
//!
//! A single number of a token's hidden state that is NaN or infinite is NaN after the last norm, and every logit is a
//! product with all these numbers. So one or two logits tell, and no pass over the vocabulary is needed.
//!
//! Not here: what happens then (`step`).

/// Returns whether a token's logits come from finite state.
///
/// Products with quantized weights can turn NaN into 0, so logits that are all equal come from such state, too, unless
/// the model's output has a bias: then such state is not recognized. Minus infinity is a valid logit of a token that
/// the model excludes.
/// Cost: O(1), unless the first logits are equal.
/// Source: ggml's `quantize_q8_1` (CUDA) and `quantize_row_q8_K_ref` make zeros of a block of NaN, because their maxima
/// ignore NaN.
pub(super) fn is_state_finite(logits: &[f32]) -> bool {
    let [first, others @ ..] = logits else { return true };
    !first.is_nan() && *first != f32::INFINITY && others.iter().any(|logit| logit != first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_that_no_finite_state_gives_are_recognized() {
        let (excluded, infinite) = (f32::NEG_INFINITY, f32::INFINITY);
        for logits in [[1.0, 2.0, 3.0], [0.0, 0.0, -1.0], [excluded, excluded, 1.0], [1.0, excluded, 1.0]] {
            assert!(is_state_finite(&logits), "{logits:?}");
        }
        for logits in [[f32::NAN; 3], [infinite, 1.0, 2.0], [infinite; 3], [0.0, -0.0, 0.0], [excluded; 3]] {
            assert!(!is_state_finite(&logits), "{logits:?}");
        }
    }
}
