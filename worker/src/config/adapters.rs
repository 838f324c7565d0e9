//! The flags of LoRA adapters, checked.

use std::path::PathBuf;

use warmpath_common::lora::{self, Applied, RequestedAdapter, Scale};
use warmpath_common::whole::Whole;

use super::ConfigError;
use super::flags::Flags;
use crate::engine::AdapterFile;

/// Returns the adapters to load: those of `--lora`, then those of `--lora-scaled`.
///
/// Errors: `Range` if a scale is invalid, or two adapters have the same name.
pub(super) fn files(flags: &Flags) -> Result<Vec<AdapterFile>, ConfigError> {
    let plain = flags.lora.iter().map(|path| Ok((path.clone(), Scale::ONE)));
    let files = plain.chain(flags.lora_scaled.iter().map(|text| scaled(text))).map(|file| {
        let (path, scale) = file?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(AdapterFile { name, path, scale })
    });
    let files: Vec<AdapterFile> = files.collect::<Result<_, ConfigError>>()?;
    for (idx, file) in files.iter().enumerate() {
        if files[..idx].iter().any(|other| other.name == file.name) {
            let reason = format!("two adapters have the name {}; rename a file", file.name);
            return Err(ConfigError::Range { flag: "lora".into(), reason });
        }
    }
    Ok(files)
}

fn scaled(text: &str) -> Result<(PathBuf, Scale), ConfigError> {
    let parts = text.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
    let refuse = |reason: String| ConfigError::Range { flag: "lora-scaled".into(), reason };
    let (path, scale) = parts.ok_or_else(|| refuse(format!("must be FILE:SCALE, not {text}")))?;
    let scale = Scale::try_from(scale).map_err(|error| refuse(error.to_string()))?;
    Ok((PathBuf::from(path), scale))
}

/// Returns the adapter of requests that name none.
///
/// Errors: `Range` if there are several.
pub(super) fn in_force(flags: &Flags, files: &[AdapterFile]) -> Result<Option<Applied>, ConfigError> {
    if flags.lora_init_without_apply {
        return Ok(None);
    }
    let requested_adapters: Vec<RequestedAdapter> =
        (0..).zip(files).map(|(id, file)| RequestedAdapter { id: Whole(id), scale: file.scale.into() }).collect();
    lora::chosen(files.len(), &requested_adapters).map_err(|_| ConfigError::Range {
        flag: "lora".into(),
        reason: "only one adapter can be applied to a request; with several, set --lora-init-without-apply".to_owned(),
    })
}
