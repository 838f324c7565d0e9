//! The clients of a chaos run: they run scripts one after the other and judge every answer.
//!
//! Not here: the scripts (`cases`), the final verdict (`verdict`). A client behaves like one behind a load balancer: if
//! a router does not accept a request, because it is being restarted, the client sends it to the next router. Every
//! other failure counts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use indicatif::ProgressBar;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use reqwest::header::HeaderMap;
use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;
use warmpath_common::headers;

use super::cases::{Case, Kind, Script};
use super::reply::{Said, StreamReader};
use super::site::FleetState;

/// Time in which every request must get its answer or its error.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Pause of a client before it tries another router.
const NEXT_ROUTER_PAUSE: Duration = Duration::from_millis(50);
/// Most events that a client reads before it leaves in the middle.
const EVENTS_BEFORE_LEAVING_MAX: usize = 60;

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The answer is that of the reference.
    Right,
    /// The client left; the part that it had received is a prefix of the reference.
    Left,
    /// The router was killed in the middle of the answer.
    RouterKilled,
    /// The answer differs from that of the reference.
    Wrong,
    /// The answer broke off, or is no valid response.
    Broken,
    /// No answer began: an error, or no response at all.
    Refused,
    /// An error that no client can read.
    Unclear,
    /// Nothing arrived within the deadline.
    Late,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 8] = [
        Self::Right,
        Self::Left,
        Self::RouterKilled,
        Self::Wrong,
        Self::Broken,
        Self::Refused,
        Self::Unclear,
        Self::Late,
    ];

    /// Returns whether it satisfies the invariants.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Right | Self::Left | Self::RouterKilled)
    }
}

/// A completed request.
#[derive(Debug, Clone)]
pub struct Record {
    /// Kind of its script.
    pub kind: Kind,
    /// Time when it was sent.
    pub sent: Instant,
    /// Outcome.
    pub outcome: Outcome,
    /// Description of the failure; empty if there is none.
    pub fault: String,
    /// Id and router of the request, for their logs.
    pub trail: String,
    /// Prompt tokens, according to the response's headers.
    pub prompt_tokens: u64,
    /// Prompt tokens that were reused.
    pub cached_tokens: u64,
    /// Pauses of its stream before it continued at another worker, with their ends. Units: milliseconds.
    pub pauses: Vec<(Instant, f64)>,
    /// Time from sending to the first event. Units: milliseconds.
    pub ttft_ms: Option<f64>,
    /// Number of routers that did not accept it.
    pub n_passed_on: u32,
}

impl Record {
    /// Returns the failure in words; `start` is the start of the run.
    pub fn complaint(&self, start: Instant) -> String {
        let at_s = self.sent.saturating_duration_since(start).as_secs_f64();
        format!("{at_s:.1} s: {} {:?}, {}: {}", self.kind.name(), self.outcome, self.trail, self.fault)
    }
}

/// The requests so far.
#[derive(Debug, Default)]
pub struct Tally {
    /// The lock is held for one entry or a copy.
    records: Mutex<Vec<Record>>,
    n_bad: AtomicU64,
    n: AtomicU64,
}

impl Tally {
    fn add(&self, record: Record) {
        self.n.fetch_add(1, Ordering::Relaxed);
        self.n_bad.fetch_add(u64::from(!record.outcome.is_good()), Ordering::Relaxed);
        self.lock().push(record);
    }

    /// Returns the number of requests, and of those that break an invariant.
    pub fn counts(&self) -> (u64, u64) {
        (self.n.load(Ordering::Relaxed), self.n_bad.load(Ordering::Relaxed))
    }

    /// Returns the records so far.
    pub fn records(&self) -> Vec<Record> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State that all clients share.
#[derive(Debug)]
pub struct Load {
    /// Scripts to choose from.
    pub scripts: Vec<Script>,
    /// The routers.
    pub state: Arc<FleetState>,
    /// Destination of the records.
    pub tally: Arc<Tally>,
    /// Whether the clients end after their current request.
    pub is_over: AtomicBool,
    /// Start of the run.
    pub start: Instant,
    /// Bar above which bad requests are shown.
    pub bar: ProgressBar,
}

/// Result of an exchange with one router.
enum Exchange {
    /// No response began.
    NoResponse(String),
    /// An error status.
    Status(u16, String),
    /// A response that ended.
    Done(Said),
    /// A response that the client left.
    Left(Said),
    /// A response that broke off.
    Broken(String),
}

impl Load {
    /// Runs scripts until the load is over; the client's number and the seed choose them.
    ///
    /// Errors: no HTTP client can be made.
    pub async fn client(self: Arc<Self>, seed: u64, number: usize) -> anyhow::Result<()> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(number as u64));
        let http = reqwest::Client::builder().no_proxy().build()?;
        while !self.is_over.load(Ordering::Relaxed) {
            let script = &self.scripts[rng.random_range(0..self.scripts.len())];
            for case in &script.cases {
                let n_events = rng.random_range(1..=EVENTS_BEFORE_LEAVING_MAX);
                let leaves_after = if script.kind == Kind::Cancelled { n_events } else { usize::MAX };
                let first_router = rng.random_range(0..self.state.routers.len());
                let record = self.ask(&http, script.kind, case, leaves_after, first_router).await;
                let is_good = record.outcome.is_good();
                if !is_good {
                    self.bar.suspend(|| eprintln!("{}", record.complaint(self.start)));
                }
                self.tally.add(record);
                if !is_good || self.is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Sends a request to the routers in turn until one accepts it, and judges the response.
    async fn ask(
        &self,
        http: &reqwest::Client,
        kind: Kind,
        case: &Case,
        leaves_after: usize,
        first_router: usize,
    ) -> Record {
        let sent_at = Instant::now();
        let mut record = Record {
            kind,
            sent: sent_at,
            outcome: Outcome::Late,
            fault: String::new(),
            trail: String::new(),
            prompt_tokens: 0,
            cached_tokens: 0,
            pauses: Vec::new(),
            ttft_ms: None,
            n_passed_on: 0,
        };
        loop {
            let router = (first_router + record.n_passed_on as usize) % self.state.routers.len();
            let before = self.state.router(router);
            let url = self.state.routers[router].as_str();
            let exchanging = exchange(http, url, case, leaves_after, &mut record);
            let outcome = timeout(DEADLINE.saturating_sub(sent_at.elapsed()), exchanging).await;
            let now = self.state.router(router);
            let is_killed = now.n_kills != before.n_kills;
            let is_leaving = before.is_leaving || now.is_leaving || is_killed;
            record.trail = format!("{} through router-{router}", record.trail);
            (record.outcome, record.fault) = match outcome {
                Err(_) => (Outcome::Late, format!("no end after {:.1} s", sent_at.elapsed().as_secs_f64())),
                Ok(Exchange::NoResponse(_) | Exchange::Status(503, _)) if is_leaving => {
                    record.n_passed_on += 1;
                    tokio::time::sleep(NEXT_ROUTER_PAUSE).await;
                    continue;
                }
                Ok(Exchange::Broken(_)) if is_killed => (Outcome::RouterKilled, String::new()),
                Ok(other) => judge(other, &case.expected),
            };
            return record;
        }
    }
}

/// Returns the outcome of an exchange, and the failure in words.
fn judge(exchange: Exchange, expected: &Said) -> (Outcome, String) {
    match exchange {
        Exchange::NoResponse(error) => (Outcome::Refused, error),
        Exchange::Status(status, text) => {
            let body: Value = serde_json::from_str(&text).unwrap_or_default();
            let is_clear = body.pointer("/error/message").is_some_and(Value::is_string);
            (if is_clear { Outcome::Refused } else { Outcome::Unclear }, format!("{status}: {text}"))
        }
        Exchange::Broken(error) => (Outcome::Broken, error),
        Exchange::Done(said) if said == *expected => (Outcome::Right, String::new()),
        Exchange::Left(said) if said.begins(expected) => (Outcome::Left, String::new()),
        Exchange::Done(said) | Exchange::Left(said) => (Outcome::Wrong, format!("{said:?} instead of {expected:?}")),
    }
}

/// Sends a request to one router and reads the response.
async fn exchange(
    http: &reqwest::Client,
    router: &str,
    case: &Case,
    leaves_after: usize,
    record: &mut Record,
) -> Exchange {
    let send_result = http.post(format!("{router}{}", case.path)).json(&case.body).send().await;
    let response = match send_result {
        Ok(response) => response,
        Err(error) => return Exchange::NoResponse(chain(error)),
    };

    // A response in one piece: an error with its text, or an answer that was not streamed.
    let status = response.status();
    describe(record, response.headers());
    if !status.is_success() {
        return match response.text().await {
            Ok(text) => Exchange::Status(status.as_u16(), text),
            Err(error) => Exchange::Broken(chain(error)),
        };
    }
    if !record.kind.is_streamed() {
        let answer = response.json::<Value>().await;
        return match answer {
            Ok(answer) => Exchange::Done(Said::of_whole(case.path, &answer)),
            Err(error) => Exchange::Broken(chain(error)),
        };
    }

    // A stream: the first event is the TTFT, and a failover between two events is a pause that the client notices.
    let mut reader = StreamReader::new(case.path);
    let mut pieces = response.bytes_stream();
    let mut last_event = Instant::now();
    while let Some(piece) = pieces.next().await {
        let (n_events, n_failovers) = (reader.n_events(), reader.n_failovers());
        let parsed_piece = piece.map_err(anyhow::Error::from).and_then(|piece| reader.push(&piece));
        if let Err(error) = parsed_piece {
            return Exchange::Broken(format!("{error:#}, after {n_events} events"));
        }
        if reader.n_events() == n_events {
            continue;
        }
        record.ttft_ms.get_or_insert_with(|| record.sent.elapsed().as_secs_f64() * 1e3);
        if reader.n_failovers() > n_failovers {
            record.pauses.push((Instant::now(), last_event.elapsed().as_secs_f64() * 1e3));
        }
        last_event = Instant::now();
        if reader.n_events() >= leaves_after {
            return Exchange::Left(reader.so_far().clone());
        }
    }
    reader.finish().map_or_else(|error| Exchange::Broken(format!("{error:#}")), Exchange::Done)
}

fn describe(record: &mut Record, headers: &HeaderMap) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let count = |name: &str| text(name).parse::<u64>().unwrap_or_default();
    record.trail = format!("{} at {}", text(headers::REQUEST_ID), text(headers::WORKER));
    record.prompt_tokens = count(headers::PROMPT_TOKENS);
    record.cached_tokens = count(headers::CACHED_TOKENS);
}

fn chain(error: reqwest::Error) -> String {
    format!("{:#}", anyhow::Error::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_judged_by_the_reference() {
        let said = |text: &str| Said { texts: vec![text.to_owned()], output_tokens: 2, end: "length".to_owned() };
        let expected = said("a b");
        let outcome = |exchange| judge(exchange, &expected).0;
        assert_eq!(outcome(Exchange::Done(said("a b"))), Outcome::Right);
        assert_eq!(outcome(Exchange::Done(said("a"))), Outcome::Wrong);
        assert_eq!(outcome(Exchange::Left(said("a"))), Outcome::Left);
        assert_eq!(outcome(Exchange::Left(said("b"))), Outcome::Wrong);
        assert_eq!(outcome(Exchange::Broken(String::new())), Outcome::Broken);
        assert_eq!(outcome(Exchange::Status(503, r#"{"error": {"message": "full"}}"#.to_owned())), Outcome::Refused);
        assert_eq!(outcome(Exchange::Status(502, "<html>".to_owned())), Outcome::Unclear);
    }
}
