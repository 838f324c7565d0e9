//! Responses that must be JSON: the fields that request them, at both endpoints, whole and streamed, and refusals.
//!
//! Not here: whether schemas are followed in every detail (the engine's tests).

use serde_json::{Value, json};

use crate::harness::{TestWorker, folder, user};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn person() -> Value {
    json!({
        "type": "object",
        "properties": { "name": { "type": "string", "maxLength": 8 }, "age": { "type": "integer", "minimum": 0, "maximum": 99 } },
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

fn by_name(schema: &Value) -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "answer", "strict": true, "schema": schema } })
}

fn chat(extra: Value) -> Value {
    with(json!({ "messages": user("Who are you?"), "max_tokens": 200, "temperature": 0 }), extra)
}

fn completion(extra: Value) -> Value {
    with(json!({ "prompt": "Who are you?", "max_tokens": 200, "temperature": 0 }), extra)
}

fn with(mut body: Value, extra: Value) -> Value {
    if let (Value::Object(body), Value::Object(extra)) = (&mut body, extra) {
        body.extend(extra);
    }
    body
}

fn check_person(text: &Value) {
    let text = text.as_str().expect("an answer has a text");
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(jsonschema::is_valid(&person(), &value), "{value}");
}

#[tokio::test]
async fn schemas_in_all_fields_are_followed() {
    let worker = TestWorker::start("--slots 2").await;
    let asks = [
        json!({ "response_format": by_name(&person()) }),
        json!({ "response_format": { "type": "json_object", "schema": person() } }),
        json!({ "json_schema": person() }),
    ];
    for ask in asks {
        let answer = worker.ask(CHAT, chat(ask.clone())).await;
        check_person(&answer["choices"][0]["message"]["content"]);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let answer = worker.ask(COMPLETIONS, completion(ask)).await;
        check_person(&answer["choices"][0]["text"]);
    }
    let closing = json!({ "response_format": { "type": "json_object" }, "logit_bias": [["}", 100]] });
    let answer = worker.ask(CHAT, chat(closing)).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "{}");
    let text = worker.ask(CHAT, chat(json!({ "response_format": { "type": "text" }, "max_tokens": 3 }))).await;
    assert_eq!(text["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn a_stream_and_several_choices_follow_the_schema() {
    let worker = TestWorker::start("--slots 3").await;
    let body = chat(json!({ "response_format": by_name(&person()), "stream": true }));
    let text: String = worker
        .stream(CHAT, body)
        .await
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    check_person(&json!(text));
    let several =
        json!({ "response_format": by_name(&person()), "n": 3, "temperature": 50, "top_k": 0, "min_p": 0, "seed": 5 });
    let answer = worker.ask(CHAT, chat(several)).await;
    let texts: Vec<&Value> = (0..3).map(|k| &answer["choices"][k]["message"]["content"]).collect();
    texts.iter().for_each(|text| check_person(text));
    assert_ne!(texts[0], texts[1], "both choices are the same");
}

#[tokio::test]
async fn the_token_limit_and_stop_texts_end_an_answer_before_it_is_complete() {
    let worker = TestWorker::start("--slots 1").await;
    let format = by_name(&person());
    let cut = worker.ask(CHAT, chat(json!({ "response_format": format, "max_tokens": 2 }))).await;
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(cut["usage"]["completion_tokens"], 2);
    let stopped = worker.ask(CHAT, chat(json!({ "response_format": format, "stop": "age" }))).await;
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert!(!stopped["choices"][0]["message"]["content"].as_str().expect("a text").contains("age"));
}

#[tokio::test]
async fn a_model_reasons_before_it_follows_a_schema_unless_reasoning_is_off() {
    let path = folder().join("thinks-first.jinja");
    let template = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{%- if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}{{ m.content + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{ '<think>\\n' }}{%- endif %}{%- endif %}";
    std::fs::write(&path, template).expect("the file can be written");
    let worker = TestWorker::start(&format!("--slots 1 --ctx-size 2048 --chat-template-file {}", path.display())).await;
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } }, "required": ["a"], "additionalProperties": false });
    // All tokens are about equally likely, except for the end of the reasoning.
    let base = json!({
        "response_format": by_name(&schema), "temperature": 50, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 3,
        "logit_bias": [["</think>", 100]], "max_tokens": 1500,
    });
    let asked = |extra: Value| with(chat(base.clone()), extra);
    let check = |content: &Value| {
        let value: Value = serde_json::from_str(content.as_str().expect("a text")).expect("JSON");
        assert!(value == json!({ "a": 1 }) || value == json!({ "a": 2 }), "{value}");
    };
    let answer = worker.ask(CHAT, asked(json!({}))).await;
    let message = &answer["choices"][0]["message"];
    check(&message["content"]);
    let thoughts = message["reasoning_content"].as_str().expect("it thinks").to_owned();
    assert!(
        answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().is_some_and(|n| n > 1),
        "{answer}"
    );
    let (mut content, mut reasoning) = (String::new(), String::new());
    for event in worker.stream(CHAT, asked(json!({ "stream": true }))).await {
        let delta = &event["choices"][0]["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
    }
    check(&json!(content));
    assert_eq!(reasoning, thoughts);
    for off in [json!({ "chat_template_kwargs": { "enable_thinking": false } }), json!({ "reasoning_format": "none" })]
    {
        let message = worker.ask(CHAT, asked(off)).await["choices"][0]["message"].clone();
        check(&message["content"]);
        assert_eq!(message.get("reasoning_content"), None, "{message}");
    }
}

#[tokio::test]
async fn fields_that_conflict_with_a_schema_are_refused_by_name() {
    let worker = TestWorker::start("--slots 1").await;
    let format = by_name(&person());
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": {} } }]);
    let schema = "response_format.json_schema.schema";
    let cases = [
        (json!({ "response_format": format, "grammar": "root ::= \"a\"" }), "grammar"),
        (json!({ "response_format": format, "ignore_eos": true }), "ignore_eos"),
        (json!({ "response_format": format, "json_schema": {} }), "json_schema"),
        (json!({ "json_schema": {}, "tools": tools, "grammar": "root ::= \"a\"" }), "grammar"),
        (json!({ "response_format": { "type": "yaml" } }), "response_format.type"),
        (json!({ "response_format": by_name(&json!({ "type": "text" })) }), &format!("{schema}.type")),
        (json!({ "response_format": by_name(&json!({ "not": {} })) }), &format!("{schema}.not")),
        (
            json!({ "response_format": by_name(&json!({ "items": { "$ref": "http://127.0.0.1:1/x" } })) }),
            &format!("{schema}.items.$ref"),
        ),
        (json!({ "response_format": by_name(&json!({ "pattern": "(" })) }), &format!("{schema}.pattern")),
        (json!({ "response_format": by_name(&json!(false)) }), schema),
        (json!({ "json_schema": { "const": 1, "type": "string" } }), "json_schema"),
    ];
    for (extra, param) in cases {
        let (status, answer) = worker.try_ask(CHAT, &chat(extra.clone())).await;
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some(param)), "{extra}: {answer}");
        assert_eq!(answer["error"]["type"], "invalid_request_error");
        if extra.to_string().contains("\"pattern\"") {
            let message = answer["error"]["message"].as_str().expect("a text");
            assert!(message.contains("unclosed group") && !message.contains(['\n', '^']), "{message}");
        }
    }
    let without = json!({ "response_format": format, "tools": tools, "tool_choice": "none" });
    check_person(&worker.ask(CHAT, chat(without)).await["choices"][0]["message"]["content"]);
}
