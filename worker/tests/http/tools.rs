//! Tool calls, reasoning and continued messages, with a tiny model whose calls a grammar enforces.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::{TestWorker, folder, user};

const CHAT: &str = "/v1/chat/completions";

fn weather() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Berlin", "Oslo"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    json!({"type": "function", "function": {"name": "get_weather", "description": "tells", "parameters": parameters}})
}

fn clock() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {"zone": {"enum": ["CET", "UTC"]}},
        "required": ["zone"],
        "additionalProperties": false,
    });
    json!({"type": "function", "function": {"name": "get_time", "parameters": parameters}})
}

fn ask(tool_choice: Value) -> Value {
    json!({
        "messages": user("Is it raining?"),
        "tools": [weather(), clock()],
        "tool_choice": tool_choice,
        "parallel_tool_calls": false,
        "temperature": 0,
        "max_tokens": 200,
    })
}

#[tokio::test]
async fn unsupported_tools_change_only_a_header_and_a_metric() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let mut body = json!({"messages": user("Is it raining?"), "tools": [weather()], "temperature": 0, "max_tokens": 4});
    let prompt = worker.ask("/apply-template", body.clone()).await["prompt"].clone();
    let expected = worker.ask(CHAT, body.clone()).await["choices"].clone();
    body["tools"] =
        json!([{"type": "web_search"}, weather(), {"type": "code_interpreter", "container": {"type": "auto"}}]);
    body["web_search_options"] = json!({});
    assert_eq!(worker.ask("/apply-template", body.clone()).await["prompt"], prompt);
    for n_asked in 1..=2 {
        let response = worker.post(CHAT, &body).send().await.expect("the worker responds");
        assert_eq!(response.headers()["x-warmpath-left-out-tools"], "web_search, code_interpreter");
        let answer: Value = response.json().await.expect("JSON");
        assert_eq!(answer["choices"], expected);
        let metrics = worker.get("/metrics").await.text().await.expect("text");
        for kind in ["web_search", "code_interpreter"] {
            let line = format!("warmpath_worker_left_out_tools_total{{kind=\"{kind}\"}} {n_asked}\n");
            assert!(metrics.contains(&line), "{line}: {metrics}");
        }
    }
    body["tool_choice"] = json!({"type": "web_search"});
    let (status, error) = worker.try_ask(CHAT, &body).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("tool_choice")), "{error}");
}

fn check_call(call: &Value, name: &str) {
    assert_eq!(call["type"], "function", "{call}");
    assert_eq!(call["function"]["name"], name, "{call}");
    assert_eq!(call["id"].as_str().map(str::len), Some(9), "{call}");
    let arguments = call["function"]["arguments"].as_str().expect("arguments are a text");
    let arguments: Value = serde_json::from_str(arguments).expect("arguments are JSON");
    match name {
        "get_weather" => {
            assert!(["Berlin", "Oslo"].contains(&arguments["city"].as_str().expect("a city")), "{arguments}");
            assert!((1..=9).contains(&arguments["days"].as_i64().expect("days")), "{arguments}");
        }
        _ => assert!(["CET", "UTC"].contains(&arguments["zone"].as_str().expect("a zone")), "{arguments}"),
    }
}

/// Combines a stream's chunks to the message and its end.
fn joined(events: &[Value]) -> (Value, Value) {
    let (mut content, mut calls, mut end) = (String::new(), BTreeMap::<u64, Value>::new(), Value::Null);
    for event in events {
        let choice = &event["choices"][0];
        let delta = &choice["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let call = calls.entry(part["index"].as_u64().expect("an index")).or_insert_with(|| {
                assert!(part["id"].is_string() && part["type"] == "function", "the first part has the call's fields: {part}");
                assert_eq!(part["function"]["arguments"], "", "arguments follow the first part: {part}");
                json!({"id": part["id"], "type": part["type"], "function": {"name": part["function"]["name"], "arguments": ""}})
            });
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default().to_owned();
            let more = part["function"]["arguments"].as_str().expect("every part has arguments");
            call["function"]["arguments"] = json!(arguments + more);
        }
        if !choice["finish_reason"].is_null() {
            end = choice["finish_reason"].clone();
        }
    }
    (json!({"content": content, "tool_calls": calls.into_values().collect::<Vec<_>>()}), end)
}

#[tokio::test]
async fn a_required_call_is_one_of_the_tools_and_fits_its_schema() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let answer = worker.ask(CHAT, ask(json!("required"))).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let calls = choice["message"]["tool_calls"].as_array().expect("there are calls");
    let name = calls[0]["function"]["name"].as_str().expect("a name").to_owned();
    check_call(&calls[0], &name);
    assert!(calls.len() == 1 && calls[0].get("index").is_none());

    let mut body = ask(json!("required"));
    body["parallel_tool_calls"] = json!(true);
    let answer = worker.ask(CHAT, body).await;
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array().expect("there are calls").clone();
    assert!(calls.len() > 1, "the response has a single call: {answer}");
    let ids: std::collections::BTreeSet<&str> = calls.iter().filter_map(|call| call["id"].as_str()).collect();
    assert_eq!(ids.len(), calls.len(), "each call has its own id");
}

#[tokio::test]
async fn the_named_function_is_called_whole_and_streamed() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    for name in ["get_weather", "get_time"] {
        let mut body = ask(json!({"type": "function", "function": {"name": name}}));
        let answer = worker.ask(CHAT, body.clone()).await;
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array().expect("there are calls").clone();
        assert_eq!(calls.len(), 1, "{answer}");
        check_call(&calls[0], name);
        body["stream"] = json!(true);
        let events = worker.stream(CHAT, body).await;
        let (message, end) = joined(&events);
        assert_eq!(end, "tool_calls");
        check_call(&message["tool_calls"][0], name);
        assert_eq!(message["tool_calls"][0]["function"], calls[0]["function"]);
        assert!(events.len() > 4, "arguments come in parts: {}", events.len());
    }
}

#[tokio::test]
async fn without_a_call_the_answer_is_text() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let text = async |body: &Value| {
        let answer = worker.ask(CHAT, body.clone()).await;
        assert!(answer["choices"][0]["message"].get("tool_calls").is_none(), "{answer}");
        answer["choices"][0]["message"]["content"].clone()
    };
    let mut body = ask(json!("auto"));
    body["max_tokens"] = json!(12);
    let auto = text(&body).await;
    assert!(auto.as_str().is_some_and(|text| !text.is_empty()));
    body["tool_choice"] = json!("none");
    let none = text(&body).await;
    assert_eq!(none.as_str().map(str::trim_start), auto.as_str(), "the tools are in the prompt in both cases");
    for (choice, expected) in [("none", none), ("auto", auto)] {
        body["tool_choice"] = json!(choice);
        body["stream"] = json!(true);
        assert_eq!(joined(&worker.stream(CHAT, body.clone()).await).0["content"], expected);
    }
}

/// Starts a worker whose template writes calls between these marks.
async fn start_with_marks(name: &str, [start, end]: [&str; 2]) -> TestWorker {
    let path = folder().join(name);
    let template = "{%- if tools %}{{ 'Tools:' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{%- endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}{%- for call in m.tool_calls or [] %}{{ 'START{\"name\": \"' + call.function.name + '\", \"arguments\": ' + (call.function.arguments | tojson) + '}END' }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}";
    std::fs::write(&path, template.replace("START", start).replace("END", end)).expect("the file can be written");
    TestWorker::start(&format!("--slots 1 --ctx-size 2048 --chat-template-file {}", path.display())).await
}

#[tokio::test]
async fn an_optional_call_follows_the_grammar_from_its_start_on() {
    let worker = start_with_marks("calls.jinja", ["<tool_call>", "</tool_call>"]).await;
    // The bias makes the model begin a call wherever the grammar allows it, which is once.
    let mut body = ask(json!("auto"));
    body["logit_bias"] = json!([["<tool_call>", 100]]);
    let answer = worker.ask(CHAT, body).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["tool_calls"].as_array().map(Vec::len), Some(1), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
    let name = message["tool_calls"][0]["function"]["name"].as_str().expect("a name");
    check_call(&message["tool_calls"][0], name);
}

#[tokio::test]
async fn marks_of_calls_may_be_control_tokens() {
    let worker = start_with_marks("control.jinja", ["<|fim_prefix|>", "<|fim_suffix|>"]).await;
    let token = async |text: &str| {
        let body = json!({"content": text, "add_special": false, "parse_special": true});
        worker.ask("/tokenize", body).await["tokens"][0].clone()
    };
    let (start, end) = (token("<|fim_prefix|>").await, token("<|fim_suffix|>").await);
    for choice in ["auto", "required"] {
        let mut body = ask(json!(choice));
        // The marks could also be spelled with other tokens.
        body["logit_bias"] = json!([[start, 100], [end, 90], ["<", -100]]);
        let answer = worker.ask(CHAT, body).await;
        let message = &answer["choices"][0]["message"];
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{choice}: {answer}");
        let name = message["tool_calls"][0]["function"]["name"].as_str().expect("a name");
        check_call(&message["tool_calls"][0], name);
    }
}

#[tokio::test]
async fn an_answer_cut_off_within_a_call_returns_the_call_so_far() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let mut body = ask(json!({"type": "function", "function": {"name": "get_weather"}}));
    let whole = worker.ask(CHAT, body.clone()).await;
    let n_tokens = whole["usage"]["completion_tokens"].as_u64().expect("a count");
    let arguments = &whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"];
    for n in 1..n_tokens {
        body["max_tokens"] = json!(n);
        let cut = worker.ask(CHAT, body.clone()).await;
        assert_eq!(cut["choices"][0]["finish_reason"], "length", "{cut}");
        let call = &cut["choices"][0]["message"]["tool_calls"][0];
        let part = call["function"]["arguments"].as_str().unwrap_or_default();
        assert!(arguments.as_str().is_some_and(|whole| whole.starts_with(part)), "{part:?} of {arguments}");
    }
}

#[tokio::test]
async fn an_assistant_message_is_continued() {
    let worker = TestWorker::start("--slots 1 --ctx-size 512").await;
    let mut messages = user("Tell me a story");
    messages.as_array_mut().expect("a list").push(json!({"role": "assistant", "content": "Once upon"}));
    let prompt = worker.ask("/apply-template", json!({"messages": messages})).await["prompt"].clone();
    let prompt = prompt.as_str().expect("a text");
    assert!(prompt.ends_with("<|im_start|>assistant\nOnce upon"), "{prompt}");
    let body = json!({"messages": messages, "temperature": 0, "max_tokens": 8});
    let chat = worker.ask(CHAT, body).await;
    let raw = worker.ask("/v1/completions", json!({"prompt": prompt, "temperature": 0, "max_tokens": 8})).await;
    assert_eq!(chat["choices"][0]["message"]["content"], raw["choices"][0]["text"]);
}

#[tokio::test]
async fn reasoning_is_separated_as_requested() {
    let path = folder().join("thinks.jinja");
    let template = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{%- if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}{{ m.content + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{ '<think>\\n' }}{%- endif %}{%- endif %}";
    std::fs::write(&path, template).expect("the file can be written");
    let worker = TestWorker::start(&format!("--slots 1 --ctx-size 512 --chat-template-file {}", path.display())).await;
    let message = async |extra: Value| {
        let mut body = json!({"messages": user("Why?"), "temperature": 0, "max_tokens": 6});
        body.as_object_mut().expect("a body").extend(extra.as_object().cloned().unwrap_or_default());
        let answer = worker.ask(CHAT, body).await;
        (answer["choices"][0]["message"].clone(), answer["usage"]["completion_tokens_details"].clone())
    };
    let (thinking, details) = message(json!({})).await;
    let thoughts = thinking["reasoning_content"].as_str().expect("it thinks").to_owned();
    assert_eq!((&thinking["content"], &details["reasoning_tokens"]), (&json!(""), &json!(6)), "{thinking}");
    let (raw, details) = message(json!({"reasoning_format": "none"})).await;
    assert_eq!((raw.get("reasoning_content"), &details["reasoning_tokens"]), (None, &json!(0)));
    assert!(raw["content"].as_str().is_some_and(|content| content.contains(thoughts.trim())), "{raw}");
    let (both, _) = message(json!({"reasoning_format": "deepseek-legacy"})).await;
    assert_eq!(both["content"], format!("<think>{thoughts}"));
    for off in [json!({"chat_template_kwargs": {"enable_thinking": false}}), json!({"reasoning_effort": "none"})] {
        let (quiet, details) = message(off).await;
        assert_eq!((quiet.get("reasoning_content"), &details["reasoning_tokens"]), (None, &json!(0)), "{quiet}");
        assert!(quiet["content"].as_str().is_some_and(|content| !content.is_empty()));
    }
    let (status, refused) = worker.try_ask(CHAT, &json!({"messages": user("a"), "reasoning_format": "loud"})).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("reasoning_format")));
}
