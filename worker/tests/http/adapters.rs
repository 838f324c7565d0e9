//! LoRA adapters over HTTP: by model name, by llama-server's `lora`, and in the lists.

use std::path::PathBuf;

use serde_json::{Value, json};
use warmpath_bench::model::Preset;
use warmpath_bench::model::adapter::write_adapter;

use crate::harness::{TestWorker, folder};

const PATH: &str = "/v1/completions";

/// Makes two adapters in a folder of the test's own and returns their files.
fn adapters(test: &str) -> [PathBuf; 2] {
    [("poet", 21), ("clerk", 22)].map(|(name, seed)| {
        let path = folder().join(format!("lora-{}-{test}", std::process::id())).join(format!("{name}.gguf"));
        write_adapter(Preset::Tiny, 1, seed, &path).expect("the adapter can be made");
        path
    })
}

fn body(model: &str) -> Value {
    let prompt = "It was the best of times, it was the worst of times, it was the age of wisdom, it was ".repeat(4);
    json!({"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true})
}

fn with_lora(lora: Value) -> Value {
    let mut body = body("tiny");
    body["lora"] = lora;
    body
}

fn text(answer: &Value) -> &Value {
    &answer["choices"][0]["text"]
}

fn n_cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}

#[tokio::test]
async fn an_adapter_is_a_model_and_shares_no_state_with_the_others() {
    let [poet, clerk] = adapters("models");
    let flags = format!("--lora {} --lora-scaled {}:1.0 --lora-init-without-apply", poet.display(), clerk.display());
    let worker = TestWorker::start(&flags).await;
    let mut answers = Vec::new();
    for model in ["tiny", "tiny:poet", "tiny:clerk"] {
        let first = worker.ask(PATH, body(model)).await;
        assert_eq!(n_cached(&first), 0, "{model}");
        answers.push(text(&first).clone());
    }
    assert!(answers[0] != answers[1] && answers[1] != answers[2] && answers[0] != answers[2], "{answers:?}");
    // Each model reuses its own state.
    for (model, expected) in ["tiny", "tiny:poet", "tiny:clerk"].iter().zip(&answers) {
        let again = worker.ask(PATH, body(model)).await;
        assert_eq!(text(&again), expected, "{model}");
        assert!(n_cached(&again) > 0, "{model}");
    }
    // The same adapter in llama-server's field reuses the same prefix.
    for (lora, expected) in [(json!([]), 0), (json!([{"id": 0, "scale": 1}]), 1), (json!([{"id": 1, "scale": 1.0}]), 2)]
    {
        let answer = worker.ask(PATH, with_lora(lora.clone())).await;
        assert_eq!(text(&answer), &answers[expected], "{lora}");
        assert!(n_cached(&answer) > 0, "{lora}");
    }
    let half = worker.ask(PATH, with_lora(json!([{"id": 0, "scale": 0.5}]))).await;
    assert_eq!(n_cached(&half), 0, "state of another scale was reused");

    let models = worker.get_json("/v1/models").await;
    let ids: Vec<&Value> = models["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, [&json!("tiny"), &json!("tiny:poet"), &json!("tiny:clerk")]);
    assert_eq!((&models["data"][0]["parent"], &models["data"][1]["parent"]), (&Value::Null, &json!("tiny")));
    assert_eq!(worker.get_json("/v1/models/tiny:clerk").await["id"], "tiny:clerk");
    let listed = worker.get_json("/lora-adapters").await;
    assert_eq!((&listed[1]["id"], &listed[1]["scale"], &listed[1]["name"]), (&json!(1), &json!(0.0), &json!("clerk")));
}

#[tokio::test]
async fn a_single_adapter_is_the_default_and_a_request_can_turn_it_off() {
    let [poet, _] = adapters("force");
    let worker = TestWorker::start(&format!("--lora {}", poet.display())).await;
    let plain = TestWorker::start("").await;
    let applied = worker.ask(PATH, body("tiny")).await;
    assert_eq!(text(&applied), text(&worker.ask(PATH, body("tiny:poet")).await));
    let without = worker.ask(PATH, with_lora(json!([{"id": 0, "scale": 0}]))).await;
    assert_eq!(text(&without), text(&plain.ask(PATH, body("tiny")).await));
    assert_ne!(text(&without), text(&applied));
    assert_eq!(worker.get_json("/lora-adapters").await[0]["scale"], 1.0);

    assert_eq!(worker.ask("/lora-adapters", json!([{"id": 0, "scale": 1.0}])).await, json!({"success": true}));
    for (body, status, code) in [
        (json!([{"id": 0, "scale": 0.5}]), 501, json!("not_enabled")),
        (json!([{"id": 7, "scale": 1}]), 400, Value::Null),
        (json!({"id": 0}), 400, Value::Null),
    ] {
        let (got, object) = worker.try_ask("/lora-adapters", &body).await;
        assert_eq!((got, &object["error"]["code"]), (status, &code), "{body}: {object}");
    }
}

#[tokio::test]
async fn adapters_that_cannot_be_applied_are_refused_by_name() {
    let [poet, clerk] = adapters("refused");
    let flags = format!("--lora {},{} --lora-init-without-apply", poet.display(), clerk.display());
    let (worker, plain) = (TestWorker::start(&flags).await, TestWorker::start("").await);
    let named = |lora: Value| {
        let mut body = with_lora(lora);
        body["model"] = json!("tiny:poet");
        body
    };
    let entry = |id: i64, scale: f64| json!({"id": id, "scale": scale});
    for (worker, body, status, param) in [
        (&worker, with_lora(json!([entry(2, 1.0)])), 400, "lora"),
        (&worker, with_lora(json!([entry(-1, 1.0)])), 400, "lora"),
        (&worker, with_lora(json!([entry(0, 1000.0)])), 400, "lora"),
        (&worker, with_lora(json!([entry(0, 1.0), entry(1, 1.0)])), 400, "lora"),
        (&worker, with_lora(json!([{"id": 0}])), 400, "lora[0]"),
        (&worker, with_lora(json!("poet")), 400, "lora"),
        (&worker, named(json!([])), 400, "lora"),
        (&worker, body("tiny:nobody"), 404, "model"),
        (&plain, with_lora(json!([entry(0, 1.0)])), 400, "lora"),
        (&plain, body("tiny:poet"), 404, "model"),
    ] {
        let (got, object) = worker.try_ask(PATH, &body).await;
        assert_eq!((got, &object["error"]["param"]), (status, &json!(param)), "{body}: {object}");
    }
    plain.ask(PATH, with_lora(json!([]))).await;
}
