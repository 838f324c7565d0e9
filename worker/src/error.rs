//! Reasons why a request gets no response: one error type for all stages of a request.
//!
//! Not here: status codes and the error object (`warmpath_shell::api_error`), errors of the worker's start (`start`).

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use warmpath_common::dialects::DialectError;
use warmpath_common::fields::ReadError;
use warmpath_common::lora::AdapterError;
use warmpath_common::openai::PromptExcess;
use warmpath_common::salt::SaltError;
use warmpath_prompt::{PromptError, RawError, TokenCount};
use warmpath_shell::api_error::{ApiError, Class};
use warmpath_shell::convert_refusals;
use warmpath_shell::refusal::Refusal;

use crate::engine::{CacheError, EngineError, PromptFault, SendError};
use crate::kv_transfer::TooManyPrefetches;
use crate::slot_context::SlotContext;
use crate::store::slot_file::SlotFileError;

/// `Retry-After` if the queue is full.
///
/// Source: a queued request starts within a second or two on the machine of docs/decisions/0000-measured-before.md.
const RETRY_OVERLOAD: Duration = Duration::from_secs(1);

/// `Retry-After` while the worker loads or drains.
///
/// Source: loading and draining take from seconds to minutes.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(5);

/// Reason why a request gets no response.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The request is refused for a reason that router and worker share.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request has no valid token.
    #[error(
        "no token of this fleet, or one that is not known: send it as `Authorization: Bearer TOKEN`, or as `x-api-key: TOKEN`"
    )]
    Unauthorized,
    /// A field requests something that this worker does not support.
    #[error("`{param}` is not supported by this worker{}", only.map(|only| format!(" ({only})")).unwrap_or_default())]
    Unsupported {
        /// The field.
        param: &'static str,
        /// Supported values.
        only: Option<&'static str>,
    },
    /// The worker does not serve this model.
    #[error("the model `{model}` does not exist here; this worker serves {}", names.join(", "))]
    ModelUnknown {
        /// The requested model.
        model: String,
        /// Names of the served model.
        names: Vec<String>,
    },
    /// A router chose this worker when another model was at its address.
    #[error("this worker serves another model than the one that the router chose it for")]
    OtherModel,
    /// The prompt leaves no room for a response.
    #[error(
        "the prompt of {n_tokens} tokens exceeds the available context size, which is {} tokens, answer included{}",
        slot.context_tokens, slot.remedy(*n_tokens)
    )]
    PromptTooLong {
        /// Length of the prompt.
        n_tokens: TokenCount,
        /// Context of one slot.
        slot: SlotContext,
    },
    /// The requested adapters cannot be applied.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A text to embed is longer than the worker's limit.
    #[error(
        "`{param}` is too large: it has {n_tokens} tokens, this worker computes at most {text_tokens_max} at a time"
    )]
    TextTooLong {
        /// Path of the field.
        param: String,
        /// Length of the text.
        n_tokens: TokenCount,
        /// The limit.
        text_tokens_max: u32,
    },
    /// The model does not support fill-in-the-middle.
    #[error("{}", RawError::NoFim)]
    NoFim,
    /// The messages cannot be rendered to a prompt.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The engine refused or failed the request.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The cache could not be read or changed.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// No KV state is sent to another worker.
    #[error(transparent)]
    Send(#[from] SendError),
    /// Too many lists of prefixes wait to be fetched.
    #[error(transparent)]
    Prefetch(#[from] TooManyPrefetches),
    /// There is no such pin.
    #[error("there is no pin `{id}`")]
    PinUnknown {
        /// The requested pin.
        id: String,
    },
    /// A slot's file cannot be used.
    #[error("the file `{filename}` cannot be used: {source}")]
    SlotFile {
        /// Name of the file.
        filename: String,
        /// Reason.
        source: SlotFileError,
    },
    /// The worker was started without a flag that the request needs.
    #[error("{what} is not enabled; start the worker with {flag}")]
    NotEnabled {
        /// Description of the request.
        what: &'static str,
        /// The missing flag.
        flag: &'static str,
    },
    /// The URL's query cannot be parsed.
    #[error("the query cannot be read: {reason}")]
    Query {
        /// Reason.
        reason: String,
    },
    /// Too many prompts are being rendered and tokenized.
    #[error("the worker is busy: {places} prompts are being prepared")]
    PreparingFull {
        /// Limit of prompts that are prepared at a time.
        places: usize,
    },
    /// The model is still loading.
    #[error("the model is loading ({percent} %)")]
    Loading {
        /// Loaded share.
        percent: u8,
    },
    /// The model is still being downloaded.
    #[error("the model is downloading ({percent} %)")]
    Downloading {
        /// Downloaded share.
        percent: u8,
    },
    /// Too many clients subscribe to the summary.
    #[error("the summary has its {subscribers_max} subscribers already")]
    SubscribersFull {
        /// The limit.
        subscribers_max: usize,
    },
    /// Internal error of the worker.
    #[error("the worker failed on this request")]
    Internal {
        /// Reason, for the log.
        reason: String,
    },
}

convert_refusals!(RequestError: DialectError, ReadError, SaltError);

impl RequestError {
    /// Returns an error about the field `param`.
    pub fn field(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Refusal::field(param, reason).into()
    }

    /// Returns the error of a chat whose prompt cannot be made.
    pub fn of_chat(error: PromptError, slot: SlotContext) -> Self {
        match error {
            PromptError::TooManyTokens(many) => Self::PromptTooLong { n_tokens: many.into(), slot },
            error => error.into(),
        }
    }

    /// Returns the error of a raw prompt that cannot be tokenized.
    pub fn of_raw(error: RawError, slot: SlotContext) -> Self {
        match error {
            RawError::TooManyTokens(many) => Self::PromptTooLong { n_tokens: many.into(), slot },
            RawError::NoFim => Self::NoFim,
            RawError::Media { reason } => Self::field("prompt", reason),
        }
    }

    /// Returns the error of a prompt that no slot can run.
    pub fn of_fault(fault: PromptFault, slot: SlotContext) -> Self {
        match fault {
            PromptFault::Empty => Self::field("prompt", "the prompt is empty"),
            PromptFault::TooLong { n_tokens, .. } => {
                Self::PromptTooLong { n_tokens: TokenCount::Exactly(n_tokens), slot }
            }
            PromptFault::UnknownToken { token, n_vocab } => {
                Self::field("prompt", format!("the prompt has token {token}; the vocabulary has {n_vocab} tokens"))
            }
        }
    }

    /// Returns whether the request may succeed at another worker, because this worker is at fault or shuts down.
    pub fn may_succeed_elsewhere(&self) -> bool {
        matches!(self.class(), Class::Internal | Class::Unavailable | Class::Overload)
    }
}

impl ApiError for RequestError {
    fn class(&self) -> Class {
        match self {
            Self::Refused(refusal) => refusal.class(),
            Self::Unsupported { .. }
            | Self::PromptTooLong { .. }
            | Self::TextTooLong { .. }
            | Self::Adapter(_)
            | Self::Prompt(_)
            | Self::Query { .. }
            | Self::Cache(CacheError::TooManyPins | CacheError::SlotEmpty { .. } | CacheError::Unfit { .. })
            | Self::SlotFile { source: SlotFileError::Damaged { .. } | SlotFileError::Foreign { .. }, .. }
            | Self::Engine(
                EngineError::InvalidPrompt(_)
                | EngineError::Sampler { .. }
                | EngineError::Shift(_)
                | EngineError::NotFinite,
            ) => Class::Client,
            Self::ModelUnknown { .. }
            | Self::PinUnknown { .. }
            | Self::Send(SendError::Off | SendError::Layout | SendError::Missing)
            | Self::SlotFile { source: SlotFileError::Missing, .. } => Class::NotFound,
            Self::NotEnabled { .. } | Self::NoFim | Self::Cache(CacheError::NoStore) => Class::NotSupported,
            Self::Unauthorized => Class::Unauthorized,
            Self::PreparingFull { .. }
            | Self::Engine(EngineError::QueueFull { .. })
            | Self::Cache(CacheError::Busy) => Class::Overload,
            Self::Loading { .. }
            | Self::Downloading { .. }
            | Self::OtherModel
            | Self::SubscribersFull { .. }
            | Self::Send(SendError::Busy)
            | Self::Prefetch(_)
            | Self::Engine(EngineError::Draining)
            | Self::Cache(CacheError::Engine(EngineError::Draining)) => Class::Unavailable,
            Self::Engine(EngineError::Decode { .. } | EngineError::Encode(_) | EngineError::Stopped)
            | Self::Cache(CacheError::Engine(_) | CacheError::Export { .. })
            | Self::Send(SendError::Engine(_))
            | Self::SlotFile { source: SlotFileError::Io(_), .. }
            | Self::Internal { .. } => Class::Internal,
        }
    }

    fn param(&self) -> Option<String> {
        match self {
            Self::Refused(refusal) => refusal.param(),
            Self::TextTooLong { param, .. } => Some(param.clone()),
            Self::Unsupported { param, .. } => Some((*param).to_owned()),
            Self::ModelUnknown { .. } => Some("model".to_owned()),
            Self::Adapter(_) => Some("lora".to_owned()),
            Self::Prompt(PromptError::Messages { index, .. }) => Some(format!("messages[{index}]")),
            Self::Prompt(PromptError::Tool { index, .. }) => Some(format!("tools[{index}]")),
            Self::Prompt(PromptError::Field { field, .. }) => Some((*field).to_owned()),
            Self::Prompt(_) => Some("messages".to_owned()),
            Self::SlotFile { .. } => Some("filename".to_owned()),
            Self::Cache(CacheError::SlotEmpty { .. }) => Some("id_slot".to_owned()),
            _ => None,
        }
    }

    fn code(&self) -> Option<&'static str> {
        match self {
            Self::Unauthorized => Some("invalid_api_key"),
            Self::Refused(refusal) => refusal.code(),
            Self::Unsupported { .. } => Some("unsupported_parameter"),
            Self::ModelUnknown { .. } => Some("model_not_found"),
            Self::OtherModel => Some("other_model"),
            Self::PromptTooLong { .. } | Self::TextTooLong { .. } => Some("context_length_exceeded"),
            Self::Prompt(_) | Self::Engine(EngineError::InvalidPrompt(_) | EngineError::NotFinite) => {
                Some("invalid_prompt")
            }
            Self::Engine(EngineError::QueueFull { .. }) | Self::PreparingFull { .. } => Some("queue_full"),
            Self::Engine(EngineError::Draining) | Self::Cache(CacheError::Engine(EngineError::Draining)) => {
                Some("draining")
            }
            Self::Cache(CacheError::TooManyPins) => Some("too_many_pins"),
            Self::Cache(CacheError::SlotEmpty { .. }) => Some("slot_empty"),
            Self::Send(SendError::Off) => Some("kv_transfer_off"),
            Self::Send(SendError::Layout) => Some("kv_layout_mismatch"),
            Self::Send(SendError::Missing) => Some("kv_not_found"),
            Self::Send(SendError::Busy) | Self::Prefetch(_) => Some("kv_transfers_full"),
            Self::PinUnknown { .. } => Some("pin_not_found"),
            Self::SlotFile { source: SlotFileError::Missing, .. } => Some("file_not_found"),
            Self::SlotFile { source: SlotFileError::Damaged { .. } | SlotFileError::Foreign { .. }, .. }
            | Self::Cache(CacheError::Unfit { .. }) => Some("unusable_file"),
            Self::NotEnabled { .. } | Self::Cache(CacheError::NoStore) => Some("not_enabled"),
            Self::NoFim => Some("not_supported"),
            Self::Loading { .. } | Self::Downloading { .. } => Some("model_loading"),
            _ => None,
        }
    }

    fn excess(&self) -> Option<PromptExcess> {
        match self {
            Self::PromptTooLong { n_tokens, slot } => {
                Some(PromptExcess { n_prompt_tokens: n_tokens.number(), n_ctx: slot.context_tokens })
            }
            _ => None,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self.class() {
            Class::Overload => Some(RETRY_OVERLOAD),
            Class::Unavailable => Some(RETRY_UNAVAILABLE),
            _ => None,
        }
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        self.response()
    }
}
