//! Moving tokens of a slot to other positions.
//!
//! llama.cpp records the new positions immediately and rotates the keys at the next decode. An export before that would
//! give another slot keys of the old positions, so one token is decoded immediately. llama.cpp rotates a cell for all
//! sequences that share it, so in a shared buffer a slot first gets its own cells. It also rotates the cells that were
//! not moved, by zero. If that changes them (keys that are rounded again, or scaled), shifting is refused, because it
//! would change other slots' state.
//!
//! Not here: the new positions (`warmpath_worker_core::slots::shift_plan`).

use llama_cpp_2::model::{LlamaModel, RopeType};
use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;
use warmpath_worker_core::slots::shift_plan::Move;

use super::{Llama, Probed, StateError};
use crate::engine::api::ShiftObstacle;
use crate::engine::config::{CacheType, EngineConfig};

/// Architectures whose state llama.cpp cannot shift.
///
/// Source: its `get_can_shift`, which the bindings lack; `smollm3`, and without a sliding window `llama4` and `afmoe`,
/// have layers without rotation, whose keys `build_graph_shift` would rotate too, because it does not know them.
const UNSHIFTED: [&str; 5] = ["step35", "deepseek4", "smollm3", "llama4", "afmoe"];

/// Returns why this model's state cannot be shifted; `None` if it can.
pub(in crate::engine) fn obstacle(model: &LlamaModel, config: &EngineConfig, probe: &Probed) -> Option<ShiftObstacle> {
    let file = |key: &str| model.meta_val_str(key).ok();
    let metadata = config.metadata(&file);
    let architecture = metadata.text("general.architecture").unwrap_or_default();
    let scaling = metadata.of_architecture("rope.scaling.type");
    let factor = metadata.of_architecture("rope.scaling.attn_factor").and_then(|factor| factor.parse::<f32>().ok());
    let is_scaled = scaling.as_deref() == Some("yarn")
        || factor.is_some_and(|factor| (factor - 1.0).abs() > f32::EPSILON)
        || config.rope.scales_keys();
    if probe.reads_media {
        return Some(ShiftObstacle::Media);
    }
    if probe.memory != MemoryKind::Full {
        return Some(ShiftObstacle::Memory { memory: probe.memory });
    }
    // The keys of such an index are transformed after their rotation (`build_rope_shift` expects them before it).
    let has_index = metadata.of_architecture("attention.indexer.head_count").is_some();
    let can_rotate = matches!(model.rope_type(), Some(RopeType::Norm | RopeType::NeoX));
    if !can_rotate || has_index || UNSHIFTED.contains(&&*architecture) {
        return Some(ShiftObstacle::Positions);
    }
    if !matches!(config.cache_type_k, CacheType::F32 | CacheType::F16) {
        return Some(ShiftObstacle::Keys);
    }
    is_scaled.then_some(ShiftObstacle::Scaling)
}

impl Llama<'_> {
    /// Keeps a slot's first `n_kept` tokens, makes the moves, and drops all other tokens. The moves are in ascending
    /// order of both the old and the new positions, which may have gaps.
    ///
    /// Cost: if tokens move, a pass over all keys in the buffer and a decode of one token; in a shared buffer possibly
    /// an export and an import.
    /// Errors: `Export`, `Import`, `Rewind`, `Decode`; the slot is then empty.
    pub(in crate::engine) fn shift(&mut self, slot: SlotId, n_kept: u32, moves: &[Move]) -> Result<(), StateError> {
        let n_shared = self.n_shared[usize::from(slot.0)];
        let mut real = moves.iter().filter(|one| one.from_token != one.to_token).peekable();
        let has_moves = real.peek().is_some();
        if real.any(|one| one.from_token < n_shared) {
            self.own_cells(slot)?;
        }
        let mut n_tokens = n_kept;
        let mut drop_from = n_kept;
        for one in moves {
            self.drop_tokens(slot, drop_from, Some(one.from_token));
            drop_from = one.from_token + one.n_tokens;
            n_tokens = one.to_token + one.n_tokens;
        }
        self.drop_tokens(slot, drop_from, None);
        // A move must not overwrite cells of a pending one, so moves to later positions are made in reverse order.
        let (later, earlier): (Vec<Move>, Vec<Move>) = moves.iter().partition(|one| one.to_token > one.from_token);
        for one in later.iter().rev().chain(&earlier) {
            let by = i32::try_from(i64::from(one.to_token) - i64::from(one.from_token)).expect("positions are i32s");
            let (from, to) = (one.from_token, one.from_token + one.n_tokens);
            let result = self.context.kv_cache_seq_add(i32::from(slot.0), Some(from), Some(to), by);
            debug_assert!(result.is_ok(), "positions are i32s");
        }
        self.cut_back(slot, n_tokens)?;
        if has_moves { self.execute_recorded(slot, n_tokens) } else { Ok(()) }
    }

    fn drop_tokens(&mut self, slot: SlotId, from: u32, to: Option<u32>) {
        let result = self.context.clear_kv_cache_seq(Some(u32::from(slot.0)), Some(from), to);
        debug_assert_eq!(result, Ok(true), "full attention can be cut anywhere");
    }

    /// Gives a slot its own cells, which no other slot shares.
    fn own_cells(&mut self, slot: SlotId) -> Result<(), StateError> {
        let n_tokens = self.n_held(slot);
        let n_bytes = self.export(slot)?.len();
        self.import_written(slot, n_bytes, n_tokens)
    }
}
