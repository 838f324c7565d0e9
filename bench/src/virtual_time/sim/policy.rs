//! The policies that are compared, by name.
//!
//! The router's own policies are in `warmpath-router-core`, ours without a term in `ablation`, the others in
//! `rivals`.

pub mod ablation;
pub mod rivals;

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum as _;
use warmpath_router_core::routing::choose::Policy as Offered;

use self::ablation::Term;
use self::rivals::Kind;
use crate::output::names;

/// Rule by which workers are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// A policy of the router, run by its own code.
    Offered(Offered),
    /// A random worker of the router's candidates.
    Random,
    /// Our policy without one of its terms.
    Without(Term),
    /// A policy that the router does not offer.
    Rival(Kind),
}

impl Policy {
    /// Policies that `--all-policies` compares, ours last.
    pub const COMPARED: [Self; 9] = [
        Self::Random,
        Self::Offered(Offered::RoundRobin),
        Self::Offered(Offered::LeastLoaded),
        Self::Rival(Kind::Sticky),
        Self::Rival(Kind::TenthQueue),
        Self::Rival(Kind::SglangSwitch),
        Self::Rival(Kind::DynamoCost),
        Self::Rival(Kind::LlmdScorers),
        Self::Offered(Offered::PredictedTtft),
    ];

    /// Returns our policy as a whole, and without each of its terms.
    pub fn ablated() -> Vec<Self> {
        let complete_policy = Self::Offered(Offered::PredictedTtft);
        std::iter::once(complete_policy).chain(Term::value_variants().iter().copied().map(Self::Without)).collect()
    }

    fn known() -> impl Iterator<Item = Self> {
        Self::COMPARED.into_iter().chain(Self::ablated())
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offered(policy) => write!(f, "{policy}"),
            Self::Random => f.write_str("random"),
            Self::Without(term) => write!(f, "without-{}", names::name(*term)),
            Self::Rival(kind) => f.write_str(&names::name(*kind)),
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known_names = || Self::known().map(|policy| policy.to_string()).collect::<Vec<_>>().join(", ");
        Self::known()
            .find(|policy| policy.to_string() == name)
            .ok_or_else(|| format!("no policy is called `{name}`; the policies are {}", known_names()))
    }
}
