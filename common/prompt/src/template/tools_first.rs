//! Tools in front of the system text, for chat templates that render them behind it.
//!
//! Agents write a project's path into the system text, so tools behind it are new text in every project. The template
//! renders a request as usual; then the tools and the system text change places within the system message: `head text
//! space tools` becomes `head tools space text`. The parts are found by rendering small conversations, with tools and
//! without, whose system text is a mark.

use std::collections::HashSet;

use serde_json::{Value as Json, json};
use warmpath_common::ids::Token;

use crate::error::PromptError;
use crate::vocabulary::partition::{Partitioner, Piece};

/// System text in place of the request's. Source: a private character that no template writes.
const MARK: char = '\u{f8fd}';

/// The user's message in small conversations.
const QUESTION: &str = "warmpath question";
/// Name of a tool in the conversation that shows the tools' place.
const TOOL: &str = "warmpath_tool";
/// System text of that conversation.
const TEXT: &str = "warmpath text";

/// Place of the tools in the prompts of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolsPlace {
    /// The place is unknown: the template does not render both tools and a system text.
    Unknown,
    /// In front of the system text.
    Front,
    /// Behind the system text, in the same message.
    Behind,
    /// Behind the system text, in another message or inseparable from it.
    Apart,
}

/// Parts of a system message as a template renders it.
struct SystemMessage {
    head: String,
    text: String,
    /// Everything that is rendered because of the tools, from the white space behind the system text.
    tools: String,
    /// The rest of the prompt.
    behind: String,
}

impl ToolsPlace {
    /// Returns the place in the prompts of the template that `render` renders.
    ///
    /// Shape: `variables` are those of [`conversation`].
    pub fn find(
        variables: &mut Json,
        render: &impl Fn(&Json) -> Result<String, PromptError>,
        partitioner: &Partitioner,
    ) -> Self {
        let Ok(rendering) = render(variables) else { return Self::Unknown };
        match (rendering.find(TEXT), rendering.find(TOOL)) {
            (Some(text), Some(tool)) if tool < text => Self::Front,
            (Some(_), Some(_)) => {
                let is_separable = SystemMessage::find(variables, render).is_some_and(|message| {
                    let controls = |text: &str| controls(partitioner, text);
                    let tail = message.behind.split(QUESTION).next().unwrap_or_default();
                    let around = &controls(&message.head) | &controls(tail);
                    message.tools.contains(TOOL) && controls(&message.tools).is_disjoint(&around)
                });
                if is_separable { Self::Behind } else { Self::Apart }
            }
            _ => Self::Unknown,
        }
    }

    /// Returns why the tools cannot be put in front of the system text; `None` if they can.
    pub fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Unknown => Some("it does not render both tools and a system text"),
            Self::Front => Some("it renders tools in front of the system text already"),
            Self::Behind => None,
            Self::Apart => Some("it does not render tools right behind the system text, in the same message"),
        }
    }
}

/// Returns the messages and the tools of the conversation that shows the tools' place.
pub(crate) fn conversation() -> (Json, Json) {
    let parameters = json!({
        "type": "object",
        "properties": {"place": {"type": "string", "description": "where"}},
        "required": ["place"],
    });
    let function = json!({"name": TOOL, "description": "looks up", "parameters": parameters});
    let messages = json!([{"role": "system", "content": TEXT}, {"role": "user", "content": QUESTION}]);
    (messages, json!([{"type": "function", "function": function}]))
}

/// Returns `rendering`, that of `variables`, with the tools in front of the system text; `None` if it does not
/// have both, or not in the form that they have in a small conversation.
///
/// Cost: that of rendering the tools again.
pub(crate) fn tools_first(
    rendering: &str,
    variables: &mut Json,
    render: &impl Fn(&Json) -> Result<String, PromptError>,
) -> Option<String> {
    let SystemMessage { head, text, tools, .. } = SystemMessage::find(variables, render)?;
    let behind = rendering.strip_prefix(&*head)?.strip_prefix(&*text)?.strip_prefix(&*tools)?;
    let tool_list = tools.trim_start();
    let space = &tools[..tools.len() - tool_list.len()];
    Some([&head, tool_list, space, &text, behind].concat())
}

impl SystemMessage {
    /// Finds the parts of the system message of a request with these variables; the variables are the same afterwards.
    fn find(variables: &mut Json, render: &impl Fn(&Json) -> Result<String, PromptError>) -> Option<Self> {
        if variables["tools"].as_array().is_none_or(Vec::is_empty) {
            return None;
        }
        let system = variables["messages"].get(0).filter(|first| is_system(first))?.clone();
        let mut with_mark = system.clone();
        let mark = MARK.to_string();
        with_mark["content"] =
            if system["content"].is_array() { json!([{"type": "text", "text": mark}]) } else { json!(mark) };
        let question = question_like(&variables["messages"]);
        let messages = std::mem::replace(&mut variables["messages"], json!([with_mark, question]));
        let with_tools = render(variables);
        let tools = variables["tools"].take();
        let without_tools = render(variables);
        variables["messages"][0] = system;
        let of_request = render(variables);
        variables["messages"] = messages;
        variables["tools"] = tools;
        Self::cut(&with_tools.ok()?, &without_tools.ok()?, &of_request.ok()?)
    }

    /// Cuts two renderings with a mark, with tools and without, and one of the request's own text without tools.
    fn cut(with_tools: &str, without_tools: &str, of_request: &str) -> Option<Self> {
        let (head, with_tools) = around_mark(with_tools)?;
        let (bare_head, behind) = around_mark(without_tools)?;
        let text = of_request.strip_prefix(bare_head)?.strip_suffix(behind)?;
        let tools = with_tools.strip_suffix(behind)?;
        // Tools in another message stand behind the end of the system message; `behind` begins with that end, too.
        let mut common = with_tools.bytes().zip(behind.bytes()).take_while(|(a, b)| a == b);
        let is_same_message = common.all(|(byte, _)| byte.is_ascii_whitespace());
        let is_apart = tools.starts_with(char::is_whitespace) && !tools.trim().is_empty();
        let [head, text, tools, behind] = [head, text, tools, behind].map(str::to_owned);
        (is_same_message && is_apart).then_some(Self { head, text, tools, behind })
    }
}

/// Returns a user's message whose content has the form that the template accepts, as in these messages.
fn question_like(messages: &Json) -> Json {
    let is_user = |message: &&Json| message["role"] == "user";
    let users = messages.as_array().into_iter().flatten().find(is_user);
    let has_parts = users.is_some_and(|message| message["content"].is_array());
    let content = if has_parts { json!([{"type": "text", "text": QUESTION}]) } else { json!(QUESTION) };
    json!({"role": "user", "content": content})
}

fn is_system(message: &Json) -> bool {
    matches!(message["role"].as_str(), Some("system" | "developer"))
}

/// Returns the texts before and behind the mark; `None` unless the mark occurs exactly once.
fn around_mark(text: &str) -> Option<(&str, &str)> {
    text.split_once(MARK).filter(|(_, behind)| !behind.contains(MARK))
}

fn controls(partitioner: &Partitioner, text: &str) -> HashSet<Token> {
    let pieces = partitioner.partition(text.as_bytes()).into_iter();
    pieces
        .filter_map(|piece| match piece {
            Piece::Special { token, control: true } => Some(token),
            Piece::Special { control: false, .. } | Piece::Text(_) | Piece::Media(_) => None,
        })
        .collect()
}
