//! Flags of images and audio, named as in llama-server.
//!
//! Not here: loading the projector (the engine's `media`).

use std::path::PathBuf;

use clap::Args;
use warmpath_shell::image_urls::ImageUrlFlags;

use super::ConfigError;
use crate::engine::ProjectorConfig;

/// Flags of the projector with which the model reads images and audio, and of where images come from.
#[derive(Debug, Clone, Args)]
pub struct MediaFlags {
    /// Projector with which the model reads images or audio, a GGUF file made for the model (-mm).
    #[arg(long, env = "WARMPATH_MMPROJ", value_name = "FILE")]
    #[arg(conflicts_with_all = ["embedding", "rerank", "spec_draft_model"])]
    pub mmproj: Option<PathBuf>,

    /// Compute the projector on the CPU even if there is a GPU.
    #[arg(long, env = "WARMPATH_NO_MMPROJ_OFFLOAD")]
    pub no_mmproj_offload: bool,

    /// Minimum number of tokens of an image, for projectors whose number of tokens depends on the image's size
    /// [default: the projector's].
    #[arg(long, env = "WARMPATH_IMAGE_MIN_TOKENS", value_name = "TOKENS", requires = "mmproj")]
    pub image_min_tokens: Option<u32>,

    /// Maximum number of tokens of an image, for the same projectors [default: the projector's].
    #[arg(long, env = "WARMPATH_IMAGE_MAX_TOKENS", value_name = "TOKENS", requires = "mmproj")]
    pub image_max_tokens: Option<u32>,

    /// Flags of images by URL.
    #[command(flatten)]
    pub urls: ImageUrlFlags,
}

/// Returns the projector to load; `None` if none is given.
///
/// Errors: `Range` for a limit of 0, and for a maximum below the minimum.
pub fn projector(flags: &MediaFlags) -> Result<Option<ProjectorConfig>, ConfigError> {
    let (min_tokens, max_tokens) = (flags.image_min_tokens, flags.image_max_tokens);
    let refuse =
        |flag: &'static str, reason: &str| Err(ConfigError::Range { flag: flag.into(), reason: reason.to_owned() });
    if min_tokens == Some(0) {
        return refuse("image-min-tokens", "must be at least 1");
    }
    if max_tokens.is_some_and(|most| most < min_tokens.unwrap_or(1)) {
        return refuse("image-max-tokens", "must be at least 1, and at least --image-min-tokens");
    }
    let config = |path: &PathBuf| ProjectorConfig {
        path: path.clone(),
        offload: !flags.no_mmproj_offload,
        min_tokens,
        max_tokens,
    };
    Ok(flags.mmproj.as_ref().map(config))
}
