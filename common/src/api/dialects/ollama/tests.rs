//! Tests of Ollama's requests: what each becomes, and what is refused. Random bodies are in `dialects::tests`.

use super::*;
use crate::api::openai::ChatPrompt;
use crate::json::fields;

type Convert = fn(&[u8]) -> Result<OllamaRequest, DialectError>;

fn converted(convert: Convert, body: &Value) -> (OllamaRequest, Value) {
    let mut request = convert(body.to_string().as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"));
    let text = request.take_body(Some("m"));
    (request, serde_json::from_slice(&text).expect("it is JSON"))
}

#[track_caller]
fn check(convert: Convert, body: Value, task: OllamaTask, expected: Value) {
    let (request, mut converted) = converted(convert, &body);
    assert_eq!(request.task, task, "{body}");
    converted.as_object_mut().expect("an object").remove("model");
    assert_eq!(converted, expected, "{body}");
}

#[track_caller]
fn refuse(convert: Convert, body: Value, param: &str) {
    let error = convert(body.to_string().as_bytes()).expect_err("it is refused");
    assert_eq!(error.param(), Some(param), "{body}: {error}");
}

fn whole(mut body: Value) -> Value {
    body["stream"] = json!(false);
    body
}

#[test]
fn a_chat_becomes_a_chat_and_streams_unless_told_otherwise() {
    let hi = json!([{"role": "User", "content": "Hi"}]);
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let streamed = json!({"messages": messages, "stream": true, "stream_options": {"include_usage": true}});
    check(chat, json!({"messages": hi}), OllamaTask::Chat, streamed);
    check(chat, whole(json!({"messages": hi})), OllamaTask::Chat, json!({"messages": messages, "stream": false}));
    let (request, body) = converted(chat, &json!({"model": "tiny:latest", "messages": hi}));
    assert_eq!(
        (request.model.as_deref(), request.form, &body["model"]),
        (Some("tiny:latest"), AnswerForm::Chat, &json!("m"))
    );
    let read: ChatPrompt = fields::read(body.to_string().as_bytes()).expect("a chat");
    assert_eq!(read.messages[0]["content"], "Hi");
}

#[test]
fn a_prompt_becomes_a_chat_a_completion_or_a_gap() {
    let of = |body: Value| whole(body);
    let question = json!({"role": "user", "content": "Hi"});
    let expected = json!({"messages": [{"role": "system", "content": "s"}, question], "stream": false});
    check(generate, of(json!({"prompt": "Hi", "system": "s"})), OllamaTask::Chat, expected);
    let raw = json!({"prompt": "Hi", "stream": false, "logprobs": 2});
    let asked = json!({"prompt": "Hi", "raw": true, "logprobs": true, "top_logprobs": 2, "context": []});
    check(generate, of(asked), OllamaTask::Completion, raw);
    let gap = json!({"prompt": "a", "suffix": "b", "stream": false});
    check(generate, of(json!({"prompt": "a", "suffix": "b"})), OllamaTask::Completion, gap);
    for (body, param) in [
        (json!({"prompt": "a", "template": "t"}), "template"),
        (json!({"prompt": "a", "context": [1]}), "context"),
        (json!({"prompt": "a", "raw": true, "system": "s"}), "system"),
        (json!({"prompt": "a", "raw": true, "images": ["x"]}), "images"),
        (json!({"prompt": 1}), "prompt"),
        (json!({"prompt": "a", "raw": "yes"}), "raw"),
    ] {
        refuse(generate, body, param);
    }
}

#[test]
fn a_request_without_a_prompt_loads_or_unloads_its_model() {
    for (keep_alive, task) in [
        (json!(null), OllamaTask::Load),
        (json!("5m"), OllamaTask::Load),
        (json!(-1), OllamaTask::Load),
        (json!("-1"), OllamaTask::Load),
        (json!("1h0.5s"), OllamaTask::Load),
        (json!(0), OllamaTask::Unload),
        (json!(0.0), OllamaTask::Unload),
        (json!("0"), OllamaTask::Unload),
        (json!("0m0s"), OllamaTask::Unload),
    ] {
        let body = json!({"model": "a", "keep_alive": keep_alive});
        for convert in [chat, generate, embed, embeddings] {
            assert_eq!(converted(convert, &body).0.task, task, "{body}");
        }
    }
    for keep_alive in [json!("soon"), json!("m"), json!(true), json!("5x"), json!(""), json!("1..2s"), json!("1m-2s")] {
        refuse(generate, json!({"prompt": "a", "keep_alive": keep_alive}), "keep_alive");
    }
}

#[test]
fn options_have_the_names_of_a_chat_and_unknown_ones_are_ignored() {
    let options = json!({"temperature": 0.5, "num_predict": 7, "stop": ["a"], "num_keep": 4, "num_ctx": 99, "x": 1,
        "seed": 3, "top_k": null});
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let expected = json!({"messages": messages, "stream": false, "max_tokens": 7, "n_keep": 4, "temperature": 0.5,
        "seed": 3, "stop": ["a"]});
    check(chat, whole(json!({"messages": messages, "options": options, "y": 1})), OllamaTask::Chat, expected.clone());
    for no_limit in [-2, -1, 0] {
        let (_, body) = converted(chat, &json!({"messages": messages, "options": {"num_predict": no_limit}}));
        assert_eq!(body.get("max_tokens"), None, "{no_limit}");
    }
    let (request, _) = converted(chat, &json!({"messages": messages}));
    for (name, own) in [
        ("temperature", "options.temperature"),
        ("max_tokens", "options.num_predict"),
        ("stop[1]", "options.stop[1]"),
        ("mirostat", "options.mirostat"),
        ("response_format.json_schema.schema.type", "format.type"),
        ("messages[0].content", "messages[0]"),
        ("tools[0].function.parameters", "tools[0].function.parameters"),
    ] {
        assert_eq!(request.spelling.param(name), own);
    }
}

#[test]
fn format_think_and_log_probabilities_are_those_of_a_chat() {
    let of = |name: &str, value: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body[name] = value;
        body
    };
    let read = |name: &str, value: Value| converted(chat, &of(name, value)).1;
    assert_eq!(read("format", json!("json"))["response_format"], json!({"type": "json_object"}));
    let schema = json!({"type": "object"});
    assert_eq!(read("format", schema.clone())["response_format"]["json_schema"]["schema"], schema);
    assert_eq!(read("format", json!("")).get("response_format"), None);
    assert_eq!(read("think", json!(false))["chat_template_kwargs"], json!({"enable_thinking": false}));
    let high = read("think", json!("high"));
    assert_eq!(
        (&high["reasoning_effort"], &high["chat_template_kwargs"]["enable_thinking"]),
        (&json!("high"), &json!(true))
    );
    assert_eq!(read("logprobs", json!(true))["top_logprobs"], 0);
    assert_eq!(read("top_logprobs", json!(3.0)).get("logprobs"), None);
    assert_eq!(read("cache_salt", json!("s"))["cache_salt"], "s");
    for (name, value) in [
        ("format", json!("yaml")),
        ("format", json!([1])),
        ("think", json!("very")),
        ("think", json!(1)),
        ("stream", json!("yes")),
        ("top_logprobs", json!(21)),
        ("top_logprobs", json!(-1)),
        ("logprobs", json!(5)),
        ("_debug_render_only", json!(true)),
        ("options", json!("hot")),
        ("tools", json!({"a": 1})),
        ("model", json!(5)),
    ] {
        refuse(chat, of(name, value), name);
    }
}

#[test]
fn calls_get_ids_by_their_place_and_results_find_their_call() {
    let call = |name: &str| json!({"function": {"name": name, "arguments": {"a": 1}}});
    let body = json!({"messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "thinking": "so", "tool_calls": [call("f"), call("g"), call("f")]},
        {"role": "tool", "content": "1", "tool_name": "g"},
        {"role": "tool", "content": "2", "tool_name": "f"},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "4", "tool_call_id": "mine"},
        {"role": "tool", "content": "5", "name": "h"},
    ]});
    let (_, chat) = converted(chat, &body);
    let messages = chat["messages"].as_array().expect("messages");
    let said = &messages[1];
    assert_eq!((&said["content"], &said["reasoning_content"]), (&Value::Null, &json!("so")));
    assert_eq!(said["tool_calls"][1]["id"], "call_1");
    assert_eq!(said["tool_calls"][0]["function"], json!({"name": "f", "arguments": "{\"a\":1}"}));
    let ids: Vec<_> = messages[2..].iter().map(|message| message["tool_call_id"].as_str().expect("an id")).collect();
    assert_eq!(ids, ["call_1", "call_0", "call_2", "mine", "h"]);
    for wrong in [json!({"function": {"name": "f", "arguments": 1}}), json!({"function": {}}), json!({}), json!(1)] {
        let body = json!({"messages": [{"role": "assistant", "tool_calls": [wrong]}]});
        let error = super::chat(body.to_string().as_bytes()).expect_err("it is refused");
        assert!(error.param().is_some_and(|param| param.starts_with("messages[0].tool_calls[0]")), "{error}");
    }
}

#[test]
fn images_stand_before_the_text_and_audio_is_recognized() {
    let message = |file: &str| {
        let (_, chat) = converted(chat, &json!({"messages": [{"role": "user", "content": "Hi", "images": [file]}]}));
        chat["messages"][0]["content"].clone()
    };
    let url = |file: &str| message(file)[0]["image_url"]["url"].as_str().expect("an image").to_owned();
    assert_eq!(url("/9j/4AAQ"), "data:image/jpeg;base64,/9j/4AAQ");
    assert_eq!(url("data:image/gif;base64,R0lGODdh"), "data:image/gif;base64,R0lGODdh");
    assert_eq!(url("UklGRgAAAABXRUJQ"), "data:image/webp;base64,UklGRgAAAABXRUJQ");
    assert_eq!(url("äöü"), "data:image/png;base64,äöü", "the server refuses it");
    assert_eq!(message("iVBORw0KGgo")[1], json!({"type": "text", "text": "Hi"}));
    for (file, format) in [("UklGRgAAAABXQVZF", "wav"), ("SUQzBAAA", "mp3"), ("//uQ", "mp3"), ("ZkxhQw", "flac")] {
        assert_eq!(message(file)[0]["input_audio"]["format"], format);
    }
    let (request, chat) = converted(generate, &json!({"images": ["iVBORw0KGgo"]}));
    assert_eq!((request.task, chat["messages"][0]["content"].as_array().map(Vec::len)), (OllamaTask::Chat, Some(1)));
    refuse(super::chat, json!({"messages": [{"role": "user", "images": [5]}]}), "messages[0].images[0]");
}

#[test]
fn texts_to_embed_are_one_or_many() {
    let many = json!({"input": ["a", "b"], "truncate": true, "dimensions": 8});
    check(embed, json!({"input": ["a", "b"], "dimensions": 8, "options": {"x": 1}}), OllamaTask::Embeddings, many);
    let one = json!({"input": "a", "truncate": false});
    check(embed, json!({"input": "a", "truncate": false, "dimensions": 0}), OllamaTask::Embeddings, one);
    check(embeddings, json!({"prompt": "a"}), OllamaTask::Embeddings, json!({"input": "a"}));
    for empty in [json!({"input": ""}), json!({"input": []}), json!({})] {
        check(embed, empty, OllamaTask::Load, json!({}));
    }
    refuse(embed, json!({"input": [1]}), "input[0]");
    refuse(embed, json!({"input": {"a": 1}}), "input");
    assert_eq!(converted(embeddings, &json!({"prompt": "a"})).0.spelling.param("input"), "prompt");
}

#[test]
fn a_model_is_shown_by_either_name_and_paths_are_ollama_s_below_api() {
    let shown = |body: Value| shown_model(body.to_string().as_bytes()).expect("it is valid");
    assert_eq!(shown(json!({"model": "a", "name": "b"})).as_deref(), Some("a"));
    assert_eq!(shown(json!({"name": "b", "verbose": true})).as_deref(), Some("b"));
    assert_eq!(shown(json!({})), None);
    for (path, expected) in [("/api/chat", true), ("/api", true), ("/apidocs", false), ("/v1/api/chat", false)] {
        assert_eq!(is_path(path), expected, "{path}");
    }
}
