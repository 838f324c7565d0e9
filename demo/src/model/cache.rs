//! Made models kept in a folder, so that tests make each one only once.

use std::path::{Path, PathBuf};

use crate::model::made::preset::Preset;
use crate::model::made::projector::{Reads, write_projector};
use crate::model::made::write::write_model;

/// Version of the made models; it is raised when the same preset and seed give other bytes than before.
const VERSION: u32 = 3;

/// Returns the path of the model of `preset` and `seed` in `folder`, which is made if it is missing.
///
/// Errors: it cannot be written.
pub fn cached_model(preset: Preset, seed: u64, folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join(format!("{}-{seed}-v{VERSION}.gguf", preset.name()));
    if !path.exists() {
        write_model(preset, seed, None, &path)?;
    }
    Ok(path)
}

/// Returns the path of the projector for the model of `preset` and `seed` in `folder`, which is made if it is missing.
///
/// Errors: it cannot be written.
pub fn cached_projector(preset: Preset, seed: u64, reads: Reads, folder: &Path) -> anyhow::Result<PathBuf> {
    let kind = match reads {
        Reads::Images => "",
        Reads::Audio => "audio-",
        Reads::Both => "media-",
        Reads::NonCausal => "non-causal-",
    };
    let path = folder.join(format!("{}-{seed}-v{VERSION}-{kind}projector.gguf", preset.name()));
    if !path.exists() {
        write_projector(preset, seed, reads, &path)?;
    }
    Ok(path)
}
