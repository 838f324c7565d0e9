//! Tests of the conversion of messages: every kind of block, and what is refused under which field name.

use super::*;

fn convert(body: Value) -> Value {
    let converted = count_tokens(body.to_string().as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"));
    serde_json::from_slice(&converted.body).expect("a chat is JSON")
}

/// Checks the chat messages that `messages` become.
#[track_caller]
fn check(messages: Value, expected: Value) {
    assert_eq!(convert(json!({"messages": messages}))["messages"], expected);
}

/// Checks the chat, without its messages, of a request with `fields`.
#[track_caller]
fn check_fields(fields: Value, expected: Value) {
    let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
    body.as_object_mut().expect("an object").append(&mut fields.as_object().expect("an object").clone());
    let mut chat = convert(body);
    chat.as_object_mut().expect("an object").remove("messages");
    assert_eq!(chat, expected);
}

#[track_caller]
fn check_refused(body: Value, param: &str, says: &str) {
    let error = count_tokens(body.to_string().as_bytes()).expect_err("it is refused");
    assert_eq!(error.param(), Some(param), "{error}");
    assert!(error.to_string().contains(says) && error.to_string().contains(param), "{error}");
}

#[track_caller]
fn check_unsupported(body: Value, param: &str, says: &str) {
    check_refused(body.clone(), param, says);
    let error = count_tokens(body.to_string().as_bytes()).expect_err("it is refused");
    assert!(matches!(error, DialectError::Unsupported { .. }), "{error:?}");
}

fn user(content: Value) -> Value {
    json!({"messages": [{"role": "user", "content": content}]})
}

#[test]
fn texts_and_blocks_of_text_are_messages() {
    check(json!([{"role": "user", "content": "a"}]), json!([{"role": "user", "content": "a"}]));
    let one = json!([{"role": "user", "content": [{"type": "text", "text": "a", "citations": null}]}]);
    check(one, json!([{"role": "user", "content": "a"}]));
    let two = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    check(two, json!([{"role": "user", "content": parts}]));
    check(json!([{"role": "user", "content": []}]), json!([{"role": "user", "content": ""}]));
}

#[test]
fn images_are_parts_of_a_chat_also_in_results() {
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}});
    let part = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}});
    check(json!([{"role": "user", "content": [image]}]), json!([{"role": "user", "content": [part]}]));
    let asked = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, image]}]);
    check(asked, json!([{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]));
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [image, {"type": "text", "text": "b"}]});
    let shown = json!({"role": "tool", "tool_call_id": "t", "content": [part, {"type": "text", "text": "b"}]});
    check(json!([{"role": "user", "content": [result]}]), json!([shown]));
    check_refused(user(json!([{"type": "image"}])), "messages[0].content[0].source", "missing");
    let nameless = json!({"type": "image", "source": {"type": "base64", "data": "AA=="}});
    check_refused(user(json!([nameless])), "messages[0].content[0].source.media_type", "missing");
}

#[test]
fn consecutive_messages_of_one_role_are_one_turn() {
    let messages = json!([
        {"role": "user", "content": "a"}, {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"}, {"role": "assistant", "content": "d"},
    ]);
    let parts = |a: &str, b: &str| json!([{"type": "text", "text": a}, {"type": "text", "text": b}]);
    check(
        messages,
        json!([{"role": "user", "content": parts("a", "b")}, {"role": "assistant", "content": parts("c", "d")}]),
    );
}

#[test]
fn the_system_prompt_is_the_first_message_without_the_line_of_claude_code() {
    let chat = |system: Value| {
        let mut body = user(json!("a"));
        body["system"] = system;
        convert(body)["messages"][0].clone()
    };
    assert_eq!(chat(json!("Be brief.")), json!({"role": "system", "content": "Be brief."}));
    let blocks = json!([
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1a2b;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ]);
    assert_eq!(chat(blocks), json!({"role": "system", "content": "Be brief."}));
    let line = json!("x-anthropic-billing-header: cch=1;\nBe brief.");
    assert_eq!(chat(line), json!({"role": "system", "content": "Be brief."}));
    assert_eq!(chat(json!("About x-anthropic-billing-header: what is it?"))["role"], "system");
    assert_eq!(chat(json!(""))["role"], "user", "no system prompt is no message");
}

#[test]
fn calls_results_and_reasoning_are_those_of_a_chat() {
    let messages = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "They want weather.", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"b": 1, "a": [2]}},
            {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "rain"},
            {"type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": [{"type": "text", "text": "none"}]},
            {"type": "text", "text": "And now?"},
        ]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t3", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3"}]},
    ]);
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}});
    let expected = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "reasoning_content": "They want weather.", "content": "I look.",
            "tool_calls": [call("t1", "{\"b\":1,\"a\":[2]}"), call("t2", "{}")]},
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "tool", "tool_call_id": "t2", "content": "none"},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": null, "tool_calls": [call("t3", "{}")]},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
    ]);
    check(messages, expected);
}

#[test]
fn tools_are_functions_and_choices_are_openai_s() {
    let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
    let tools =
        json!([{"name": "f", "description": "d", "input_schema": schema, "cache_control": {"type": "ephemeral"}}]);
    let function = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}});
    check_fields(
        json!({"tools": tools}),
        json!({"tools": [function], "priority": 1, "cache_breakpoints": [{"message": 0, "parts": 0}]}),
    );
    check_fields(json!({"tools": []}), json!({"tools": []}));
    for (choice, expected) in [
        (json!({"type": "auto"}), json!({"tool_choice": "auto"})),
        (json!({"type": "none"}), json!({"tool_choice": "none"})),
        (
            json!({"type": "any", "disable_parallel_tool_use": true}),
            json!({"tool_choice": "required", "parallel_tool_calls": false}),
        ),
        (json!({"type": "tool", "name": "f"}), json!({"tool_choice": {"type": "function", "function": {"name": "f"}}})),
    ] {
        check_fields(json!({"tool_choice": choice}), expected);
    }
}

#[test]
fn fields_have_a_chat_s_names_and_the_others_stay() {
    check_fields(json!({"stop_sequences": ["a"]}), json!({"stop": ["a"]}));
    check_fields(
        json!({"max_tokens": 5, "top_k": 3, "stream": true}),
        json!({"max_tokens": 5, "top_k": 3, "stream": true}),
    );
    check_fields(json!({"seed": 1, "cache_salt": "s"}), json!({"seed": 1, "cache_salt": "s"}));
    check_fields(
        json!({"metadata": {"user_id": "u"}, "service_tier": "auto", "n": 3, "n_cmpl": 3, "stop": "x"}),
        json!({}),
    );
    check_fields(json!({"mcp_servers": [], "container": null}), json!({}));
    let kwargs = |thinks: bool| json!({"chat_template_kwargs": {"enable_thinking": thinks}});
    let mut bounded = kwargs(true);
    bounded["thinking_budget_tokens"] = json!(1024);
    check_fields(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}), bounded);
    check_fields(json!({"thinking": {"type": "enabled", "budget_tokens": null}}), kwargs(true));
    check_fields(json!({"thinking": {"type": "adaptive"}}), kwargs(true));
    check_fields(json!({"thinking": {"type": "disabled", "budget_tokens": 1024}}), kwargs(false));
    let own = json!({"thinking": {"type": "enabled"}, "chat_template_kwargs": {"enable_thinking": false}});
    check_fields(own, kwargs(false));
    let schema = json!({"type": "object"});
    let format = json!({"type": "json_schema", "schema": schema});
    let written = json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": true}});
    check_fields(json!({"output_format": format}), json!({"response_format": written}));
    let config = json!({"output_config": {"format": format, "effort": "low"}});
    check_fields(config, json!({"response_format": written, "reasoning_effort": "low"}));
}

#[test]
fn cache_control_raises_the_priority_if_the_request_sets_none() {
    let control = |ttl: Value| json!({"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": ttl}});
    let priority = |body: Value| convert(body)["priority"].clone();
    assert_eq!(priority(user(json!([control(Value::Null)]))), 1);
    assert_eq!(priority(user(json!([control(json!("1h")), control(json!("5m"))]))), 2);
    assert_eq!(priority(user(json!("a"))), Value::Null);
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [control(json!("5m"))]});
    assert_eq!(priority(user(json!([result]))), 1);
    let mut body = user(json!([control(json!("1h"))]));
    body["priority"] = json!(-5);
    assert_eq!(priority(body), -5);
    let mut body = user(json!("a"));
    body["cache_control"] = json!({"type": "ephemeral"});
    assert_eq!(priority(body), 1);
}

#[test]
fn missing_and_wrong_fields_are_named() {
    let error = messages(user(json!("a")).to_string().as_bytes()).expect_err("an answer needs max_tokens");
    assert_eq!((error.param(), error.to_string().as_str()), (Some("max_tokens"), "`max_tokens` is missing"));
    check_refused(json!({}), "messages", "missing");
    check_refused(json!({"messages": []}), "messages", "empty");
    check_refused(json!({"messages": "a"}), "messages", "array");
    check_refused(json!({"messages": [5]}), "messages[0]", "object");
    check_refused(json!({"messages": [{"content": "a"}]}), "messages[0].role", "missing");
    check_refused(json!({"messages": [{"role": "tool", "content": "a"}]}), "messages[0].role", "assistant");
    check_refused(json!({"messages": [{"role": "user"}]}), "messages[0].content", "missing");
    check_refused(user(json!(5)), "messages[0].content", "string or an array");
    check_refused(user(json!(["a"])), "messages[0].content[0]", "object");
    check_refused(user(json!([{"text": "a"}])), "messages[0].content[0].type", "missing");
    check_refused(user(json!([{"type": "text"}])), "messages[0].content[0].text", "missing");
    check_refused(user(json!([{"type": "text", "text": 5}])), "messages[0].content[0].text", "string");
    check_refused(
        user(json!([{"type": "tool_use", "id": "a", "name": "b", "input": {}}])),
        "messages[0].content[0].type",
        "role `user`",
    );
    let with = |name: &str, value: Value| {
        let mut body = user(json!("a"));
        body[name] = value;
        body
    };
    check_refused(with("system", json!(5)), "system", "string or an array");
    check_refused(with("tools", json!([{"name": "f"}])), "tools[0].input_schema", "missing");
    check_refused(with("tools", json!([{"input_schema": {}}])), "tools[0].name", "missing");
    check_refused(with("tool_choice", json!("auto")), "tool_choice", "object");
    check_refused(with("tool_choice", json!({"type": "some"})), "tool_choice.type", "must be");
    check_refused(with("tool_choice", json!({"type": "tool"})), "tool_choice.name", "missing");
    check_refused(with("thinking", json!({"type": "some"})), "thinking.type", "must be");
    check_refused(with("cache_control", json!({"type": "forever"})), "cache_control.type", "ephemeral");
    check_refused(with("cache_control", json!({"type": "ephemeral", "ttl": "9h"})), "cache_control.ttl", "1h");
    check_refused(
        with("output_config", json!({"format": {"type": "xml"}})),
        "output_config.format.type",
        "json_schema",
    );
}

#[test]
fn features_of_anthropic_s_servers_are_refused() {
    let image = json!({"type": "image", "source": {"type": "url", "url": "u"}});
    check_unsupported(user(json!([image])), "messages[0].content[0].source.type", "`url`");
    for kind in ["document", "search_result", "container_upload", "server_tool_use", "web_search_tool_result"] {
        check_unsupported(user(json!([{"type": kind}])), "messages[0].content[0].type", kind);
    }
    let with = |name: &str, value: Value| {
        let mut body = user(json!("a"));
        body[name] = value;
        body
    };
    check_unsupported(with("container", json!("c")), "container", "containers");
    check_unsupported(with("container", json!({"id": null, "skills": [{}]})), "container", "containers");
    convert(with("container", json!({"id": null, "skills": []})));
    for thread in [json!({"type": "create"}), json!({"type": "continue", "previous_message_id": "m"})] {
        let mut body = with("thread", thread);
        body["max_tokens"] = json!(1);
        let error = messages(body.to_string().as_bytes()).expect_err("it is refused");
        assert_eq!((error.param(), error.code()), (Some("thread"), Some("thread_unsupported_request")));
    }
    let mut body = with("compaction", json!({"type": "summarize"}));
    body["max_tokens"] = json!(1);
    messages(body.to_string().as_bytes()).expect_err("it is refused");
    convert(body.clone());
    (body["compaction"], body["thread"]) = (json!(null), json!(null));
    messages(body.to_string().as_bytes()).expect("they ask for nothing");
}

#[test]
fn blocks_of_the_history_that_no_model_reads_are_kept_as_such() {
    let pdf = json!({"type": "document", "title": "T", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}});
    let unread = |block: &Value| {
        let mut block = block.clone();
        block["history"] = json!(true);
        block
    };
    let result = |content: Value| json!({"type": "tool_result", "tool_use_id": "t", "content": content});
    let shown = |content: Value| json!({"role": "tool", "tool_call_id": "t", "content": content});
    let read = json!([{"role": "user", "content": [result(json!("read")), pdf, {"type": "text", "text": "a"}]}]);
    let beside = json!({"role": "user", "content": [unread(&pdf), {"type": "text", "text": "a"}]});
    check(read, json!([shown(json!("read")), beside]));
    let url = json!({"type": "image", "source": {"type": "url", "url": "u"}});
    let inside = json!([{"role": "user", "content": [result(json!([pdf, url, {"type": "text", "text": null}]))]}]);
    check(inside, json!([shown(json!([unread(&pdf), unread(&url), {"type": "text", "text": ""}]))]));
    let earlier = json!([
        {"role": "user", "content": [pdf]}, {"role": "assistant", "content": [{"type": "unheard_of"}]},
        {"role": "user", "content": "b"},
    ]);
    let says = |role: &str, content: Value| json!({"role": role, "content": content});
    let kept = json!([
        says("user", json!([unread(&pdf)])),
        says("assistant", json!([unread(&json!({"type": "unheard_of"}))])),
        says("user", json!("b")),
    ]);
    check(earlier, kept);
    // The blocks of a message that is joined to the new one stay history.
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}});
    let part = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}});
    let joined = json!([{"role": "user", "content": [image]}, {"role": "user", "content": [image]}]);
    check(joined, json!([says("user", json!([unread(&part), part]))]));
    check_unsupported(
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [pdf]}]}),
        "messages[1].content[0].type",
        "document",
    );
}

#[test]
fn documents_of_text_are_texts_wherever_they_stand() {
    let document = json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}});
    check(json!([{"role": "user", "content": [document]}]), json!([{"role": "user", "content": "a"}]));
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [document]});
    let shown = json!({"role": "tool", "tool_call_id": "t", "content": "a"});
    check(json!([{"role": "user", "content": [result]}]), json!([shown]));
}

#[test]
fn results_of_any_json_are_texts_and_absent_content_is_empty() {
    for (content, text) in [
        (json!(5), "5"),
        (json!({"a": [true]}), "{\"a\":[true]}"),
        (json!([1, {"b": 2}]), "[1,{\"b\":2}]"),
        (json!(null), ""),
    ] {
        let result = json!({"type": "tool_result", "tool_use_id": "t", "content": content});
        let shown = json!({"role": "tool", "tool_call_id": "t", "content": text});
        check(json!([{"role": "user", "content": [result]}]), json!([shown]));
    }
    let empty = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": null}]);
    check(empty, json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]));
    let thought = json!([{"type": "thinking", "thinking": null}, {"type": "text", "text": null}]);
    let said = json!({"role": "assistant", "reasoning_content": "", "content": ""});
    check(json!([{"role": "assistant", "content": thought}]), json!([said]));
}

#[test]
fn tools_that_anthropic_s_servers_run_are_left_out_and_those_that_clients_run_have_a_schema() {
    let tools = json!([
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"name": "f", "input_schema": {"type": "object"}},
        {"type": "code_execution_20250522", "name": "code_execution"},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 1000},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 1024, "display_height_px": 768},
        {"type": "mcp_toolset", "mcp_server_name": "s"},
        {"type": "unheard_of_20990101", "name": "x"},
    ]);
    let mut body = user(json!("a"));
    body["tools"] = tools;
    body["mcp_servers"] = json!([{"type": "url", "url": "https://example.com", "name": "s"}]);
    let converted = count_tokens(body.to_string().as_bytes()).expect("it is served");
    assert_eq!(converted.tools.left_out(), ["mcp", "web_search", "code_execution", "computer", "other"]);
    let chat: Value = serde_json::from_slice(&converted.body).expect("JSON");
    let tools = chat["tools"].as_array().expect("tools");
    let names: Vec<_> = tools.iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names, ["f", "bash", "str_replace_based_edit_tool", "memory"]);
    for (tool, argument) in tools[1..].iter().zip(["restart", "insert_line", "old_path"]) {
        assert!(tool["function"]["parameters"]["properties"][argument].is_object(), "{tool}");
    }
    assert_eq!(converted.spelling.param("tools[1].function.name"), "tools[3].name");

    body["tool_choice"] = json!({"type": "tool", "name": "bash"});
    assert_eq!(convert(body.clone())["tool_choice"]["function"]["name"], "bash");
    body["tool_choice"] = json!({"type": "tool", "name": "web_search"});
    check_unsupported(body.clone(), "tool_choice.name", "left out");
    body["tools"] = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    body["tool_choice"] = json!({"type": "any"});
    check_unsupported(body, "tool_choice.type", "web_search");
}

#[test]
fn results_of_anthropic_s_server_tools_are_left_out_of_the_assistant_s_turns() {
    let messages = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
            {"type": "bash_code_execution_tool_result", "tool_use_id": "s2", "content": {}},
            {"type": "mcp_tool_use", "id": "m1", "name": "x", "server_name": "s", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "m1", "content": []},
            {"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []},
            {"type": "unheard_of_tool_result", "tool_use_id": "u1", "content": []},
            {"type": "fallback", "to": {"model": "m"}},
            {"type": "compaction", "content": null},
            {"type": "text", "text": "Rain."},
        ]},
        {"role": "user", "content": "Thanks."},
    ]);
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    check(messages, json!([message("user", "Weather?"), message("assistant", "Rain."), message("user", "Thanks.")]));
}

#[test]
fn a_tool_of_any_type_that_has_a_schema_is_the_client_s_and_its_examples_stand_in_the_schema() {
    let mut body = user(json!("a"));
    let schema = json!({"type": "object"});
    body["tools"] = json!([
        {"type": "unheard_of_20990101", "name": "f", "input_schema": schema},
        {"name": "g", "input_schema": schema, "input_examples": [{"x": 1}]},
        {"name": "h", "input_schema": schema, "input_examples": []},
    ]);
    let tools = convert(body)["tools"].clone();
    let function = |name: &str, parameters: &Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let with_examples = json!({"type": "object", "examples": [{"x": 1}]});
    assert_eq!(tools, json!([function("f", &schema), function("g", &with_examples), function("h", &schema)]));
}

#[test]
fn a_system_message_for_one_turn_is_shown_in_it_alone_and_so_is_its_effort() {
    let says = |role: &str, text: &str| json!({"role": role, "content": text});
    let reminder =
        json!({"role": "system", "content": "r", "clear_at": "next_user_message", "output_config": {"effort": "low"}});
    let effort_alone = json!({"role": "system", "output_config": {"effort": "high"}});
    let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
    let ask = |messages: Value| {
        let chat = convert(json!({"messages": messages, "output_config": {"effort": "medium"}}));
        let texts: Vec<_> =
            chat["messages"].as_array().expect("messages").iter().map(|one| one["content"].clone()).collect();
        (Value::from(texts), chat["reasoning_effort"].clone())
    };
    assert_eq!(ask(json!([says("user", "a"), reminder])), (json!(["a", "r"]), json!("low")));
    let later = json!([says("user", "a"), reminder, says("assistant", "b"), says("user", "c")]);
    assert_eq!(ask(later), (json!(["a", "b", "c"]), json!("medium")));
    let in_a_loop = json!([says("user", "a"), effort_alone, {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "d"}]}]);
    assert_eq!(ask(in_a_loop), (json!(["a", null, "d"]), json!("high")));
    let kept = json!([says("user", "a"), {"role": "system", "content": "s", "clear_at": "never"}, says("user", "b")]);
    assert_eq!(ask(kept).0, json!(["a", "s", "b"]));
}

#[test]
fn marked_blocks_are_breakpoints_behind_the_parts_that_they_become() {
    let mark = json!({"type": "ephemeral"});
    let block = |text: &str| json!({"type": "text", "text": text, "cache_control": mark});
    let plain = |text: &str| json!({"type": "text", "text": text});
    let result = json!({"type": "tool_result", "tool_use_id": "a", "content": "found", "cache_control": mark});
    let call = json!({"type": "tool_use", "id": "a", "name": "f", "input": {}, "cache_control": mark});
    let body = json!({
        "max_tokens": 5, "cache_control": mark,
        "system": [block("x-anthropic-billing-header: n"), block("Rules."), plain("Today.")],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": mark}],
        "messages": [
            {"role": "user", "content": [plain("One"), block("Two"), plain("Three")]},
            {"role": "assistant", "content": [plain("Hm"), call]},
            {"role": "user", "content": [result]},
        ],
    });
    let chat = convert(body);
    let place = |message: usize, parts: usize| json!({"message": message, "parts": parts});
    let expected = json!([place(0, 1), place(1, 2), place(2, usize::MAX), place(3, 1), place(1, 0)]);
    assert_eq!(chat["cache_breakpoints"], expected, "{chat}");
    assert_eq!(convert(user(json!("Hi"))).get("cache_breakpoints"), None);
}
