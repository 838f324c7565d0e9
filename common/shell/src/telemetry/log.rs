//! The log on stderr.
//!
//! Not here: the choice of what is logged (the callers).
//!
//! Logging must never fail or block its caller. A thread of its own writes; a line that cannot be written, or for which
//! the queue is full, is dropped and counted.

use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// Variable with the filter of the log.
pub const FILTER_VARIABLE: &str = EnvFilter::DEFAULT_ENV;

/// Filter of libraries, unless [`FILTER_VARIABLE`] is set. llama.cpp logs hundreds of lines for every file that it
/// loads, and warns about sizes of contexts that the worker has chosen. The Kubernetes client logs an error at each
/// attempt to reach an unavailable API server; discovery logs it once.
pub const LIBRARY_FILTER: &str = "llama-cpp-2=error,kube_client=off";

/// Most lines that wait to be written.
///
/// Source: own choice: some megabytes at most; llama.cpp logs some hundred lines for a file that it loads.
const LINES_WAITING_MAX: usize = 8192;

/// Longest time for which a process that ends waits until its last lines are written.
///
/// Source: own choice: a reader of the log that still runs is rarely busy for longer.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of dropped lines.
static N_LOST: AtomicU64 = AtomicU64::new(0);

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Runs a step of a program's start, and logs its time at debug level.
pub fn timed<T>(step: &str, run: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = run();
    tracing::debug!(step, ms = began.elapsed().as_millis(), "start");
    result
}

/// A running log; dropping it waits for its last lines.
#[derive(Debug)]
pub struct Log(SyncSender<Order>);

/// Message to the thread that writes.
#[derive(Debug)]
enum Order {
    /// Write a line.
    Line(Box<[u8]>),
    /// Confirm that all lines before have been written.
    Tell(SyncSender<()>),
}

/// Queue of [`line()`].
static LINES: OnceLock<SyncSender<Order>> = OnceLock::new();

/// Starts the log of this process. Call it once.
pub fn start(format: LogFormat) -> Log {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(format!("info,{LIBRARY_FILTER}")));
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = start_thread();
    let lines = log.0.clone();
    let writer = move || Lines(lines.clone());
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(colours);
    match format {
        LogFormat::Text => subscriber.init(),
        LogFormat::Json => subscriber.json().init(),
    }
    log
}

/// Starts a log of lines that are written as they are, by [`line()`]. Call it once.
pub fn start_lines() -> Log {
    let log = start_thread();
    LINES.get_or_init(|| log.0.clone());
    log
}

/// Writes a line to the log of [`start_lines`].
pub fn line(text: &str) {
    if let Some(lines) = LINES.get() {
        // A line is never refused.
        let _ = Lines(lines.clone()).write_all(format!("{text}\n").as_bytes());
    }
}

fn start_thread() -> Log {
    let (log, orders) = channel();
    // Without a thread, every line is dropped and counted.
    let _ = std::thread::Builder::new().name("log".to_owned()).spawn(move || write_to(io::stderr(), &orders));
    log
}

/// Returns how many lines this process has dropped.
pub fn n_lost() -> u64 {
    N_LOST.load(Ordering::Relaxed)
}

impl Drop for Log {
    fn drop(&mut self) {
        let (tell, told) = sync_channel(1);
        if self.0.try_send(Order::Tell(tell)).is_ok() {
            // An error means that the lines cannot be written.
            let _ = told.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

fn channel() -> (Log, Receiver<Order>) {
    let (orders, taken) = sync_channel(LINES_WAITING_MAX);
    (Log(orders), taken)
}

fn write_to(mut out: impl Write, orders: &Receiver<Order>) {
    while let Ok(order) = orders.recv() {
        match order {
            Order::Line(line) => {
                if out.write_all(&line).and_then(|()| out.flush()).is_err() {
                    N_LOST.fetch_add(1, Ordering::Relaxed);
                }
            }
            // An error means that the caller no longer waits.
            Order::Tell(tell) => drop(tell.try_send(())),
        }
    }
}

/// Writer of whole lines, as `tracing_subscriber` writes them.
struct Lines(SyncSender<Order>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.try_send(Order::Line(line.into())).is_err() {
            N_LOST.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Lock that lets one test at a time read the number of dropped lines.
    static LOOKING: Mutex<()> = Mutex::new(());

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_last_lines_are_written_before_the_log_is_gone() {
        let _looking = LOOKING.lock().expect("no panic");
        let ((log, orders), kept) = (channel(), Kept::default());
        let out = kept.clone();
        std::thread::spawn(move || write_to(out, &orders));
        for n in 0..100 {
            writeln!(Lines(log.0.clone()), "{n}").expect("a line is never refused");
        }
        drop(log);
        let text = String::from_utf8(kept.0.lock().expect("no panic").clone()).expect("text");
        assert!(text.replace('\n', " ").ends_with("98 99 "), "{text}");
    }

    #[test]
    fn lines_that_cannot_be_written_or_are_too_many_are_lost_and_counted() {
        let _looking = LOOKING.lock().expect("no panic");
        let before = n_lost();
        let (log, orders) = channel();
        for _ in 0..LINES_WAITING_MAX + 3 {
            Lines(log.0.clone()).write_all(b"a line").expect("a line is never refused");
        }
        assert_eq!(n_lost() - before, 3, "nobody writes, and nobody waits for it");
        let writing = std::thread::spawn(move || write_to(Broken, &orders));
        drop(log);
        writing.join().expect("no panic");
        assert_eq!(n_lost() - before, LINES_WAITING_MAX as u64 + 3);
    }
}
