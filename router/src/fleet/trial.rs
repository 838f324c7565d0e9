//! Trial of a worker's vocabulary in a separate process, before this process uses it.
//!
//! A malicious vocabulary or chat template can make llama.cpp fail an assertion, throw or allocate without limit, and
//! any of this would end the router. So the router starts its own program as another process, with limits on memory (on
//! Linux) and time. That process loads the file, tokenizes and renders with it, and reports the result. Loading is
//! deterministic, so a file that loads there loads here. Failures that depend on the text are ruled out by the
//! vocabulary's shape (`warmpath_gguf::Header::checked_tokens`).
//!
//! Not here: the download (`vocabulary`), the texts of the trial (`probe`).

mod probe;

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rlimit::Resource;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use warmpath_prompt::{DeclaredVocabulary, OpenError, PromptMaker, PromptOptions};
use warmpath_shell::chain;

use crate::config::{TRIAL_MEMORY_BYTES_MAX, TRIAL_PROCESSOR_TIME_MAX, TrialConfig};

/// First argument of a process that runs [`try_here`] and nothing else; the file follows.
pub const TRIAL_COMMAND: &str = "try-vocabulary";

/// Maximum number of bytes read of the process's output. Source: own choice: far above a verdict and an assertion's
/// text.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// Stack of the trial's thread, the same as that of the threads that tokenize in a router. Source: tokio's default.
const STACK_BYTES: usize = 2 << 20;

/// Exit status of a Rust program that panicked.
const PANICKED: i32 = 101;

/// Result of a vocabulary's trial.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum TrialResult {
    /// The vocabulary tokenizes and renders.
    Sound,
    /// The vocabulary would harm the process that uses it.
    Refused {
        /// Reason.
        reason: String,
    },
}

/// Reason why a trial gave no result that concerns the vocabulary.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The process that tries the vocabulary cannot be limited.
    // This and the next are one line, with the cause: the router logs the last line that the process has written.
    #[error("cannot set the limits of the process that tries the vocabulary: {0}")]
    Limit(std::io::Error),
    /// The process that tries the vocabulary cannot start the thread for it.
    #[error("cannot start a thread to try the vocabulary: {0}")]
    Thread(std::io::Error),
    /// The process cannot be started.
    #[error("cannot start {} to try the vocabulary", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The process cannot be waited for.
    #[error("cannot wait for the process that tries the vocabulary")]
    Wait(#[source] std::io::Error),
    /// The process took too long.
    #[error("trying the vocabulary took longer than {} s", timeout.as_secs_f64())]
    Timeout {
        /// Its time limit.
        timeout: Duration,
    },
    /// The process ended without a verdict.
    #[error("the process that tries the vocabulary ended with {status} and without a verdict: {said}")]
    NoVerdict {
        /// Its exit status.
        status: ExitStatus,
        /// The end of its output.
        said: String,
    },
}

/// Tries the vocabulary at `path` in a separate process.
///
/// Cost: that of loading it, and some tenths of a second. Errors: every [`TrialError`].
pub async fn try_out(config: &TrialConfig, path: &Path) -> Result<TrialResult, TrialError> {
    let mut command = Command::new(&config.program);
    command.arg(TRIAL_COMMAND).arg(path);
    // The vocabulary might find a way to read this process's environment.
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|source| TrialError::Start { program: config.program.clone(), source })?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let ended = async { tokio::join!(read(stdout), read(stderr), child.wait()) };
    let timeout = config.timeout;
    let (said, stderr_text, status) =
        tokio::time::timeout(timeout, ended).await.map_err(|_| TrialError::Timeout { timeout })?;
    judge(status.map_err(TrialError::Wait)?, &said, &stderr_text)
}

/// Returns the first bytes of a pipe; an error counts as its end.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let _ = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes).await;
    }
    bytes
}

/// Returns the verdict in the process's output.
///
/// Errors: `NoVerdict` if the machine or its operator ended the process, or it is another program.
fn judge(status: ExitStatus, said: &[u8], stderr_text: &[u8]) -> Result<TrialResult, TrialError> {
    let complaint = last_line(stderr_text);
    let refused = |how: String| Ok(TrialResult::Refused { reason: format!("{how}: {complaint}") });
    match (status.code(), status.signal()) {
        (Some(0), _) => {
            serde_json::from_slice(said).map_err(|_| TrialError::NoVerdict { status, said: last_line(said) })
        }
        (Some(PANICKED), _) => refused("the process that tried it panicked".to_owned()),
        (_, Some(SIGXCPU)) => {
            refused(format!("trying it took more than {} s of processor time", TRIAL_PROCESSOR_TIME_MAX.as_secs()))
        }
        (_, Some(signal)) if !ENDED_BY_OTHERS.contains(&signal) => {
            refused(format!("the process that tried it was ended by signal {signal}"))
        }
        _ => Err(TrialError::NoVerdict { status, said: complaint }),
    }
}

/// Signal of a process that has used up its processor time. Source: Linux's `signal(7)`, as below.
const SIGXCPU: i32 = 24;

/// Signals by which the machine or its operator ends a process: SIGHUP, SIGINT, SIGKILL, SIGTERM. Source: Linux's
/// `signal(7)`.
const ENDED_BY_OTHERS: [i32; 4] = [1, 2, 9, 15];

/// Returns the last line with text, without control characters.
fn last_line(bytes: &[u8]) -> String {
    /// Most characters that are logged. Source: own choice: a long line of a terminal.
    const CHARS_MAX: usize = 300;
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it wrote nothing");
    line.chars().filter(|c| !c.is_control()).take(CHARS_MAX).collect()
}

/// Tries the vocabulary at `path` in this process, which may end it: call this only in a process started for it.
///
/// Limits this process's memory and processor time for good. Errors: `Limit`, `Thread`.
pub fn try_here(path: &Path) -> Result<TrialResult, TrialError> {
    limit(|resource, bound| {
        let (_, hard) = resource.get()?;
        resource.set(bound.min(hard), hard)
    })?;
    let path = path.to_owned();
    let tried = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        let refused = |error: OpenError| chain(&error);
        let options = PromptOptions::default();
        match DeclaredVocabulary::open(&path).map_err(refused)? {
            // No text can harm its tokenizer.
            Some(declared) => probe::chats(&PromptMaker::of_declared(declared, options).map_err(refused)?),
            None => probe::all(&PromptMaker::open(&path, options).map_err(refused)?),
        }
        Ok(())
    });
    Ok(match tried.map_err(TrialError::Thread)?.join() {
        Ok(Ok(())) => TrialResult::Sound,
        Ok(Err(reason)) => TrialResult::Refused { reason },
        Err(_) => TrialResult::Refused { reason: "it panicked".to_owned() },
    })
}

/// Sets the limits of this process by `set`.
fn limit(mut set: impl FnMut(Resource, u64) -> std::io::Result<()>) -> Result<(), TrialError> {
    // macOS refuses a limit below the address space that is mapped when a program starts, which is larger. Source:
    // `dosetrlimit` in XNU's `bsd/kern/kern_resource.c`.
    let memory = cfg!(target_os = "linux").then_some((Resource::AS, TRIAL_MEMORY_BYTES_MAX));
    let others = [
        (Resource::CPU, TRIAL_PROCESSOR_TIME_MAX.as_secs()),
        // A crash leaves no core file behind.
        (Resource::CORE, 0),
    ];
    memory.into_iter().chain(others).try_for_each(|(resource, bound)| set(resource, bound)).map_err(TrialError::Limit)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    fn judged(raw: i32, said: &str, complained: &str) -> Result<TrialResult, String> {
        judge(ExitStatus::from_raw(raw), said.as_bytes(), complained.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_verdict_is_taken_only_from_a_process_that_ended_well() {
        let sound = r#"{"verdict": "sound"}"#;
        assert_eq!(judged(0, sound, ""), Ok(TrialResult::Sound));
        let refused = TrialResult::Refused { reason: "why".to_owned() };
        assert_eq!(judged(0, r#"{"verdict": "refused", "reason": "why"}"#, ""), Ok(refused));
        assert!(judged(0, "running 0 tests", "").unwrap_err().contains("running 0 tests"), "another program");
        assert!(judged(2 << 8, sound, "error: unexpected argument").is_err());
    }

    #[test]
    fn a_crash_is_the_vocabulary_s_fault_unless_a_signal_came_from_outside() {
        let reason = |raw, complained| match judged(raw, "", complained) {
            Ok(TrialResult::Refused { reason }) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            reason(6, "a line\nGGML_ASSERT(a == b) failed\u{7}\n\n"),
            "the process that tried it was ended by signal 6: GGML_ASSERT(a == b) failed"
        );
        assert_eq!(reason(11, ""), "the process that tried it was ended by signal 11: it wrote nothing");
        assert!(reason(SIGXCPU, "").contains("20 s of processor time"));
        assert!(reason(PANICKED << 8, "").contains("panicked"));
        for signal in ENDED_BY_OTHERS {
            assert!(judged(signal, "", "").is_err(), "signal {signal}");
        }
    }

    #[test]
    fn limits_that_cannot_be_set_are_no_verdict() {
        let error = limit(|_, _| Err(ErrorKind::InvalidInput.into())).expect_err("no limit can be set");
        // What a Rust program writes that ends with this error.
        let said = judged(1 << 8, "", &format!("Error: {error}\n")).expect_err("nothing is known of the vocabulary");
        assert!(said.contains("cannot set the limits"), "{said}");
        assert!(said.ends_with("invalid input parameter"), "{said}");
    }

    #[test]
    fn processor_time_is_limited_everywhere_and_memory_on_linux() {
        let mut limits = Vec::new();
        let set = |resource, most| {
            limits.push((resource, most));
            Ok(())
        };
        limit(set).expect("every limit can be set");
        let memory = if cfg!(target_os = "linux") { vec![(Resource::AS, 2 << 30)] } else { vec![] };
        assert_eq!(limits, [memory, vec![(Resource::CPU, 20), (Resource::CORE, 0)]].concat());
    }
}
