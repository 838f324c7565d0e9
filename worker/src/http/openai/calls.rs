//! Tool calls in a response's message, in the format of OpenAI's chats: calls of functions have arguments, calls of
//! custom tools have one text.
//!
//! Templates support only functions, so the model calls a function in place of a custom tool. Such a call is recognized
//! by its name, and its text is parsed from the arguments as they arrive. Not here: the rest of the message (`wire`).

use std::borrow::Cow;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use warmpath_common::openai::custom_tools::CUSTOM;

use super::free_text::FreeText;
use crate::lifecycle::message;

/// Type of a function and of its calls.
const FUNCTION: &str = "function";

/// Tool call or a part of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ToolCall<'a> {
    /// Index of the call in the message; only in chunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Id of the call; only in its first chunk, which has no arguments.
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

impl Called<'_> {
    fn adds_nothing(&self) -> bool {
        match self {
            Self::Function(function) => function.arguments.is_empty(),
            Self::Custom(custom) => custom.input.is_empty(),
        }
    }
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
pub fn whole<'a>(call: &'a message::WholeToolCall, custom_tools: &[String]) -> ToolCall<'a> {
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

    /// Returns the parts of a call that a delta has: its head with empty arguments if it is new, and then its further
    /// arguments or text. Clients read a call's arguments from the parts behind its head only.
    pub fn parts<'a>(&mut self, delta: &'a message::ToolCallDelta) -> impl Iterator<Item = ToolCall<'a>> {
        if delta.index >= self.texts.len() {
            self.texts.resize_with(delta.index + 1, || None);
        }
        let (text, name) = (&mut self.texts[delta.index], delta.name.as_deref());
        if name.is_some_and(|name| self.custom_tools.iter().any(|custom| custom == name)) {
            *text = Some(FreeText::default());
        }
        let kind = if text.is_some() { CUSTOM } else { FUNCTION };
        let head = name.map(|_| match text {
            None => Called::Function(Function { name, arguments: "" }),
            Some(_) => Called::Custom(Custom { name, input: "".into() }),
        });
        let further = match text {
            None => Called::Function(Function { name: None, arguments: &delta.arguments }),
            Some(text) => Called::Custom(Custom { name: None, input: text.push(&delta.arguments).into() }),
        };
        let further = Some(further).filter(|further| !further.adds_nothing());
        let (index, id) = (Some(delta.index), delta.id.as_deref());
        let head = head.map(|call| ToolCall { index, id, kind: Some(kind), called: call });
        head.into_iter().chain(further.map(|call| ToolCall { index, id: None, kind: None, called: call }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn delta(index: usize, head: Option<(&str, &str)>, arguments: &str) -> message::ToolCallDelta {
        let (id, name) = (head.map(|head| head.0.to_owned()), head.map(|head| head.1.to_owned()));
        message::ToolCallDelta { index, id, name, arguments: arguments.to_owned() }
    }

    #[test]
    fn parts_of_a_custom_tool_s_call_are_its_text_and_a_function_s_its_arguments() {
        let mut calls = GrowingCalls::new(Arc::new(["patch".to_owned()]));
        let mut check = |index, head, arguments, expected: Value| {
            let delta = delta(index, head, arguments);
            let parts: Vec<_> = calls.parts(&delta).collect();
            assert_eq!(serde_json::to_value(parts).expect("calls have a JSON form"), expected, "{arguments}");
        };
        let head = json!({"index": 0, "id": "a", "type": "custom", "custom": {"name": "patch", "input": ""}});
        check(0, Some(("a", "patch")), "", json!([head]));
        check(0, None, "{\"inp", json!([]));
        check(0, None, "ut\": \"x\\", json!([{"index": 0, "custom": {"input": "x"}}]));
        check(0, None, "ny\"}", json!([{"index": 0, "custom": {"input": "\ny"}}]));
        let head = |index, id, name| json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        check(1, Some(("b", "f")), "{", json!([head(1, "b", "f"), {"index": 1, "function": {"arguments": "{"}}]));
        check(1, None, "}", json!([{"index": 1, "function": {"arguments": "}"}}]));
        check(2, Some(("c", "g")), "{}", json!([head(2, "c", "g"), {"index": 2, "function": {"arguments": "{}"}}]));
        let head = json!({"index": 3, "id": "d", "type": "custom", "custom": {"name": "patch", "input": ""}});
        let text = json!({"index": 3, "custom": {"input": "x"}});
        check(3, Some(("d", "patch")), "{\"input\": \"x\"}", json!([head, text]));
    }

    #[test]
    fn a_whole_call_of_a_custom_tool_has_its_text() {
        let call = |name: &str, arguments: &str| message::WholeToolCall {
            id: "a".to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let written = |call: &message::WholeToolCall| -> Value {
            serde_json::to_value(whole(call, &["patch".to_owned()])).expect("a call has a JSON form")
        };
        let custom = json!({"id": "a", "type": "custom", "custom": {"name": "patch", "input": "x\ny"}});
        assert_eq!(written(&call("patch", "{\"input\": \"x\\ny\"}")), custom);
        let function = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        assert_eq!(written(&call("f", "{}")), function);
    }
}
