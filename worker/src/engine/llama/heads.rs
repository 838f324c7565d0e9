//! The context of a model's draft heads, and the hidden states that they read.
//!
//! The heads are layers behind the model's own ones (multi-token prediction, MTP). They have a context of their own,
//! whose KV cache has only their layers, so its tokens can always be removed.
//!
//! Not here: what the heads compute and when (`output::draft_model`).

use std::ops::Range;

use llama_cpp_2::context::params::{LlamaContextParams, LlamaContextType};
use llama_cpp_2::model::LlamaModel;
use llama_cpp_sys_2 as sys;
use warmpath_common::ids::{SlotId, Token};
use warmpath_llama_chat::HiddenStates;

use super::{Llama, Logits, context_params, raw_context};
use crate::engine::config::speculation::HeadUse;
use crate::engine::config::{EngineConfig, Switch};

/// Architectures whose heads llama.cpp computes. Source: those of llama.cpp's models that have a `graph_mtp`; its
/// interface does not tell, and a context for other heads would end the process.
const ARCHITECTURES: [&str; 15] = [
    "bailingmoe3",
    "cohere2moe",
    "deepseek2",
    "deepseek32",
    "deepseek4",
    "glm-dsa",
    "glm4moe",
    "hy_v3",
    "mimo2",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "qwen4exp",
    "step35",
];

/// Returns whether a configuration uses draft heads, if the model has them.
pub(in crate::engine) fn are_wanted(config: &EngineConfig) -> bool {
    let head_use = config.speculation.map_or(HeadUse::Off, |speculation| speculation.heads);
    // A medium's tokens have no hidden states for heads, and their positions may differ from their number.
    head_use != HeadUse::Off && config.draft_model.is_none() && config.projector.is_none()
}

/// Returns whether a model, given the texts of its metadata, has draft heads that llama.cpp computes.
pub(in crate::engine) fn has_heads(config: &EngineConfig, file: &dyn Fn(&str) -> Option<String>) -> bool {
    let metadata = config.metadata(file);
    let architecture = metadata.text("general.architecture").unwrap_or_default();
    ARCHITECTURES.contains(&&*architecture) && metadata.number("nextn_predict_layers").unwrap_or(0) > 0
}

/// Returns the settings of the context of draft heads, for slots of `slot_tokens`.
pub(super) fn params(config: &EngineConfig, slot_tokens: u32) -> LlamaContextParams {
    let own_config = own_config(config);
    let n_cells = slot_tokens.saturating_mul(config.n_slots.into());
    context_params(&own_config, n_cells).with_context_type(LlamaContextType::Mtp).with_n_batch(config.ubatch_tokens)
}

/// Returns a configuration for the heads: with separate buffers, slots that do not draft add no time to a pass.
fn own_config(config: &EngineConfig) -> EngineConfig {
    EngineConfig { kv_unified: Switch::Off, speculation: None, ..config.clone() }
}

impl<'m> Llama<'m> {
    /// Creates the context of the draft heads of `model`, for slots of `slot_tokens`, and computes a token for a trial.
    ///
    /// Errors: the reason why llama.cpp refuses.
    pub(in crate::engine) fn open_heads(
        model: &'m LlamaModel,
        config: &EngineConfig,
        slot_tokens: u32,
    ) -> Result<Self, String> {
        let context = model.new_context(warmpath_prompt::backend(), params(config, slot_tokens));
        let mut heads = Self::with_context(context.map_err(|error| error.to_string())?, &own_config(config));
        heads.write_hidden(HiddenStates::WithLogits);
        let hidden = vec![0.0; heads.hidden_width()];
        let slot = SlotId(0);
        let row = heads.push_with_hidden(slot, 1, 0, &hidden, Logits::Wanted);
        let result = heads.decode().map_err(|error| error.to_string());
        let has_hidden = result.is_ok() && heads.hidden(row).is_some();
        heads.reset_batch();
        heads.clear(slot);
        result?;
        if has_hidden { Ok(heads) } else { Err("they give no hidden state".to_owned()) }
    }

    /// Returns the number of floats of a hidden state.
    pub(in crate::engine) fn hidden_width(&self) -> usize {
        let context = raw_context(&self.context).as_ptr();
        // SAFETY: the context is borrowed, and its model lives at least as long.
        unsafe { sys::llama_model_n_embd_out(sys::llama_get_model(context)) }.unsigned_abs() as usize
    }

    /// Chooses the hidden states that further batches write.
    pub(in crate::engine) fn write_hidden(&mut self, tokens: HiddenStates) {
        // SAFETY: the context is borrowed exclusively.
        unsafe { warmpath_llama_chat::write_hidden(raw_context(&self.context).as_ptr(), tokens) };
    }

    /// Returns the hidden state of the last batch's token at `idx`; `None` if it was not written.
    pub(in crate::engine) fn hidden(&self, idx: i32) -> Option<&[f32]> {
        self.hidden_rows(idx..idx + 1)?.pop()
    }

    /// Returns the hidden states of the last batch's tokens in `rows`; `None` if one was not written.
    pub(in crate::engine) fn hidden_rows(&self, rows: Range<i32>) -> Option<Vec<&[f32]>> {
        let (context, width) = (raw_context(&self.context).as_ptr(), self.hidden_width());
        // SAFETY: the context is borrowed as long as the states are, so no batch is computed meanwhile; the width is
        // its model's.
        rows.map(|idx| unsafe { warmpath_llama_chat::hidden(context, idx, width) }).collect()
    }

    /// Puts a token with the hidden state of the token before it into the batch and returns its index.
    pub(in crate::engine) fn push_with_hidden(
        &mut self,
        slot: SlotId,
        position: u32,
        token: Token,
        hidden: &[f32],
        logits: Logits,
    ) -> i32 {
        let token = i32::try_from(token).expect("tokens were checked against the vocabulary");
        let position = i32::try_from(position).expect("a position is below the context's size, an i32");
        self.embeddings.push(slot.0.into(), position, token, hidden, logits)
    }
}
