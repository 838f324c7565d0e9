//! Drafts over HTTP: counts in responses, metrics, and unchanged responses.
//!
//! Not here: whether drafts change a token (the engine's tests).

use serde_json::{Value, json};
use warmpath_worker::config::Config;
use warmpath_worker::engine::{DraftCosts, SelfTest};

use crate::harness::{TestWorker, tiny, user};

const CHAT: &str = "/v1/chat/completions";

fn chat() -> Value {
    json!({"messages": user("Hello there"), "max_tokens": 60, "temperature": 0, "ignore_eos": true})
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("there is a text")
}

/// Returns the accepted and rejected tokens that an answer counts.
fn counts(answer: &Value) -> (u64, u64) {
    let details = &answer["usage"]["completion_tokens_details"];
    let count = |name: &str| details[name].as_u64().unwrap_or_else(|| panic!("no {name}: {answer}"));
    let (accepted, rejected) = (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"));
    assert_eq!(answer["timings"]["draft_n"], accepted + rejected);
    assert_eq!(answer["timings"]["draft_n_accepted"], accepted);
    (accepted, rejected)
}

#[tokio::test]
async fn an_answer_counts_its_drafts_and_the_metrics_those_of_all() {
    // The number of drafted tokens depends on the time of a step, which is assumed here and so always the same.
    let assume = |config: &mut Config| config.engine.self_test = SelfTest::Skip;
    let worker = TestWorker::start_changed(tiny(), "--slots 1 --spec-type auto", assume).await;
    let first = worker.ask(CHAT, chat()).await;
    assert!(first["timings"].get("draft_n").is_none(), "nothing was drafted: {first}");
    let again = worker.ask(CHAT, chat()).await;
    assert_eq!(text(&again), text(&first));
    let (accepted, rejected) = counts(&again);
    assert!(accepted >= 30, "{again}");
    let mut predicted = chat();
    predicted["cache_salt"] = json!("another");
    predicted["prediction"] = json!({"type": "content", "content": [{"type": "text", "text": text(&first)}]});
    let with_prediction = worker.ask(CHAT, predicted.clone()).await;
    assert_eq!(text(&with_prediction), text(&first));
    let (more_accepted, more_rejected) = counts(&with_prediction);
    predicted["speculative.n_max"] = json!(0);
    assert!(worker.ask(CHAT, predicted).await["timings"].get("draft_n").is_none());

    let metrics = worker.get("/metrics").await.text().await.expect("metrics are text");
    for (name, n) in [
        ("warmpath_worker_draft_tokens_total{outcome=\"accepted\"}", accepted + more_accepted),
        ("warmpath_worker_draft_tokens_total{outcome=\"rejected\"}", rejected + more_rejected),
        ("llamacpp:spec_decode_num_accepted_tokens_total", accepted + more_accepted),
        ("llamacpp:spec_decode_num_draft_tokens_total", accepted + rejected + more_accepted + more_rejected),
    ] {
        assert!(metrics.lines().any(|line| line == format!("{name} {n}")), "{name} {n}: {metrics}");
    }
    assert_eq!(worker.get_json("/slots").await[0]["speculative"], true);
}

/// Starts a worker whose model drafts for itself, on a machine where drafting is faster.
async fn drafting_for_itself(flags: &str) -> TestWorker {
    let pays = |config: &mut Config| {
        config.engine.self_test = SelfTest::Skip;
        let speculation = config.engine.speculation.as_mut().expect("a draft model needs no other flag");
        speculation.costs = DraftCosts::LikeGpu;
    };
    TestWorker::start_changed(tiny(), &format!("{flags} -md {} --spec-draft-threads 1", tiny().display()), pays).await
}

#[tokio::test]
async fn a_draft_model_s_tokens_are_counted_and_change_no_answer_in_any_form() {
    let plain = TestWorker::start("--slots 3").await;
    let drafting = drafting_for_itself("--slots 3").await;
    let counted = drafting.ask(CHAT, chat()).await;
    assert_eq!(text(&counted), text(&plain.ask(CHAT, chat()).await));
    let (accepted, rejected) = counts(&counted);
    assert!(accepted >= 20, "{counted}");

    let mut several = chat();
    several["messages"] = user("Something else");
    several["n"] = json!(3);
    let mut random = several.clone();
    random["temperature"] = json!(1.0);
    random["seed"] = json!(7);
    random["logprobs"] = json!(true);
    let mut schema = chat();
    schema["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object",
        "properties": {"a": {"type": "string", "maxLength": 20}}, "required": ["a"], "additionalProperties": false}}});
    let mut tools = chat();
    tools["tools"] = json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object",
        "properties": {"at": {"type": "string", "maxLength": 20}}, "required": ["at"]}}}]);
    tools["tool_choice"] = json!("required");
    for constrained in [&mut schema, &mut tools] {
        constrained["ignore_eos"] = json!(false);
    }
    for body in [several, random, schema, tools] {
        let (found, expected) = (drafting.ask(CHAT, body.clone()).await, plain.ask(CHAT, body.clone()).await);
        let said = |answer: &Value| -> Vec<Value> {
            let choices = answer["choices"].as_array().expect("there are choices");
            let of_choice = |choice: &Value| {
                let call = &choice["message"]["tool_calls"][0]["function"];
                json!([choice["message"]["content"], call, choice["finish_reason"]])
            };
            choices.iter().map(of_choice).collect()
        };
        assert_eq!(said(&found), said(&expected), "{body}");
    }
    let whole = |events: &[Value]| -> String {
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
    };
    let mut streamed = chat();
    streamed["stream"] = json!(true);
    let expected = plain.stream(CHAT, streamed.clone()).await;
    assert_eq!(whole(&drafting.stream(CHAT, streamed).await), whole(&expected));

    let made = drafting.metric("draft_model_tokens_total").await;
    assert!(made >= (accepted + rejected) as f64, "{made}");
    assert!(drafting.metric("draft_model_seconds_total").await > 0.0);
    assert_eq!(drafting.get_json("/slots").await[0]["speculative"], true);
    assert!(drafting.get_json("/props").await["memory"]["draft_model_bytes"].as_u64().is_some_and(|n| n > 0));
}

#[tokio::test]
async fn a_prediction_is_ignored_but_checked_if_the_worker_does_not_draft() {
    let worker = TestWorker::start("--slots 1").await;
    let first = worker.ask(CHAT, chat()).await;
    let mut predicted = chat();
    predicted["prediction"] = json!({"type": "content", "content": text(&first)});
    let answer = worker.ask(CHAT, predicted.clone()).await;
    assert_eq!(text(&answer), text(&first));
    assert!(answer["timings"].get("draft_n").is_none(), "{answer}");
    assert!(answer["usage"]["completion_tokens_details"].get("accepted_prediction_tokens").is_none(), "{answer}");
    assert_eq!(worker.get_json("/slots").await[0]["speculative"], false);
    for (field, value) in [
        ("prediction", json!({"type": "other", "content": "a"})),
        ("prediction", json!("a")),
        ("speculative.n_max", json!(-1)),
        ("speculative.n_min", json!("a")),
    ] {
        let mut body = chat();
        body[field] = value;
        let (status, error) = worker.try_ask(CHAT, &body).await;
        assert_eq!(status, 400, "{error}");
        assert!(error["error"]["message"].as_str().is_some_and(|message| message.contains(field)), "{field}: {error}");
    }
}
