//! Tests of the conversion of responses: every kind of item, and what is refused under which field name.

use super::*;

fn convert(body: Value) -> Value {
    let converted = responses(body.to_string().as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"));
    serde_json::from_slice(&converted.body).expect("a chat is JSON")
}

#[track_caller]
fn check(input: Value, expected: Value) {
    assert_eq!(convert(json!({"input": input}))["messages"], expected);
}

/// Checks the chat, without its messages, of a request with `fields`.
#[track_caller]
fn check_fields(fields: Value, expected: Value) {
    let mut body = json!({"input": "a"});
    body.as_object_mut().expect("an object").append(&mut fields.as_object().expect("an object").clone());
    let mut chat = convert(body);
    chat.as_object_mut().expect("an object").remove("messages");
    assert_eq!(chat, expected);
}

fn with(name: &str, value: Value) -> Value {
    let mut body = json!({"input": "a"});
    body[name] = value;
    body
}

#[track_caller]
fn check_refused(body: Value, param: &str, says: &str) -> DialectError {
    let error = responses(body.to_string().as_bytes()).expect_err("it is refused");
    assert_eq!(error.param(), Some(param), "{error}");
    assert!(error.to_string().contains(says) && error.to_string().contains(param), "{error}");
    error
}

#[track_caller]
fn check_unsupported(body: Value, param: &str, says: &str) {
    let error = check_refused(body, param, says);
    assert!(matches!(error, DialectError::Unsupported { .. }), "{error:?}");
}

#[test]
fn audio_is_part_of_a_chat() {
    let audio = json!({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}});
    let asked = json!([{"role": "user", "content": [{"type": "input_text", "text": "a"}, audio]}]);
    check(asked, json!([{"role": "user", "content": [{"type": "text", "text": "a"}, audio]}]));
    let nameless = json!([{"role": "user", "content": [{"type": "input_audio"}]}]);
    check_refused(json!({"input": nameless}), "input[0].content[0].input_audio", "missing");
    let text = json!([{"role": "user", "content": [{"type": "input_audio", "input_audio": "AA=="}]}]);
    check_refused(json!({"input": text}), "input[0].content[0].input_audio", "object");
}

#[test]
fn images_are_parts_of_a_chat_also_in_outputs() {
    let image = json!({"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"});
    let part = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}});
    let asked = json!([{"role": "user", "content": [{"type": "input_text", "text": "a"}, image]}]);
    check(asked, json!([{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]));
    let output = json!([{"type": "function_call_output", "call_id": "c", "output": [image]}]);
    check(output, json!([{"role": "tool", "tool_call_id": "c", "content": [part]}]));
    let nameless = json!([{"role": "user", "content": [{"type": "input_image"}]}]);
    check_refused(json!({"input": nameless}), "input[0].content[0].image_url", "missing");
}

#[test]
fn a_text_is_the_user_s_message_and_instructions_come_first() {
    check(json!("Hi"), json!([{"role": "user", "content": "Hi"}]));
    let chat = convert(json!({"input": "Hi", "instructions": "Be brief."}));
    assert_eq!(
        chat["messages"],
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    );
}

#[test]
fn items_of_one_answer_are_one_message() {
    let input = json!([
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Look."}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{\"a\": 1}"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Both."}], "encrypted_content": null},
        {"role": "assistant", "content": "Rain and sun."},
    ]);
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}});
    let expected = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "reasoning_content": "Look.", "content": "I look.",
            "tool_calls": [call("c1", "{\"a\": 1}"), call("c2", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "sun"},
        {"role": "assistant", "reasoning_content": "Both.", "content": "Rain and sun."},
    ]);
    check(input, expected);
}

#[test]
fn reasoning_after_an_answer_begins_another_message() {
    let thought =
        |text: &str| json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]});
    let answer = json!({"role": "assistant", "content": "a"});
    let turn = |thought: &str| json!({"role": "assistant", "reasoning_content": thought, "content": "a"});
    check(json!([thought("1"), answer, thought("2"), answer]), json!([turn("1"), turn("2")]));
}

#[test]
fn fields_have_a_chat_s_names_and_the_others_stay() {
    check_fields(json!({"max_output_tokens": 5}), json!({"max_completion_tokens": 5}));
    check_fields(
        json!({"temperature": 0.5, "top_p": 1, "stream": true}),
        json!({"temperature": 0.5, "top_p": 1, "stream": true}),
    );
    check_fields(json!({"seed": 1, "cache_salt": "s"}), json!({"seed": 1, "cache_salt": "s"}));
    let ignored = json!({"store": true, "metadata": {}, "user": "u", "truncation": "auto", "n": 2, "n_cmpl": 2, "stop": "x", "background": false,
        "previous_response_id": null, "include": ["reasoning.encrypted_content"], "text": {"verbosity": "low"}, "messages": 5});
    check_fields(ignored, json!({}));
    check_fields(json!({"previous_response_id": "", "conversation": "", "prompt": "", "tool_choice": ""}), json!({}));
    check_fields(json!({"reasoning": {"effort": "low", "summary": "auto"}}), json!({"reasoning_effort": "low"}));
    check_fields(json!({"text": {"format": {"type": "text"}}}), json!({}));
    check_fields(
        json!({"text": {"format": {"type": "json_object"}}}),
        json!({"response_format": {"type": "json_object"}}),
    );
    let format = json!({"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true});
    let schema = json!({"name": "n", "schema": {"type": "object"}, "strict": true});
    check_fields(
        json!({"text": {"format": format}}),
        json!({"response_format": {"type": "json_schema", "json_schema": schema}}),
    );
}

#[test]
fn tools_are_functions() {
    let tool =
        json!({"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": null});
    let function =
        json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}});
    check_fields(
        json!({"tools": [tool], "parallel_tool_calls": true}),
        json!({"tools": [function], "parallel_tool_calls": true}),
    );
    check_fields(json!({"tool_choice": "required"}), json!({"tool_choice": "required"}));
    let named = json!({"tool_choice": {"type": "function", "function": {"name": "f"}}});
    check_fields(json!({"tool_choice": {"type": "function", "name": "f"}}), named);
}

#[test]
fn missing_and_wrong_fields_are_named() {
    check_refused(json!({}), "input", "missing");
    check_refused(json!({"input": []}), "input", "empty");
    check_refused(json!({"input": [{"type": "web_search_call", "id": "ws_1"}]}), "input", "empty");
    check_refused(json!({"input": 5}), "input", "string or an array");
    check_refused(json!({"input": ["a"]}), "input[0]", "object");
    check_refused(json!({"input": [{"content": "a"}]}), "input[0].role", "missing");
    check_refused(json!({"input": [{"role": "tool", "content": "a"}]}), "input[0].role", "must be");
    check_refused(json!({"input": [{"role": "user"}]}), "input[0].content", "missing");
    check_refused(
        json!({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}),
        "input[0].content[0].text",
        "missing",
    );
    check_refused(
        json!({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}),
        "input[0].arguments",
        "missing",
    );
    check_refused(with("instructions", json!(["a"])), "instructions", "string");
    check_refused(with("tools", json!([{"type": "function"}])), "tools[0].name", "missing");
    check_refused(with("tools", json!([{"name": "f"}])), "tools[0].type", "missing");
    check_refused(with("text", json!({"format": {"type": "xml"}})), "text.format.type", "must be");
    check_refused(with("text", json!({"format": {"type": "json_schema"}})), "text.format.name", "missing");
    check_refused(with("reasoning", json!({"effort": 5})), "reasoning.effort", "string");
}

#[test]
fn unsupported_features_are_refused() {
    check_unsupported(with("previous_response_id", json!("resp_1")), "previous_response_id", "not stored");
    check_unsupported(with("conversation", json!("conv_1")), "conversation", "not stored");
    check_unsupported(with("prompt", json!({"id": "p"})), "prompt", "not stored");
    check_unsupported(with("background", json!(true)), "background", "waits");
    check_unsupported(with("personality", json!("friendly")), "personality", "instructions");
    check_unsupported(with("top_logprobs", json!(5)), "top_logprobs", "chat completions");
    check_unsupported(with("include", json!(["message.output_text.logprobs"])), "include[0]", "chat completions");
    check_unsupported(json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].type", "store: false");
    for kind in ["compaction", "web_searches", "unheard_of"] {
        check_unsupported(json!({"input": [{"type": kind}]}), "input[0].type", kind);
    }
    let input = json!([{"role": "user", "content": [{"type": "input_file"}]}]);
    check_unsupported(json!({"input": input}), "input[0].content[0].type", "input_file");
    let stored = json!([{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]);
    check_unsupported(json!({"input": stored}), "input[0].content[0].file_id", "not stored");
    let said = json!({"role": "user", "content": "a"});
    for kind in ["mcp_approval_response", "compaction_trigger"] {
        check_unsupported(json!({"input": [said, {"type": kind}]}), "input[1].type", "here");
    }
}

#[test]
fn items_and_parts_of_the_history_that_no_model_reads_are_kept_as_such() {
    let file = json!({"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="});
    let stored = json!({"type": "input_image", "file_id": "file-1"});
    let compaction = json!({"type": "compaction", "encrypted_content": "gAAA"});
    let unread = |part: &Value| {
        let mut part = part.clone();
        part["history"] = json!(true);
        part
    };
    let input = json!([
        {"role": "user", "content": [file]}, compaction,
        {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]}, compaction,
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [file, stored]}, compaction,
        {"role": "user", "content": [file]},
    ]);
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let answer = json!([{"type": "text", "text": "b"}, unread(&compaction)]);
    let expected = json!([
        {"role": "user", "content": [unread(&file), unread(&compaction)]},
        {"role": "assistant", "content": answer, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [unread(&file), unread(&stored), unread(&compaction)]},
        {"role": "user", "content": [unread(&file)]},
    ]);
    assert_eq!(convert(json!({"input": input}))["messages"], expected);
    let asked = json!([compaction, {"role": "user", "content": [{"type": "input_text", "text": "a"}]}, compaction]);
    let question = json!([unread(&compaction), {"type": "text", "text": "a"}, unread(&compaction)]);
    assert_eq!(convert(json!({"input": asked}))["messages"], json!([{"role": "user", "content": question}]));
    let misplaced = json!([{"role": "user", "content": "a"}, {"type": "input_text", "text": "b"}]);
    check_unsupported(json!({"input": misplaced}), "input[1].type", "input_text");
    let new = json!([{"role": "user", "content": "a"}, {"role": "user", "content": [file]}]);
    check_unsupported(json!({"input": new}), "input[1].content[0].type", "input_file");
}

#[test]
fn any_json_is_a_result_and_every_form_of_reasoning_and_text_is_read() {
    let output = |output: Value| {
        let input = json!([{"type": "function_call_output", "call_id": "c", "output": output}]);
        convert(json!({"input": input}))["messages"][0]["content"].clone()
    };
    for (result, text) in [
        (json!(5), "5"),
        (json!(false), "false"),
        (json!({"a": 1}), "{\"a\":1}"),
        (json!([[]]), "[[]]"),
        (json!(null), ""),
    ] {
        assert_eq!(output(result), text);
    }
    let thought = json!({"type": "thinking", "thinking": "t"});
    let said = json!([thought, {"type": "output_text", "text": null}, {"type": "refusal", "refusal": "no"}]);
    let input = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": said}, {"role": "user", "content": null}]);
    let answer = json!([{"type": "text", "text": ""}, {"type": "text", "text": "no"}]);
    let expected = json!([
        {"role": "user", "content": "a"}, {"role": "assistant", "reasoning_content": "t", "content": answer},
        {"role": "user", "content": ""},
    ]);
    assert_eq!(convert(json!({"input": input}))["messages"], expected);
}

/// Returns a request in the format of Codex, with texts of our own.
fn codex(input: Value) -> Value {
    let function = |name: &str| {
        json!({"type": "function", "name": name, "description": "d", "strict": false,
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}})
    };
    let grammar = json!({"type": "grammar", "syntax": "lark", "definition": "start: /x+/"});
    json!({"model": "m", "stream": true, "store": false, "parallel_tool_calls": true, "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k", "client_metadata": {"x": "y"}, "reasoning": {"effort": "medium", "summary": "auto"},
    "tool_choice": "auto", "input": input,
    "tools": [
        function("exec_command"),
        {"type": "namespace", "name": "multi_agent_v1", "description": "d", "tools": [function("spawn_agent"), function("wait")]},
        {"type": "namespace", "name": "mcp__docs__", "description": "d", "tools": [function("look")]},
        function("wait"),
        {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": grammar},
        {"type": "web_search", "external_web_access": false},
        {"type": "image_generation", "output_format": "png"},
        {"type": "unheard_of"},
    ]})
}

#[test]
fn tools_of_namespaces_are_functions_and_those_that_nobody_runs_are_left_out() {
    let converted = responses(codex(json!("Hi")).to_string().as_bytes()).expect("Codex is served");
    let chat: Value = serde_json::from_slice(&converted.body).expect("JSON");
    let names: Vec<_> = chat["tools"].as_array().expect("tools").iter().map(|tool| &tool["function"]["name"]).collect();
    let expected = [
        "exec_command",
        "multi_agent_v1__spawn_agent",
        "multi_agent_v1__wait",
        "mcp__docs__look",
        "wait",
        "apply_patch",
    ];
    assert_eq!(names, expected);
    assert_eq!(converted.tools.left_out(), ["web_search", "image_generation", "other"]);
    let tool =
        |name: &str| converted.tools.tool(name).map(|tool| (tool.namespace.as_deref(), tool.name.as_str(), tool.form));
    assert_eq!(tool("multi_agent_v1__wait"), Some((Some("multi_agent_v1"), "wait", CallForm::Function)));
    assert_eq!(tool("wait"), Some((None, "wait", CallForm::Function)));
    assert_eq!(tool("apply_patch"), Some((None, "apply_patch", CallForm::Custom)));
    let patch = &chat["tools"][5]["function"];
    assert_eq!(patch["description"], "Edits files.\n\nThe input must follow this lark grammar:\nstart: /x+/");
    assert_eq!(patch["parameters"]["required"], json!(["input"]));
    assert_eq!(converted.spelling.param("tools[2].function.parameters.x"), "tools[1].tools[1].parameters.x");
    assert_eq!(converted.spelling.param("tools[3].function.name"), "tools[2].tools[0].name");
}

#[test]
fn a_later_turn_repeats_calls_by_the_names_that_the_client_knows() {
    let input = json!([
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]},
        {"type": "reasoning", "summary": [], "content": null, "encrypted_content": "gAAA"},
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "function_call", "name": "wait", "namespace": "multi_agent_v1", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call", "name": "wait", "arguments": "{}", "call_id": "c2"},
        {"type": "function_call", "name": "gone", "namespace": "mcp__old__", "arguments": "{}", "call_id": "c3"},
        {"type": "custom_tool_call", "name": "apply_patch", "input": "*** \"x\"\n", "call_id": "c4", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "function_call_output", "call_id": "c3", "output": "3"},
        {"type": "custom_tool_call_output", "call_id": "c4", "output": "4"},
    ]);
    let messages = convert(codex(input))["messages"].clone();
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
    let calls = [
        call("c1", "multi_agent_v1__wait", "{}"),
        call("c2", "wait", "{}"),
        call("c3", "mcp__old__gone", "{}"),
        call("c4", "apply_patch", "{\"input\":\"*** \\\"x\\\"\\n\"}"),
    ];
    let expected = json!([
        {"role": "developer", "content": "Rules."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": null, "tool_calls": calls},
        result("c1", "1"), result("c2", "2"), result("c3", "3"), result("c4", "4"),
    ]);
    assert_eq!(messages, expected);
}

#[test]
fn a_choice_names_a_tool_as_the_client_knows_it_and_cannot_require_one_that_is_left_out() {
    let with_choice = |choice: Value| {
        let mut body = codex(json!("Hi"));
        body["tool_choice"] = choice;
        body
    };
    let named = |choice: Value| convert(with_choice(choice))["tool_choice"]["function"]["name"].clone();
    assert_eq!(named(json!({"type": "function", "name": "wait"})), "wait");
    assert_eq!(
        named(json!({"type": "function", "name": "wait", "namespace": "multi_agent_v1"})),
        "multi_agent_v1__wait"
    );
    assert_eq!(named(json!({"type": "custom", "name": "apply_patch"})), "apply_patch");
    for kind in ["web_search", "web_search_preview", "image_generation", "file_search", "mcp"] {
        check_unsupported(with_choice(json!({"type": kind})), "tool_choice.type", kind);
    }
    let allowed =
        |mode: &str, tools: Value| with_choice(json!({"type": "allowed_tools", "mode": mode, "tools": tools}));
    let several = json!([
        {"type": "function", "name": "wait", "namespace": "multi_agent_v1"}, {"type": "custom", "name": "apply_patch"},
        {"type": "image_generation"},
    ]);
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    let written = json!({"mode": "required", "tools": [function("multi_agent_v1__wait"), function("apply_patch")]});
    let chat = convert(allowed("required", several));
    assert_eq!(chat["tool_choice"], json!({"type": "allowed_tools", "allowed_tools": written}));
    assert_eq!(chat["tools"].as_array().map(Vec::len), Some(6), "the prompt keeps every tool");
    let search = json!([{"type": "web_search"}]);
    assert_eq!(convert(allowed("auto", search.clone()))["tool_choice"], "none");
    check_unsupported(allowed("required", search), "tool_choice.tools", "web_search");
    check_unsupported(allowed("required", json!([{"type": "unheard_of"}])), "tool_choice.tools", "other");
    let gone = json!([{"type": "function", "name": "gone"}]);
    check_unsupported(allowed("auto", gone), "tool_choice.tools[0].name", "not listed");
    check_refused(with_choice(json!({"type": "allowed_tools", "tools": []})), "tool_choice.mode", "missing");
    check_unsupported(with_choice(json!({"type": "function", "name": "web_search"})), "tool_choice.name", "web_search");
    let nested =
        json!([{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}, {"type": "function", "name": "f"}]}]);
    assert_eq!(convert(with("tools", nested))["tools"][0]["function"]["name"], "n__f");
    let mut only = with("tools", json!([{"type": "web_search"}, {"type": "mcp", "server_label": "s"}]));
    assert_eq!(convert(only.clone())["tools"], json!([]));
    only["tool_choice"] = json!("required");
    check_unsupported(only, "tool_choice", "web_search, mcp");
}

#[test]
fn instructions_alone_are_a_conversation() {
    let chat = convert(json!({"instructions": "Be brief.", "input": []}));
    assert_eq!(chat["messages"], json!([{"role": "system", "content": "Be brief."}]));
}

#[test]
fn a_tool_of_any_type_that_has_a_schema_is_a_function() {
    let tool = json!({"type": "unheard_of", "name": "f", "parameters": {"type": "object"}});
    let nested = json!({"type": "namespace", "name": "n", "tools": [tool, {"type": "unheard_of"}]});
    let converted = responses(with("tools", json!([tool, nested])).to_string().as_bytes()).expect("it is served");
    let chat: Value = serde_json::from_slice(&converted.body).expect("JSON");
    let names: Vec<_> = chat["tools"].as_array().expect("tools").iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names, ["f", "n__f"]);
    assert_eq!(converted.tools.left_out(), ["other"]);
}

#[test]
fn items_about_tools_of_any_name_are_left_out() {
    let said = |text: &str| json!({"role": "user", "content": text});
    let kinds = ["unheard_of_call", "unheard_of_call_output", "program", "program_output", "mcp_approval_response"];
    let items = kinds.map(|kind| json!({"type": kind, "call_id": "c"}));
    check(
        [&[said("a")][..], &items, &[said("b")]].concat().into(),
        json!([{
            "role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        }]),
    );
}

#[test]
fn an_item_configures_the_responses_behind_it() {
    let update = |fields: Value| {
        let mut item = json!({"type": "configuration_update"});
        item.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        item
    };
    let input = json!([
        {"role": "user", "content": "a"}, update(json!({"reasoning": {"effort": "low"}})),
        update(json!({"reasoning": {"effort": "high"}, "text": {"format": {"type": "json_object"}}})), update(json!({})),
    ]);
    let chat =
        convert(json!({"input": input, "reasoning": {"effort": "medium"}, "text": {"format": {"type": "text"}}}));
    let expected = json!({
        "messages": [{"role": "user", "content": "a"}], "reasoning_effort": "high",
        "response_format": {"type": "json_object"},
    });
    assert_eq!(chat, expected);
}

#[test]
fn reasoning_of_earlier_turns_is_forgotten_on_request() {
    let thought = |text: &str| json!({"type": "reasoning", "summary": [], "content": [{"text": text}]});
    let input = json!([
        {"role": "user", "content": "a"}, thought("x"), {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}, thought("y"),
        {"type": "function_call", "call_id": "i", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "i", "output": "z"},
    ]);
    for (context, expected) in [("current_turn", [json!(null), json!("y")]), ("all_turns", [json!("x"), json!("y")])] {
        let chat = convert(json!({"input": input, "reasoning": {"context": context}}));
        let thoughts = [1, 3].map(|idx| chat["messages"][idx]["reasoning_content"].clone());
        assert_eq!(thoughts, expected, "{context}");
    }
}

#[test]
fn a_prewarm_asks_for_no_token_and_marked_parts_are_breakpoints() {
    let part = |text: &str, mark: Value| json!({"type": "input_text", "text": text, "prompt_cache_breakpoint": mark});
    let input = json!([{"role": "user", "content": [part("a", json!({})), part("b", Value::Null)]}]);
    let options = |options: Value| json!({"input": input, "max_output_tokens": 9, "prompt_cache_options": options});
    let chat = convert(options(json!({"prewarm": true, "ttl": "30m"})));
    assert_eq!(chat["max_completion_tokens"], 0);
    assert_eq!(chat["cache_breakpoints"], json!([{"message": 0, "parts": 1}]));
    for other in [json!({"prewarm": false}), json!({"mode": "explicit"}), Value::Null] {
        assert_eq!(convert(options(other))["max_completion_tokens"], 9);
    }
    check_refused(options(json!({"prewarm": 1})), "prompt_cache_options.prewarm", "true or false");
}
