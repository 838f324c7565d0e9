//! Tests of all dialects' conversions: they never panic, names can be mapped back, every result is a readable chat.

mod deferred_tools;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::openai::ChatPrompt;

/// A conversion.
type Convert = fn(&[u8]) -> Result<Converted, DialectError>;

const CONVERSIONS: [Convert; 3] = [anthropic::messages, anthropic::count_tokens, responses::responses];

/// A conversion of one of Ollama's requests.
type ConvertOllama = fn(&[u8]) -> Result<ollama::OllamaRequest, DialectError>;

const OF_OLLAMA: [ConvertOllama; 4] = [ollama::chat, ollama::generate, ollama::embed, ollama::embeddings];

/// Values that the conversions look for.
const WORDS: &str = "system user assistant text tool_use tool_result thinking function function_call function_call_output reasoning \
    message input_text auto any tool ephemeral 5m json_schema namespace custom web_search custom_tool_call grammar bash_1 \
    tool_reference tool_addition tool_removal tool_definition tool_search tool_search_call tool_search_output \
    tool_search_tool_result server_tool_use additional_tools compaction client json low 5m 0 iVBORw0KGgo //s User";
/// Field names that the conversions look for.
const NAMES: &str = "type role content text system messages input max_tokens tools tool_choice name id call_id tool_use_id arguments \
    output input_schema parameters thinking summary instructions cache_control ttl output_config format schema reasoning effort \
    stop_sequences metadata chat_template_kwargs include store background namespace definition syntax mcp_servers x \
    defer_loading tool tool_name tool_references tool_changes execution model images tool_calls tool_call_id options format think \
    keep_alive prompt suffix system raw template context stream num_predict temperature stop logprobs top_logprobs dimensions";

/// Returns JSON made of these names and values.
fn some_json() -> impl Strategy<Value = Value> {
    let one_of = |words: &'static str| proptest::sample::select(words.split_whitespace().collect::<Vec<_>>());
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        one_of(WORDS).prop_map(Value::from),
        "[a-z`\\[\\]\\.]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((one_of(NAMES), inner), 0..8)
                .prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_json_is_converted_to_a_chat_or_refused_with_the_field(body in some_json(), messages in some_json()) {
        let mut body = body;
        if let Value::Object(fields) = &mut body {
            // Without these fields most random bodies would fail at the first missing one.
            for name in ["messages", "input"] {
                fields.entry(name).or_insert(json!([messages.clone()]));
            }
            fields.entry("max_tokens").or_insert(json!(1));
        }
        for convert in CONVERSIONS {
            match convert(body.to_string().as_bytes()) {
                Ok(converted) => {
                    let chat: Value = serde_json::from_slice(&converted.body).expect("a chat is JSON");
                    let messages = chat["messages"].as_array().expect("a chat has messages");
                    for (idx, message) in messages.iter().enumerate() {
                        prop_assert!(message["role"].is_string(), "{chat}");
                        let origin = converted.spelling.param(&format!("messages[{idx}]"));
                        prop_assert!(!origin.is_empty() && lookup(&body, &origin).is_some(), "{origin} in {body}");
                    }
                }
                Err(error) if body.is_object() => prop_assert!(error.param().is_some(), "{error}: {body}"),
                Err(_) => {}
            }
        }
    }

    #[test]
    fn any_json_is_a_request_of_ollama_s_api_or_refused_with_the_field(body in some_json(), messages in some_json()) {
        let mut body = body;
        if let Value::Object(fields) = &mut body {
            fields.entry("messages").or_insert(json!([messages]));
        }
        for convert in OF_OLLAMA {
            match convert(body.to_string().as_bytes()) {
                Ok(mut request) => {
                    let text = request.take_body(Some("m"));
                    let converted: Value = serde_json::from_slice(&text).expect("a request is JSON");
                    for (idx, _) in converted["messages"].as_array().into_iter().flatten().enumerate() {
                        let origin = request.spelling.param(&format!("messages[{idx}]"));
                        // A question may have images only.
                        prop_assert!(origin == "prompt" || lookup(&body, &origin).is_some(), "{origin} in {body}");
                    }
                }
                Err(error) if body.is_object() => prop_assert!(error.param().is_some(), "{error}: {body}"),
                Err(_) => {}
            }
        }
    }

    #[test]
    fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        for convert in CONVERSIONS {
            prop_assert!(convert(&bytes).is_err());
        }
        for convert in OF_OLLAMA {
            prop_assert!(convert(&bytes).is_err());
        }
    }
}

/// Returns the value at a path such as `a[0].b`.
fn lookup<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let pointer = path.replace(['.', '['], "/").replace(']', "");
    value.pointer(&format!("/{pointer}"))
}

#[test]
fn errors_say_whether_a_body_is_not_json_or_not_an_object() {
    for convert in CONVERSIONS {
        for body in ["", "{", "{} {}"] {
            let error = convert(body.as_bytes()).expect_err(body);
            assert!(matches!(error, DialectError::Read(ReadError::Json { .. })), "{body}: {error:?}");
        }
        let error = convert(b"[]").expect_err("an array is no request");
        assert_eq!(error.param(), None, "{error:?}");
    }
}

#[test]
fn a_converted_body_is_read_as_a_chat() {
    let body =
        json!({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}], "model": "m", "cache_salt": "s"});
    let converted = anthropic::messages(body.to_string().as_bytes()).expect("it can be converted");
    let chat: ChatPrompt = fields::read(&converted.body).expect("a chat");
    assert_eq!((chat.model.as_deref(), chat.cache_salt.as_deref()), (Some("m"), Some("s")));
    assert_eq!(chat.messages[0]["content"], "Hi");
}

#[test]
fn errors_have_the_client_s_field_names() {
    let body = json!({"max_tokens": 1, "system": "Be brief.", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "b"}]});
    let spelling = anthropic::messages(body.to_string().as_bytes()).expect("it can be converted").spelling;
    let check = |chat: &str, own: &str| assert_eq!(spelling.param(chat), own);
    check("messages[0]", "system");
    check("messages[1].content", "messages[0].content[0]");
    check("messages[2]", "messages[1]");
    check("messages[9]", "messages[9]");
    check("messages", "messages");
    check("stop", "stop_sequences");
    check("stop[2]", "stop_sequences[2]");
    check("stopper", "stopper");
    check("tools[3].function.name", "tools[3].name");
    check("tools[3].function.parameters.type", "tools[3].input_schema.type");
    check("tools", "tools");
    check("tool_choice.function.name", "tool_choice.name");
    check("temperature", "temperature");
    assert_eq!(spelling.text("`stop` has 33 texts", "stop"), "`stop_sequences` has 33 texts");
    assert_eq!(spelling.text("messages[1]: role must be", "messages[1]"), "messages[0].content[0]: role must be");
    assert_eq!(spelling.text("`temperature` is 9", "temperature"), "`temperature` is 9");

    let body = json!({"instructions": "Be brief.", "input": [{"role": "user", "content": "a"}]});
    let spelling = responses::responses(body.to_string().as_bytes()).expect("it can be converted").spelling;
    let check = |chat: &str, own: &str| assert_eq!(spelling.param(chat), own);
    check("messages[0]", "instructions");
    check("messages[1]", "input[0]");
    check("messages", "input");
    check("max_completion_tokens", "max_output_tokens");
    check("tools[0].function.parameters", "tools[0].parameters");
    check("response_format.json_schema.schema", "text.format.schema");
    check("response_format", "text.format");
}

#[test]
fn empty_lists_in_place_of_maps_are_empty_maps() {
    let read = |convert: Convert, body: &Value| {
        let converted = convert(body.to_string().as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"));
        fields::read::<ChatPrompt>(&converted.body).unwrap_or_else(|error| panic!("{body}: {error}"))
    };
    let messages = |empty: Value| {
        json!({
            "max_tokens": 1,
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": empty}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "b"}]},
            ],
            "tools": [
                {"name": "f", "input_schema": empty},
                {"name": "g", "input_schema": {"type": "object", "properties": {"x": empty}, "$defs": empty}},
            ],
        })
    };
    let responses = |empty: Value, arguments: Value| {
        json!({
            "input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": arguments}],
            "tools": [
                {"type": "function", "name": "f", "parameters": empty},
                {"type": "function", "name": "g", "parameters": {"type": "object", "properties": empty}},
            ],
        })
    };
    let expected = read(anthropic::messages, &messages(json!({})));
    assert_eq!(read(anthropic::messages, &messages(json!([]))), expected);
    let expected = read(responses::responses, &responses(json!({}), json!("{}")));
    assert_eq!(read(responses::responses, &responses(json!([]), json!([]))), expected);
    assert_eq!(read(responses::responses, &responses(json!([]), json!({}))), expected);
    let nothing = |mut body: Value, fields: &[&str]| {
        fields.iter().for_each(|field| body[*field] = json!([]));
        body
    };
    let fields = ["metadata", "tool_choice", "thinking", "output_config", "chat_template_kwargs", "cache_control"];
    read(anthropic::messages, &nothing(messages(json!({})), &fields));
    let fields = ["metadata", "tool_choice", "reasoning", "text", "chat_template_kwargs", "prompt", "conversation"];
    read(responses::responses, &nothing(responses(json!({}), json!("{}")), &fields));
}
