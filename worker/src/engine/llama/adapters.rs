//! LoRA adapters in the engine: loading them, and applying one to the context.
//!
//! A batch is computed with one adapter. State of different adapters is never mixed, because their chains have
//! different roots. So the context only has to apply the batch's adapter before each batch.
//!
//! Not here: the adapter of a request (`warmpath_common::lora`), the order of adapters
//! (`warmpath_worker_core::batches::adapter_schedule`).

use std::path::Path;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::model::{LlamaLoraAdapter, LlamaModel};
use warmpath_common::lora::{AdapterInfo, Applied};

use crate::engine::config::StartError;
use crate::engine::config::files::AdapterFile;

/// Loaded adapters, and the one that the context applies.
#[derive(Default)]
pub(crate) struct Adapters {
    adapters: Vec<LlamaLoraAdapter>,
    adapter_in_force: Option<Applied>,
}

/// Checks that a file holds a LoRA adapter of a usable kind.
///
/// Errors: `Adapter`.
pub(crate) fn check_file(path: &Path) -> Result<(), StartError> {
    let refuse = |reason: String| StartError::Adapter { path: path.to_owned(), reason };
    let header = warmpath_gguf::check(path).map_err(|error| refuse(error.to_string()))?;
    if header.text("adapter.type").as_deref() != Some("lora") {
        return Err(refuse("it is not a LoRA adapter".to_owned()));
    }
    if header.keys().iter().any(|key| key == INVOCATION_TOKENS) {
        return Err(refuse("it is an activated LoRA, which applies only to some tokens of a prompt".to_owned()));
    }
    Ok(())
}

impl Adapters {
    /// Loads adapters for `model`, which owns them.
    ///
    /// Errors: `Adapter` if a file is missing, is not an adapter, or is for another model.
    pub(crate) fn load(model: &mut LlamaModel, files: &[AdapterFile]) -> Result<(Self, Vec<AdapterInfo>), StartError> {
        let mut loaded_adapters = Vec::with_capacity(files.len());
        let mut infos = Vec::with_capacity(files.len());
        for AdapterFile { name, path, scale } in files {
            let refuse = |reason: String| StartError::Adapter { path: path.clone(), reason };
            check_file(path)?;
            let fingerprint = warmpath_gguf::fingerprint(path).map_err(|error| refuse(error.to_string()))?;
            let adapter = model.lora_adapter_init(path);
            let adapter =
                adapter.map_err(|_| refuse("llama.cpp refuses it for this model; its log says why".to_owned()))?;
            loaded_adapters.push(adapter);
            infos.push(AdapterInfo { name: name.clone(), fingerprint, scale: *scale });
        }
        Ok((Self { adapters: loaded_adapters, adapter_in_force: None }, infos))
    }

    /// Makes the context use the adapter from now on; `None` for none.
    ///
    /// Cost: none if it does so already, otherwise the time of planning a batch's graph. Errors: a description of the
    /// failure.
    pub(crate) fn apply(
        &mut self,
        context: &mut LlamaContext<'_>,
        adapter_in_force: Option<Applied>,
    ) -> Result<(), String> {
        if adapter_in_force == self.adapter_in_force {
            return Ok(());
        }
        match adapter_in_force {
            Some(Applied { adapter, scale }) => {
                let adapter = self.adapters.get_mut(usize::from(adapter)).ok_or("there is no such adapter")?;
                context.lora_adapter_set(adapter, scale.into()).map_err(|error| error.to_string())?;
            }
            None => {
                // Passing any adapter removes all of them.
                let any = self.adapters.first_mut().ok_or("no adapter is loaded")?;
                context.lora_adapter_remove(any).map_err(|error| error.to_string())?;
            }
        }
        self.adapter_in_force = adapter_in_force;
        Ok(())
    }
}

/// Key of an adapter that applies only after some tokens. Source: llama.cpp's `LLM_KV_ADAPTER_ALORA_INVOCATION_TOKENS`.
const INVOCATION_TOKENS: &str = "adapter.alora.invocation_tokens";
