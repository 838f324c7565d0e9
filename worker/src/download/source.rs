//! The origin of a model's file, as given on the command line.
//!
//! Not here: reading the flags (`config::source`).

use std::fmt;
use std::path::PathBuf;

use axum::http::HeaderValue;
use url::Url;

/// Origin of a model's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A file on this machine.
    File(PathBuf),
    /// A repository of the Hugging Face hub.
    Hub {
        /// Model in the repository.
        model: HubModel,
        /// Settings of the hub.
        hub: HubConfig,
    },
    /// Any other address.
    Url {
        /// Address of the first file.
        url: Url,
        /// Path at which the first file is kept.
        file: PathBuf,
        /// Whether the worker is offline.
        offline: bool,
    },
}

/// Model in a repository of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubModel {
    /// Name of the model if the command line gives none.
    pub name: String,
    /// Repository, as `OWNER/NAME`.
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Files to use.
    pub wanted: FileSelection,
    /// Use of the repository's projector.
    pub projector: RepositoryProjector,
}

/// Use of a repository's projector, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepositoryProjector {
    /// It is not looked for.
    Unused,
    /// It is fetched with the model.
    Fetched,
    /// It is not fetched, because the worker cannot use it beside this flag, of which a warning tells.
    Excluded {
        /// Long form of the flag, with its hyphens.
        by: &'static str,
    },
}

/// Selection among a repository's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileSelection {
    /// This file, together with the other files of a split model.
    File(String),
    /// The first file whose name contains this quantization.
    Quant(String),
    /// llama-server's choice: Q4_K_M, else Q8_0, else the first.
    Any,
}

/// Settings of the hub and of its cache on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubConfig {
    /// Address of the hub or of a mirror.
    pub endpoint: Url,
    /// Folder in which the hub's clients keep files.
    pub cache: PathBuf,
    /// Token for the hub; no other host receives it.
    pub token: Option<HubToken>,
    /// Whether the worker is offline.
    pub offline: bool,
}

/// Token of a user of the hub; logs and messages never contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct HubToken(String);

impl HubToken {
    /// Returns the token given by a flag or a file.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// Returns whether the token is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the token is valid in a header.
    pub fn is_valid(&self) -> bool {
        self.0.bytes().all(|byte| byte.is_ascii_graphic())
    }

    /// Returns the header that carries the token.
    pub(super) fn header(&self) -> HeaderValue {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.0)).unwrap_or(HeaderValue::from_static(""));
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for HubToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("HubToken(..)")
    }
}

impl ModelSource {
    /// Returns the path of a model that is on this machine without any download.
    pub fn local(&self) -> Option<&PathBuf> {
        match self {
            Self::File(path) => Some(path),
            Self::Hub { .. } | Self::Url { .. } => None,
        }
    }

    /// Returns the name of the model if the command line gives none: for a repository the name that llama-server uses,
    /// otherwise the name of the file.
    pub fn model_name(&self) -> String {
        match self {
            Self::File(path) | Self::Url { file: path, .. } => warmpath_gguf::model_name(path),
            Self::Hub { model, .. } => model.name.clone(),
        }
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) | Self::Url { file: path, .. } => path.display().fmt(out),
            Self::Hub { model, .. } => model.fmt(out),
        }
    }
}

impl HubModel {
    /// Revision if none is given.
    pub const REVISION_DEFAULT: &str = "main";
}

impl fmt::Display for HubModel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.repo)?;
        match &self.wanted {
            FileSelection::File(file) => write!(out, "/{file}")?,
            FileSelection::Quant(quant) => write!(out, ":{quant}")?,
            FileSelection::Any => {}
        }
        if self.revision == Self::REVISION_DEFAULT { Ok(()) } else { write!(out, "@{}", self.revision) }
    }
}
