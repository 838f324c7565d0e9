//! Whole numbers in request bodies: `4.0` and `4e0` are 4 in every field of every endpoint, and `4.5` is refused.
//!
//! The fields are those that the OpenAPI document describes as integers, so a new field is tested as well.
//! Not here: their ranges (`document`).

use serde_json::{Value, json};
use warmpath_bench::model::Preset;

use crate::contract::DOCUMENT;
use crate::harness::{TestWorker, model, user};

/// Stands for the number in a body.
const HOLE: &str = "\"NUMBER\"";

/// Returns the bodies of an endpoint, and what each lacks to have a number in every place that is no plain field.
fn bodies() -> Vec<(&'static str, Value, Vec<Value>)> {
    let n = json!("NUMBER");
    let lora = json!({"lora": [{"id": n, "scale": 1}]});
    let chat = json!({"messages": user("a"), "max_tokens": 1});
    let raw = json!({"prompt": "a", "max_tokens": 1});
    let prompts = [json!([n]), json!([n, "a"]), json!([[n], [2]]), json!(["a", [n]]), json!(["a", [n, "b"]])];
    let prompts = prompts.map(|prompt| json!({"prompt": prompt}));
    let shared = [lora, json!({"logit_bias": [[n, 1]]}), json!({"stream": true, "stream_options": {}, "n": n})];
    let of_completion = [&prompts[..], &shared[..], &[json!({"logprobs": n})]].concat();
    let message = json!({"max_tokens": 1, "messages": user("a")});
    let texts = [json!([n, 2]), json!([[n], [2]]), json!(["a", [n]])];
    vec![
        ("/v1/chat/completions", chat.clone(), shared.to_vec()),
        ("/chat/completions", chat, Vec::new()),
        ("/v1/completions", raw.clone(), of_completion.clone()),
        ("/completion", raw.clone(), of_completion.clone()),
        ("/completions", raw, Vec::new()),
        ("/infill", json!({"input_prefix": "a", "input_suffix": "b", "max_tokens": 1}), shared.to_vec()),
        ("/v1/messages", message, Vec::new()),
        ("/v1/responses", json!({"max_output_tokens": 16, "input": "a"}), Vec::new()),
        ("/detokenize", json!({}), vec![json!({"tokens": [n, 2]})]),
        ("/cache/pin", json!({}), prompts.to_vec()),
        ("/v1/embeddings", json!({"input": "a"}), texts.clone().map(|input| json!({"input": input})).to_vec()),
        ("/embedding", json!({"content": "a"}), texts.map(|content| json!({"content": content})).to_vec()),
        ("/v1/rerank", json!({"query": "a", "documents": ["b", "c"]}), Vec::new()),
    ]
}

/// Returns the names of the body's fields that the document describes as whole numbers.
fn whole_fields(path: &str) -> Vec<&'static str> {
    let schema = &DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
    let name = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    let properties = DOCUMENT["components"]["schemas"][name]["properties"].as_object();
    let is_whole = |property: &Value| {
        let forms = property["anyOf"].as_array().into_iter().flatten().chain([property]);
        forms.into_iter().any(|form| form["type"] == "integer" || form["type"] == json!(["integer", "null"]))
    };
    properties.into_iter().flatten().filter(|(_, property)| is_whole(property)).map(|(name, _)| name.as_str()).collect()
}

/// Returns status and error message of a body.
async fn outcome(worker: &TestWorker, path: &str, body: &str, number: &str) -> (u16, String) {
    let response = worker.post_bytes(path, body.replace(HOLE, number)).await;
    let status = response.status().as_u16();
    let object: Value = serde_json::from_str(&response.text().await.expect("a body")).unwrap_or_default();
    (status, object["error"]["message"].as_str().unwrap_or_default().to_owned())
}

async fn check(worker: &TestWorker, path: &str, body: &Value, name: &str) {
    let body = body.to_string();
    for n in ["1", "2", "0", "-1"] {
        let plain = outcome(worker, path, &body, n).await;
        for form in [format!("{n}.0"), format!("{n}e0"), format!("{n}.00E+0")] {
            let (status, text) = outcome(worker, path, &body, &form).await;
            assert_eq!((status, &text), (plain.0, &plain.1), "{path} {body} with {form}");
        }
    }
    // A seed may have any size.
    for wrong in ["4.5", "1e30"].into_iter().take(if name == "seed" { 1 } else { 2 }) {
        let (status, text) = outcome(worker, path, &body, wrong).await;
        // Messages name a field in Anthropic's words, such as `thinking.budget_tokens`.
        let is_named = text.contains(name) || text.replace('.', "_").contains(name);
        assert_eq!((status, is_named), (400, true), "{path} {body} with {wrong}: {text}");
    }
}

async fn check_all(worker: &TestWorker, is_there: fn(&str) -> bool) -> usize {
    let mut n_fields = 0;
    for (path, body, others) in bodies().into_iter().filter(|(path, ..)| is_there(path)) {
        let plain = whole_fields(path).into_iter().map(|name| json!({name: "NUMBER"}));
        for field in plain.chain(others) {
            let fields = field.as_object().expect("fields");
            let (name, _) = fields.iter().find(|(_, value)| value.to_string().contains(HOLE)).expect("a number");
            let mut with = body.clone();
            with.as_object_mut().expect("an object").extend(fields.clone());
            check(worker, path, &with, name).await;
            n_fields += 1;
        }
    }
    n_fields
}

fn is_about_texts(path: &str) -> bool {
    path.contains("embedding")
}

fn is_about_documents(path: &str) -> bool {
    path.contains("rerank")
}

#[tokio::test]
async fn every_whole_number_may_be_written_as_a_float() {
    let worker = TestWorker::start("--slots 4 --queue-max 64 --ctx-size 1024").await;
    let n_fields = check_all(&worker, |path| !is_about_texts(path) && !is_about_documents(path)).await;
    assert!(n_fields > 100, "{n_fields}");
    let worker = TestWorker::start_model(&model(Preset::TinyEmbed, 1), "--embedding").await;
    assert_eq!(check_all(&worker, is_about_texts).await, 12);
    let worker = TestWorker::start_model(&model(Preset::TinyRank, 1), "--rerank").await;
    assert_eq!(check_all(&worker, is_about_documents).await, 3);
}
