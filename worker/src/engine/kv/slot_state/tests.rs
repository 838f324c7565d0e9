//! Tests of moving state, on generated models in llama.cpp itself.
//!
//! A slot whose state was moved must continue exactly like a slot that computed its tokens. The digital models respond
//! with wide margins, and a wrong value changes their response; in the model with ordinary keys, a wrong key does. Not
//! here: the bytes alone (`engine::codec`).

use std::path::Path;

use warmpath_bench::model::Preset;
use warmpath_bench::model::cache::cached_model;
use warmpath_common::ids::Token;
use warmpath_worker_core::slots::shift_plan::Move;

use super::*;
use crate::engine::config::speculation::SpeculationConfig;
use crate::engine::config::{CacheType, EngineConfig, Switch};
use crate::engine::llama::{Logits, load};

const BLOCK: u32 = 32;
const A: SlotId = SlotId(0);
const B: SlotId = SlotId(1);
const C: SlotId = SlotId(2);

/// Maximum difference of a logit between right states, whose sums are rounded in the order of the cells.
///
/// Source: measured on an Intel Xeon with AVX-512: 0.012, and at least 2.1 with one wrong token in the state.
const DIFFERENCE_MAX: f32 = 0.5;

/// A configuration of a context.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Setting {
    preset: Preset,
    kv_unified: Switch,
    flash_attn: Switch,
    kv: CacheType,
}

const PRESETS: [Preset; 5] =
    [Preset::Tiny, Preset::TinyKeys, Preset::TinySwa, Preset::TinyHybrid, Preset::TinyRecurrent];

fn settings(presets: &[Preset]) -> Vec<Setting> {
    let kinds = [(Switch::Off, CacheType::F16), (Switch::On, CacheType::F16), (Switch::On, CacheType::Q8_0)];
    let mut settings = Vec::new();
    for &preset in presets {
        for kv_unified in [Switch::On, Switch::Off] {
            settings.extend(kinds.map(|(flash_attn, kv)| Setting { preset, kv_unified, flash_attn, kv }));
        }
    }
    settings
}

impl Setting {
    fn config(self) -> EngineConfig {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/models"));
        EngineConfig {
            model: cached_model(self.preset, 1, folder).unwrap(),
            n_slots: 3,
            context_tokens_total: 3 * 512,
            threads: 1,
            flash_attn: self.flash_attn,
            kv_unified: self.kv_unified,
            cache_type_k: self.kv,
            cache_type_v: self.kv,
            ..EngineConfig::default()
        }
    }

    fn run(self, test: impl FnOnce(&mut Bed<'_>)) {
        self.run_with(&self.config(), test);
    }

    fn run_with(self, config: &EngineConfig, test: impl FnOnce(&mut Bed<'_>)) {
        println!("{self:?}");
        let model = load(config, Box::new(|_| true)).unwrap();
        let mut llama = Llama::open(&model, config).unwrap();
        let layout = check_layout(&mut llama, &model, BLOCK).unwrap();
        test(&mut Bed { setting: self, model: &model, llama, layout });
    }

    fn has_partial(self) -> bool {
        matches!(self.preset, Preset::TinySwa | Preset::TinyHybrid | Preset::TinyRecurrent)
    }
}

struct Bed<'m> {
    setting: Setting,
    model: &'m LlamaModel,
    llama: Llama<'m>,
    layout: StateLayout,
}

/// Returns `n` tokens that depend on `seed`.
fn tokens(seed: u32, n: u32) -> Vec<Token> {
    (0..n).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 9) % 256).collect()
}

fn cut(export: &ParsedState<'_>, positions: Range<u32>) -> Vec<u8> {
    let mut payload = vec![0; export.layout().payload_bytes(positions.end - positions.start)];
    export.cut(positions, &mut payload).unwrap();
    payload
}

impl Bed<'_> {
    /// Decodes tokens after those of the slot and returns the logits after the last.
    fn push(&mut self, slot: SlotId, tokens: &[Token]) -> Vec<f32> {
        let start = self.llama.n_held(slot);
        self.llama.reset_batch();
        let mut idx = 0;
        for (position, &token) in (start..).zip(tokens) {
            let is_last = position + 1 == start + tokens.len() as u32;
            let logits = if is_last { Logits::Wanted } else { Logits::Unwanted };
            idx = self.llama.push(slot, position, token, logits);
        }
        self.llama.decode().unwrap();
        let logits = self.llama.logits(idx).to_vec();
        self.llama.reset_batch();
        logits
    }

    /// Fills a slot in turns with slot C, so that in a shared buffer its cells are scattered.
    fn fill_scattered(&mut self, slot: SlotId, tokens: &[Token]) {
        for part in tokens.chunks(29) {
            self.push(slot, part);
            self.push(C, &part[..3.min(part.len())]);
        }
    }

    /// Asserts that a slot continues like a slot of a separate context that computed these tokens.
    fn assert_continues_as_fresh(&mut self, slot: SlotId, tokens: &[Token]) {
        let n = if self.setting.preset == Preset::TinyRecurrent { 48 } else { 16 };
        assert_eq!(self.llama.n_held(slot), tokens.len() as u32);
        let llama = Llama::open(self.model, &self.setting.config()).unwrap();
        let mut fresh = Bed { setting: self.setting, model: self.model, llama, layout: self.layout.clone() };
        fresh.fill_scattered(A, tokens);
        let mut token = 11;
        for _ in 0..n {
            let (logits, expected) = (self.push(slot, &[token]), fresh.push(A, &[token]));
            let differences = logits.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let largest = differences.max_by(f32::total_cmp).unwrap();
            assert!(largest <= DIFFERENCE_MAX, "{largest}: {:?}", self.setting);
            token = (0..expected.len()).max_by(|&a, &b| expected[a].total_cmp(&expected[b])).unwrap() as Token;
        }
    }

    /// Returns the payload of a slot's whole blocks, and the bytes of its partial state; for a window they contain the
    /// slot's number.
    fn payload(&mut self, slot: SlotId) -> (Vec<u8>, Vec<u8>) {
        let layout = self.layout.clone();
        let export = layout.parse(self.llama.export(slot).unwrap()).unwrap();
        let whole = export.n_tokens() / BLOCK * BLOCK;
        (cut(&export, 0..whole), export.partial.to_vec())
    }

    fn partial(&mut self, slot: SlotId) -> Option<Vec<u8>> {
        self.setting.has_partial().then(|| self.llama.partial(slot).unwrap())
    }
}

#[test]
fn state_split_and_joined_continues_as_if_it_had_been_computed() {
    for setting in settings(&PRESETS) {
        setting.run(|bed| {
            let prompt = tokens(1, 6 * BLOCK);
            bed.fill_scattered(A, &prompt);
            let (payload, section) = bed.payload(A);
            let partial = bed.partial(A);
            let mut pieces = Vec::new();
            if bed.layout.sections() != Sections::PartialOnly {
                let (first, second) = payload.split_at(bed.layout.payload_bytes(2 * BLOCK));
                pieces.push(PayloadPart { payload: first, n_tokens: 2 * BLOCK });
                pieces.push(PayloadPart { payload: second, n_tokens: 4 * BLOCK });
            }
            bed.push(B, &tokens(9, 50));
            let frame = frame(&bed.llama, B);
            let assembled = bed.layout.assemble(frame, &pieces, partial.as_deref(), |n_bytes| bed.llama.room(n_bytes));
            let n_bytes = assembled.unwrap();
            bed.llama.import_written(B, n_bytes, 6 * BLOCK).unwrap();
            let (again, its_section) = bed.payload(B);
            assert_eq!((&again, its_section.len()), (&payload, section.len()), "{setting:?}");
            assert!(its_section == section || setting.preset == Preset::TinySwa, "{setting:?}");
            bed.assert_continues_as_fresh(B, &prompt);
            assert_eq!(bed.payload(A), (payload, section), "the source is unchanged");
            bed.assert_continues_as_fresh(A, &prompt);
        });
    }
}

#[test]
fn an_exported_range_equals_the_same_part_of_a_whole_export() {
    for setting in settings(&[Preset::Tiny, Preset::TinyKeys]) {
        setting.run(|bed| {
            bed.fill_scattered(A, &tokens(2, 150));
            let (whole, _) = bed.payload(A);
            let layout = bed.layout.clone();
            for (start, end) in [(0, 32), (32, 96), (96, 128)] {
                let export = layout.parse(bed.llama.export_range(A, start..end).unwrap()).unwrap();
                let expected = &whole[layout.payload_bytes(start)..layout.payload_bytes(end)];
                assert_eq!(cut(&export, start..end), expected, "{setting:?}");
            }
            let refused = StateError::Range { slot: A, start: 128, end: 160 };
            assert_eq!(bed.llama.export_range(A, 128..160), Err(refused));
            assert_eq!(bed.llama.export(B), Err(StateError::Export { slot: B }));
            bed.assert_continues_as_fresh(A, &tokens(2, 150));
        });
    }
}

#[test]
fn a_copied_prefix_continues_as_if_it_had_been_computed_and_its_source_is_unchanged() {
    for setting in settings(&PRESETS) {
        setting.run(|bed| {
            let prompt = tokens(3, 200);
            bed.fill_scattered(A, &prompt);
            bed.push(B, &tokens(9, 50));
            let rewinds = !matches!(setting.preset, Preset::TinyHybrid | Preset::TinyRecurrent);
            let n_tokens = if rewinds { 170 } else { 200 };
            bed.llama.copy_prefix(A, B, n_tokens).unwrap();
            // The payload is read before any decode, because a decode could complete the copy.
            let (payload, _) = bed.payload(B);
            let (whole, _) = bed.payload(A);
            assert_eq!(payload[..], whole[..payload.len()], "{setting:?}");
            bed.assert_continues_as_fresh(B, &prompt[..n_tokens as usize]);
            bed.assert_continues_as_fresh(A, &prompt);
            if rewinds {
                assert!(bed.llama.rewind(B, 40), "a copy can be cut back like its source: {setting:?}");
                bed.assert_continues_as_fresh(B, &prompt[..40]);
            }
        });
    }
}

#[test]
fn refuses_a_copy_that_would_be_wrong() {
    for setting in settings(&[Preset::Tiny, Preset::TinyHybrid]) {
        setting.run(|bed| {
            bed.fill_scattered(A, &tokens(3, 100));
            bed.push(B, &tokens(9, 50));
            let refused = StateError::Range { slot: A, start: 0, end: 101 };
            assert_eq!(bed.llama.copy_prefix(A, B, 101), Err(refused));
            if setting.preset == Preset::TinyHybrid && setting.kv_unified == Switch::Off {
                assert_eq!(bed.llama.copy_prefix(A, B, 64), Err(StateError::Rewind { slot: B, n_tokens: 64 }));
                assert_eq!(bed.llama.last_position(B), None);
            }
            bed.assert_continues_as_fresh(A, &tokens(3, 100));
        });
    }
}

#[test]
fn a_slot_is_cut_back_to_a_checkpoint() {
    for setting in settings(&[Preset::TinySwa, Preset::TinyHybrid, Preset::TinyRecurrent]) {
        setting.run(|bed| {
            let prompt = tokens(4, 400);
            bed.fill_scattered(A, &prompt[..160]);
            let partial = bed.llama.partial(A).unwrap();
            bed.fill_scattered(A, &prompt[160..]);
            let is_recurrent = setting.preset == Preset::TinyRecurrent;
            if setting.kv_unified == Switch::On || is_recurrent {
                // The recurrent part of a copy is that of the end until the checkpoint is restored.
                let copied = bed.llama.copy_prefix(A, B, 160);
                assert_eq!(copied.is_err(), is_recurrent, "a recurrent state has no other part to copy");
                bed.llama.restore_partial(B, &partial, 160).unwrap();
                bed.assert_continues_as_fresh(B, &prompt[..160]);
            }
            bed.llama.restore_partial(A, &partial, 160).unwrap();
            bed.assert_continues_as_fresh(A, &prompt[..160]);
        });
    }
}

/// Runs a test with a context that keeps the states after the last tokens.
fn with_rollback(test: impl Fn(&mut Bed<'_>)) {
    for setting in settings(&[Preset::TinyHybrid, Preset::TinyQwen35, Preset::TinyNemotronH]) {
        let config = EngineConfig { speculation: Some(SpeculationConfig::default()), ..setting.config() };
        setting.run_with(&config, |bed| {
            assert!(bed.llama.rolls_back_max() > 0);
            test(bed);
        });
    }
}

#[test]
fn recurrent_state_is_rolled_back_within_the_last_batch_and_once() {
    with_rollback(|bed| {
        let (all, others) = (tokens(1, 90), tokens(2, 40));
        for n_removed in 1..=bed.llama.rolls_back_max() {
            let kept = &all[..90 - n_removed as usize];
            bed.fill_scattered(A, &all[..80]);
            bed.push(B, &others);
            bed.push(A, &all[80..]);
            assert!(bed.llama.rewind(A, 90 - n_removed));
            // Other sequences may be computed before the next token of this one.
            bed.push(B, &others[..3]);
            bed.assert_continues_as_fresh(A, kept);
            bed.llama.clear(B);
            bed.llama.clear(A);
        }
        bed.fill_scattered(A, &all[..80]);
        bed.push(A, &all[80..]);
        assert!(bed.llama.rewind(A, 88));
        assert!(!bed.llama.rewind(A, 87), "llama.cpp keeps the states for one rollback");
    });
}

#[test]
fn a_rollback_that_would_be_wrong_is_refused() {
    with_rollback(|bed| {
        let (all, others) = (tokens(1, 90), tokens(2, 40));
        let mut refuses = |parts: &[(SlotId, &[Token])], n_keep: u32| {
            bed.llama.clear_all();
            for (slot, part) in parts {
                bed.push(*slot, part);
            }
            assert!(!bed.llama.rewind(A, n_keep), "{n_keep}");
        };
        refuses(&[(A, &all), (B, &others)], 89);
        refuses(&[(A, &all[..89]), (A, &all[89..])], 89);
        refuses(&[(A, &all[..85]), (A, &all[85..])], 85);
        refuses(&[(A, &all)], 80);
        bed.llama.clear_all();
        bed.push(A, &all);
        bed.llama.copy_prefix(A, B, 90).unwrap();
        assert!(!bed.llama.rewind(B, 89), "a copy has no earlier states");
    });
}

#[test]
fn state_after_a_rollback_is_copied_and_exported_as_it_is() {
    with_rollback(|bed| {
        let all = tokens(1, 90);
        bed.fill_scattered(A, &all[..80]);
        bed.push(A, &all[80..]);
        assert!(bed.llama.rewind(A, 86));
        bed.llama.copy_prefix(A, B, 86).unwrap();
        let n_bytes = bed.llama.export(A).unwrap().len();
        bed.assert_continues_as_fresh(B, &all[..86]);
        bed.llama.import_written(B, n_bytes, 86).unwrap();
        bed.assert_continues_as_fresh(B, &all[..86]);
        bed.assert_continues_as_fresh(A, &all[..86]);
    });
}

#[test]
fn a_state_that_cannot_be_imported_leaves_the_slot_empty_and_others_alone() {
    for setting in settings(&PRESETS) {
        setting.run(|bed| {
            let prompt = tokens(5, 4 * BLOCK);
            bed.fill_scattered(A, &prompt);
            let state = bed.llama.export(A).unwrap().to_vec();
            let n_tokens = 4 * BLOCK;
            for broken in [&state[..state.len() - 1], &state[..20], &[], &[0; 100]] {
                bed.push(B, &tokens(9, 50));
                assert_eq!(bed.llama.import(B, broken, n_tokens), Err(StateError::Import { slot: B, n_tokens }));
                assert_eq!(bed.llama.last_position(B), None, "{setting:?}");
            }
            let wrong_length = bed.llama.import(B, &state, n_tokens + 1);
            assert_eq!(wrong_length, Err(StateError::Import { slot: B, n_tokens: n_tokens + 1 }));
            assert_eq!(bed.llama.last_position(B), None);
            bed.llama.import(B, &state, n_tokens).unwrap();
            bed.assert_continues_as_fresh(B, &prompt);
            bed.assert_continues_as_fresh(A, &prompt);
        });
    }
}

#[test]
fn an_import_without_cells_leaves_the_slot_empty_and_others_alone() {
    let setting = Setting { preset: Preset::Tiny, kv_unified: Switch::On, flash_attn: Switch::Off, kv: CacheType::F16 };
    setting.run(|bed| {
        let prompt = tokens(6, 500);
        bed.push(A, &prompt);
        let state = bed.llama.export(A).unwrap().to_vec();
        bed.push(B, &tokens(7, 500));
        // Of 1,536 cells and 256 spare ones 1,500 are in use, so the import into the spare sequence finds too few.
        bed.push(C, &tokens(8, 500));
        let spare = bed.llama.spare_slot().unwrap();
        assert_eq!(bed.llama.import(spare, &state, 500), Err(StateError::Import { slot: spare, n_tokens: 500 }));
        assert_eq!(bed.llama.last_position(spare), None);
        bed.assert_continues_as_fresh(A, &prompt);
    });
}

#[test]
fn the_check_finds_the_layout_and_leaves_the_slots_empty() {
    for setting in settings(&PRESETS) {
        setting.run(|bed| {
            let expected = match setting.preset {
                Preset::TinySwa | Preset::TinyHybrid => Sections::AttentionAndPartial,
                Preset::TinyRecurrent => Sections::PartialOnly,
                _ => Sections::AttentionOnly,
            };
            assert_eq!(bed.layout.sections(), expected);
            let transposed = setting.flash_attn == Switch::Off && expected != Sections::PartialOnly;
            assert_eq!(bed.layout.values_transposed, transposed, "{setting:?}");
            for slot in [A, B, C] {
                assert_eq!(bed.llama.last_position(slot), None);
            }
        });
    }
}

#[test]
fn removed_state_that_is_appended_after_computed_tokens_continues_like_computed_state() {
    for setting in settings(&[Preset::Tiny, Preset::TinyKeys]) {
        setting.run(|bed| {
            let prompt = tokens(3, 200);
            bed.fill_scattered(A, &prompt);
            bed.llama.copy_prefix(A, B, 180).unwrap();
            let before = bed.llama.export(A).unwrap().to_vec();
            let ranges = [80..111, 140..180];
            let stays = |range: &Range<u32>| {
                let n_tokens = range.end - range.start;
                Move { from_token: range.start, to_token: range.start, n_tokens }
            };
            bed.llama.shift(B, 50, &ranges.each_ref().map(stays)).unwrap();
            let layout = bed.layout.clone();
            let states = take_out(&mut bed.llama, B, 50, &ranges, &layout).unwrap();
            assert_eq!(bed.llama.n_held(B), 50);
            for (range, state) in ranges.into_iter().zip(&states) {
                let n_held = bed.llama.n_held(B);
                bed.push(C, &tokens(7, 5));
                bed.push(B, &prompt[n_held as usize..range.start as usize]);
                append(&mut bed.llama, B, state, range.clone(), &layout).unwrap();
                assert_eq!(bed.llama.n_held(B), range.end);
            }
            bed.assert_continues_as_fresh(B, &prompt[..180]);
            assert!(bed.llama.export(A).unwrap() == before, "{setting:?}");
            bed.assert_continues_as_fresh(A, &prompt);
        });
    }
}

#[test]
fn a_state_that_cannot_be_appended_leaves_the_slot_empty_and_others_alone() {
    for setting in settings(&[Preset::Tiny]) {
        setting.run(|bed| {
            let prompt = tokens(3, 100);
            bed.fill_scattered(A, &prompt);
            let layout = bed.layout.clone();
            let state = bed.llama.export(A).unwrap().to_vec();
            // Half of the state, and a state with fewer tokens than expected.
            for (broken, end) in [(&state[..state.len() / 2], 100), (&state[..], 120)] {
                bed.push(B, &tokens(9, 50));
                assert!(append(&mut bed.llama, B, broken, 50..end, &layout).is_err(), "{setting:?}");
                assert_eq!(bed.llama.last_position(B), None, "{setting:?}");
            }
            bed.assert_continues_as_fresh(A, &prompt);
        });
    }
}

/// Computes A, shares most of its cells with B, and moves a part of those up in B.
fn lend_and_shift(bed: &mut Bed<'_>, forget: impl FnOnce(&mut Llama<'_>)) -> (Vec<u8>, Vec<u8>) {
    bed.fill_scattered(A, &tokens(3, 200));
    bed.llama.copy_prefix(A, B, 150).unwrap();
    bed.push(B, &tokens(4, 10));
    let state = bed.llama.export(A).unwrap().to_vec();
    forget(&mut bed.llama);
    bed.llama.shift(B, 40, &[Move { from_token: 100, to_token: 40, n_tokens: 60 }]).unwrap();
    bed.push(B, &tokens(5, 3));
    assert_eq!(bed.llama.n_held(B), 103);
    (state, bed.llama.export(A).unwrap().to_vec())
}

#[test]
fn a_shift_changes_no_byte_of_other_slots() {
    let unquantized = |setting: &Setting| setting.kv == CacheType::F16;
    for setting in settings(&[Preset::Tiny, Preset::TinyKeys]).into_iter().filter(unquantized) {
        setting.run(|bed| {
            let (before, after) = lend_and_shift(bed, |_| {});
            assert!(before == after, "{setting:?}");
            bed.assert_continues_as_fresh(A, &tokens(3, 200));
        });
    }
}

#[test]
fn llama_cpp_shifts_shared_cells_for_both_slots() {
    let setting = settings(&[Preset::TinyKeys])[0];
    assert_eq!(setting.kv_unified, Switch::On);
    setting.run(|bed| {
        let (before, after) = lend_and_shift(bed, |llama| llama.forget_shared_cells());
        assert!(before != after, "llama.cpp no longer shifts shared cells for both slots, so they need not be copied");
    });
}
