//! Why a prompt does not continue an earlier one, in the words of Anthropic's and OpenAI's APIs.
//!
//! Not here: what routers report in `x-warmpath-prefix-break`.

use serde_json::{Value, json};
use warmpath_bench::prompts::words;

use crate::harness::TestWorker;

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

fn tool(name: &str) -> Value {
    json!({"name": name, "description": words(3, 20), "input_schema": {"type": "object", "properties": {}}})
}

fn message(role: &str, content: &Value) -> Value {
    json!({"role": role, "content": content})
}

/// Returns the first request of a conversation, which asks for diagnostics.
fn first() -> Value {
    let question = message("user", &json!([{"type": "text", "text": words(2, 40)}]));
    json!({
        "max_tokens": 4, "temperature": 0, "system": words(1, 60), "tools": [tool("look"), tool("leave")],
        "messages": [question], "diagnostics": {"previous_message_id": null},
    })
}

/// Returns the second request of the conversation, which names the message with this id.
fn second(previous: &Value) -> Value {
    let mut body = first();
    let said =
        [message("user", &json!(words(2, 40))), message("assistant", &json!("Yes.")), message("user", &json!("And?"))];
    body["messages"] = json!(said);
    body["diagnostics"]["previous_message_id"] = previous.clone();
    body
}

#[tokio::test]
async fn a_message_names_what_changed_since_an_earlier_one_at_any_worker() {
    let worker = TestWorker::start("--slots 2 --ctx-size 8192").await;
    let answer = worker.ask(MESSAGES, first()).await;
    assert_eq!(answer.get("diagnostics"), None, "{answer}");
    let (id, n_tokens) = (&answer["id"], answer["usage"]["input_tokens"].as_u64().expect("a count"));
    let continued = worker.ask(MESSAGES, second(id)).await;
    assert_eq!(
        continued.get("diagnostics"),
        None,
        "a text in place of a list of one text is the same prompt: {continued}"
    );

    let other = TestWorker::start("--slots 2 --ctx-size 8192").await;
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 4] = [
        ("system_changed", |body| body["system"] = json!(words(9, 60))),
        ("tools_changed", |body| body["tools"] = json!([tool("leave"), tool("look")])),
        ("messages_changed", |body| body["messages"][0]["content"] = json!(words(8, 40))),
        ("messages_changed", |body| body["messages"] = json!([message("user", &json!(words(7, 40)))])),
    ];
    for (expected, change) in changes {
        let mut body = second(id);
        change(&mut body);
        for worker in [&worker, &other] {
            let answer = worker.ask(MESSAGES, body.clone()).await;
            let reason = &answer["diagnostics"]["cache_miss_reason"];
            assert_eq!(reason["type"], expected, "{answer}");
            let missed = reason["cache_missed_input_tokens"].as_u64().expect("a count");
            let n_cached = answer["usage"]["cache_read_input_tokens"].as_u64().expect("a count");
            assert!(missed <= n_tokens.saturating_sub(n_cached), "{answer}");
        }
    }
    let mut streamed = second(id);
    (streamed["stream"], streamed["system"]) = (json!(true), json!(words(7, 60)));
    let text = worker.post(MESSAGES, &streamed).send().await.expect("a response").text().await.expect("a stream");
    let start = text.lines().find_map(|line| line.strip_prefix("data: ")).expect("an event");
    let start: Value = serde_json::from_str(start).expect("JSON");
    assert_eq!(start["message"]["diagnostics"]["cache_miss_reason"]["type"], "system_changed", "{start}");
}

#[tokio::test]
async fn a_message_of_another_tenant_or_server_is_not_found() {
    let worker = TestWorker::start("--slots 2 --ctx-size 8192").await;
    let id = worker.ask(MESSAGES, first()).await["id"].clone();
    let mut salted = second(&id);
    salted["cache_salt"] = json!("another tenant");
    for body in [salted, second(&json!("msg_01XFDUDYJgAACzvnptvVoYEL")), second(&json!(""))] {
        let answer = worker.ask(MESSAGES, body).await;
        assert_eq!(answer["diagnostics"], json!({"cache_miss_reason": {"type": "previous_message_not_found"}}));
    }
}

#[tokio::test]
async fn a_response_names_what_changed_since_an_earlier_one() {
    let worker = TestWorker::start("--slots 2 --ctx-size 8192").await;
    let mut body =
        json!({"instructions": words(1, 60), "input": words(2, 40), "max_output_tokens": 4, "temperature": 0});
    let first = worker.ask(RESPONSES, body.clone()).await;
    assert_eq!(first.get("prompt_cache_diagnostics"), None, "{first}");
    body["prompt_cache_options"] = json!({"comparison_response_id": first["id"]});
    assert_eq!(worker.ask(RESPONSES, body.clone()).await["prompt_cache_diagnostics"], json!({"type": "cache_hit"}));
    body["instructions"] = json!(words(9, 60));
    let answer = worker.ask(RESPONSES, body.clone()).await;
    let told = &answer["prompt_cache_diagnostics"];
    assert_eq!((&told["type"], &told["reason"]), (&json!("cache_miss"), &json!("input_changed")), "{answer}");
    assert_eq!(told["comparison_reusable_tokens"], first["usage"]["input_tokens"], "{answer}");
    body["prompt_cache_options"] = json!({"comparison_response_id": "resp_1"});
    let unknown = worker.ask(RESPONSES, body).await;
    assert_eq!(unknown["prompt_cache_diagnostics"], json!({"type": "comparison_response_not_found"}));
}
