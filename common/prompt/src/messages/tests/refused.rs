//! Tests of conversations that templates refuse as clients send them, with llama.cpp's templates (`make fixtures`
//! fetches them).

use std::path::{Path, PathBuf};

use super::*;

const GEMMA: &str = "google-gemma-2-2b-it";
const GPT_OSS: &str = "openai-gpt-oss-120b";
const LLAMA: &str = "meta-llama-Llama-3.1-8B-Instruct";
const MINISTRAL: &str = "mistralai-Ministral-3-14B-Reasoning-2512";
const NEMO: &str = "mistralai-Mistral-Nemo-Instruct-2407";
const QWEN: &str = "Qwen-Qwen3-0.6B";
const QWEN_CODER: &str = "Qwen3-Coder";
const SMALL: &str = "Mistral-Small-3.2-24B-Instruct-2506";

/// Id of a call that every template accepts.
const ID: &str = "call00001";
/// Id as OpenAI's API makes it.
const FOREIGN_ID: &str = "call_PTLP8xhuVZz2mGYn";
/// Arguments that a limit has cut off.
const CUT: &str = r#"{"a": "b"#;

/// A template with its capabilities.
struct Fitted {
    template: ChatTemplate,
    caps: Caps,
}

impl Fitted {
    fn read(path: &Path) -> Self {
        let source = std::fs::read_to_string(path);
        let source = source.unwrap_or_else(|error| panic!("{}: {error}: run `make fixtures`", path.display()));
        let template = ChatTemplate::compile(&source, Arc::new(jiff::Zoned::now)).unwrap();
        Self { caps: Caps::probe(&template), template }
    }

    fn named(name: &str) -> Self {
        Self::read(&folder().join(format!("{name}.jinja")))
    }

    fn render(&self, messages: &Json) -> Result<String, PromptError> {
        let request = serde_json::from_value(json!({ "messages": messages })).unwrap();
        let mut variables = variables(&request, &self.caps, &TemplateKwargs::default())?;
        for name in ["bos", "eos"] {
            variables.insert(format!("{name}_token"), format!("<{name}>").into());
        }
        self.template.render_json(&Json::Object(variables))
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fixtures/templates")
}

fn templates() -> Vec<PathBuf> {
    std::fs::read_dir(folder()).expect("run `make fixtures`").map(|entry| entry.unwrap().path()).collect()
}

fn user(text: &str) -> Json {
    say("user", json!(text)).into()
}

fn assistant(text: &str) -> Json {
    say("assistant", json!(text)).into()
}

fn call(id: &str, arguments: Json) -> Json {
    json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}})
}

fn calls(content: &str, calls: Json) -> Json {
    json!({"role": "assistant", "content": content, "tool_calls": calls})
}

fn result(id: &str, content: Json) -> Json {
    json!({"role": "tool", "tool_call_id": id, "content": content})
}

/// Returns a call of these arguments and its result.
fn called(arguments: Json) -> Json {
    json!([user("q"), calls("", json!([call(ID, arguments)])), result(ID, json!("r"))])
}

/// Returns a conversation with messages of the user behind a result.
fn interrupted() -> Vec<Json> {
    let called = [user("q"), calls("", json!([call(ID, json!("{}"))])), result(ID, json!("r"))];
    called.into_iter().chain([user("b"), user("c"), assistant("d"), user("e")]).collect()
}

#[track_caller]
fn check_shown(name: &str, messages: Json, expected: &str) {
    let shown = Fitted::named(name).render(&messages).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(shown.contains(expected), "{name}: {shown}");
}

#[test]
fn arguments_that_are_no_object_are_rendered_as_the_template_accepts_them() {
    for (name, arguments, expected) in [
        (QWEN, CUT, r#"{"name": "f", "arguments": {"a": "b}"#),
        (QWEN, "[1]", r#"{"name": "f", "arguments": [1]}"#),
        (MINISTRAL, CUT, r#"f[ARGS]{"a": "b<eos>"#),
        (LLAMA, CUT, r#"{"name": "f", "parameters": {"arguments": "{\"a\": \"b"}}"#),
        (GPT_OSS, CUT, r#"<|message|>{"arguments": "{\"a\": \"b"}<|call|>"#),
        (QWEN_CODER, CUT, "<function=f>\n<parameter=arguments>\n{\"a\": \"b\n</parameter>\n</function>"),
        (QWEN_CODER, "[1]", "<function=f>\n<parameter=arguments>\n[1]\n</parameter>\n</function>"),
        (QWEN_CODER, "[]", "<function=f>\n</function>"),
        (QWEN_CODER, "null", "<function=f>\n</function>"),
        ("GLM-4.6", CUT, "<arg_key>arguments</arg_key>\n<arg_value>{\"a\": \"b</arg_value>"),
        ("Kimi-K3", CUT, r#"<|sep|>{"a": "b<|close|>json"#),
        ("Kimi-K3", "[1]", "<|sep|>[1]<|close|>json"),
    ] {
        check_shown(name, called(json!(arguments)), expected);
    }
}

#[test]
fn no_arguments_are_refused_by_a_template_that_renders_calls() {
    let mut n_rendered = 0;
    for path in templates() {
        let fitted = Fitted::read(&path);
        if fitted.render(&called(json!({"a": 1}))).is_err() {
            continue;
        }
        n_rendered += 1;
        let texts = [CUT, "b", "[1]", "5", "null", "\"b\"", "[]"].map(Json::from);
        let values = [json!([1]), json!(5), Json::Null, json!(true)];
        for arguments in texts.into_iter().chain(values) {
            let rendered = fitted.render(&called(arguments.clone()));
            assert!(rendered.is_ok(), "{} / {arguments}: {rendered:?}", path.display());
        }
    }
    assert!(n_rendered > 50, "{n_rendered}");
}

#[test]
fn what_a_template_renders_in_alternation_it_renders_in_every_order() {
    let (asks, says, says_more, asks_more) = (user("a"), assistant("b"), assistant("c"), user("d"));
    let mut empty_calls = says.clone();
    empty_calls["tool_calls"] = json!([]);
    let without_calls = [json!([asks, empty_calls, asks_more]), json!([asks, assistant(""), asks_more])];
    let system = say("system", json!("s"));
    let one = |id: &str| (calls("", json!([call(id, json!({"a": 1}))])), result(id, json!("r")));
    let ((calls_one, result_of_one), (calls_foreign, result_of_foreign)) = (one(ID), one(FOREIGN_ID));
    let (mut calls_bare, mut result_of_bare) = (calls_one.clone(), result_of_one.clone());
    calls_bare["tool_calls"] = json!([{"type": "function", "function": {"name": "f"}}]);
    result_of_bare["tool_call_id"] = Json::Null;
    let calls_two = calls("", json!([call(ID, json!({"a": 1})), call("call00002", json!({"a": 2}))]));
    let second_result = result("call00002", json!("s"));
    let groups = [
        (
            json!([asks, says, asks_more]),
            vec![
                json!([asks, asks_more]),
                json!([asks, says, says_more, asks_more]),
                json!([system, asks, says, asks_more]),
                without_calls[0].clone(),
                without_calls[1].clone(),
            ],
        ),
        (
            json!([asks, calls_one, result_of_one, says, asks_more]),
            vec![
                json!([asks, calls_one, result_of_one, asks_more]),
                json!([asks, calls_two, result_of_one, second_result, says, asks_more]),
                json!([asks, calls_foreign, result_of_foreign, says, asks_more]),
                json!([asks, calls_bare, result_of_bare, says, asks_more]),
            ],
        ),
    ];
    let mut n_rendered = 0;
    for path in templates() {
        let fitted = Fitted::read(&path);
        for (_, others) in groups.iter().filter(|(alternating, _)| fitted.render(alternating).is_ok()) {
            n_rendered += 1;
            for messages in others {
                let rendered = fitted.render(messages);
                assert!(rendered.is_ok(), "{} / {messages}: {rendered:?}", path.display());
            }
        }
    }
    assert!(n_rendered > 100, "{n_rendered}");
}

#[test]
fn messages_in_a_row_are_joined_if_the_template_requires_alternation() {
    let users = json!([user("a"), user("b")]);
    let parts = |text: &str| say("user", json!([{"type": "text", "text": text}]));
    let users_of_parts = json!([parts("a"), user("b"), parts("c")]);
    let assistants = json!([user("a"), assistant("b"), assistant("c"), user("d")]);
    check_shown(GEMMA, users.clone(), "<start_of_turn>user\na\n\nb<end_of_turn>\n<start_of_turn>model\n");
    check_shown(GEMMA, assistants.clone(), "<start_of_turn>model\nb\n\nc<end_of_turn>\n<start_of_turn>user\nd");
    for name in [NEMO, SMALL, MINISTRAL] {
        check_shown(name, users.clone(), "[INST]a\n\nb[/INST]");
        check_shown(name, users_of_parts.clone(), "[INST]a\n\nb\n\nc[/INST]");
        check_shown(name, assistants.clone(), "[INST]a[/INST]b\n\nc<eos>[INST]d[/INST]");
    }
    check_shown(QWEN, users, "<|im_start|>user\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n");
    let mut thought = assistant("x");
    thought["reasoning_content"] = json!("t");
    check_shown(
        MINISTRAL,
        json!([user("q"), thought, assistant("y"), user("z")]),
        "[THINK]t[/THINK]x\n\ny<eos>[INST]z[/INST]",
    );
}

/// A template that renders only parts and requires alternation.
const ALTERNATING_PARTS: &str = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}{{ m.role }}:{% for p in m.content %}[{{ p.text }}]{% endfor %};{% endfor %}";

#[test]
fn parts_are_joined_as_parts_if_the_template_renders_no_text() {
    let parts = json!([{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]);
    let users = json!([user("a"), say("user", parts.clone()), assistant("d")]);
    check(ALTERNATING_PARTS, users, "user:[a\n\nb\nc];assistant:[d];");
    let users = json!([say("user", parts), user("d"), user("e")]);
    check(ALTERNATING_PARTS, users, "user:[b][c\n\nd\n\ne];");
}

#[test]
fn many_messages_are_joined_without_reading_the_earlier_parts() {
    // Reading all parts for each message would take minutes.
    const N: usize = 100_000;
    let ministral = Fitted::named(MINISTRAL);
    let parts = vec![json!({"type": "text", "text": "b"}); N];
    let mut thought = say("assistant", json!("x"));
    thought.insert("reasoning_content".to_owned(), json!("t"));
    let mut messages = vec![say("user", json!("a")), say("assistant", json!(parts)), thought];
    messages.extend(vec![say("assistant", json!("c")); N]);
    let request = serde_json::from_value(json!({ "messages": messages })).unwrap();
    let variables = variables(&request, &ministral.caps, &TemplateKwargs::default());
    let messages = variables.unwrap()["messages"].take();
    let parts = messages[1]["content"].as_array().unwrap();
    assert_eq!((messages.as_array().unwrap().len(), parts.len()), (2, N + 3));
    assert_eq!(parts[N + 2]["text"].as_str().unwrap().len(), 1 + 3 * N);
}

#[test]
fn a_message_of_parts_keeps_its_beginning_when_others_are_joined_to_it() {
    let parts = say("user", json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]));
    for name in [SMALL, MINISTRAL] {
        check_shown(name, json!([parts]), "[INST]ab[/INST]");
        check_shown(name, json!([parts, user("c"), parts]), "[INST]ab\n\nc\n\na\nb[/INST]");
    }
}

#[test]
fn all_parts_are_rendered_by_templates_that_render_only_the_first() {
    let parts = |role: &str| say(role, json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]));
    check_shown(SMALL, json!([parts("system"), user("q")]), "[SYSTEM_PROMPT]a\nb[/SYSTEM_PROMPT]");
    check_shown("MiniMax-M1", json!([parts("system"), user("q")]), "ai_setting=assistant\na\nb<end_of_sentence>");
    let answered = json!([user("q"), parts("assistant"), user("r")]);
    check_shown("unsloth-mistral-Devstral-Small-2507", answered, "[INST]q[/INST]a\nb<eos>[INST]r[/INST]");
}

#[test]
fn system_messages_become_the_user_s_if_the_template_refuses_them() {
    let messages = json!([say("system", json!("s")), user("a"), assistant("b"), user("c")]);
    let gemma = "<start_of_turn>user\ns\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n<start_of_turn>user\nc<";
    check_shown(GEMMA, messages, gemma);
}

#[test]
fn an_answer_without_text_is_a_part_if_the_template_refuses_it() {
    for empty in [json!(""), json!([]), Json::Null] {
        let messages = json!([user("a"), say("assistant", empty), user("c")]);
        check_shown(MINISTRAL, messages, "[INST]a[/INST]<eos>[INST]c[/INST]");
    }
}

#[test]
fn calls_have_null_content_if_the_template_leaves_them_out_otherwise() {
    let shown = "function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```";
    check_shown("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", called(json!("{\"a\": 1}")), shown);
}

#[test]
fn a_user_s_message_behind_a_result_becomes_a_part_of_it_if_the_template_refuses_it() {
    let messages = Json::from(interrupted());
    let nemo = r#"{"content": r

b

c, "call_id": "call00001"}[/TOOL_RESULTS]d<eos>[INST]e[/INST]"#;
    check_shown(NEMO, messages.clone(), nemo);
    check_shown(SMALL, messages.clone(), "[TOOL_CONTENT]r\n\nb\n\nc[/TOOL_RESULTS]d<eos>[INST]e[/INST]");
    check_shown(MINISTRAL, messages.clone(), "[TOOL_RESULTS]r\n\nb\n\nc[/TOOL_RESULTS]d<eos>[INST]e[/INST]");
    check_shown(QWEN, messages, "</tool_response><|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>user\nc");
}

#[test]
fn a_user_s_message_behind_a_result_is_a_turn_if_the_assistant_has_answered_the_last_one() {
    let called = [calls("", json!([call(ID, json!("{}"))])), result(ID, json!("r"))];
    let messages = [user("a"), assistant("b")].into_iter().chain(called).chain([user("c"), assistant("d")]);
    let messages: Json = messages.collect();
    for name in [NEMO, SMALL, MINISTRAL] {
        check_shown(name, messages.clone(), "[/TOOL_RESULTS][INST]c[/INST]d<eos>");
    }
}

#[test]
fn joined_messages_keep_the_beginning_of_the_shorter_conversation() {
    let mut messages = interrupted();
    messages.insert(0, say("system", json!("s")).into());
    for name in [SMALL, MINISTRAL] {
        let fitted = Fitted::named(name);
        let prompts: Vec<String> =
            (2..=messages.len()).map(|n| fitted.render(&json!(messages[..n])).unwrap()).collect();
        for pair in prompts.windows(2) {
            let ended = ["[/INST]", "[/TOOL_RESULTS]"].iter().find_map(|end| pair[0].strip_suffix(*end));
            assert!(pair[1].starts_with(ended.unwrap_or(&pair[0])), "{name}: {pair:?}");
        }
    }
}

/// A template that refuses several calls in one message.
const ONE_CALL: &str = "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}<{{ c.id }}>{% endfor %};{% endfor %}";

/// Returns a message with three calls, and results of which the first two are of each other's place and the last one is
/// of an unknown call.
fn three_calls(results: [Json; 3]) -> Json {
    let three = ["one", "two", "three"].map(|id| call(id, json!({})));
    let [second, first, unknown] = results;
    json!([
        user("a"),
        calls("b", json!(three)),
        result("two", second),
        result("one", first),
        result("unknown", unknown),
        user("c"),
    ])
}

#[test]
fn several_calls_are_split_if_the_template_refuses_them() {
    let messages = three_calls(["2", "1", "3"].map(Json::from));
    let split = "user:a;assistant:b<one>;tool:1;assistant:<two>;tool:2;assistant:<three>;tool:3;user:c;";
    check(ONE_CALL, messages, split);
    let llama = r#"{"name": "f", "parameters": {"n": 1}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>

"1"<|eot_id|><|start_header_id|>assistant<|end_header_id|>

{"name": "f", "parameters": {"n": 2}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>

"2"<|eot_id|>"#;
    let two = json!([call("one", json!({"n": 1})), call("two", json!({"n": 2}))]);
    let messages = json!([user("a"), calls("", two), result("two", json!("2")), result("one", json!("1"))]);
    check_shown(LLAMA, messages, llama);
}

#[test]
fn several_calls_are_split_if_the_template_leaves_out_all_but_one() {
    let two = json!([call("one", json!({"n": 1})), call("two", json!({"n": 2}))]);
    let messages = json!([user("a"), calls("", two), result("two", json!("2")), result("one", json!("1"))]);
    let call = "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>";
    let result = "<|start|>functions.f to=assistant<|channel|>commentary<|message|>";
    let gpt_oss =
        format!("{call}{{\"n\": 1}}<|call|>{result}\"1\"<|end|>{call}{{\"n\": 2}}<|call|>{result}\"2\"<|end|>");
    check_shown(GPT_OSS, messages.clone(), &gpt_oss);
    for name in ["GigaChat3-10B-A1.8B", "GigaChat3.1-10B-A1.8B"] {
        check_shown(name, messages.clone(), "{\"n\": 2}}<|message_sep|>\n\nfunction result<|role_sep|>\n2<");
    }
}

#[test]
fn each_of_the_calls_with_one_id_has_a_result() {
    let two = json!([call("x", json!({})), call("x", json!({}))]);
    let results = ["1", "2", "3"].map(|text| result("x", json!(text)));
    let [first, second, third] = &results;
    let messages = json!([user("a"), calls("b", two), first, second, third]);
    check(ONE_CALL, messages, "user:a;assistant:b<x>;tool:1;assistant:<x>;tool:2;tool:3;");
}

#[test]
fn the_images_of_results_that_change_places_stay_theirs() {
    let image = json!([{"type": "image_url"}]);
    let messages = three_calls([image.clone(), image.clone(), image]);
    let [first, second, third] = [1, 0, 2].map(mark);
    let split = format!(
        "user:a;assistant:b<one>;tool:{first};assistant:<two>;tool:{second};assistant:<three>;tool:{third};user:c;"
    );
    check(ONE_CALL, messages, &split);
}

#[test]
fn an_empty_list_of_calls_is_left_out() {
    let mut says = assistant("b");
    for empty in [json!([]), Json::Null] {
        says["tool_calls"] = empty;
        let messages = json!([user("a"), says, user("c")]);
        check_shown(LLAMA, messages.clone(), "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>");
        check_shown(NEMO, messages, "[INST]a[/INST]b<eos>[INST]c[/INST]");
    }
}

/// Returns the ids of calls in the prompt of Mistral Small, which are also those of the results.
fn small_s_ids(messages: &Json) -> Vec<String> {
    let shown = Fitted::named(SMALL).render(messages).unwrap();
    let between = |start: &str, end: &str| -> Vec<String> {
        shown.split(start).skip(1).filter_map(|rest| Some(rest.split_once(end)?.0.to_owned())).collect()
    };
    let ids = between("[CALL_ID]", "[ARGS]");
    assert_eq!(ids, between("[TOOL_RESULTS]", "[TOOL_CONTENT]"), "{shown}");
    ids
}

#[test]
fn ids_that_are_missing_are_made_if_the_template_requires_them() {
    let bare = json!({"type": "function", "function": {"name": "f", "arguments": "{}"}});
    let mut nulled = bare.clone();
    nulled["id"] = Json::Null;
    let nameless = |text: &str| say("tool", json!(text));
    let called = [
        calls("", json!([bare, call(ID, json!({})), nulled])).as_object().unwrap().clone(),
        nameless("1"),
        nameless("2"),
        nameless("3"),
    ];
    let first = [vec![say("user", json!("q"))], called.to_vec()].concat();
    let second = [first.clone(), vec![say("assistant", json!("a")), say("user", json!("r"))], called.to_vec()].concat();
    let ids = small_s_ids(&json!(first));
    assert_eq!((ids.len(), ids[1].as_str()), (3, ID));
    let grown = small_s_ids(&json!(second));
    assert_eq!(&grown[..3], ids.as_slice());
    let different: std::collections::HashSet<&String> = grown.iter().collect();
    assert_eq!((grown.len(), different.len()), (6, 5), "{grown:?}");
    check_shown(NEMO, json!(first), &format!("\"call_id\": \"{}\"}}[/TOOL_RESULTS]", ids[2]));
}

#[test]
fn ids_that_the_template_refuses_become_nine_letters_and_digits_alike_in_call_and_result() {
    let messages = |id: &str| {
        let two = json!([call(id, json!({})), call(ID, json!({}))]);
        json!([user("q"), calls("", two), result(id, json!("r")), result(ID, json!("r"))])
    };
    let ids = |id: &str| small_s_ids(&messages(id));
    let foreign = ids(FOREIGN_ID);
    assert_eq!(foreign[1], ID);
    assert!(foreign[0].len() == 9 && foreign[0].bytes().all(|byte| byte.is_ascii_alphanumeric()), "{foreign:?}");
    assert_ne!(foreign[0], ids("call_another")[0]);
    assert_eq!(ids("call_0002"), ["call_0002", ID]);
    check_shown(NEMO, messages("call_0002"), r#""call_id": "call_0002"}[/TOOL_RESULTS]"#);
    check(ONE_CALL, json!([calls("", json!([call(FOREIGN_ID, json!({}))]))]), &format!("assistant:<{FOREIGN_ID}>;"));
}

#[test]
fn reasoning_is_rendered_from_the_field_that_each_template_reads() {
    for (name, field) in [
        ("upstage-Solar-Open-100B", "reasoning"),
        ("LFM2.5-8B-A1B", "thinking"),
        (GPT_OSS, "thinking"),
        (QWEN, "reasoning_content"),
        ("poolside-Laguna-S-2.1", "reasoning_content"),
        ("google-gemma-4-31B-it", "reasoning_content"),
        ("tencent-Hy3", "reasoning_content"),
        ("Kimi-K3", "reasoning_content"),
        ("Cohere2MoE", "reasoning_content"),
    ] {
        assert_eq!(Fitted::named(name).caps.reasoning_field, field, "{name}");
    }
    let mut thought = calls("", json!([call(ID, json!("{}"))]));
    thought["reasoning"] = json!("because");
    check_shown(
        "upstage-Solar-Open-100B",
        json!([user("q"), thought, result(ID, json!("r"))]),
        "<|think|>because<|end|>",
    );
}

#[test]
fn the_last_of_several_answers_is_continued() {
    let request = |messages: Json| serde_json::from_value::<ChatPrompt>(json!({ "messages": messages })).unwrap();
    let check = |name: &str, messages: Json, expected: Option<&str>| {
        let request = request(messages);
        let goes_on = continued(&request, &Fitted::named(name).caps).unwrap();
        assert_eq!(goes_on.map(|goes_on| goes_on.content.into_owned()).as_deref(), expected, "{name}");
    };
    let two = json!([user("q"), assistant("a"), assistant("b")]);
    let first_is_empty = json!([user("q"), assistant(""), assistant("b")]);
    let alone = json!([assistant("a"), assistant("b")]);
    for name in [QWEN, LLAMA, GPT_OSS] {
        check(name, two.clone(), Some("b"));
        check(name, first_is_empty.clone(), Some("b"));
        check(name, alone.clone(), Some("b"));
    }
    for name in [GEMMA, NEMO] {
        check(name, two.clone(), Some("a\n\nb"));
        check(name, first_is_empty.clone(), Some("b"));
        check(name, alone.clone(), None);
    }
    let behind_calls = json!([user("q"), calls("", json!([call(ID, json!("{}"))])), assistant("b")]);
    check(GEMMA, behind_calls, Some("b"));
    check_shown(
        GEMMA,
        json!([user("q"), assistant(""), assistant("b"), user("r")]),
        "<start_of_turn>model\nb<end_of_turn>",
    );
}
