//! A simulated worker process: production code for its cache and its summary, and engine steps in virtual time.
//!
//! A step computes some prompt tokens, in the order of the requests, and one token of each answer. Requests that arrive
//! during a step are admitted when it ends, as in the engine's thread.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use warmpath_common::block_hash::{BlockHash, BlockKey};
use warmpath_common::ids::{RequestId, SlotId, Token};
use warmpath_common::model::Fingerprint;
use warmpath_common::summary::{Change, Load, ReplayLimits, Resume, Run, RunState, Stamp, Tier};
use warmpath_worker_core::pending_prefills::AnnouncementId;
use warmpath_worker_core::rates::{Averages, StepCounts};
use warmpath_worker_core::slot_plan::{SlotDecision, SlotPlan};
use warmpath_worker_core::summary_writer::{EngineUpdate, SummaryWriter};

use super::kv::{Kv, Prompt};
use super::model::Build;

/// Prompt tokens of a step.
const STEP_TOKENS: usize = 32;
/// Most requests that wait.
const QUEUE_MAX: usize = 6;
/// Steps after which the cache is checked as a whole, which takes longer than a step.
const CHECK_STEPS: u64 = 16;
/// Limits of the replay buffer: low, so that routers also need snapshots.
const REPLAY_LIMITS: ReplayLimits = ReplayLimits { updates_max: 24, bytes_max: 64 << 10 };

/// A request as a worker receives it.
#[derive(Debug, Clone)]
pub struct Job {
    /// Number of the attempt, unique in the run.
    pub attempt: u64,
    /// Id of the request.
    pub request_id: RequestId,
    /// Fingerprint of the model for which the router chose the worker.
    pub model: Fingerprint,
    /// Prompt.
    pub tokens: Vec<Token>,
    /// Length of the answer. Units: tokens.
    pub n_answer: u32,
}

/// Reason why a worker refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its queue is full (429).
    Full,
    /// It is shutting down, or serves another model (503).
    Unready,
}

/// Progress of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// Its first token has been sent.
    First {
        /// Prompt tokens that were reused.
        cached_tokens: u32,
    },
    /// Its answer is complete.
    Last {
        /// Answer.
        answer: Vec<Token>,
    },
}

struct Queued {
    job: Job,
    prompt: Prompt,
    announcement: AnnouncementId,
    is_counted: bool,
}

struct Running {
    job: Job,
    prompt: Prompt,
    slot: SlotId,
    n_computed: usize,
    n_cached: u32,
    answer: Vec<Token>,
}

struct Step {
    ends: Instant,
    took: Duration,
    shares: Vec<(SlotId, usize)>,
}

/// One boot of a worker's process.
pub struct Worker {
    /// Model and layout that it serves.
    pub build: Build,
    /// Its summary.
    pub writer: SummaryWriter,
    /// Whether it is shutting down.
    pub is_draining: bool,
    /// Whether it has announced blocks that it does not hold.
    pub has_announced_wrong_blocks: bool,
    start: Instant,
    kv: Kv,
    averages: Averages,
    queue: VecDeque<Queued>,
    running: Vec<Running>,
    step: Option<Step>,
    counted: Vec<AnnouncementId>,
    n_announced: u64,
    n_steps: u64,
}

impl Worker {
    /// Returns a process that has just loaded its model.
    pub fn new(build: Build, boot: Stamp, now: Instant) -> Self {
        let mut worker = Self {
            build,
            writer: SummaryWriter::new(boot, build.declared(), REPLAY_LIMITS, now),
            is_draining: false,
            has_announced_wrong_blocks: false,
            start: now,
            kv: Kv::new(&build),
            averages: Averages::default(),
            queue: VecDeque::new(),
            running: Vec::new(),
            step: None,
            counted: Vec::new(),
            n_announced: 0,
            n_steps: 0,
        };
        worker.report(Vec::new(), now);
        worker
    }

    /// Queues a request, and starts it if no step is running.
    pub fn submit(&mut self, job: Job, now: Instant) -> Result<(), Refusal> {
        if self.is_draining || job.model != self.build.declared().fingerprint {
            return Err(Refusal::Unready);
        }
        if self.queue.len() >= QUEUE_MAX {
            return Err(Refusal::Full);
        }
        let prompt = Prompt::new(job.tokens.clone(), &self.build);
        let announcement = AnnouncementId(self.n_announced);
        self.n_announced += 1;
        let arrived = EngineUpdate::Arrived {
            id: announcement,
            request: job.request_id.clone(),
            n_tokens: prompt.tokens.len() as u32,
            keys: prompt.chain.iter().map(BlockHash::key).collect(),
            is_filling: true,
        };
        self.writer.apply(arrived, now);
        self.queue.push_back(Queued { job, prompt, announcement, is_counted: false });
        if self.step.is_none() {
            self.admit(now);
        }
        Ok(())
    }

    /// Cancels the request of an attempt.
    pub fn cancel(&mut self, attempt: u64, now: Instant) {
        if let Some(place) = self.queue.iter().position(|queued| queued.job.attempt == attempt) {
            let queued = self.queue.remove(place).expect("the place is below the length");
            self.counted.retain(|id| *id != queued.announcement);
            self.writer.apply(EngineUpdate::Resolved(queued.announcement), now);
        } else if let Some(place) = self.running.iter().position(|running| running.job.attempt == attempt) {
            let Running { prompt, slot, .. } = self.running.remove(place);
            self.kv.end(&prompt, slot, self.ms(now));
        } else {
            return;
        }
        if self.step.is_none() {
            self.admit(now);
        }
    }

    /// Returns when the running step ends; `None` if nothing runs.
    pub fn step_ends(&self) -> Option<Instant> {
        self.step.as_ref().map(|step| step.ends)
    }

    /// Ends the running step; returns the progress of its requests.
    pub fn end_step(&mut self, now: Instant) -> Vec<(u64, Progress)> {
        let step = self.step.take().expect("a step's end is only scheduled for a step");
        let mut progress = Vec::new();
        let (mut n_prefill, mut n_decode) = (0, 0);
        for (slot, n_tokens) in step.shares {
            let Some(place) = self.running.iter().position(|running| running.slot == slot) else { continue };
            (n_prefill, n_decode) = (n_prefill + n_tokens, n_decode + usize::from(n_tokens == 0));
            progress.extend(self.advance(place, n_tokens));
            let Running { job, prompt, answer, .. } = &self.running[place];
            if answer.len() >= job.n_answer as usize {
                progress.push((job.attempt, Progress::Last { answer: answer.clone() }));
                self.averages.answer_ended(job.n_answer);
                self.kv.end(&prompt.clone(), slot, self.ms(now));
                self.running.remove(place);
            }
        }
        self.averages.step(StepCounts::undrafted(n_prefill as u32, n_decode as u32), step.took);
        self.admit(now);
        self.n_steps += 1;
        if self.n_steps.is_multiple_of(CHECK_STEPS) {
            self.kv.check();
        }
        progress
    }

    /// Returns the attempts that it has.
    pub fn attempts(&self) -> Vec<u64> {
        let running = self.running.iter().map(|running| running.job.attempt);
        running.chain(self.queue.iter().map(|queued| queued.job.attempt)).collect()
    }

    /// Announces blocks that it does not hold.
    pub fn announce_wrong_blocks(&mut self, keys: Vec<BlockKey>, now: Instant) {
        self.has_announced_wrong_blocks = true;
        let (tier, state, resume) = (Tier::Ram, RunState::Ready, Resume::EveryBlock);
        self.report(vec![Change::Stored(Run { keys, tier, state, resume, slot: None })], now);
    }

    /// Begins to shut down.
    pub fn drain(&mut self, now: Instant) {
        self.is_draining = true;
        self.report(Vec::new(), now);
    }

    /// Returns the blocks that it holds, if it has no request.
    pub fn held(&self) -> Option<std::collections::BTreeSet<BlockKey>> {
        (self.running.is_empty() && self.queue.is_empty()).then(|| self.kv.held())
    }

    /// Starts the requests that can start, in the order of their arrival, and begins the next step.
    fn admit(&mut self, now: Instant) {
        for queued in self.queue.iter_mut().filter(|queued| !queued.is_counted) {
            queued.is_counted = true;
            self.counted.push(queued.announcement);
        }
        let (mut place, mut started) = (0, Vec::new());
        while place < self.queue.len() {
            match self.kv.plan(&self.queue[place].prompt) {
                SlotDecision::NoSlot => break,
                SlotDecision::WaitFor { .. } => place += 1,
                SlotDecision::Fetch(_) => unreachable!("there is no disk to read from"),
                SlotDecision::Start(plan) => {
                    let queued = self.queue.remove(place).expect("the place is below the length");
                    started.push(queued.announcement);
                    self.start(queued, &plan, now);
                }
            }
        }
        self.begin_step(now);
        self.report(Vec::new(), now);
        started.into_iter().for_each(|id| self.writer.apply(EngineUpdate::Resolved(id), now));
    }

    fn start(&mut self, queued: Queued, plan: &SlotPlan, now: Instant) {
        let Queued { job, prompt, .. } = queued;
        let n_cached = plan.start.n_tokens();
        self.kv.start(&prompt, plan, self.ms(now));
        self.averages.prompt(prompt.tokens.len() as u32 - n_cached);
        let n_computed = n_cached as usize;
        self.running.push(Running { job, prompt, slot: plan.slot, n_computed, n_cached, answer: Vec::new() });
    }

    fn begin_step(&mut self, now: Instant) {
        let mut n_left = STEP_TOKENS;
        let mut shares = Vec::new();
        for running in &self.running {
            let n_tokens = (running.prompt.tokens.len() - running.n_computed).min(n_left);
            let is_decoding = running.n_computed == running.prompt.tokens.len();
            if is_decoding || n_tokens > 0 {
                shares.push((running.slot, n_tokens));
            }
            n_left -= n_tokens;
        }
        let n_prefill = (STEP_TOKENS - n_left) as u32;
        let took = Duration::from_millis(4) + Duration::from_micros(500) * n_prefill;
        self.step = (!shares.is_empty()).then_some(Step { ends: now + took, took, shares });
    }

    /// Adds the tokens of a step to a sequence: `n_tokens` of its prompt, or one of its answer if that is 0.
    fn advance(&mut self, place: usize, n_tokens: usize) -> Option<(u64, Progress)> {
        let running = &mut self.running[place];
        let computed = running.n_computed..running.n_computed + n_tokens;
        running.n_computed += n_tokens;
        let tokens = match running.answer.last() {
            Some(last) if n_tokens == 0 => vec![*last],
            _ => running.prompt.tokens[computed].to_vec(),
        };
        self.kv.extend(running.slot, &tokens);
        if running.n_computed < running.prompt.tokens.len() {
            return None;
        }
        let n_prompt = running.prompt.tokens.len();
        let next = self.build.model.answer(&self.kv.cells(running.slot)[..n_prompt], running.answer.len() as u32);
        running.answer.push(next);
        let is_first = running.answer.len() == 1;
        is_first.then_some((running.job.attempt, Progress::First { cached_tokens: running.n_cached }))
    }

    /// Publishes the changes of the cache and `others`, with the load.
    fn report(&mut self, others: Vec<Change>, now: Instant) {
        let changes = self.kv.take_changes().into_iter().chain(others).collect();
        let (load, counted) = (self.load(), std::mem::take(&mut self.counted));
        self.writer.apply(EngineUpdate::Step { changes, load, counted }, now);
    }

    fn load(&self) -> Load {
        let queued = |queued: &Queued| queued.prompt.tokens.len() as u64 - u64::from(self.kv.n_usable(&queued.prompt));
        let left = |running: &Running| (running.prompt.tokens.len() - running.n_computed) as u64;
        Load {
            queued_prefill_tokens: self.queue.iter().map(queued).sum(),
            running_prefill_tokens: self.running.iter().map(left).sum(),
            n_queued: self.queue.len() as u32,
            n_decoding: self.running.iter().filter(|running| left(running) == 0).count() as u32,
            busy_slots: self.running.iter().map(|running| running.slot).collect(),
            free_cells: self.kv.free_cells(),
            draining: self.is_draining,
            rates: self.averages.rates(),
        }
    }

    fn ms(&self, now: Instant) -> u64 {
        now.duration_since(self.start).as_millis() as u64
    }
}
