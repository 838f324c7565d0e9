//! Tool calls in a response's message, in the format of OpenAI's chats: calls of functions have arguments, calls of
//! custom tools have one text.
//!
//! Templates support only functions, so the model calls a function in place of a custom tool. Such a call is recognized
//! by its name, and its text is parsed from the arguments as they arrive. Not here: the rest of the message (`wire`).

use std::borrow::Cow;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use warmpath_common::dialects::CUSTOM;

use super::free_text::FreeText;
use crate::lifecycle::message_stream;

/// Type of a function and of its calls.
const FUNCTION: &str = "function";

/// Tool call or a part of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ToolCall<'a> {
    /// Index of the call in the message; only in chunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Id of the call; only in its first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    /// Type of the tool; only in the call's first chunk.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = [FUNCTION, CUSTOM]))]
    pub kind: Option<&'static str>,
    /// Called function or custom tool.
    #[serde(flatten)]
    pub called: Called<'a>,
}

/// Called tool or a part of the call.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Called<'a> {
    /// Function.
    Function(Function<'a>),
    /// Custom tool.
    Custom(Custom<'a>),
}

/// Called function or a part of the call.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Function<'a> {
    /// Name of the function; only in the call's first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// JSON text of the arguments.
    pub arguments: &'a str,
}

/// Called custom tool or a part of the call.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Custom<'a> {
    /// Name of the tool; only in the call's first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// Text that the tool takes.
    pub input: Cow<'a, str>,
}

/// Returns a whole call, given the names of custom tools.
pub fn whole<'a>(call: &'a message_stream::WholeToolCall, custom_tools: &[String]) -> ToolCall<'a> {
    let name = Some(call.name.as_str());
    let (kind, called) = if custom_tools.contains(&call.name) {
        (CUSTOM, Called::Custom(Custom { name, input: FreeText::of(&call.arguments).into() }))
    } else {
        (FUNCTION, Called::Function(Function { name, arguments: &call.arguments }))
    };
    ToolCall { index: None, id: Some(&call.id), kind: Some(kind), called }
}

/// Calls of one choice, whose parts are written as they arrive.
#[derive(Debug)]
pub struct GrowingCalls {
    custom_tools: Arc<[String]>,
    /// Parser of the text of each call so far; `None` for functions.
    texts: Vec<Option<FreeText>>,
}

impl GrowingCalls {
    /// Returns a choice without calls, given the names of custom tools.
    pub fn new(custom_tools: Arc<[String]>) -> Self {
        Self { custom_tools, texts: Vec::new() }
    }

    /// Returns a part of a call; `None` if it adds nothing to a custom tool's text.
    pub fn part<'a>(&mut self, delta: &'a message_stream::ToolCallDelta) -> Option<ToolCall<'a>> {
        if delta.index >= self.texts.len() {
            self.texts.resize_with(delta.index + 1, || None);
        }
        let (text, name) = (&mut self.texts[delta.index], delta.name.as_deref());
        if name.is_some_and(|name| self.custom_tools.iter().any(|custom| custom == name)) {
            *text = Some(FreeText::default());
        }
        let (kind, called) = match text {
            None => (FUNCTION, Called::Function(Function { name, arguments: &delta.arguments })),
            Some(text) => {
                let input = text.push(&delta.arguments);
                if input.is_empty() && name.is_none() {
                    return None;
                }
                (CUSTOM, Called::Custom(Custom { name, input: input.into() }))
            }
        };
        let id = delta.id.as_deref();
        Some(ToolCall { index: Some(delta.index), id, kind: id.map(|_| kind), called })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn delta(index: usize, head: Option<(&str, &str)>, arguments: &str) -> message_stream::ToolCallDelta {
        let (id, name) = (head.map(|head| head.0.to_owned()), head.map(|head| head.1.to_owned()));
        message_stream::ToolCallDelta { index, id, name, arguments: arguments.to_owned() }
    }

    #[test]
    fn parts_of_a_custom_tool_s_call_are_its_text_and_a_function_s_its_arguments() {
        let mut calls = GrowingCalls::new(Arc::new(["patch".to_owned()]));
        let mut part = |index, head, arguments| {
            let delta = delta(index, head, arguments);
            calls.part(&delta).map(|call| serde_json::to_value(call).expect("a call has a JSON form"))
        };
        let head = Some(json!({"index": 0, "id": "a", "type": "custom", "custom": {"name": "patch", "input": ""}}));
        assert_eq!(part(0, Some(("a", "patch")), ""), head);
        assert_eq!(part(0, None, "{\"inp"), None);
        assert_eq!(part(0, None, "ut\": \"x\\"), Some(json!({"index": 0, "custom": {"input": "x"}})));
        assert_eq!(part(0, None, "ny\"}"), Some(json!({"index": 0, "custom": {"input": "\ny"}})));
        let arguments = json!({"name": "f", "arguments": "{"});
        assert_eq!(
            part(1, Some(("b", "f")), "{"),
            Some(json!({"index": 1, "id": "b", "type": "function", "function": arguments}))
        );
        assert_eq!(part(1, None, "}"), Some(json!({"index": 1, "function": {"arguments": "}"}})));
    }

    #[test]
    fn a_whole_call_of_a_custom_tool_has_its_text() {
        let call = |name: &str, arguments: &str| message_stream::WholeToolCall {
            id: "a".to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let written = |call: &message_stream::WholeToolCall| -> Value {
            serde_json::to_value(whole(call, &["patch".to_owned()])).expect("a call has a JSON form")
        };
        let custom = json!({"id": "a", "type": "custom", "custom": {"name": "patch", "input": "x\ny"}});
        assert_eq!(written(&call("patch", "{\"input\": \"x\\ny\"}")), custom);
        let function = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        assert_eq!(written(&call("f", "{}")), function);
    }
}
