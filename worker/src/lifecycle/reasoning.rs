//! The bound of a response's reasoning in the format of the response.
//!
//! A chat's format has the marks of reasoning, and its prompt may have opened it. A raw prompt is read like a chat's
//! prompt, with the marks of the request or of the model's chat template. A response that is only content has no bound,
//! and neither has one in a format without reasoning.
//!
//! Not here: the request's fields (`request::generation`), counting (`warmpath_worker_output::reasoning_budget`).

use serde_json::{Map, json};
use warmpath_common::openai::ChatPrompt;
use warmpath_llama_chat::{ReasoningFormat, ToolChoice};
use warmpath_prompt::{AddSpecial, AnswerFormat, FormatOptions, ParseSpecial};
use warmpath_worker_output::reasoning_budget::{Begun, ReasoningBound};
use warmpath_worker_output::tool_call_detector::ReasoningMarks;

use super::tokenized_prompt::TokenizedPrompt;
use crate::engine::Generation;
use crate::error::RequestError;
use crate::loaded_model::generator::Generator;

/// Returns the bound of reasoning in the response to a prompt, whose constraints are known; `None` if there is none.
///
/// Errors: `Field` if the request names a bound, and the marks of reasoning are not known.
pub(super) fn bound(
    generator: &Generator,
    generation: &Generation,
    prompt: &TokenizedPrompt,
) -> Result<Option<ReasoningBound>, RequestError> {
    let wish = &generation.budget;
    let is_content =
        generation.sampling.grammar.is_some() || (generation.schema.is_some() && generation.reasoning.is_none());
    let Some(tokens_max) = wish.tokens_max.filter(|_| !is_content) else { return Ok(None) };
    let (format, text) = match (&prompt.answer, wish.named) {
        (Some(answer), _) => (Some(answer.format.clone()), answer.format.prefix().to_owned()),
        // A raw prompt may be about marks of reasoning, so only its own request bounds its response.
        (None, Some(_)) => (model_format(generator), generator.common.prompts.detokenize(&prompt.tokens)),
        (None, None) => return Ok(None),
    };
    let own_marks = wish.marks.as_ref().filter(|_| prompt.answer.is_none());
    let Some(marks) = own_marks.cloned().or_else(|| format.as_ref().and_then(marks)) else { return Ok(None) };
    let Some(closing) = marks.ends.first().filter(|_| !marks.start.trim().is_empty()) else {
        let Some(param) = wish.named else { return Ok(None) };
        let reason = format!("`{param}` cannot be kept: the end of reasoning is not known for this chat template");
        return Err(RequestError::field(param, reason));
    };
    let message = generator.tokenize_plain(&wish.message);
    let closing = generator.common.prompts.tokenize(closing, AddSpecial::No, ParseSpecial::Yes);
    let closing = message.into_iter().chain(closing).collect();
    // Models may omit the template's white space around these marks.
    let trimmed_text = |text: &String| text.trim().to_owned();
    let marks =
        ReasoningMarks { start: trimmed_text(&marks.start), ends: marks.ends.iter().map(trimmed_text).collect() };
    let opening = format.map_or_else(String::new, |format| opening(&format, &marks.start));
    let begun_part = Begun::of(&text, &marks, &opening);
    Ok(Some(ReasoningBound { tokens_max, marks, opening, closing, begun: begun_part }))
}

/// Returns the marks of a format, which are empty if they are not known; `None` if it has no reasoning.
fn marks(format: &AnswerFormat) -> Option<ReasoningMarks> {
    let format = format.format();
    let (start, ends) = (format.thinking_start.clone(), format.thinking_ends.clone());
    (format.supports_thinking || !start.is_empty()).then_some(ReasoningMarks { start, ends })
}

/// Returns the text with which a format opens an answer, without reasoning.
fn opening(format: &AnswerFormat, start: &str) -> String {
    let text = &format.format().generation_prompt;
    text.find(start).map_or(text.as_str(), |at| &text[..at]).trim().to_owned()
}

/// Returns the format of the model's response to a question; `None` if it is plain or not known.
fn model_format(generator: &Generator) -> Option<AnswerFormat> {
    let question = Map::from_iter([("role".to_owned(), json!("user")), ("content".to_owned(), json!("question"))]);
    let chat = ChatPrompt { messages: vec![question], ..ChatPrompt::default() };
    let wish = FormatOptions {
        tools: Vec::new(),
        tool_choice: ToolChoice::None,
        parallel_tool_calls: None,
        reasoning_format: ReasoningFormat::Auto,
    };
    let prompt = generator.common.prompts.chat(&chat).ok()?;
    generator.common.prompts.answer_format(&chat, &prompt, &wish).ok().flatten()
}
