//! Measuring again after a self-test on a busy machine, beside the running engine, without a restart.
//!
//! A thread measures while no request runs or comes, and stops at once when one does. It has a context of its own, so
//! the engine never waits for it. The engine then plans with the new measurements. Attention, buffers and types of the
//! running context stay; if others are faster, the next start uses them.

use std::sync::Weak;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use warmpath_shell::machine::available_bytes;

use super::result_file::{Remembered, ResultKey};
use super::{ContextSetting, SelfTestReport, expected, log_report, measure_and_keep};
use crate::engine::config::EngineConfig;
use crate::engine::handle::EngineShared;
use crate::engine::handle::commands::EngineCommand;
use crate::engine::handle::view::EngineView;

/// Time without a request before measuring. Source: a chat's next turn usually comes later.
const IDLE_MIN: Duration = Duration::from_secs(5);

/// Longest pause after an attempt without a result; it begins with [`IDLE_MIN`] and doubles. Source: an attempt on a
/// busy machine takes half a second.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Interval of looking for requests and for the engine's end. Source: a tenth of a second is not noticed by those who
/// stop a worker.
const LOOK: Duration = Duration::from_millis(100);

/// Free memory without which nothing is measured. Units: bytes. Source: twice the largest context that is measured.
const FREE_BYTES_MIN: u64 = 1 << 30;

/// A self-test to repeat.
pub(in crate::engine) struct Retry {
    /// Configuration with the settings that are compared.
    config: EngineConfig,
    /// Setting of the running context.
    running: ContextSetting,
    result_file: Remembered,
    key: ResultKey,
}

impl Retry {
    pub(super) fn new(
        config: &EngineConfig,
        decided_config: &EngineConfig,
        result_file: Remembered,
        key: ResultKey,
    ) -> Self {
        Self { config: config.clone(), running: expected(decided_config), result_file, key }
    }

    /// Starts the thread, which ends with a result, with the engine, or soon after it drains. If it cannot be started,
    /// the next start of the worker measures.
    pub(in crate::engine) fn spawn(self, engine: Weak<EngineShared>) -> Option<JoinHandle<()>> {
        let thread = std::thread::Builder::new().name("self-test".to_owned()).spawn(move || self.run(&engine));
        thread.inspect_err(|error| warn!(%error, "the self-test is not repeated")).ok()
    }

    fn run(self, engine: &Weak<EngineShared>) {
        let mut pause = IDLE_MIN;
        while wait_until_idle(engine, pause) {
            if let Some(report) = self.attempt(engine) {
                return self.conclude(report, engine);
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Measures; returns `None` if the machine is busy or needed, or the engine has ended.
    fn attempt(&self, engine: &Weak<EngineShared>) -> Option<SelfTestReport> {
        let (model, view) = engine.upgrade().map(|engine| (engine.model.clone(), engine.view.clone()))?;
        if available_bytes().is_some_and(|bytes| bytes < FREE_BYTES_MIN) {
            return None;
        }
        // Other workers of the machine may be measuring.
        let _turn = self.result_file.turn(Duration::ZERO);
        let is_needed = || !is_idle(&view) || engine.strong_count() == 0;
        let report = measure_and_keep(&model, &self.config, &self.result_file, &self.key, &is_needed);
        report.is_calm().then_some(report)
    }

    fn conclude(&self, report: SelfTestReport, engine: &Weak<EngineShared>) {
        log_report(&report);
        if report.setting != self.running {
            info!(setting = ?report.setting, "another setting is faster on the calm machine; the next start uses it");
        }
        let Some(report) = report.of_setting(self.running) else { return };
        if let Some(engine) = engine.upgrade() {
            let _ = engine.commands.try_send(EngineCommand::SelfTested(Box::new(report)));
        }
    }
}

/// Waits until no request has run or come for `pause`; returns whether the engine still runs.
fn wait_until_idle(engine: &Weak<EngineShared>, pause: Duration) -> bool {
    let mut idle_since = Instant::now();
    loop {
        std::thread::sleep(LOOK);
        let Some(engine) = engine.upgrade() else { return false };
        if engine.view.draining.load(Acquire) {
            return false;
        }
        if !is_idle(&engine.view) {
            idle_since = Instant::now();
        } else if idle_since.elapsed() >= pause {
            return true;
        }
    }
}

fn is_idle(view: &EngineView) -> bool {
    let counters = &view.counters;
    view.n_coming.load(Acquire) == 0
        && counters.busy_slots.load(Relaxed) == 0
        && counters.queued.load(Relaxed) == 0
        && !view.draining.load(Acquire)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::sync::mpsc;
    use warmpath_bench::model::Preset;
    use warmpath_common::block_hash::ChainRoot;
    use warmpath_common::ids::{RequestId, Token};
    use warmpath_common::model::Fingerprint;

    use super::super::measurements::Figures;
    use super::super::{FiguresOrigin, MeasureOutcome, TriedSetting, tests::config, with};
    use super::*;
    use crate::engine::config::SelfTest;
    use crate::engine::config::speculation::SpeculationConfig;
    use crate::engine::{
        Engine, EngineEvent, EngineHandle, EventReceiver, Generation, Sampling, ShiftOptions, Submission, events,
    };

    /// Returns a report by which each slot is computed by itself and drafts cost next to nothing.
    fn report(setting: ContextSetting, n_slots: u16) -> SelfTestReport {
        let figures = Figures {
            decode_one_ms: Some(1.0),
            decode_all_ms: Some(100.0),
            decode_some_ms: BTreeMap::from([(2, 50.0)]),
            draft_ms: BTreeMap::from([(2, 1.0), (4, 1.0), (8, 1.0), (16, 1.0), (32, 1.0)]),
            n_slots,
            ..Figures::default()
        };
        let outcome = MeasureOutcome::Whole;
        let candidates = vec![TriedSetting { setting, figures, cost_ms: 1.0, outcome, costs: None }];
        SelfTestReport { setting, origin: FiguresOrigin::Measured, took_s: 0.1, candidates, costs: None }
    }

    fn ask(engine: &EngineHandle, slot: u32) -> EventReceiver {
        let (sender, receiver) = events();
        let submission = Submission {
            request_id: RequestId::new("test").unwrap(),
            // The text repeats itself, so that it is drafted.
            prompt: (0..60).map(|n| 5 + slot + n % 7).collect(),
            past: Vec::new(),
            past_end: None,
            chain_root: ChainRoot { model_fingerprint: &[7; 32], lora: &[], cache_salt: &[] }.hash(),
            tenant: None,
            adapter: None,
            generation: Generation {
                max_tokens: Some(40),
                ignore_eos: true,
                sampling: Sampling { temperature: 0.0, ..Sampling::default() },
                ..Generation::default()
            },
            cache_prompt: false,
            shifts: ShiftOptions::default(),
            wanted_slot: None,
            expected_tokens: 0,
            breakpoints: Vec::new(),
            priority: 0,
            peer: None,
            runs: Vec::new(),
            events: sender,
        };
        engine.submit(submission).unwrap();
        receiver
    }

    async fn next(receiver: &mut EventReceiver) -> Option<Token> {
        loop {
            match receiver.recv().await? {
                EngineEvent::Text { token, .. } => return Some(token),
                EngineEvent::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
    }

    /// Returns the answers of four requests at once; `midway` runs after their first tokens.
    async fn answers(engine: &EngineHandle, midway: impl FnOnce()) -> Vec<Vec<Token>> {
        let mut receivers: Vec<_> = (0..4).map(|slot| ask(engine, slot)).collect();
        let mut answers = Vec::new();
        for receiver in &mut receivers {
            answers.push(vec![next(receiver).await.unwrap()]);
        }
        midway();
        for (receiver, answer) in receivers.iter_mut().zip(&mut answers) {
            while let Some(token) = next(receiver).await {
                answer.push(token);
            }
        }
        answers
    }

    #[tokio::test]
    async fn a_running_engine_plans_with_later_measurements_and_answers_the_same() {
        let config = EngineConfig {
            n_slots: 4,
            self_test: SelfTest::Skip,
            speculation: Some(SpeculationConfig::default()),
            ..config(Preset::Tiny, None)
        };
        let start = || Engine::start(config.clone(), |_| true, mpsc::unbounded_channel().0).unwrap();
        let engine = start();
        let reference = answers(&engine, || {}).await;
        assert_eq!(engine.self_test(), None);
        let key = ResultKey::of(Fingerprint([7; 32]), &config);
        let decided = with(&config, expected(&config));
        let running = expected(&decided);
        let retry = || Retry::new(&config, &decided, Remembered::new(None), key.clone());
        let conclude = |report| retry().conclude(report, &engine.weak());
        assert_eq!(answers(&engine, || conclude(report(running, 4))).await, reference);
        let adopted = engine.self_test().expect("the engine has taken the measurements");
        assert_eq!(*adopted, report(running, 4));
        assert_eq!(answers(&engine, || {}).await, reference);
        // Measurements of another setting are not those of the running context.
        conclude(report(ContextSetting { flash_attn: !running.flash_attn, ..running }, 4));
        assert_eq!(answers(&engine, || {}).await, reference);
        assert_eq!(engine.self_test(), Some(adopted));
    }

    #[tokio::test]
    async fn nothing_is_measured_while_a_request_comes_or_after_the_engine_has_ended() {
        let config = EngineConfig { self_test: SelfTest::Skip, ..config(Preset::Tiny, None) };
        let engine = Engine::start(config.clone(), |_| true, mpsc::unbounded_channel().0).unwrap();
        let key = ResultKey::of(Fingerprint([7; 32]), &config);
        let retry = || Retry::new(&config, &config, Remembered::new(None), key.clone());
        let coming = engine.announce();
        assert!(!is_idle(&engine.shared.view));
        assert_eq!(retry().attempt(&engine.weak()), None);
        drop(coming);
        assert!(is_idle(&engine.shared.view) && wait_until_idle(&engine.weak(), LOOK));
        let thread = retry().spawn(engine.weak()).expect("a thread");
        engine.add_thread(thread);
        engine.drain(Duration::from_secs(60), std::future::ready(())).await;
        assert_eq!(engine.shared.threads.lock().unwrap().len(), 0, "the drain has joined all threads");
        assert!(!wait_until_idle(&engine.weak(), LOOK));
        let weak = engine.weak();
        drop(engine);
        assert!(!wait_until_idle(&weak, LOOK));
        assert_eq!(retry().attempt(&weak), None);
    }
}
