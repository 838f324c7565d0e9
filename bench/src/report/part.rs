//! The parts of a report, and its length.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::output::names;

/// Length of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pace {
    /// Half an hour on two cores.
    Full,
    /// Five minutes, for rough figures.
    Quick,
}

/// Part of a report: one claim, one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Fleets under load, ours and llama-servers behind other gateways.
    Fleets,
    /// The worker's cache beside llama-server's.
    Worker,
    /// Prefill and decode of worker and llama-server; only if named, because it takes more than ten minutes.
    Throughput,
    /// Latency and throughput of router and gateways in front of workers that answer immediately.
    Overhead,
    /// The router's prefix index beside others.
    Index,
    /// Routing policies in a simulated fleet.
    Policies,
    /// Several routers in front of a simulated fleet.
    Routers,
    /// Faults in a fleet under load.
    Chaos,
}

impl Part {
    /// Parts of a report unless others are named.
    pub const DEFAULT: [Self; 7] =
        [Self::Fleets, Self::Worker, Self::Overhead, Self::Index, Self::Policies, Self::Routers, Self::Chaos];

    /// Returns the heading on the page.
    pub fn title(self) -> &'static str {
        match self {
            Self::Fleets => "Fleets under load",
            Self::Worker => "The worker's cache",
            Self::Throughput => "Prefill and decode",
            Self::Overhead => "Latency added by the router",
            Self::Index => "The prefix index",
            Self::Policies => "Routing policies, simulated",
            Self::Routers => "Several routers, simulated",
            Self::Chaos => "A fleet under faults",
        }
    }

    /// Returns a description of the measurement, in some lines.
    pub fn about(self) -> &'static str {
        match self {
            Self::Fleets => {
                "Three servers with one thread each serve the same conversations; llama-server has the setting that the\n\
                 worker's self-test chose for this model and machine."
            }
            Self::Worker => {
                "Prompt tokens computed, and TTFT of prompts with a cached prefix (warm) and without (cold); each\n\
                 server starts anew for each scenario. llama-server runs twice: with its defaults, and with the\n\
                 setting that the worker's self-test chose for this model and machine."
            }
            Self::Throughput => {
                "Tokens per second of all sequences together. llama-server runs with its defaults, and with the setting\n\
                 that the worker's self-test chose for this model and machine."
            }
            Self::Overhead => {
                "Workers that answer immediately. In *seen* chats only the last message is new, in *new* chats all\n\
                 are. nginx and SMG do not tokenize."
            }
            Self::Index => {
                "Look-ups and changes of conversations of 16 to 2,048 blocks with 16 different system prompts."
            }
            Self::Policies => {
                "One router and eight workers in virtual time; a generated trace of chats of many tenants."
            }
            Self::Routers => "The same fleet behind several routers, which share nothing.",
            Self::Chaos => {
                "Workers and routers are killed, paused, restarted and disconnected; every answer is compared with\n\
                 that of a worker without faults."
            }
        }
    }

    /// Returns the titles of the columns with case and subject.
    pub fn row_titles(self) -> (&'static str, &'static str) {
        match self {
            Self::Fleets => ("", "fleet"),
            Self::Worker => ("scenario", "server"),
            Self::Throughput => ("sequences", "server"),
            Self::Overhead => ("chat", "through"),
            Self::Index => ("fleet", "index"),
            Self::Policies | Self::Routers => ("routers", "policy"),
            Self::Chaos => ("time", "fleet"),
        }
    }

    /// Returns the number of its rounds.
    pub(super) fn n_rounds(self, pace: Pace) -> u64 {
        match (self, pace) {
            (Self::Throughput | Self::Chaos, Pace::Full) | (_, Pace::Quick) => 1,
            (Self::Worker, Pace::Full) => 2,
            (_, Pace::Full) => 3,
        }
    }

    /// Returns whether its commands have a seed.
    pub(super) fn takes_a_seed(self) -> bool {
        self != Self::Overhead
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&names::name(*self))
    }
}
