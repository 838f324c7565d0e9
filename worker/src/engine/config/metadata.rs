//! The metadata of a model's file, with the replacements of the command line.
//!
//! llama.cpp applies replacements when it loads a model, but its metadata functions return the file's values. So this
//! worker reads metadata only through `Metadata`, which has both. Not here: flags (`crate::config::rope`).

pub use warmpath_gguf::MetadataValue;

use crate::engine::config::EngineConfig;

/// Longest key. Source: llama.cpp's `llama_model_kv_override`, less the byte at its end.
pub const KEY_BYTES_MAX: usize = 127;

/// Longest text. Source: as above.
pub const TEXT_BYTES_MAX: usize = 127;

/// Replacement for a value in the model's file.
#[derive(Debug, Clone, PartialEq)]
pub struct MetadataOverride {
    /// Name of the value.
    pub key: String,
    /// New value; a text has at most [`TEXT_BYTES_MAX`] bytes.
    pub value: MetadataValue,
}

/// Metadata as llama.cpp uses it.
#[derive(Clone, Copy)]
pub(crate) struct Metadata<'a> {
    overrides: &'a [MetadataOverride],
    /// Function that returns the value of a key in the file.
    file: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Metadata<'a> {
    pub(crate) fn new(overrides: &'a [MetadataOverride], file: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { overrides, file }
    }

    /// Returns the value of a key; the first replacement applies, as in llama.cpp.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        let metadata_override = self.overrides.iter().find(|one| one.key == key);
        metadata_override.map(|one| one.value.to_string()).or_else(|| (self.file)(key))
    }

    /// Returns the value of a key of the model's architecture.
    pub(crate) fn of_architecture(&self, key: &str) -> Option<String> {
        self.text(&format!("{}.{key}", self.text("general.architecture")?))
    }

    /// Returns the value of a key of the model's architecture; `None` if it is not a whole number.
    pub(crate) fn number(&self, key: &str) -> Option<u32> {
        self.of_architecture(key)?.parse().ok()
    }
}

impl EngineConfig {
    /// Returns metadata as llama.cpp uses it, given the model's file.
    pub(crate) fn metadata<'a>(&'a self, file: &'a dyn Fn(&str) -> Option<String>) -> Metadata<'a> {
        Metadata::new(&self.metadata_overrides, file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_replaces_the_value() {
        let file = |key: &str| match key {
            "general.architecture" => Some("llama".to_owned()),
            "llama.context_length" => Some("4096".to_owned()),
            _ => None,
        };
        let int = |key: &str, value| MetadataOverride { key: key.to_owned(), value: MetadataValue::Int(value) };
        let overrides = [int("llama.context_length", 512), int("llama.context_length", 7)];
        assert_eq!(Metadata::new(&[], &file).number("context_length"), Some(4096));
        assert_eq!(Metadata::new(&overrides, &file).number("context_length"), Some(512));
        assert_eq!(Metadata::new(&overrides, &file).number("attention.sliding_window"), None);
    }
}
