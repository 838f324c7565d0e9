//! The embedder's thread: its start, its loop, its batches.
//!
//! Like the engine's thread, it sleeps while no request waits, and reads its commands between two batches, so a request
//! of a disconnected client costs at most the running batch. A text that is computed in pieces takes a step per piece,
//! with batches of other texts between two pieces. Not here: the calls into llama.cpp (`compute`).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc, watch};
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::summary::{Load, Rates};
use warmpath_gguf::GgufError;
use warmpath_worker_core::batches::embedding_batch::{
    EmbeddingBatchLimits, NextTexts, PieceTurn, TextPosition, plan, step_in_pieces,
};
use warmpath_worker_core::reports::rates::{Averages, StepCounts};

use super::compute::{Computer, Vectors};
use super::handle::{EmbedHandle, EmbedJob, EmbedderCommand, EmbedderShared};
use super::{EmbedConfig, EmbedFacts, Embedded};
use crate::engine::{
    ArrivalAnnouncer, Counters, EngineError, EngineUpdate, Progress, StartError, UpdateSender, load_model,
};

/// A request that waits or runs.
struct WaitingRequest {
    job: EmbedJob,
    /// Lengths of its texts. Units: tokens.
    lengths: Vec<u32>,
    /// Results of its first texts.
    done: Vec<Embedded>,
    /// Computed tokens of its next text: 0 except for a text in pieces.
    n_computed: u32,
}

impl WaitingRequest {
    fn new(job: EmbedJob) -> Self {
        let lengths = job.texts.iter().map(|text| u32::try_from(text.len()).unwrap_or(u32::MAX)).collect();
        Self { job, lengths, done: Vec::new(), n_computed: 0 }
    }

    fn lengths_left(&self) -> &[u32] {
        &self.lengths[self.done.len()..]
    }

    fn tokens_left(&self) -> u64 {
        let all: u64 = self.lengths_left().iter().map(|length| u64::from(*length)).sum();
        all - u64::from(self.n_computed)
    }

    /// Records the result of its next text.
    fn finish_text(&mut self, vectors: Vec<Vec<f32>>) {
        let n_tokens = self.lengths[self.done.len()];
        self.done.push(Embedded { n_tokens, vectors });
        self.n_computed = 0;
    }

    /// Returns one of the remaining texts.
    fn text(&self, text_idx: usize) -> &[Token] {
        &self.job.texts[self.done.len() + text_idx]
    }
}

/// The thread's own ends of its channels.
struct EmbedderEnds {
    commands: Receiver<EmbedderCommand>,
    updates: mpsc::UnboundedSender<EngineUpdate>,
    counters: Arc<Counters>,
    /// Closes when the thread ends.
    _running: watch::Sender<()>,
}

/// Starts the thread and waits until it is ready.
pub(super) fn start(
    config: EmbedConfig,
    progress: Progress,
    updates: mpsc::UnboundedSender<EngineUpdate>,
) -> Result<EmbedHandle, StartError> {
    let config = super::with_devices(config)?;
    config.engine.validate()?;
    let queue_max = config.engine.queue_max;
    let n_places = queue_max.saturating_add(usize::from(config.engine.n_slots)).min(Semaphore::MAX_PERMITS);
    // In addition to the requests there is room for two drains.
    let (commands, inbox) = sync_channel(n_places.saturating_add(2));
    let (running, stopped) = watch::channel(());
    let counters = Arc::new(Counters::default());
    let announcer = ArrivalAnnouncer::new(&updates);
    let inside = EmbedderEnds { commands: inbox, updates, counters: Arc::clone(&counters), _running: running };
    let (ready, started) = sync_channel(1);
    let builder = std::thread::Builder::new().name("embedder".to_owned());
    let thread = builder
        .spawn(move || run(&config, progress, inside, &ready))
        .map_err(|error| StartError::Thread { reason: error.to_string() })?;
    let panic_error = |_| StartError::Thread { reason: "it panicked".to_owned() };
    let facts = started.recv().map_err(panic_error)??;
    Ok(EmbedHandle::new(EmbedderShared {
        facts,
        announcer,
        commands,
        places: Arc::new(Semaphore::new(n_places)),
        queue_max,
        counters,
        draining: false.into(),
        stopped,
        thread: Mutex::new(Some(thread)),
    }))
}

fn run(
    config: &EmbedConfig,
    progress: Progress,
    inside: EmbedderEnds,
    ready: &SyncSender<Result<EmbedFacts, StartError>>,
) {
    let refuse = |error: GgufError| StartError::Model { path: config.engine.model.clone(), reason: error.to_string() };
    let load_result = load_model(&config.engine, progress)
        .and_then(|model| Ok((model, warmpath_gguf::fingerprint(&config.engine.model).map_err(refuse)?)));
    let (model, fingerprint) = match load_result {
        Ok(load_result) => load_result,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let (computer, facts) = match Computer::open(&model, config, fingerprint) {
        Ok(computer_and_facts) => computer_and_facts,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let room = EmbeddingBatchLimits { tokens: config.engine.ubatch_tokens, sequences: computer.n_sequences() };
    let free_cells = u64::from(facts.text_tokens_max) * u64::from(facts.n_sequences);
    if ready.send(Ok(facts)).is_err() {
        return;
    }
    let EmbedderEnds { commands, updates, counters, _running } = inside;
    let report = UpdateSender::new(updates);
    let averages = Averages::default();
    let (waiting, deadline) = (Vec::new(), None);
    let piece_is_due = true;
    EmbedderLoop { computer, commands, counters, report, averages, room, free_cells, waiting, piece_is_due, deadline }
        .run();
}

/// The thread's loop.
struct EmbedderLoop<'m> {
    computer: Computer<'m>,
    commands: Receiver<EmbedderCommand>,
    counters: Arc<Counters>,
    report: UpdateSender,
    averages: Averages,
    room: EmbeddingBatchLimits,
    /// Free cells in the load for routers; nothing is cached, so the number never changes.
    free_cells: u64,
    /// Requests, the oldest first.
    waiting: Vec<WaitingRequest>,
    /// Whether the next step may be a piece of a text, because the last one was not.
    piece_is_due: bool,
    /// Time at which running requests are cancelled; `None` unless draining.
    deadline: Option<Instant>,
}

/// Signal that the last handle was dropped.
struct NoHandles;

impl EmbedderLoop<'_> {
    fn run(mut self) {
        self.report_load(&[]);
        while self.take_commands().is_ok() {
            self.drop_abandoned();
            if self.deadline.is_some_and(|deadline| self.waiting.is_empty() || Instant::now() >= deadline) {
                break;
            }
            self.step();
        }
        for WaitingRequest { job, .. } in self.waiting.drain(..) {
            self.counters.failed.fetch_add(job.texts.len() as u64, Relaxed);
            job.answer(Err(EngineError::Draining));
        }
        self.report_load(&[]);
    }

    /// Takes all waiting commands, and waits for one if there is nothing to do.
    fn take_commands(&mut self) -> Result<(), NoHandles> {
        while self.waiting.is_empty() && self.deadline.is_none() {
            match self.report.due_in(Instant::now()) {
                None => {
                    let command = self.commands.recv().map_err(|_| NoHandles)?;
                    self.execute(command);
                }
                Some(timeout) => match self.commands.recv_timeout(timeout) {
                    Ok(command) => self.execute(command),
                    Err(RecvTimeoutError::Timeout) => self.report_load(&[]),
                    Err(RecvTimeoutError::Disconnected) => return Err(NoHandles),
                },
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.execute(command),
                Err(TryRecvError::Empty) => break,
                // No further request can arrive; the present ones are still finished.
                Err(TryRecvError::Disconnected) if self.waiting.is_empty() => return Err(NoHandles),
                Err(TryRecvError::Disconnected) => break,
            }
        }
        if self.report.is_urgent() {
            self.report_load(&[]);
        }
        Ok(())
    }

    fn execute(&mut self, command: EmbedderCommand) {
        match command {
            EmbedderCommand::Embed(job) if self.deadline.is_some() => job.answer(Err(EngineError::Draining)),
            EmbedderCommand::Embed(job) => {
                self.report.count(Some(&job.announcement));
                self.waiting.push(WaitingRequest::new(job));
            }
            EmbedderCommand::Drain { deadline } => {
                self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
                self.report.touch();
            }
        }
    }

    fn drop_abandoned(&mut self) {
        for waiting in self.waiting.extract_if(.., |waiting| waiting.job.reply.is_closed()) {
            let n_texts = waiting.lengths_left().len() as u64;
            if waiting.n_computed > 0 {
                self.computer.give_up();
            }
            // The place is freed before the counters change.
            drop(waiting);
            self.counters.cancelled.fetch_add(n_texts, Relaxed);
            self.report.touch();
        }
        self.counters.queued.store(self.waiting.len() as u64, Relaxed);
    }

    /// Computes one batch, or a piece of a text, and responds to each request that is complete.
    fn step(&mut self) {
        let lengths: Vec<&[u32]> = self.waiting.iter().map(WaitingRequest::lengths_left).collect();
        let begun_idx = self.waiting.iter().position(|waiting| waiting.n_computed > 0);
        let step = match self.computer.piece_tokens() {
            Some(_) => step_in_pieces(&lengths, PieceTurn { begun: begun_idx, is_due: self.piece_is_due }, self.room),
            None => {
                Some(NextTexts::Batch(plan(&lengths, self.room))).filter(|step| *step != NextTexts::Batch(Vec::new()))
            }
        };
        match step {
            Some(NextTexts::Batch(batch)) => self.compute(&batch),
            Some(NextTexts::Piece { request_idx }) => self.compute_piece(request_idx),
            None => return,
        }
        self.report.touch();
    }

    fn compute(&mut self, batch: &[TextPosition]) {
        self.begin(batch);
        let text = |place: &TextPosition| self.waiting[place.request_idx].text(place.text_idx);
        let texts: Vec<&[Token]> = batch.iter().map(text).collect();
        let lengths: Vec<usize> = texts.iter().map(|text| text.len()).collect();
        let began = Instant::now();
        let together = self.computer.embed(&texts);
        let piece_is_lost = together.is_err();
        let results = match together {
            Ok(vectors) => vectors.into_iter().map(Ok).collect(),
            Err(reason) => embed_apart(&mut self.computer, &texts, reason),
        };
        self.end(lengths.iter().sum(), began);
        self.piece_is_due = true;
        if piece_is_lost {
            // The failed batch took the computed part of a text in pieces with it, so that text begins again.
            self.waiting.iter_mut().for_each(|waiting| waiting.n_computed = 0);
        }
        let mut failed_texts = Vec::new();
        for ((place, n_tokens), vectors) in batch.iter().zip(lengths).zip(results) {
            match vectors {
                Ok(vectors) => {
                    self.counters.prompt_tokens.fetch_add(n_tokens as u64, Relaxed);
                    self.counters.finished.fetch_add(1, Relaxed);
                    self.waiting[place.request_idx].finish_text(vectors);
                }
                Err(reason) => failed_texts.push((*place, reason)),
            }
        }
        if let Some((_, reason)) = failed_texts.first() {
            let reason = reason.clone();
            let places: Vec<TextPosition> = failed_texts.into_iter().map(|(place, _)| place).collect();
            self.fail(&places, reason);
        }
        self.answer_finished();
    }

    fn compute_piece(&mut self, request_idx: usize) {
        let batch = [TextPosition { request_idx, text_idx: 0 }];
        self.begin(&batch);
        let waiting = &self.waiting[request_idx];
        let (text, n_before) = (waiting.text(0), waiting.n_computed as usize);
        let n_text = text.len();
        let n_after = self.computer.piece_tokens().map_or(n_text, |n| n_text.min(n_before + n as usize));
        let began = Instant::now();
        let extension = self.computer.extend(text, n_before);
        self.end(n_after - n_before, began);
        self.piece_is_due = false;
        match extension {
            Ok(None) => self.waiting[request_idx].n_computed = u32::try_from(n_after).unwrap_or(u32::MAX),
            Ok(Some(vectors)) => {
                self.counters.prompt_tokens.fetch_add(n_text as u64, Relaxed);
                self.counters.finished.fetch_add(1, Relaxed);
                self.waiting[request_idx].finish_text(vectors);
                self.answer_finished();
            }
            Err(reason) => self.fail(&batch, reason),
        }
    }

    /// Reports the batch that is about to be computed.
    fn begin(&mut self, batch: &[TextPosition]) {
        self.report.touch();
        if self.report.due_in(Instant::now()) == Some(Duration::ZERO) {
            self.report_load(batch);
        }
        self.counters.busy_slots.store(batch.len() as u64, Relaxed);
    }

    /// Counts the tokens computed since `began`.
    fn end(&mut self, n_tokens: usize, began: Instant) {
        let counts = StepCounts::undrafted(u32::try_from(n_tokens).unwrap_or(u32::MAX), 0);
        self.averages.step(counts, began.elapsed());
        if let Some(waits) = self.computer.take_waits() {
            self.counters.threads_waited(waits);
            self.averages.waited(waits);
        }
        self.counters.steps.fetch_add(1, Relaxed);
        self.counters.prefill_tokens.fetch_add(n_tokens as u64, Relaxed);
        self.counters.busy_slots.store(0, Relaxed);
    }

    fn answer_finished(&mut self) {
        let is_done = |waiting: &mut WaitingRequest| waiting.lengths_left().is_empty();
        for WaitingRequest { job, done, .. } in self.waiting.extract_if(.., is_done) {
            job.answer(Ok(done));
        }
    }

    /// Fails the requests of these texts; the others continue.
    fn fail(&mut self, batch: &[TextPosition], reason: String) {
        tracing::error!(reason, texts = batch.len(), "a batch of texts failed");
        self.counters.decode_failures.fetch_add(1, Relaxed);
        let mut request_idx = 0;
        let is_in_batch = |_: &mut WaitingRequest| {
            request_idx += 1;
            batch.iter().any(|place| place.request_idx + 1 == request_idx)
        };
        for WaitingRequest { job, .. } in self.waiting.extract_if(.., is_in_batch) {
            self.counters.failed.fetch_add(job.texts.len() as u64, Relaxed);
            job.answer(Err(EngineError::Decode { reason: reason.clone() }));
        }
    }

    /// Reports the load while `batch` runs.
    fn report_load(&mut self, batch: &[TextPosition]) {
        let in_batch = |place: &TextPosition| {
            let waiting = &self.waiting[place.request_idx];
            let n_computed = if place.text_idx == 0 { waiting.n_computed } else { 0 };
            u64::from(waiting.lengths_left()[place.text_idx] - n_computed)
        };
        let running_prefill_tokens: u64 = batch.iter().map(in_batch).sum();
        let all: u64 = self.waiting.iter().map(WaitingRequest::tokens_left).sum();
        let runs = |idx: usize| batch.iter().any(|place| place.request_idx == idx);
        let n_queued = (0..self.waiting.len()).filter(|idx| !runs(*idx)).count();
        let load = Load {
            queued_prefill_tokens: all - running_prefill_tokens,
            running_prefill_tokens,
            n_queued: u32::try_from(n_queued).unwrap_or(u32::MAX),
            n_decoding: 0,
            busy_slots: (0..).take(batch.len()).map(SlotId).collect(),
            free_cells: self.free_cells,
            draining: self.deadline.is_some(),
            // Nothing is generated, so the time of a request in its place depends only on its number of tokens.
            rates: Rates { decode_step_ms: Some(0.0), answer_tokens: Some(0.0), ..self.averages.rates() },
        };
        self.report.send(Vec::new(), load, Instant::now());
    }
}

/// Returns the vectors of each text of a batch that failed for this reason, or why the text has none.
///
/// The texts are computed one by one: one text without a vector may spoil those beside it.
fn embed_apart(computer: &mut Computer<'_>, texts: &[&[Token]], reason: String) -> Vec<Result<Vectors, String>> {
    if texts.len() == 1 {
        return vec![Err(reason)];
    }
    let embed_alone = |text: &&[Token]| match computer.embed(&[*text]) {
        Ok(vectors) => vectors.into_iter().map(Ok).collect::<Vec<_>>(),
        Err(reason) => vec![Err(reason)],
    };
    texts.iter().flat_map(embed_alone).collect()
}
