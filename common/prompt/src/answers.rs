//! How the answer to a chat begins and how it is read: the format of its template, fitted to the request's prompt.
//!
//! Not here: the formats themselves (`formats`), rendering (`fitted`).

use std::sync::Arc;

use serde_json::{Map, Value as Json};
use warmpath_common::openai::ChatPrompt;
use warmpath_llama_chat::{ChatError, ChatFormat, Reader, ReasoningFormat, ToolChoice};

use crate::error::PromptError;
use crate::fitted::FittedTemplate;
use crate::formats::{CONTENT_MARK, Ending, KnownFormat, REASONING_MARK, Wanted};
use crate::messages::{Continued, continued, switches};

/// Says what a request wants of the format of its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct FormatWish {
    /// Lists the tools that may be called; none where none may.
    pub tools: Vec<Json>,
    /// Says whether one must be called.
    pub tool_choice: ToolChoice,
    /// Says whether several may be called; absent means where the template is made for it.
    pub parallel_tool_calls: Option<bool>,
    /// Says where thoughts go.
    pub reasoning_format: ReasoningFormat,
}

/// Is the format of the answer to one request.
#[derive(Debug, Clone)]
pub struct AnswerFormat {
    known: Arc<KnownFormat>,
    /// Is the end of the prompt that belongs to the answer already.
    prefix: String,
    continues: bool,
}

/// Is the grammar of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerGrammar<'a> {
    /// Is the grammar in GBNF.
    pub text: &'a str,
    /// Says from where on it counts.
    pub from: GrammarFrom<'a>,
}

/// Says from where on a grammar counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrammarFrom<'a> {
    /// From this end of the prompt on; empty where it begins with the answer.
    PromptEnd(&'a str),
    /// From where a call starts.
    Call,
}

impl AnswerFormat {
    /// Returns the grammar that the answer must follow, if any.
    pub fn grammar(&self) -> Option<AnswerGrammar<'_>> {
        let format = &self.known.format;
        let from = if format.grammar_is_lazy { GrammarFrom::Call } else { GrammarFrom::PromptEnd(&self.prefix) };
        let without_content = self.known.grammar_without_content.as_ref().filter(|_| !self.continues);
        let text = without_content.unwrap_or(&format.grammar);
        (!text.is_empty()).then_some(AnswerGrammar { text, from })
    }

    /// Returns llama.cpp's format.
    pub fn format(&self) -> &ChatFormat {
        &self.known.format
    }

    /// Returns the end of the prompt that belongs to the answer already.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns whether the answer goes on with a message that the prompt has begun.
    pub fn continues(&self) -> bool {
        self.continues
    }

    /// Returns a reader of one answer; what the prompt holds of a message that goes on is not told again.
    ///
    /// Errors: `Refused` where the prompt's end is not of the format.
    pub fn reader(&self) -> Result<Reader, ChatError> {
        let mut reader = self.known.format.reader(&self.prefix)?;
        if self.continues {
            reader.skip_prefix()?;
        }
        Ok(reader)
    }
}

impl FittedTemplate {
    /// Returns the format of the answer to `request`, whose prompt is `prompt`; `None` where the answer is its own content.
    ///
    /// Errors: `Field` where a tool's schema cannot be turned into a grammar, or a call is required that the template has no
    /// form for.
    pub(crate) fn answer_format(
        &self,
        request: &ChatPrompt,
        wish: &FormatWish,
        prompt: &str,
    ) -> Result<Option<AnswerFormat>, PromptError> {
        let (enable_thinking, kwargs) = switches(request)?;
        let goes_on = continued(request)?;
        let ending = ending(request, goes_on.as_ref());
        let wanted = |tools| Wanted { ending, wish, tools, enable_thinking, kwargs: &kwargs };
        let is_required = wish.tool_choice == ToolChoice::Required;
        let known = match self.formats.get(&wanted(&wish.tools)) {
            Ok(known) => known,
            Err(error) if wish.tools.is_empty() || self.formats.get(&wanted(&[])).is_err() => {
                tracing::debug!(%error, "no format is known for this chat template");
                return if is_required { Err(nothing_to_require()) } else { Ok(None) };
            }
            Err(error) => return Err(self.refused_tool(&wish.tools, wanted, &error)),
        };
        if is_required && known.format.grammar.is_empty() {
            return Err(nothing_to_require());
        }
        if known.is_plain {
            return Ok(None);
        }
        let prefix = match &goes_on {
            Some(goes_on) => fill(&known.format.generation_prompt, goes_on),
            None => self.generation_prompt(request, prompt, &known.format)?,
        };
        Ok(Some(AnswerFormat { known, prefix, continues: goes_on.is_some() }))
    }

    /// Returns the end of a prompt that is there because an answer is to follow.
    fn generation_prompt(
        &self,
        request: &ChatPrompt,
        prompt: &str,
        format: &ChatFormat,
    ) -> Result<String, PromptError> {
        if prompt.ends_with(&format.generation_prompt) {
            return Ok(format.generation_prompt.clone());
        }
        // What is said may decide it, as where a user can switch off thinking.
        let without = ChatPrompt { add_generation_prompt: Some(false), ..request.clone() };
        let without = self.plain(&without)?;
        let with = self.plain(request)?;
        let n_common = without.bytes().zip(with.bytes()).take_while(|(a, b)| a == b).count();
        Ok(with[with.floor_char_boundary(n_common)..].to_owned())
    }

    /// Names the first tool whose schema cannot be used.
    fn refused_tool<'w>(
        &self,
        tools: &'w [Json],
        wanted: impl Fn(&'w [Json]) -> Wanted<'w>,
        error: &ChatError,
    ) -> PromptError {
        let works = |n: &usize| self.formats.get(&wanted(&tools[..*n])).is_ok();
        // The first of them is wrong where none of those before it is.
        let (mut n_right, mut n_wrong) = (0, tools.len());
        while n_wrong - n_right > 1 {
            let middle = n_right.midpoint(n_wrong);
            if works(&middle) { n_right = middle } else { n_wrong = middle }
        }
        PromptError::Tool { index: n_right, reason: error.to_string() }
    }
}

/// Returns what kind of end a request's conversation has.
fn ending(request: &ChatPrompt, goes_on: Option<&Continued<'_>>) -> Ending {
    if let Some(goes_on) = goes_on {
        return goes_on.ending();
    }
    let role = request.messages.last().and_then(|message| message.get("role"));
    if role.is_some_and(|role| role == "tool") { Ending::ToolResult } else { Ending::Question }
}

/// Puts the texts of a message that goes on where their marks are.
fn fill(generation_prompt: &str, goes_on: &Continued<'_>) -> String {
    generation_prompt.replace(REASONING_MARK, &goes_on.reasoning).replace(CONTENT_MARK, &goes_on.content)
}

fn nothing_to_require() -> PromptError {
    let reason = "this model's chat template has no tool calls that could be required".to_owned();
    PromptError::Field { field: "tool_choice", reason }
}

impl Continued<'_> {
    /// Returns the kind of a conversation that ends so.
    pub(crate) fn ending(&self) -> Ending {
        Ending::Continued { has_reasoning: !self.reasoning.is_empty(), has_content: !self.content.is_empty() }
    }
}

/// Returns how llama.cpp goes on with such a message, marks for what it says; `None` where it does not know.
pub(crate) fn continuation(
    template: &FittedTemplate,
    goes_on: &Continued<'_>,
    (enable_thinking, kwargs): (bool, &Map<String, Json>),
) -> Option<Arc<KnownFormat>> {
    let wish = FormatWish {
        tools: Vec::new(),
        tool_choice: ToolChoice::None,
        parallel_tool_calls: Some(false),
        reasoning_format: ReasoningFormat::Auto,
    };
    let wanted = Wanted { ending: goes_on.ending(), wish: &wish, tools: &[], enable_thinking, kwargs };
    template.formats.get(&wanted).ok()
}
