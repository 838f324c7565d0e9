//! Vocabulary of a model: its metadata as a GGUF file without tensors, enough to render and tokenize.
//!
//! The worker serves it to routers, and `warmpath-prompt` tokenizes with it.

use std::ffi::{CStr, CString};
use std::path::Path;

use llama_cpp_sys_2 as sys;

use crate::check::Header;
use crate::context::Context;
use crate::error::GgufError;
use crate::shards::check;

/// Keys that mark a file as one of several; a vocabulary is complete by itself.
const SPLIT_KEYS: [&CStr; 3] = [c"split.no", c"split.count", c"split.tensors.count"];

/// Key of a model's chat template.
const CHAT_TEMPLATE_KEY: &CStr = c"tokenizer.chat_template";

/// Key of a model's chat template for requests with tools.
pub const TOOL_USE_TEMPLATE_KEY: &str = "tokenizer.chat_template.tool_use";

/// Key of a vocabulary whose chat template renders tools in front of the system text.
const TOOLS_FIRST_KEY: &CStr = c"warmpath.tools_first";

/// Key of a vocabulary whose chat template gets tools with their keys in one order.
const TOOL_KEYS_SORTED_KEY: &CStr = c"warmpath.tool_keys_sorted";

/// Key of a vocabulary whose chat template gets default variables, as a JSON object.
const CHAT_TEMPLATE_KWARGS_KEY: &CStr = c"warmpath.chat_template_kwargs";

/// Key of a vocabulary's declaration: what llama.cpp makes of its settings, as a JSON object.
const DECLARATION_KEY: &CStr = c"warmpath.vocabulary";

/// What a worker adds to its model's metadata: settings that change its prompts, and a declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VocabularyChanges<'a> {
    /// Chat template, up to its first NUL, instead of the model's own, also for requests with tools.
    pub chat_template: Option<&'a str>,
    /// Whether tools are rendered in front of the system text.
    pub tools_first: bool,
    /// Whether the keys of tools are put in one order.
    pub tool_keys_sorted: bool,
    /// Default variables of the chat template as a JSON object, up to its first NUL.
    pub chat_template_kwargs: Option<&'a str>,
    /// What llama.cpp makes of the vocabulary's settings as a JSON object, up to its first NUL.
    pub declaration: Option<&'a str>,
}

/// Returns the bytes of a GGUF file with all metadata of the model at `path` and no tensors.
///
/// Errors: as [`check`], which runs first. Memory: proportional to the header.
pub fn vocabulary(path: &Path) -> Result<Vec<u8>, GgufError> {
    changed_vocabulary(path, VocabularyChanges::default())
}

/// Returns the bytes of [`vocabulary`] with `changes` applied.
///
/// Errors: as [`check`], which runs first. Memory: proportional to the header.
pub fn changed_vocabulary(path: &Path, changes: VocabularyChanges<'_>) -> Result<Vec<u8>, GgufError> {
    let copy = metadata(path)?;
    let texts = [
        (CHAT_TEMPLATE_KEY, changes.chat_template),
        (CHAT_TEMPLATE_KWARGS_KEY, changes.chat_template_kwargs),
        (DECLARATION_KEY, changes.declaration),
    ];
    for (key, text) in texts {
        let Some(text) = text else { continue };
        let until_nul = text.split('\0').next().unwrap_or_default();
        let value = CString::new(until_nul).expect("the text ends before its first NUL");
        // SAFETY: the context is valid; ggml copies the key and the value, which are NUL-terminated.
        unsafe { sys::gguf_set_val_str(copy.raw(), key.as_ptr(), value.as_ptr()) };
    }
    if changes.chat_template.is_some() {
        let key = CString::new(TOOL_USE_TEMPLATE_KEY).expect("it has no NUL");
        // SAFETY: the context is valid, the key is NUL-terminated; a missing key is no error.
        unsafe { sys::gguf_remove_key(copy.raw(), key.as_ptr()) };
    }
    let settings = [(TOOLS_FIRST_KEY, changes.tools_first), (TOOL_KEYS_SORTED_KEY, changes.tool_keys_sorted)];
    for (key, _) in settings.into_iter().filter(|(_, is_set)| *is_set) {
        // SAFETY: the context is valid; ggml copies the key, which is NUL-terminated.
        unsafe { sys::gguf_set_val_u32(copy.raw(), key.as_ptr(), 1) };
    }
    Ok(copy.bytes())
}

impl Header {
    /// Returns whether this vocabulary was made with [`VocabularyChanges::tools_first`].
    pub fn has_tools_first(&self) -> bool {
        self.has_setting(TOOLS_FIRST_KEY)
    }

    /// Returns whether this vocabulary was made with [`VocabularyChanges::tool_keys_sorted`].
    pub fn has_sorted_tool_keys(&self) -> bool {
        self.has_setting(TOOL_KEYS_SORTED_KEY)
    }

    fn has_setting(&self, key: &CStr) -> bool {
        key.to_str().is_ok_and(|key| self.unsigned(key) == Some(1))
    }

    /// Returns this vocabulary's [`VocabularyChanges::declaration`].
    pub fn vocabulary_declaration(&self) -> Option<String> {
        DECLARATION_KEY.to_str().ok().and_then(|key| self.text(key))
    }

    /// Returns this vocabulary's [`VocabularyChanges::chat_template_kwargs`].
    pub fn chat_template_kwargs(&self) -> Option<String> {
        CHAT_TEMPLATE_KWARGS_KEY.to_str().ok().and_then(|key| self.text(key))
    }
}

fn metadata(path: &Path) -> Result<Context, GgufError> {
    let header = check(path)?;
    let copy = Context::empty();
    // SAFETY: both contexts are valid; `check` has refused the keys that ggml aborts on.
    unsafe { sys::gguf_set_kv(copy.raw(), header.context.raw()) };
    for key in SPLIT_KEYS {
        // SAFETY: the context is valid, the key is a static text; a missing key is no error.
        unsafe { sys::gguf_remove_key(copy.raw(), key.as_ptr()) };
    }
    Ok(copy)
}
