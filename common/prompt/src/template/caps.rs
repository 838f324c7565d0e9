//! Capabilities of a chat template: content as text or as parts, tool arguments as objects or as text, and which
//! messages it refuses.
//!
//! They are determined as in llama.cpp: small conversations are rendered and the output is examined. A request is then
//! passed in a form that the template supports, whichever form the client has chosen. A form counts as refused only if
//! the template renders a similar conversation without it.

use serde_json::{Value as Json, json};
use warmpath_common::openai::REASONING_FIELDS;

use crate::template::ChatTemplate;
use crate::template::values::to_template_value;

/// Forms of content that a template renders for messages of one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentShapes {
    /// Whether a text is rendered.
    pub text: bool,
    /// Whether a list of one part is rendered.
    pub part: bool,
    /// Whether all parts of a longer list are rendered; some templates render only the first one.
    pub parts: bool,
}

impl ContentShapes {
    /// Returns a text as content that is rendered: as a part if the template renders only parts.
    pub fn wrapped(self, text: &str) -> Json {
        if self.part && !self.text { json!([{"type": "text", "text": text}]) } else { json!(text) }
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
    /// Content of a message with calls and no text: empty, or null if calls are rendered only with that, as by
    /// DeepSeek R1's first template.
    pub content_of_calls: Json,
    /// Whether several calls in one message are refused, or all but one are left out.
    pub one_call_only: bool,
    /// Whether calls and results without ids are refused.
    pub requires_call_ids: bool,
    /// Whether ids of calls are refused unless they have nine characters.
    pub refuses_long_call_ids: bool,
    /// Successive messages that are refused.
    pub refused_pairs: RefusedPairs,
    /// Conversations that are refused until an empty message of the user opens them.
    pub refused_openings: RefusedOpenings,
    /// Whether the template knows the role `developer`; otherwise `system` takes its place.
    pub developer_role: bool,
    /// Field from which the template reads reasoning: `reasoning_content`, or another like gpt-oss's and Solar-Open's.
    pub reasoning_field: &'static str,
    /// Whether the template refuses content besides reasoning and calls, as gpt-oss's does.
    pub calls_without_content: bool,
    /// Whether the template reads reasoning only as a part of the content, of type `thinking`, as Ministral 3's does.
    pub thinking_parts: bool,
    /// Whether an answer without text is refused as text and accepted as a part, as by Ministral 3's template.
    pub empty_answer_as_part: bool,
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
    /// Whether a system message at the beginning is rendered.
    pub first: bool,
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

/// Conversations that a template refuses and renders behind an empty message of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefusedOpenings {
    /// Whether one that begins with the assistant is refused.
    pub assistant: bool,
    /// Whether one without any message of the user is refused, as by Qwen 3.5's template.
    pub without_user: bool,
}

/// A text that no template contains.
const MARKER: &str = "warmpath probe text";
/// Another such text.
const SECOND_MARKER: &str = "warmpath second text";
/// Arguments that were cut off.
const CUT_ARGUMENTS: &str = "{\"warmpath_key\": \"warmpath";
/// Id of a call that every template accepts. Source: Mistral's templates, which require nine letters and digits.
const CALL_ID: &str = "call00001";
/// Another such id.
const SECOND_CALL_ID: &str = "call00002";

impl Caps {
    /// Determines the capabilities by rendering.
    pub fn probe(template: &ChatTemplate) -> Self {
        // Content. A role that is not rendered at all is treated like the user.
        let user = content_shapes(template, "user");
        let other = |role| {
            let shapes = content_shapes(template, role);
            if shapes.text || shapes.part { shapes } else { user }
        };
        let (system, assistant) = (other("system"), other("assistant"));
        // Calls: the form that is rendered, from which all conversations with calls below are made.
        let content_of_calls = content_of_calls(template);
        let object_arguments = takes_object_arguments(template, &content_of_calls);
        let arguments = |place: &str| {
            let object = json!({ "place": place });
            if object_arguments { object } else { json!(object.to_string()) }
        };
        let with_calls = |ids: &[&str], place: &str| called(ids, &content_of_calls, &arguments(place));
        let call_and_result = with_calls(&[CALL_ID], "here");
        // Variants of that conversation, of which a template may refuse each.
        let mut two_calls = with_calls(&[CALL_ID, SECOND_CALL_ID], MARKER);
        two_calls[1]["tool_calls"][1]["function"]["arguments"] = arguments(SECOND_MARKER);
        let mut without_ids = call_and_result.clone();
        without_ids[1]["tool_calls"][0]["id"] = Json::Null;
        without_ids[2]["tool_call_id"] = Json::Null;
        let long_ids = with_calls(&["call_of_warmpath"], "here");
        let refuses_calls = |messages: &[Json]| refuses(template, messages, &call_and_result, Some(a_tool()));
        Self {
            system,
            user,
            assistant,
            tool: other("tool"),
            object_arguments,
            raw_arguments: object_arguments && takes_raw_arguments(template, &content_of_calls),
            refuses_other_arguments: object_arguments && refuses_other_arguments(template, &content_of_calls),
            one_call_only: refuses_calls(&two_calls) || leaves_out_a_call(template, two_calls),
            requires_call_ids: refuses_calls(&without_ids),
            refuses_long_call_ids: refuses_calls(&long_ids),
            refused_pairs: refused_pairs(template, user, assistant, &call_and_result),
            refused_openings: refused_openings(template, [system, user, assistant]),
            developer_role: shows_developer(template),
            reasoning_field: reasoning_field(template, assistant, &call_and_result),
            // Source: llama.cpp's test for gpt-oss in `common_chat_try_specialized_template`.
            calls_without_content: template.source().contains("<|channel|>"),
            thinking_parts: takes_thinking_parts(template),
            empty_answer_as_part: takes_empty_answer_as_part(template, user),
            system_places: system_places(template, [system, user, assistant]),
            separators: separators(template, &content_of_calls),
            content_of_calls,
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
    let renders = |content: Json, texts: &[&str]| {
        let Some(rendering) = render(template, &conversation(role, content), None) else { return false };
        // A template that prints the list itself writes it like Python or JSON.
        let is_printed = ["'type'", "\"type\"", "\\\"type"].iter().any(|spelling| rendering.contains(spelling));
        texts.iter().all(|text| rendering.contains(text)) && !is_printed
    };
    let text = |text: &str| json!({"type": "text", "text": text});
    let part = renders(json!([text(MARKER)]), &[MARKER]);
    ContentShapes {
        text: renders(json!(MARKER), &[MARKER]),
        part,
        parts: part && renders(json!([text(MARKER), text(SECOND_MARKER)]), &[MARKER, SECOND_MARKER]),
    }
}

/// Returns the first field whose reasoning is rendered; `reasoning_content` if none is. `call_and_result` ends with a
/// tool's result.
///
/// Templates render it in earlier answers, in the last one, or between a call and the next answer.
fn reasoning_field(template: &ChatTemplate, assistant: ContentShapes, call_and_result: &[Json]) -> &'static str {
    let (asks, says) = (json!({"role": "user", "content": "question"}), message("assistant", "answer", assistant));
    let conversations = [json!([asks, says, asks]), json!([asks, says]), json!(call_and_result)];
    let is_rendered = |field: &str, messages: &Json| {
        let mut variables = json!({
            "messages": messages, "bos_token": "", "eos_token": "", "add_generation_prompt": true,
            "enable_thinking": true, "tools": [a_tool()],
        });
        variables["messages"][1][field] = json!(MARKER);
        template.render(to_template_value(&variables)).is_ok_and(|text| text.contains(MARKER))
    };
    let is_read = |field: &&str| {
        template.source().contains(*field) && conversations.iter().any(|messages| is_rendered(field, messages))
    };
    REASONING_FIELDS.into_iter().find(is_read).unwrap_or(REASONING_FIELDS[0])
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
    if !template.source().contains("developer") {
        return false;
    }
    let shapes = content_shapes(template, "developer");
    shapes.text || shapes.part
}

/// Determines where system messages are rendered.
///
/// If the template does not render a message of the user alone either, all system messages count as rendered, so that
/// none is moved.
fn system_places(template: &ChatTemplate, [system, user, assistant]: [ContentShapes; 3]) -> SystemPlaces {
    // Some templates keep the last system message instead of the first.
    let shows = |messages: Json, texts: &[&str]| {
        render(template, &messages, None).is_some_and(|rendering| texts.iter().all(|text| rendering.contains(text)))
    };
    let (first, second) = (message("system", MARKER, system), message("system", SECOND_MARKER, system));
    let asks = message("user", "question", user);
    if !shows(json!([first, asks]), &[MARKER]) {
        let is_kept = !shows(json!([message("user", SECOND_MARKER, user)]), &[SECOND_MARKER]);
        return SystemPlaces { first: is_kept, several_first: is_kept, later: is_kept };
    }
    let both = [MARKER, SECOND_MARKER];
    SystemPlaces {
        first: true,
        several_first: shows(json!([first, second, asks]), &both),
        later: shows(json!([first, asks, second, message("assistant", "answer", assistant), asks]), &both),
    }
}

/// Returns a message with a text.
fn message(role: &str, text: &str, shapes: ContentShapes) -> Json {
    json!({"role": role, "content": shapes.wrapped(text)})
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
            json!([user, calls(&[CALL_ID], &json!(""), &json!({"place": "here"})), result])
        }
        _ => json!([message]),
    }
}

/// Returns a message with a call for each id.
fn calls(ids: &[&str], content: &Json, arguments: &Json) -> Json {
    let function = json!({"name": "lookup", "arguments": arguments});
    let call = |id: &&str| json!({"id": id, "type": "function", "function": function});
    json!({"role": "assistant", "content": content, "tool_calls": ids.iter().map(call).collect::<Vec<_>>()})
}

/// Returns a conversation with a call for each id, and the results.
fn called(ids: &[&str], content: &Json, arguments: &Json) -> Vec<Json> {
    let result = |id: &&str| json!({"role": "tool", "content": "done", "name": "lookup", "tool_call_id": id});
    let mut messages = vec![json!({"role": "user", "content": "question"}), calls(ids, content, arguments)];
    messages.extend(ids.iter().map(result));
    messages
}

/// Returns whether one of two calls is rendered and the other one is left out; their arguments are the markers.
fn leaves_out_a_call(template: &ChatTemplate, two_calls: Vec<Json>) -> bool {
    let rendering = render(template, &Json::Array(two_calls), Some(a_tool()));
    rendering.is_some_and(|text| text.contains(MARKER) != text.contains(SECOND_MARKER))
}

/// Returns a conversation with a call of these arguments as the template renders it.
fn rendered_call(template: &ChatTemplate, content: &Json, arguments: Json) -> Option<String> {
    render(template, &Json::Array(called(&[CALL_ID], content, &arguments)), Some(a_tool()))
}

/// Returns the content with which calls are rendered: empty text, or null if they are rendered only with that.
fn content_of_calls(template: &ChatTemplate) -> Json {
    let shows = |content: &Json| {
        let forms = [json!({"place": MARKER}), json!(format!("{{\"place\": \"{MARKER}\"}}"))];
        let mut renderings = forms.into_iter().filter_map(|arguments| rendered_call(template, content, arguments));
        renderings.any(|text| text.contains(MARKER))
    };
    let empty_text = json!("");
    if !shows(&empty_text) && shows(&Json::Null) { Json::Null } else { empty_text }
}

/// Returns the separators between the parts of arguments; arguments that are passed as text count as the model's own.
fn separators(template: &ChatTemplate, content: &Json) -> Option<Separators> {
    let arguments = json!({"a": 1, "b": [1, 2]});
    let rendering = match rendered_call(template, content, json!({"warmpath_key": arguments})) {
        Some(text) if !text.contains("'warmpath_key'") => text,
        _ => rendered_call(template, content, json!(format!("{{\"warmpath_key\": {}}}", SEPARATED[0].1)))?,
    };
    SEPARATED.into_iter().find(|(_, written)| rendering.contains(written)).map(|(separators, _)| separators)
}

/// Returns whether a call's arguments are rendered correctly from an object: a template may print it like Python
/// instead.
fn takes_object_arguments(template: &ChatTemplate, content: &Json) -> bool {
    let rendering_of = |arguments: Json| rendered_call(template, content, arguments);
    let Some(text) = rendering_of(json!({"warmpath_key": MARKER})) else {
        return rendering_of(json!(format!("{{\"warmpath_key\": \"{MARKER}\"}}"))).is_none();
    };
    !text.contains("'warmpath_key'")
}

/// Returns whether a text in place of arguments is rendered as it is; some templates write it as a string in JSON.
fn takes_raw_arguments(template: &ChatTemplate, content: &Json) -> bool {
    rendered_call(template, content, json!(CUT_ARGUMENTS)).is_some_and(|text| text.contains(CUT_ARGUMENTS))
}

/// Returns whether JSON values that are no objects are refused as arguments.
fn refuses_other_arguments(template: &ChatTemplate, content: &Json) -> bool {
    let with = |arguments: Json| called(&[CALL_ID], content, &arguments);
    let is_refused = |value: Json| refuses(template, &with(value), &with(json!({})), Some(a_tool()));
    is_refused(json!([1])) || is_refused(json!(1))
}

/// Determines which successive messages are refused; `call_and_result` ends with a tool's result.
///
/// Each pair is compared with the same messages in alternation.
fn refused_pairs(
    template: &ChatTemplate,
    user: ContentShapes,
    assistant: ContentShapes,
    call_and_result: &[Json],
) -> RefusedPairs {
    let (asks, says) = (message("user", "question", user), message("assistant", "answer", assistant));
    let chat = |messages: &[&Json]| messages.iter().map(|message| (*message).clone()).collect::<Vec<Json>>();
    let behind_result = |messages: &[&Json]| [call_and_result, chat(messages).as_slice()].concat();
    let alternating = chat(&[&asks, &says, &asks]);
    RefusedPairs {
        users: refuses(template, &chat(&[&asks, &asks]), &alternating, None),
        assistants: refuses(template, &chat(&[&asks, &says, &says, &asks]), &alternating, None),
        result_and_user: refuses(template, &behind_result(&[&asks]), &behind_result(&[&says, &asks]), Some(a_tool())),
    }
}

/// Determines which conversations are refused unless an empty message of the user opens them.
fn refused_openings(template: &ChatTemplate, [system, user, assistant]: [ContentShapes; 3]) -> RefusedOpenings {
    let (instructs, opens) = (message("system", "instruction", system), message("user", "", user));
    let (says, asks) = (message("assistant", "answer", assistant), message("user", "question", user));
    let conversation = [opens.clone(), says.clone(), asks.clone()];
    RefusedOpenings {
        assistant: refuses(template, &conversation[1..], &conversation, None),
        without_user: refuses(template, std::slice::from_ref(&instructs), &[instructs.clone(), opens], None),
    }
}

/// Returns whether an answer without text is refused as text and accepted as a part.
fn takes_empty_answer_as_part(template: &ChatTemplate, user: ContentShapes) -> bool {
    let asks = message("user", "question", user);
    let with_answer = |content: Json| [asks.clone(), json!({"role": "assistant", "content": content}), asks.clone()];
    refuses(template, &with_answer(json!("")), &with_answer(json!([{"type": "text", "text": ""}])), None)
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
