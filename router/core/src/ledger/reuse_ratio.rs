//! The reuse ratio of this fleet: the tokens reused for each token that was computed.
//!
//! Every computed token is stored and displaces another, so over time the ratio of reused to computed tokens is the
//! reuse of a stored token before its eviction. The sums decay, so they follow a change of traffic. They decay with
//! each request, not with time, so that an idle night changes nothing. Not here: its use (`cost`).

/// Factor by which the sums decay with each request.
///
/// Source: own choice: about the last thousand requests count, which covers a fleet's mix and is a small part of an
/// hour's traffic.
const DECAY: f64 = 0.999;

/// Sums of reused and computed tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ReuseRatio {
    reused: f64,
    computed: f64,
}

impl ReuseRatio {
    /// Adds one request: the prompt tokens that it reuses and those that it computes.
    pub fn count(&mut self, reused_tokens: u64, computed_tokens: u64) {
        self.reused = self.reused * DECAY + reused_tokens as f64;
        self.computed = self.computed * DECAY + computed_tokens as f64;
    }

    /// Returns the reused tokens per computed token; 0 before any was computed.
    pub fn ratio(&self) -> f64 {
        if self.computed > 0.0 { self.reused / self.computed } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_token_s_value_is_its_reuse_and_follows_the_traffic() {
        let mut reuse = ReuseRatio::default();
        assert_eq!(reuse.ratio(), 0.0);
        reuse.count(300, 100);
        assert_eq!(reuse.ratio(), 3.0);
        (0..10_000).for_each(|_| reuse.count(0, 100));
        assert!(reuse.ratio() < 0.001, "{reuse:?}");
    }
}
