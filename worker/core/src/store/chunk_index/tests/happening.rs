//! Random events of a store.
//!
//! Their effects are in `model`.
//!
//! Prompts extend earlier ones by tokens of an alphabet of three, so that they share prefixes and diverge everywhere.

use proptest::prelude::*;

use super::*;

/// One random event.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    /// A prompt arrives that starts like an earlier one; its missing blocks are stored.
    Store {
        prompt: Prompt,
        priority: i32,
    },
    /// The state at some position of a prompt is stored.
    StoreCheckpoint {
        which: usize,
        n_blocks: usize,
    },
    /// A prompt starts from its stored prefix.
    Use {
        which: usize,
    },
    /// The stored chunks of a prompt are held; `Release` ends one of the holds.
    Hold {
        which: usize,
    },
    Release {
        which: usize,
    },
    /// A write ends, successfully or not.
    Write {
        which: usize,
        works: bool,
    },
    /// A chunk is read; `Lose` reports that its file is damaged.
    Read {
        which: usize,
    },
    Lose {
        which: usize,
    },
    Pin {
        pin: u64,
        which: usize,
        n_blocks: usize,
    },
    Unpin {
        pin: u64,
    },
    TakeNews,
    Clear,
    Restart {
        seed: usize,
    },
}

/// Prompt with the first tokens of an earlier one and further tokens.
#[derive(Debug, Clone)]
pub(super) struct Prompt {
    pub from: usize,
    pub n_kept: usize,
    pub extra: Vec<Token>,
    pub salt: u8,
}

pub(super) fn happening() -> impl Strategy<Value = Happening> {
    let extra = prop::collection::vec(0_u32..3, 1..20);
    let prompt = (0_usize..8, 0_usize..40, extra, 0_u8..2);
    let prompt = prompt.prop_map(|(from, n_kept, extra, salt)| Prompt { from, n_kept, extra, salt });
    let which = 0_usize..50;
    prop_oneof![
        8 => (prompt, -1_i32..2).prop_map(|(prompt, priority)| Happening::Store { prompt, priority }),
        3 => (which.clone(), 1_usize..8).prop_map(|(which, n_blocks)| Happening::StoreCheckpoint { which, n_blocks }),
        6 => which.clone().prop_map(|which| Happening::Use { which }),
        2 => which.clone().prop_map(|which| Happening::Hold { which }),
        3 => which.clone().prop_map(|which| Happening::Release { which }),
        8 => (which.clone(), prop::bool::weighted(0.85)).prop_map(|(which, works)| Happening::Write { which, works }),
        5 => which.clone().prop_map(|which| Happening::Read { which }),
        1 => which.clone().prop_map(|which| Happening::Lose { which }),
        1 => (0_u64..3, which, 1_usize..8).prop_map(|(pin, which, n_blocks)| Happening::Pin { pin, which, n_blocks }),
        1 => (0_u64..3).prop_map(|pin| Happening::Unpin { pin }),
        4 => Just(Happening::TakeNews),
        1 => prop::bool::weighted(0.2).prop_map(|all| if all { Happening::Clear } else { Happening::TakeNews }),
        1 => (0_usize..50).prop_map(|seed| Happening::Restart { seed }),
    ]
}

pub(super) fn some_limits() -> impl Strategy<Value = StoreLimits> {
    (4_u64..30, 0_u64..60, prop::bool::ANY).prop_map(|(ram_blocks, disk_blocks, holds)| StoreLimits {
        min_hold_ms: if holds { 15 } else { 0 },
        ..limits(ram_blocks, disk_blocks)
    })
}
