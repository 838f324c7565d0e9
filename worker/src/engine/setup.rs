//! Construction of the engine's parts: their limits and initial costs, the codec's check, the store and its folder.
//!
//! Not here: their use (`step`), loading the model (`llama`).

use std::sync::Arc;
use std::sync::mpsc;

use llama_cpp_2::model::LlamaModel;
use tracing::{info, warn};
use warmpath_common::model::MemoryKind;
use warmpath_worker_core::batches::batch_plan::{BatchLimits, Passes};
use warmpath_worker_core::batches::decode_groups::DecodeGroups;
use warmpath_worker_core::curve::Curve;
use warmpath_worker_core::drafting::step_costs::{DepthCost, StepCosts};
use warmpath_worker_core::slots::checkpoints::{CheckpointNeed, CheckpointPolicy};
use warmpath_worker_core::slots::slot_table::{SlotSizes, SlotTable};
use warmpath_worker_core::store::chunk_index::StoreLimits;
use warmpath_worker_core::store::restore_costs::{Costs, SuffixRounding};

use super::api::Waker;
use super::api::facts::{EngineFacts, Exchange};
use super::config::files::{ProjectorConfig, ProjectorNeed};
use super::config::speculation::DraftCosts;
use super::config::{CostSource, DiskConfig, EngineConfig, IdleState, PrefixCache, ShiftConfig, StartError};
use super::counters::Counters;
use super::kv::store::{Cache, Codec, Disk};
use super::kv::{self, KvState};
use super::llama::Llama;
use super::media::{self, Encoder, Projector};
use super::output::draft_model::DraftModel;
use super::output::speculation::Speculation;
use super::output::{ContextEnd, Generator};
use super::schedule::{self, Scheduler};
use super::self_test::{self, SelfTestReport};
use super::step::EngineState;
use crate::store::{DiskStore, Identity};

/// Maximum number of tokens of a chunk. Source: docs/decisions/0010-prompt-state-cache.md.
const CHUNK_TOKENS: u32 = 256;

/// Minimum number of chunks that the store must have room for; chunks are made smaller if necessary.
///
/// Source: with it, evicting a chunk frees at most a sixteenth of the store.
const CHUNKS_MIN: u64 = 16;

/// Time to compute a prompt token before the first measurement. Units: milliseconds.
///
/// Source: docs/decisions/0000-measured-before.md, a small model on two cores. Larger models take longer, which makes
/// reuse even better.
const PREFILL_MS_AT_FIRST: f64 = 1.0;

/// Time to export a byte before the first measurement. Units: milliseconds. Source: as above, 1 GB/s.
const EXPORT_MS_PER_BYTE_AT_FIRST: f64 = 1e-6;

/// Time to import a byte before the first measurement. Units: milliseconds. Source: as above, 4 GB/s.
const IMPORT_MS_PER_BYTE_AT_FIRST: f64 = 0.25e-6;

/// Time to read a byte from disk before the first measurement. Units: milliseconds. Source: 500 MB/s, a slow SSD.
const READ_MS_PER_BYTE_AT_FIRST: f64 = 2e-6;

/// Time to share a token's cells with another slot. Units: milliseconds.
///
/// Source: docs/decisions/0000-measured-before.md: 0.13 ms for 2,048 tokens.
const SHARE_MS_PER_TOKEN: f64 = 0.13 / 2048.0;

/// Time of a step by its number of tokens without a measurement, on a CPU. Units: the time of one token. Source:
/// docs/decisions/0052-drafting.md.
const TOKENS_AT_FIRST_CPU: [(u32, f64); 5] = [(1, 1.0), (2, 2.7), (4, 3.6), (8, 5.0), (16, 7.7)];

/// Time of a step by its number of tokens without a measurement, on a GPU. Units: the time of one token. Source:
/// reading the weights once takes most of a step, and computing a token a small part.
const TOKENS_AT_FIRST_GPU: [(u32, f64); 5] = [(1, 1.0), (2, 1.05), (4, 1.1), (8, 1.2), (16, 1.4)];

/// Returns the encoder of media, with the projector; `None` if none is configured, or one that is optional cannot be
/// used.
///
/// Errors: `Projector`, also for a kind of memory that is not supported with media; `Thread`.
pub(super) fn encoder(
    model: &Arc<LlamaModel>,
    config: &EngineConfig,
    memory: MemoryKind,
    ubatch_tokens: u32,
    counters: &Arc<Counters>,
    waker: &Waker,
) -> Result<Option<Encoder>, StartError> {
    let Some(file) = &config.projector else { return Ok(None) };
    match projector(model, config, file, memory, ubatch_tokens) {
        Ok(projector) => Encoder::start(Arc::new(projector), Arc::clone(counters), waker.clone()).map(Some),
        Err(StartError::Projector { path, reason }) if file.need == ProjectorNeed::Optional => {
            media::warn_of_text_only(&path, &reason);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Loads the projector.
///
/// Errors: `Projector`.
fn projector(
    model: &Arc<LlamaModel>,
    config: &EngineConfig,
    file: &ProjectorConfig,
    memory: MemoryKind,
    ubatch_tokens: u32,
) -> Result<Projector, StartError> {
    if memory == MemoryKind::Recurrent {
        let reason = "images and audio need a model with attention, and this one is recurrent alone".to_owned();
        return Err(StartError::Projector { path: file.path.clone(), reason });
    }
    Projector::open(file, model, config.n_threads_batch().into(), ubatch_tokens)
}

/// What decides the parts of an engine: its settings, the loaded model, and measurements.
#[derive(Clone, Copy)]
pub(super) struct Setup<'a> {
    pub config: &'a EngineConfig,
    pub facts: &'a EngineFacts,
    /// Report of the self-test on a quiet machine; `None` if there is none.
    pub report: Option<&'a SelfTestReport>,
    pub counters: &'a Arc<Counters>,
}

impl Setup<'_> {
    /// Returns the scheduler.
    pub(super) fn scheduler(self, llama: &Llama<'_>, encoder: Option<Encoder>) -> Scheduler {
        let (batch_tokens, ubatch_tokens) = llama.batch_limits();
        let limits = schedule::ScheduleLimits {
            room: BatchLimits { batch_tokens, ubatch_tokens, passes: passes(self.config) },
            decode_groups: (!self.facts.kv_unified).then(|| decode_groups(self.report)),
            drafts_alone: !self.facts.memory.rewinds_anywhere(),
            listed_tokens_max: self.config.listed_logits_max / (self.facts.n_vocab as usize).max(1),
            gather_max: self.config.gather_max,
        };
        Scheduler::new(self.facts.n_slots, limits, encoder, Arc::clone(self.counters))
    }

    /// Returns the generator.
    pub(super) fn generator<'m>(self, model: &'m LlamaModel, draft_model: Option<DraftModel<'m>>) -> Generator<'m> {
        let context = ContextEnd {
            context_tokens: self.facts.context_tokens,
            at_end: self.config.shifts.at_context_end,
            unasked_tokens_max: self.facts.n_ctx_train.max(self.facts.context_tokens),
        };
        Generator::new(model, context, self.speculation(draft_model), Arc::clone(self.counters))
    }

    /// Returns the state of speculative decoding; `None` if it is off.
    fn speculation<'m>(self, draft_model: Option<DraftModel<'m>>) -> Option<Speculation<'m>> {
        if self.facts.drafted_max == 0 {
            if self.config.speculation.is_some() {
                warn!("speculative decoding is off: the memory of this model cannot be rewound");
            }
            return None;
        }
        let costs = step_costs(self.config, self.report, self.facts.memory);
        Some(Speculation::new(costs, draft_model, self.facts))
    }

    /// Returns the KV state: empty slots, and the store.
    pub(super) fn kv<'m>(self, llama: Llama<'m>, cache: Cache) -> KvState<'m> {
        let Self { config, facts, .. } = self;
        let table = SlotTable::new(SlotSizes {
            n_slots: facts.n_slots,
            context_tokens: facts.context_tokens,
            block_size_tokens: facts.block_size_tokens,
            memory: facts.memory,
            hasher: config.block_hasher,
        });
        let policy = kv::KvPolicy {
            prefix_cache: config.prefix_cache,
            checkpoints: self.checkpoint_policy(&cache),
            shifts: config.shifts,
            prefix_tokens_max: self.prefix_tokens_max(),
            idle_cell_ms: idle_cell_ms(config, self.report),
        };
        KvState::new(llama, table, cache, policy, Arc::clone(self.counters))
    }

    /// Returns the policy for the positions of checkpoints.
    fn checkpoint_policy(self, cache: &Cache) -> CheckpointPolicy {
        let is_needed = !self.facts.memory.stored_state_rewinds() && cache.stores();
        CheckpointPolicy {
            block_size_tokens: self.config.block_size_tokens,
            need: if is_needed { CheckpointNeed::Needed } else { CheckpointNeed::None },
        }
    }

    /// Returns the maximum number of tokens that idle slots keep: half of a shared buffer's cells. There is no limit if
    /// every slot has its own cells, which other slots cannot use, or if clients save slots by number.
    fn prefix_tokens_max(self) -> u64 {
        let half = u64::from(self.facts.context_tokens) * u64::from(self.facts.n_slots) / 2;
        let by_default = if moves_idle_state(self.config) { half } else { u64::MAX };
        self.config.prefix_tokens_max.unwrap_or(by_default)
    }

    /// Returns the store, with the files of an earlier process, and the identity of its state.
    ///
    /// Errors: `Store` if the folder cannot be used.
    pub(super) fn cache(
        self,
        model: &LlamaModel,
        llama: &mut Llama<'_>,
        waker: &Waker,
    ) -> Result<(Cache, Identity), StartError> {
        let Self { config, facts, .. } = self;
        // Only state that can be cut into blocks is stored.
        let codec = match config.prefix_cache {
            PrefixCache::Enabled => self.codec(model, llama),
            PrefixCache::Disabled => None,
        };
        let ram_bytes = if codec.is_some() { config.store.ram_bytes } else { 0 };
        let disk = config.store.disk.as_ref().filter(|_| ram_bytes > 0);
        let limits = StoreLimits {
            ram_bytes,
            disk_bytes: disk.map_or(0, |disk| disk.bytes),
            min_hold_ms: u64::try_from(config.store.min_hold.as_millis()).unwrap_or(u64::MAX),
            chunk_blocks_max: chunk_blocks_max(config.block_size_tokens, ram_bytes, codec.as_ref()),
            block_size_tokens: config.block_size_tokens,
        };
        let costs = match config.costs {
            CostSource::Given(costs) => costs,
            CostSource::Measured | CostSource::Assumed => self.costs_at_first(codec.as_ref().filter(|_| ram_bytes > 0)),
        };
        let mut cache = Cache::new(limits, codec, costs, config.costs);
        // Files of an earlier process are used only if their state has the same identity.
        let layout = format!("{} {:?}", facts.kv_fingerprint, cache.layout());
        let identity = Identity::new(facts.model_fingerprint, &layout, facts.block_size_tokens);
        if let Some(disk) = disk {
            self.open_disk(&mut cache, disk, ram_bytes, identity, waker)?;
        }
        Ok((cache, identity))
    }

    fn codec(self, model: &LlamaModel, llama: &mut Llama<'_>) -> Option<Codec> {
        match kv::slot_state::check_layout(llama, model, self.config.block_size_tokens) {
            Ok(layout) => Some(Codec { layout, n_streams: llama.n_streams(), memory: self.facts.memory }),
            Err(error) => {
                warn!(%error, "this model's state cannot be cut into chunks; prefixes are kept only in slots");
                None
            }
        }
    }

    /// Returns the costs before requests have been measured.
    fn costs_at_first(self, codec: Option<&Codec>) -> Costs {
        let token_bytes = codec.map_or(0, |codec| codec.layout.token_bytes()) as f64;
        let costs = self.report.and_then(|report| report.costs).unwrap_or(self_test::StateCosts {
            export_ms_per_token: token_bytes * EXPORT_MS_PER_BYTE_AT_FIRST,
            import_ms_per_token: token_bytes * IMPORT_MS_PER_BYTE_AT_FIRST,
            copy_ms_per_token: match self.facts.kv_unified {
                true => SHARE_MS_PER_TOKEN,
                false => token_bytes * (EXPORT_MS_PER_BYTE_AT_FIRST + IMPORT_MS_PER_BYTE_AT_FIRST),
            },
            ..self_test::StateCosts::default()
        });
        let copy = match (self.facts.memory, codec) {
            (MemoryKind::Recurrent, _) | (MemoryKind::Hybrid, None) => None,
            (MemoryKind::Hybrid, Some(_)) => Some(costs.export_ms_per_token + costs.import_ms_per_token),
            (MemoryKind::Full | MemoryKind::Sliding, _) => Some(costs.copy_ms_per_token),
        };
        let rounding = costs.suffix_rounding;
        Costs {
            prefill_ms_per_token: PREFILL_MS_AT_FIRST,
            copy_ms_per_token: copy,
            export_ms_per_token: codec.map(|_| costs.export_ms_per_token),
            import_ms_per_byte: costs.import_ms_per_token / token_bytes.max(1.0),
            read_ms_per_byte: READ_MS_PER_BYTE_AT_FIRST,
            suffix_rounding: rounding.map(|r| SuffixRounding { from_tokens: r.from_tokens, to_tokens: r.to_tokens }),
        }
    }

    fn open_disk(
        self,
        cache: &mut Cache,
        disk: &DiskConfig,
        queued_bytes_max: u64,
        identity: Identity,
        waker: &Waker,
    ) -> Result<(), StartError> {
        let (sender, events) = mpsc::channel();
        let (counters, waker) = (Arc::clone(self.counters), waker.clone());
        let store_result = DiskStore::open(&disk.dir, identity, queued_bytes_max, move |event| {
            counters.disk_answered(&event);
            drop(sender.send(event));
            waker.wake();
        });
        let (store, files) = store_result.map_err(StartError::Store)?;
        info!(folder = %store.folder().display(), mib = disk.bytes >> 20, "state is stored on disk, too");
        cache.adopt(Disk { store, events }, files);
        Ok(())
    }
}

/// Returns the maximum number of blocks of a chunk, reduced if the memory would otherwise have room for few chunks.
fn chunk_blocks_max(block_size_tokens: u32, ram_bytes: u64, codec: Option<&Codec>) -> usize {
    let token_bytes = codec.map_or(1, |codec| codec.layout.token_bytes().max(1)) as u64;
    let fitting_tokens = u32::try_from(ram_bytes / CHUNKS_MIN / token_bytes).unwrap_or(u32::MAX);
    (CHUNK_TOKENS.min(fitting_tokens) / block_size_tokens).max(1) as usize
}

/// Checks that the configured shifts are possible.
///
/// Errors: the reason why a configured shift is impossible.
pub(super) fn check_shifts(shifts: ShiftConfig, facts: &EngineFacts) -> Result<(), String> {
    match facts.shift_obstacle {
        Some(obstacle) if shifts != ShiftConfig::default() => {
            Err(format!("cache reuse and context shift are not possible: {obstacle}"))
        }
        _ => Ok(()),
    }
}

/// Returns whether idle slots' state leaves the KV buffer for the benefit of running sequences.
fn moves_idle_state(config: &EngineConfig) -> bool {
    config.uses_unified_kv() && config.idle_state == IdleState::Store
}

/// Returns whether sequences are computed together or one after the other.
fn passes(config: &EngineConfig) -> Passes {
    if config.uses_unified_kv() { Passes::Together } else { Passes::Apart }
}

/// Returns the groups in which single tokens are computed, as measured; without a measurement, all tokens are one
/// group.
fn decode_groups(report: Option<&SelfTestReport>) -> DecodeGroups {
    let setting = report.and_then(SelfTestReport::chosen);
    DecodeGroups::fastest(&setting.map_or(Curve::default(), |setting| setting.figures.decode_ms()))
}

/// Returns the time that an idle cell adds to a step, as measured: zero if every slot has its own cells or keeps its
/// state.
fn idle_cell_ms(config: &EngineConfig, report: Option<&SelfTestReport>) -> f64 {
    let costs = report.filter(|_| moves_idle_state(config)).and_then(|report| report.costs);
    costs.map_or(0.0, |costs| costs.idle_cell_ms)
}

/// Makes an engine plan with measurements that were made while it ran.
pub(super) fn adopt(engine: &mut EngineState<'_>, config: &EngineConfig, report: &SelfTestReport) {
    let groups = (!config.uses_unified_kv()).then(|| decode_groups(Some(report)));
    engine.schedule.set_decode_groups(groups);
    engine.kv.set_idle_cell_ms(idle_cell_ms(config, Some(report)));
    engine.generator.set_step_costs(step_costs(config, Some(report), engine.kv.table.memory()));
}

/// Returns the times of steps by their tokens, as measured; without a measurement, usual ones.
fn step_costs(config: &EngineConfig, report: Option<&SelfTestReport>, memory: MemoryKind) -> StepCosts {
    let is_like_gpu = config.speculation.is_some_and(|speculation| speculation.costs == DraftCosts::LikeGpu);
    let setting = report.filter(|_| !is_like_gpu).and_then(SelfTestReport::chosen);
    let figures = setting.map(|setting| &setting.figures);
    let tokens = figures.map_or(Curve::default(), self_test::Figures::tokens_ms);
    let streams = figures.map_or(Curve::default(), self_test::Figures::decode_ms);
    let is_gpu = config.placement.is_offloaded() || is_like_gpu;
    let (tokens, streams) = match (tokens.is_measured(), streams.is_measured(), is_gpu) {
        (true, true, _) => (tokens, streams),
        (true, false, _) => (tokens.clone(), tokens),
        (false, _, false) => (Curve::new(TOKENS_AT_FIRST_CPU), Curve::new(TOKENS_AT_FIRST_CPU)),
        (false, _, true) => (Curve::new(TOKENS_AT_FIRST_GPU), Curve::new(TOKENS_AT_FIRST_GPU)),
    };
    let depth = figures.map_or(DepthCost::default(), self_test::Figures::depth);
    let passes = match memory.rewinds_anywhere() {
        true if is_like_gpu => Passes::Together,
        true => passes(config),
        // A draft is computed alone, so that recurrent state can be rolled back from its rejected tokens.
        false => Passes::Apart,
    };
    StepCosts { tokens, streams, passes, depth }
}

/// Returns the state that other workers can use.
pub(super) fn exchange(cache: &Cache, identity: Identity, facts: &EngineFacts) -> Option<Exchange> {
    let is_usable = facts.memory.stored_state_rewinds() && cache.stores();
    is_usable.then(|| Exchange {
        identity,
        token_bytes: cache.token_bytes(),
        ram_bytes: cache.index().limits().ram_bytes,
    })
}
