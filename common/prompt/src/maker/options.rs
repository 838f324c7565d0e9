//! The settings of a [`PromptMaker`](super::PromptMaker).
//!
//! They are an operator's; what belongs to the model is in its file.

use std::sync::Arc;

use crate::template::Clock;
use crate::template::kwargs::TemplateKwargs;

/// Settings of a [`PromptMaker`](super::PromptMaker) that differ from the model's file.
#[derive(Clone)]
pub struct PromptOptions {
    /// Replacement for the model's chat template.
    pub chat_template: Option<String>,
    /// Whether tools are rendered in front of the system text, even if the file does not ask for it.
    pub tools_first: bool,
    /// Whether the keys of tools are put in one order, even if the file does not ask for it.
    pub tool_keys_sorted: bool,
    /// Default variables of the chat template, in place of those in the file; `None` to keep them.
    pub chat_template_kwargs: Option<TemplateKwargs>,
    /// Maximum memory of the fragment cache. Units: bytes.
    pub fragment_cache_bytes_max: u64,
    /// Clock of a template's `strftime_now`; local time by default, as in Hugging Face's and llama.cpp's code.
    pub clock: Clock,
}

/// Default memory of the fragment cache: the fragments of some 5 million tokens.
///
/// Source: each token of prose takes four bytes of text and four of its number; the rest is the overhead of short
/// fragments.
pub const FRAGMENT_CACHE_BYTES_MAX_DEFAULT: u64 = 64 << 20;

impl Default for PromptOptions {
    fn default() -> Self {
        Self {
            chat_template: None,
            tools_first: false,
            tool_keys_sorted: false,
            chat_template_kwargs: None,
            fragment_cache_bytes_max: FRAGMENT_CACHE_BYTES_MAX_DEFAULT,
            clock: Arc::new(jiff::Zoned::now),
        }
    }
}

impl std::fmt::Debug for PromptOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PromptOptions")
            .field("chat_template", &self.chat_template)
            .field("tools_first", &self.tools_first)
            .field("tool_keys_sorted", &self.tool_keys_sorted)
            .field("chat_template_kwargs", &self.chat_template_kwargs)
            .field("fragment_cache_bytes_max", &self.fragment_cache_bytes_max)
            .finish_non_exhaustive()
    }
}
