//! Tools that a conversation loads late: the list in front of the prompt is without them, and their definitions stand
//! where the conversation loads them.
//!
//! A tool with `defer_loading` is not offered to the model until a part of type `tool_reference` names it. The part
//! becomes the text of the definition. So everything before it keeps its tokens, which a longer list of tools would
//! change. Source: Anthropic's "Tool search tool", OpenAI's "Tool search", and Claude Code 2.1.332, which writes the
//! same text for endpoints without references.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::ChatPrompt;
use super::tool_kinds::{TOOL_SEARCH, left_out_of_chat};

/// Field of a tool that waits until the conversation loads it.
pub const DEFER_LOADING: &str = "defer_loading";

/// Type of a part that loads a tool.
pub const TOOL_REFERENCE: &str = "tool_reference";

/// Type of a part from which on a tool is withdrawn.
pub const TOOL_REMOVAL: &str = "tool_removal";

/// A part about a tool, with the tool's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToolChange<'a> {
    Load(&'a str),
    Remove(&'a str),
}

impl<'a> ToolChange<'a> {
    fn of(part: &'a Value) -> Option<Self> {
        let kind = part.get("type")?.as_str().filter(|kind| [TOOL_REFERENCE, TOOL_REMOVAL].contains(kind))?;
        // Chats of other servers have `name`.
        let name = part.get("tool_name").or_else(|| part.get("name"))?.as_str()?;
        Some(if kind == TOOL_REFERENCE { Self::Load(name) } else { Self::Remove(name) })
    }
}

impl ChatPrompt {
    /// Returns the chat as a template gets it: the tools without those that wait, and texts in place of the parts that
    /// load or remove one.
    ///
    /// If every tool waits, those that are loaded first are listed: a template writes how tools are called beside the
    /// list. This changes the prompt's beginning once. A tool that the request does not define is named as not
    /// available: an agent cannot change its history when a server of tools is gone.
    /// Cost: a look at each part, and a copy of the chat if a tool waits or a part is replaced.
    pub fn with_loaded_tools(&self) -> Cow<'_, Self> {
        let tools = self.tools.as_deref().unwrap_or_default();
        if !tools.iter().any(is_deferred) && changes(&self.messages).next().is_none() {
            return Cow::Borrowed(self);
        }
        let mut chat = self.clone();
        let mut first_loaded = Vec::new();
        for message in &mut chat.messages {
            let loaded_names = write_changes(message, tools);
            if first_loaded.is_empty() {
                first_loaded = loaded_names;
            }
        }
        let mut tool_list: Vec<Value> = tools.iter().filter(|tool| !is_deferred(tool)).cloned().collect();
        if tool_list.is_empty() {
            let is_first = |tool: &&Value| name(tool).is_some_and(|name| first_loaded.contains(&name));
            tool_list = tools.iter().filter(is_first).map(as_listed).collect();
        }
        chat.tools = self.tools.is_some().then_some(tool_list);
        Cow::Owned(chat)
    }
}

/// Returns whether a chat's tool waits until the conversation loads it.
pub fn is_deferred(tool: &Value) -> bool {
    tool.get(DEFER_LOADING) == Some(&Value::Bool(true))
}

/// Returns the names of the tools that a conversation offers to the model at its end.
pub fn offered_names<'a>(tools: &'a [Value], messages: &'a [Map<String, Value>]) -> HashSet<&'a str> {
    let mut names: HashSet<&str> = tools.iter().filter(|tool| !is_deferred(tool)).filter_map(name).collect();
    for change in changes(messages) {
        match change {
            ToolChange::Load(name) => names.insert(name),
            ToolChange::Remove(name) => names.remove(name),
        };
    }
    names
}

/// Writes the field of a tool that waits in one place, and removes it from all others.
///
/// No tool waits if the request lists a search that its API's owner runs: nobody would load it here.
pub(super) fn normalize(tools: &mut [Value]) {
    let has_search = tools.iter().any(|tool| left_out_of_chat(tool) == Some(TOOL_SEARCH));
    for tool in tools {
        let take = |tool: Option<&mut Value>| tool?.as_object_mut()?.shift_remove(DEFER_LOADING);
        let inner = take(tool.get_mut("function")).or_else(|| take(tool.get_mut("custom")));
        let Some(field) = take(Some(tool)).or(inner) else { continue };
        let Some(tool) = tool.as_object_mut() else { continue };
        if !(has_search || matches!(field, Value::Null | Value::Bool(false))) {
            tool.insert(DEFER_LOADING.to_owned(), field);
        }
    }
}

fn changes(messages: &[Map<String, Value>]) -> impl Iterator<Item = ToolChange<'_>> {
    let parts = messages.iter().filter_map(|message| message.get("content")?.as_array());
    parts.flatten().filter_map(ToolChange::of)
}

/// Writes texts in place of a message's parts about tools and returns the names of the tools that it loads.
///
/// One text at the first reference has the definitions of all: most messages with references are results of a search.
fn write_changes<'t>(message: &mut Map<String, Value>, tools: &'t [Value]) -> Vec<&'t str> {
    let Some(Value::Array(parts)) = message.get_mut("content") else { return Vec::new() };
    if parts.iter().all(|part| ToolChange::of(part).is_none()) {
        return Vec::new();
    }
    let (mut loaded, mut lines, mut place) = (Vec::new(), String::new(), 0);
    let mut texts = Vec::with_capacity(parts.len());
    // Each part about a tool is replaced; the first that loads one keeps a place for the text of all.
    for part in std::mem::take(parts) {
        match ToolChange::of(&part) {
            Some(ToolChange::Load(wanted)) => {
                let Some(tool) = tools.iter().find(|tool| name(tool) == Some(wanted)) else {
                    texts.push(unavailable(wanted));
                    continue;
                };
                if loaded.is_empty() {
                    place = texts.len();
                    texts.push(Value::Null);
                }
                loaded.extend(name(tool));
                lines.push_str(&definition(tool));
            }
            Some(ToolChange::Remove(name)) => texts.push(unavailable(name)),
            None => texts.push(part),
        }
    }
    // All definitions stand in that place.
    if !loaded.is_empty() {
        texts[place] = text(format!("<functions>\n{lines}</functions>"));
    }
    // A single text stays a text, as most templates expect of a tool's result.
    let content = match &mut texts[..] {
        [one] if one["type"] == "text" => one["text"].take(),
        _ => Value::Array(texts),
    };
    message.insert("content".to_owned(), content);
    loaded
}

/// Returns the text in place of a tool that is withdrawn or not defined.
fn unavailable(name: &str) -> Value {
    text(format!("The tool `{name}` is no longer available."))
}

fn text(text: String) -> Value {
    json!({"type": "text", "text": text})
}

/// Returns a tool's definition in a line. Source: the text that Claude Code's `ToolSearch` promises to the model.
fn definition(tool: &Value) -> String {
    let function = &tool["function"];
    let fields = ["description", "name", "parameters"].into_iter().filter_map(|field| {
        let value = function.get(field).filter(|value| !value.is_null())?;
        Some((field.to_owned(), value.clone()))
    });
    format!("<function>{}</function>\n", Value::Object(fields.collect()))
}

/// Returns a tool without the field that lets it wait.
fn as_listed(tool: &Value) -> Value {
    let mut tool = tool.clone();
    if let Some(fields) = tool.as_object_mut() {
        fields.shift_remove(DEFER_LOADING);
    }
    tool
}

/// Returns the name of a tool, a function or custom.
fn name(tool: &Value) -> Option<&str> {
    let of = |kind: &str| tool.get(kind)?.get("name")?.as_str();
    of("function").or_else(|| of("custom"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: Value) -> ChatPrompt {
        serde_json::from_value(body).expect("a chat")
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}})
    }

    fn deferred(name: &str) -> Value {
        let mut tool = tool(name);
        tool[DEFER_LOADING] = true.into();
        tool
    }

    fn result(parts: Value) -> Value {
        json!({"role": "tool", "tool_call_id": "1", "content": parts})
    }

    fn reference(name: &str) -> Value {
        json!({"type": "tool_reference", "tool_name": name})
    }

    fn line(name: &str) -> String {
        let fields = format!(r#""description":"d","name":"{name}","parameters":{{"type":"object"}}"#);
        format!("<function>{{{fields}}}</function>\n")
    }

    #[test]
    fn a_chat_without_late_tools_is_not_copied() {
        let chat = chat(json!({"messages": [result(json!([{"type": "text", "text": "a"}]))], "tools": [tool("a")]}));
        assert!(matches!(chat.with_loaded_tools(), Cow::Borrowed(_)));
    }

    #[test]
    fn a_definition_stands_where_the_conversation_loads_it() {
        let asked = json!({"role": "user", "content": "x"});
        let messages = json!([asked, result(json!([reference("b"), {"type": "text", "text": "t"}, reference("c")]))]);
        let tools = json!([deferred("b"), tool("a"), deferred("c"), deferred("d")]);
        let chat = chat(json!({"messages": messages, "tools": tools}));
        let shown = chat.with_loaded_tools();
        assert_eq!(shown.tools, Some(vec![tool("a")]));
        let definitions = format!("<functions>\n{}{}</functions>", line("b"), line("c"));
        let expected = json!([{"type": "text", "text": definitions}, {"type": "text", "text": "t"}]);
        assert_eq!(shown.messages[1]["content"], expected);
        let mut names: Vec<_> = offered_names(chat.tools.as_deref().unwrap(), &chat.messages).into_iter().collect();
        names.sort_unstable();
        assert_eq!(names, ["a", "b", "c"], "`d` waits");
    }

    #[test]
    fn content_of_references_alone_is_one_text() {
        let messages = json!([result(json!([{"type": "tool_reference", "name": "b"}]))]);
        let chat = chat(json!({"messages": messages, "tools": [tool("a"), deferred("b")]}));
        let shown = chat.with_loaded_tools();
        assert_eq!(shown.messages[0]["content"], format!("<functions>\n{}</functions>", line("b")));
    }

    #[test]
    fn if_all_tools_wait_the_first_that_are_loaded_are_listed() {
        let body = |n: usize| {
            let results = ["b", "a"].map(|name| result(json!([reference(name)])));
            let messages = [[json!({"role": "user", "content": "x"})].as_slice(), &results].concat();
            chat(json!({"messages": messages[..n], "tools": [deferred("a"), deferred("b")]}))
        };
        let listed = |n: usize| body(n).with_loaded_tools().tools.clone();
        assert_eq!(listed(1), Some(Vec::new()));
        assert_eq!(listed(2), Some(vec![tool("b")]));
        assert_eq!(listed(3), listed(2), "the beginning changes once");
    }

    #[test]
    fn a_removed_tool_is_not_offered_until_it_is_loaded_again() {
        let removal = json!({"role": "system", "content": [{"type": "tool_removal", "tool_name": "a"}]});
        let again = json!({"role": "system", "content": [reference("a")]});
        let messages = json!([removal, again]);
        let chat = chat(json!({"messages": messages, "tools": [tool("a")]}));
        let names = |n: usize| offered_names(chat.tools.as_deref().unwrap(), &chat.messages[..n]).len();
        assert_eq!([0, 1, 2].map(names), [1, 0, 1]);
        let shown = chat.with_loaded_tools();
        assert_eq!(shown.messages[0]["content"], "The tool `a` is no longer available.");
        assert_eq!(shown.tools, Some(vec![tool("a")]), "the list keeps it, as the prompt's beginning does");
    }

    #[test]
    fn a_tool_that_is_not_defined_is_named_as_not_available() {
        let messages = json!([result(json!([reference("z"), reference("b")]))]);
        let chat = chat(json!({"messages": messages, "tools": [tool("a"), deferred("b")]}));
        let shown = chat.with_loaded_tools();
        let gone = json!({"type": "text", "text": "The tool `z` is no longer available."});
        let loaded = json!({"type": "text", "text": format!("<functions>\n{}</functions>", line("b"))});
        assert_eq!(shown.messages[0]["content"], json!([gone, loaded]));
    }

    #[test]
    fn the_field_has_one_place_and_means_nothing_beside_a_search_that_nobody_runs() {
        let mut inner = tool("b");
        inner["function"][DEFER_LOADING] = true.into();
        let mut loaded = tool("a");
        loaded[DEFER_LOADING] = false.into();
        let mut tools = [loaded, inner, deferred("c")];
        normalize(&mut tools);
        assert_eq!(tools, [tool("a"), deferred("b"), deferred("c")]);
        let mut tools = [deferred("c"), json!({"type": "tool_search_tool_bm25_20251119", "name": "s"})];
        normalize(&mut tools);
        assert_eq!(tools[0], tool("c"));
    }
}
