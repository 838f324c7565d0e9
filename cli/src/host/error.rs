//! The errors of a host, and what a client is told of each.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use warmpath_common::openai::PromptExcess;
use warmpath_shell::api_error::{ApiError, Class};
use warmpath_shell::refusal::Refusal;

/// Error in a response of a host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The request is refused as any server would.
    #[error(transparent)]
    Refusal(#[from] Refusal),
    /// The request has no valid token.
    #[error("no token of this fleet: send one of --host-token-file as `Authorization: Bearer TOKEN`")]
    Unauthorized,
    /// The body is not the expected JSON.
    #[error("{reason}")]
    Body {
        /// Reason.
        reason: String,
    },
    /// The catalogue has no such model.
    #[error("the model `{model}` is not in the catalogue of this host")]
    ModelUnknown {
        /// Requested name.
        model: String,
    },
    /// The model cannot be loaded.
    #[error("the model `{model}` cannot be loaded: {reason}")]
    ModelImpossible {
        /// Name of the model.
        model: String,
        /// Reason.
        reason: String,
    },
    /// The catalogue cannot be read; the former one stays.
    #[error("the catalogue cannot be read: {reason}")]
    Catalogue {
        /// Reason.
        reason: String,
    },
    /// The name is that of no repository.
    #[error("`{model}` cannot be downloaded: it must be OWNER/NAME or OWNER/NAME:QUANT of Hugging Face")]
    NotRepository {
        /// Name in the order.
        model: String,
    },
    /// The catalogue has the model already.
    #[error("the model `{model}` already exists")]
    Exists {
        /// Name of the model.
        model: String,
    },
    /// The model is in the catalogue for another reason than an order.
    #[error("the model `{model}` cannot be removed: no order has downloaded it")]
    NotRemovable {
        /// Name of the model.
        model: String,
    },
    /// The files, or the list of models, cannot be changed.
    #[error("the files of the model `{model}` cannot be removed: {reason}")]
    Files {
        /// Name of the model.
        model: String,
        /// Reason.
        reason: String,
    },
    /// The host ends.
    #[error("this host is ending")]
    Ending,
}

impl ApiError for HostError {
    fn class(&self) -> Class {
        match self {
            Self::Refusal(refusal) => refusal.class(),
            Self::Unauthorized => Class::Unauthorized,
            Self::Body { .. }
            | Self::Catalogue { .. }
            | Self::NotRepository { .. }
            | Self::Exists { .. }
            | Self::NotRemovable { .. } => Class::Client,
            Self::ModelUnknown { .. } => Class::NotFound,
            Self::Files { .. } => Class::Internal,
            Self::ModelImpossible { .. } | Self::Ending => Class::Unavailable,
        }
    }

    fn param(&self) -> Option<String> {
        match self {
            Self::Refusal(refusal) => refusal.param(),
            Self::Unauthorized | Self::Body { .. } | Self::Catalogue { .. } | Self::Ending => None,
            _ => Some("model".to_owned()),
        }
    }

    fn code(&self) -> Option<&'static str> {
        match self {
            Self::Refusal(refusal) => refusal.code(),
            Self::Unauthorized => Some("invalid_api_key"),
            Self::ModelUnknown { .. } => Some("model_not_found"),
            Self::ModelImpossible { .. } => Some("model_impossible"),
            Self::Catalogue { .. } => Some("catalogue_invalid"),
            _ => None,
        }
    }

    fn excess(&self) -> Option<PromptExcess> {
        None
    }

    fn retry_after(&self) -> Option<Duration> {
        None
    }
}

impl IntoResponse for HostError {
    fn into_response(self) -> Response {
        self.response()
    }
}
