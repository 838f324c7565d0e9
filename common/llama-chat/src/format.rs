//! The format of an answer: the grammar of its tool calls, the triggers of that grammar, and what is needed to parse
//! it.
//!
//! Parsing is in `reader`; the worker's engine samples under the grammar.

use std::ffi::c_void;
use std::ptr;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::ChatError;
use crate::ffi;
use crate::reader::AnswerParser;

/// Whether and how the model may call tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToolChoice {
    /// The model may call tools.
    Auto,
    /// The model must call a tool.
    Required,
    /// The model must not call tools; text that looks like a call stays text.
    None,
}

/// Destination of the model's reasoning; llama-server's `reasoning_format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReasoningFormat {
    /// It stays in the content as the model wrote it.
    None,
    /// It is separated from the content.
    Auto,
}

/// Inputs that determine the format of an answer.
#[derive(Debug, Clone, Copy)]
pub struct FormatInputs<'a> {
    /// A conversation; only its last message matters.
    pub messages: &'a [Value],
    /// Tools in OpenAI's form.
    pub tools: &'a [Value],
    /// Whether they may be called.
    pub tool_choice: ToolChoice,
    /// Whether one answer may have several calls.
    pub parallel_tool_calls: bool,
    /// Destination of reasoning.
    pub reasoning_format: ReasoningFormat,
    /// Whether the template gets `enable_thinking` as true.
    pub enable_thinking: bool,
    /// Whether the answer continues the last message, the assistant's.
    pub continues: bool,
    /// Other variables of the template.
    pub kwargs: &'a Map<String, Value>,
}

impl FormatInputs<'_> {
    /// Returns the inputs as one JSON text, which identifies them.
    pub fn to_json(&self) -> String {
        let tool_choice = match self.tool_choice {
            ToolChoice::Auto => "auto",
            ToolChoice::Required => "required",
            ToolChoice::None => "none",
        };
        let reasoning_format = match self.reasoning_format {
            ReasoningFormat::None => "none",
            // llama.cpp has two formats that separate reasoning; they differ only in what its server does with the
            // reasoning.
            ReasoningFormat::Auto => "deepseek",
        };
        json!({
            "messages": self.messages,
            "tools": self.tools,
            "tool_choice": tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_format": reasoning_format,
            "enable_thinking": self.enable_thinking,
            "continues": self.continues,
            "kwargs": self.kwargs,
        })
        .to_string()
    }
}

/// Trigger of a lazy grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// This text.
    Word(String),
    /// A match of this regular expression (ECMAScript), from the start of its first group, or of the whole match if it
    /// has none.
    Pattern(String),
}

/// Format of an answer.
#[derive(Debug)]
pub struct ChatFormat {
    raw: Shared,
    /// Prompt as llama.cpp renders it; only for comparison.
    pub prompt: String,
    /// GBNF grammar of the answer. Unless it is lazy, it includes the part of the answer that is in the prompt; empty
    /// for none.
    pub grammar: String,
    /// Whether the grammar applies only after one of the triggers.
    pub grammar_is_lazy: bool,
    /// Triggers of the grammar.
    pub triggers: Vec<Trigger>,
    /// End of the prompt, the first part of the answer.
    pub generation_prompt: String,
    /// Whether models of this template may reason first.
    pub supports_thinking: bool,
    /// Text that opens reasoning; empty if it is not known.
    pub thinking_start: String,
    /// Texts that close reasoning.
    pub thinking_ends: Vec<String>,
    /// Control tokens whose texts the reader needs.
    pub preserved_tokens: Vec<String>,
    /// Texts that end the answer.
    pub stops: Vec<String>,
}

/// The shim's object for a format.
#[derive(Debug)]
struct Shared(*mut c_void);

// SAFETY: a format is only read after it is made; its count of owners is atomic.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: it came from `wp_format_new` and is freed once.
        unsafe { ffi::wp_format_free(self.0) };
    }
}

/// The shim's description of a format.
#[derive(Deserialize)]
struct Description {
    prompt: String,
    grammar: String,
    grammar_lazy: bool,
    triggers: Vec<TriggerDescription>,
    generation_prompt: String,
    supports_thinking: bool,
    thinking_start: String,
    thinking_ends: Vec<String>,
    preserved_tokens: Vec<String>,
    stops: Vec<String>,
}

#[derive(Deserialize)]
struct TriggerDescription {
    /// Value of `common_grammar_trigger_type`.
    kind: u32,
    value: String,
}

impl TriggerDescription {
    fn into_trigger(self) -> Result<Trigger, ChatError> {
        match self.kind {
            1 => Ok(Trigger::Word(self.value)),
            2 => Ok(Trigger::Pattern(self.value)),
            3 => {
                let value = &self.value;
                let (start, end) =
                    (if value.starts_with('^') { "" } else { "^" }, if value.ends_with('$') { "" } else { "$" });
                Ok(Trigger::Pattern(format!("{start}{value}{end}")))
            }
            kind => Err(ChatError::Strange { reason: format!("a trigger of kind {kind}") }),
        }
    }
}

impl ChatFormat {
    /// Takes ownership of the shim's object.
    pub(crate) fn new(raw: *mut c_void, description: &str) -> Result<Self, ChatError> {
        let raw = Shared(raw);
        let strange = |error: serde_json::Error| ChatError::Strange { reason: error.to_string() };
        let description: Description = serde_json::from_str(description).map_err(strange)?;
        let triggers = description.triggers.into_iter().map(TriggerDescription::into_trigger);
        Ok(Self {
            raw,
            prompt: description.prompt,
            grammar: description.grammar,
            grammar_is_lazy: description.grammar_lazy,
            triggers: triggers.collect::<Result<_, _>>()?,
            generation_prompt: description.generation_prompt,
            supports_thinking: description.supports_thinking,
            thinking_start: description.thinking_start,
            thinking_ends: description.thinking_ends,
            preserved_tokens: description.preserved_tokens,
            stops: description.stops,
        })
    }

    /// Returns a parser of one answer that follows `prefix`, the end of its prompt.
    ///
    /// Errors: `Refused` if there is no memory.
    pub fn reader(&self, prefix: &str) -> Result<AnswerParser, ChatError> {
        let mut raw = ptr::null_mut();
        // SAFETY: format and prefix live through the call, which copies both and writes `raw` if it succeeds.
        ffi::call(|error| unsafe {
            ffi::wp_reader_new(self.raw.0, prefix.as_ptr().cast(), prefix.len(), &mut raw, error)
        })?;
        Ok(AnswerParser::new(raw))
    }
}
