//! Made models kept in a folder, so that tests make each one once.

use std::path::{Path, PathBuf};

use crate::model::{Preset, write_model};

/// Is the version of the made models: raised when the same preset and seed give other bytes than before.
const VERSION: u32 = 3;

/// Returns the path of the model of `preset` and `seed` in `folder`, making it where it is not there yet.
///
/// Errors: where it cannot be written.
pub fn cached_model(preset: Preset, seed: u64, folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join(format!("{}-{seed}-v{VERSION}.gguf", preset.name()));
    if !path.exists() {
        write_model(preset, seed, None, &path)?;
    }
    Ok(path)
}
