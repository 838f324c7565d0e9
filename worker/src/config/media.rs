//! Flags of images and audio, named as in llama-server.
//!
//! A flag names a projector, or it comes with the model from its repository. Flags that exclude projectors refuse the
//! first kind and leave out the second: a model that starts must not fail because its repository has a projector as
//! well.
//!
//! Not here: loading the projector (the engine's `media`).

use std::path::PathBuf;

use clap::Args;
use warmpath_shell::image_urls::ImageUrlFlags;

use super::ConfigError;
use super::source::{SourceFlags, UrlFlags, Variables};
use crate::download::{ModelSource, RepositoryProjector};
use crate::engine::{ProjectorConfig, ProjectorNeed};

/// Flags of the projector with which the model reads images and audio, and of where images come from.
#[derive(Debug, Clone, Args)]
pub struct MediaFlags {
    /// Projector with which the model reads images or audio, a GGUF file made for the model (-mm). With --mmproj-url,
    /// the path to store it at.
    #[arg(long, env = "WARMPATH_MMPROJ", value_name = "FILE")]
    #[arg(conflicts_with_all = ["embedding", "rerank", "spec_draft_model"])]
    pub mmproj: Option<PathBuf>,

    /// URL of the projector's GGUF file (-mmu).
    #[arg(long, env = "WARMPATH_MMPROJ_URL", value_name = "URL", hide_env_values = true)]
    #[arg(conflicts_with_all = ["embedding", "rerank", "spec_draft_model"])]
    pub mmproj_url: Option<String>,

    /// Leave out the projector of the --hf-repo repository.
    #[arg(long, env = "WARMPATH_NO_MMPROJ")]
    pub no_mmproj: bool,

    /// Compute the projector on the CPU even if there is a GPU.
    #[arg(long, env = "WARMPATH_NO_MMPROJ_OFFLOAD")]
    pub no_mmproj_offload: bool,

    /// Minimum number of tokens of an image, for projectors whose number of tokens depends on the image's size
    /// [default: the projector's].
    #[arg(long, env = "WARMPATH_IMAGE_MIN_TOKENS", value_name = "TOKENS")]
    pub image_min_tokens: Option<u32>,

    /// Maximum number of tokens of an image, for the same projectors [default: the projector's].
    #[arg(long, env = "WARMPATH_IMAGE_MAX_TOKENS", value_name = "TOKENS")]
    pub image_max_tokens: Option<u32>,

    /// Flags of images by URL.
    #[command(flatten)]
    pub urls: ImageUrlFlags,
}

/// Settings of reading images and audio.
#[derive(Debug, Clone)]
pub struct MediaConfig {
    /// Projector that a flag names; `None` if none does.
    pub named: Option<ModelSource>,
    offload: bool,
    min_tokens: Option<u32>,
    max_tokens: Option<u32>,
}

impl MediaConfig {
    /// Returns the projector to load, given the files on this machine: the one that a flag names, and the one of the
    /// model's repository.
    pub fn projector(&self, named_path: Option<PathBuf>, of_repository: Option<PathBuf>) -> Option<ProjectorConfig> {
        let (offload, min_tokens, max_tokens) = (self.offload, self.min_tokens, self.max_tokens);
        let config = |path, need| ProjectorConfig { path, need, offload, min_tokens, max_tokens };
        let named_path = named_path.map(|path| config(path, ProjectorNeed::Required));
        named_path.or_else(|| of_repository.map(|path| config(path, ProjectorNeed::Optional)))
    }
}

/// Returns the settings of reading images and audio.
///
/// Errors: `Range` for a limit of 0, for a maximum below the minimum, for limits without a projector, and for a URL of
/// no GGUF file. Reads: the variables of Hugging Face's clients.
pub(super) fn media_config(
    flags: &MediaFlags,
    source: &SourceFlags,
    variables: Variables<'_>,
) -> Result<MediaConfig, ConfigError> {
    let (min_tokens, max_tokens) = (flags.image_min_tokens, flags.image_max_tokens);
    let refuse =
        |flag: &'static str, reason: &str| Err(ConfigError::Range { flag: flag.into(), reason: reason.to_owned() });
    if min_tokens == Some(0) {
        return refuse("image-min-tokens", "must be at least 1");
    }
    if max_tokens.is_some_and(|tokens| tokens < min_tokens.unwrap_or(1)) {
        return refuse("image-max-tokens", "must be at least 1, and at least --image-min-tokens");
    }
    let named_projector = match (&flags.mmproj_url, &flags.mmproj) {
        (Some(url), file) => {
            let by_url = UrlFlags { names: ("mmproj-url", "mmproj"), url, file: file.as_ref() };
            Some(by_url.source(source, variables)?)
        }
        (None, file) => file.clone().map(ModelSource::File),
    };
    let may_have_one = named_projector.is_some() || (source.hf_repo.is_some() && !flags.no_mmproj);
    let limits = [("image-min-tokens", min_tokens), ("image-max-tokens", max_tokens)];
    if let Some((flag, _)) = limits.into_iter().find(|(_, limit)| limit.is_some() && !may_have_one) {
        return refuse(flag, "needs a projector: --mmproj, --mmproj-url, or --hf-repo without --no-mmproj");
    }
    Ok(MediaConfig { named: named_projector, offload: !flags.no_mmproj_offload, min_tokens, max_tokens })
}

/// Returns the use of the projector of the model's repository; `obstacle` is a flag that excludes projectors, if there
/// is one.
pub(super) fn of_repository(flags: &MediaFlags, obstacle: Option<&'static str>) -> RepositoryProjector {
    if flags.no_mmproj || flags.mmproj.is_some() || flags.mmproj_url.is_some() {
        return RepositoryProjector::Unused;
    }
    match obstacle {
        Some(by) => RepositoryProjector::Excluded { by },
        None => RepositoryProjector::Fetched,
    }
}
