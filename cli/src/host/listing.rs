//! The files from which a host reads its catalogue.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use warmpath_host_core::catalogue::{self, Entry, ListedFile, PresetFile, Sources};

use super::model_files::DownloadList;

/// Origins of a catalogue, which is read again on demand.
#[derive(Debug, Clone)]
pub struct CatalogueFiles {
    /// Folder of models.
    pub models_dir: Option<PathBuf>,
    /// Preset file.
    pub models_preset: Option<PathBuf>,
    /// Models of Hugging Face.
    pub repositories: Vec<String>,
    /// Further ones, which a person has had downloaded.
    pub downloads: DownloadList,
    /// Names of the only model, whose flags are those of every worker; empty if there are others.
    pub only_model: Vec<String>,
    /// Idle time after which a model leaves that sets none itself. Units: milliseconds.
    pub ttl_ms: Option<u64>,
}

impl CatalogueFiles {
    /// Reads the catalogue.
    ///
    /// Errors: a file or a folder cannot be read; the catalogue has an error, which names file, section and key.
    pub fn read(&self) -> anyhow::Result<Vec<Entry>> {
        let files = self.models_dir.as_deref().map(list).transpose()?.unwrap_or_default();
        let read = |path: &PathBuf| -> anyhow::Result<PresetFile> {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("--models-preset: cannot read {}", path.display()))?;
            Ok(PresetFile { path: path.display().to_string(), text })
        };
        let preset = self.models_preset.as_ref().map(read).transpose()?;
        let (repositories, downloads) = (self.repositories.clone(), self.downloads.names());
        let only_model = self.only_model.clone();
        let mut entries = catalogue::read(&Sources { files, preset, repositories, downloads, only_model })?;
        for entry in &mut entries {
            entry.ttl_ms = entry.ttl_ms.or(self.ttl_ms);
        }
        Ok(entries)
    }
}

/// Returns the GGUF files of a folder and of its sub-folders.
///
/// Errors: the folder cannot be read.
fn list(dir: &Path) -> anyhow::Result<Vec<ListedFile>> {
    let unreadable = || format!("--models-dir: cannot read {}", dir.display());
    let dir = std::path::absolute(dir).with_context(unreadable)?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?;
        if entry.path().is_dir() {
            let folder = entry.file_name().to_string_lossy().into_owned();
            // A sub-folder that cannot be read has no models.
            let inside = std::fs::read_dir(entry.path()).into_iter().flatten().flatten();
            files.extend(inside.filter_map(|file| listed(&file.path(), Some(folder.clone()))));
        } else {
            files.extend(listed(&entry.path(), None));
        }
    }
    Ok(files)
}

fn listed(path: &Path, folder: Option<String>) -> Option<ListedFile> {
    let name = path.file_name()?.to_str()?.to_owned();
    let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    name.ends_with(".gguf").then_some(())?;
    Some(ListedFile { folder, name, path: path.to_str()?.to_owned(), bytes: metadata.len() })
}
