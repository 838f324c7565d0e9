//! The field `tool_choice`: whether the model may or must call tools, and which ones.
//!
//! Tools that may not be called stay in the prompt, so that its prefix does not change; only the grammar of calls omits
//! them.

use serde_json::Value;
use warmpath_common::empty_maps::is_empty_list;
use warmpath_common::openai::custom_tools::CUSTOM;
use warmpath_common::openai::tool_kinds::left_out_of_chat;
use warmpath_llama_chat::ToolChoice;

use crate::error::RequestError;

/// Selection among a request's tools.
#[derive(Debug, PartialEq)]
pub(super) struct ToolSelection<'a> {
    /// Whether tools may or must be called.
    pub tool_choice: ToolChoice,
    /// The only tools that may be called; `None` if all may.
    pub only: Option<Vec<NamedTool<'a>>>,
    /// Whether the response is a single call, because the client names one tool.
    pub is_single: bool,
}

/// Name of a tool and its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NamedTool<'a> {
    kind: &'static str,
    name: &'a str,
}

/// Tools of a request.
pub(super) struct RequestTools<'a> {
    /// Tools that may be called.
    pub tools: &'a [NamedTool<'a>],
    /// Tools that wait until the conversation loads them, and those that it removed.
    pub waiting: &'a [NamedTool<'a>],
    /// Kinds of omitted tools.
    pub left_out: &'a [&'static str],
}

impl<'a> NamedTool<'a> {
    /// Returns the name and type in a tool or in a choice of a tool; `None` if the value has another shape.
    pub fn of(tool: &'a Value) -> Option<Self> {
        let kind = ["function", CUSTOM].into_iter().find(|kind| tool["type"] == *kind)?;
        Some(Self { kind, name: tool[kind]["name"].as_str()? })
    }

    /// Returns its name.
    pub fn name(&self) -> &'a str {
        self.name
    }
}

/// Reads the choice.
///
/// Errors: `Field` if the field is invalid, names a tool that is not in the request, or requires a call without tools.
pub(super) fn read<'a>(choice: Option<&'a Value>, tools: &RequestTools<'_>) -> Result<ToolSelection<'a>, RequestError> {
    let all = |tool_choice| ToolSelection { tool_choice, only: None, is_single: false };
    let auto = if tools.tools.is_empty() { ToolChoice::None } else { ToolChoice::Auto };
    match choice {
        None | Some(Value::Null) => Ok(all(auto)),
        Some(choice) if is_empty_list(choice) => Ok(all(auto)),
        Some(Value::String(word)) if word == "none" => Ok(all(ToolChoice::None)),
        Some(Value::String(word)) if word == "auto" || word.is_empty() => Ok(all(auto)),
        Some(Value::String(word)) if word == "required" => {
            tools.check_any()?;
            Ok(all(ToolChoice::Required))
        }
        Some(choice) if choice["type"] == "allowed_tools" => read_allowed(choice, tools),
        Some(choice) if choice["type"] == "function" || choice["type"] == CUSTOM => {
            if tools.waiting.is_empty() {
                tools.check_any()?;
            }
            let kind = choice["type"].as_str().unwrap_or_default();
            let named_tool = NamedTool::of(choice)
                .ok_or_else(|| refused("", &format!("`tool_choice.{kind}.name` must be a string")))?;
            tools.check_named(&named_tool, "")?;
            Ok(ToolSelection { tool_choice: ToolChoice::Required, only: Some(vec![named_tool]), is_single: true })
        }
        Some(_) => {
            let shape = "{\"type\": \"function\", \"function\": {\"name\": ...}}, the same with \"custom\", or {\"type\": \
                         \"allowed_tools\", \"allowed_tools\": {\"mode\": ..., \"tools\": [...]}}";
            Err(refused("", &format!("`tool_choice` must be \"none\", \"auto\", \"required\", {shape}")))
        }
    }
}

/// Reads a list of the only tools that may be called. Omitted tools and those that wait are ignored.
fn read_allowed<'a>(choice: &'a Value, request_tools: &RequestTools<'_>) -> Result<ToolSelection<'a>, RequestError> {
    let at = ".allowed_tools";
    let Some(allowed_tools) = choice["allowed_tools"].as_object() else {
        return Err(refused(at, "`tool_choice.allowed_tools` must be an object"));
    };
    let tool_choice = match allowed_tools.get("mode").and_then(Value::as_str) {
        Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        _ => {
            let reason = "`tool_choice.allowed_tools.mode` must be \"auto\" or \"required\"";
            return Err(refused(".allowed_tools.mode", reason));
        }
    };
    let tools = allowed_tools.get("tools").and_then(Value::as_array).filter(|tools| !tools.is_empty());
    let Some(tools) = tools else {
        let reason = "`tool_choice.allowed_tools.tools` must be an array that names at least one tool";
        return Err(refused(".allowed_tools.tools", reason));
    };
    let mut only = Vec::new();
    for (idx, tool) in tools.iter().enumerate().filter(|(_, tool)| left_out_of_chat(tool).is_none()) {
        let at = format!(".allowed_tools.tools[{idx}]");
        let named_tool = NamedTool::of(tool).ok_or_else(|| {
            refused(
                &at,
                &format!("`tool_choice{at}` must be {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}"),
            )
        })?;
        if !request_tools.waiting.contains(&named_tool) {
            request_tools.check_named(&named_tool, &at)?;
            only.push(named_tool);
        }
    }
    match tool_choice {
        ToolChoice::Required if only.is_empty() => {
            let reason = "`tool_choice` requires a call, but this worker runs none of the tools that it allows";
            Err(refused(".allowed_tools.tools", reason))
        }
        _ if only.is_empty() => Ok(ToolSelection { tool_choice: ToolChoice::None, only: None, is_single: false }),
        tool_choice => Ok(ToolSelection { tool_choice, only: Some(only), is_single: false }),
    }
}

impl RequestTools<'_> {
    fn check_any(&self) -> Result<(), RequestError> {
        match (self.tools, self.left_out) {
            ([], _) if !self.waiting.is_empty() => {
                Err(refused("", "`tool_choice` requires a call, but the conversation has loaded none of the `tools`"))
            }
            ([], []) => Err(refused("", "`tool_choice` requires a call, but there are no `tools`")),
            ([], left_out) => {
                let reason =
                    "`tool_choice` requires a call, but this worker does not run tools of these types and left out";
                Err(refused("", &format!("{reason}: {}", left_out.join(", "))))
            }
            _ => Ok(()),
        }
    }

    fn check_named(&self, named_tool: &NamedTool<'_>, at: &str) -> Result<(), RequestError> {
        if self.tools.contains(named_tool) {
            return Ok(());
        }
        let reason = if self.waiting.contains(named_tool) {
            "names a tool that the conversation has not loaded, or has removed"
        } else {
            "names a tool that is not among the `tools`"
        };
        Err(refused(at, &format!("`tool_choice{at}` {reason}")))
    }
}

fn refused(at: &str, reason: &str) -> RequestError {
    RequestError::field(format!("tool_choice{at}"), reason)
}
