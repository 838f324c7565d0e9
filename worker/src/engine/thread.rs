//! The engine thread: its start, its loop and its end.
//!
//! Not here: what a step does (`step`).
//! The idea: model and context live on the thread's stack and nobody else touches the context. The thread sleeps while
//! nothing runs and there is nothing to tell; while something runs it looks at its commands between two steps.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use llama_cpp_2::model::LlamaModel;
use tokio::sync::{mpsc, watch};
use warmpath_worker_core::batch_plan::Room;
use warmpath_worker_core::rates::Averages;
use warmpath_worker_core::slot_table::SlotTable;

use super::config::{EngineConfig, EngineFacts, StartError};
use super::handle::{Command, EngineHandle, Places, Shared, View};
use super::llama::{self, Llama, Progress};
use super::messages::{EngineError, EngineUpdate, Event};
use super::report::Report;
use super::step::Stepper;

/// Is the thread's stack. Source: llama.cpp's grammar matching recurses per character of a token's text.
const STACK_BYTES: usize = 16 << 20;

/// Is the commands beyond submissions that can wait: a drain, and one more from an impatient operator.
const CONTROL_COMMANDS_MAX: usize = 2;

/// Is what the thread hands back once it is ready.
struct Ready {
    model: Arc<LlamaModel>,
    facts: EngineFacts,
}

/// Is the ends of the thread's channels that it keeps.
struct Inside {
    commands: Receiver<Command>,
    updates: mpsc::UnboundedSender<EngineUpdate>,
    view: Arc<View>,
    /// Closes when the thread ends.
    _running: watch::Sender<()>,
}

/// Starts the thread and waits until it is ready.
pub(super) fn start(
    config: EngineConfig,
    progress: Progress,
    updates: mpsc::UnboundedSender<EngineUpdate>,
) -> Result<EngineHandle, StartError> {
    config.validate()?;
    let n_places = config.queue_max.saturating_add(usize::from(config.n_slots));
    let queue_max = config.queue_max;
    let (commands, inbox) = sync_channel(n_places.saturating_add(CONTROL_COMMANDS_MAX));
    let (running, stopped) = watch::channel(());
    let view = Arc::new(View::default());
    let inside = Inside { commands: inbox, updates, view: Arc::clone(&view), _running: running };
    let (ready, started) = sync_channel(1);
    let builder = std::thread::Builder::new().name("engine".to_owned()).stack_size(STACK_BYTES);
    let thread = builder
        .spawn(move || run(&config, progress, inside, &ready))
        .map_err(|error| StartError::Thread { reason: error.to_string() })?;
    let ended = |_| StartError::Thread { reason: "it panicked".to_owned() };
    let Ready { model, facts } = started.recv().map_err(ended)??;
    Ok(EngineHandle::new(Shared {
        facts,
        queue_max,
        model,
        commands,
        places: Arc::new(Places::new(n_places)),
        view,
        stopped,
        thread: Mutex::new(Some(thread)),
    }))
}

fn run(config: &EngineConfig, progress: Progress, inside: Inside, ready: &SyncSender<Result<Ready, StartError>>) {
    let model = match llama::load(config, progress) {
        Ok(model) => Arc::new(model),
        Err(error) => return drop(ready.send(Err(error))),
    };
    let (stepper, facts) = match prepare(&model, config, &inside) {
        Ok(prepared) => prepared,
        Err(error) => return drop(ready.send(Err(error))),
    };
    if ready.send(Ok(Ready { model: Arc::clone(&model), facts })).is_ok() {
        Loop { stepper, commands: &inside.commands, deadline: None }.run();
    }
}

fn prepare<'m>(
    model: &'m LlamaModel,
    config: &EngineConfig,
    inside: &Inside,
) -> Result<(Stepper<'m>, EngineFacts), StartError> {
    let context = llama::context(model, config)?;
    let mut llama = Llama::new(context);
    let unsupported = |reason| StartError::Unsupported { path: config.model.clone(), reason };
    let memory = llama.probe_memory(model).map_err(unsupported)?;
    let facts = llama.facts(model, config, memory);
    let (batch_tokens, ubatch_tokens) = llama.batch_limits();
    let stepper = Stepper {
        model,
        llama,
        table: SlotTable::new(config.n_slots, facts.context_tokens, config.block_size_tokens, memory),
        room: Room { batch_tokens, ubatch_tokens },
        context_tokens: facts.context_tokens,
        prefix_cache: config.prefix_cache,
        report: Report::new(inside.updates.clone()),
        view: Arc::clone(&inside.view),
        waiting: VecDeque::new(),
        running: (0..config.n_slots).map(|_| None).collect(),
        averages: Averages::default(),
        n_started: 0,
    };
    Ok((stepper, facts))
}

/// Is the thread's loop.
struct Loop<'a, 'm> {
    stepper: Stepper<'m>,
    commands: &'a Receiver<Command>,
    /// Is when running sequences are ended; absent unless draining.
    deadline: Option<Instant>,
}

impl Loop<'_, '_> {
    fn run(&mut self) {
        self.stepper.tell();
        while self.take_commands() {
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
            self.stepper.step();
        }
        self.stepper.refuse_waiting(&EngineError::Draining);
        self.stepper.fail_running(&EngineError::Draining);
        self.stepper.step();
    }

    /// Takes every command that is there, waits for one if nothing runs, and returns whether to go on.
    fn take_commands(&mut self) -> bool {
        if self.stepper.is_idle() {
            if self.deadline.is_some() {
                return false;
            }
            match self.wait() {
                Ok(Some(command)) => self.obey(command),
                Ok(None) => {}
                Err(NoHandles) => return false,
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return true,
                // Nobody can submit; what runs is finished all the same.
                Err(TryRecvError::Disconnected) => return !self.stepper.is_idle(),
            }
        }
    }

    /// Sleeps until there is a command or something to tell.
    fn wait(&self) -> Result<Option<Command>, NoHandles> {
        match self.stepper.report.due_in(Instant::now()) {
            None => self.commands.recv().map(Some).map_err(|_| NoHandles),
            Some(due) => match self.commands.recv_timeout(due) {
                Ok(command) => Ok(Some(command)),
                Err(RecvTimeoutError::Timeout) => Ok(None),
                Err(RecvTimeoutError::Disconnected) => Err(NoHandles),
            },
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(admission) if self.deadline.is_some() => {
                let _ = admission.submission.events.send(Event::Failed(EngineError::Draining));
            }
            Command::Submit(admission) => self.stepper.enqueue(*admission),
            Command::Drain { deadline } => {
                self.stepper.view.draining.store(true, Ordering::Release);
                self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
                self.stepper.refuse_waiting(&EngineError::Draining);
            }
        }
    }
}

/// Says that the last handle was dropped.
struct NoHandles;
