//! Programs that tests need: the scripts that install them, and their places afterwards.
//!
//! The fleet's own programs are found by `rig::bin_dir`.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::ensure;
use tokio::process::Command as Program;

use crate::rig::root;

/// Runs scripts, each with its arguments, for one test at a time. The first run takes minutes, later ones almost
/// nothing.
///
/// Errors: a script fails.
pub fn make(scripts: &[&[&str]]) -> anyhow::Result<()> {
    // Lets one test at a time check and install; held for the whole time.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    for script in scripts {
        let [path, arguments @ ..] = script else { continue };
        let status = Command::new(root().join(path)).args(arguments).status()?;
        ensure!(status.success(), "{script:?} ended with {status}");
    }
    Ok(())
}

/// Returns the path of a program that is installed on the system or by a script; `None` if it is not available.
pub fn find(program: &str) -> Option<PathBuf> {
    let built_folders = ["target/tools/bin", "target/tools/debian/usr/bin"].map(|folder| root().join(folder));
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&search_path).chain(built_folders);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Returns a Chromium, installed if that is possible, for the pages that Python tests check.
///
/// Errors: a script fails.
pub fn chromium() -> anyhow::Result<Option<PathBuf>> {
    make(&[&["scripts/python-venv.sh"], &["scripts/chromium.sh"]])?;
    let browser = ["chromium-headless-shell", "chromium"].iter().find_map(|program| find(program));
    if browser.is_none() {
        eprintln!("skipped: Chromium cannot be installed here, so the pages are not checked");
    }
    Ok(browser)
}

/// Runs a Python program of the tests to its end; returns its output.
///
/// Errors: it fails; its output is in the message.
pub async fn python(script: &str, args: &[String]) -> anyhow::Result<String> {
    let mut command = Program::new(root().join("target/venv/bin/python"));
    let output = command.arg("-B").arg(root().join(script)).args(args).kill_on_drop(true).output().await?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{script} ended with {}:\n{said}", output.status);
    Ok(said)
}
