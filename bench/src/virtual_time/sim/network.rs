//! The network between the workers: when the transfer of a prompt's KV state ends.
//!
//! Each worker has one link for what it sends and one for what it fetches. A link carries one transfer after the other,
//! so a transfer begins once both links are free.

use std::time::Duration;

/// Time of a transfer besides that of its bytes.
///
/// Source: own choice: the peer's engine handles the request when its step ends, some milliseconds later.
const LATENCY: Duration = Duration::from_millis(5);

/// Bandwidth of the links, and the state that they carry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// Bandwidth of each link.
    pub bytes_per_ms: f64,
    /// Size of a token's state. Units: bytes.
    pub bytes_per_token: u64,
}

/// Time at which each worker's links are free.
#[derive(Debug, Default, Clone, Copy)]
pub struct Links {
    /// The link for what the worker sends.
    sends_until: Duration,
    /// The link for what it fetches.
    fetches_until: Duration,
}

impl Network {
    /// Returns the size of the state of `n_tokens`. Units: bytes.
    pub fn bytes(&self, n_tokens: u64) -> u64 {
        n_tokens * self.bytes_per_token
    }

    /// Takes the links of two workers for `bytes`; returns when the last byte arrives.
    pub fn transfer(&self, to: &mut Links, from: &mut Links, bytes: u64, now: Duration) -> Duration {
        let starts = now.max(to.fetches_until).max(from.sends_until);
        let ends = starts + Duration::from_secs_f64(bytes as f64 / self.bytes_per_ms / 1e3);
        (to.fetches_until, from.sends_until) = (ends, ends);
        ends + LATENCY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_carries_one_transfer_after_the_other() {
        let network = Network { bytes_per_ms: 1000.0, bytes_per_token: 10 };
        let ms = Duration::from_millis;
        let (mut a, mut b, mut c) = (Links::default(), Links::default(), Links::default());
        assert_eq!(network.transfer(&mut a, &mut b, network.bytes(1000), ms(5)), ms(20));
        assert_eq!(network.transfer(&mut c, &mut b, 10_000, ms(6)), ms(30), "b is sending");
        assert_eq!(network.transfer(&mut b, &mut a, 10_000, ms(6)), ms(21), "the other direction is free");
        assert_eq!(network.transfer(&mut a, &mut c, 10_000, ms(100)), ms(115));
    }
}
