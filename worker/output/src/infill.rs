//! The sampler for infill: it keeps fewer and safer candidates, and ends the response instead of guessing.
//!
//! llama.cpp's samplers then draw the token.
//!
//! Two candidates count as one if the text of one is a prefix of the other's. Candidates that are still unlikely are
//! dropped; if no likely text remains, the response ends. llama.cpp's own implementation takes quadratic time over all
//! candidates and ends the process on some vocabularies, so this one compares a limited number.
//! Source: the comment of `llama_sampler_init_infill` in llama.cpp's `llama.h`.

/// Maximum number of candidates that are compared with each other, the most likely ones.
///
/// Source: the comparisons take about a millisecond, and editors request only the 40 most likely tokens.
const COMPARED_MAX: usize = 512;

/// Probability below which a candidate is dropped. Source: llama.cpp.
const PROBABILITY_MIN: f32 = 0.2;

/// Weight of the end tokens' probability relative to that of text, multiplied by the number of candidates. Source:
/// llama.cpp.
const END_WEIGHT: f32 = 3.0;

/// A token that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenCandidate {
    /// Logit.
    pub logit: f32,
    /// Whether the token ends the response.
    pub is_end: bool,
}

/// Candidates that stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptCandidates {
    /// Indices of the kept candidates, ascending.
    Candidates(Vec<usize>),
    /// No text is likely enough, so the response ends.
    End,
}

/// Returns the candidates that stay; `piece` returns the text of the candidate at an index, empty for a control token.
///
/// Shape: `candidates[1..]`, by descending logit. Cost: O(n), and at most `COMPARED_MAX`² comparisons of texts.
pub fn keep(candidates: &[TokenCandidate], piece: impl Fn(usize) -> Vec<u8>) -> KeptCandidates {
    let mut probabilities = softmax(candidates);
    let sum_of = |is_end: bool| -> f32 {
        let those = candidates.iter().zip(&probabilities).filter(|(candidate, _)| candidate.is_end == is_end);
        those.map(|(_, probability)| probability).sum()
    };
    let (text, ends) = (sum_of(false), sum_of(true));
    if END_WEIGHT * ends * candidates.len() as f32 > text {
        return KeptCandidates::Candidates((0..candidates.len()).filter(|idx| candidates[*idx].is_end).collect());
    }
    merge(&mut probabilities[..candidates.len().min(COMPARED_MAX)], piece);
    let mut kept_idxs: Vec<usize> = (0..candidates.len()).collect();
    let is_likely =
        |idx: &usize, probability_min: f32| probabilities[*idx] >= probability_min || candidates[*idx].is_end;
    kept_idxs.retain(|idx| is_likely(idx, PROBABILITY_MIN));
    let n_texts = kept_idxs.iter().filter(|idx| !candidates[**idx].is_end).count();
    if n_texts == 0 {
        return KeptCandidates::End;
    }
    let sum: f32 = kept_idxs.iter().map(|idx| probabilities[*idx]).sum();
    kept_idxs.retain(|idx| is_likely(idx, sum / (n_texts + 1) as f32));
    KeptCandidates::Candidates(kept_idxs)
}

fn softmax(candidates: &[TokenCandidate]) -> Vec<f32> {
    let logit_max = candidates.first().map_or(0.0, |candidate| candidate.logit);
    let weights: Vec<f32> = candidates.iter().map(|candidate| (candidate.logit - logit_max).exp()).collect();
    let sum: f32 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// Merges candidates if the text of one is a prefix of the other's; the more likely one gets the probability of both.
fn merge(probabilities: &mut [f32], piece: impl Fn(usize) -> Vec<u8>) {
    let texts: Vec<Vec<u8>> = (0..probabilities.len()).map(piece).collect();
    let mut is_merged: Vec<bool> = probabilities.iter().map(|probability| *probability == 0.0).collect();
    for shorter in 0..texts.len() {
        for longer in 0..texts.len() {
            if is_merged[shorter] {
                break;
            }
            let is_pair = shorter != longer && !is_merged[longer] && !texts[shorter].is_empty();
            if !is_pair || !texts[longer].starts_with(&texts[shorter]) {
                continue;
            }
            let (stays, goes) =
                if probabilities[longer] > probabilities[shorter] { (longer, shorter) } else { (shorter, longer) };
            probabilities[stays] += probabilities[goes];
            probabilities[goes] = 0.0;
            is_merged[goes] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: &str = "<end>";

    /// Checks the kept texts of candidates with these probabilities, the most likely first; none if the response ends.
    fn check(candidates: &[(&str, f32)], expected: &[&str]) {
        let read = |(text, p): &(&str, f32)| TokenCandidate { logit: p.ln(), is_end: *text == END };
        let texts = |idx: usize| if candidates[idx].0 == END { Vec::new() } else { candidates[idx].0.into() };
        let kept = match keep(&candidates.iter().map(read).collect::<Vec<_>>(), texts) {
            KeptCandidates::Candidates(kept) => kept.into_iter().map(|idx| candidates[idx].0).collect(),
            KeptCandidates::End => Vec::new(),
        };
        assert_eq!(kept, expected, "{candidates:?}");
    }

    #[test]
    fn keeps_likely_candidates_after_prefixes_are_merged() {
        check(&[("a", 0.5), ("b", 0.4), ("c", 0.1)], &["a", "b"]);
        check(&[("in", 0.3), ("int", 0.3), ("x", 0.22), ("y", 0.18)], &["in"]);
        check(&[("int", 0.32), ("in", 0.28), ("x", 0.22), ("y", 0.18)], &["int"]);
        check(&[("same", 0.2), ("same", 0.2), ("x", 0.6)], &["same", "x"]);
    }

    #[test]
    fn ends_if_an_end_is_likely_or_no_text_is() {
        check(&[("a", 0.5), ("b", 0.3), (END, 0.2)], &[END]);
        check(&[("a", 0.9), ("b", 0.099), (END, 0.001)], &["a", END]);
        check(&[("a", 0.19), ("b", 0.18), ("c", 0.17), ("d", 0.16), ("e", 0.15), ("f", 0.15)], &[]);
    }

    #[test]
    fn compares_a_limited_number_and_looks_at_all_ends() {
        let n = COMPARED_MAX * 200;
        let mut candidates = vec![TokenCandidate { logit: 0.0, is_end: false }; n];
        candidates[0].logit = 20.0;
        candidates[n - 1] = TokenCandidate { logit: -20.0, is_end: true };
        let kept = keep(&candidates, |idx| {
            assert!(idx < COMPARED_MAX);
            b"same".to_vec()
        });
        assert_eq!(kept, KeptCandidates::Candidates(vec![0, n - 1]));
    }
}
