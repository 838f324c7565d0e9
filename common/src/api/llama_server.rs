//! A served model in the fields of llama-server in router mode, the same at worker and router.
//!
//! Clients that know llama-server by name choose from these fields: pi lists a model only with its `status`.

use serde_json::{Value, json};

use crate::model::{Capability, ModelInfo};

/// Returns the state of a model that is listed. Only loaded models are.
pub fn status() -> Value {
    json!({"value": "loaded"})
}

/// Returns what a model reads and what it responds with.
///
/// Source: llama-server's names; those of vectors and scores, which it does not have, are OpenRouter's.
pub fn architecture(model: &ModelInfo) -> Value {
    let modalities = model.modalities();
    let media = [("image", modalities.vision), ("audio", modalities.audio)];
    let inputs = media.into_iter().filter_map(|(name, is_read)| is_read.then_some(name));
    let output = match model.embedding {
        None => "text",
        Some(_) if model.can(Some(Capability::Rerank)) => "rerank",
        Some(_) => "embeddings",
    };
    json!({
        "input_modalities": std::iter::once("text").chain(inputs).collect::<Vec<_>>(),
        "output_modalities": [output],
    })
}

/// Returns what the chat template shows to the model.
pub fn chat_template_caps(model: &ModelInfo) -> Value {
    let has_tools = model.can(Some(Capability::Tools));
    json!({"supports_tools": has_tools, "supports_tool_calls": has_tools})
}
