//! The format of an answer whose calls keep to the tools' schemas as an answer to `response_format` does.
//!
//! Not here: marks in grammars (`tools::arguments`), following schemas (`engine`).

use std::sync::Arc;

use warmpath_common::openai::ChatPrompt;
use warmpath_llama_chat::ToolChoice;
use warmpath_prompt::{AnswerFormat, FormatWish, Prompt};

use crate::engine::ArgumentSchemas;
use crate::error::RequestError;
use crate::serving::Serving;
use crate::tools::{ToolFields, arguments};

/// A grammar of calls and the schemas that decide about their arguments.
pub(super) struct KeptArguments {
    pub(super) grammar: String,
    pub(super) schemas: Arc<ArgumentSchemas>,
}

/// Returns the format of an answer whose calls keep to their schemas; absent where none may come, where the template does not write
/// arguments as one JSON value, or where calls are optional and a schema cannot be kept: llama.cpp's grammar is followed there.
///
/// Errors: `Field`, naming what of a schema cannot be kept, where a call is required.
pub(super) fn kept(
    serving: &Serving,
    (chat, prompt): (&ChatPrompt, &Prompt),
    (wish, fields): (&FormatWish, &ToolFields),
) -> Result<Option<(AnswerFormat, KeptArguments)>, RequestError> {
    if wish.tools.is_empty() {
        return Ok(None);
    }
    let marked = FormatWish { tools: arguments::marked(&wish.tools), ..wish.clone() };
    let Ok(Some(format)) = serving.prompts.answer_format(chat, prompt, &marked) else { return Ok(None) };
    let first = serving.model.n_vocab;
    let grammar = format.grammar().and_then(|grammar| arguments::fill(grammar.text, wish.tools.len(), first));
    let Some(grammar) = grammar else { return Ok(None) };
    let mut schemas = Vec::new();
    for tool in &wish.tools {
        let normalized = tool["function"]["parameters"].as_object().map(arguments::schema);
        let compiled = match normalized {
            Some(Ok(schema)) => {
                serving.engine.compile_arguments(&schema).map_err(|reason| fields.refused(tool, &reason))
            }
            Some(Err(error)) => Err(fields.not_kept(tool, &error)),
            None => return Ok(None),
        };
        match compiled {
            Ok(schema) => schemas.push(schema),
            Err(error) if wish.tool_choice == ToolChoice::Required => return Err(error),
            Err(_) => return Ok(None),
        }
    }
    Ok(Some((format, KeptArguments { grammar, schemas: Arc::new(ArgumentSchemas { first, schemas }) })))
}
