//! A chat template, compiled by llama.cpp.
//!
//! Prompts are rendered elsewhere; llama.cpp's rendering is never used as a prompt.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;

use crate::error::ChatError;
use crate::ffi;
use crate::format::ChatFormat;
use crate::stack::on_large_stack;

/// A compiled chat template, from which the formats of answers are derived.
#[derive(Debug)]
pub struct ChatTemplates(*mut c_void);

// SAFETY: llama.cpp only reads a compiled template, as its server does from many threads.
unsafe impl Send for ChatTemplates {}
// SAFETY: as above.
unsafe impl Sync for ChatTemplates {}

impl ChatTemplates {
    /// Compiles a template; `bos` and `eos` are the texts that it writes for these tokens.
    ///
    /// Cost: some ten renderings. Errors: `Refused` if llama.cpp's Jinja engine cannot read it.
    pub fn compile(source: &str, bos: &str, eos: &str) -> Result<Self, ChatError> {
        if source.is_empty() {
            return Err(ChatError::Refused { reason: "the template is empty".to_owned() });
        }
        let (source, bos, eos) = (ffi::c_text(source)?, ffi::c_text(bos)?, ffi::c_text(eos)?);
        on_large_stack(move || {
            let mut raw = ptr::null_mut();
            // SAFETY: the texts live through the call, which writes `raw` if it succeeds.
            ffi::call(|error| unsafe {
                ffi::wp_templates_new(source.as_ptr(), bos.as_ptr(), eos.as_ptr(), &mut raw, error)
            })?;
            Ok(Self(raw))
        })
    }

    /// Returns the properties of the template that llama.cpp found, such as `supports_parallel_tool_calls`.
    ///
    /// Errors: `Refused`, `Strange`.
    pub fn caps(&self) -> Result<BTreeMap<String, bool>, ChatError> {
        let mut text = ptr::null_mut();
        // SAFETY: the template lives as long as `self`; the call writes `text` if it succeeds.
        ffi::call(|error| unsafe { ffi::wp_templates_caps(self.0, &mut text, error) })?;
        serde_json::from_str(&ffi::take_text(text)).map_err(|error| ChatError::Strange { reason: error.to_string() })
    }

    /// Returns the format of the answer to a request, given the result of [`crate::FormatInputs::to_json`].
    ///
    /// Cost: some hundred renderings of small conversations and a walk over the tools' schemas; milliseconds.
    /// Errors: `Refused` if llama.cpp finds no format, or cannot turn a schema into a grammar.
    pub fn format(&self, inputs: &str) -> Result<ChatFormat, ChatError> {
        let inputs = ffi::c_text(inputs)?;
        on_large_stack(move || {
            let (mut raw, mut text) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: template and text live through the call, which writes `raw` and `text` if it succeeds.
            ffi::call(|error| unsafe { ffi::wp_format_new(self.0, inputs.as_ptr(), &mut raw, &mut text, error) })?;
            ChatFormat::new(raw, &ffi::take_text(text))
        })
    }
}

impl Drop for ChatTemplates {
    fn drop(&mut self) {
        // SAFETY: it came from `wp_templates_new` and is freed once.
        unsafe { ffi::wp_templates_free(self.0) };
    }
}
