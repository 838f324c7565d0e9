//! One command of a report, run in a process group of its own with a log and a time limit, and ended at an interrupt.
//!
//! A command starts servers and cannot end them if it is killed, so the whole group gets the signal.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout};

/// Time limit of a command. Source: own choice: twice the time of the longest one on two cores.
const TIMEOUT: Duration = Duration::from_secs(1200);
/// Time in which the processes of a command must end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(15);
/// Time between two checks whether they have ended.
const END_POLL: Duration = Duration::from_millis(50);
/// Most lines of a reason.
const REASON_LINES_MAX: usize = 4;

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// It succeeded.
    Succeeded,
    /// It failed, for this reason.
    Failed(String),
}

/// The signals that end a report: SIGINT (Ctrl-C) and SIGTERM.
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    /// Installs the signal handlers.
    ///
    /// Errors: the operating system refuses.
    pub fn listen() -> anyhow::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next signal; returns immediately if one came since the last call.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Runs a command until it ends, with its output in `log`.
///
/// Errors: it was interrupted, and all its processes have ended; the log cannot be written. A command that cannot be
/// started, fails or takes too long is no error.
pub async fn run(mut command: Command, log: &Path, interrupt: impl Future<Output = ()>) -> anyhow::Result<Run> {
    let output = File::create(log).with_context(|| format!("creating {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0).kill_on_drop(true);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Run::Failed(format!("it cannot be started: {error}"))),
    };
    tokio::select! {
        ended = timeout(TIMEOUT, child.wait()) => match ended {
            Ok(status) if status.as_ref().is_ok_and(std::process::ExitStatus::success) => Ok(Run::Succeeded),
            Ok(status) => {
                let status = format!("it ended with {}", status?);
                Ok(Run::Failed(reason(&std::fs::read_to_string(log)?, &status)))
            }
            Err(_) => {
                end_group(&mut child).await?;
                Ok(Run::Failed(format!("it took longer than {} minutes", TIMEOUT.as_secs() / 60)))
            }
        },
        () = interrupt => {
            end_group(&mut child).await?;
            bail!("interrupted")
        }
    }
}

/// Ends a process and its group: with SIGTERM, then, if that does not help, with SIGKILL.
async fn end_group(child: &mut Child) -> anyhow::Result<()> {
    let Some(pid) = child.id() else { return Ok(()) };
    signal_group(pid, "-TERM").await?;
    let group_ends = async {
        child.wait().await?;
        while signal_group(pid, "-0").await? {
            sleep(END_POLL).await;
        }
        anyhow::Ok(())
    };
    if timeout(END_TIMEOUT, group_ends).await.is_err() {
        signal_group(pid, "-KILL").await?;
        child.wait().await?;
    }
    Ok(())
}

/// Sends a signal to a process group; returns whether it has processes.
async fn signal_group(pid: u32, signal: &str) -> anyhow::Result<bool> {
    let group = format!("-{pid}");
    let mut kill = Command::new("kill");
    kill.args([signal, "--", &group]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(kill.status().await.context("starting kill")?.success())
}

/// Returns the reason for a failure: the error at the end of the log, or its last line, or else `status`.
fn reason(log: &str, status: &str) -> String {
    let said = log.split("\nStack backtrace:").next().unwrap_or_default();
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let error = lines.iter().rposition(|line| line.starts_with("Error: "));
    let from = error.unwrap_or(lines.len().saturating_sub(1));
    let reason_lines: Vec<&str> =
        lines[from..].iter().take(REASON_LINES_MAX).map(|line| line.trim_start_matches("Error: ")).collect();
    if reason_lines.is_empty() { status.to_owned() } else { reason_lines.join(" ") }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    async fn ran(command: Command) -> Run {
        let folder = tempfile::tempdir().expect("a folder");
        run(command, &folder.path().join("log"), std::future::pending()).await.expect("nothing interrupts it")
    }

    #[tokio::test]
    async fn a_command_that_fails_says_why() {
        assert_eq!(ran(shell("echo fine")).await, Run::Succeeded);
        let failed = |reason: &str| Run::Failed(reason.to_owned());
        assert_eq!(ran(shell("echo 'no such model' >&2; exit 3")).await, failed("no such model"));
        let error = "printf 'noise\\nError: our fleet\\n\\nCaused by:\\n    no port\\n\\nStack backtrace:\\n  0: main\\n' >&2; exit 1";
        assert_eq!(ran(shell(error)).await, failed("our fleet Caused by: no port"));
        assert_eq!(ran(shell("exit 3")).await, failed("it ended with exit status: 3"));
        let Run::Failed(reason) = ran(Command::new("/does/not/exist")).await else { panic!("it cannot run") };
        assert!(reason.starts_with("it cannot be started"), "{reason}");
    }

    #[tokio::test]
    async fn an_interrupt_ends_the_servers_that_a_command_has_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo can be started");
        assert!(made.success());
        let script = format!("exec 9>{}; sleep 1000 & echo started >&9; wait", pipe.display());
        let (started, wait) = tokio::sync::oneshot::channel();
        // The pipe ends once neither the command nor its server has it open any more.
        let reading = tokio::task::spawn_blocking(move || {
            let mut lines = BufReader::new(File::open(pipe)?).lines();
            let first = lines.next().transpose()?;
            // The test may have failed and ended.
            let _ = started.send(());
            Ok::<_, std::io::Error>((first, lines.count()))
        });
        let started = async { wait.await.expect("the server is started") };
        let error = run(shell(&script), &folder.path().join("log"), started).await.expect_err("it is interrupted");
        assert_eq!(error.to_string(), "interrupted");
        let read = timeout(Duration::from_secs(60), reading).await.expect("the server has ended");
        assert_eq!(read.expect("nothing panics").expect("it can be read"), (Some("started".to_owned()), 0));
    }
}
