//! Real weights over HTTP: tool calls, schemas, stop texts and split characters, with SmolLM2-135M-Instruct.
//!
//! Not here: the same with a generated model, in every detail (`tools`, `schemas`, `answers`), cached state (the
//! engine's tests).

use std::path::Path;

use serde_json::{Value, json};
use warmpath_bench::model::real::smollm2;

use crate::harness::{TestWorker, user};

const CHAT: &str = "/v1/chat/completions";

async fn start() -> TestWorker {
    start_with("").await
}

async fn start_with(flags: &str) -> TestWorker {
    let model = smollm2().expect("the model exists or can be downloaded (`make models`)");
    TestWorker::start_model(&model, &format!("--slots 2 --ctx-size 4096 --flash-attn off --kv-unified off {flags}"))
        .await
}

/// Returns the text of a streamed response.
fn joined(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

#[tokio::test]
async fn a_real_model_answers_correctly() {
    let worker = start().await;
    let body = json!({"messages": user("What is the capital of France?"), "temperature": 0, "max_tokens": 24});
    let answer = worker.ask(CHAT, body).await;
    let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(text.contains("Paris"), "{answer}");
}

#[tokio::test]
async fn a_prewarmed_prompt_gets_the_answer_of_an_uncached_one() {
    let worker = start().await;
    let system = "You are a guide of the city of Oslo and answer each question in one sentence. ".repeat(8);
    let ask = async |question: &str, fields: Value| {
        let mut body = json!({"max_tokens": 24, "temperature": 0, "system": system, "messages": user(question)});
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        worker.ask("/v1/messages", body).await
    };
    let prewarmed = ask("What is worth a visit?", json!({"max_tokens": 0})).await;
    assert_eq!((&prewarmed["content"], &prewarmed["usage"]["output_tokens"]), (&json!([]), &json!(0)));
    let n_prompt = prewarmed["usage"]["input_tokens"].as_u64().expect("a number");
    for (question, n_computed_max) in [("What is worth a visit?", 1), ("Where can I swim there?", 20)] {
        let answer = ask(question, json!({})).await;
        let computed = answer["usage"]["input_tokens"].as_u64().expect("a number");
        assert!(computed <= n_computed_max && n_prompt > 100, "{computed} of {n_prompt}");
        let uncached = ask(question, json!({"cache_prompt": false})).await;
        assert_eq!(answer["content"], uncached["content"]);
    }
}

#[tokio::test]
async fn a_real_model_calls_a_tool_by_its_schema() {
    // The model's own template does not support tools; this one has the same control tokens.
    let template = "target/fixtures/templates/Qwen-Qwen2.5-7B-Instruct.jinja";
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(template);
    assert!(template.exists(), "run `make fixtures` to fetch the templates");
    let worker = start_with(&format!("--chat-template-file {}", template.display())).await;
    let tool = |name: &str, description: &str, field: &str| {
        let parameters = json!({
            "type": "object",
            "properties": {field: {"type": "string", "maxLength": 40}},
            "required": [field],
            "additionalProperties": false,
        });
        json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
    };
    let body = json!({
        "messages": user("What is the weather in Oslo?"),
        "tools": [
            tool("get_weather", "Tells the weather of a city", "city"),
            tool("send_mail", "Sends a mail to a person", "person"),
        ],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": false,
        "temperature": 0,
        "max_tokens": 120,
    });
    let answer = worker.ask(CHAT, body.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "get_weather", "{answer}");
    let arguments: Value =
        serde_json::from_str(function["arguments"].as_str().expect("arguments are a text")).expect("they are JSON");
    assert!(arguments["city"].as_str().is_some_and(|city| !city.is_empty()), "{answer}");

    let mut streaming = body;
    streaming["stream"] = json!(true);
    let events = worker.stream(CHAT, streaming).await;
    let parts = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str());
    assert_eq!(Some(parts.collect::<String>().as_str()), function["arguments"].as_str());
}

#[tokio::test]
async fn a_real_model_fills_in_a_schema() {
    let worker = start().await;
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "country": {"enum": ["France", "Norway", "Japan"]},
            "rivers": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "country", "rivers"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "capital", "schema": schema, "strict": true}});
    let question = user("Describe the capital of France as JSON.");
    let body = json!({"messages": question, "response_format": format, "temperature": 0, "max_tokens": 200});
    let answer = worker.ask(CHAT, body).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    let value: Value = serde_json::from_str(text).expect("the answer is JSON");
    assert!(jsonschema::is_valid(&schema, &value), "{value}");
    assert_eq!((&value["country"], value["name"].as_str()), (&json!("France"), Some("Paris")));
}

#[tokio::test]
async fn a_real_models_answer_ends_before_a_stop_text_however_it_is_split_into_tokens() {
    let worker = start().await;
    let body = json!({"messages": user("Tell me about the city of Rome."), "temperature": 0, "max_tokens": 40});
    let whole = worker.ask(CHAT, body.clone()).await;
    let whole = whole["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
    assert!(whole.len() > 40, "{whole:?}");
    let places: Vec<usize> =
        whole.char_indices().map(|(at, _)| at).filter(|at| (8..whole.len() - 8).contains(at)).collect();
    for at in places.into_iter().step_by(17) {
        let Some(stop) = whole.get(at..at + 5) else { continue };
        let expected = &whole[..whole.find(stop).expect("it is a part of the answer")];
        let mut body = body.clone();
        body["stop"] = json!([stop]);
        let answer = worker.ask(CHAT, body.clone()).await;
        assert_eq!(answer["choices"][0]["message"]["content"], *expected, "{stop:?}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{stop:?}");
        body["stream"] = json!(true);
        assert_eq!(joined(&worker.stream(CHAT, body).await), expected, "{stop:?}");
    }
}

#[tokio::test]
async fn characters_that_a_real_vocabulary_splits_are_sent_whole() {
    let worker = start().await;
    let text = "naïve 日本語 🙂👩‍🚀 ѣ";
    let body = json!({
        "messages": user("Say it."), "grammar": format!("root ::= \"{text}\""), "temperature": 0, "max_tokens": 60,
    });
    let answer = worker.ask(CHAT, body.clone()).await;
    assert_eq!(answer["choices"][0]["message"]["content"], text, "{answer}");
    let n_tokens = answer["usage"]["completion_tokens"].as_u64().expect("tokens are counted");
    assert!(n_tokens > text.chars().count() as u64, "{n_tokens} tokens split no character");
    let mut body = body;
    body["stream"] = json!(true);
    let events = worker.stream(CHAT, body).await;
    assert_eq!(joined(&events), text);
    assert!(events.iter().all(|event| !event.to_string().contains('\u{FFFD}')));
}
