//! The scenarios: their names, and which servers take part.
//!
//! The requests are made in `traffic`, `throughput` and `state`; the goals are in `goals`.

use super::contender::Contender;
use crate::output::names;

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
    /// Returns the name on the command line and in tables.
    pub fn name(self) -> String {
        names::name(self)
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
