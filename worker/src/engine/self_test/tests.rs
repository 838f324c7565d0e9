//! Tests of the self-test: the choice from given measurements, the file, and whole runs on generated models.
//!
//! Not here: whether the measurements are right, which only a quiet machine shows
//! (docs/decisions/0011-buffer-self-test.md).

use std::path::{Path, PathBuf};

use warmpath_bench::model::Preset;
use warmpath_bench::model::cache::cached_model;

use super::measurements::rounding;
use super::*;
use crate::engine::config::CacheType;
use crate::engine::config::placement::{GpuLayers, Placement};
use crate::engine::config::speculation::SpeculationConfig;
use crate::engine::llama::load;

fn setting((flash_attn, kv_unified): (bool, bool)) -> ContextSetting {
    ContextSetting { flash_attn, kv_unified, cache_type_k: CacheType::F16, cache_type_v: CacheType::F16 }
}

fn candidate(switches: (bool, bool), cost_ms: f64, outcome: MeasureOutcome) -> TriedSetting {
    TriedSetting { setting: setting(switches), figures: Figures::default(), cost_ms, outcome, costs: None }
}

#[test]
fn takes_the_expected_setting_unless_another_is_clearly_cheaper() {
    let check = |costs: &[Option<f64>], expected| {
        let of = |cost: &Option<f64>| match cost {
            Some(cost) => candidate((false, false), *cost, MeasureOutcome::Whole),
            None => candidate((false, false), 0.0, MeasureOutcome::Failed("no memory".to_owned())),
        };
        assert_eq!(choose(&costs.iter().map(of).collect::<Vec<_>>()), expected, "{costs:?}");
    };
    check(&[Some(100.0)], 0);
    check(&[Some(100.0), Some(98.0)], 0);
    check(&[Some(100.0), Some(96.0)], 1);
    check(&[Some(100.0), Some(80.0)], 1);
    check(&[Some(100.0), Some(80.0), Some(60.0)], 2);
    check(&[None, Some(1000.0)], 1);
    check(&[Some(100.0), None], 0);
    check(&[None, None], 0);
    let mut busy =
        [candidate((false, false), 100.0, MeasureOutcome::Whole), candidate((true, true), 1.0, MeasureOutcome::Whole)];
    assert_eq!(choose(&busy), 1);
    busy[0].outcome = MeasureOutcome::Disturbed;
    assert_eq!(choose(&busy), 0, "measurements of a busy machine are ignored");
    let behind =
        [candidate((false, false), 100.0, MeasureOutcome::Whole), candidate((true, true), 1.0, MeasureOutcome::Behind)];
    assert_eq!(choose(&behind), 0);
}

#[test]
fn a_second_measurement_counts_only_if_it_is_better() {
    let mut tried = candidate((false, false), 100.0, MeasureOutcome::Whole);
    tried.keep_better(candidate((false, false), 120.0, MeasureOutcome::Whole));
    tried.keep_better(candidate((false, false), 10.0, MeasureOutcome::Failed("busy".to_owned())));
    assert_eq!(tried.cost_ms, 100.0);
    tried.keep_better(candidate((false, false), 90.0, MeasureOutcome::Whole));
    assert_eq!(tried.cost_ms, 90.0);
    let mut failed = candidate((false, false), 0.0, MeasureOutcome::Failed("busy".to_owned()));
    failed.keep_better(candidate((false, false), 90.0, MeasureOutcome::Whole));
    assert_eq!((failed.cost_ms, failed.outcome), (90.0, MeasureOutcome::Whole));
}

#[test]
fn tries_only_settings_that_are_not_given() {
    let base = EngineConfig::default();
    let on_gpu = Placement { n_gpu_layers: GpuLayers::Count(9), ..Placement::default() };
    let switches = |setting: &ContextSetting| (setting.flash_attn, setting.kv_unified);
    let check = |config: &EngineConfig, expected: &[(bool, bool)]| {
        assert_eq!(settings(config, Bf16::Native).iter().map(switches).collect::<Vec<_>>(), expected)
    };
    check(&base, &[(false, false), (false, true), (true, false), (true, true)]);
    check(
        &EngineConfig { placement: on_gpu, ..base.clone() },
        &[(true, true), (true, false), (false, true), (false, false)],
    );
    check(&EngineConfig { flash_attn: Switch::On, ..base.clone() }, &[(true, false), (true, true)]);
    check(&EngineConfig { kv_unified: Switch::On, ..base.clone() }, &[(false, true), (true, true)]);
    check(&EngineConfig { cache_type_v: CacheType::Q8_0, ..base.clone() }, &[(true, false), (true, true)]);
    check(&EngineConfig { n_slots: 1, ..base.clone() }, &[(false, false), (true, false)]);
    check(&EngineConfig { flash_attn: Switch::Off, kv_unified: Switch::Off, ..base }, &[(false, false)]);
}

#[test]
fn tries_bf16_only_with_type_auto_and_native_support() {
    use super::Bf16::{Converted, Native};
    use CacheType::{Auto, Bf16 as B16, F16, Q8_0};
    let base = EngineConfig { flash_attn: Switch::Off, n_slots: 1, ..EngineConfig::default() };
    let of = |k, v| EngineConfig { cache_type_k: k, cache_type_v: v, ..base.clone() };
    let types = |config: &EngineConfig, bf16| {
        let found = settings(config, bf16);
        found.iter().map(|setting| (setting.cache_type_k, setting.cache_type_v)).collect::<Vec<_>>()
    };
    assert_eq!(types(&of(Auto, Auto), Native), [(F16, F16), (B16, B16)]);
    assert_eq!(types(&of(Auto, Q8_0), Native), [(F16, Q8_0), (B16, Q8_0)]);
    assert_eq!(types(&of(F16, F16), Native), [(F16, F16)]);
    assert_eq!(types(&of(Auto, Auto), Converted), [(F16, F16)]);
    let shifts = ShiftConfig { cache_reuse_tokens: 256, ..ShiftConfig::default() };
    assert_eq!(types(&EngineConfig { shifts, ..of(Auto, Auto) }, Native), [(F16, F16)]);
    let placement = Placement { n_gpu_layers: GpuLayers::Count(9), ..Placement::default() };
    assert_eq!(types(&EngineConfig { placement, ..of(Auto, Auto) }, Native), [(F16, F16)]);
}

#[test]
fn bf16_is_used_if_it_is_measured_to_be_faster() {
    let auto =
        EngineConfig { cache_type_k: CacheType::Auto, cache_type_v: CacheType::Auto, ..config(Preset::Tiny, None) };
    let model = load(&auto, Box::new(|_| true)).unwrap();
    let bf16 =
        ContextSetting { cache_type_k: CacheType::Bf16, cache_type_v: CacheType::Bf16, ..setting((false, false)) };
    let tried = measure::measure(&model, &with(&auto, bf16), limit(f64::MAX, EXPECTED_TIME, &|| false));
    assert_eq!(tried.setting, bf16);
    assert!(matches!(tried.outcome, MeasureOutcome::Whole | MeasureOutcome::Disturbed), "{tried:?}");
    let settled = with(&auto, tried.setting);
    assert_eq!((settled.cache_type_k, settled.cache_type_v), (CacheType::Bf16, CacheType::Bf16));
}

#[test]
fn the_machine_of_decision_0000_chooses_separate_buffers_without_flash_attention() {
    // Source: docs/decisions/0000-measured-before.md, eight slots of 2,048 tokens.
    let figures = |one: f64, all: f64, suffix: f64, cold: f64| Figures {
        decode_one_ms: Some(one),
        decode_all_ms: Some(all),
        suffix_ms: Some(suffix),
        cold_ms: Some(cold),
        cold_tokens: 256,
        cached_tokens: 2048,
        n_slots: 8,
        ..Figures::default()
    };
    let split = figures(7.5, 34.0, 50.0, 266.0);
    let unified = figures(29.0, 116.0, 150.0, 1530.0);
    let split_flash = figures(28.0, 170.0, 312.0, 219.0);
    for other in [unified, split_flash] {
        assert!(split.cost_ms() < 0.5 * other.cost_ms(), "{} {}", split.cost_ms(), other.cost_ms());
    }
    let begun = Figures { decode_one_ms: Some(29.0), ..Figures::default() };
    assert!(begun.cost_ms() > split.cost_ms(), "the first measurement already decides: {}", begun.cost_ms());
}

#[test]
fn rounds_suffixes_up_if_a_whole_tile_is_cheaper() {
    // 154 tokens/s below a tile, 1,110 from it up.
    assert_eq!(rounding(208.0, 58.0), Some(SuffixRounding { from_tokens: 10, to_tokens: 64 }));
    assert_eq!(rounding(35.0, 65.0), None);
    assert_eq!(rounding(32.0, 58.0), None);
    assert_eq!(rounding(100.0, 0.0), None);
    assert_eq!(rounding(f64::NAN, 1.0), None);
    assert_eq!(rounding(1000.0, 1.0), Some(SuffixRounding { from_tokens: 2, to_tokens: 64 }));
}

fn report() -> SelfTestReport {
    SelfTestReport {
        setting: setting((true, false)),
        origin: FiguresOrigin::Measured,
        took_s: 0.5,
        candidates: vec![candidate((true, false), 1.5, MeasureOutcome::Failed("no memory".to_owned()))],
        costs: Some(StateCosts::default()),
    }
}

#[test]
fn the_key_can_be_computed_on_many_threads_at_once() {
    let key = || ResultKey::of(MODEL, &EngineConfig::default());
    let first = key();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..200).for_each(|_| assert_eq!(key(), first)));
        }
    });
}

#[test]
fn workers_of_a_machine_take_turns() {
    let folder = tempfile::tempdir().unwrap();
    let remembered = Remembered::new(Some(&folder.path().join("not/there/yet")));
    let moment = Duration::from_millis(50);
    let first = remembered.turn(moment).expect("nobody measures");
    assert!(remembered.turn(moment).is_none(), "another worker has the turn");
    std::thread::scope(|scope| {
        let next = scope.spawn(|| remembered.turn(TURN_WAIT_MAX));
        drop(first);
        assert!(next.join().unwrap().is_some(), "the next worker waits until the first has finished");
    });
    assert!(Remembered::new(None).turn(moment).is_none(), "without a folder there is no lock");
}

#[test]
fn a_result_is_not_that_of_a_worker_that_shifts() {
    let shifts = ShiftConfig { cache_reuse_tokens: 256, ..ShiftConfig::default() };
    let shifting = EngineConfig { shifts, ..EngineConfig::default() };
    assert_ne!(ResultKey::of(MODEL, &shifting), ResultKey::of(MODEL, &EngineConfig::default()));
}

#[test]
fn remembers_by_key_and_keeps_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("not/there/yet");
    let remembered = Remembered::new(Some(&below));
    let key = |n: usize| ResultKey(format!("key {n}"));
    assert_eq!(remembered.load(&key(0)), None);
    for n in 0..100 {
        remembered.store(&key(n), &report()).unwrap();
    }
    let expected = SelfTestReport { origin: FiguresOrigin::Remembered, ..report() };
    assert_eq!(remembered.load(&key(99)), Some(expected));
    assert_eq!(remembered.load(&ResultKey("another".to_owned())), None);
    assert_eq!((0..100).filter(|&n| remembered.load(&key(n)).is_some()).count(), 64);
    assert_eq!(std::fs::read_dir(&below).unwrap().count(), 1, "nothing is left behind");
}

#[test]
fn a_busy_machine_is_remembered_for_minutes_and_replaces_no_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let (file, key) = (folder.path().join("self-test.json"), ResultKey("key".to_owned()));
    let remembered = Remembered::new(Some(folder.path()));
    let busy = || SelfTestReport {
        candidates: vec![candidate((true, false), 1.5, MeasureOutcome::Disturbed)],
        costs: None,
        ..report()
    };
    remembered.store(&key, &busy()).unwrap();
    assert!(remembered.load(&key).is_some_and(|known| !known.is_calm()));
    // As if it had been written eleven minutes ago.
    let mut content: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let written_at = &mut content["entries"]["key"][0];
    *written_at = (written_at.as_u64().unwrap() - 660).into();
    std::fs::write(&file, content.to_string()).unwrap();
    assert_eq!(remembered.load(&key), None);

    remembered.store(&key, &report()).unwrap();
    remembered.store(&key, &busy()).unwrap();
    assert!(remembered.load(&key).is_some_and(|known| known.is_calm()));
}

#[test]
fn a_damaged_or_unreadable_file_counts_as_empty() {
    let folder = tempfile::tempdir().unwrap();
    let (file, key) = (folder.path().join("self-test.json"), ResultKey("key".to_owned()));
    let remembered = Remembered::new(Some(folder.path()));
    for damaged in ["", "no json", "{\"entries\": 3}", "[]"] {
        std::fs::write(&file, damaged).unwrap();
        assert_eq!(remembered.load(&key), None);
    }
    remembered.store(&key, &report()).unwrap();
    assert!(remembered.load(&key).is_some());
    let unwritable = Remembered::new(Some(&file));
    assert!(unwritable.store(&key, &report()).is_err());
    assert_eq!(unwritable.load(&key), None);
    let nowhere = Remembered::new(None);
    nowhere.store(&key, &report()).unwrap();
    assert_eq!(nowhere.load(&key), None);
}

fn made(preset: Preset) -> PathBuf {
    cached_model(preset, 1, Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/models"))).unwrap()
}

pub(super) fn config(preset: Preset, cache: Option<PathBuf>) -> EngineConfig {
    let self_test = SelfTest::Run { cache };
    EngineConfig { model: made(preset), n_slots: 2, threads: 1, self_test, ..EngineConfig::default() }
}

const MODEL: Fingerprint = Fingerprint([7; 32]);

#[test]
fn settles_every_kind_of_memory_by_measuring_and_remembers_it() {
    let folder = tempfile::tempdir().unwrap();
    for preset in [Preset::Tiny, Preset::TinySwa, Preset::TinyHybrid, Preset::TinyRecurrent] {
        let config = config(preset, Some(folder.path().join(preset.name())));
        let model = load(&config, Box::new(|_| true)).unwrap();
        let DecidedSettings { config: settled, report, retry } = decide(&model, &config, MODEL);
        let report = report.unwrap();
        assert_eq!(retry.is_some(), !report.is_calm());
        println!("{preset:?} {report:#?}");
        let switch = |on| if on { Switch::On } else { Switch::Off };
        let chosen = (switch(report.setting.flash_attn), switch(report.setting.kv_unified));
        assert_eq!((settled.flash_attn, settled.kv_unified), chosen);
        assert_eq!(report.origin, FiguresOrigin::Measured);
        assert!(
            report.candidates.iter().all(|tried| !matches!(tried.outcome, MeasureOutcome::Failed(_))),
            "{preset:?}"
        );
        if !report.is_calm() {
            // The machine is busy in this test, so the expected setting is chosen.
            assert_eq!(report.setting, setting((false, false)));
            continue;
        }
        assert_eq!(report.candidates.len(), 4);
        let costs = report.costs.unwrap();
        assert!(costs.export_ms_per_token > 0.0 && costs.import_ms_per_token > 0.0 && costs.copy_ms_per_token > 0.0);
        let DecidedSettings { config: again, report: remembered, .. } = decide(&model, &config, MODEL);
        let remembered = remembered.unwrap();
        assert_eq!(remembered.origin, FiguresOrigin::Remembered);
        let outcomes =
            |report: &SelfTestReport| report.candidates.iter().map(|tried| tried.outcome.clone()).collect::<Vec<_>>();
        assert_eq!(outcomes(&remembered), outcomes(&report));
        assert_eq!((again.flash_attn, again.kv_unified), (settled.flash_attn, settled.kv_unified));
        let other = decide(&model, &EngineConfig { threads: 2, ..config }, MODEL);
        assert_eq!(other.report.unwrap().origin, FiguresOrigin::Measured, "other settings are measured again");
    }
}

#[test]
fn small_and_odd_sizes_are_measured_as_well() {
    let base = config(Preset::Tiny, None);
    let model = load(&base, Box::new(|_| true)).unwrap();
    let odd = [
        EngineConfig { n_slots: 1, ..base.clone() },
        EngineConfig { context_tokens_total: 128, ..base.clone() },
        EngineConfig { batch_tokens: 16, ubatch_tokens: 8, ..base.clone() },
        EngineConfig { block_size_tokens: 1, context_tokens_total: 600, ..base.clone() },
        EngineConfig { block_size_tokens: 5000, ..base.clone() },
        EngineConfig { speculation: Some(SpeculationConfig::default()), ..base.clone() },
        EngineConfig { speculation: Some(SpeculationConfig::default()), n_slots: 1, context_tokens_total: 128, ..base },
    ];
    for config in odd {
        for switches in [(false, false), (false, true), (true, false), (true, true)] {
            let tried =
                measure::measure(&model, &with(&config, setting(switches)), limit(f64::MAX, EXPECTED_TIME, &|| false));
            match tried.outcome {
                MeasureOutcome::Whole => {
                    assert!(tried.costs.is_some_and(|costs| costs.export_ms_per_token > 0.0), "{tried:?}");
                    let n_shallow = if config.speculation.is_some() { 3 } else { 0 };
                    assert_eq!(tried.figures.shallow_ms.len(), n_shallow, "{tried:?}");
                }
                MeasureOutcome::Disturbed => {}
                _ => panic!("{tried:?}"),
            }
        }
    }
}

#[test]
fn impossible_settings_are_left_out_and_given_ones_kept() {
    let config = EngineConfig { cache_type_v: CacheType::Q8_0, ..config(Preset::Tiny, None) };
    let model = load(&config, Box::new(|_| true)).unwrap();
    let off = ContextSetting { cache_type_v: CacheType::Q8_0, ..setting((false, false)) };
    let tried = measure::measure(&model, &with(&config, off), limit(f64::MAX, EXPECTED_TIME, &|| false));
    assert!(matches!(tried.outcome, MeasureOutcome::Failed(_)), "quantized values need flash attention: {tried:?}");
    let settled = decide(&model, &EngineConfig { kv_unified: Switch::On, ..config.clone() }, MODEL).config;
    assert_eq!((settled.flash_attn, settled.kv_unified), (Switch::On, Switch::On));
    let DecidedSettings { config: by_rule, report, .. } =
        decide(&model, &EngineConfig { self_test: SelfTest::Skip, ..config }, MODEL);
    assert_eq!((by_rule.flash_attn, by_rule.kv_unified, report), (Switch::On, Switch::Off, None));
}
