//! Tests of the generation fields: defaults, shapes, ranges, limits.

use warmpath_shell::api_error::ApiError as _;

use super::*;
use crate::engine::ProbabilitySource;

fn resolve(body: &str) -> Result<Generation, RequestError> {
    let fields: GenerationFields = serde_json::from_str(body).expect(body);
    let defaults = Generation::default();
    let tokenize = |text: &str| text.bytes().map(u32::from).collect();
    fields.resolve(&CheckContext { n_vocab: 100, tokenize: &tokenize, defaults: &defaults })
}

fn check_refused(body: &str, param: &str, part: &str) {
    let error = resolve(body).expect_err(body);
    assert_eq!(error.param().as_deref(), Some(param), "{body}");
    assert!(error.to_string().contains(part), "{error} does not contain {part}");
}

#[test]
fn fills_absent_and_null_fields_with_the_defaults_of_llama_server() {
    assert_eq!(resolve("{}").unwrap(), Generation::default());
    let nulls = r#"{"temperature": null, "max_tokens": null, "stop": null, "seed": null, "logit_bias": null}"#;
    assert_eq!(resolve(nulls).unwrap(), Generation::default());
}

#[test]
fn an_explicit_minus_one_overrides_the_defaults_of_seed_and_limit() {
    let mut defaults = Generation { max_tokens: Some(7), ..Generation::default() };
    defaults.sampling.seed = Some(42);
    let resolve = |body: &str| {
        let fields: GenerationFields = serde_json::from_str(body).expect(body);
        let basis = CheckContext { n_vocab: 100, tokenize: &|_| Vec::new(), defaults: &defaults };
        let generation = fields.resolve(&basis).expect(body);
        (generation.max_tokens, generation.sampling.seed)
    };
    assert_eq!(resolve("{}"), (Some(7), Some(42)));
    assert_eq!(resolve(r#"{"n_predict": -1, "seed": -1}"#), (None, None));
}

#[test]
fn the_newest_name_of_the_token_limit_takes_precedence() {
    let max_tokens = |body| resolve(body).unwrap().max_tokens;
    assert_eq!(max_tokens(r#"{"max_tokens": 5, "max_completion_tokens": 7, "n_predict": 9}"#), Some(7));
    assert_eq!(max_tokens(r#"{"max_tokens": 5, "n_predict": 9}"#), Some(5));
    assert_eq!(max_tokens(r#"{"n_predict": -1}"#), None);
    assert_eq!(max_tokens(r#"{"max_tokens": 99999999999}"#), Some(u32::MAX));
}

#[test]
fn accepts_stop_as_text_or_array_and_drops_empty_texts() {
    assert_eq!(resolve(r#"{"stop": "a"}"#).unwrap().stop, ["a"]);
    assert_eq!(resolve(r#"{"stop": ["a", "", "b"]}"#).unwrap().stop, ["a", "b"]);
}

#[test]
fn each_choice_has_a_seed_of_its_own_that_is_not_random() {
    let last = u32::MAX - 1;
    let seeds = [(7, 0), (7, 1), (last, 0), (last, 1), (last, 2)].map(|(seed, k)| seed_of_choice(seed, k));
    assert_eq!(seeds, [7, 8, last, 0, 1]);
}

#[test]
fn accepts_any_integer_as_a_seed() {
    let seed = |body| resolve(body).unwrap().sampling.seed;
    assert_eq!(seed(r#"{"seed": 7}"#), Some(7));
    assert_eq!(seed(r#"{"seed": -1}"#), None);
    assert_eq!(seed(r#"{"seed": 4294967295}"#), None);
    assert_eq!(seed(r#"{"seed": 4294967303}"#), Some(7));
    assert_eq!(seed(r#"{"seed": 18446744073709551609}"#), Some(u32::MAX - 6));
    assert_eq!(seed(r#"{"seed": 9223372036854775808}"#), Some(0));
    assert_eq!(seed(r#"{"seed": -9223372036854775801}"#), Some(7));
    assert_eq!(seed(r#"{"seed": 7.0}"#), Some(7));
    assert_eq!(seed(r#"{"seed": 36893488147419103232}"#), Some(0));
    assert_eq!(seed(r#"{"seed": -2}"#), Some(u32::MAX - 1));
    assert_eq!(seed(r#"{"seed": -2}"#), Some(u32::MAX - 1));
}

#[test]
fn accepts_the_probability_fields_of_chats_completions_and_llama_server() {
    let n_top = |body| resolve(body).unwrap().probabilities.map(|wish| wish.n_top);
    assert_eq!(n_top(r#"{"logprobs": true}"#), Some(0));
    assert_eq!(n_top(r#"{"logprobs": true, "top_logprobs": 20}"#), Some(20));
    assert_eq!(n_top(r#"{"logprobs": 0}"#), Some(0));
    assert_eq!(n_top(r#"{"logprobs": 5}"#), Some(5));
    assert_eq!(n_top(r#"{"n_probs": 100}"#), Some(100));
    assert_eq!(n_top(r#"{"logprobs": false, "n_probs": 0, "top_logprobs": 0}"#), None);
    let source = |body| resolve(body).unwrap().probabilities.map(|wish| wish.source);
    assert_eq!(source(r#"{"n_probs": 1, "post_sampling_probs": true}"#), Some(ProbabilitySource::Sampler));
    assert_eq!(source(r#"{"n_probs": 1}"#), Some(ProbabilitySource::Model));
    check_refused(r#"{"top_logprobs": 2}"#, "top_logprobs", "needs `logprobs`");
    check_refused(r#"{"logprobs": true, "top_logprobs": 21}"#, "top_logprobs", "must be 0 to 20");
    check_refused(r#"{"logprobs": -1}"#, "logprobs", "must be 0 to 20");
    check_refused(r#"{"n_probs": -1}"#, "n_probs", "must be 0 to");
}

#[test]
fn a_short_response_may_list_more_tokens_at_each_position() {
    let wish = |body| {
        let fields: GenerationFields = serde_json::from_str(body).expect(body);
        let defaults = Generation::default();
        let basis = CheckContext { n_vocab: 150_000, tokenize: &|_: &str| Vec::new(), defaults: &defaults };
        let generation = fields.resolve(&basis).map_err(|error| error.to_string())?;
        Ok::<_, String>(generation.probabilities.map(|wish| wish.n_top))
    };
    assert_eq!(wish(r#"{"n_probs": 100}"#), Ok(Some(100)));
    assert_eq!(wish(r#"{"n_probs": 256, "n_predict": 128}"#), Ok(Some(256)));
    assert_eq!(wish(r#"{"n_probs": 32768, "max_tokens": 1}"#), Ok(Some(32_768)));
    assert_eq!(wish(r#"{"n_probs": 40000, "n_predict": 0}"#), Ok(Some(40_000)));
    for body in [
        r#"{"n_probs": 101}"#,
        r#"{"n_probs": 256, "n_predict": 129}"#,
        r#"{"n_probs": 32769, "n_predict": 1}"#,
        r#"{"n_probs": 9000000000, "n_predict": 1}"#,
    ] {
        let refusal = wish(body).expect_err(body);
        assert!(refusal.contains("their product is at most 32768"), "{refusal}");
    }
    // No more tokens are listed than the vocabulary has.
    assert_eq!(resolve(r#"{"n_probs": 5000}"#).unwrap().probabilities.map(|wish| wish.n_top), Some(100));
}

#[test]
fn accepts_logit_bias_in_both_forms() {
    let bias = |body| resolve(body).unwrap().sampling.logit_bias;
    assert_eq!(bias(r#"{"logit_bias": {"5": -100, "7": 1.5}}"#), [(5, -100.0), (7, 1.5)]);
    assert_eq!(bias(r#"{"logit_bias": [[5, false], ["AB", 2]]}"#), [(5, f32::NEG_INFINITY), (65, 2.0), (66, 2.0)]);
}

#[test]
fn refuses_a_value_out_of_range_and_names_the_field() {
    check_refused(r#"{"temperature": -0.5}"#, "temperature", "must be 0 to 100; it is -0.5");
    check_refused(r#"{"top_p": 1.01}"#, "top_p", "must be 0 to 1");
    check_refused(r#"{"repeat_penalty": 0}"#, "repeat_penalty", "must be 0.01 to 100");
    check_refused(r#"{"mirostat": 3}"#, "mirostat", "must be 0 to 2");
    check_refused(r#"{"max_tokens": -2}"#, "max_tokens", "at least 0");
    check_refused(r#"{"max_completion_tokens": -2}"#, "max_completion_tokens", "it is -2");
    check_refused(r#"{"logit_bias": {"100": 1}}"#, "logit_bias", "token 100; the vocabulary has 100");
    check_refused(r#"{"grammar": "root ::= \u0000"}"#, "grammar", "NUL");
    check_refused(r#"{"dry_sequence_breakers": [""]}"#, "dry_sequence_breakers", "empty");
}

#[test]
fn refuses_more_than_each_limit() {
    let texts = |n: usize| serde_json::json!({"stop": vec!["x"; n]}).to_string();
    assert!(resolve(&texts(STOP_TEXTS_MAX)).is_ok());
    check_refused(&texts(STOP_TEXTS_MAX + 1), "stop", "at most 32");
    let long = serde_json::json!({"stop": "x".repeat(STOP_TEXT_BYTES_MAX + 1)}).to_string();
    check_refused(&long, "stop", "513 bytes");
    let grammar = serde_json::json!({"grammar": "x".repeat(GRAMMAR_BYTES_MAX + 1)}).to_string();
    check_refused(&grammar, "grammar", "65537 bytes");
    let bias = serde_json::json!({"logit_bias": vec![(1, 1.0); LOGIT_BIAS_MAX + 1]}).to_string();
    check_refused(&bias, "logit_bias", "1025 entries");
    let text = "x".repeat(LOGIT_BIAS_TEXT_BYTES_MAX / 2 + 1);
    let bias = serde_json::json!({"logit_bias": [[text, 1.0], [text, 1.0]]}).to_string();
    check_refused(&bias, "logit_bias", "65538 bytes of text");
    let breakers = serde_json::json!({"dry_sequence_breakers": vec!["x"; DRY_BREAKERS_MAX + 1]}).to_string();
    check_refused(&breakers, "dry_sequence_breakers", "65 texts");
}

#[test]
fn names_the_field_of_a_wrong_type() {
    let error = serde_json::from_str::<GenerationFields>(r#"{"stop": 5}"#).expect_err("a number is not a stop text");
    assert!(error.to_string().contains("a string or an array of strings"), "{error}");
}

#[test]
fn refuses_a_seed_that_is_not_a_whole_number() {
    for seed in ["7.5", "\"7\"", "true", "[7]", "1e39"] {
        let error = serde_json::from_str::<GenerationFields>(&format!("{{\"seed\": {seed}}}")).expect_err(seed);
        assert!(error.to_string().contains("a whole number"), "{error}");
    }
}

#[test]
fn accepts_samplers_by_name_and_by_letter_and_skips_unknown_ones() {
    use crate::engine::SamplerKind::{Dry, Infill, MinP, Penalties, Temperature, TopK, TopP, Typical, Xtc};
    let samplers = |body: &str| resolve(body).expect(body).sampling.samplers;
    assert_eq!(samplers(r#"{"samplers": ["top_k", "top_p", "infill"]}"#), [TopK, TopP, Infill]);
    assert_eq!(samplers(r#"{"samplers": ["Top-K", "tfs_z", "TEMP", "nucleus"]}"#), [TopK, Temperature, TopP]);
    assert_eq!(samplers(r#"{"samplers": "edkypmxt"}"#), [Penalties, Dry, TopK, Typical, TopP, MinP, Xtc, Temperature]);
    assert_eq!(samplers(r#"{"samplers": "k?K"}"#), [TopK]);
    for none in [r#"{"samplers": []}"#, r#"{"samplers": ""}"#, r#"{"samplers": ["x"]}"#] {
        assert_eq!(samplers(none), [], "{none}");
    }
    assert_eq!(samplers(r#"{"samplers": null}"#), crate::engine::SamplerKind::DEFAULT);
    check_refused(&format!("{{\"samplers\": \"{}\"}}", "k".repeat(33)), "samplers", "at most 32");
}

#[test]
fn refuses_a_target_probability_that_would_take_effect() {
    check_refused(r#"{"samplers": ["adaptive_p"], "adaptive_target": 0.5}"#, "adaptive_target", "negative");
    for harmless in [
        r#"{"adaptive_target": 0.5, "adaptive_decay": 0.9}"#,
        r#"{"samplers": "ka", "adaptive_target": -0.01}"#,
        r#"{"samplers": "a", "adaptive_target": 0.5, "mirostat": 2}"#,
    ] {
        assert!(resolve(harmless).is_ok(), "{harmless}");
    }
}

#[test]
fn reads_the_limits_of_infill_responses_like_llama_server() {
    let read = |body: &str| resolve(body).map(|generation| (generation.n_indent, generation.predict_max)).expect(body);
    assert_eq!(read(r#"{"n_indent": 4, "t_max_predict_ms": 250}"#), (4, Some(Duration::from_millis(250))));
    for none in [r#"{"t_max_predict_ms": 0}"#, r#"{"t_max_predict_ms": -1}"#, r#"{"t_max_prompt_ms": 500}"#] {
        assert_eq!(read(none), (0, None), "{none}");
    }
    check_refused(r#"{"n_indent": -1}"#, "n_indent", "0 to 2147483647");
    check_refused(r#"{"t_max_predict_ms": -2}"#, "t_max_predict_ms", "-1 to");
    check_refused(r#"{"min_keep": 4294967295}"#, "min_keep", "0 to 2147483647");
}
