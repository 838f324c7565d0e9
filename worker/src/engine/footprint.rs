//! The memory that a worker will take, and the largest context that fits into the available memory; determined before
//! the model is loaded.
//!
//! llama.cpp reports the memory of a context of a given size without allocating it. For large contexts the memory is
//! extrapolated linearly from smaller ones, which are cheaper to measure. Memory mapped from the model's file is not
//! counted, because the system can reclaim it.
//!
//! Not here: the machine's memory (`machine`), the calls into llama.cpp (`llama::measure`).

use std::fmt;

use serde::Serialize;
use warmpath_llama_chat::DeviceMemory;

use super::config::memory::{Bytes, Fit};
use super::config::placement::GpuLayers;
use super::config::{EngineConfig, SLOT_CELLS_STEP, StartError};
use super::llama::measure::{ContextBytes, ReportedMemory};
use super::{llama, media};

/// Largest context that llama.cpp measures; the memory of larger ones is extrapolated. Units: cells.
///
/// Source: measuring takes 48 bytes per cell, 3 MB at this size, and the compute buffers grow linearly beyond it.
const ASKED_CELLS_MAX: u64 = 1 << 16;

/// Memory of a cell besides its keys and values. Units: bytes.
///
/// Source: the fields of llama.cpp's `llama_kv_cells`, and a node of its map of used cells.
const CELL_BYTES: u64 = 96;

/// Memory that a worker takes, as `/props` shows it. Units: bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryUse {
    /// Weights that are mapped from the file; the system reclaims their memory when needed.
    #[serde(rename = "weights_mapped_bytes")]
    pub mapped: u64,
    /// Weights that are copied, and adapters.
    #[serde(rename = "weights_copied_bytes")]
    pub copied: u64,
    /// KV cache and recurrent state.
    #[serde(rename = "kv_cache_bytes")]
    pub context: u64,
    /// Buffers of the computation.
    #[serde(rename = "compute_bytes")]
    pub compute: u64,
    /// Maximum memory for state stored beyond the slots.
    #[serde(rename = "cache_ram_bytes")]
    pub stored: u64,
    /// Draft model, without weights that are mapped from its file, or the context of the model's draft heads.
    #[serde(rename = "draft_model_bytes")]
    pub draft_model: u64,
    /// Projector with its computation, and the embeddings of media that are kept.
    #[serde(rename = "projector_bytes")]
    pub projector: u64,
    /// Memory that was available before anything was loaded.
    #[serde(rename = "available_bytes")]
    pub available: u64,
}

impl MemoryUse {
    /// Returns all of it, with the weights that are mapped from the file.
    pub fn total(&self) -> u64 {
        let Self { mapped, copied, context, compute, stored, draft_model, projector, available: _ } = *self;
        [mapped, copied, context, compute, stored, draft_model, projector].into_iter().fold(0, u64::saturating_add)
    }

    /// Logs the memory in one line.
    pub fn log(&self) {
        tracing::info!(
            weights_mapped = %Bytes(self.mapped),
            weights_copied = %Bytes(self.copied),
            kv_cache = %Bytes(self.context),
            compute = %Bytes(self.compute),
            cache_ram = %Bytes(self.stored),
            draft_model = %Bytes(self.draft_model),
            projector = %Bytes(self.projector),
            available = %Bytes(self.available),
            "memory"
        );
    }
}

/// Memory that a worker will take, and the fitted size of its context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Memory of the machine that will be taken.
    pub memory: MemoryUse,
    /// Cells of all slots together; `None` if the wanted number fits.
    pub fitted_cells: Option<u32>,
    /// Memory of devices that will be taken.
    pub devices: Vec<DeviceMemory>,
}

/// Memory that a worker takes. Units: bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    mapped: u64,
    copied: u64,
    taken: ContextBytes,
    stored: u64,
    draft_model: u64,
    projector: u64,
    /// Memory of each additional cell, for KV state and computation.
    cell: u64,
    /// Slots that share the cells.
    n_slots: u64,
}

impl Footprint {
    fn new(reported_memory: &ReportedMemory, stored_bytes: u64, n_slots: u16) -> Self {
        let ReportedMemory { large, small, wanted_cells, .. } = *reported_memory;
        let n_between = large.n_cells.saturating_sub(small.n_cells).max(1);
        let slope = |large: u64, small: u64| large.saturating_sub(small).div_ceil(n_between);
        let (context, compute) = (slope(large.context, small.context), slope(large.compute, small.compute));
        // Recurrent state has no cells.
        let kept_bytes = if context > 0 { CELL_BYTES } else { 0 };
        let n_more = wanted_cells.saturating_sub(large.n_cells);
        let grown = |bytes: u64, cell: u64| bytes.saturating_add(n_more.saturating_mul(cell));
        let context_bytes = ContextBytes {
            n_cells: wanted_cells,
            context: grown(large.context, context).saturating_add(wanted_cells.saturating_mul(kept_bytes)),
            compute: grown(large.compute, compute),
        };
        let cell = context + compute + kept_bytes;
        Self {
            mapped: reported_memory.mapped,
            copied: reported_memory.copied,
            taken: context_bytes,
            stored: stored_bytes,
            draft_model: 0,
            projector: 0,
            cell,
            n_slots: n_slots.into(),
        }
    }

    /// Returns the footprint with that of a draft model, whose weights may also be mapped.
    fn with_draft_model(self, draft: &Self) -> Self {
        Self { mapped: self.mapped.saturating_add(draft.mapped), draft_model: draft.needed(), ..self }
    }

    /// Returns it with the memory for reading media.
    fn with_projector(self, projector: u64) -> Self {
        Self { projector, ..self }
    }

    /// Returns the memory that cannot be reclaimed.
    fn needed(&self) -> u64 {
        let ContextBytes { context, compute, .. } = self.taken;
        let parts = [self.copied, context, compute, self.stored, self.draft_model, self.projector];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns the largest context that fits into `available` bytes, a multiple of llama.cpp's step; `None` if no
    /// context fits.
    fn cells_that_fit(&self, available: u64) -> Option<u64> {
        let excess = self.needed().saturating_sub(available);
        let step = u64::from(SLOT_CELLS_STEP) * self.n_slots;
        let fitting = self.taken.n_cells.saturating_sub(excess.div_ceil(self.cell.max(1)));
        Some(fitting / step * step).filter(|cells| *cells > 0)
    }

    /// Returns the number of cells that leaves [`Fit::spare_bytes`] free, counting mapped weights; `None` if the wanted
    /// number does. Each slot gets at least the minimum.
    fn fitted(&self, available: u64, fit: Fit) -> Option<u64> {
        let room = available.saturating_sub(fit.spare_bytes).saturating_sub(self.mapped);
        if self.needed() <= room {
            return None;
        }
        let step = u64::from(SLOT_CELLS_STEP);
        let cells_min = u64::from(fit.slot_tokens_min).next_multiple_of(step) * self.n_slots;
        let cells = self.cells_that_fit(room).unwrap_or(0).max(cells_min);
        (cells < self.taken.n_cells).then_some(cells)
    }

    fn shown(&self, available: u64) -> MemoryUse {
        let Self {
            mapped, copied, stored, draft_model, projector, taken: ContextBytes { context, compute, .. }, ..
        } = *self;
        MemoryUse { mapped, copied, context, compute, stored, draft_model, projector, available }
    }

    /// Checks that the needed memory is available.
    ///
    /// Errors: `Memory` if it is not.
    fn check(&self, available: u64) -> Result<(), StartError> {
        if self.needed() <= available {
            return Ok(());
        }
        let fits = match self.cells_that_fit(available) {
            Some(cells) => format!("--ctx-size {cells} would fit"),
            None => "no --ctx-size would fit; reduce --cache-ram or --ubatch-size, or use a smaller model".to_owned(),
        };
        Err(StartError::Memory {
            needed: Bytes(self.needed()),
            available: Bytes(available),
            parts: self.to_string(),
            fits,
        })
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ContextBytes { n_cells, context, compute } = self.taken;
        write!(
            out,
            "{} for the KV cache of {n_cells} tokens (--ctx-size, --cache-type-k, --cache-type-v)",
            Bytes(context)
        )?;
        write!(out, ", {} for computing (--ubatch-size)", Bytes(compute))?;
        write!(out, ", {} for stored state (--cache-ram)", Bytes(self.stored))?;
        if self.draft_model > 0 {
            write!(out, ", {} for the draft model (--spec-draft-model)", Bytes(self.draft_model))?;
        }
        if self.projector > 0 {
            write!(out, ", {} for images and audio (--mmproj)", Bytes(self.projector))?;
        }
        write!(out, ", {} for copied weights", Bytes(self.copied))?;
        write!(out, "; {} of weights are mapped from their file and not counted", Bytes(self.mapped))
    }
}

/// Refuses a model that does not fit on a device.
///
/// Errors: `DeviceMemory`.
pub(crate) fn check_devices(devices: &[DeviceMemory]) -> Result<(), StartError> {
    for DeviceMemory { name, available, weights, context, compute } in devices {
        let bytes_needed = [*weights, *context, *compute].into_iter().fold(0, u64::saturating_add);
        tracing::debug!(device = name, needed = %Bytes(bytes_needed), available = %Bytes(*available), "memory");
        if bytes_needed > *available {
            let parts = format!(
                "{} for weights (--n-gpu-layers, --override-tensor), {} for the KV cache (--ctx-size, --no-kv-offload), {} for \
                 computing (--ubatch-size)",
                Bytes(*weights),
                Bytes(*context),
                Bytes(*compute)
            );
            let (bytes_needed, available) = (Bytes(bytes_needed), Bytes(*available));
            return Err(StartError::DeviceMemory { device: name.clone(), needed: bytes_needed, available, parts });
        }
    }
    Ok(())
}

/// A worker's memory with the context that fits.
struct Fitted {
    footprint: Footprint,
    devices: Vec<DeviceMemory>,
    /// Cells of all slots together; `None` if the wanted number fits.
    cells: Option<u32>,
}

impl Fitted {
    fn plan(self, available: u64) -> MemoryPlan {
        let Self { footprint, devices, cells } = self;
        MemoryPlan { memory: footprint.shown(available), fitted_cells: cells, devices }
    }
}

/// Returns the memory of a model's weights, context, computation and stored state, whether or not it is available. A
/// default context that does not fit is reduced. `None` if llama.cpp cannot determine the memory.
///
/// Cost: reads the model's metadata, twice if the context is reduced.
pub fn project(config: &EngineConfig, available: u64) -> Option<MemoryPlan> {
    Some(fit(config, available)?.plan(available))
}

/// Returns the same memory after a check. `None` if llama.cpp cannot determine it; loading will then report the error.
///
/// Cost: like [`project`]. Errors: `Memory`, `DeviceMemory` if more memory is needed than is available.
pub fn plan(config: &EngineConfig, available: u64) -> Result<Option<MemoryPlan>, StartError> {
    let Some(fitted) = fit(config, available) else { return Ok(None) };
    check_devices(&fitted.devices)?;
    let footprint = fitted.footprint;
    footprint.shown(available).log();
    if footprint.needed().saturating_add(footprint.mapped) > available && footprint.needed() <= available {
        let (model, left) = (Bytes(footprint.mapped), Bytes(available - footprint.needed()));
        tracing::warn!(%model, %left, "the model's file does not fit into the remaining memory and will be read from disk repeatedly");
    }
    footprint.check(available)?;
    Ok(Some(fitted.plan(available)))
}

fn fit(config: &EngineConfig, available: u64) -> Option<Fitted> {
    let (mut footprint, mut devices) = ask(config)?;
    let wanted_cells = footprint.taken.n_cells;
    let fit = config.fit.filter(|_| config.context_tokens_total == 0);
    let cells = fit.and_then(|fit| footprint.fitted(available, fit)).and_then(|cells| u32::try_from(cells).ok());
    if let Some(cells) = cells {
        // The extrapolation is accurate enough for choosing the size. The memory of that size is then measured.
        let smaller = EngineConfig { context_tokens_total: cells, ..config.clone() };
        (footprint, devices) = ask(&smaller).unwrap_or((footprint, devices));
        let (slot_tokens, wanted) = (cells / u32::from(config.n_slots), wanted_cells / u64::from(config.n_slots));
        tracing::warn!(slot_tokens, wanted, "the context of each slot is reduced to fit into memory (--fit)");
    }
    Some(Fitted { footprint, devices, cells })
}

/// Returns the memory of a configuration, of its projector and of its draft model.
fn ask(config: &EngineConfig) -> Option<(Footprint, Vec<DeviceMemory>)> {
    let (mut footprint, mut devices) = ask_alone(config)?;
    if let Some(projector) = &config.projector {
        let (host, own_devices) = media::memory(projector);
        footprint = footprint.with_projector(host);
        own_devices.into_iter().for_each(|device| add_device(&mut devices, device));
    }
    let slot_tokens = footprint.taken.n_cells / u64::from(config.n_slots).max(1);
    let slot_tokens = u32::try_from(slot_tokens).unwrap_or(u32::MAX);
    if let Some((heads, own_devices)) = llama::measure::heads(config, slot_tokens) {
        // Their weights are those of the model.
        footprint.draft_model = heads.context.saturating_add(heads.compute);
        own_devices.into_iter().for_each(|device| add_device(&mut devices, DeviceMemory { weights: 0, ..device }));
    }
    let Some(draft) = &config.draft_model else { return Some((footprint, devices)) };
    let draft_config = config.with_draft_model(draft, slot_tokens);
    // If llama.cpp cannot determine it, loading will report the error.
    let Some((own_footprint, own_devices)) = ask_alone(&draft_config) else { return Some((footprint, devices)) };
    // With `auto`, only as many of the draft model's layers are offloaded as fit beside the model.
    if draft.placement.n_gpu_layers != GpuLayers::Auto {
        own_devices.into_iter().for_each(|device| add_device(&mut devices, device));
    }
    Some((footprint.with_draft_model(&own_footprint), devices))
}

fn add_device(devices: &mut Vec<DeviceMemory>, other: DeviceMemory) {
    match devices.iter_mut().find(|device| device.name == other.name) {
        Some(device) => {
            device.weights = device.weights.saturating_add(other.weights);
            device.context = device.context.saturating_add(other.context);
            device.compute = device.compute.saturating_add(other.compute);
        }
        None => devices.push(other),
    }
}

fn ask_alone(config: &EngineConfig) -> Option<(Footprint, Vec<DeviceMemory>)> {
    // The second measurement has half of the cells, so each slot needs at least two steps in the first.
    let asked_cells_max = ASKED_CELLS_MAX.max(u64::from(config.n_slots) * u64::from(SLOT_CELLS_STEP) * 2);
    let reported_memory = llama::measure::ask(config, asked_cells_max)?;
    Some((Footprint::new(&reported_memory, config.store.ram_bytes, config.n_slots), reported_memory.devices))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn asked(wanted_cells: u64) -> ReportedMemory {
        let taken = |n_cells: u64| ContextBytes { n_cells, context: 100 * n_cells, compute: MIB + 4 * n_cells };
        let n_cells = wanted_cells.min(ASKED_CELLS_MAX);
        let (large, small) = (taken(n_cells), taken(n_cells / 2));
        ReportedMemory { wanted_cells, mapped: 500 * MIB, copied: 3 * MIB, devices: Vec::new(), large, small }
    }

    fn footprint(wanted_cells: u64) -> Footprint {
        Footprint::new(&asked(wanted_cells), 2 * MIB, 2)
    }

    #[test]
    fn memory_of_large_contexts_grows_linearly() {
        for n_cells in [1024, ASKED_CELLS_MAX, 1 << 24, u64::from(u32::MAX)] {
            let expected = 3 * MIB + 2 * MIB + MIB + (100 + CELL_BYTES + 4) * n_cells;
            assert_eq!(footprint(n_cells).needed(), expected, "{n_cells}");
        }
        assert_eq!(
            Footprint { taken: ContextBytes { context: u64::MAX, ..asked(1024).large }, ..footprint(1024) }.needed(),
            u64::MAX
        );
    }

    #[test]
    fn refuses_a_context_that_does_not_fit_and_suggests_a_size() {
        let large = footprint(1 << 24);
        assert!(large.check(large.needed()).is_ok());
        let refused = large.check(large.needed() - 1).expect_err("a byte is missing").to_string();
        assert!(refused.contains("would fit") && refused.contains("500.0 MiB of weights are mapped"), "{refused}");
        let fits = large.cells_that_fit(100 * MIB).expect("a smaller one fits");
        assert_eq!(fits % (2 * 256), 0);
        assert!(footprint(fits).needed() <= 100 * MIB && footprint(fits + 2 * 512).needed() > 100 * MIB, "{fits}");
        let nothing = large.check(4 * MIB).expect_err("nothing fits").to_string();
        assert!(nothing.contains("no --ctx-size would fit"), "{nothing}");
    }

    #[test]
    fn a_draft_model_counts_with_its_context_and_computation() {
        let both = footprint(4096).with_draft_model(&footprint(512));
        assert_eq!(both.needed(), footprint(4096).needed() + footprint(512).needed());
        assert_eq!(both.shown(0).draft_model, footprint(512).needed());
        assert_eq!(both.shown(0).mapped, 1000 * MIB);
        let refused = both.check(both.needed() - 1).expect_err("a byte is missing").to_string();
        assert!(refused.contains("for the draft model (--spec-draft-model)"), "{refused}");
        let device = |name: &str, weights| DeviceMemory {
            name: name.to_owned(),
            available: 9 * MIB,
            weights,
            context: 1,
            compute: 2,
        };
        let mut devices = vec![device("GPU0", 7)];
        add_device(&mut devices, device("GPU0", 5));
        add_device(&mut devices, device("GPU1", 6));
        let weights: Vec<u64> = devices.iter().map(|device| device.weights).collect();
        assert_eq!((weights, devices[0].context, devices[0].compute), (vec![12, 6], 2, 4));
    }

    #[test]
    fn a_projector_counts() {
        let both = footprint(4096).with_projector(7 * MIB);
        assert_eq!(both.needed(), footprint(4096).needed() + 7 * MIB);
        assert_eq!(both.shown(0).projector, 7 * MIB);
        let refused = both.check(both.needed() - 1).expect_err("a byte is missing").to_string();
        assert!(refused.contains("7.0 MiB for images and audio (--mmproj)"), "{refused}");
    }

    #[test]
    fn a_default_context_leaves_memory_free_beside_the_weights() {
        let fit = Fit { spare_bytes: 64 * MIB, slot_tokens_min: 4096 };
        let large = footprint(1 << 24);
        let all = large.needed() + 500 * MIB + 64 * MIB;
        assert_eq!(large.fitted(all, fit), None);
        for available in [all - 1, all / 2, 700 * MIB] {
            let cells = large.fitted(available, fit).expect("it is made smaller");
            assert_eq!(cells % (2 * u64::from(SLOT_CELLS_STEP)), 0);
            assert!(footprint(cells).needed() + 564 * MIB <= available, "{available}");
            assert!(footprint(cells + 1024).needed() + 564 * MIB > available, "{available}");
        }
        // Each slot gets the minimum even if less memory stays free; another check refuses a context that does not fit.
        assert_eq!(large.fitted(100 * MIB, fit), Some(2 * 4096));
        assert_eq!(footprint(4096).fitted(100 * MIB, fit), None);
        let odd = Fit { slot_tokens_min: 4000, ..fit };
        assert_eq!(large.fitted(0, odd), Some(2 * 4096));
    }

    #[test]
    fn refuses_a_device_without_enough_memory() {
        let device = |available| DeviceMemory {
            name: "CUDA0".to_owned(),
            available,
            weights: 5 * MIB,
            context: 2 * MIB,
            compute: MIB,
        };
        assert!(check_devices(&[]).is_ok());
        assert!(check_devices(&[device(8 * MIB), device(u64::MAX)]).is_ok());
        let refused =
            check_devices(&[device(8 * MIB), device(8 * MIB - 1)]).expect_err("a byte is missing").to_string();
        assert!(refused.contains("8.0 MiB of CUDA0's memory") && refused.contains("2.0 MiB for the KV"), "{refused}");
    }
}
