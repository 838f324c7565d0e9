//! The format of an answer: the grammar that tool calls follow, what starts it, and what is needed to read the answer.
//!
//! Not here: reading (`reader`), sampling under the grammar (the worker's engine).

use std::ffi::c_void;
use std::ptr;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::ChatError;
use crate::ffi;
use crate::reader::Reader;

/// Says whether and how the model may call tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToolChoice {
    /// It may.
    Auto,
    /// It must.
    Required,
    /// It must not; what looks like a call stays text.
    None,
}

/// Says where the model's thoughts go; llama-server's `reasoning_format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReasoningFormat {
    /// They stay in the content as the model wrote them.
    None,
    /// They are told apart.
    Auto,
}

/// Is what decides the format of an answer.
#[derive(Debug, Clone, Copy)]
pub struct FormatInputs<'a> {
    /// Is a conversation; only its last message matters.
    pub messages: &'a [Value],
    /// Lists the tools as OpenAI spells them.
    pub tools: &'a [Value],
    /// Says whether they may be called.
    pub tool_choice: ToolChoice,
    /// Says whether several calls may come in one answer.
    pub parallel_tool_calls: bool,
    /// Says where thoughts go.
    pub reasoning_format: ReasoningFormat,
    /// Says whether the template is told to let the model think.
    pub enable_thinking: bool,
    /// Says that the last message, the assistant's, goes on.
    pub continues: bool,
    /// Is the template's other variables.
    pub kwargs: &'a Map<String, Value>,
}

impl FormatInputs<'_> {
    /// Returns the inputs as one text, which names them.
    pub fn to_json(&self) -> String {
        let tool_choice = match self.tool_choice {
            ToolChoice::Auto => "auto",
            ToolChoice::Required => "required",
            ToolChoice::None => "none",
        };
        let reasoning_format = match self.reasoning_format {
            ReasoningFormat::None => "none",
            // The two of llama.cpp that tell thoughts apart differ in nothing but what its server does with them.
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

/// Is what starts a lazy grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// This text.
    Word(String),
    /// What this regular expression (ECMAScript) finds; from its first group on, or from its beginning.
    Pattern(String),
}

/// Is the format of an answer.
#[derive(Debug)]
pub struct ChatFormat {
    raw: Shared,
    /// Is the prompt as llama.cpp renders it; only to compare.
    pub prompt: String,
    /// Is the GBNF grammar of the answer, its beginning in the prompt included where it is not lazy; empty for none.
    pub grammar: String,
    /// Says that the grammar begins with one of the triggers.
    pub grammar_is_lazy: bool,
    /// Lists what starts the grammar.
    pub triggers: Vec<Trigger>,
    /// Is how the prompt ends: the beginning of the answer.
    pub generation_prompt: String,
    /// Says that models of this template may think first.
    pub supports_thinking: bool,
    /// Is what opens thoughts; empty where that is not known.
    pub thinking_start: String,
    /// Lists what closes them.
    pub thinking_ends: Vec<String>,
    /// Lists control tokens whose texts the reader needs.
    pub preserved_tokens: Vec<String>,
    /// Lists texts that end the answer.
    pub stops: Vec<String>,
}

/// Is the shim's side of a format.
#[derive(Debug)]
struct Shared(*mut c_void);

// SAFETY: a format is only read once it is made; its count of owners is atomic.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: it came from `wp_format_new` and is freed once.
        unsafe { ffi::wp_format_free(self.0) };
    }
}

/// Is what the shim says of a format.
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
    /// Is a `common_grammar_trigger_type`.
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
    /// Takes over what the shim made.
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

    /// Returns a reader of one answer that stands behind `prefix`, the end of its prompt.
    ///
    /// Errors: `Strange` where there is no memory.
    pub fn reader(&self, prefix: &str) -> Result<Reader, ChatError> {
        let mut raw = ptr::null_mut();
        // SAFETY: format and prefix live through the call, which copies both and writes `raw` where it succeeds.
        ffi::call(|error| unsafe {
            ffi::wp_reader_new(self.raw.0, prefix.as_ptr().cast(), prefix.len(), &mut raw, error)
        })?;
        Ok(Reader::new(raw))
    }
}
