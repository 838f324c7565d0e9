//! Arguments of required calls follow their schemas, like responses with `response_format`: a validator checks
//! responses of a model that chooses every allowed token with the same probability.

use jsonschema::validator_for;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::harness::{TestWorker, user};
use crate::random_schema::random_schema;
use crate::tool_parameters::{ask, object_of};

const CHAT: &str = "/v1/chat/completions";

fn arguments_of(call: &Value) -> Value {
    let text = call["function"]["arguments"].as_str().expect("arguments are a text");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[tokio::test]
async fn arguments_of_random_schemas_are_valid() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let (mut n_called, mut n_asked) = (0, 0);
    for seed in 0..120 {
        let random = random_schema(&mut ChaCha8Rng::seed_from_u64(seed));
        if !random.is_bounded {
            continue;
        }
        let schema = object_of(random.schema);
        let (status, answer) = worker.try_ask(CHAT, &ask(&schema, "required", seed)).await;
        assert_eq!(status, 200, "{schema}: {answer}");
        n_asked += 1;
        let choice = &answer["choices"][0];
        if choice["finish_reason"] != "tool_calls" {
            continue;
        }
        n_called += 1;
        let arguments = arguments_of(&choice["message"]["tool_calls"][0]);
        let validator = validator_for(&schema).expect("the schema is one");
        assert!(validator.is_valid(&arguments), "{schema}: {arguments}");
    }
    assert!(n_called * 2 > n_asked && n_called > 20, "{n_called} of {n_asked} responses are complete calls");
}

#[tokio::test]
async fn the_schema_is_followed_however_a_call_is_required() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let schema = json!({
        "type": "object",
        "properties": {
            "code": {"type": "string", "pattern": "^\\d{3}-\\d{2}$"},
            "share": {"type": "number", "minimum": 0.25, "exclusiveMaximum": 0.5},
            "list": {"type": "array", "items": {"type": "integer", "multipleOf": 5, "maximum": 10}, "minItems": 2, "maxItems": 3},
        },
        "required": ["code", "share", "list"],
    });
    let validator = validator_for(&schema).expect("the schema is one");
    let check = |arguments: &Value| assert!(validator.is_valid(arguments), "{arguments}");
    let named = json!({"type": "function", "function": {"name": "f"}});
    for (choice, parallel) in [(json!("required"), false), (json!("required"), true), (named, false)] {
        let mut body = ask(&schema, "required", 5);
        body["tool_choice"] = choice;
        body["parallel_tool_calls"] = json!(parallel);
        let answer = worker.ask(CHAT, body).await;
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array().expect("there are calls").clone();
        let n_whole = if answer["choices"][0]["finish_reason"] == "length" { calls.len() - 1 } else { calls.len() };
        assert!(n_whole > 0, "{answer}");
        calls[..n_whole].iter().for_each(|call| check(&arguments_of(call)));
    }
    for choice in [json!({"type": "any"}), json!({"type": "tool", "name": "f"})] {
        let body = json!({
            "model": "tiny", "max_tokens": 400, "messages": user("Go on."), "temperature": 1.0, "top_k": 0,
            "tools": [{"name": "f", "input_schema": schema}], "tool_choice": choice,
        });
        let answer = worker.ask("/v1/messages", body).await;
        let calls = answer["content"].as_array().expect("blocks").iter().filter(|block| block["type"] == "tool_use");
        let inputs: Vec<&Value> = calls.map(|block| &block["input"]).collect();
        assert!(!inputs.is_empty(), "{answer}");
        check(inputs[0]);
    }
    let body = json!({
        "model": "tiny", "max_output_tokens": 400, "input": "Go on.", "temperature": 1.0,
        "tools": [{"type": "function", "name": "f", "parameters": schema}], "tool_choice": "required",
    });
    let answer = worker.ask("/v1/responses", body).await;
    let calls = answer["output"].as_array().expect("items").iter().find(|item| item["type"] == "function_call");
    let arguments = calls.and_then(|call| call["arguments"].as_str()).expect("a call");
    check(&serde_json::from_str(arguments).expect("arguments are JSON"));
}

#[tokio::test]
async fn unsupported_keywords_are_refused_for_required_calls_and_ignored_for_others() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "items": {}, "uniqueItems": true}}});
    let mut body = ask(&schema, "required", 1);
    let (status, answer) = worker.try_ask(CHAT, &body).await;
    let param = "tools[0].function.parameters.properties.a.uniqueItems";
    assert_eq!((status, answer["error"]["param"].as_str()), (400, Some(param)), "{answer}");
    body["tool_choice"] = json!("auto");
    body["max_tokens"] = json!(4);
    assert_eq!(worker.try_ask(CHAT, &body).await.0, 200);
}
