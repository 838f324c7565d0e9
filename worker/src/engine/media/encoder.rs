//! The encoder: a thread that encodes media, one after the other, and keeps their embeddings for a while. Requests take
//! turns, so one image never waits for all images of another request.
//!
//! The engine requests embeddings when a sequence starts whose media are not cached as KV state. The thread wakes it
//! when they are complete. Embeddings that were computed recently are available immediately, for all
//! slots.
//!
//! Not here: the computation (`projector`).

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use moka::sync::Cache;
use warmpath_common::media::{ContentHash, MediaSize};
use warmpath_prompt::{MediaRun, Medium};
use warmpath_worker_core::reports::rates::EncodeAverage;

use super::Projector;
use crate::engine::api::Waker;
use crate::engine::config::StartError;
use crate::engine::counters::Counters;

/// Maximum memory of embeddings that are kept. Units: bytes.
///
/// Source: 27 images of 576 tokens for a model of width 4096; encoding one again takes a second on a CPU.
pub(super) const KEPT_BYTES_MAX: u64 = 256 << 20;

/// Memory of cached embeddings besides the floats. Units: bytes. Source: the sizes of the entry and its allocations,
/// rounded up.
const ENTRY_BYTES: usize = 256;

/// Embeddings of a run of media tokens. Shape: `[tokens x width]`.
type Embeddings = Arc<[f32]>;

/// Outcome of encoding, once there is one: embeddings, or the reason why there are none.
type Outcome = OnceLock<Result<Embeddings, String>>;

/// Outcome that a sequence waits for.
pub(crate) type Encoding = Arc<Outcome>;

/// A run of a medium: the medium's hash and the run's place in it. The projector is always the same.
type Key = (ContentHash, u32);

/// Measured time, which the thread writes and the engine reads; the lock is held for one addition or one division.
type SharedAverage = Arc<Mutex<EncodeAverage>>;

/// Runs of one medium to encode.
struct EncodeJob {
    medium: Arc<Medium>,
    /// Indexes of the runs, and their outcomes, which are dropped when the sequence ends.
    runs: Vec<(u32, Weak<Outcome>)>,
}

/// Handle of the encoder's thread, which ends with it.
pub(crate) struct Encoder {
    projector: Arc<Projector>,
    kept_media: Cache<Key, Embeddings>,
    average: SharedAverage,
    /// `None` once the thread is to end.
    jobs: Option<Sender<VecDeque<EncodeJob>>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Encoder {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // No sequence needs its results any more, so it ends after the current medium.
            let _ = thread.join();
        }
    }
}

impl Encoder {
    /// Starts the thread.
    ///
    /// Errors: `Thread` if the system refuses one.
    pub(crate) fn start(projector: Arc<Projector>, counters: Arc<Counters>, waker: Waker) -> Result<Self, StartError> {
        let weigh = |_: &Key, embeddings: &Embeddings| {
            u32::try_from(size_of_val::<[f32]>(embeddings) + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        let kept_media = Cache::builder().max_capacity(KEPT_BYTES_MAX).weigher(weigh).build();
        let (sender, jobs) = channel();
        let average = SharedAverage::default();
        let worker = EncoderThread {
            projector: Arc::clone(&projector),
            kept_media: kept_media.clone(),
            average: Arc::clone(&average),
            counters,
            waker,
        };
        let thread = std::thread::Builder::new().name("encoder".to_owned()).spawn(move || worker.run(&jobs));
        let thread = thread.map_err(|error| StartError::Thread { reason: error.to_string() })?;
        Ok(Self { projector, kept_media, average, jobs: Some(sender), thread: Some(thread) })
    }

    /// Returns the projector.
    pub(crate) fn projector(&self) -> &Arc<Projector> {
        &self.projector
    }

    /// Returns the measured time to encode a token; `None` until a medium was encoded. Units: milliseconds.
    pub(crate) fn ms_per_token(&self) -> Option<f32> {
        self.average.lock().unwrap_or_else(PoisonError::into_inner).ms_per_token()
    }

    /// Returns the embeddings of each run, which come later if they are not kept.
    pub(crate) fn encode(&self, runs: &[MediaRun]) -> Vec<Encoding> {
        let mut encodings = Vec::with_capacity(runs.len());
        let mut jobs = VecDeque::new();
        for runs in runs.chunk_by(|a, b| Arc::ptr_eq(&a.medium, &b.medium)) {
            let mut job = EncodeJob { medium: Arc::clone(&runs[0].medium), runs: Vec::new() };
            for run in runs {
                let encoding = Encoding::default();
                match self.kept_media.get(&(run.medium.hash, run.nth)) {
                    Some(embeddings) => drop(encoding.set(Ok(embeddings))),
                    None => job.runs.push((run.nth, Arc::downgrade(&encoding))),
                }
                encodings.push(encoding);
            }
            if !job.runs.is_empty() {
                jobs.push_back(job);
            }
        }
        if let Some(sender) = self.jobs.as_ref().filter(|_| !jobs.is_empty())
            && let Err(lost) = sender.send(jobs)
        {
            for encoding in lost.0.iter().flat_map(|job| &job.runs).filter_map(|(_, encoding)| encoding.upgrade()) {
                drop(encoding.set(Err("the encoder has ended".to_owned())));
            }
        }
        encodings
    }
}

/// Jobs of several requests, of which each has one in turn. A request's jobs keep their order.
struct JobQueue<T>(VecDeque<VecDeque<T>>);

impl<T> JobQueue<T> {
    /// Takes the next job; waits for one if there is none. `None` if none can come any more.
    fn next(&mut self, requests: &Receiver<VecDeque<T>>) -> Option<T> {
        self.0.extend(requests.try_iter());
        if self.0.is_empty() {
            self.0.push_back(requests.recv().ok()?);
        }
        let mut jobs = self.0.pop_front()?;
        let next = jobs.pop_front();
        if !jobs.is_empty() {
            self.0.push_back(jobs);
        }
        next
    }
}

/// The thread's own part.
struct EncoderThread {
    projector: Arc<Projector>,
    kept_media: Cache<Key, Embeddings>,
    average: SharedAverage,
    counters: Arc<Counters>,
    /// Wakes the engine, which waits for embeddings.
    waker: Waker,
}

impl EncoderThread {
    fn run(&self, requests: &Receiver<VecDeque<EncodeJob>>) {
        let mut queue = JobQueue(VecDeque::new());
        while let Some(job) = queue.next(requests) {
            self.work(&job);
            self.waker.wake();
        }
    }

    fn work(&self, job: &EncodeJob) {
        // Another sequence may have asked for the same medium before, or the one that asked may have ended.
        let mut missing = Vec::new();
        for (nth, encoding) in &job.runs {
            let Some(encoding) = encoding.upgrade() else { continue };
            match self.kept_media.get(&(job.medium.hash, *nth)) {
                Some(embeddings) => drop(encoding.set(Ok(embeddings))),
                None => missing.push((*nth, encoding)),
            }
        }
        if missing.is_empty() {
            return;
        }
        let began = Instant::now();
        let runs: Vec<u32> = missing.iter().map(|(nth, _)| *nth).collect();
        let encoded_runs = self.projector.encode(&job.medium, &runs);
        let took = began.elapsed();
        match encoded_runs {
            Ok(encoded_runs) => {
                let n_tokens = encoded_runs.iter().map(|run| self.projector.n_tokens(run)).sum();
                self.average.lock().unwrap_or_else(PoisonError::into_inner).encoded(n_tokens, took);
                let encoded_media = match job.medium.size {
                    MediaSize::Image(_) => &self.counters.encoded_images,
                    MediaSize::Audio(_) => &self.counters.encoded_audio,
                };
                encoded_media.fetch_add(1, Relaxed);
                self.counters.encode_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
                for ((nth, encoding), embeddings) in missing.into_iter().zip(encoded_runs) {
                    self.kept_media.insert((job.medium.hash, nth), Arc::clone(&embeddings));
                    drop(encoding.set(Ok(embeddings)));
                }
            }
            Err(reason) => {
                self.counters.encode_failures.fetch_add(1, Relaxed);
                tracing::error!(medium = %job.medium.size, reason, "a medium could not be encoded");
                missing.into_iter().for_each(|(_, encoding)| drop(encoding.set(Err(reason.clone()))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_take_turns_with_their_media() {
        let (sender, requests) = channel();
        let send = |jobs: &[u32]| sender.send(jobs.iter().copied().collect()).unwrap();
        let mut queue = JobQueue(VecDeque::new());
        send(&[1, 2, 3, 4]);
        assert_eq!(queue.next(&requests), Some(1));
        send(&[11]);
        send(&[21, 22]);
        let next: Vec<_> = (0..6).map(|_| queue.next(&requests).unwrap()).collect();
        assert_eq!(next, [2, 11, 21, 3, 22, 4]);
        drop(sender);
        assert_eq!(queue.next(&requests), None);
    }
}
