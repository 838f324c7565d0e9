//! The files of models of Hugging Face: their download and removal by the worker's program, and the list of those that
//! a person has had downloaded, which survives the host.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Command;
use warmpath_common::host::FetchedBytes;

use super::projection::reason;
use crate::child;

/// Whether a model may be downloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Download {
    /// It may, and then its files are here.
    Allowed,
    /// It may not.
    Never,
}

/// Downloads a model's files; reports how far it is. Dropping the future ends the download, which a later one resumes.
///
/// Errors: the worker's program cannot be started, or fails; its reason is in the message.
pub async fn fetch(program: &Path, args: Vec<OsString>, report: impl Fn(FetchedBytes)) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command.args(args).arg("--files=fetch").kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    child::end_with_parent(&mut command);
    let mut process = command.spawn().with_context(|| format!("{} cannot be started", program.display()))?;
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let progress = async {
        let mut lines = stdout.map(|stdout| BufReader::new(stdout).lines());
        while let Some(lines) = &mut lines
            && let Ok(Some(line)) = lines.next_line().await
        {
            if let Ok(bytes) = serde_json::from_str(&line) {
                report(bytes);
            }
        }
    };
    let log = async {
        let mut log = String::new();
        if let Some(mut stderr) = stderr {
            // A log that cannot be read has no reason.
            let _ = stderr.read_to_string(&mut log).await;
        }
        log
    };
    let (log, ()) = tokio::join!(log, progress);
    if !process.wait().await?.success() {
        bail!("{}", reason(&log));
    }
    Ok(())
}

/// Removes a model's files from the cache of Hugging Face's clients.
///
/// Errors: as those of [`fetch`].
pub async fn remove(program: &Path, args: Vec<OsString>) -> anyhow::Result<()> {
    let output = Command::new(program).args(args).arg("--files=remove").stdin(Stdio::null()).output().await;
    let output = output.with_context(|| format!("{} cannot be started", program.display()))?;
    if !output.status.success() {
        bail!("{}", reason(&String::from_utf8_lossy(&output.stderr)));
    }
    Ok(())
}

/// List of downloaded models: a file with a name a line.
#[derive(Debug, Clone, Default)]
pub struct DownloadList {
    file: PathBuf,
    /// Names in the catalogue, also of those whose download has not ended.
    names: BTreeSet<String>,
    /// Names in the file.
    kept: BTreeSet<String>,
}

impl DownloadList {
    /// Returns the list in a file, which is empty if there is none.
    ///
    /// Errors: the file cannot be read.
    pub fn open(file: PathBuf) -> anyhow::Result<Self> {
        let text = match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("cannot read {}", file.display()))?,
        };
        let kept_names: BTreeSet<String> = text.lines().map(str::to_owned).collect();
        Ok(Self { file, names: kept_names.clone(), kept: kept_names })
    }

    /// Returns the names, in their order.
    pub fn names(&self) -> Vec<String> {
        self.names.iter().cloned().collect()
    }

    /// Adds a name for the time of this host.
    pub fn add(&mut self, name: &str) {
        self.names.insert(name.to_owned());
    }

    /// Writes a name to the file, once its files are here.
    ///
    /// Errors: the file cannot be written.
    pub fn keep(&mut self, name: &str) -> anyhow::Result<()> {
        self.kept.insert(name.to_owned());
        self.write()
    }

    /// Removes a name.
    ///
    /// Errors: the file cannot be written.
    pub fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        self.names.remove(name);
        if self.kept.remove(name) { self.write() } else { Ok(()) }
    }

    fn write(&self) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.file.display());
        if let Some(folder) = self.file.parent() {
            std::fs::create_dir_all(folder).with_context(cannot)?;
        }
        let text: String = self.kept.iter().map(|name| format!("{name}\n")).collect();
        // A host that is killed meanwhile leaves the former list.
        let next = self.file.with_extension("next");
        std::fs::write(&next, text).with_context(cannot)?;
        std::fs::rename(&next, &self.file).with_context(cannot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finished_downloads_survive_the_host() {
        let folder = std::env::temp_dir().join(format!("warmpath-downloads-{}", std::process::id()));
        let open = || DownloadList::open(folder.join("downloads.txt")).expect("a list");
        let mut list = open();
        ["a/b", "c/d", "e/f"].iter().for_each(|name| list.add(name));
        list.keep("a/b").and_then(|()| list.keep("e/f")).expect("written");
        assert_eq!(list.names(), ["a/b", "c/d", "e/f"]);
        assert_eq!(open().names(), ["a/b", "e/f"]);
        list.remove("a/b").and_then(|()| list.remove("c/d")).expect("written");
        assert_eq!((list.names(), open().names()), (vec!["e/f".to_owned()], vec!["e/f".to_owned()]));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
