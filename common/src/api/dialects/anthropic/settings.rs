//! Settings of an answer: its format, its effort and whether the model reasons first.

use serde_json::{Map, Value, json};

use super::super::DialectError;
use super::super::field::{Object, wrong};

/// Reads the required output format, from its current field or from its former one.
pub(super) fn read_format(fields: &mut Object, chat: &mut Map<String, Value>) -> Result<(), DialectError> {
    let former = fields.optional_object("output_format")?;
    let mut config = fields.optional_object("output_config")?;
    if let Some(effort) = config.as_mut().and_then(|config| config.take("effort")) {
        chat.insert("reasoning_effort".to_owned(), effort.text()?.into());
    }
    let format = match config.as_mut() {
        Some(config) => config.optional_object("format")?.or(former),
        None => former,
    };
    let Some(mut format) = format else { return Ok(()) };
    if format.text("type")? != "json_schema" {
        return Err(wrong(&format.path_of("type"), "must be \"json_schema\""));
    }
    let schema = format.required("schema")?.object()?.fields;
    let format = json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": true}});
    chat.insert("response_format".to_owned(), format);
    Ok(())
}

/// Reads whether the model is to reason first, and how long; where the request does not set it, the chat template
/// decides.
pub(super) fn read_thinking(fields: &mut Object) -> Result<(), DialectError> {
    let Some(mut thinking) = fields.optional_object("thinking")? else { return Ok(()) };
    let kind = thinking.text("type")?;
    let thinks = match kind.as_str() {
        "enabled" | "adaptive" => true,
        // The latter means short reports between calls instead of reasoning, which the model writes as text.
        "disabled" | "between_tools" => false,
        _ => {
            let kinds = "must be \"enabled\", \"adaptive\", \"between_tools\" or \"disabled\"";
            return Err(wrong(&thinking.path_of("type"), kinds));
        }
    };
    if let Some(budget) = thinking.take("budget_tokens").filter(|_| kind == "enabled") {
        fields.fields.insert("thinking_budget_tokens".to_owned(), budget.value);
    }
    let variables = fields.fields.entry("chat_template_kwargs").or_insert_with(|| json!({}));
    if let Value::Object(variables) = variables {
        variables.entry("enable_thinking").or_insert(thinks.into());
    }
    Ok(())
}
