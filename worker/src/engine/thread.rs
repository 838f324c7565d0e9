//! The engine thread: its start, its loop and its end.
//!
//! Model and context live on the thread's stack, and no other thread accesses the context. The thread sleeps while a
//! step would do nothing; otherwise it reads its commands between two steps. A command or a known time ends a wait: the
//! disk, readers, the encoder and other workers send a wake. Not here: a step (`step`).

use std::cell::OnceCell;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use llama_cpp_2::model::LlamaModel;
use tokio::sync::{mpsc, watch};
use tracing::error;
use warmpath_common::lora::AdapterInfo;
use warmpath_gguf::GgufError;
use warmpath_shell::log::timed;
use warmpath_worker_core::reports::summary_writer::EngineUpdate;

use super::api::cache::INQUIRIES_MAX;
use super::api::facts::EngineFacts;
use super::api::{EngineError, EngineEvent, Waker};
use super::config::{EngineConfig, PrefixCache, StartError};
use super::handle::commands::{EngineCommand, WaitingQuery};
use super::handle::view::EngineView;
use super::handle::{EngineHandle, EngineShared};
use super::kv::contents::NamedPins;
use super::kv::receiving::IncomingTransfers;
use super::kv::saved_slot::SlotExports;
use super::kv::sending::{OutgoingRuns, SENDS_MAX};
use super::llama::adapters::Adapters;
use super::llama::{self, Llama, Probed, Progress, RopeFactors};
use super::media::Projector;
use super::output::draft_model::DraftModel;
use super::publish::EnginePublisher;
use super::publish::arrival_announcer::ArrivalAnnouncer;
use super::publish::summary_events::UpdateSender;
use super::self_test::{self, DecidedSettings, Retry};
use super::sequence::places::Places;
use super::setup::{self, Setup};
use super::step::EngineState;

/// Stack size of the thread. Source: the size of a program's main thread on Linux, on which llama-server decodes.
const STACK_BYTES: usize = 8 << 20;

/// Maximum number of queued commands other than submissions, queries and runs to send.
///
/// Source: two drains, a prefetch, a repeated self-test, and four wakes: one, and one for each thread that sends a wake
/// while the engine thread takes the one before.
const CONTROL_COMMANDS_MAX: usize = 8;

/// Time limit for writing state to disk when the worker ends, after the time for running responses.
///
/// Source: a pod has 30 s by default between the first signal and the kill, of which draining may take 25.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(4);

/// Result of the thread's start.
struct Ready {
    model: Arc<LlamaModel>,
    projector: Option<Arc<Projector>>,
    facts: EngineFacts,
    retry: Option<Retry>,
}

/// The thread's own ends of its channels.
struct EngineEnds {
    commands: Receiver<EngineCommand>,
    updates: mpsc::UnboundedSender<EngineUpdate>,
    view: Arc<EngineView>,
    /// Waker of the thread, for the threads that it starts.
    waker: Waker,
    /// Closes when the thread ends.
    _running: watch::Sender<()>,
}

/// Starts the thread and waits until it is ready.
pub(super) fn start(
    config: EngineConfig,
    progress: Progress,
    updates: mpsc::UnboundedSender<EngineUpdate>,
) -> Result<EngineHandle, StartError> {
    let config = llama::offload::with_devices(config)?;
    config.validate()?;
    let n_places = config.queue_max.saturating_add(usize::from(config.n_slots));
    let (queue_max, block_hasher, speculation) = (config.queue_max, config.block_hasher, config.speculation);
    // The queue has room for all commands, so sending one never waits for the thread.
    let (commands, inbox) = sync_channel(n_places.saturating_add(INQUIRIES_MAX + SENDS_MAX + CONTROL_COMMANDS_MAX));
    let (running, stopped) = watch::channel(());
    let view = Arc::new(EngineView::default());
    let keeps_prefixes = config.prefix_cache != PrefixCache::Disabled;
    let announcer = ArrivalAnnouncer::new(&updates);
    let to_wake = commands.clone();
    // A full queue means that the thread takes a command soon, and looks for changes after it.
    let waker = Waker::new(move || drop(to_wake.try_send(EngineCommand::Wake)));
    let inside =
        EngineEnds { commands: inbox, updates, view: Arc::clone(&view), waker: waker.clone(), _running: running };
    let (ready, started) = sync_channel(1);
    let builder = std::thread::Builder::new().name("engine".to_owned()).stack_size(STACK_BYTES);
    let thread = builder
        .spawn(move || run(&config, progress, inside, &ready))
        .map_err(|error| StartError::Thread { reason: error.to_string() })?;
    let panic_error = |_| StartError::Thread { reason: "it panicked".to_owned() };
    let Ready { model, projector, facts, retry } = started.recv().map_err(panic_error)??;
    let engine = EngineHandle::new(EngineShared {
        tenants: Mutex::default(),
        announcer: if keeps_prefixes && facts.memory.rewinds_anywhere() { announcer.filling() } else { announcer },
        speculation: speculation.filter(|_| facts.drafted_max > 0),
        facts,
        queue_max,
        block_hasher,
        model,
        projector,
        compiler: OnceLock::new(),
        commands,
        waker,
        places: Arc::new(Places::new(n_places)),
        inquiries: Arc::new(Places::new(INQUIRIES_MAX)),
        sends: Arc::new(Places::new(SENDS_MAX)),
        view,
        stopped,
        threads: Mutex::new(vec![thread]),
    });
    if let Some(thread) = retry.and_then(|retry| retry.spawn(engine.weak())) {
        engine.add_thread(thread);
    }
    Ok(engine)
}

fn run(config: &EngineConfig, progress: Progress, inside: EngineEnds, ready: &SyncSender<Result<Ready, StartError>>) {
    let load_result = timed("loading the model", || llama::load(config, progress)).and_then(|mut model| {
        let adapters = Adapters::load(&mut model, &config.adapters)?;
        Ok((Arc::new(model), adapters))
    });
    let (model, adapters) = match load_result {
        Ok(model_and_adapters) => model_and_adapters,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let draft_model = OnceCell::new();
    let (adapters, infos) = adapters;
    let preparation = prepare(&model, &draft_model, adapters, infos, config, &inside);
    let Prepared { mut engine, facts, config, retry } = match preparation {
        Ok(preparation) => preparation,
        Err(error) => return drop(ready.send(Err(error))),
    };
    // Callers may read the slots as soon as the engine is ready.
    engine.publish();
    let projector = engine.schedule.projector();
    if ready.send(Ok(Ready { model: Arc::clone(&model), projector, facts, retry })).is_ok() {
        let EngineEnds { commands, waker, .. } = &inside;
        EngineLoop { engine, config, commands, waker, deadline: None, idle_since: None, deferred: Vec::new() }.run();
    }
}

/// An engine that can run.
struct Prepared<'m> {
    engine: EngineState<'m>,
    facts: EngineFacts,
    /// The configuration with everything decided.
    config: EngineConfig,
    retry: Option<Retry>,
}

fn prepare<'m>(
    shared_model: &'m Arc<LlamaModel>,
    draft_model: &'m OnceCell<LlamaModel>,
    adapters: Adapters,
    infos: Vec<AdapterInfo>,
    config: &EngineConfig,
    inside: &EngineEnds,
) -> Result<Prepared<'m>, StartError> {
    // The self-test chooses attention and buffer before the one context with all memory is made.
    let model: &'m LlamaModel = shared_model;
    let refuse = |error: GgufError| StartError::Model { path: config.model.clone(), reason: error.to_string() };
    let files = warmpath_gguf::Model::open(&config.model).map_err(refuse)?;
    let model_fingerprint = files.fingerprint().map_err(refuse)?;
    let rope_factors = RopeFactors::of(&files, config);
    let decision = timed("self-test", || self_test::decide(model, config, model_fingerprint));
    let DecidedSettings { config: decided_config, report, retry } = decision;
    let config = &decided_config;

    // What this context can do is probed, because llama.cpp does not say it: rewinding, media, shifts, drafts.
    let mut llama = timed("making the context", || Llama::open(model, config))?;
    let unsupported_error = |reason| StartError::Unsupported { path: config.model.clone(), reason };
    let memory = timed("probing the memory's kind", || llama.probe_memory(model)).map_err(unsupported_error)?;
    let counters = &inside.view.counters;
    let (_, ubatch_tokens) = llama.batch_limits();
    let open_encoder = || setup::encoder(shared_model, config, memory, ubatch_tokens, counters, &inside.waker);
    let encoder = timed("loading the projector", open_encoder)?;
    let reads_media = encoder.is_some();
    let probe = Probed { memory, reads_media, model_fingerprint, rope_factors, adapters: infos };
    let mut facts = llama.facts(model, config, probe);
    setup::check_shifts(config.shifts, &facts).map_err(unsupported_error)?;
    let open_draft_model = || DraftModel::open(draft_model, model, &mut llama, config, &facts);
    let draft_model = timed("loading the draft model", open_draft_model)?;

    // The parts are made for what is known now; measurements of a busy machine are not used.
    let calm = report.as_ref().filter(|report| report.is_calm());
    let setup = Setup { config, facts: &facts, report: calm, counters };
    let (cache, identity) = timed("opening the store", || setup.cache(model, &mut llama, &inside.waker))?;
    let exchange = setup::exchange(&cache, identity, &facts);
    let schedule = setup.scheduler(&llama, encoder);
    let generator = setup.generator(model, draft_model);
    let kv = setup.kv(llama.with_adapters(adapters).with_fewer_threads_where_busy(config), cache);
    facts.exchange = exchange;
    let engine = EngineState {
        schedule,
        generator,
        kv,
        transfers: IncomingTransfers::new(exchange),
        runs: OutgoingRuns::default(),
        exports: SlotExports::default(),
        pins: NamedPins::default(),
        publisher: EnginePublisher {
            report: UpdateSender::new(inside.updates.clone()),
            view: Arc::clone(&inside.view),
        },
        n_failed_decodes: 0,
        has_changed: true,
        stepped_at: Instant::now(),
    };
    inside.view.self_test.store(report.map(Arc::new));
    Ok(Prepared { engine, facts, config: decided_config, retry })
}

/// The thread's loop.
struct EngineLoop<'a, 'm> {
    engine: EngineState<'m>,
    config: EngineConfig,
    commands: &'a Receiver<EngineCommand>,
    waker: &'a Waker,
    /// Time at which running sequences are ended; `None` unless draining.
    deadline: Option<Instant>,
    /// Time since which no command has arrived and no sequence runs.
    idle_since: Option<Instant>,
    /// Queries that wait for a slot to become idle, at most [`INQUIRIES_MAX`].
    deferred: Vec<WaitingQuery>,
}

impl EngineLoop<'_, '_> {
    fn run(&mut self) {
        while self.take_commands() {
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
            self.answer_deferred();
            self.engine.step();
            if self.engine.is_broken() {
                error!("llama.cpp fails every batch; the worker ends, and a new process may compute again");
                break;
            }
        }
        let end = if self.engine.is_broken() { EngineError::Stopped } else { EngineError::Draining };
        self.engine.refuse_waiting(&end);
        self.engine.fail_running(&end);
        self.engine.step();
        self.engine.kv.save_all(self.deadline.unwrap_or_else(Instant::now) + LEAVE_TIMEOUT);
    }

    /// Waits for a command if a step would do nothing, executes all queued commands, and returns whether to continue.
    fn take_commands(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        if self.engine.is_settled() {
            self.wait();
        }
        while let Ok(command) = self.commands.try_recv() {
            self.execute(command);
        }
        // The step that follows looks at everything that other threads may have changed.
        self.waker.clear();
        true
    }

    /// Returns whether nothing runs or waits, and nothing will: the worker drains and hands no state over, or the last
    /// handle was dropped.
    fn is_over(&self) -> bool {
        let view = &self.engine.publisher.view;
        let has_drained =
            self.deadline.is_some() && self.deferred.is_empty() && !view.hands_over.load(Ordering::Acquire);
        self.engine.is_idle() && (has_drained || view.is_closed.load(Ordering::Acquire))
    }

    /// Sleeps until a command arrives, which it executes, or until something is due, which the next step does.
    ///
    /// It makes a background export itself once that is due, because steps never export idle slots.
    fn wait(&mut self) {
        let is_idle = self.engine.is_idle();
        let background = is_idle.then(|| self.background_due()).flatten();
        let next_due = self.engine.due().into_iter().chain(background).chain(self.deadline).min();
        let command = match next_due {
            None => self.commands.recv().ok(),
            Some(next_due) => self.commands.recv_timeout(next_due.saturating_duration_since(Instant::now())).ok(),
        };
        match command {
            Some(command) => {
                self.execute(command);
                if is_idle {
                    self.gather();
                }
            }
            None if background.is_some_and(|background| background <= Instant::now()) => {
                self.engine.kv.export_in_background();
            }
            None => {}
        }
    }

    /// Returns the time at which the engine exports an idle slot; `None` if no slot needs it.
    fn background_due(&mut self) -> Option<Instant> {
        let idle_since = *self.idle_since.get_or_insert_with(Instant::now);
        Some(Instant::now() + self.engine.kv.background_due_in(idle_since)?)
    }

    /// Waits briefly for announced requests when the first submission arrives.
    ///
    /// Otherwise the first of several simultaneous requests would have a step of its own, and the others would wait for
    /// that step. A request that is cancelled wakes the thread.
    fn gather(&mut self) {
        let deadline = Instant::now() + self.engine.schedule.gather_max();
        while self.engine.publisher.view.n_coming.load(Ordering::Acquire) > 0 {
            let Ok(command) = self.commands.recv_timeout(deadline.saturating_duration_since(Instant::now())) else {
                return;
            };
            self.execute(command);
        }
    }

    /// Executes deferred queries, in order, except those whose slot is still busy. It runs before idle slots are
    /// assigned to requests.
    fn answer_deferred(&mut self) {
        if self.deferred.is_empty() {
            return;
        }
        let busy = self.engine.schedule.running.slots();
        for query in std::mem::take(&mut self.deferred) {
            match query.wants_idle() {
                _ if query.is_abandoned() => {}
                Some(slot) if busy.contains(&slot) => self.deferred.push(query),
                _ => self.engine.answer(query),
            }
        }
    }

    fn execute(&mut self, command: EngineCommand) {
        // Frequent queries and other workers must not keep the engine from exporting idle slots.
        if !matches!(
            command,
            EngineCommand::Inquire(_)
                | EngineCommand::Send(_)
                | EngineCommand::Prefetch(_)
                | EngineCommand::SelfTested(_)
                | EngineCommand::Wake
        ) {
            self.idle_since = None;
        }
        match command {
            EngineCommand::Submit(admission) if self.deadline.is_some() => {
                admission.submission.events.send(EngineEvent::Failed(EngineError::Draining));
            }
            EngineCommand::Submit(admission) => self.engine.enqueue(*admission),
            EngineCommand::Inquire(query) => self.deferred.push(*query),
            EngineCommand::Send(sending) => self.engine.runs.add(*sending),
            EngineCommand::Prefetch(prefetch) if self.deadline.is_none() => self.engine.prefetch(*prefetch),
            EngineCommand::Prefetch(_) => {}
            // Further changes wake the thread again, also while it gathers requests.
            EngineCommand::Wake => self.waker.clear(),
            EngineCommand::SelfTested(report) => {
                setup::adopt(&mut self.engine, &self.config, &report);
                self.engine.publisher.view.self_test.store(Some(Arc::from(report)));
            }
            EngineCommand::Drain { deadline } => {
                self.engine.publisher.view.draining.store(true, Ordering::Release);
                self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
                self.engine.refuse_waiting(&EngineError::Draining);
            }
        }
    }
}
