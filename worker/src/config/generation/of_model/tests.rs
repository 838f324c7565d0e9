//! Tests of the defaults in a model's file: their precedence, their types and ranges.

use super::*;
use crate::config::generation::{GenerationFlags, GivenDefaults};

/// Returns the defaults of a file with these values.
fn of_file(values: impl IntoIterator<Item = (&'static str, MetadataValue)>) -> ModelDefaults {
    let mut defaults = ModelDefaults::default();
    for (name, value) in values {
        defaults.add(format!("{PREFIX}{name}"), Some(value));
    }
    defaults
}

fn float(value: f32) -> MetadataValue {
    MetadataValue::Float(value.into())
}

fn text(value: &str) -> MetadataValue {
    MetadataValue::Str(value.to_owned())
}

#[test]
fn each_key_sets_the_field_of_the_same_meaning() {
    let defaults = of_file([
        ("sequence", text("top_k;temperature")),
        ("top_k", MetadataValue::Int(7)),
        ("top_p", float(0.5)),
        ("min_p", float(0.25)),
        ("xtc_probability", float(0.125)),
        ("xtc_threshold", float(0.3)),
        ("temp", float(0.6)),
        ("penalty_last_n", MetadataValue::Int(-1)),
        ("penalty_repeat", float(1.1)),
        ("mirostat", MetadataValue::Int(2)),
        ("mirostat_tau", float(4.0)),
        ("mirostat_eta", float(0.2)),
    ]);
    assert_eq!(defaults.unusable(), []);
    let sampling = defaults.generation().sampling;
    assert_eq!(sampling.samplers, [SamplerKind::TopK, SamplerKind::Temperature]);
    assert_eq!((sampling.top_k, sampling.top_p, sampling.min_p), (7, 0.5, 0.25));
    assert_eq!((sampling.xtc_probability, sampling.xtc_threshold, sampling.temperature), (0.125, 0.3, 0.6));
    assert_eq!((sampling.repeat_last_n, sampling.repeat_penalty), (-1, 1.1));
    assert_eq!((sampling.mirostat, sampling.mirostat_tau, sampling.mirostat_eta), (2, 4.0, 0.2));
    let named: Vec<_> = defaults.fields().map(|(field, value)| format!("{field} {value}")).collect();
    assert!(named.contains(&"temperature 0.6".to_owned()), "{named:?}");
}

#[test]
fn a_flag_precedes_the_file_and_the_file_the_built_in_default() {
    let built_in = Generation::default().sampling.temperature;
    for (flag, file, expected) in [
        (None, None, built_in),
        (None, Some(0.5), 0.5),
        (Some(0.25), None, 0.25),
        (Some(0.25), Some(0.5), 0.25),
        (Some(built_in), Some(0.5), built_in),
    ] {
        let flags = GenerationFlags { temperature: flag, ..GenerationFlags::default() };
        let given = GivenDefaults::new(&flags).expect("the flag is in its range");
        let got = given.over(&of_file(file.map(|value| ("temp", float(value)))));
        assert_eq!(got.sampling.temperature, expected, "flag {flag:?}, file {file:?}");
        assert_eq!(given.has("temperature"), flag.is_some());
        assert_eq!(got.sampling.top_k, Generation::default().sampling.top_k);
    }
}

#[test]
fn letters_of_samplers_on_the_command_line_precede_the_sequence_of_the_file() {
    let flags = GenerationFlags { sampler_seq: Some("k".to_owned()), ..GenerationFlags::default() };
    let given = GivenDefaults::new(&flags).expect("letters");
    let got = given.over(&of_file([("sequence", text("temperature"))]));
    assert_eq!(got.sampling.samplers, [SamplerKind::TopK]);
}

#[test]
fn a_value_that_no_request_may_have_is_not_used_and_the_reason_is_told() {
    for (name, value, reason) in [
        ("temp", float(f32::NAN), "NaN is not a number"),
        ("temp", float(f32::INFINITY), "inf is not a number"),
        ("temp", float(-1.0), "`temperature` must be 0 to 100; it is -1"),
        ("temp", text("0.7"), "0.7 is not a number"),
        ("temp", MetadataValue::Bool(true), "true is not a number"),
        ("top_p", float(1.5), "`top_p` must be 0 to 1"),
        ("top_k", MetadataValue::Int(-2), "`top_k` must be -1"),
        ("top_k", MetadataValue::Int(i64::MAX), "9223372036854775807"),
        ("top_k", float(0.5), "0.5"),
        ("penalty_repeat", float(0.0), "`repeat_penalty` must be 0.01"),
        ("mirostat", MetadataValue::Int(3), "`mirostat` must be 0 to 2"),
        ("mirostat", MetadataValue::Int(-1), "-1"),
        ("sequence", text("tfs_z;nonsense"), "\"tfs_z;nonsense\" names no sampler"),
        ("sequence", text(""), "names no sampler"),
        ("sequence", MetadataValue::Int(1), "1 is not a text"),
        ("top_n_sigma", float(1.0), "there is no such default"),
    ] {
        let defaults = of_file([(name, value.clone()), ("min_p", float(0.25))]);
        let [unusable] = defaults.unusable() else { panic!("{name} {value}: {defaults:?}") };
        assert_eq!(unusable.key, format!("{PREFIX}{name}"));
        assert!(unusable.reason.contains(reason), "{name} {value}: {}", unusable.reason);
        let mut expected = Generation::default();
        expected.sampling.min_p = 0.25;
        assert_eq!(defaults.generation(), expected, "{name} {value}");
    }
}

#[test]
fn a_list_is_not_used() {
    let mut defaults = ModelDefaults::default();
    defaults.add(format!("{PREFIX}sequence"), None);
    assert_eq!(defaults.unusable()[0].reason, "it is a list");
    assert_eq!(defaults.generation(), Generation::default());
}

#[test]
fn unknown_samplers_are_left_out_and_named() {
    let defaults = of_file([("sequence", text("tfs_z;top-k;Temperature"))]);
    assert_eq!(defaults.generation().sampling.samplers, [SamplerKind::TopK, SamplerKind::Temperature]);
    assert_eq!(defaults.unusable()[0].reason, "there is no sampler [\"tfs_z\"]");
}

#[test]
fn whole_numbers_may_be_floats() {
    let defaults = of_file([("top_k", float(64.0)), ("temp", MetadataValue::Int(1))]);
    let sampling = defaults.generation().sampling;
    assert_eq!((defaults.unusable().len(), sampling.top_k, sampling.temperature), (0, 64, 1.0));
}
