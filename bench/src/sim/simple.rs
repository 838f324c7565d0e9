//! Simple policies that the router does not offer, on the candidates that its own code finds.

use std::fmt;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng as _;
use warmpath_common::mix::mix;
use warmpath_router_core::fleet::FleetView;
use warmpath_router_core::ledger::{Decision, Ledger, NoWorker, RouteRequest, Ticket};
use warmpath_router_core::routing::choose::{Candidate, Policy, TieBreak, choose as choose_by};

use super::trace::{self, Request};

/// A simple policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Simple {
    /// The longest cached prefix, then the least load.
    Prefix,
    /// A random worker.
    Random,
    /// Consistent hash of the conversation, which the first blocks of its prompt identify.
    Hash {
        /// Number of these blocks.
        n_blocks: usize,
    },
}

impl fmt::Display for Simple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix => f.write_str("prefix"),
            Self::Random => f.write_str("random"),
            Self::Hash { n_blocks } => write!(f, "hash-{n_blocks}"),
        }
    }
}

/// Chooses a worker by a simple policy and books the request on it.
///
/// Errors: [`NoWorker`], as [`Ledger::choose`].
pub fn choose(
    policy: Simple,
    ledger: &mut Ledger,
    fleet: &FleetView,
    route_request: &RouteRequest<'_>,
    request: &Request,
    rng: &mut ChaCha8Rng,
) -> Result<(Decision, Ticket), NoWorker> {
    ledger.choose_by(fleet, route_request, |candidates, ties| match policy {
        Simple::Prefix => of_longest_prefix(candidates, ties),
        Simple::Random => candidates.get((rng.next_u64() % candidates.len().max(1) as u64) as usize),
        Simple::Hash { n_blocks } => {
            let first = request.ids().iter().take(n_blocks);
            let conversation = first.fold(0, |hash, id| trace::mix(hash ^ u64::from(*id)));
            candidates.iter().max_by_key(|candidate| rendezvous(conversation, &candidate.worker.name))
        }
    })
}

fn of_longest_prefix<'c, 'a>(candidates: &'c [Candidate<'a>], ties: TieBreak) -> Option<&'c Candidate<'a>> {
    let longest = candidates.iter().map(|candidate| candidate.cached_blocks).max()?;
    let holders: Vec<_> = candidates.iter().filter(|candidate| candidate.cached_blocks == longest).copied().collect();
    let worker = choose_by(Policy::LeastLoaded, &holders, ties)?.worker.idx;
    candidates.iter().find(|candidate| candidate.worker.idx == worker)
}

/// Returns the weight of a worker for a conversation. The largest wins, so a worker's loss moves only its own
/// conversations.
///
/// Source: Thaler and Ravishankar, "A name-based mapping scheme for rendezvous" (1996); FNV-1a.
fn rendezvous(conversation: u64, worker_name: &str) -> u64 {
    let fnv = worker_name.bytes().fold(0xcbf2_9ce4_8422_2325_u64 ^ conversation, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(fnv)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_keeps_its_worker_when_another_leaves() {
        let names: Vec<String> = (0..10).map(|n| format!("worker-{n}")).collect();
        let home = |conversation, names: &[String]| {
            (0..names.len()).max_by_key(|idx| rendezvous(conversation, &names[*idx])).expect("there are workers")
        };
        let mut counts = [0; 10];
        for conversation in 0..1000 {
            let worker = home(conversation, &names);
            counts[worker] += 1;
            if worker != 9 {
                assert_eq!(home(conversation, &names[..9]), worker);
            }
        }
        assert!(counts.iter().all(|&n| n > 50), "conversations spread: {counts:?}");
    }
}
