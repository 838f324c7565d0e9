//! The scenarios: their names, and which servers take part.
//!
//! The requests are made in `traffic`, `throughput` and `state`; the goals are in `goals`.

use super::contender::Contender;

/// A scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Scenario {
    /// A prompt of 900 tokens, asked again and again.
    ExactRepeat,
    /// A prompt of 900 tokens that grows by three words, four times.
    GrownPrompt,
    /// One chat of six turns.
    SixTurnChat,
    /// Eight users at once on one system prompt of 1,200 tokens that was computed before.
    #[value(name = "shared-system-8")]
    SharedSystem8,
    /// Twelve chats in turn over four slots, three turns each.
    #[value(name = "interleaved-12")]
    Interleaved12,
    /// Short questions behind one context of 4,000 tokens.
    #[value(name = "shared-4k")]
    Shared4k,
    /// A system prompt in use, 16 other prompts, the system prompt again.
    HotAfterFlood,
    /// The same with a RAM limit that holds a third of the other prompts.
    HotAfterFloodTight,
    /// Six system prompts that were computed before, four users each, four at a time.
    #[value(name = "tenants-6x4")]
    Tenants6x4,
    /// Prefill and decode of 1, 4 and 8 sequences with short and long contexts.
    Throughput,
    /// Decode of 1, 4 and 8 answers that follow a JSON schema, beside free ones.
    Constrained,
    /// Waiting times beside a prompt of 3,584 tokens that runs alone: of a short request, a cancelled request's slot,
    /// `/cache`.
    LongPrompt,
    /// The same traffic before and after a restart.
    Restart,
    /// Fifty conversations that share a prefix of 2,000 tokens: how much memory they take.
    #[value(name = "shared-ram-50")]
    SharedRam50,
    /// The setting of attention and buffer that the self-test chooses, beside the fastest one.
    Settings,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Self; 15] = [
        Self::ExactRepeat,
        Self::GrownPrompt,
        Self::SixTurnChat,
        Self::SharedSystem8,
        Self::Interleaved12,
        Self::Shared4k,
        Self::HotAfterFlood,
        Self::HotAfterFloodTight,
        Self::Tenants6x4,
        Self::Throughput,
        Self::Constrained,
        Self::LongPrompt,
        Self::Restart,
        Self::SharedRam50,
        Self::Settings,
    ];

    /// Returns the name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExactRepeat => "exact-repeat",
            Self::GrownPrompt => "grown-prompt",
            Self::SixTurnChat => "six-turn-chat",
            Self::SharedSystem8 => "shared-system-8",
            Self::Interleaved12 => "interleaved-12",
            Self::Shared4k => "shared-4k",
            Self::HotAfterFlood => "hot-after-flood",
            Self::HotAfterFloodTight => "hot-after-flood-tight",
            Self::Tenants6x4 => "tenants-6x4",
            Self::Throughput => "throughput",
            Self::Constrained => "constrained",
            Self::LongPrompt => "long-prompt",
            Self::Restart => "restart",
            Self::SharedRam50 => "shared-ram-50",
            Self::Settings => "settings",
        }
    }

    /// Returns the servers that take part if llama-server does.
    pub fn contenders(self) -> Vec<Contender> {
        let mut contenders = vec![Contender::Worker, Contender::PeerChosen, Contender::PeerDefaults];
        match self {
            Self::SixTurnChat => contenders.push(Contender::WorkerUncached),
            Self::Restart => contenders.retain(|&contender| contender != Contender::PeerDefaults),
            _ => {}
        }
        contenders
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_scenario_has_the_same_name_on_the_command_line_and_in_tables() {
        assert_eq!(Scenario::value_variants(), Scenario::ALL);
        for scenario in Scenario::ALL {
            let value = scenario.to_possible_value().expect("no scenario is hidden");
            assert_eq!(value.get_name(), scenario.name());
        }
    }
}
