//! Tests of fitting messages to templates.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::template::ChatTemplate;

const TEXT_ONLY: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}";
const PARTS_ONLY: &str =
    "{% for m in messages %}{{ m.role }}:{% for p in m.content %}[{{ p.text }}]{% endfor %};{% endfor %}";
const BOTH: &str = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %};{% endfor %}";
const PRINTED_ARGUMENTS: &str = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %};{% endfor %}";

fn rendered(template: &str, messages: Json) -> Result<String, PromptError> {
    let template = ChatTemplate::compile(template, Arc::new(jiff::Zoned::now)).unwrap();
    let request = serde_json::from_value(json!({ "messages": messages })).unwrap();
    let variables = variables(&request, &Caps::probe(&template))?;
    template.render_json(&Json::Object(variables))
}

#[track_caller]
fn check(template: &str, messages: Json, expected: &str) {
    assert_eq!(rendered(template, messages).unwrap(), expected);
}

#[track_caller]
fn check_refused(message: Json, reason: &str) {
    let error = rendered(BOTH, json!([{"role": "user", "content": "x"}, message])).unwrap_err();
    assert!(matches!(error, PromptError::Messages { index: 1, .. }), "{error:?}");
    assert!(error.to_string().contains(reason), "{error}");
}

fn parts() -> Json {
    json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])
}

#[test]
fn text_parts_are_joined_for_templates_that_take_text_only() {
    check(TEXT_ONLY, parts(), "user:a\nb;");
    check(BOTH, parts(), "user:[a][b];");
    check(PARTS_ONLY, parts(), "user:[a][b];");
    check(PARTS_ONLY, json!([{"role": "user", "content": "a"}]), "user:[a];");
}

#[test]
fn absent_content_is_empty() {
    check(TEXT_ONLY, json!([{"role": "assistant"}, {"role": "assistant", "content": null}]), "assistant:;assistant:;");
}

#[test]
fn developer_is_system_where_the_template_knows_no_developer() {
    check(TEXT_ONLY, json!([{"role": "developer", "content": "x"}]), "system:x;");
    let knows = format!("{TEXT_ONLY}{{# developer #}}");
    check(&knows, json!([{"role": "developer", "content": "x"}]), "developer:x;");
}

#[test]
fn arguments_become_objects_unless_the_template_prints_them() {
    let call = |arguments: Json| json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]);
    check(TEXT_ONLY, call(json!("{\"a\": [1, true]}")), "assistant:{\"a\": [1, true]};");
    check(TEXT_ONLY, call(json!({"a": 1})), "assistant:{\"a\": 1};");
    check(TEXT_ONLY, call(json!("")), "assistant:{};");
    check(PRINTED_ARGUMENTS, call(json!("{\"a\": true}")), "{\"a\": true};");
    check(PRINTED_ARGUMENTS, call(json!({"a": true})), "{\"a\":true};");
}

#[test]
fn wrong_messages_are_refused_with_their_place() {
    check_refused(json!({"content": "x"}), "role must be a string");
    check_refused(json!({"role": 7, "content": "x"}), "role must be a string");
    check_refused(json!({"role": "", "content": "x"}), "role must be 1 to 64");
    check_refused(json!({"role": "user|>", "content": "x"}), "role must be 1 to 64");
    check_refused(json!({"role": "r".repeat(ROLE_BYTES_MAX + 1), "content": "x"}), "role must be 1 to 64");
    check_refused(json!({"role": "user", "content": 5}), "content must be");
    check_refused(json!({"role": "user", "content": [{"text": "x"}]}), "must have a type");
    check_refused(json!({"role": "user", "content": [{"type": "text"}]}), "must have a text");
    check_refused(json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}), "not supported yet");
    check_refused(json!({"role": "assistant", "tool_calls": "x"}), "tool_calls must be an array");
    check_refused(json!({"role": "assistant", "tool_calls": ["x"]}), "must be an object");
    let call = json!([{"function": {"name": "f", "arguments": "{not json"}}]);
    check_refused(json!({"role": "assistant", "tool_calls": call}), "are not JSON");
}

#[test]
fn a_request_without_messages_is_refused() {
    let error = rendered(BOTH, json!([])).unwrap_err();
    assert!(matches!(error, PromptError::Field { field: "messages", .. }), "{error:?}");
}

#[test]
fn template_variables_come_through_but_not_messages() {
    let template =
        ChatTemplate::compile("{{ enable_thinking }} {{ tools is none }}", Arc::new(jiff::Zoned::now)).unwrap();
    let caps = Caps::probe(&template);
    let with = |kwargs: Json| {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": kwargs});
        variables(&serde_json::from_value(body).unwrap(), &caps)
    };
    let given = with(json!({"enable_thinking": false})).unwrap();
    assert_eq!(template.render_json(&Json::Object(given)).unwrap(), "False True");
    for reserved in ["messages", "tools"] {
        let error = with(json!({reserved: []})).unwrap_err();
        assert!(matches!(error, PromptError::Field { field: "chat_template_kwargs", .. }), "{error:?}");
    }
}
