//! The tools of a response, alone and in namespaces, and the tool choice.
//!
//! The names of their functions are made in `dialects::tools`. Source: OpenAI's API reference, "Create a model
//! response", and the requests of Codex CLI, which identifies a tool by its namespace and its name.

use serde_json::{Map, Value, json};

use super::super::DialectError;
use super::super::field::{Field, Object, unsupported, wrong};
use super::super::tools::{CallForm, Definition, Listing, Loading, Tool, take_loading};
use crate::api::openai::custom_tools::{CUSTOM, description_with_grammar, free_text_fields};
use crate::api::openai::tool_kinds::{TOOL_SEARCH, kind_left_out};
use crate::json::empty_maps::is_empty_list;

/// Reads the definition of a tool, or of every tool of a namespace.
pub(super) fn read_definitions(mut tool: Object) -> Result<Vec<Definition>, DialectError> {
    let kind = tool.text("type")?;
    if kind != "namespace" {
        return Ok(vec![read_definition(&kind, tool, None)?]);
    }
    let namespace = named(&mut tool)?;
    let read_tool = |tool: Field| {
        let mut tool = tool.object()?;
        read_definition(&tool.text("type")?, tool, Some(namespace.clone()))
    };
    tool.required("tools")?.items()?.into_iter().map(read_tool).collect()
}

/// Returns a name, which must not be empty: a function's name cannot be made of an empty half.
fn named(object: &mut Object) -> Result<String, DialectError> {
    let name = object.text("name")?;
    if name.is_empty() { Err(wrong(&object.path_of("name"), "is empty")) } else { Ok(name) }
}

/// Reads a tool with or without a namespace.
fn read_definition(kind: &str, mut tool: Object, namespace: Option<String>) -> Result<Definition, DialectError> {
    if kind == TOOL_SEARCH && tool.optional_text("execution")?.as_deref() == Some("client") {
        let search = Tool { namespace: None, name: TOOL_SEARCH.to_owned(), form: CallForm::ToolSearch };
        let fields = function_fields(&mut tool);
        return Ok(Definition::Function { tool: search, loading: Loading::Immediate, fields, path: tool.path });
    }
    // Whatever its type, a tool with a name and a schema is one that the client runs.
    let has_schema = tool.fields.contains_key("name") && tool.fields.get("parameters").is_some_and(Value::is_object);
    let Some(form) = form_named(kind).or(has_schema.then_some(CallForm::Function)) else {
        return Ok(Definition::LeftOut(kind_left_out(kind)));
    };
    let name = named(&mut tool)?;
    let loading = take_loading(&mut tool)?;
    let fields = match form {
        CallForm::Custom => custom_fields(&mut tool)?,
        CallForm::Function | CallForm::ToolSearch => function_fields(&mut tool),
    };
    Ok(Definition::Function { tool: Tool { namespace, name, form }, loading, fields, path: tool.path })
}

fn function_fields(tool: &mut Object) -> Map<String, Value> {
    let mut fields = Map::new();
    for name in ["description", "parameters", "strict"] {
        if let Some(field) = tool.take(name) {
            fields.insert(name.to_owned(), field.value);
        }
    }
    fields
}

/// Returns the fields of a function that takes a custom tool's text.
fn custom_fields(tool: &mut Object) -> Result<Map<String, Value>, DialectError> {
    let description = tool.optional_text("description")?.unwrap_or_default();
    let Some(mut format) = tool.optional_object("format")? else { return Ok(free_text_fields(&description)) };
    match format.text("type")?.as_str() {
        "text" => Ok(free_text_fields(&description)),
        "grammar" => {
            let (syntax, definition) = (format.text("syntax")?, format.text("definition")?);
            Ok(free_text_fields(&description_with_grammar(&description, &syntax, &definition)))
        }
        _ => Err(wrong(&format.path_of("type"), "must be \"text\" or \"grammar\"")),
    }
}

/// Returns the tool that a call or a choice names.
pub(super) fn take_tool(object: &mut Object, form: CallForm) -> Result<Tool, DialectError> {
    let namespace = object.optional_text("namespace")?.filter(|namespace| !namespace.is_empty());
    Ok(Tool { namespace, name: object.text("name")?, form })
}

/// Reads the tool choice.
pub(super) fn read_tool_choice(
    fields: &mut Object,
    tools: &Listing,
    chat: &mut Map<String, Value>,
) -> Result<(), DialectError> {
    let Some(choice) = fields.take("tool_choice") else { return Ok(()) };
    let chat_choice = match choice.value {
        Value::String(word) if word.is_empty() => return Ok(()),
        Value::String(word) => {
            if word == "required" {
                tools.check_any(&choice.path)?;
            }
            word.into()
        }
        value if is_empty_list(&value) => return Ok(()),
        Value::Object(_) => read_chosen(choice.object()?, tools)?,
        _ => return Err(wrong(&choice.path, "must be a string or an object")),
    };
    chat.insert("tool_choice".to_owned(), chat_choice);
    Ok(())
}

/// Returns a chat's choice of one tool, or of the tools that alone may be called.
fn read_chosen(mut choice: Object, tools: &Listing) -> Result<Value, DialectError> {
    let kind = choice.text("type")?;
    if let Some(search) = tools.client_search().filter(|_| kind == TOOL_SEARCH) {
        return Ok(json!({"type": "function", "function": {"name": tools.function_name(search)}}));
    }
    let Some(form) = form_named(&kind) else {
        if kind == "allowed_tools" {
            return read_allowed(choice, tools);
        }
        let reason =
            format!("tools of type `{kind}` are not run here, so a choice cannot require one; name a function");
        return Err(unsupported(&choice.path_of("type"), reason));
    };
    let tool = take_tool(&mut choice, form)?;
    tools.check_named(&tool, &choice.path_of("name"))?;
    Ok(json!({"type": "function", "function": {"name": tools.function_name(&tool)}}))
}

/// Returns a chat's choice of the tools that alone may be called, without those that are left out.
fn read_allowed(mut choice: Object, tools: &Listing) -> Result<Value, DialectError> {
    let mode = choice.text("mode")?;
    let path = choice.path_of("tools");
    let (mut allowed, mut left_out) = (Vec::new(), None);
    for tool in choice.required("tools")?.items()? {
        let mut tool = tool.object()?;
        let kind = tool.text("type")?;
        if let Some(search) = tools.client_search().filter(|_| kind == TOOL_SEARCH) {
            allowed.push(json!({"type": "function", "function": {"name": tools.function_name(search)}}));
        } else if let Some(form) = form_named(&kind) {
            let chosen_tool = take_tool(&mut tool, form)?;
            tools.check_named(&chosen_tool, &tool.path_of("name"))?;
            allowed.push(json!({"type": "function", "function": {"name": tools.function_name(&chosen_tool)}}));
        } else {
            left_out = Some(kind_left_out(&kind));
        }
    }
    match left_out.filter(|_| allowed.is_empty()) {
        Some(kind) if mode == "required" => {
            Err(unsupported(&path, format!("requires a call, but tools of type `{kind}` are not run here")))
        }
        Some(_) => Ok("none".into()),
        None => Ok(json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}})),
    }
}

/// Returns the form of the calls to tools of a type; `None` if it is no tool that the client runs.
fn form_named(kind: &str) -> Option<CallForm> {
    match kind {
        "function" => Some(CallForm::Function),
        CUSTOM => Some(CallForm::Custom),
        _ => None,
    }
}
