//! Responses that follow JSON schemas: a thousand random ones, validated by another implementation, and hostile ones.
//!
//! Not here: the fields of requests (`worker/tests/http`), the supported part of a schema
//! (`worker/constraint/src/schema`).

use futures::StreamExt;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use warmpath_bench::model::Preset;
use warmpath_constraint::ReasoningFirst;
use warmpath_constraint::schema::normalize;
use warmpath_worker::engine::{EngineConfig, EngineError, EngineHandle, FinishReason, Sampling};

use super::random_schema::random_schema;
use super::support::{Answer, ask, config, start, stop, tokens};

/// Number of random schemas.
const N_SCHEMAS: u64 = 1000;

/// Maximum length of a response; a longer one counts as one that did not end. Units: tokens.
const ANSWER_TOKENS_MAX: u32 = 400;

/// Bias of closing marks if the most likely token is chosen, so that texts and numbers end. Source: above every logit.
const CLOSING_BIAS: f32 = 1000.0;

fn several_slots() -> EngineConfig {
    EngineConfig { n_slots: 8, context_tokens_total: 8 * 1024, queue_max: 64, ..config(Preset::Tiny) }
}

/// Returns the response to a prompt that must follow a schema.
async fn follow(engine: &EngineHandle, schema: &Value, change: impl FnOnce(&mut Sampling)) -> Result<Answer, String> {
    let normal = normalize(schema).map_err(|error| format!("{}: {error}", error.path))?;
    let mut request = ask(&tokens(7, 20), ANSWER_TOKENS_MAX);
    request.generation.ignore_eos = false;
    request.generation.schema = Some(engine.compiler()?.compile(&normal)?);
    change(&mut request.generation.sampling);
    let answer = request.submit(engine).map_err(|error| error.to_string())?.answer().await;
    match &answer.failed {
        Some(error) => Err(error.to_string()),
        None => Ok(answer),
    }
}

/// Returns the parameters of the `idx`-th case: random, or the most likely token with a bias for the end of a response.
fn style(idx: u64, is_bounded: bool) -> Sampling {
    let seed = u32::try_from(idx).ok();
    if is_bounded && !idx.is_multiple_of(4) {
        return Sampling { temperature: 100.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed, ..Sampling::default() };
    }
    let closing = b"\"}]".iter().map(|byte| (u32::from(*byte), CLOSING_BIAS));
    let following = b",:DY".iter().map(|byte| (u32::from(*byte), CLOSING_BIAS / 2.0));
    Sampling { temperature: 0.0, logit_bias: closing.chain(following).collect(), ..Sampling::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_random_schemas_are_followed() {
    let (engine, _updates) = start(several_slots());
    let outcomes = futures::stream::iter(0..N_SCHEMAS).map(|idx| run_random(&engine, idx)).buffer_unordered(16);
    let n_cut = outcomes.filter(|is_cut| std::future::ready(*is_cut)).count().await;
    println!("{n_cut} of {N_SCHEMAS} responses were cut off at {ANSWER_TOKENS_MAX} tokens");
    assert!(n_cut * 50 < N_SCHEMAS as usize, "{n_cut} responses did not end");
    stop(engine).await;
}

/// Runs the `idx`-th random schema, checks its response, and returns whether it was cut off.
async fn run_random(engine: &EngineHandle, idx: u64) -> bool {
    let made = random_schema(&mut ChaCha8Rng::seed_from_u64(idx));
    let schema = &made.schema;
    let answer = follow(engine, schema, |sampling| *sampling = style(idx, made.is_bounded)).await;
    let answer = answer.unwrap_or_else(|error| panic!("{idx}: {error}\n{schema}"));
    if answer.finished.as_ref().map(|finished| finished.reason) == Some(FinishReason::Length) {
        return true;
    }
    let text = &answer.text;
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{idx}: {error}\n{text}\n{schema}"));
    let validator = jsonschema::options().should_validate_formats(true).build(schema);
    let validator = validator.unwrap_or_else(|error| panic!("{idx}: {error}\n{schema}"));
    if let Err(error) = validator.validate(&value) {
        panic!("{idx}: {error}\n{text}\n{schema}");
    }
    false
}

#[tokio::test]
async fn an_answer_ends_when_it_is_complete_and_only_then() {
    let (engine, _updates) = start(several_slots());
    let n_vocab = engine.facts().n_vocab;
    let ends: Vec<(u32, f32)> = (n_vocab - 12..n_vocab).map(|token| (token, 1e6)).collect();
    let object = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": false});
    let eager = follow(&engine, &object, |sampling| sampling.logit_bias = ends).await.unwrap();
    let value: Value = serde_json::from_str(&eager.text).unwrap();
    assert!(value == json!({"a": "x"}) || value == json!({"a": "y"}), "{value}");
    assert_eq!(eager.finished.unwrap().reason, FinishReason::EndOfGeneration);

    let control: Vec<u32> = (n_vocab - 12..n_vocab).collect();
    assert_eq!(
        eager.tokens.iter().filter(|token| control.contains(token)).count(),
        1,
        "only the end is a control token"
    );
    let reluctant =
        |sampling: &mut Sampling| sampling.logit_bias = control.iter().map(|t| (*t, f32::NEG_INFINITY)).collect();
    let answer = follow(&engine, &object, reluctant).await.unwrap();
    assert_eq!(answer.finished.unwrap().reason, FinishReason::EndOfGeneration);
    stop(engine).await;
}

#[tokio::test]
async fn the_schema_is_followed_however_tokens_are_chosen() {
    let (engine, _updates) = start(several_slots());
    let schema = json!({"type": "array", "items": {"enum": ["one", "two", 3]}, "minItems": 3, "maxItems": 3});
    let changes: [fn(&mut Sampling); 8] = [
        |s| s.temperature = 0.0,
        |s| *s = Sampling { temperature: 5.0, seed: Some(3), ..Sampling::default() },
        |s| *s = Sampling { mirostat: 1, seed: Some(3), ..Sampling::default() },
        |s| *s = Sampling { mirostat: 2, seed: Some(3), ..Sampling::default() },
        |s| *s = Sampling { typical_p: 0.2, top_n_sigma: 1.0, seed: Some(3), ..Sampling::default() },
        |s| *s = Sampling { xtc_probability: 1.0, xtc_threshold: 0.0, seed: Some(3), ..Sampling::default() },
        |s| *s = Sampling { dry_multiplier: 2.0, repeat_penalty: 5.0, frequency_penalty: 9.0, ..Sampling::default() },
        |s| s.logit_bias = vec![(u32::from(b'"'), -1e6), (u32::from(b'['), -1e6)],
    ];
    for (idx, change) in changes.into_iter().enumerate() {
        let answer = follow(&engine, &schema, change).await.unwrap_or_else(|error| panic!("{idx}: {error}"));
        let value: Value =
            serde_json::from_str(&answer.text).unwrap_or_else(|error| panic!("{idx}: {error} {}", answer.text));
        assert!(jsonschema::is_valid(&schema, &value), "{idx}: {value}");
    }
    let banned = |s: &mut Sampling| s.logit_bias = (0..200).map(|token| (token, f32::NEG_INFINITY)).collect();
    let refused = follow(&engine, &json!({"const": "[]"}), banned).await.unwrap_err();
    assert!(refused.contains("left no token to choose"), "{refused}");
    stop(engine).await;
}

/// Returns parameters with nearly equal probabilities, except for biases.
fn flat(seed: u32, logit_bias: Vec<(u32, f32)>) -> Sampling {
    let seed = Some(seed);
    Sampling { temperature: 100.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed, logit_bias, ..Sampling::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasoning_precedes_a_schema_and_does_not_end_the_answer() {
    let (engine, _updates) = start(several_slots());
    let n_vocab = engine.facts().n_vocab;
    // The last tokens of the model's vocabulary; the second of its control tokens ends a response.
    let (opening, closing, end) = (n_vocab - 2, n_vocab - 1, n_vocab - 10);
    let schema = json!({
        "type": "object",
        "properties": { "a": { "enum": ["x", "yy", 3] }, "b": { "type": "boolean" } },
        "required": ["a", "b"],
        "additionalProperties": false,
    });
    let validator = jsonschema::validator_for(&schema).unwrap();
    let normal = normalize(&schema).unwrap_or_else(|error| panic!("{error:?}"));
    let (mut n_thought, mut n_silent, mut longest) = (0, 0, 0);
    for (seed, opens) in (0..24).zip([false, true].into_iter().cycle()) {
        let mut request = ask(&tokens(7, 20), ANSWER_TOKENS_MAX);
        request.generation.ignore_eos = false;
        request.generation.schema = Some(engine.compiler().unwrap().compile(&normal).unwrap());
        let first = ReasoningFirst { opening: opens.then_some(opening), ends: vec!["</think>".to_owned()] };
        request.generation.reasoning = Some(first);
        request.generation.sampling = flat(seed, vec![(closing, 500.0), (opening, 200.0), (end, 1000.0)]);
        let answer = request.submit(&engine).unwrap().answer().await;
        let reason = answer.finished.as_ref().map(|finished| finished.reason);
        assert_eq!(reason, Some(FinishReason::EndOfGeneration), "{:?}", answer.text);
        let has_opened = answer.tokens[0] == opening;
        let json = if opens && !has_opened {
            n_silent += 1;
            answer.text.as_str()
        } else {
            n_thought += 1;
            let (reasoning, json) = answer.text.split_once("</think>").expect("the thoughts end");
            longest = longest.max(reasoning.len());
            json
        };
        let value: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {:?}", answer.text));
        assert!(validator.is_valid(&value), "{:?}", answer.text);
    }
    assert!(n_thought > 12 && n_silent > 0 && longest > 50, "{n_thought} thought, {n_silent} did not, {longest} bytes");
    stop(engine).await;
}

#[tokio::test]
async fn text_in_one_token_with_the_end_of_reasoning_belongs_to_the_schema() {
    let (engine, _updates) = start(several_slots());
    let normal = normalize(&json!({ "enum": ["aXbYc", "aXbYd"] })).unwrap_or_else(|error| panic!("{error:?}"));
    let ask_with = async |end: &str| {
        let mut request = ask(&tokens(7, 20), 40);
        request.generation.ignore_eos = false;
        request.generation.schema = Some(engine.compiler().unwrap().compile(&normal).unwrap());
        request.generation.reasoning = Some(ReasoningFirst { opening: None, ends: vec![end.to_owned()] });
        // // `</think>` is one token. After reasoning that ends with `</thin`, `k>` is missing; after reasoning that
        // ends with
        // `</think>`, nothing is.
        request.generation.sampling.logit_bias = vec![(engine.facts().n_vocab - 1, 1000.0)];
        request.submit(&engine).unwrap().answer().await
    };
    let right = ask_with("</think>").await;
    assert!(right.failed.is_none() && right.text.starts_with("</think>\"aXbY"), "{:?}", right.text);
    let wrong = ask_with("</thin").await;
    assert!(
        wrong.failed.is_some_and(|error| error.to_string().contains("right after the reasoning")),
        "{:?}",
        wrong.text
    );
    stop(engine).await;
}

#[tokio::test]
async fn a_schema_cannot_be_combined_with_a_grammar_or_ignored_ends() {
    let (engine, _updates) = start(several_slots());
    let schema = engine.compiler().unwrap().compile(&json!({"const": 1})).unwrap();
    let mut request = ask(&tokens(1, 5), 5);
    request.generation.schema = Some(schema);
    assert!(matches!(request.submit(&engine).err(), Some(EngineError::Sampler { .. })), "ignore_eos");
    request.generation.ignore_eos = false;
    request.generation.sampling.grammar = Some("root ::= \"1\"".to_owned());
    assert!(matches!(request.submit(&engine).err(), Some(EngineError::Sampler { .. })), "a grammar");
    stop(engine).await;
}

/// Returns schemas that take much work, each refused or followed for a while; other compilers end with them, too.
fn hostile() -> Vec<Value> {
    let object =
        |k: usize, i: usize| json!({"type": "object", "properties": {format!("a{k}_{i}"): {"type": "integer"}}});
    let product: Vec<Value> =
        (0..8).map(|k| json!({"anyOf": (0..10).map(|i| object(k, i)).collect::<Vec<_>>()})).collect();
    let doubling: serde_json::Map<String, Value> = (0..60)
        .map(|i| {
            let next = json!({"$ref": format!("#/$defs/a{}", i + 1)});
            (format!("a{i}"), json!({"allOf": [next, {"type": "object", "properties": {"x": next, "y": next}}]}))
        })
        .chain([("a60".to_owned(), json!({"type": "object"}))])
        .collect();
    let chain: serde_json::Map<String, Value> = (0..900)
        .map(|i| (format!("a{i}"), json!({"items": {"allOf": [{"$ref": format!("#/$defs/a{}", i + 1)}]}})))
        .chain([("a900".to_owned(), json!({}))])
        .collect();
    let steps = [7, 11, 13, 17, 19, 23].map(|step| json!({"type": "integer", "multipleOf": step}));
    let pattern = |pattern: &str| json!({"type": "string", "pattern": pattern});
    vec![
        json!({"allOf": product}),
        json!({"$ref": "#/$defs/a0", "$defs": doubling}),
        json!({"$ref": "#/$defs/a0", "$defs": chain}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"], "additionalProperties": false}),
        pattern("^(a|b)*a(a|b){16}$"),
        pattern("^((a{60}){60})$"),
        pattern("^(a+)(b+)(a|aa)+$"),
        pattern(&format!("^{}$", "[ab]?".repeat(100))),
        pattern(&format!("{}a{}", "(".repeat(200), ")".repeat(200))),
        pattern(&"(".repeat(200)),
        pattern(&format!("^{}$", "(a|b|c|[d-z]+)".repeat(140))),
        pattern("(\\p{L}|\\p{N}){1,100}x(\\p{L}|\\p{N}){1,100}"),
        pattern("(?=a)b\\1"),
        pattern("\u{0}"),
        pattern("[z-a]"),
        json!({"allOf": (0..20).map(|i| pattern(&format!(".*[a-z]{{{i},{}}}x.*{i}", i + 20))).collect::<Vec<_>>()}),
        json!({"allOf": steps}),
        json!({"type": "string", "minLength": 1_000_000}),
        json!({"type": "array", "minItems": 1_000, "items": {"type": "array", "minItems": 1_000, "items": {"type": "integer"}}}),
        json!({"type": "object", "minProperties": 1, "maxProperties": 1_000_000}),
        json!({"type": "object", "properties": (0..900).map(|i| (format!("p{i}"), json!({}))).collect::<serde_json::Map<_, _>>()}),
        json!({"enum": (0..5000).map(|i| format!("value number {i}")).collect::<Vec<_>>()}),
        json!({"const": "x".repeat(200_000)}),
        json!({"const": (0..4999).collect::<Vec<_>>()}),
        json!({"oneOf": (0..1000).map(|i| json!({"const": i})).collect::<Vec<_>>()}),
        json!({"type": "number", "minimum": -1e18, "maximum": 1e-18}),
        json!({"type": "number", "minimum": 5e18}),
        json!({"type": "integer", "minimum": 5, "maximum": 4}),
        json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        json!({"enum": ["é".repeat(60)], "type": "integer"}),
        json!({"type": "object", "patternProperties": {"^(a|b)*a(a|b){12}$": {}, "^(a|b)*b(a|b){12}$": {}}}),
        json!(false),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_schemas_are_refused_or_followed_and_the_engine_continues() {
    let (engine, _updates) = start(several_slots());
    for schema in hostile() {
        let outcome = follow(&engine, &schema, |sampling| *sampling = style(1, true)).await;
        if let Err(reason) = outcome {
            assert!(reason.len() < 1000 && !reason.contains("panic"), "{reason}");
        }
    }
    let answer = follow(&engine, &json!({"const": "fine"}), |_| {}).await.unwrap();
    assert_eq!(answer.text, "\"fine\"");
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutilated_schemas_are_refused_or_followed_and_the_engine_continues() {
    let (engine, _updates) = start(several_slots());
    let cases = futures::stream::iter(0..400).map(|idx| {
        let engine = &engine;
        async move {
            let mut rng = ChaCha8Rng::seed_from_u64(idx);
            let mut schema = random_schema(&mut rng).schema;
            (0..rng.random_range(1..3)).for_each(|_| mutilate(&mut schema, &mut rng));
            let outcome = follow(engine, &schema, |sampling| *sampling = style(0, true)).await;
            if let Err(reason) = &outcome {
                assert!(reason.len() < 1000 && !reason.contains("panic"), "{reason}");
            }
            outcome.is_ok()
        }
    });
    let n_followed = cases.buffer_unordered(16).filter(|is_ok| std::future::ready(*is_ok)).count().await;
    assert!((40..360).contains(&n_followed), "{n_followed} were followed, so the test proves nothing");
    stop(engine).await;
}

/// Replaces a random part of a schema with something else.
fn mutilate(schema: &mut Value, rng: &mut ChaCha8Rng) {
    let n_inner = match schema {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if n_inner > 0 && rng.random_range(0..4) > 0 {
        let idx = rng.random_range(0..n_inner);
        let inner = match schema {
            Value::Array(items) => items.get_mut(idx),
            Value::Object(fields) => fields.values_mut().nth(idx),
            _ => None,
        };
        if let Some(inner) = inner {
            return mutilate(inner, rng);
        }
    }
    let others = [
        json!(null),
        json!(-1),
        json!(1e300),
        json!("\u{0}"),
        json!({}),
        json!([]),
        json!(true),
        json!({"$ref": "#"}),
        json!({"type": "string", "pattern": "^[a-z]*$"}),
        json!([{"type": "null"}]),
        json!(9),
        json!("é("),
        json!({"not": {}}),
    ];
    *schema = others[rng.random_range(0..others.len())].clone();
}

#[tokio::test]
async fn an_answer_whose_schema_takes_too_much_work_fails_alone() {
    let (engine, _updates) = start(several_slots());
    let heavy = json!({"type": "string", "pattern": format!("^{}$", "[ab]?".repeat(400))});
    let light = json!({"type": "array", "items": {"const": 1}, "minItems": 20, "maxItems": 20});
    let (failed, fine) =
        tokio::join!(follow(&engine, &heavy, |sampling| *sampling = style(0, true)), follow(&engine, &light, |_| {}),);
    let reason = failed.unwrap_err();
    assert!(reason.contains("the schema cannot be followed"), "{reason}");
    assert_eq!(serde_json::from_str::<Vec<u8>>(&fine.unwrap().text).unwrap(), [1; 20]);
    stop(engine).await;
}
