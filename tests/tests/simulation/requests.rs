//! Clients, and the path of a request through a router as in the router's `lifecycle`: look up, choose, send, retry.
//!
//! A request ends once: with the right answer of a worker that serves the model that it names, or with an error, in
//! time.

use std::time::{Duration, Instant};

use futures::FutureExt as _;
use warmpath_bench::simulated::engine::Progress;
use warmpath_common::block_hash::{BlockKey, block_chain};
use warmpath_common::ids::{RequestId, Token};
use warmpath_common::model::{Fingerprint, ModelInfo};
use warmpath_router::fleet::members::Loss;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::ledger::health::FailedAttempt;
use warmpath_router_core::ledger::stale_blocks::PredictionOutcome;
use warmpath_router_core::ledger::{RouteRequest, Ticket};
use warmpath_router_core::overload::retry::{RetryDecision, RetryOptions, Terms, WorkerFailure};
use warmpath_router_core::routing::choose::PromptView;

use super::model::{CONTEXT_TOKENS, Model, root};
use super::worker::{Job, Refusal};
use super::world::{Event, WorkerProcess, World};

/// Longest time of a request, from its arrival to its end.
const DEADLINE: Duration = Duration::from_secs(20);
/// Longest time in the queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for which a request waits for its model.
const HOLD: Duration = Duration::from_secs(2);
/// Longest time until the first byte of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest time of a response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
const RETRY: RetryOptions = RetryOptions { attempts_max: 3, elapsed_max: Duration::from_secs(2) };

/// Conversation of one client.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// Model that it names.
    pub model: &'static str,
    /// Prompt of its next turn, without the user's next tokens.
    pub tokens: Vec<Token>,
    /// Outcome of its last turn; `None` before and while it runs.
    pub last: Option<Outcome>,
}

/// End of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The whole answer.
    Answered {
        /// Prompt tokens that were reused.
        cached_tokens: u32,
        /// Reused tokens that the router predicted.
        predicted_tokens: u32,
    },
    /// Error, by its name.
    Error(&'static str),
}

/// Part of a worker's response.
#[derive(Debug)]
pub enum Reply {
    /// The worker's progress.
    Progress(Progress),
    /// The worker refuses, or no process listens.
    Failed(WorkerFailure),
    /// The connection breaks.
    Broken,
}

/// One attempt at a worker.
pub struct Attempt {
    id: u64,
    worker: WorkerIdx,
    host: usize,
    /// Fingerprint of the model for which the worker was chosen.
    model: Fingerprint,
    ticket: Ticket,
    loss: Loss,
    keys: Vec<BlockKey>,
    block_size_tokens: u32,
    predicted_tokens: u32,
    /// Reused tokens and the time, once the first byte has arrived.
    begun: Option<(u32, Instant)>,
}

/// A request that has not ended.
pub struct Request {
    conversation: usize,
    request_id: RequestId,
    model: &'static str,
    tokens: Vec<Token>,
    n_answer: u32,
    router: usize,
    boot: u64,
    arrived: Instant,
    n_attempts: u32,
    failures: Vec<FailedAttempt>,
    failing_since: Option<Instant>,
    attempt: Option<Attempt>,
}

impl World {
    /// Begins the clients' conversations.
    pub fn begin_conversations(&mut self) {
        let n_conversations = 4 + self.rng.below(6);
        let systems: Vec<Vec<Token>> = (0..3).map(|_| self.text(24)).collect();
        for idx in 0..n_conversations {
            let model = if self.rng.one_in(4) { "beta" } else { "alpha" };
            let system = self.rng.below(systems.len());
            self.conversations.push(Conversation { model, tokens: systems[system].clone(), last: None });
            self.after(0..3000, Event::Turn(idx));
        }
    }

    fn text(&mut self, n_tokens: usize) -> Vec<Token> {
        (0..n_tokens).map(|_| self.rng.below(1000) as Token).collect()
    }

    /// Sends the next turn of a conversation to any router.
    pub fn turn(&mut self, conversation: usize) {
        let router = self.rng.below(self.routers.len());
        if self.has_traffic {
            self.ask(conversation, router);
        }
    }

    /// Sends the next turn of a conversation to a router.
    pub fn ask(&mut self, conversation: usize, router: usize) {
        let n_new = 4 + self.rng.below(12);
        let (new, n_answer) = (self.text(n_new), 1 + self.rng.below(12) as u32);
        let of = &mut self.conversations[conversation];
        of.last = None;
        of.tokens.extend(new);
        if of.tokens.len() as u32 + n_answer + 2 > CONTEXT_TOKENS {
            // The conversation begins anew, after the same system prompt.
            of.tokens.truncate(24);
        }
        self.n_requests += 1;
        let id = self.n_requests;
        let request_id = RequestId::new(&format!("r{id}")).expect("a letter and digits are visible ASCII");
        let Conversation { model, tokens, .. } = self.conversations[conversation].clone();
        let boot = self.routers[router].boot;
        let request = Request {
            conversation,
            request_id,
            model,
            tokens,
            n_answer,
            router,
            boot,
            arrived: self.now,
            n_attempts: 0,
            failures: Vec::new(),
            failing_since: None,
            attempt: None,
        };
        if let Some(router) = self.router_mut(router, boot) {
            router.budget.deposit();
        }
        self.requests.insert(id, request);
        self.transmit(Event::Try(id));
        if self.is_hostile && self.rng.one_in(20) {
            self.after(0..400, Event::Disconnect(id));
        }
    }

    /// Tries to send a request that has no attempt.
    pub fn try_request(&mut self, id: u64) {
        let now = self.now;
        let Some(request) = self.requests.get(&id).filter(|request| request.attempt.is_none()) else { return };
        let waited = now - request.arrived;
        let (idx, boot, name) = (request.router, request.boot, request.model);
        let Some(router) = self.routers[idx].router.as_deref().filter(|_| self.routers[idx].boot == boot) else {
            return self.finish(id, Outcome::Error("router is gone"));
        };
        if request.n_attempts >= RETRY.attempts_max && waited >= QUEUE_TIMEOUT {
            return self.finish(id, Outcome::Error("queued for too long"));
        }
        let view = router.fleet.view();
        let is_held = waited < HOLD && view.is_awaited(Some(name), None, now);
        let model = match view.lookup(Some(name), None, now) {
            Ok(model) => model,
            Err(_) if is_held => return self.after(20..60, Event::Try(id)),
            Err(_) => return self.finish(id, Outcome::Error("no such model")),
        };
        let (keys, tokens) = (keys(&model, &request.tokens), request.tokens.len() as u32);
        let matches = router.fleet.index().matches(&keys);
        let tried: Vec<WorkerIdx> = request.failures.iter().map(|failed| failed.worker).collect();
        let ask = RouteRequest {
            request_id: &request.request_id,
            model_name: Some(name),
            account: None,
            model: &model,
            wanted: None,
            prompt: PromptView::Known { n_tokens: tokens, keys: &keys, matches: &matches, media: &[] },
            tried: &tried,
            awaited: &[],
            n_sequences: 1,
            now,
        };
        let choice = router.fleet.ledger().choose(&view, &ask);
        let (decision, ticket) = match choice {
            Ok(choice) => choice,
            Err(refusal) if refusal.is_overload() && waited < QUEUE_TIMEOUT => {
                return self.after(10..30, Event::Try(id));
            }
            Err(_) if is_held => return self.after(20..60, Event::Try(id)),
            Err(refusal) => {
                let why = if refusal.is_overload() { "queued for too long" } else { "no worker" };
                return self.finish(id, Outcome::Error(why));
            }
        };
        let loss = router.fleet.member(decision.worker).loss();
        let host = self.host_of(idx, decision.worker).expect("a worker in the view has a member");
        self.n_attempts += 1;
        let attempt = Attempt {
            id: self.n_attempts,
            worker: decision.worker,
            host,
            model: model.fingerprint,
            ticket,
            loss,
            block_size_tokens: model.block_size_tokens,
            keys,
            predicted_tokens: decision.cached_tokens,
            begun: None,
        };
        self.dispatch(id, attempt);
    }

    /// Sends an attempt to its worker.
    fn dispatch(&mut self, id: u64, attempt: Attempt) {
        let request = self.requests.get_mut(&id).expect("only running requests are sent");
        let job = Job {
            attempt: attempt.id,
            request_id: request.request_id.clone(),
            model: attempt.model,
            tokens: request.tokens.clone(),
            n_answer: request.n_answer,
        };
        let (host, router, number) = (attempt.host, request.router, attempt.id);
        request.n_attempts += 1;
        request.attempt = Some(attempt);
        self.note(|| format!("request {id} goes from router {router} to host {host}"));
        self.transmit(Event::Submit { host, router, job });
        self.at(self.now + RESPONSE_TIMEOUT, Event::Timeout(number));
    }

    /// Submits an attempt to its worker.
    pub fn submit(&mut self, host: usize, router: usize, job: Job) {
        if self.cut_off.contains(&(router, host)) {
            return;
        }
        let (now, attempt) = (self.now, job.attempt);
        let refused = match &mut self.hosts[host].process {
            WorkerProcess::Down => Some(Reply::Failed(WorkerFailure::Connect)),
            WorkerProcess::Loading(_) => Some(Reply::Failed(WorkerFailure::Unready)),
            WorkerProcess::Up(worker) => worker.submit(job, now).err().map(|refusal| match refusal {
                Refusal::Full => Reply::Failed(WorkerFailure::Full),
                Refusal::Unready => Reply::Failed(WorkerFailure::Unready),
            }),
        };
        match refused {
            Some(reply) => self.transmit(Event::Reply { host, router, attempt, reply }),
            None => self.worker_changed(host),
        }
    }

    /// Sends a worker's reply to the router of an attempt.
    pub fn send_reply(&mut self, host: usize, attempt: u64, reply: Reply) {
        if let Some((_, request)) = self.request_of(attempt) {
            let router = request.router;
            self.transmit(Event::Reply { host, router, attempt, reply });
        }
    }

    fn request_of(&self, attempt: u64) -> Option<(u64, &Request)> {
        let is_its = |request: &Request| request.attempt.as_ref().is_some_and(|of| of.id == attempt);
        self.requests.iter().find(|(_, request)| is_its(request)).map(|(id, request)| (*id, request))
    }

    /// Handles a worker's reply to an attempt of a router.
    pub fn reply(&mut self, (host, router): (usize, usize), attempt: u64, reply: Reply) {
        if self.cut_off.contains(&(router, host)) {
            return self.after(20..60, Event::Reply { host, router, attempt, reply });
        }
        let Some((id, request)) = self.request_of(attempt) else { return };
        let has_begun = request.attempt.as_ref().is_some_and(|of| of.begun.is_some());
        match reply {
            Reply::Progress(Progress::First { cached_tokens }) => self.first_byte(id, cached_tokens),
            Reply::Progress(Progress::Last { .. }) if !has_begun => {
                self.after(0..2, Event::Reply { host, router, attempt, reply });
            }
            Reply::Progress(Progress::Last { answer }) => self.answered(id, answer),
            Reply::Broken if has_begun => self.finish(id, Outcome::Error("the response broke")),
            Reply::Broken => self.failed(id, WorkerFailure::Broken),
            Reply::Failed(failure) => self.failed(id, failure),
        }
    }

    fn first_byte(&mut self, id: u64, cached_tokens: u32) {
        let now = self.now;
        let request = self.requests.get_mut(&id).expect("the request was just found");
        let Some(attempt) = &mut request.attempt else { return };
        attempt.begun = Some((cached_tokens, now));
        let block_size = attempt.block_size_tokens;
        let outcome = PredictionOutcome {
            worker: attempt.worker,
            keys: &attempt.keys,
            expected_blocks: attempt.predicted_tokens / block_size,
            fetched_blocks: 0,
            actual_blocks: cached_tokens / block_size,
        };
        let Some(router) = self.routers[request.router].router.as_deref() else { return };
        router.fleet.ledger().health.answered(attempt.worker, &request.failures, now);
        router.fleet.ledger().stale_blocks.observe(outcome);
        let number = attempt.id;
        self.at(now + ANSWER_TIMEOUT, Event::Timeout(number));
    }

    fn answered(&mut self, id: u64, answer: Vec<Token>) {
        let request = &self.requests[&id];
        let attempt = request.attempt.as_ref().expect("an answer is that of an attempt");
        let model = Model::of(attempt.model).expect("the model is one of the workers'");
        assert_eq!(model.name(), request.model, "the router took another model for request {id}");
        let expected: Vec<Token> = (0..request.n_answer).map(|idx| model.answer(&request.tokens, idx)).collect();
        assert_eq!(answer, expected, "the answer to request {id} is not that of {model:?}");
        let (predicted_tokens, cached_tokens) =
            (attempt.predicted_tokens, attempt.begun.map_or(0, |(cached_tokens, _)| cached_tokens));
        self.conversations[request.conversation].tokens.extend(answer);
        self.finish(id, Outcome::Answered { cached_tokens, predicted_tokens });
    }

    /// Ends the attempt of a request; the worker may still run it.
    fn end_attempt(&mut self, id: u64, record: impl FnOnce(&mut warmpath_router_core::ledger::Ledger, WorkerIdx)) {
        let request = self.requests.get_mut(&id).expect("only running requests have attempts");
        let Some(attempt) = request.attempt.take() else { return };
        let (idx, boot) = (request.router, request.boot);
        if let Some(router) = self.router_mut(idx, boot) {
            let mut ledger = router.fleet.ledger();
            record(&mut ledger, attempt.worker);
            ledger.ended(attempt.ticket);
        }
        let (host, number) = (attempt.host, attempt.id);
        self.transmit(Event::Cancel { host, router: idx, attempt: number });
    }

    fn failed(&mut self, id: u64, failure: WorkerFailure) {
        let now = self.now;
        self.count(failure.label());
        self.note(|| format!("request {id} fails: {}", failure.label()));
        let request = self.requests.get_mut(&id).expect("only running requests fail");
        let worker = request.attempt.as_ref().map(|attempt| attempt.worker);
        if let Some(worker) = worker.filter(|_| failure != WorkerFailure::Full) {
            request.failures.push(FailedAttempt { worker, failure });
        }
        let since = *request.failing_since.get_or_insert(now);
        let (n_attempts, idx, boot) = (request.n_attempts, request.router, request.boot);
        self.end_attempt(id, |ledger, worker| match failure {
            WorkerFailure::Full | WorkerFailure::Unready => {
                ledger.health.refused(worker, failure, Terms::default(), now)
            }
            _ => ledger.health.failed(worker, failure, now),
        });
        let may_repeat = RETRY.after(n_attempts, failure, now - since) == RetryDecision::TryAnother;
        let is_granted = may_repeat && self.router_mut(idx, boot).is_some_and(|router| router.budget.withdraw(now));
        match (is_granted, failure) {
            (true, _) => self.at(now, Event::Try(id)),
            (false, WorkerFailure::Full) => self.after(200..300, Event::Try(id)),
            (false, _) => self.finish(id, Outcome::Error(failure.label())),
        }
    }

    /// Ends an attempt that has not begun to respond, or not ended its response, in time.
    pub fn timeout(&mut self, attempt: u64) {
        let now = self.now;
        let Some((id, request)) = self.request_of(attempt) else { return };
        match request.attempt.as_ref().and_then(|of| of.begun) {
            None => self.failed(id, WorkerFailure::Timeout),
            Some((_, begun)) if now - begun >= ANSWER_TIMEOUT => {
                self.finish(id, Outcome::Error("the response stalled"));
            }
            Some(_) => {}
        }
    }

    /// Cancels an attempt at its worker.
    pub fn cancel(&mut self, host: usize, router: usize, attempt: u64) {
        if self.cut_off.contains(&(router, host)) {
            return self.after(20..60, Event::Cancel { host, router, attempt });
        }
        let now = self.now;
        if let Some(worker) = self.worker_mut(host) {
            worker.cancel(attempt, now);
            self.worker_changed(host);
        }
    }

    /// Ends a request whose client has left.
    pub fn disconnect(&mut self, id: u64) {
        if self.requests.contains_key(&id) {
            self.finish(id, Outcome::Error("the client left"));
        }
    }

    /// Fails the requests that wait for a response of a worker that their router has just declared lost.
    pub fn fail_requests_at_lost_workers(&mut self, idx: usize) {
        let mut lost = Vec::new();
        for (id, request) in self.requests.iter_mut().filter(|(_, request)| request.router == idx) {
            let Some(attempt) = request.attempt.as_mut() else { continue };
            if attempt.loss.wait().now_or_never().is_some() && attempt.begun.is_none() {
                lost.push(*id);
            }
        }
        lost.into_iter().for_each(|id| self.failed(id, WorkerFailure::Lost));
    }

    /// Ends the requests of a router that has ended.
    pub fn end_requests_of(&mut self, idx: usize) {
        let of: Vec<u64> =
            self.requests.iter().filter(|(_, request)| request.router == idx).map(|(id, _)| *id).collect();
        of.into_iter().for_each(|id| self.finish(id, Outcome::Error("router is gone")));
    }

    /// Ends a request.
    fn finish(&mut self, id: u64, outcome: Outcome) {
        self.end_attempt(id, |_, _| {});
        let request = self.requests.remove(&id).expect("a request ends once");
        let took = self.now - request.arrived;
        assert!(took <= DEADLINE, "request {id} took {took:?}: {outcome:?}");
        self.note(|| format!("request {id} ends: {outcome:?}"));
        self.count(match outcome {
            Outcome::Answered { cached_tokens: 0, .. } => "answered without reuse",
            Outcome::Answered { .. } => "answered with reuse",
            Outcome::Error(why) => why,
        });
        self.conversations[request.conversation].last = Some(outcome);
        if self.has_traffic {
            self.after(50..1500, Event::Turn(request.conversation));
        }
    }
}

/// Returns the keys of the blocks that a prompt can reuse: its last token is always computed.
pub fn keys(model: &ModelInfo, tokens: &[Token]) -> Vec<BlockKey> {
    let chain = block_chain(&root(model), &tokens[..tokens.len() - 1], model.block_size_tokens);
    chain.iter().map(|hash| hash.key()).collect()
}
