//! Memory that an embedding or reranking worker will take, and whether it is available; checked before the model is
//! loaded.
//!
//! llama.cpp reports what a context for one batch would take, without allocating it. Not here: a worker that generates
//! (`engine::footprint`), the machine's memory (`machine`).

use warmpath_llama_chat::DeviceMemory;

use super::EmbedConfig;
use super::compute::context_params;
use super::layout::EmbeddingLayout;
use crate::engine::{self, Bytes, EngineConfig, MemoryPlan, MemoryUse, Outline, StartError};

/// Longest batch that llama.cpp measures; the memory of longer ones is extrapolated in proportion, which is a lower
/// bound.
///
/// Source: the same as the engine's: measuring takes 48 bytes per token, 3 MB at this size.
const ASKED_TOKENS_MAX: u32 = 1 << 16;

/// Returns the memory of a model's weights, context and computation, whether or not it is available; `None` if
/// llama.cpp cannot determine it.
///
/// Cost: reads the model's metadata.
pub fn project_memory(config: &EmbedConfig, available: u64) -> Option<MemoryPlan> {
    project_with_layout(config, available).map(|(plan, _)| plan)
}

/// Returns the memory, and the layout that it is for.
fn project_with_layout(config: &EmbedConfig, available: u64) -> Option<(MemoryPlan, EmbeddingLayout)> {
    let outline = Outline::load(&config.engine)?;
    // llama.cpp measures a smaller context, and its figures are scaled up.
    let layout = layout(&outline, config);
    let asked_tokens = layout.batch_tokens.min(ASKED_TOKENS_MAX);
    let asked_layout =
        EmbeddingLayout { batch_tokens: asked_tokens, ubatch_tokens: layout.ubatch_tokens.min(asked_tokens), ..layout };
    let (memory, devices) = outline.context(&context_params(config, asked_layout))?;
    let grown = |bytes: u64| bytes.saturating_mul(layout.batch_tokens.into()).div_ceil(asked_tokens.max(1).into());
    let devices = devices.into_iter().map(|device| {
        let (context, compute) = (grown(device.context), grown(device.compute));
        DeviceMemory { context, compute, ..device }
    });
    let devices = devices.collect();
    // The system can reclaim weights that are mapped from the file.
    let (mapped, copied) = match config.engine.placement.load_mode.gives_back() {
        true => (memory.weights_as_in_file, memory.weights_repacked),
        false => (0, memory.weights_as_in_file.saturating_add(memory.weights_repacked)),
    };
    let (context, compute) = (grown(memory.context), grown(memory.compute));
    let memory = MemoryUse { mapped, copied, context, compute, stored: 0, draft_model: 0, projector: 0, available };
    Some((MemoryPlan { memory, fitted_cells: None, devices }, layout))
}

/// Returns the same memory after a check; `None` if llama.cpp cannot determine it; loading will then report the error.
///
/// Cost: like [`project_memory`]. Errors: `Memory`, `DeviceMemory` if they need more memory than is available.
pub fn plan_memory(config: &EmbedConfig, available: u64) -> Result<Option<MemoryPlan>, StartError> {
    let Some((plan, layout)) = project_with_layout(config, available) else { return Ok(None) };
    engine::check_devices(&plan.devices)?;
    plan.memory.log();
    // Mapped weights are not counted.
    let MemoryUse { mapped, copied, context, compute, .. } = plan.memory;
    let bytes_needed = [context, compute, copied].into_iter().fold(0, u64::saturating_add);
    if bytes_needed <= available {
        return Ok(Some(plan));
    }
    let parts = format!(
        "{} for the KV cache and {} for computing {} tokens at once (--ctx-size, --ubatch-size, --slots), {} for weights \
         that are copied; {} of weights are mapped from their file and not counted",
        Bytes(context),
        Bytes(compute),
        layout.batch_tokens,
        Bytes(copied),
        Bytes(mapped),
    );
    let fits = match bytes_needed - copied <= bytes_needed.saturating_sub(available) {
        true => "no --ctx-size would fit; use a smaller model".to_owned(),
        false => "reduce --ctx-size or --ubatch-size".to_owned(),
    };
    Err(StartError::Memory { needed: Bytes(bytes_needed), available: Bytes(available), parts, fits })
}

/// Returns a configuration that names the device of each part, like the engine's.
///
/// Errors: `Config` for a device or a buffer that does not exist.
pub fn with_devices(config: EmbedConfig) -> Result<EmbedConfig, StartError> {
    let pooling = config.pooling;
    let wanted_layout = |engine: &EngineConfig| {
        let config = EmbedConfig { engine: engine.clone(), pooling };
        let layout = layout(&Outline::load(engine)?, &config);
        Some(context_params(&config, layout))
    };
    Ok(EmbedConfig { engine: engine::with_devices_beside(config.engine, wanted_layout)?, pooling })
}

fn layout(outline: &Outline, config: &EmbedConfig) -> EmbeddingLayout {
    let file = |key: &str| outline.meta(key);
    EmbeddingLayout::new(&config.engine.metadata(&file), config)
}
