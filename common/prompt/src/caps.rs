//! Capabilities of a chat template: content as text or as parts, tool arguments as objects or as text, and which
//! messages it refuses.
//!
//! They are determined as in llama.cpp: small conversations are rendered and the output is examined. A request is then
//! passed in a form that the template supports, whichever form the client has chosen. A form counts as refused only if
//! the template renders a similar conversation without it. Not here: the conversion of messages (`messages`, `calls`,
//! `turns`).

use serde_json::{Value as Json, json};

use crate::messages::to_template_value;
use crate::template::ChatTemplate;

/// Forms of content that a template renders for messages of one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentShapes {
    pub text: bool,
    pub parts: bool,
}

impl ContentShapes {
    /// Returns whether texts are rendered only as parts.
    pub fn parts_only(self) -> bool {
        self.parts && !self.text
    }
}

/// Forms of messages that a template accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caps {
    system: ContentShapes,
    user: ContentShapes,
    assistant: ContentShapes,
    tool: ContentShapes,
    /// Whether tool arguments are passed as objects; otherwise as JSON text.
    pub object_arguments: bool,
    /// Whether a text in place of such an object is rendered as it is, also if it is no JSON.
    pub raw_arguments: bool,
    /// Whether other JSON values in place of such an object are refused.
    pub refuses_other_arguments: bool,
    /// Whether several calls in one message are refused.
    pub refuses_several_calls: bool,
    /// Whether ids of calls are refused unless they have nine characters.
    pub refuses_long_call_ids: bool,
    /// Successive messages that are refused.
    pub refused_pairs: RefusedPairs,
    /// Whether the template knows the role `developer`; otherwise `system` takes its place.
    pub developer_role: bool,
    /// Whether the template reads reasoning as `thinking`, as gpt-oss does; others read `reasoning_content`.
    pub thinking_key: bool,
    /// Whether the template refuses content besides reasoning and calls, as gpt-oss's does.
    pub calls_without_content: bool,
    /// Whether the template reads reasoning only as a part of the content, of type `thinking`, as Ministral 3's does.
    pub thinking_parts: bool,
    /// Positions at which the template renders system messages.
    pub system_places: SystemPlaces,
    /// Separators between the parts of a call's arguments; `None` if the template writes them in another way.
    pub separators: Option<Separators>,
}

/// Separators in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Separators {
    /// Between items and members.
    pub item: &'static str,
    /// Between a member's name and its value.
    pub key: &'static str,
}

/// Separators that templates write, with an example. Source: Python's `json.dumps`, by default and with
/// `separators=(",", ":")`.
const SEPARATED: [(Separators, &str); 2] = [
    (Separators { item: ", ", key: ": " }, r#"{"a": 1, "b": [1, 2]}"#),
    (Separators { item: ",", key: ":" }, r#"{"a":1,"b":[1,2]}"#),
];

/// Positions at which a template renders system messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SystemPlaces {
    /// Whether all system messages at the beginning are rendered if there are several.
    pub several_first: bool,
    /// Whether a system message after a user's message is rendered.
    pub later: bool,
}

/// Successive messages that a template refuses, because it requires user and assistant to alternate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefusedPairs {
    /// Whether two messages of the user are refused.
    pub users: bool,
    /// Whether two messages of the assistant without calls are refused.
    pub assistants: bool,
    /// Whether a message of the user behind a tool's result is refused.
    pub result_and_user: bool,
}

/// A text that no template contains.
const MARKER: &str = "warmpath probe text";
/// Another such text.
const SECOND_MARKER: &str = "warmpath second text";
/// Arguments that were cut off.
const CUT_ARGUMENTS: &str = "{\"warmpath_key\": \"warmpath";
/// Id of a call that every template accepts. Source: Mistral's templates, which require nine letters and digits.
const CALL_ID: &str = "call00001";

impl Caps {
    /// Determines the capabilities by rendering.
    pub fn probe(template: &ChatTemplate) -> Self {
        let user = content_shapes(template, "user");
        let other = |role| {
            let shapes = content_shapes(template, role);
            if shapes.text || shapes.parts { shapes } else { user }
        };
        let assistant = other("assistant");
        let object_arguments = takes_object_arguments(template);
        let arguments = if object_arguments { json!({"place": "here"}) } else { json!("{\"place\": \"here\"}") };
        let answered = called(&[CALL_ID], &arguments);
        let refuses_calls = |ids: &[&str]| refuses(template, &called(ids, &arguments), &answered, Some(a_tool()));
        Self {
            system: other("system"),
            user,
            assistant,
            tool: other("tool"),
            object_arguments,
            raw_arguments: takes_raw_arguments(template),
            refuses_other_arguments: refuses_other_arguments(template),
            refuses_several_calls: refuses_calls(&[CALL_ID, "call00002"]),
            refuses_long_call_ids: refuses_calls(&["call_of_warmpath"]),
            refused_pairs: refused_pairs(template, (user, assistant), &answered),
            developer_role: shows_developer(template),
            thinking_key: template.source().contains("message.thinking"),
            // Source: llama.cpp's test for gpt-oss in `common_chat_try_specialized_template`.
            calls_without_content: template.source().contains("<|channel|>"),
            thinking_parts: takes_thinking_parts(template),
            system_places: system_places(template),
            separators: separators(template),
        }
    }

    /// Returns the forms of content for messages of `role`.
    pub fn content(&self, role: &str) -> ContentShapes {
        match role {
            "system" | "developer" => self.system,
            "assistant" => self.assistant,
            "tool" => self.tool,
            _ => self.user,
        }
    }
}

fn content_shapes(template: &ChatTemplate, role: &str) -> ContentShapes {
    let shown = |content: Json| {
        let text = render(template, &conversation(role, content), None)?;
        // A template that prints the list itself writes it like Python or JSON.
        let printed = ["'type'", "\"type\"", "\\\"type"].iter().any(|spelling| text.contains(spelling));
        Some(text.contains(MARKER) && !printed)
    };
    ContentShapes {
        text: shown(json!(MARKER)).unwrap_or(false),
        parts: shown(json!([{"type": "text", "text": MARKER}])).unwrap_or(false),
    }
}

/// Returns whether reasoning is rendered as a part of the content, and not as `reasoning_content`.
fn takes_thinking_parts(template: &ChatTemplate) -> bool {
    let shows = |content: Json, reasoning: Option<&str>| {
        let mut messages = conversation("assistant", content);
        if let Some(reasoning) = reasoning {
            messages[1]["reasoning_content"] = json!(reasoning);
        }
        let text = render(template, &messages, None)?;
        Some(text.contains(SECOND_MARKER) && !text.contains("'thinking'") && !text.contains("\"thinking\""))
    };
    let text = json!({"type": "text", "text": MARKER});
    template.source().contains("thinking")
        && shows(json!([{"type": "thinking", "thinking": SECOND_MARKER}, text]), None) == Some(true)
        && shows(json!([text]), Some(SECOND_MARKER)) == Some(false)
}

/// Returns whether the template has the role `developer`; the word alone may occur in a text.
fn shows_developer(template: &ChatTemplate) -> bool {
    let shapes = content_shapes(template, "developer");
    template.source().contains("developer") && (shapes.text || shapes.parts)
}

/// Determines where system messages are rendered. A template that renders none counts as one that renders all, so that
/// no message is moved.
fn system_places(template: &ChatTemplate) -> SystemPlaces {
    let message = |role: &str, text: &str| {
        let shapes = content_shapes(template, role);
        let content = if shapes.text { json!(text) } else { json!([{"type": "text", "text": text}]) };
        json!({"role": role, "content": content})
    };
    // Some templates keep the last system message instead of the first.
    let shows = |messages: Json, texts: &[&str]| {
        render(template, &messages, None).is_some_and(|shown| texts.iter().all(|text| shown.contains(text)))
    };
    let (first, second) = (message("system", MARKER), message("system", SECOND_MARKER));
    let user = message("user", "question");
    if !shows(json!([first, user]), &[MARKER]) {
        return SystemPlaces { several_first: true, later: true };
    }
    let both = [MARKER, SECOND_MARKER];
    SystemPlaces {
        several_first: shows(json!([first, second, user]), &both),
        later: shows(json!([first, user, second, message("assistant", "answer"), user]), &both),
    }
}

/// Returns a conversation in which a message of `role` has `content`.
fn conversation(role: &str, content: Json) -> Json {
    let user = json!({"role": "user", "content": "question"});
    let message = json!({"role": role, "content": content});
    match role {
        "system" | "developer" => json!([message, user]),
        "assistant" => json!([user.clone(), message, user]),
        "tool" => {
            let mut result = message;
            result["name"] = json!("lookup");
            result["tool_call_id"] = json!(CALL_ID);
            json!([user, calls(&[CALL_ID], &json!({"place": "here"})), result])
        }
        _ => json!([message]),
    }
}

/// Returns a message with a call for each id.
fn calls(ids: &[&str], arguments: &Json) -> Json {
    let function = json!({"name": "lookup", "arguments": arguments});
    let call = |id: &&str| json!({"id": id, "type": "function", "function": function});
    json!({"role": "assistant", "content": "", "tool_calls": ids.iter().map(call).collect::<Vec<_>>()})
}

/// Returns a conversation with a call for each id, and the results.
fn called(ids: &[&str], arguments: &Json) -> Vec<Json> {
    let result = |id: &&str| json!({"role": "tool", "content": "done", "name": "lookup", "tool_call_id": id});
    let mut messages = vec![json!({"role": "user", "content": "question"}), calls(ids, arguments)];
    messages.extend(ids.iter().map(result));
    messages
}

/// Returns a conversation with a call of these arguments as the template renders it.
fn rendered_call(template: &ChatTemplate, arguments: Json) -> Option<String> {
    render(template, &Json::Array(called(&[CALL_ID], &arguments)), Some(a_tool()))
}

/// Returns the separators between the parts of arguments; arguments that are passed as text count as the model's own.
fn separators(template: &ChatTemplate) -> Option<Separators> {
    let nested = json!({"a": 1, "b": [1, 2]});
    let shown = match rendered_call(template, json!({"warmpath_key": nested})) {
        Some(text) if !text.contains("'warmpath_key'") => text,
        _ => rendered_call(template, json!(format!("{{\"warmpath_key\": {}}}", SEPARATED[0].1)))?,
    };
    SEPARATED.into_iter().find(|(_, written)| shown.contains(written)).map(|(separators, _)| separators)
}

/// Returns whether a call's arguments are rendered correctly from an object: a template may print it like Python
/// instead.
fn takes_object_arguments(template: &ChatTemplate) -> bool {
    let rendered = |arguments: Json| rendered_call(template, arguments);
    let Some(text) = rendered(json!({"warmpath_key": MARKER})) else {
        return rendered(json!(format!("{{\"warmpath_key\": \"{MARKER}\"}}"))).is_none();
    };
    !text.contains("'warmpath_key'")
}

/// Returns whether a text in place of arguments is rendered as it is; some templates write it as a string in JSON.
fn takes_raw_arguments(template: &ChatTemplate) -> bool {
    rendered_call(template, json!(CUT_ARGUMENTS)).is_some_and(|text| text.contains(CUT_ARGUMENTS))
}

/// Returns whether JSON values that are no objects are refused as arguments.
fn refuses_other_arguments(template: &ChatTemplate) -> bool {
    let with = |arguments: Json| called(&[CALL_ID], &arguments);
    let refused = |value: Json| refuses(template, &with(value), &with(json!({})), Some(a_tool()));
    refused(json!([1])) || refused(json!(1))
}

/// Determines which successive messages are refused; `answered` ends with a tool's result.
///
/// Each pair is compared with the same messages in alternation.
fn refused_pairs(
    template: &ChatTemplate,
    (user, assistant): (ContentShapes, ContentShapes),
    answered: &[Json],
) -> RefusedPairs {
    let message = |role: &str, text: &str, shapes: ContentShapes| {
        let content = if shapes.parts_only() { json!([{"type": "text", "text": text}]) } else { json!(text) };
        json!({"role": role, "content": content})
    };
    let (asks, says) = (message("user", "question", user), message("assistant", "answer", assistant));
    let chat = |messages: &[&Json]| messages.iter().map(|message| (*message).clone()).collect::<Vec<Json>>();
    let behind_result = |messages: &[&Json]| [answered, chat(messages).as_slice()].concat();
    let alternating = chat(&[&asks, &says, &asks]);
    RefusedPairs {
        users: refuses(template, &chat(&[&asks, &asks]), &alternating, None),
        assistants: refuses(template, &chat(&[&asks, &says, &says, &asks]), &alternating, None),
        result_and_user: refuses(template, &behind_result(&[&asks]), &behind_result(&[&says, &asks]), Some(a_tool())),
    }
}

/// Returns whether the template refuses a conversation and renders `similar`.
fn refuses(template: &ChatTemplate, messages: &[Json], similar: &[Json], tool: Option<Json>) -> bool {
    let is_rendered = |messages: &[Json]| render(template, &json!(messages), tool.clone()).is_some();
    !is_rendered(messages) && is_rendered(similar)
}

fn a_tool() -> Json {
    let parameters = json!({"type": "object", "properties": {"place": {"type": "string", "description": "where"}}});
    let function = json!({"name": "lookup", "description": "looks up", "parameters": parameters});
    json!({"type": "function", "function": function})
}

fn render(template: &ChatTemplate, messages: &Json, tool: Option<Json>) -> Option<String> {
    let mut variables = json!({
        "messages": messages, "bos_token": "", "eos_token": "", "add_generation_prompt": true,
    });
    if let Some(tool) = tool {
        variables["tools"] = json!([tool]);
    }
    template.render(to_template_value(&variables)).ok()
}
