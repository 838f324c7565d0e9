//! Calls and reasoning in Anthropic's messages and OpenAI's responses, with a tiny model whose calls a grammar
//! enforces.

use serde_json::{Value, json};

use crate::harness::{TestWorker, folder, user};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

fn schema() -> Value {
    json!({"type": "object", "properties": {"city": {"enum": ["Berlin", "Oslo"]}}, "required": ["city"], "additionalProperties": false})
}

/// Returns the data of a stream's events.
async fn events(worker: &TestWorker, path: &str, mut body: Value) -> Vec<Value> {
    body["stream"] = json!(true);
    let text = worker.post(path, &body).send().await.expect("a response").text().await.expect("the stream ends well");
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

fn check_city(arguments: &Value) {
    assert!(["Berlin", "Oslo"].contains(&arguments["city"].as_str().expect("a city")), "{arguments}");
}

#[tokio::test]
async fn a_message_with_a_required_call_has_it_and_continues_with_its_result() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let tool = json!({"name": "get_weather", "description": "tells", "input_schema": schema()});
    let choice = json!({"type": "tool", "name": "get_weather"});
    let mut body =
        json!({"max_tokens": 100, "temperature": 0, "tools": [tool], "tool_choice": choice, "messages": user("Rain?")});
    let answer = worker.ask(MESSAGES, body.clone()).await;
    let call = &answer["content"][0];
    assert_eq!(
        (&answer["stop_reason"], &call["type"], &call["name"]),
        (&json!("tool_use"), &json!("tool_use"), &json!("get_weather"))
    );
    check_city(&call["input"]);

    let streamed = events(&worker, MESSAGES, body.clone()).await;
    let begun = streamed.iter().find(|event| event["type"] == "content_block_start").expect("a block");
    assert_eq!(
        (&begun["content_block"]["name"], &begun["content_block"]["input"]),
        (&json!("get_weather"), &json!({}))
    );
    let parts = streamed.iter().filter_map(|event| event["delta"]["partial_json"].as_str());
    let input: Value = serde_json::from_str(&parts.collect::<String>()).expect("the parts add up to JSON");
    assert_eq!(input, call["input"]);
    assert_eq!(streamed[streamed.len() - 2]["delta"]["stop_reason"], "tool_use");

    let messages = body["messages"].as_array_mut().expect("messages");
    messages.push(json!({"role": "assistant", "content": answer["content"]}));
    messages.push(
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "sun"}]}),
    );
    body["tool_choice"] = json!({"type": "none"});
    let next = worker.ask(MESSAGES, body.clone()).await;
    assert_eq!(next["content"][0]["type"], "text", "{next}");
    assert!(next["usage"]["cache_read_input_tokens"].as_u64() > Some(10), "the first turn is reused: {next}");

    body["tool_choice"] = json!({"type": "tool", "name": "another"});
    let (status, error) = worker.try_ask(MESSAGES, &body).await;
    assert_eq!(status, 400);
    assert!(error["error"]["message"].as_str().is_some_and(|said| said.contains("`tool_choice`")), "{error}");
    body["tools"][0]["name"] = json!("no spaces here");
    let (_, error) = worker.try_ask(MESSAGES, &body).await;
    assert!(error["error"]["message"].as_str().is_some_and(|said| said.contains("`tools[0].name`")), "{error}");
}

#[tokio::test]
async fn a_response_with_a_required_call_has_it_and_continues_with_its_result() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let tool = json!({"type": "function", "name": "get_weather", "parameters": schema(), "strict": true});
    let mut body = json!({"max_output_tokens": 100, "temperature": 0, "tools": [tool], "tool_choice": "required",
        "parallel_tool_calls": false, "input": user("Rain?")});
    let answer = worker.ask(RESPONSES, body.clone()).await;
    let call = &answer["output"][0];
    assert_eq!(
        (&answer["status"], &call["type"], &call["name"]),
        (&json!("completed"), &json!("function_call"), &json!("get_weather"))
    );
    check_city(&serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("JSON"));

    let streamed = events(&worker, RESPONSES, body.clone()).await;
    let kind = "response.function_call_arguments.delta";
    let deltas = streamed.iter().filter(|event| event["type"] == kind).filter_map(|event| event["delta"].as_str());
    assert_eq!(deltas.collect::<String>(), call["arguments"]);
    let last = streamed.last().expect("there are events");
    assert_eq!(
        (&last["type"], &last["response"]["output"][0]["arguments"]),
        (&json!("response.completed"), &call["arguments"])
    );

    let input = body["input"].as_array_mut().expect("items");
    input.push(call.clone());
    input.push(json!({"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}));
    body["tool_choice"] = json!("none");
    let next = worker.ask(RESPONSES, body.clone()).await;
    assert_eq!(next["output"][0]["type"], "message", "{next}");
    assert!(next["usage"]["input_tokens_details"]["cached_tokens"].as_u64() > Some(10), "{next}");

    body["tools"][0]["parameters"] = json!([1]);
    let (status, error) = worker.try_ask(RESPONSES, &body).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("tools[0].parameters")), "{error}");
}

#[tokio::test]
async fn reasoning_is_a_separate_part() {
    let path = folder().join("dialect-thinks.jinja");
    let template = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{%- if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}{{ m.content + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{ '<think>\\n' }}{%- endif %}{%- endif %}";
    std::fs::write(&path, template).expect("the file can be written");
    let worker = TestWorker::start(&format!("--slots 1 --ctx-size 512 --chat-template-file {}", path.display())).await;
    let mut body = json!({"max_tokens": 6, "temperature": 0, "messages": user("Why?"), "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let answer = worker.ask(MESSAGES, body.clone()).await;
    assert_eq!(
        (&answer["content"][0]["type"], &answer["content"][0]["signature"]),
        (&json!("thinking"), &json!("unsigned")),
        "{answer}"
    );
    let thought = answer["content"][0]["thinking"].as_str().expect("a text").to_owned();
    let streamed = events(&worker, MESSAGES, body.clone()).await;
    let deltas = streamed.iter().filter_map(|event| event["delta"]["thinking"].as_str());
    assert_eq!(deltas.collect::<String>().trim(), thought.trim());
    body["thinking"] = json!({"type": "disabled"});
    assert_eq!(worker.ask(MESSAGES, body).await["content"][0]["type"], "text");

    let body = json!({"max_output_tokens": 6, "temperature": 0, "input": "Why?"});
    let answer = worker.ask(RESPONSES, body.clone()).await;
    let item = &answer["output"][0];
    assert_eq!((&item["type"], &item["content"][0]["text"]), (&json!("reasoning"), &json!(thought)), "{answer}");
    assert_eq!(answer["usage"]["output_tokens_details"]["reasoning_tokens"], 6);
    let mut quiet = body;
    quiet["reasoning"] = json!({"effort": "none"});
    assert_eq!(worker.ask(RESPONSES, quiet).await["output"][0]["type"], "message");
}
