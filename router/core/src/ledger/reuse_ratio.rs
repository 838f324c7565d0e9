//! What a token that a worker stores has been worth in this fleet: the tokens reused for each that was computed.
//!
//! Not here: what follows from it (`cost`). The idea: every computed token is stored and takes the place of another, so over
//! a while tokens reused / tokens computed is what one stored token saves until it leaves. Sums that fade follow a change of
//! traffic; they fade with what is sent, not with time, so that an idle night changes nothing.

/// Is what is left of a count after each request.
///
/// Source: own choice: the last thousand requests or so count, enough for a fleet's mix and few against an hour's traffic.
const FADING: f64 = 0.999;

/// Counts what was reused and computed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ReuseRatio {
    reused: f64,
    computed: f64,
}

impl ReuseRatio {
    /// Counts one request: the prompt tokens that it reuses and those that it computes.
    pub fn count(&mut self, reused_tokens: u64, computed_tokens: u64) {
        self.reused = self.reused * FADING + reused_tokens as f64;
        self.computed = self.computed * FADING + computed_tokens as f64;
    }

    /// Returns the tokens reused for each computed; 0 before anything was.
    pub fn ratio(&self) -> f64 {
        if self.computed > 0.0 { self.reused / self.computed } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_token_is_worth_what_is_reused_for_it_and_follows_the_traffic() {
        let mut reuse = ReuseRatio::default();
        assert_eq!(reuse.ratio(), 0.0);
        reuse.count(300, 100);
        assert_eq!(reuse.ratio(), 3.0);
        (0..10_000).for_each(|_| reuse.count(0, 100));
        assert!(reuse.ratio() < 0.001, "{reuse:?}");
    }
}
