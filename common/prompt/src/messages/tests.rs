//! Tests of the conversion of messages for templates.

mod refused;

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::template::ChatTemplate;

const TEXT_ONLY: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}";
const PARTS_ONLY: &str =
    "{% for m in messages %}{{ m.role }}:{% for p in m.content %}[{{ p.text }}]{% endfor %};{% endfor %}";
const BOTH: &str = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %};{% endfor %}";
/// A template that renders only the first part, as those of MiniMax M1 and Mistral Small do in system messages.
const FIRST_PART: &str = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %};{% endfor %}";
/// A template that renders only the first part, and no text.
const FIRST_PART_ONLY: &str = "{% for m in messages %}{{ m.role }}:{% if m.content is not string %}{{ m.content[0].text }}{% endif %};{% endfor %}";
const PRINTED_ARGUMENTS: &str = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %};{% endfor %}";

fn rendered(template: &str, messages: Json) -> Result<String, PromptError> {
    let template = ChatTemplate::compile(template, Arc::new(jiff::Zoned::now)).unwrap();
    let request = serde_json::from_value(json!({ "messages": messages })).unwrap();
    let variables = variables(&request, &Caps::probe(&template), &TemplateKwargs::default())?;
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
fn text_parts_are_joined_for_templates_that_render_only_the_first() {
    check(FIRST_PART, parts(), "user:a\nb;");
    check(FIRST_PART_ONLY, parts(), "user:a\nb;");
    check(FIRST_PART_ONLY, json!([{"role": "user", "content": "a"}]), "user:a;");
}

#[test]
fn absent_content_is_empty() {
    check(TEXT_ONLY, json!([{"role": "assistant"}, {"role": "assistant", "content": null}]), "assistant:;assistant:;");
}

#[test]
fn developer_becomes_system_if_the_template_knows_no_developer() {
    check(TEXT_ONLY, json!([{"role": "developer", "content": "x"}]), "system:x;");
    let knows = format!("{TEXT_ONLY}{{# developer #}}");
    check(&knows, json!([{"role": "developer", "content": "x"}]), "developer:x;");
    let only_says = "{# developer #}{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}";
    check(only_says, json!([{"role": "developer", "content": "x"}]), "system:x;");
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
fn absent_arguments_are_empty() {
    let call = json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]);
    check(TEXT_ONLY, call.clone(), "assistant:{};");
    check(PRINTED_ARGUMENTS, call, "{};");
    for empty in [json!([]), json!("[]"), json!(" [ ] ")] {
        let call = json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": empty}}]}]);
        check(TEXT_ONLY, call.clone(), "assistant:{};");
        check(PRINTED_ARGUMENTS, call, "{};");
    }
}

#[test]
fn arguments_that_were_encoded_twice_become_objects() {
    let arguments = json!(json!({"a": 1}).to_string()).to_string();
    let call = json!({"function": {"name": "f", "arguments": arguments}});
    check(TEXT_ONLY, json!([{"role": "assistant", "tool_calls": [call]}]), "assistant:{\"a\": 1};");
}

/// Renders `thinking` and content, as LFM 2.5's template does.
const THINKING: &str = "{% for message in messages %}{{ message.role }}:{% if message.thinking is defined %}<{{ message.thinking }}>{% endif %}{{ message.content }};{% endfor %}";
/// Renders parts of type `thinking`, as Ministral 3's template does.
const THINKING_PARTS: &str = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'thinking' %}<{{ p.thinking }}>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %};{% endfor %}";

#[test]
fn reasoning_is_where_the_template_reads_it() {
    let call = json!({"function": {"name": "f", "arguments": "{}"}});
    let says = |content: Json| json!([{"role": "assistant", "reasoning_content": "a", "content": content}]);
    let calls = json!([{"role": "assistant", "reasoning_content": "a", "content": "b", "tool_calls": [call]}]);
    check(THINKING, says(json!("b")), "assistant:<a>b;");
    check(THINKING, calls.clone(), "assistant:<a>b;");
    let harmony = format!("{THINKING}{{# <|channel|> #}}");
    check(&harmony, says(json!("b")), "assistant:<a>b;");
    check(&harmony, calls.clone(), "assistant:<a>;");
    check(THINKING_PARTS, says(json!("b")), "assistant:<a>b;");
    check(
        THINKING_PARTS,
        says(json!([{"type": "text", "text": "b"}, {"type": "text", "text": "c"}])),
        "assistant:<a>bc;",
    );
    check(THINKING_PARTS, says(Json::Null), "assistant:<a>;");
    check(THINKING_PARTS, calls.clone(), "assistant:<a>b;");
    let reads_both = THINKING_PARTS.replace("{{ m.role }}:", "{{ m.role }}:{{ m.reasoning_content }}");
    check(&reads_both, says(json!("b")), "assistant:ab;");
    let mut without_thoughts = calls;
    without_thoughts[0]["reasoning_content"] = json!("");
    check(&harmony, without_thoughts, "assistant:b;");
}

/// Returns a template that renders reasoning from one field, as Solar-Open's does, behind the last question.
fn reads(field: &str) -> String {
    format!(
        "{{% set ns = namespace(last=0) %}}{{% for m in messages %}}{{% if m.role == 'user' %}}{{% set ns.last = loop.index0 %}}{{% endif %}}{{% endfor %}}{{% for m in messages %}}{{{{ m.role }}}}:{{% if m.{field} and loop.index0 > ns.last %}}<{{{{ m.{field} }}}}>{{% endif %}}{{{{ m.content }}}};{{% endfor %}}"
    )
}

#[test]
fn reasoning_under_any_name_is_rendered_under_the_template_s() {
    let names = ["reasoning_content", "reasoning", "thinking"];
    for template in names.map(reads) {
        for name in names {
            let mut answer = json!({"role": "assistant", "content": "b"});
            answer[name] = json!("a");
            check(&template, json!([{"role": "user", "content": "q"}, answer]), "user:q;assistant:<a>b;");
        }
    }
    let only_if_enabled = reads("reasoning").replace("{% if m.reasoning", "{% if enable_thinking and m.reasoning");
    let answer = json!({"role": "assistant", "content": "b", "reasoning_content": "a"});
    check(&only_if_enabled, json!([{"role": "user", "content": "q"}, answer]), "user:q;assistant:<a>b;");
}

#[test]
fn wrong_messages_are_refused_with_their_field() {
    check_refused(json!({"content": "x"}), "role must be a string");
    check_refused(json!({"role": 7, "content": "x"}), "role must be a string");
    check_refused(json!({"role": "", "content": "x"}), "role must be 1 to 64");
    check_refused(json!({"role": "user|>", "content": "x"}), "role must be 1 to 64");
    check_refused(json!({"role": "r".repeat(ROLE_BYTES_MAX + 1), "content": "x"}), "role must be 1 to 64");
    check_refused(json!({"role": "user", "content": 5}), "content must be");
    check_refused(json!({"role": "user", "content": [{"text": "x"}]}), "must have a type");
    check_refused(json!({"role": "user", "content": [{"type": "text"}]}), "must have a text");
    check_refused(json!({"role": "user", "content": [{"type": "video_url"}]}), "not supported here");
    check_refused(json!({"role": "assistant", "tool_calls": "x"}), "tool_calls must be an array");
    check_refused(json!({"role": "assistant", "tool_calls": ["x"]}), "must be an object");
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
        variables(&serde_json::from_value(body).unwrap(), &caps, &TemplateKwargs::default())
    };
    let given = with(json!({"enable_thinking": false})).unwrap();
    assert_eq!(template.render_json(&Json::Object(given)).unwrap(), "False True");
    for reserved in ["messages", "tools"] {
        let error = with(json!({reserved: []})).unwrap_err();
        assert!(matches!(error, PromptError::Field { field: "chat_template_kwargs", .. }), "{error:?}");
    }
}

/// A template that renders only the first system message and refuses others.
const ONE_SYSTEM: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}";
/// A template that renders only the first system message and drops others.
const DROPS_SYSTEM: &str = "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}";
/// A template that renders the last system message instead of the first.
const KEEPS_LAST: &str = "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content %}{% endif %}{% endfor %}system:{{ ns.s }};{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endfor %}";
/// A template that requires alternating turns of user and assistant after the system message.
const ALTERNATES: &str = "{% if messages[0].role == 'system' %}system:{{ messages[0].content }};{% set messages = messages[1:] %}{% endif %}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}";

#[test]
fn system_messages_are_joined_if_the_template_renders_only_the_first() {
    let say = |role: &str, text: &str| json!({"role": role, "content": text});
    let first = json!([say("system", "a"), say("developer", "b"), say("system", "c"), say("user", "d")]);
    let later =
        json!([say("system", "a"), say("user", "b"), say("system", "c"), say("assistant", "d"), say("user", "e")]);
    for template in [ONE_SYSTEM, DROPS_SYSTEM, ALTERNATES] {
        check(template, first.clone(), "system:a\nb\nc;user:d;");
        check(template, later.clone(), "system:a;user:b\nc;assistant:d;user:e;");
    }
    check(KEEPS_LAST, first.clone(), "system:a\nb\nc;user:d;");
    check(KEEPS_LAST, later.clone(), "system:a;user:b\nc;assistant:d;user:e;");
    check(TEXT_ONLY, first, "system:a;system:b;system:c;user:d;");
    check(TEXT_ONLY, later, "system:a;user:b;system:c;assistant:d;user:e;");
}

/// A template that drops all system messages.
const NO_SYSTEM: &str = "{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endfor %}";

#[test]
fn system_messages_at_the_beginning_become_the_user_s_if_the_template_renders_none() {
    let say = |role: &str, text: &str| json!({"role": role, "content": text});
    let alone = json!([say("system", "a"), say("developer", "b")]);
    check(NO_SYSTEM, alone, "user:a\nb;");
    let parts = json!({"role": "system", "content": parts()[0]["content"]});
    let asks = json!([parts, say("user", "c"), say("assistant", "d"), say("user", "e")]);
    check(NO_SYSTEM, asks, "user:a\nb\nc;assistant:d;user:e;");
    let answer_first = json!([say("system", "a"), say("assistant", "b"), say("system", "c"), say("user", "d")]);
    check(NO_SYSTEM, answer_first, "user:a;assistant:b;user:c\nd;");
    let no_user = "{% for m in messages if m.role == 'critic' %}{{ m.role }}:{{ m.content }};{% endfor %}";
    check(no_user, json!([say("system", "a"), say("critic", "b")]), "critic:b;");
}

#[test]
fn a_later_system_message_stays_in_its_place_as_a_turn_of_the_user() {
    let say = |role: &str, text: &str| json!({"role": role, "content": text});
    let alone = json!([say("user", "a"), say("assistant", "b"), say("system", "c")]);
    check(ONE_SYSTEM, alone, "user:a;assistant:b;user:c;");
    let before_the_user = json!([say("user", "a"), say("assistant", "b"), say("system", "c"), say("user", "d")]);
    check(ONE_SYSTEM, before_the_user, "user:a;assistant:b;user:c\nd;");
    let two_users = json!([say("user", "a"), say("user", "b")]);
    check(ONE_SYSTEM, two_users, "user:a;user:b;");
    let wrong = json!({"role": "system", "content": 5});
    let error = rendered(ONE_SYSTEM, json!([say("user", "a"), wrong])).unwrap_err();
    assert!(matches!(error, PromptError::Messages { index: 1, .. }), "{error:?}");
}

const ONE_FIRST: SystemPlaces = SystemPlaces { first: true, several_first: false, later: false };

fn say(role: &str, content: Json) -> Map<String, Json> {
    Map::from_iter([("role".to_owned(), Json::from(role)), ("content".to_owned(), content)])
}

#[test]
fn a_system_message_is_joined_only_to_text() {
    let parts = parts()[0]["content"].clone();
    let image = json!([{"type": "text", "text": "c"}, {"type": "image_url"}]);
    let contents = [parts.clone(), json!("d"), parts, image.clone(), json!("e"), json!("f"), Json::Null];
    let messages = contents.map(|content| say("system", content));
    let placed = placed(&messages, ONE_FIRST);
    let contents: Vec<_> = placed.iter().map(|(index, message)| (*index, message["content"].clone())).collect();
    let joined = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b\nd\na\nb"}]);
    assert_eq!(contents, [(0, joined), (3, image), (4, json!("e\nf")), (6, Json::Null)]);
}

#[test]
fn a_message_of_parts_that_grows_is_rendered_with_the_same_beginning() {
    let both = BOTH.replace("[{{ p.text }}]", "{{ p.text }}");
    let only_first = "{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}{{ m.role }}:";
    let template = both.replace("{{ m.role }}:", only_first);
    let mut messages = parts();
    check(&template, messages.clone(), "user:ab;");
    messages.as_array_mut().unwrap().push(json!({"role": "system", "content": "c"}));
    check(&template, messages, "user:ab\nc;");
}

#[test]
fn many_system_messages_are_joined_without_copies_of_the_earlier_ones() {
    // Two copies of the text so far for each message would be 170 GB.
    const N_MESSAGES: usize = 100_000;
    const TEXT: &str = "a system message";
    let first = vec![say("system", json!(TEXT)); N_MESSAGES];
    let mut later = first.clone();
    later[0] = say("user", json!(TEXT));
    let expected = Json::from(vec![TEXT; N_MESSAGES].join("\n"));
    let none = SystemPlaces { first: false, ..ONE_FIRST };
    for (messages, places) in [(&first, ONE_FIRST), (&first, none), (&later, ONE_FIRST)] {
        let placed = placed(messages, places);
        assert_eq!(placed.len(), 1);
        // The message of `assert_eq!` would have both texts.
        assert!(placed[0].1["content"] == expected);
    }
}
