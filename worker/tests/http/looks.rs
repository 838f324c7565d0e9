//! The endpoints without generation: models, tokens, slots, properties, metrics.

use serde_json::json;

use crate::contract;
use crate::harness::{TestWorker, user};

#[tokio::test]
async fn models_lists_every_name_of_the_model() {
    let worker = TestWorker::start("--slots 1 --alias org/other").await;
    let list = worker.get_json("/v1/models").await;
    let names: Vec<_> = list["data"].as_array().expect("an array").iter().map(|model| model["id"].clone()).collect();
    assert_eq!(names, ["tiny", "org/other"]);
    assert_eq!(worker.get_json("/v1/models/org/other").await["id"], "org/other");
}

#[tokio::test]
async fn a_pattern_accepts_the_names_that_it_matches_and_is_not_listed() {
    let worker = TestWorker::start("--slots 1 --ctx-size 1024 --alias claude-*,tiny-*-mini").await;
    let list = worker.get_json("/v1/models").await;
    assert_eq!(list["data"].as_array().map(Vec::len), Some(1), "{list}");
    let ask = |model: &str| json!({"model": model, "messages": user("Hello"), "max_tokens": 1});
    for model in ["claude-sonnet-4-5", "claude-", "tiny-2-mini", "tiny"] {
        assert_eq!(worker.get_json(&format!("/v1/models/{model}")).await["id"], model);
        let answer = worker.ask("/v1/chat/completions", ask(model)).await;
        assert_eq!(answer["model"], "tiny", "a response has the model's first name");
    }
    let (status, error) = worker.try_ask("/v1/chat/completions", &ask("gpt-4o")).await;
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")), "{error}");
    assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains("claude-*")), "{error}");
}

#[tokio::test]
async fn anthropic_s_clients_get_models_in_anthropic_s_format() {
    let worker = TestWorker::start("--slots 1 --ctx-size 1024 --alias org/other,claude-*").await;
    let get = async |path: &str| {
        let asked = worker.request(path).header("anthropic-version", "2023-06-01").send();
        let response = asked.await.expect("the worker responds");
        let (status, object) = (response.status().as_u16(), response.json().await.expect("JSON"));
        contract::check("get", path, status, &object);
        (status, object)
    };
    let (_, list) = get("/v1/models?limit=1").await;
    assert_eq!(
        (&list["first_id"], &list["last_id"], &list["has_more"]),
        (&json!("tiny"), &json!("tiny"), &json!(true))
    );
    let (_, rest) = get("/v1/models?limit=1000&after_id=tiny").await;
    assert_eq!((&rest["data"][0]["id"], &rest["has_more"]), (&json!("org/other"), &json!(false)));
    for name in ["org/other", "claude-haiku-4-5"] {
        let (_, model) = get(&format!("/v1/models/{name}")).await;
        assert_eq!(
            (&model["type"], &model["id"], &model["display_name"]),
            (&json!("model"), &json!(name), &json!(name))
        );
        assert_eq!(model["max_input_tokens"], 1024);
        assert!(model["created_at"].as_str().is_some_and(|at| at.starts_with("20") && at.ends_with('Z')), "{model}");
    }
    for (path, status, kind) in [
        ("/v1/models/gpt", 404, "not_found_error"),
        ("/v1/models?limit=0", 400, "invalid_request_error"),
        ("/v1/models?after_id=gpt", 400, "invalid_request_error"),
    ] {
        let (found, error) = get(path).await;
        assert_eq!((found, &error["type"], &error["error"]["type"]), (status, &json!("error"), &json!(kind)), "{path}");
    }
    assert_eq!(worker.get_json("/v1/models").await["object"], "list", "other clients get OpenAI's format");
}

#[tokio::test]
async fn texts_are_tokenized_and_restored() {
    let worker = TestWorker::start("--slots 1").await;
    let text = "Grüße, 世界! <|im_start|> 🙂";
    let tokens = worker.ask("/tokenize", json!({"content": text, "parse_special": false})).await["tokens"].clone();
    assert_eq!(worker.ask("/detokenize", json!({"tokens": tokens})).await["content"], text);

    let parsed = worker.ask("/tokenize", json!({"content": "<|im_start|>"})).await["tokens"].clone();
    assert_eq!(parsed.as_array().map(Vec::len), Some(1), "a control token is one token by default");

    let pieces = worker.ask("/tokenize", json!({"content": text, "parse_special": false, "with_pieces": true})).await;
    let mut bytes = Vec::new();
    for (piece, token) in
        pieces["tokens"].as_array().expect("an array").iter().zip(tokens.as_array().expect("an array"))
    {
        assert_eq!(&piece["id"], token);
        match piece["piece"].as_array() {
            Some(raw) => {
                bytes.extend(raw.iter().map(|byte| u8::try_from(byte.as_u64().expect("a byte")).expect("a byte")))
            }
            None => bytes.extend_from_slice(piece["piece"].as_str().expect("a text").as_bytes()),
        }
    }
    assert_eq!(String::from_utf8(bytes).as_deref(), Ok(text));
}

#[tokio::test]
async fn slots_show_running_requests_and_a_client_that_disconnects_frees_its_slot() {
    let worker = TestWorker::start("--slots 2").await;
    let n_busy = async |worker: &TestWorker| {
        let slots = worker.get_json("/slots").await;
        slots.as_array().expect("an array").iter().filter(|slot| slot["is_processing"] == true).count()
    };
    let running = worker.begin_long().await;
    worker.until("the running slot is shown", async |worker| n_busy(worker).await == 1).await;
    let slots = worker.get_json("/slots").await;
    let busy = slots.as_array().expect("an array").iter().find(|slot| slot["is_processing"] == true);
    let busy = busy.expect("the response has thousands of tokens");
    assert!(busy["request_id"].is_string() && busy["n_prompt_tokens"].as_u64() > Some(0), "{slots}");

    drop(running);
    worker.until("the slot is free", async |worker| worker.metric("slots_busy").await == 0.0).await;
    assert_eq!(worker.metric("sequences_cancelled_total").await, 1.0);
    let decoded = worker.metric("decode_tokens_total").await;
    assert!(decoded < 8000.0, "the response did not stop before the context was full: {decoded} tokens");
    worker.until("no slot is shown as running", async |worker| n_busy(worker).await == 0).await;
}

#[tokio::test]
async fn a_waiting_request_frees_its_place_when_its_client_disconnects() {
    let worker = TestWorker::start("--slots 1 --queue-max 1").await;
    let running = worker.begin_long().await;
    let waiting = tokio::spawn(worker.post("/v1/completions", &json!({"prompt": "Wait"})).send());
    worker.until("one request waits", async |worker| worker.metric("queue_sequences").await == 1.0).await;
    waiting.abort();
    worker.until("none waits", async |worker| worker.metric("queue_sequences").await == 0.0).await;
    drop(running);
}

#[tokio::test]
async fn properties_are_those_of_llama_server() {
    let worker = TestWorker::start("--slots 3 --ctx-size 1536").await;
    let props = worker.get_json("/props").await;
    assert_eq!(props["total_slots"], 3);
    assert_eq!(props["default_generation_settings"]["n_ctx"], 512);
    assert_eq!(props["default_generation_settings"]["params"]["top_k"], 40);
    assert!(props["chat_template"].as_str().is_some_and(|template| template.contains("im_start")));
    assert_eq!(props["eos_token"], "<|im_end|>");
}

#[tokio::test]
async fn metrics_count_requests_and_tokens() {
    let worker = TestWorker::start("--slots 1").await;
    let body = json!({"messages": user("Count me"), "max_tokens": 5, "ignore_eos": true});
    let answer = worker.ask("/v1/chat/completions", body.clone()).await;
    let again = worker.ask("/v1/chat/completions", body).await;
    worker.post_bytes("/v1/chat/completions", "{").await;
    let text = worker.get("/metrics").await.text().await.expect("text");
    let requests = |status: u16| {
        format!("warmpath_worker_requests_total{{endpoint=\"/v1/chat/completions\",status=\"{status}\"}}")
    };
    assert!(text.contains(&format!("{} 2\n", requests(200))), "{text}");
    assert!(text.contains(&format!("{} 1\n", requests(400))), "{text}");
    // The start waited for `/readyz`.
    assert!(!text.contains("warmpath_worker_requests_total{endpoint=\"/readyz\""), "a probe is no request: {text}");
    let prompt_tokens = answer["usage"]["prompt_tokens"].as_f64().expect("a number");
    assert_eq!(worker.metric("prompt_tokens_total").await, 2.0 * prompt_tokens);
    assert!(worker.metric("prefix_cache_tokens_total{tier=\"resident\"}").await > 0.0);
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    let share = warmpath_common::cached_share::label(cached as u32, prompt_tokens as u32);
    assert_ne!(share, "none");
    for label in ["none", share] {
        assert_eq!(worker.metric(&format!("ttft_seconds_count{{cached=\"{label}\"}}")).await, 1.0);
        assert_eq!(worker.metric(&format!("tpot_seconds_count{{cached=\"{label}\"}}")).await, 1.0);
    }
    for name in ["request_seconds_count", "queue_seconds_count"] {
        assert_eq!(worker.metric(name).await, 2.0, "{name}");
    }
    assert!(worker.metric("prefill_seconds_total").await > 0.0);
}

#[tokio::test]
async fn metrics_have_llama_servers_names_too() {
    let worker = TestWorker::start("--slots 1").await;
    let body = json!({"prompt": "the quick brown fox", "n_predict": 4, "ignore_eos": true});
    let (mut n_computed, mut n_cached, mut n_predicted) = (0.0, 0.0, 0.0);
    for _ in 0..2 {
        let timings = worker.ask("/completion", body.clone()).await["timings"].clone();
        let count = |name: &str| timings[name].as_f64().expect("a number");
        n_computed += count("prompt_n");
        n_cached += count("cache_n");
        n_predicted += count("predicted_n");
    }
    assert!(n_cached > 0.0);
    // The engine publishes its counters after the step that ends the client's response.
    worker.until("the slot is idle", async |worker| worker.metric("slots_busy").await == 0.0).await;
    let response = worker.get("/metrics").await;
    let started: u64 = response.headers()["process-start-time-unix"].to_str().expect("text").parse().expect("a number");
    assert!(started > 1_700_000_000, "{started}");
    let text = response.text().await.expect("text");
    for (name, kind, value) in [
        ("prompt_tokens_total", "counter", n_computed),
        ("prompt_tokens_cached_total", "counter", n_cached),
        ("tokens_predicted_total", "counter", n_predicted),
        ("requests_processing", "gauge", 0.0),
        ("n_busy_slots_per_decode", "gauge", 1.0),
    ] {
        assert!(text.contains(&format!("# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n")), "{name}: {text}");
    }
}
