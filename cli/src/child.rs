//! One child process: its start and its end, and its log, which is passed on line by line. [`keep`] restarts it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use warmpath_shell::log;

/// First pause before a child is restarted; it doubles each time that the child ends soon after a start. Source: own
/// choice, as for `PAUSE_MAX` and `STEADY`: an operator's script would do the same.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause before a child is restarted. Source: as [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Time for which a child must have run so that the next pause is again the first. Source: as [`PAUSE_MIN`].
const STEADY: Duration = Duration::from_secs(60);
/// Longest wait for the last lines of a child that has ended; a grandchild may keep the pipe open. Source: own choice:
/// the pipe already holds the lines, so reading them takes milliseconds.
const LAST_LINES_MAX: Duration = Duration::from_secs(2);

/// Lines of a child's log that are kept as the reason of its end. Source: own choice: an error with its causes is one
/// line, and a panic has three.
const LAST_LINES: usize = 4;

/// Filter of a child's log, beside that of libraries, unless the user sets one: what a worker does until it is ready,
/// and what goes wrong.
const LOG_FILTER: &str = "warn,warmpath_worker::start=info";

/// A program with its flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Prefix of each line of its log.
    pub name: String,
    /// File of the program.
    pub path: PathBuf,
    /// Its flags.
    pub args: Vec<OsString>,
}

/// Signals that control a child.
pub struct ChildSignals {
    /// Cancelled when the child must end: it then gets SIGTERM and finishes its work.
    pub ends: CancellationToken,
    /// Cancelled when the child must be killed.
    pub kill: CancellationToken,
    /// Cancelled when the fleet has been ready once; from then on the child is restarted when it ends.
    pub is_ready: CancellationToken,
}

/// A running child and the task that passes its log on.
pub struct Running {
    child: Child,
    log: Option<JoinHandle<()>>,
    /// Last lines of the log. The lock is held to add one or to copy them, never across an await.
    last_lines: Arc<Mutex<VecDeque<String>>>,
}

impl Running {
    /// Returns the id of the process, while it has not been waited for.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Returns the last lines of the log.
    pub fn last_lines(&self) -> Vec<String> {
        self.last_lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Waits until the child has ended and its last lines, which contain the reason, are passed on.
    pub async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        if let Some(log) = self.log.take() {
            // Lines that do not arrive in time are lost.
            let _ = tokio::time::timeout(LAST_LINES_MAX, log).await;
        }
        Ok(status)
    }
}

/// Keeps a program running until it must end.
///
/// Errors: it cannot be started, or ends, before the fleet has been ready.
pub async fn keep(program: &Program, signals: ChildSignals) -> anyhow::Result<()> {
    let mut pause = PAUSE_MIN;
    loop {
        let start_time = Instant::now();
        match start(program) {
            Ok(mut running) => tokio::select! {
                status = running.wait() => {
                    let status = status.with_context(|| format!("waiting for {}", program.name))?;
                    if signals.ends.is_cancelled() {
                        return Ok(());
                    }
                    if !signals.is_ready.is_cancelled() {
                        bail!("{} ended before the fleet was ready: {status}", program.name);
                    }
                    if start_time.elapsed() >= STEADY {
                        pause = PAUSE_MIN;
                    }
                    log::line(&format!("warmpath: {} ended: {status}; restart in {pause:?}", program.name));
                }
                () = signals.ends.cancelled() => return end(&mut running, &signals.kill).await,
            },
            // Its file may be being replaced, or the system short of memory: the others continue.
            Err(error) if signals.is_ready.is_cancelled() => {
                log::line(&format!("warmpath: {}: {error:#}; again in {pause:?}", program.name));
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = signals.ends.cancelled() => return Ok(()),
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Starts a program.
///
/// Errors: it cannot be started.
pub fn start(program: &Program) -> anyhow::Result<Running> {
    let mut command = Command::new(&program.path);
    // The child has its own process group, so that the terminal's Ctrl-C does not reach it: children must end in order.
    command.args(&program.args).process_group(0).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    if std::env::var_os(log::FILTER_VARIABLE).is_none() {
        command.env(log::FILTER_VARIABLE, format!("{LOG_FILTER},{}", log::LIBRARY_FILTER));
    }
    end_with_parent(&mut command);
    let mut child = command.spawn().with_context(|| format!("starting {}", program.path.display()))?;
    let last_lines = Arc::default();
    let pass_on = |stderr| tokio::spawn(pass_on(program.name.clone(), stderr, Arc::clone(&last_lines)));
    let log = child.stderr.take().map(pass_on);
    Ok(Running { child, log, last_lines })
}

/// Makes the system end the child if this process is killed, so that no worker and its memory remain, and no download.
#[cfg(target_os = "linux")]
pub fn end_with_parent(command: &mut Command) {
    let set_signal = || {
        // SAFETY: the call takes two numbers and changes nothing but the calling process.
        let status = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
        if status == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes one system call and neither allocates nor takes a lock.
    unsafe { command.pre_exec(set_signal) };
}

/// Does nothing, as this system has no such call.
#[cfg(not(target_os = "linux"))]
pub fn end_with_parent(_command: &mut Command) {}

/// Asks a child to end and waits for it; kills it if `kill` is cancelled meanwhile.
async fn end(running: &mut Running, kill: &CancellationToken) -> anyhow::Result<()> {
    if let Some(pid) = running.pid() {
        send_signal(pid, libc::SIGTERM);
    }
    tokio::select! {
        status = running.wait() => status.map(drop).context("waiting for a child"),
        () = kill.cancelled() => running.child.kill().await.context("killing a child"),
    }
}

/// Sends a signal to a child that has not been waited for.
pub fn send_signal(pid: u32, signal: libc::c_int) {
    if let Ok(pid) = libc::pid_t::try_from(pid) {
        // SAFETY: the call takes two numbers; the process is a child that has not been waited for, so its id is its
        // own.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Passes a child's log on, each line after the child's name, and keeps the last ones.
async fn pass_on(name: String, stderr: impl AsyncRead + Unpin, last_lines: Arc<Mutex<VecDeque<String>>>) {
    let mut lines = BufReader::new(stderr);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).await.is_ok_and(|n_bytes| n_bytes > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        log::line(&format!("{name} | {text}"));
        let mut last_lines = last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        if last_lines.len() == LAST_LINES {
            last_lines.pop_front();
        }
        last_lines.push_back(text);
        drop(last_lines);
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing() -> Program {
        Program { name: "worker-0".to_owned(), path: "/nonexistent/warmpath-worker".into(), args: Vec::new() }
    }

    fn signals() -> ChildSignals {
        let token = CancellationToken::new;
        ChildSignals { ends: token(), kill: token(), is_ready: token() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_cannot_be_restarted_for_a_while_does_not_end_the_fleet() {
        let signals = signals();
        signals.is_ready.cancel();
        let (ends, program) = (signals.ends.clone(), missing());
        let kept = keep(&program, signals);
        tokio::pin!(kept);
        assert!(tokio::time::timeout(10 * PAUSE_MAX, &mut kept).await.is_err(), "it tries again and again");
        ends.cancel();
        kept.await.expect("it was told to end");
    }

    #[tokio::test]
    async fn a_program_that_cannot_be_started_at_first_ends_the_fleet() {
        let error = keep(&missing(), signals()).await.expect_err("there is no such file");
        assert!(format!("{error:#}").contains("/nonexistent/warmpath-worker"), "{error:#}");
    }
}
