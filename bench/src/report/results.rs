//! The results of a report as a file: every figure with its samples and command, the machine, the versions.
//!
//! The format has a number. A file with another number is refused, because its figures may have other meanings.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use tempfile::Builder;

use super::machine::Machine;
use super::part::{Pace, Part};
use crate::output::figures::Figures;

/// Number of this format.
pub const FORMAT: u32 = 1;

/// Results of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Number of the format: [`FORMAT`].
    pub format: u32,
    /// Start of the measurements in UTC, as in RFC 3339.
    pub date: String,
    /// Length.
    pub pace: Pace,
    /// Machine.
    pub machine: Machine,
    /// Version of each program.
    pub versions: BTreeMap<String, String>,
    /// Parts that were measured.
    pub parts: Vec<PartResults>,
    /// Peers and parts that were left out.
    pub skipped: Vec<Skipped>,
}

/// Results of one part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartResults {
    /// Part.
    pub part: Part,
    /// Commands of one round, without their seed.
    pub commands: Vec<String>,
    /// Number of rounds.
    pub n_rounds: u64,
    /// Whether each round's commands have the number of the round as `--seed`.
    pub has_seeds: bool,
    /// Figures.
    #[serde(flatten)]
    pub figures: Figures,
    /// Failed commands, with the reasons.
    pub failures: Vec<String>,
}

/// Peer or part that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Name.
    pub what: String,
    /// Reason.
    pub reason: String,
}

/// Field that files of every format have.
#[derive(Deserialize)]
struct Head {
    format: u32,
}

impl Results {
    /// Reads a file.
    ///
    /// Errors: it cannot be read; it holds no results, or those of another format.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {name}"))?;
        let Head { format } = serde_json::from_str(&text)
            .with_context(|| format!("{name} holds no results of `warmpath-bench report`"))?;
        ensure!(format == FORMAT, "{name} has format {format}; this version reads format {FORMAT} only");
        serde_json::from_str(&text).with_context(|| format!("reading the results in {name}"))
    }

    /// Writes the file: completely, or not at all.
    ///
    /// Errors: it cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let folder = path.parent().context("a file lies in a folder")?;
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let text = serde_json::to_string(self)? + "\n";
        // By default only the owner may read a temporary file.
        let mut file = Builder::new().permissions(Permissions::from_mode(0o644)).tempfile_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.persist(path).with_context(|| format!("writing {}", path.display()))?;
        Ok(())
    }

    /// Returns the file's name: date and machine, and `quick` or `part` unless the results are those of a full report.
    pub fn file_name(&self) -> String {
        let kind = match (self.pace, self.is_whole()) {
            (Pace::Quick, _) => "-quick",
            (Pace::Full, false) => "-part",
            (Pace::Full, true) => "",
        };
        format!("{}-{}{kind}.json", self.day(), self.machine.slug())
    }

    /// Returns the day of the start.
    pub fn day(&self) -> &str {
        self.date.split('T').next().unwrap_or_default()
    }

    /// Returns whether this is a full report without failures: each part that it has by default was measured, or left
    /// out for lack of a peer.
    pub fn is_whole(&self) -> bool {
        let is_skipped = |part: Part| self.skipped.iter().any(|skipped_part| skipped_part.what == part.title());
        self.pace == Pace::Full
            && Part::DEFAULT.iter().all(|&part| self.part(part).is_some() || is_skipped(part))
            && self.parts.iter().all(|part| part.failures.is_empty())
    }

    /// Returns the results of a part, if it was measured.
    pub fn part(&self, part: Part) -> Option<&PartResults> {
        self.parts.iter().find(|results| results.part == part)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::results;
    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let results = results();
        let path = folder.path().join("new").join(results.file_name());
        results.write(&path).expect("it is written");
        assert_eq!(Results::read(&path).expect("it is read"), results);
        assert_eq!(path.file_name().and_then(|name| name.to_str()), Some("2026-11-26-acme-cpu-9-2-cores-part.json"));
        assert_eq!(std::fs::read_dir(path.parent().expect("a folder")).expect("it is there").count(), 1);
    }

    #[test]
    fn a_file_of_another_format_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("old.json");
        let refused = |text: &str| {
            std::fs::write(&path, text).expect("it is written");
            format!("{:#}", Results::read(&path).expect_err("it is refused"))
        };
        let mut other = serde_json::to_value(results()).expect("JSON");
        other["format"] = 7.into();
        assert!(refused(&other.to_string()).ends_with("has format 7; this version reads format 1 only"));
        assert!(refused("{\"rows\": []}").contains("holds no results of `warmpath-bench report`: missing field"));
        assert!(refused("nonsense").contains("holds no results"));
        assert!(refused("{\"format\": 1}").contains("missing field `date`"));
        assert!(format!("{:#}", Results::read(&folder.path().join("none")).expect_err("no file")).contains("reading"));
    }
}
