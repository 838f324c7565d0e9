//! What a model would take of memory, as its worker computes it without loading weights.

use std::path::Path;

use anyhow::{Context as _, bail};
use tokio::process::Command;
use warmpath_common::host::MemoryProjection;

/// Lines of an error that are shown. Source: as for the log of a worker.
const LINES_MAX: usize = 4;

/// Returns what a model would take of memory, if its files are here.
///
/// Errors: the worker cannot be started, or refuses the model; its reason is in the message.
pub async fn project(program: &Path, args: Vec<std::ffi::OsString>) -> anyhow::Result<MemoryProjection> {
    let mut command = Command::new(program);
    command.args(args).args(["--print-memory", "--offline"]);
    command.stdin(std::process::Stdio::null()).kill_on_drop(true);
    let output = command.output().await;
    let output = output.with_context(|| format!("{} cannot be started", program.display()))?;
    if !output.status.success() {
        bail!("{}", reason(&String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).context("the worker's --print-memory is not readable")
}

/// Returns the reason in a program's last words: an error in flags comes before advice, anything else comes last.
pub(super) fn reason(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let of_flags = lines.iter().position(|line| line.starts_with("error: "));
    let start = of_flags.unwrap_or(lines.len().saturating_sub(LINES_MAX));
    lines[start..].iter().take(LINES_MAX).copied().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_an_error_in_flags_or_the_end_of_the_log() {
        let flags = "error: unexpected argument '--x' found\n\n  tip: a\n\nUsage: b\n\nFor more information\nc\n";
        assert_eq!(reason(flags), "error: unexpected argument '--x' found; tip: a; Usage: b; For more information");
        assert_eq!(reason("1\n2\n3\n4\n5"), "2; 3; 4; 5");
        assert_eq!(reason(""), "");
    }
}
