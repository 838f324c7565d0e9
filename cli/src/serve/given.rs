//! The settings of worker and router: flags, variables and configuration files.
//!
//! The programs themselves print them (`--print-config`), because they know the spellings of their flags and the
//! precedence.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context as _, bail};
use tokio::process::Command;

use super::plan::{Flags, Programs};

/// Settings by name, without defaults.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Settings of every worker.
    pub worker: toml::Table,
    /// Settings of the router.
    pub router: toml::Table,
}

impl Given {
    /// Runs the programs with `--print-config`.
    ///
    /// Errors: a program cannot be started, or refuses its flags.
    pub async fn of(programs: &Programs, flags: &Flags) -> anyhow::Result<Self> {
        let worker = settings(&programs.worker, &flags.workers).await?;
        Ok(Self { worker, router: settings(&programs.router, &flags.router).await? })
    }
}

async fn settings(program: &Path, flags: &[OsString]) -> anyhow::Result<toml::Table> {
    let output = Command::new(program).args(flags).arg("--print-config").output().await;
    let output = output.with_context(|| format!("{} cannot be started", program.display()))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("{} refuses its flags:\n{}", program.display(), reason.trim_end());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.parse().with_context(|| format!("{} prints a configuration that is not TOML", program.display()))
}
