//! Requests that have arrived and are not yet included in the engine's load.
//!
//! The blocks that they will compute are in `pending_prefills`; the shell reports their arrival and their admission.
//!
//! The engine admits new requests at the end of a step, after tens of milliseconds, or hundreds with long prompts. If
//! routers learned of a request only then, they would send the next one to the same worker. So a request counts as
//! queued from its arrival until the engine's load includes it.

use std::collections::BTreeMap;

use warmpath_common::summary::Load;

use crate::reports::pending_prefills::AnnouncementId;

/// Requests that have arrived and are not admitted yet.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    n_uncached: BTreeMap<AnnouncementId, u32>,
}

impl Arrivals {
    /// Adds a request that will have to compute about `n_uncached` tokens.
    pub fn come(&mut self, id: AnnouncementId, n_uncached: u32) {
        self.n_uncached.insert(id, n_uncached);
    }

    /// Removes a request that the engine has admitted or that has ended; unknown ids are ignored.
    pub fn leave(&mut self, id: AnnouncementId) {
        self.n_uncached.remove(&id);
    }

    /// Returns the engine's load plus these requests.
    pub fn beside(&self, load: &Load) -> Load {
        let n_tokens: u64 = self.n_uncached.values().map(|n| u64::from(*n)).sum();
        let n = u32::try_from(self.n_uncached.len()).unwrap_or(u32::MAX);
        Load {
            queued_prefill_tokens: load.queued_prefill_tokens.saturating_add(n_tokens),
            n_queued: load.n_queued.saturating_add(n),
            ..load.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_as_unadmitted_until_the_engine_counts_it() {
        let load = Load { queued_prefill_tokens: 100, n_queued: 1, n_decoding: 3, ..Load::default() };
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.beside(&load), load);
        arrivals.come(AnnouncementId(0), 500);
        arrivals.come(AnnouncementId(1), 20);
        let with = arrivals.beside(&load);
        assert_eq!((with.queued_prefill_tokens, with.n_queued, with.n_decoding), (620, 3, 3));
        arrivals.leave(AnnouncementId(0));
        arrivals.leave(AnnouncementId(7));
        assert_eq!(arrivals.beside(&load), Load { queued_prefill_tokens: 120, n_queued: 2, ..load.clone() });
        arrivals.leave(AnnouncementId(1));
        assert_eq!(arrivals.beside(&load), load);
    }
}
