//! The tools of a message: the client's own, those of Anthropic that clients run, and the tool choice.
//!
//! The names of their functions are made in `dialects::tools`. Anthropic's models know the arguments of some tools
//! (`bash_...`) without a schema; other models are given one. Source: Anthropic's pages of each tool.

use serde_json::{Map, Value, json};

use super::super::DialectError;
use super::super::field::{Object, wrong};
use super::super::tools::{CallForm, Definition, Listing, Tool, take_loading};
use crate::api::openai::tool_kinds::kind_left_out;

/// Kinds of Anthropic's tools that clients run, without versions (`bash_20250124`).
///
/// `computer` is left out instead, since its results are images.
pub const CLIENT_KINDS: &[&str] = &["bash", "memory", "text_editor"];

/// Reads the definition of a tool, whose `cache_control` was taken out.
pub(super) fn read_definition(mut tool: Object) -> Result<Definition, DialectError> {
    let kind = tool.optional_text("type")?;
    let kind = kind.as_deref().unwrap_or("custom");
    let Some(fields) = read_fields(kind, &mut tool)? else { return Ok(Definition::LeftOut(kind_left_out(kind))) };
    let loading = take_loading(&mut tool)?;
    Ok(Definition::Function { tool: named(tool.text("name")?), loading, fields, path: tool.path })
}

/// Returns the fields of a tool's function beside the name; `None` if its kind is left out.
fn read_fields(kind: &str, tool: &mut Object) -> Result<Option<Map<String, Value>>, DialectError> {
    let mut fields = Map::new();
    // Whatever its type, a tool with a schema is one that the client runs.
    if kind == "custom" || tool.fields.get("input_schema").is_some_and(Value::is_object) {
        if let Some(description) = tool.optional_text("description")? {
            fields.insert("description".to_owned(), description.into());
        }
        let mut parameters = tool.required("input_schema")?.object()?.fields;
        let examples: Vec<Value> =
            tool.optional_items("input_examples")?.into_iter().map(|example| example.value).collect();
        if !examples.is_empty() {
            parameters.insert("examples".to_owned(), examples.into());
        }
        fields.insert("parameters".to_owned(), parameters.into());
        if let Some(strict) = tool.take("strict") {
            fields.insert("strict".to_owned(), strict.value);
        }
    } else if let Some((description, parameters)) = known(kind) {
        fields.insert("description".to_owned(), description.into());
        fields.insert("parameters".to_owned(), parameters);
    } else {
        return Ok(None);
    }
    Ok(Some(fields))
}

fn named(name: String) -> Tool {
    Tool { namespace: None, name, form: CallForm::Function }
}

/// Returns the description and the schema of a tool that Anthropic's models know and clients run; `None` for any other.
fn known(kind: &str) -> Option<(&'static str, Value)> {
    let family =
        CLIENT_KINDS.iter().find(|family| kind.strip_prefix(**family).is_some_and(|version| version.starts_with('_')));
    Some(match *family? {
        "bash" => {
            let properties = json!({
                "command": {"type": "string", "description": "The command to run."},
                "restart": {"type": "boolean", "description": "Restarts the shell instead."},
            });
            let parameters = json!({"type": "object", "properties": properties, "additionalProperties": false});
            ("Runs a command in a shell that keeps its state between calls.", parameters)
        }
        "memory" => {
            let commands = ["view", "create", "str_replace", "insert", "delete", "rename"];
            let mut parameters = editor(&commands);
            for name in ["old_path", "new_path"] {
                parameters["properties"][name] = json!({"type": "string", "description": "Path of `rename`."});
            }
            ("Views, creates and edits files that outlive the conversation.", parameters)
        }
        _ => {
            let commands = ["view", "create", "str_replace", "insert", "undo_edit"];
            ("Views, creates and edits text files.", editor(&commands))
        }
    })
}

/// Returns the schema of a tool that edits files by these commands.
fn editor(commands: &[&str]) -> Value {
    let properties = json!({
        "command": {"type": "string", "enum": commands},
        "path": {"type": "string", "description": "The file or folder."},
        "view_range": {"type": "array", "items": {"type": "integer"}, "description": "First and last line of `view`."},
        "file_text": {"type": "string", "description": "Content of the file for `create`."},
        "old_str": {"type": "string", "description": "Text that `str_replace` replaces; it must occur once."},
        "new_str": {"type": "string", "description": "Text in its place, or the text of `insert`."},
        "insert_line": {"type": "integer", "description": "Line behind which `insert` inserts."},
        "insert_text": {"type": "string", "description": "Text of `insert`."},
    });
    json!({"type": "object", "properties": properties, "required": ["command"], "additionalProperties": false})
}

/// Reads the tool choice.
pub(super) fn read_tool_choice(
    fields: &mut Object,
    tools: &Listing,
    chat: &mut Map<String, Value>,
) -> Result<(), DialectError> {
    let Some(mut choice) = fields.optional_object("tool_choice")? else { return Ok(()) };
    let kind = choice.text("type")?;
    let chat_choice = match kind.as_str() {
        "auto" | "none" => kind.into(),
        "any" => {
            tools.check_any(&choice.path_of("type"))?;
            "required".into()
        }
        "tool" => {
            let name = choice.text("name")?;
            tools.check_named(&named(name.clone()), &choice.path_of("name"))?;
            json!({"type": "function", "function": {"name": name}})
        }
        _ => return Err(wrong(&choice.path_of("type"), "must be \"auto\", \"any\", \"tool\" or \"none\"")),
    };
    chat.insert("tool_choice".to_owned(), chat_choice);
    if let Some(disable) = choice.take("disable_parallel_tool_use") {
        let Value::Bool(disable) = disable.value else { return Err(wrong(&disable.path, "must be true or false")) };
        chat.insert("parallel_tool_calls".to_owned(), (!disable).into());
    }
    Ok(())
}
