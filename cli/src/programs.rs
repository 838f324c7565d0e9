//! The files of worker and router, and the settings with which each would start.
//!
//! The programs themselves print them (`--print-config`), because they know the spellings of their flags and the
//! precedence of flags, variables and configuration files.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use tokio::process::Command;

use crate::serve::Flags;

/// Files of the programs.
#[derive(Debug, Clone)]
pub struct Programs {
    /// warmpath-worker.
    pub worker: PathBuf,
    /// warmpath-router.
    pub router: PathBuf,
}

impl Programs {
    /// Returns the programs in a folder, or in this program's.
    ///
    /// Errors: one is missing.
    pub fn of(bin_dir: Option<&Path>) -> anyhow::Result<Self> {
        Ok(Self { worker: path(bin_dir, "warmpath-worker")?, router: path(bin_dir, "warmpath-router")? })
    }
}

/// Returns the file of a program in a folder, or in this program's.
///
/// Errors: there is none.
pub fn path(bin_dir: Option<&Path>, name: &str) -> anyhow::Result<PathBuf> {
    let bin_dir = match bin_dir {
        Some(dir) => dir.to_owned(),
        None => std::env::current_exe()?.parent().context("this program lies in no folder")?.to_owned(),
    };
    let program = bin_dir.join(name);
    ensure!(program.is_file(), "{} does not exist: --bin-dir names its folder", program.display());
    Ok(program)
}

/// Settings of the programs by name, without defaults.
#[derive(Debug, Clone, Default)]
pub struct ProgramSettings {
    /// Settings of every worker.
    pub worker: toml::Table,
    /// Settings of the router.
    pub router: toml::Table,
}

impl ProgramSettings {
    /// Runs the programs with `--print-config`.
    ///
    /// Errors: a program cannot be started, or refuses its flags.
    pub async fn read(programs: &Programs, flags: &Flags) -> anyhow::Result<Self> {
        let worker = settings(&programs.worker, &flags.workers).await?;
        Ok(Self { worker, ..Self::of_router(programs, flags).await? })
    }

    /// Runs the router with `--print-config`; each worker has its own settings.
    ///
    /// Errors: like [`Self::read`].
    pub async fn of_router(programs: &Programs, flags: &Flags) -> anyhow::Result<Self> {
        Ok(Self { worker: toml::Table::new(), router: settings(&programs.router, &flags.router).await? })
    }
}

/// Returns the settings of a program with these flags.
///
/// Errors: as those of [`ProgramSettings::read`].
pub async fn settings(program: &Path, flags: &[OsString]) -> anyhow::Result<toml::Table> {
    let output = Command::new(program).args(flags).arg("--print-config").output().await;
    let output = output.with_context(|| format!("{} cannot be started", program.display()))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("{} refuses its flags:\n{}", program.display(), reason.trim_end());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.parse().with_context(|| format!("{} prints a configuration that is not TOML", program.display()))
}
