//! Measures one setting in a small separate context.
//!
//! Every slot gets a cached state of one computed block, repeated, which is faster than computing all of it. Zeros
//! would not do: without flash attention, attention to them is faster than to real state.
//! The largest costs are measured first, so that measuring a slower setting stops early. Not here: the choice among
//! settings (`self_test`).

use std::hint::black_box;
use std::time::Instant;

use llama_cpp_2::model::LlamaModel;
use warmpath_common::ids::SlotId;
use warmpath_worker_core::batches::batch_plan::Share;
use warmpath_worker_core::drafting::step_costs::SHALLOW_TOKENS;

use super::measurements::{Figures, PROMPT_TOKENS, SHORT_TOKENS, SUFFIX_TOKENS, StateCosts, TILE_TOKENS, rounding};
use super::other_work::OtherWork;
use super::{MeasureOutcome, TriedSetting};
use crate::engine::codec::{CodecError, PayloadPart, Sections, StateLayout};
use crate::engine::config::{EngineConfig, StartError};
use crate::engine::kv::slot_state;
use crate::engine::llama::{Llama, Logits, StateError};

/// Maximum number of cached tokens of each slot.
///
/// Source: a usual system prompt with tools.
const CACHED_TOKENS_MAX: u32 = 2048;
/// Minimum number of cached tokens of each slot. They are computed if state cannot be imported. Source: half of a
/// micro-batch, which one step computes.
const CACHED_TOKENS_MIN: u32 = 256;
/// Maximum size of all cached state. Units: bytes. Source: 4,096 tokens of an 8B model.
const STATE_BYTES_MAX: u64 = 512 << 20;
/// Room of a slot after its cached tokens, if the tokens of a step can be removed again. Source: twice the longest step
/// behind all of them, a tile, and 32 tokens to spare.
const ROOM_TOKENS: u32 = 160;
/// Room of a slot after its cached tokens, if tokens cannot be removed. Source: enough for some runs of each step.
const ROOM_TOKENS_KEPT: u32 = 512;
/// Number of computed tokens of a new prompt. Source: a quarter of a micro-batch, for which the kernels for batches are
/// used.
const COLD_TOKENS: u32 = 128;
/// Longest time of these tokens for which more is measured, a whole micro-batch if it has room. Units: milliseconds.
/// Source: four times as long is a second. With few heads flash attention needs whole micro-batches for its speed: 1.1
/// ms for a token of SmolLM2 in 512, 1.2 to 1.4 in 128.
const SHORT_COLD_MS: f64 = 250.0;
/// Cost, relative to another setting's, from which a whole micro-batch is not measured any more. Source: a token in the
/// short part may take a third longer, which is a third of the cost.
const COLD_SLACK: f64 = 1.1;
/// Tokens of a step with a draft; longer ones are extrapolated. Source: powers of two up to the longest usual draft.
const DRAFT_TOKENS: [u32; 5] = [2, 4, 8, 16, 32];
/// Tokens of a step with a draft in a short context; numbers between these are interpolated. Source: fewer than above,
/// since only the difference to a long context is needed.
const SHALLOW_DRAFT_TOKENS: [u32; 3] = [1, 4, 16];
/// Maximum number of measurements of a step; the fastest one counts. Source: other work rarely disturbs six consecutive
/// runs.
const N_RUNS_MAX: u32 = 6;
/// Number of measurements of moving state; the fastest one counts. Source: the first one touches new pages, and one of
/// two more is rarely disturbed.
const N_TRANSFERS: u32 = 3;
/// Maximum difference between the two fastest runs, relative to the fastest. Source: half of the smallest difference
/// that changes a decision (`ROUNDING_GAIN_MIN`).
const SPREAD_MAX: f64 = 0.05;
/// Limit at which measuring stops.
#[derive(Clone, Copy)]
pub(super) struct Limit<'a> {
    /// Cost of another setting, at which measuring stops.
    pub cost_ms: f64,
    /// Time at which repetitions end.
    pub until: Instant,
    /// Returns whether the machine is needed for requests.
    pub is_needed: &'a dyn Fn() -> bool,
}

/// Tokens of a step whose logits are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outputs {
    Last,
    All,
}

/// Reason why measuring stopped.
enum Stop {
    Behind,
    Disturbed,
    Failed(String),
}

impl From<StateError> for Stop {
    fn from(error: StateError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<CodecError> for Stop {
    fn from(error: CodecError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A context with cached slots.
struct MeasuredContext<'m, 'l> {
    model: &'m LlamaModel,
    llama: Llama<'m>,
    n_slots: u16,
    n_cached: u32,
    rewinds: bool,
    /// Whether every slot has its own cells, so that the slots computed together can be chosen.
    splits: bool,
    /// Maximum length of a draft; 0 if responses are not drafted.
    drafted_max: u32,
    /// Whether suffixes shorter than a tile may be slow, so that rounding them up is measured.
    rounds_suffixes: bool,
    tile_ms: f64,
    layout: Option<StateLayout>,
    limit: Limit<'l>,
    other_work: OtherWork,
    figures: Figures,
}

/// Measures the setting in `config`.
pub(super) fn measure(model: &LlamaModel, config: &EngineConfig, limit: Limit<'_>) -> TriedSetting {
    let setting = super::expected(config);
    let mut figures = Figures::default();
    let result = MeasuredContext::open(model, config, limit).and_then(|mut bench| {
        let bench_result = bench.measure();
        figures = bench.figures.clone();
        bench_result?;
        match bench.costs() {
            Err(Stop::Disturbed) => Err(Stop::Disturbed),
            costs => Ok(costs.ok()),
        }
    });
    let (outcome, costs) = match result {
        Ok(costs) => (MeasureOutcome::Whole, costs),
        Err(Stop::Behind) => (MeasureOutcome::Behind, None),
        Err(Stop::Disturbed) => (MeasureOutcome::Disturbed, None),
        Err(Stop::Failed(reason)) => (MeasureOutcome::Failed(reason), None),
    };
    let cost_ms = figures.cost_ms();
    TriedSetting { setting, figures, cost_ms, outcome, costs }
}

/// Returns the number of cached tokens of each slot, and its room for further tokens.
///
/// Source of the estimate: 16-bit keys and values of every layer.
fn slot_tokens(model: &LlamaModel, config: &EngineConfig) -> (u32, u32) {
    let n_slots = u32::from(config.n_slots);
    let room = if rewinds(model) { ROOM_TOKENS } else { ROOM_TOKENS_KEPT };
    let head_size = u64::from(model.n_embd().unsigned_abs()) / u64::from(model.n_head().max(1));
    let token_bytes = u64::from(model.n_layer()) * u64::from(model.n_head_kv()) * head_size * 4;
    let fits = STATE_BYTES_MAX / (token_bytes.max(1) * u64::from(n_slots));
    let tokens_wanted = u32::try_from(fits).unwrap_or(u32::MAX).clamp(CACHED_TOKENS_MIN, CACHED_TOKENS_MAX);
    let tokens_wanted = match config.context_tokens_total {
        0 => tokens_wanted,
        given => tokens_wanted.min((given / n_slots).saturating_sub(room)),
    };
    (tokens_wanted.max(1).next_multiple_of(config.block_size_tokens), room)
}

fn rewinds(model: &LlamaModel) -> bool {
    !model.is_recurrent() && !model.is_hybrid()
}

impl<'m, 'l> MeasuredContext<'m, 'l> {
    fn open(model: &'m LlamaModel, config: &EngineConfig, limit: Limit<'l>) -> Result<Self, Stop> {
        let (n_cached, room) = slot_tokens(model, config);
        let small = EngineConfig {
            context_tokens_total: n_cached.saturating_add(room).saturating_mul(u32::from(config.n_slots)),
            ..config.clone()
        };
        let stop = |error: StartError| Stop::Failed(error.to_string());
        let mut llama = Llama::open(model, &small).map_err(stop)?;
        let layout = slot_state::look_at_layout(&mut llama, model, config.block_size_tokens).ok();
        let rejected_max = if rewinds(model) { u32::MAX } else { llama.rolls_back_max() };
        let (n_slots, figures) = (config.n_slots, Figures { n_slots: config.n_slots, ..Figures::default() });
        let mut bench = Self {
            model,
            llama,
            n_slots,
            n_cached,
            rewinds: rewinds(model),
            splits: rewinds(model) && !config.uses_unified_kv(),
            drafted_max: config.speculation.map_or(0, |_| rejected_max),
            rounds_suffixes: rewinds(model) && config.uses_flash_attn() && config.ubatch_tokens >= TILE_TOKENS,
            tile_ms: 0.0,
            layout,
            limit,
            other_work: OtherWork::new(config.n_threads()),
            figures,
        };
        bench.fill()?;
        bench.figures.cached_tokens = bench.n_cached;
        Ok(bench)
    }

    fn slots(&self) -> impl Iterator<Item = SlotId> + use<> {
        (0..self.n_slots).map(SlotId)
    }

    /// Gives every slot a cached state.
    fn fill(&mut self) -> Result<(), Stop> {
        let n_bytes = match &self.layout {
            Some(layout) if layout.sections() == Sections::AttentionOnly => {
                let n_tokens = layout.block_tokens();
                let mut payload = vec![0; layout.payload_bytes(n_tokens)];
                self.llama.decode_any(self.model, SlotId(0), n_tokens)?;
                let export = layout.parse(self.llama.export(SlotId(0))?)?;
                export.cut(0..n_tokens, &mut payload)?;
                self.llama.clear(SlotId(0));
                let piece = PayloadPart { payload: &payload, n_tokens };
                let pieces = vec![piece; (self.n_cached / n_tokens) as usize];
                let frame = slot_state::frame(&self.llama, SlotId(0));
                let n_written = layout.assemble(frame, &pieces, None, |n_bytes| self.llama.room(n_bytes));
                n_written?
            }
            _ => {
                self.n_cached = self.n_cached.min(CACHED_TOKENS_MIN);
                self.llama.decode_any(self.model, SlotId(0), self.n_cached)?;
                self.llama.export(SlotId(0))?.len()
            }
        };
        for slot in self.slots() {
            self.llama.import_written(slot, n_bytes, self.n_cached)?;
        }
        Ok(())
    }

    fn measure(&mut self) -> Result<(), Stop> {
        self.other_work.start();
        self.figures.decode_one_ms = Some(self.decode_ms(1)?);
        self.check()?;
        self.shorten_slots();
        self.figures.decode_all_ms = Some(self.decode_ms(self.n_slots)?);
        self.check()?;
        let suffix_ms = self.best_ms(&[Share { slot: SlotId(0), n_tokens: SUFFIX_TOKENS }])?;
        self.figures.suffix_ms = Some(suffix_ms);
        self.check_undisturbed()?;
        if self.rounds_suffixes {
            self.tile_ms = self.best_ms(&[Share { slot: SlotId(0), n_tokens: TILE_TOKENS }])?;
            self.figures.suffix_ms = Some(suffix_ms.min(self.tile_ms));
        }
        self.check()?;
        self.measure_runs()?;
        self.measure_drafts()?;
        self.measure_cold()?;
        self.measure_shallow_drafts()?;
        self.check()
    }

    /// Cuts slots back to lengths from all to half of the cached tokens, if that is possible.
    ///
    /// Conversations differ in length. In a step without flash attention each slot costs as much as the longest one.
    fn shorten_slots(&mut self) {
        for slot in self.slots().skip(1).filter(|_| self.rewinds) {
            let n_less = self.n_cached / 2 * u32::from(slot.0) / u32::from(self.n_slots - 1);
            // A sliding window cannot be cut back so far.
            let _is_cut = self.llama.rewind(slot, self.n_cached - n_less);
        }
    }

    /// Measures a part of a new prompt; leaves the last slot empty.
    ///
    /// The time of attention grows with the number of earlier tokens. So the part is in the middle of the prompt, if
    /// cells can be removed, because its time is the mean of all parts.
    fn measure_cold(&mut self) -> Result<(), Stop> {
        let last = SlotId(self.n_slots - 1);
        let n_before = (PROMPT_TOKENS as u32 / 2).min(self.n_cached);
        let is_in_middle = self.rewinds && self.llama.rewind(last, n_before);
        if !is_in_middle {
            self.llama.clear(last);
        }
        let (_, ubatch_tokens) = self.llama.batch_limits();
        let mut n_tokens = COLD_TOKENS.min(ubatch_tokens);
        let ms = self.step_ms(&[Share { slot: last, n_tokens }], Outputs::Last)?;
        (self.figures.cold_tokens, self.figures.cold_ms) = (n_tokens, Some(ms));
        if is_in_middle && ms < SHORT_COLD_MS {
            if self.figures.cost_ms() > COLD_SLACK * self.limit.cost_ms {
                return Err(Stop::Behind);
            }
            if self.n_cached + ROOM_TOKENS - n_before >= ubatch_tokens {
                n_tokens = ubatch_tokens;
            }
            let ms = self.best_ms(&[Share { slot: last, n_tokens }])?;
            (self.figures.cold_tokens, self.figures.cold_ms) = (n_tokens, Some(ms));
        }
        self.llama.clear(last);
        Ok(())
    }

    /// Measures the time in which several slots decode together, for numbers that double each time.
    fn measure_runs(&mut self) -> Result<(), Stop> {
        let mut n = 2;
        while self.splits && n < self.n_slots {
            let ms = self.decode_ms(n)?;
            self.figures.decode_some_ms.insert(n, ms);
            self.check_undisturbed()?;
            n *= 2;
        }
        Ok(())
    }

    /// Measures steps with drafts of one slot.
    fn measure_drafts(&mut self) -> Result<(), Stop> {
        for n in self.draft_steps(&DRAFT_TOKENS) {
            let ms = self.best_of(&[Share { slot: SlotId(0), n_tokens: n }], Outputs::All)?;
            self.figures.draft_ms.insert(n, ms);
            self.check_undisturbed()?;
        }
        Ok(())
    }

    /// Returns those of `steps`, numbers of tokens, that a step with a draft can have.
    fn draft_steps(&self, steps: &[u32]) -> Vec<u32> {
        let step_max = if self.drafted_max == 0 { 0 } else { self.drafted_max.saturating_add(1) };
        steps.iter().copied().filter(|n| *n <= step_max).collect()
    }

    /// Measures steps with drafts of the last slot, which is empty before and after it.
    fn measure_shallow_drafts(&mut self) -> Result<(), Stop> {
        let last = SlotId(self.n_slots - 1);
        if self.drafted_max > 0 {
            self.llama.decode_any(self.model, last, SHALLOW_TOKENS)?;
            for n in self.draft_steps(&SHALLOW_DRAFT_TOKENS) {
                let ms = self.best_of(&[Share { slot: last, n_tokens: n }], Outputs::All)?;
                self.figures.shallow_ms.insert(n, ms);
                self.check_undisturbed()?;
            }
            self.llama.clear(last);
        }
        Ok(())
    }

    /// Returns an error if measuring should stop.
    fn check(&mut self) -> Result<(), Stop> {
        self.check_undisturbed()?;
        if self.figures.cost_ms() > self.limit.cost_ms { Err(Stop::Behind) } else { Ok(()) }
    }

    fn check_undisturbed(&mut self) -> Result<(), Stop> {
        if (self.limit.is_needed)() || self.other_work.is_seen() { Err(Stop::Disturbed) } else { Ok(()) }
    }

    /// Measures the cost of moving state; the last slot is empty at this point.
    fn costs(&mut self) -> Result<StateCosts, Stop> {
        let first = SlotId(0);
        if self.n_slots == 1 {
            self.fill()?;
        }
        let mut costs = StateCosts::default();
        if self.rounds_suffixes {
            costs.suffix_rounding =
                rounding(self.best_ms(&[Share { slot: first, n_tokens: SHORT_TOKENS }])?, self.tile_ms);
        }
        let n_tokens = f64::from(self.n_cached);
        (costs.export_ms_per_token, costs.import_ms_per_token) = self.transfer_ms()?;
        costs.export_ms_per_token /= n_tokens;
        costs.import_ms_per_token /= n_tokens;
        if self.n_slots > 1 {
            let began = Instant::now();
            let n_held = self.llama.n_held(first);
            self.llama.copy_prefix(first, SlotId(self.n_slots - 1), n_held)?;
            costs.copy_ms_per_token = ms(began) / n_tokens;
            let n_idle_cells = f64::from(self.n_slots - 1) * n_tokens;
            for slot in self.slots().skip(1) {
                self.llama.clear(slot);
            }
            let alone_ms = self.decode_ms(1)?;
            let beside_ms = self.figures.decode_one_ms.unwrap_or(alone_ms);
            costs.idle_cell_ms = (beside_ms - alone_ms).max(0.0) / n_idle_cells;
        }
        Ok(costs)
    }

    /// Exports and imports the first slot's state and returns the time of each. The buffers were touched before, like
    /// those of a worker whose store is full.
    fn transfer_ms(&mut self) -> Result<(f64, f64), Stop> {
        let slot = SlotId(0);
        let n_held = self.llama.n_held(slot);
        let whole_state = self.llama.export(slot)?.to_vec();
        let (mut best, mut payload) = ((f64::MAX, f64::MAX), Vec::new());
        for _ in 0..N_TRANSFERS {
            let took = self.transfer_once_ms(slot, n_held, &mut payload)?;
            best = (best.0.min(took.0), best.1.min(took.1));
            // The partial state belongs to another position, so this state is only used for timing.
            self.llama.import(slot, &whole_state, n_held)?;
        }
        Ok(best)
    }

    fn transfer_once_ms(&mut self, slot: SlotId, n_held: u32, payload: &mut Vec<u8>) -> Result<(f64, f64), Stop> {
        let began = Instant::now();
        let Some(layout) = &self.layout else {
            let n_bytes = self.llama.export(slot)?.len();
            let export_ms = ms(began);
            let began = Instant::now();
            self.llama.import_written(slot, n_bytes, n_held)?;
            return Ok((export_ms, ms(began)));
        };
        let export = layout.parse(self.llama.export(slot)?)?;
        let n_whole = export.n_tokens() / layout.block_tokens() * layout.block_tokens();
        payload.resize(layout.payload_bytes(n_whole), 0);
        export.cut(0..n_whole, payload)?;
        let partial = export.partial();
        let export_ms = ms(began);
        let began = Instant::now();
        let piece = [PayloadPart { payload, n_tokens: n_whole }];
        let pieces = if layout.sections() == Sections::PartialOnly { &[][..] } else { &piece };
        let partial = Some(&partial[..]).filter(|_| layout.sections() != Sections::AttentionOnly);
        let n_tokens = if pieces.is_empty() { n_held } else { n_whole };
        let frame = slot_state::frame(&self.llama, slot);
        let n_written = layout.assemble(frame, pieces, partial, |n_bytes| self.llama.room(n_bytes));
        self.llama.import_written(slot, n_written?, n_tokens)?;
        Ok((export_ms, ms(began)))
    }

    /// Returns the time in which the first `n` slots decode together.
    fn decode_ms(&mut self, n: u16) -> Result<f64, Stop> {
        let shares: Vec<_> = self.slots().take(usize::from(n)).map(|slot| Share { slot, n_tokens: 1 }).collect();
        self.best_ms(&shares)
    }

    /// Returns the time of the fastest run of a step. There are at least two runs, and more until the two fastest agree
    /// or the time is over. It ends after the first run that shows that the machine is busy.
    fn best_ms(&mut self, shares: &[Share]) -> Result<f64, Stop> {
        self.best_of(shares, Outputs::Last)
    }

    fn best_of(&mut self, shares: &[Share], outputs: Outputs) -> Result<f64, Stop> {
        let (mut best, mut second) = (f64::MAX, f64::MAX);
        for n_runs in 1..=N_RUNS_MAX {
            let took_ms = self.step_ms(shares, outputs)?;
            // On a busy machine a step can take seconds, so this does not wait for the last run.
            self.check_undisturbed()?;
            (best, second) = (best.min(took_ms), second.min(took_ms.max(best)));
            let is_over = second <= best * (1.0 + SPREAD_MAX) || Instant::now() >= self.limit.until;
            if is_over && (n_runs > 1 || Instant::now() >= self.limit.until) {
                break;
            }
        }
        Ok(best)
    }

    /// Decodes this many tokens after those of each slot, removes them again if possible, and returns the time of the
    /// step.
    fn step_ms(&mut self, shares: &[Share], outputs: Outputs) -> Result<f64, Stop> {
        let lengths: Vec<u32> = shares.iter().map(|share| self.llama.n_held(share.slot)).collect();
        self.llama.reset_batch();
        let mut idx = 0;
        let (_, ubatch_tokens) = self.llama.batch_limits();
        for (share, &start) in shares.iter().zip(&lengths) {
            let n_tokens = share.n_tokens.min(ubatch_tokens);
            for position in start..start + n_tokens {
                let is_wanted = outputs == Outputs::All || position + 1 == start + n_tokens;
                let logits = if is_wanted { Logits::Wanted } else { Logits::Unwanted };
                idx = self.llama.push(share.slot, position, 1, logits);
            }
        }
        let began = Instant::now();
        let result = self.llama.decode();
        if result.is_ok() {
            // Reading the logits waits for a GPU.
            black_box(self.llama.logits(idx).first());
        }
        let took_ms = ms(began);
        self.llama.reset_batch();
        result.map_err(|error| Stop::Failed(error.to_string()))?;
        for (share, &n_keep) in shares.iter().zip(&lengths) {
            if self.rewinds && n_keep > 0 && !self.llama.rewind(share.slot, n_keep) {
                return Err(Stop::Failed("a slot could not be cut back".to_owned()));
            }
        }
        Ok(took_ms)
    }
}

/// Returns the time since `began`, rounded to microseconds. Units: milliseconds.
fn ms(began: Instant) -> f64 {
    (began.elapsed().as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warmpath_bench::model::Preset;

    use super::super::tests::config;
    use super::*;
    use crate::engine::llama::load;

    #[test]
    fn measuring_ends_with_the_first_run_that_shows_a_busy_machine() {
        let config = config(Preset::Tiny, None);
        let model = load(&config, Box::new(|_| true)).expect("a model");
        let until = Instant::now() + Duration::from_secs(60);
        let limit = Limit { cost_ms: f64::MAX, until, is_needed: &|| false };
        let Ok(mut bench) = MeasuredContext::open(&model, &config, limit) else { panic!("no context") };
        // As if other programs had taken processors for a second: any wait is more than these threads may have.
        let began = Instant::now().checked_sub(Duration::from_secs(1)).expect("the machine runs for a second");
        bench.other_work = OtherWork::seen_since(began);
        assert!(matches!(bench.decode_ms(1), Err(Stop::Disturbed)));
    }

    #[test]
    fn measuring_ends_with_the_first_run_after_a_request_has_come() {
        let config = config(Preset::Tiny, None);
        let model = load(&config, Box::new(|_| true)).expect("a model");
        let n_asked = std::cell::Cell::new(0);
        let is_needed = || n_asked.replace(n_asked.get() + 1) == 3;
        let until = Instant::now() + Duration::from_secs(60);
        let tried = measure(&model, &config, Limit { cost_ms: f64::MAX, until, is_needed: &is_needed });
        assert_eq!(tried.outcome, MeasureOutcome::Disturbed);
        assert_eq!(n_asked.get(), 4);
    }
}
