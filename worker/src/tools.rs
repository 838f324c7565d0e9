//! The fields of a chat about tools: the tools that the model may or must call, and the field that gets its reasoning.
//!
//! Schemas that llama.cpp would convert to a grammar are measured and limited first, and each refusal names its tool.
//! Not here: rendering tools (`warmpath-prompt`), the format of calls (`warmpath-llama-chat`).

mod choice;
mod schema_complexity;
mod schemas;

use std::collections::HashSet;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use warmpath_common::openai::custom_tools::{CUSTOM, function_of_custom};
use warmpath_common::openai::deferred_tools::{DEFER_LOADING, offered_names};
use warmpath_common::openai::tool_kinds::left_out_of_chat;
use warmpath_common::openai::{self, offered};
use warmpath_constraint::schema::SchemaError;
use warmpath_llama_chat::{ReasoningFormat, ToolChoice};
use warmpath_prompt::FormatOptions;

use self::choice::{NamedTool, RequestTools, ToolSelection};
use crate::error::RequestError;

pub use schema_complexity::check as check_complexity;

/// Maximum number of tools of a request. Source: OpenAI allows 128; several tool servers together offer more.
const TOOLS_MAX: usize = 256;

/// Longest name of a function. Units: bytes.
///
/// Source: OpenAI allows 64, and the same for a namespace before it, in which tool servers put their own name.
const NAME_BYTES_MAX: usize = 160;

/// Maximum size of the descriptions and schemas of all tools together, as JSON. Units: bytes.
///
/// Source: 256 tools of 2 kB; llama.cpp's parsers take some 20 times as much.
const TOOLS_BYTES_MAX: usize = 512 << 10;

/// Kind of the tools that search the web, for which OpenAI's chats have a separate field.
const WEB_SEARCH: &str = "web_search";

/// Tools of a request and their settings, unchecked.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolFields {
    #[serde(deserialize_with = "openai::tools_of_chat")]
    #[schemars(schema_with = "schemas::tools")]
    tools: Option<Vec<Value>>,
    #[schemars(schema_with = "schemas::tool_choice")]
    tool_choice: Option<Value>,
    /// Whether one response may have several calls.
    parallel_tool_calls: Option<bool>,
    /// Requests a web search before the response; not supported.
    #[schemars(schema_with = "schemas::web_search_options")]
    web_search_options: Option<Value>,
    #[schemars(schema_with = "schemas::reasoning_format")]
    reasoning_format: Option<String>,
}

/// Field that gets a model's reasoning; llama-server's `reasoning_format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReasoningOutput {
    /// The content, as the model wrote it.
    #[value(name = "none")]
    Inline,
    /// `reasoning_content`.
    #[value(name = "auto", alias = "deepseek")]
    Apart,
    /// Both.
    #[value(name = "deepseek-legacy")]
    Both,
}

impl ReasoningOutput {
    /// Returns llama-server's name of the field.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl ToolFields {
    /// Returns the requested format of the response to these messages, and the field that gets reasoning; it is
    /// `default` unless the request names another one.
    ///
    /// A tool that waits until the messages load it may not be called before: the model has not seen its arguments.
    /// Errors: `Field`, naming the tool and its field.
    pub fn resolve(
        &self,
        messages: &[Map<String, Value>],
        default: ReasoningOutput,
    ) -> Result<(FormatOptions, ReasoningOutput), RequestError> {
        let reasoning_output = self.reasoning_output(default)?;
        let tools = self.tools.as_deref().unwrap_or_default();
        let named_tools = check_tools(tools)?;
        let offered_tools = offered_names(tools, messages);
        let (named, waiting): (Vec<_>, Vec<_>) =
            named_tools.into_iter().partition(|tool| offered_tools.contains(tool.name()));
        let request_tools = RequestTools { tools: &named, waiting: &waiting, left_out: &self.left_out() };
        let ToolSelection { tool_choice, only, is_single } = choice::read(self.tool_choice.as_ref(), &request_tools)?;
        let is_meant = |tool: &NamedTool<'_>| only.as_ref().is_none_or(|only| only.contains(tool));
        let chosen_tools: Vec<Value> = match tool_choice {
            ToolChoice::None => Vec::new(),
            _ => {
                let callable = |tool: &&Value| {
                    let tool = NamedTool::of(tool).filter(|_| left_out_of_chat(tool).is_none());
                    tool.is_some_and(|tool| named.contains(&tool) && is_meant(&tool))
                };
                tools.iter().filter(callable).map(normalized).collect()
            }
        };
        if tool_choice != ToolChoice::None {
            check_complexity(tools)?;
        }
        let parallel_tool_calls = if is_single { Some(false) } else { self.parallel_tool_calls };
        let reasoning_format =
            if reasoning_output == ReasoningOutput::Inline { ReasoningFormat::None } else { ReasoningFormat::Auto };
        Ok((
            FormatOptions { tools: chosen_tools, tool_choice, parallel_tool_calls, reasoning_format },
            reasoning_output,
        ))
    }

    /// Returns the tools that are offered to the model, and those that the conversation may load.
    pub fn offered(&self) -> Option<Vec<Value>> {
        self.tools.clone().map(offered)
    }

    /// Returns the request's `tool_choice`.
    pub fn tool_choice(&self) -> Option<&Value> {
        self.tool_choice.as_ref()
    }

    /// Returns the kinds of omitted tools, each once.
    pub fn left_out(&self) -> Vec<&'static str> {
        let left_out_tools = self.tools.iter().flatten().filter_map(left_out_of_chat);
        let mut kinds = Vec::new();
        for kind in left_out_tools.chain(self.web_search_options.is_some().then_some(WEB_SEARCH)) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// Returns the names of the custom tools, whose calls have one free text.
    pub fn custom_names(&self) -> Vec<String> {
        let custom = self.tools.iter().flatten().filter(|tool| tool["type"] == CUSTOM);
        custom.filter_map(|tool| Some(tool[CUSTOM]["name"].as_str()?.to_owned())).collect()
    }

    /// Returns the error that a part of a tool's schema cannot be enforced.
    pub fn not_kept(&self, tool: &Value, error: &SchemaError) -> RequestError {
        let param = self.parameters_of(tool);
        let path = if error.path.is_empty() { param } else { format!("{param}.{}", error.path) };
        RequestError::field(path.clone(), format!("`{path}`: {}", error.reason))
    }

    /// Returns the error that a tool's schema cannot be used.
    pub fn refused(&self, tool: &Value, reason: &str) -> RequestError {
        let param = self.parameters_of(tool);
        RequestError::field(param.clone(), format!("`{param}` cannot be converted to a grammar: {reason}"))
    }

    /// Returns the error of a strict tool whose schema cannot be enforced at all; `None` if no tool is strict.
    pub fn none_is_kept(&self) -> Option<RequestError> {
        let is_strict = |tool: &Value| tool["function"]["strict"] == true;
        let idx = self.tools.iter().flatten().position(is_strict)?;
        let param = format!("tools[{idx}].function.strict");
        let reason = "this model's chat template writes arguments in a format for which schemas cannot be enforced";
        Some(RequestError::field(param.clone(), format!("`{param}`: {reason}")))
    }

    /// Returns the path of a tool's schema.
    fn parameters_of(&self, tool: &Value) -> String {
        let is_it = |other: &Value| other["function"]["name"] == tool["function"]["name"];
        let idx = self.tools.iter().flatten().position(is_it).unwrap_or_default();
        format!("tools[{idx}].function.parameters")
    }

    fn reasoning_output(&self, default: ReasoningOutput) -> Result<ReasoningOutput, RequestError> {
        let Some(name) = self.reasoning_format.as_deref().filter(|name| !name.is_empty()) else { return Ok(default) };
        ReasoningOutput::from_str(name, false).map_err(|_| {
            let reason = "`reasoning_format` must be \"none\", \"auto\", \"deepseek\" or \"deepseek-legacy\"";
            RequestError::field("reasoning_format", reason)
        })
    }
}

/// Returns the JSON schema of the field with which a tool waits.
pub fn defer_loading_schema() -> Value {
    schemas::defer_loading()
}

/// Returns the pattern of function names.
pub fn function_name_pattern() -> String {
    schemas::name_pattern()
}

/// Checks the fields of all tools and returns their names, except those of omitted tools.
fn check_tools(tools: &[Value]) -> Result<Vec<NamedTool<'_>>, RequestError> {
    if tools.len() > TOOLS_MAX {
        let reason = format!("`tools` has {} tools; at most {TOOLS_MAX} are allowed", tools.len());
        return Err(RequestError::field("tools", reason));
    }
    let n_bytes: usize = tools.iter().map(schema_complexity::json_bytes).sum();
    if n_bytes > TOOLS_BYTES_MAX {
        let reason = format!("`tools` takes {n_bytes} bytes; at most {TOOLS_BYTES_MAX} are allowed");
        return Err(RequestError::field("tools", reason));
    }
    let mut names = HashSet::new();
    let mut check = |(idx, tool): (usize, &'_ Value)| {
        let kind = check_tool(tool).map_err(|(field, reason)| {
            let param = format!("tools[{idx}]{field}");
            RequestError::field(param.clone(), format!("`{param}` {reason}"))
        })?;
        if !names.insert(tool[kind]["name"].clone()) {
            let param = format!("tools[{idx}].{kind}.name");
            return Err(RequestError::field(param, "two tools have the same name"));
        }
        Ok(())
    };
    let callable = tools.iter().enumerate().filter(|(_, tool)| left_out_of_chat(tool).is_none());
    callable.clone().try_for_each(&mut check)?;
    Ok(callable.filter_map(|(_, tool)| NamedTool::of(tool)).collect())
}

/// Wrong field of a tool, and the reason.
type Wrong = (String, String);

fn wrong<T>(field: &str, reason: &str) -> Result<T, Wrong> {
    Err((field.to_owned(), reason.to_owned()))
}

/// Checks the fields of a tool and returns its type.
fn check_tool(tool: &Value) -> Result<&'static str, Wrong> {
    let Value::Object(fields) = tool else { return wrong("", "must be an object") };
    let kind = match fields.get("type").and_then(Value::as_str) {
        Some("function") => "function",
        Some(CUSTOM) => CUSTOM,
        _ => return wrong(".type", "must be \"function\" or \"custom\""),
    };
    if !matches!(fields.get(DEFER_LOADING), None | Some(Value::Bool(_))) {
        return wrong(&format!(".{DEFER_LOADING}"), "must be true or false");
    }
    let own_field = |field: &str| format!(".{kind}{field}");
    let Some(Value::Object(tool)) = fields.get(kind) else { return wrong(&own_field(""), "must be an object") };
    let Some(Value::String(name)) = tool.get("name") else { return wrong(&own_field(".name"), "must be a string") };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
        let reason = format!("must be 1 to {NAME_BYTES_MAX} letters, digits, '_', '-', '.', ':' or '/'");
        return wrong(&own_field(".name"), &reason);
    }
    if !matches!(tool.get("description"), None | Some(Value::Null | Value::String(_))) {
        return wrong(&own_field(".description"), "must be a string");
    }
    if kind == CUSTOM {
        return check_text_format(tool.get("format")).map(|()| kind).map_err(|(at, reason)| (own_field(&at), reason));
    }
    if !matches!(tool.get("strict"), None | Some(Value::Null | Value::Bool(_))) {
        return wrong(&own_field(".strict"), "must be true or false");
    }
    match tool.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(kind),
        Some(_) => wrong(&own_field(".parameters"), "must be a JSON schema, an object"),
    }
}

/// Checks the format that a custom tool gives for its text.
fn check_text_format(format: Option<&Value>) -> Result<(), Wrong> {
    let format = match format {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(format)) => format,
        Some(_) => return wrong(".format", "must be an object"),
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(()),
        Some("grammar") => {
            let is_text = |field: &&str| format.get("grammar").is_some_and(|grammar| grammar[*field].is_string());
            match ["syntax", "definition"].iter().find(|field| !is_text(field)) {
                Some(field) => wrong(&format!(".format.grammar.{field}"), "must be a string"),
                None => Ok(()),
            }
        }
        _ => wrong(".format.type", "must be \"text\" or \"grammar\""),
    }
}

/// Returns a tool with the fields that llama.cpp reads.
fn normalized(tool: &Value) -> Value {
    let of_custom = function_of_custom(tool);
    let function = &of_custom.as_ref().unwrap_or(tool)["function"];
    let description = function["description"].as_str().unwrap_or_default();
    let parameters = function["parameters"].as_object().cloned().unwrap_or_else(Map::new);
    json!({
        "type": "function",
        "function": {"name": function["name"], "description": description, "parameters": parameters},
    })
}

#[cfg(test)]
mod tests;
