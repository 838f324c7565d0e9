//! Where a model's file comes from, as the command line says it.
//!
//! Not here: reading the flags (`config::source`).

use std::fmt;
use std::path::PathBuf;

use axum::http::HeaderValue;
use url::Url;

/// Origin of a model's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A file of this machine.
    File(PathBuf),
    /// A repository of the Hugging Face hub.
    Hub {
        /// Model in it.
        model: HubModel,
        /// Hub.
        hub: HubConfig,
    },
    /// An address elsewhere.
    Url {
        /// Address of the first file.
        url: Url,
        /// Path at which that file is kept.
        file: PathBuf,
        /// Whether nothing may be asked for over the network.
        offline: bool,
    },
}

/// Model in a repository of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubModel {
    /// Name of the model where the command line gives none.
    pub name: String,
    /// Repository, as `OWNER/NAME`.
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Files that are meant.
    pub wanted: Wanted,
}

/// Files of a repository that are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// This one, with the others of a split model.
    File(String),
    /// The first whose name bears this quantization.
    Quant(String),
    /// llama-server's choice: Q4_K_M, else Q8_0, else the first.
    Any,
}

/// Hub, and what is kept of it on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubConfig {
    /// Address of the hub or of a mirror.
    pub endpoint: Url,
    /// Folder in which the hub's clients keep files.
    pub cache: PathBuf,
    /// Token that is shown to the hub, and to no other host.
    pub token: Option<HubToken>,
    /// Whether nothing may be asked for over the network.
    pub offline: bool,
}

/// Token of a user of the hub; its text is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct HubToken(String);

impl HubToken {
    /// Returns a token, as a flag or a file has it.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a header can hold it.
    pub fn is_valid(&self) -> bool {
        self.0.bytes().all(|byte| byte.is_ascii_graphic())
    }

    /// Returns the header that shows it.
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
    /// Returns the path of a file that is on this machine before anything is fetched.
    pub fn local(&self) -> Option<&PathBuf> {
        match self {
            Self::File(path) => Some(path),
            Self::Hub { .. } | Self::Url { .. } => None,
        }
    }

    /// Returns the name of the model where the command line gives none: llama-server's for a repository, and otherwise the file's.
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
    /// Revision where none is given.
    pub const REVISION_DEFAULT: &str = "main";
}

impl fmt::Display for HubModel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.repo)?;
        match &self.wanted {
            Wanted::File(file) => write!(out, "/{file}")?,
            Wanted::Quant(quant) => write!(out, ":{quant}")?,
            Wanted::Any => {}
        }
        if self.revision == Self::REVISION_DEFAULT { Ok(()) } else { write!(out, "@{}", self.revision) }
    }
}
