//! Tools that a conversation loads late, in both dialects: each becomes a tool with `defer_loading` and a reference to
//! it where it is loaded.

use super::*;

#[track_caller]
fn chat(convert: Convert, body: Value) -> Value {
    let converted = convert(body.to_string().as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"));
    serde_json::from_slice(&converted.body).expect("a chat is JSON")
}

/// Returns the names of a chat's functions, those that wait with a star.
fn listed(chat: &Value) -> Vec<String> {
    let name = |tool: &Value| {
        let star = if tool["defer_loading"] == true { "*" } else { "" };
        format!("{}{star}", tool["function"]["name"].as_str().expect("a name"))
    };
    chat["tools"].as_array().map(|tools| tools.iter().map(name).collect()).unwrap_or_default()
}

fn reference(name: &str) -> Value {
    json!({"type": "tool_reference", "tool_name": name})
}

fn custom(name: &str) -> Value {
    json!({"name": name, "description": "d", "input_schema": {"type": "object"}})
}

fn deferred(mut tool: Value) -> Value {
    tool["defer_loading"] = true.into();
    tool
}

fn function(name: &str) -> Value {
    json!({"type": "function", "name": name, "parameters": {"type": "object"}})
}

#[test]
fn a_result_s_reference_loads_a_tool_of_messages() {
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ToolSearch", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "tool_reference", "tool_name": "f", "cache_control": {"type": "ephemeral"}},
        ]}]},
    ]);
    let tools = json!([
        custom("ToolSearch"),
        deferred(custom("f")),
        deferred(json!({"type": "bash_20250124", "name": "bash"}))
    ]);
    let chat = chat(anthropic::count_tokens, json!({"messages": messages, "tools": tools}));
    assert_eq!(listed(&chat), ["ToolSearch", "f*", "bash*"]);
    let result = json!({"role": "tool", "tool_call_id": "t", "content": [reference("f")]});
    assert_eq!(chat["messages"][2], result);
}

#[test]
fn a_request_whose_tools_all_wait_has_anthropic_s_own_error() {
    let refused = |tools: Value| {
        let body = json!({"messages": [{"role": "user", "content": "a"}], "tools": tools});
        anthropic::count_tokens(body.to_string().as_bytes()).map(|_| ())
    };
    let error = refused(json!([deferred(custom("f"))])).expect_err("none can be called");
    let text = "All tools have defer_loading set. At least one tool must be non-deferred.";
    assert_eq!(error.to_string(), format!("`tools`: {text}"));
    assert_eq!(refused(json!([])), Ok(()));
    assert_eq!(refused(json!([deferred(custom("f")), custom("g")])), Ok(()));
    let error = refused(json!([custom("g"), {"name": "f", "input_schema": {}, "defer_loading": 5}]));
    assert_eq!(error.expect_err("a wrong type").param(), Some("tools[1].defer_loading"));
}

#[test]
fn no_tool_waits_for_a_search_that_only_its_owner_runs() {
    let search = json!({"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"});
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s", "name": "tool_search_tool_bm25", "input": {"query": "q"}},
            {"type": "tool_search_tool_result", "tool_use_id": "s", "content":
                {"type": "tool_search_tool_search_result", "tool_references": [reference("f")]}},
            {"type": "text", "text": "b"},
        ]},
        {"role": "user", "content": "c"},
    ]);
    let chat_of = |tools: Value| chat(anthropic::count_tokens, json!({"messages": messages, "tools": tools}));
    let owned = chat_of(json!([search, deferred(custom("f"))]));
    assert_eq!(listed(&owned), ["f"]);
    assert_eq!(owned["messages"][1], json!({"role": "assistant", "content": "b"}));
    // Without the search in the list, tools wait, and the found one is loaded by a call and its result.
    let moved = chat_of(json!([custom("g"), deferred(custom("f"))]));
    assert_eq!(listed(&moved), ["g", "f*"]);
    assert_eq!(moved["messages"][1]["tool_calls"][0]["function"]["name"], "tool_search_tool_bm25");
    assert_eq!(moved["messages"][2], json!({"role": "tool", "tool_call_id": "s", "content": [reference("f")]}));
    assert_eq!(moved["messages"][3], json!({"role": "assistant", "content": "b"}));

    let tools = json!([{"type": "tool_search"}, deferred(function("f"))]);
    let hosted = chat(responses::responses, json!({"input": "a", "tools": tools}));
    assert_eq!(listed(&hosted), ["f"]);
}

#[test]
fn a_system_message_adds_and_removes_tools() {
    let add = |tool: Value| json!({"type": "tool_addition", "tool": tool});
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "system", "content": [
            add(json!({"type": "tool_definition", "definition": custom("n")})),
            add(json!({"type": "tool_reference", "name": "f"})),
            {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "g"}},
            add(json!({"type": "mcp_toolset_reference", "server_name": "s"})),
        ]},
        {"role": "assistant", "content": [
            {"type": "compaction", "content": "s", "tool_changes": [add(json!({"type": "tool_reference", "name": "f"}))]},
        ]},
        {"role": "user", "content": "b"},
    ]);
    let tools = json!([custom("g"), deferred(custom("f"))]);
    let chat = chat(anthropic::count_tokens, json!({"messages": messages, "tools": tools}));
    assert_eq!(listed(&chat), ["g", "f*", "n*"]);
    let removal = json!({"type": "tool_removal", "tool_name": "g"});
    assert_eq!(chat["messages"][1]["content"], json!([reference("n"), reference("f"), removal]));
    assert_eq!(chat["messages"][2]["content"], json!([{"type": "text", "text": "s"}, reference("f")]));
}

#[test]
fn a_search_of_the_client_is_a_function_and_its_output_loads_tools() {
    let search =
        json!({"type": "tool_search", "execution": "client", "description": "d", "parameters": {"type": "object"}});
    let namespace =
        json!({"type": "namespace", "name": "crm", "description": "d", "tools": [deferred(function("find"))]});
    let input = json!([
        {"role": "user", "content": "a"},
        {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {"query": "q"}, "status": "completed"},
        {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": [namespace, function("n")]},
        {"type": "additional_tools", "role": "developer", "tools": [function("late")]},
    ]);
    let body = json!({"input": input, "tools": [search, function("g"), deferred(function("f"))], "tool_choice": {"type": "tool_search"}});
    let chat = chat(responses::responses, body);
    assert_eq!(listed(&chat), ["tool_search", "g", "f*", "crm__find*", "n*", "late*"]);
    let messages = &chat["messages"];
    let call = &messages[1]["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "tool_search", "arguments": "{\"query\":\"q\"}"}));
    let found = json!([reference("crm__find"), reference("n")]);
    assert_eq!(messages[2], json!({"role": "tool", "tool_call_id": "s", "content": found}));
    assert_eq!(messages[3], json!({"role": "developer", "content": [reference("late")]}));
    assert_eq!(chat["tool_choice"]["function"]["name"], "tool_search");
}

#[test]
fn a_tool_that_items_bring_twice_is_listed_once_with_its_last_definition() {
    let output = |description: &str| {
        let mut tool = function("n");
        tool["description"] = description.into();
        json!({"type": "additional_tools", "role": "developer", "tools": [tool]})
    };
    let input = json!([{"role": "user", "content": "a"}, output("first"), output("last")]);
    let chat = chat(responses::responses, json!({ "input": input }));
    assert_eq!(listed(&chat), ["n*"]);
    assert_eq!(chat["tools"][0]["function"]["description"], "last");
}
