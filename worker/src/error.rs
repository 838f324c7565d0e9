//! Why a request gets no answer: one type for everything between the body's first byte and the answer's last.
//!
//! Not here: status codes and the error object (`http::error`), why the worker does not start (`start`).

use warmpath_common::dialects::{DialectError, Spelling};
use warmpath_common::fields::ReadError;
use warmpath_common::headers::CACHE_SALT;
use warmpath_common::lora::AdapterError;
use warmpath_common::salt::SaltError;
use warmpath_prompt::{PromptError, RawError, TokenCount};
use warmpath_shell::body::BodyError;
use warmpath_shell::hosts::HostRefusal;

use crate::engine::{CacheError, EngineError};
use crate::room::SlotRoom;
use crate::store::slot_file::SlotFileError;

/// Says why a request gets no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The request names no host, or one that this worker is not called.
    #[error(transparent)]
    Host(#[from] HostRefusal),
    /// The body did not arrive, or not within its limits.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The body is not JSON, or a field of it is missing or has the wrong type.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    /// The salt of the headers cannot be used.
    #[error(transparent)]
    Salt(#[from] SaltError),
    /// No chat can be made of a dialect's request.
    #[error(transparent)]
    Dialect(#[from] DialectError),
    /// The chat that a dialect's request means cannot be answered; said with the names that the client wrote.
    #[error("{message}")]
    Respelled {
        /// Says what is wrong.
        message: String,
        /// Is the field's path.
        param: String,
        /// Is the error about the chat.
        source: Box<RequestError>,
    },
    /// The request presents no token that is known.
    #[error(
        "no token of this fleet, or one that is not known: send it as `Authorization: Bearer TOKEN`, or as `x-api-key: TOKEN`"
    )]
    Unauthorized,
    /// Nothing of this kind is stored.
    #[error("there is no response `{id}`: responses are not stored here")]
    NotStored {
        /// Names what was asked for.
        id: String,
    },
    /// A field has a value that cannot be used.
    #[error("{reason}")]
    Field {
        /// Is the field's path.
        param: String,
        /// Says what is wrong with it.
        reason: String,
    },
    /// A field asks for something that this worker cannot do.
    #[error("`{param}` is not supported by this worker{}", only.map(|only| format!(" ({only})")).unwrap_or_default())]
    Unsupported {
        /// Is the field.
        param: &'static str,
        /// Says which values are understood.
        only: Option<&'static str>,
    },
    /// The model is not the one that is served.
    #[error("the model `{model}` does not exist here; this worker serves {}", names.join(", "))]
    ModelUnknown {
        /// Is the model that was asked for.
        model: String,
        /// Lists the names of the model that is served.
        names: Vec<String>,
    },
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt of {n_tokens} tokens exceeds the available context size, which is {} tokens, answer included{}",
        room.context_tokens, room.remedy(*n_tokens)
    )]
    PromptTooLong {
        /// Is the prompt's length.
        n_tokens: TokenCount,
        /// Context of one slot.
        room: SlotRoom,
    },
    /// The adapters that a request asks for cannot be applied.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A text to embed is longer than what the worker computes at a time.
    #[error(
        "`{param}` is too large: it has {n_tokens} tokens, this worker computes at most {text_tokens_max} at a time"
    )]
    TextTooLong {
        /// Is the field's path.
        param: String,
        /// Is the text's length.
        n_tokens: TokenCount,
        /// Is the limit.
        text_tokens_max: u32,
    },
    /// The model cannot fill gaps.
    #[error("{}", RawError::NoFim)]
    NoFim,
    /// No prompt can be made of the messages.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The engine refused the request or failed on it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The cache was not looked at or changed.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// There is no such pin.
    #[error("there is no pin `{id}`")]
    PinUnknown {
        /// Is the pin that was asked for.
        id: String,
    },
    /// A slot's file cannot be used.
    #[error("the file `{filename}` cannot be used: {source}")]
    SlotFile {
        /// Is the file's name.
        filename: String,
        /// Says why.
        source: SlotFileError,
    },
    /// The worker was started without what the request needs.
    #[error("{what} is not enabled; start the worker with {flag}")]
    NotEnabled {
        /// Says what is asked for.
        what: &'static str,
        /// Is the flag that is missing.
        flag: &'static str,
    },
    /// The URL's query cannot be read.
    #[error("the query cannot be read: {reason}")]
    Query {
        /// Says what is wrong with it.
        reason: String,
    },
    /// Too many prompts are being rendered and tokenized.
    #[error("the worker is busy: {places} prompts are being prepared")]
    PreparingFull {
        /// Is the number that may be prepared at a time.
        places: usize,
    },
    /// The model is still loading.
    #[error("the model is loading ({percent} %)")]
    Loading {
        /// Is how much is loaded.
        percent: u8,
    },
    /// The model is still fetched.
    #[error("the model is downloading ({percent} %)")]
    Downloading {
        /// Share that is there.
        percent: u8,
    },
    /// There is a limit on subscribers of the summary.
    #[error("the summary has its {subscribers_max} subscribers already")]
    SubscribersFull {
        /// Is the limit.
        subscribers_max: usize,
    },
    /// There is nothing at this path.
    #[error("there is nothing at {path}")]
    PathUnknown {
        /// Is the path.
        path: String,
    },
    /// The path does not take this method.
    #[error("{path} does not take {method}")]
    MethodRefused {
        /// Is the path.
        path: String,
        /// Is the method.
        method: String,
    },
    /// The worker is at fault.
    #[error("the worker failed on this request")]
    Internal {
        /// Says what failed, for the log.
        reason: String,
    },
}

/// Is what kind of failure it is, and so who can do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The request can never succeed as it is.
    Client,
    /// Nobody knows who asks.
    Unauthorized,
    /// There is no such thing.
    NotFound,
    /// The path is right, the method is not.
    Method,
    /// The request may come from a page that has no business here.
    Forbidden,
    /// The body is over the limit.
    TooLong,
    /// The body took too long.
    TooLate,
    /// The body has a content coding that is not known.
    Coding,
    /// The worker does not do such things, or not as it was started.
    NotSupported,
    /// Every place is taken; later there will be room.
    Overload,
    /// The worker does not serve at the moment.
    Unavailable,
    /// The worker failed.
    Internal,
}

impl RequestError {
    /// Returns an error about the field `param`.
    pub fn field(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Field { param: param.into(), reason: reason.into() }
    }

    /// Returns the error of a chat that has no prompt in a slot's context.
    pub fn of_chat(error: PromptError, room: SlotRoom) -> Self {
        match error {
            PromptError::TooManyTokens(many) => Self::PromptTooLong { n_tokens: many.into(), room },
            error => error.into(),
        }
    }

    /// Returns the error of another prompt that has no tokens in a slot's context.
    pub fn of_raw(error: RawError, room: SlotRoom) -> Self {
        match error {
            RawError::TooManyTokens(many) => Self::PromptTooLong { n_tokens: many.into(), room },
            RawError::NoFim => Self::NoFim,
        }
    }

    /// Returns the same error with the names that a dialect's client wrote.
    pub fn respelled(self, spelling: &Spelling) -> Self {
        let Some(chat_param) = self.param() else { return self };
        let param = spelling.param(&chat_param);
        if param == chat_param {
            return self;
        }
        let message = spelling.text(&self.to_string(), &chat_param);
        Self::Respelled { message, param, source: Box::new(self) }
    }

    /// Returns what kind of failure it is.
    pub fn class(&self) -> Class {
        match self {
            Self::Respelled { source, .. } => source.class(),
            Self::Body(BodyError::Unread | BodyError::Undecodable { .. })
            | Self::Host(HostRefusal::NotOne)
            | Self::Unreadable(_)
            | Self::Salt(_)
            | Self::Dialect(_)
            | Self::Field { .. }
            | Self::Unsupported { .. }
            | Self::PromptTooLong { .. }
            | Self::TextTooLong { .. }
            | Self::Adapter(_)
            | Self::Prompt(_)
            | Self::Query { .. }
            | Self::Cache(CacheError::TooManyPins | CacheError::SlotEmpty { .. } | CacheError::Unfit { .. })
            | Self::SlotFile { source: SlotFileError::Damaged { .. } | SlotFileError::Foreign { .. }, .. }
            | Self::Engine(EngineError::InvalidPrompt { .. } | EngineError::Sampler { .. } | EngineError::Shift(_)) => {
                Class::Client
            }
            Self::ModelUnknown { .. }
            | Self::PathUnknown { .. }
            | Self::NotStored { .. }
            | Self::PinUnknown { .. }
            | Self::SlotFile { source: SlotFileError::Missing, .. } => Class::NotFound,
            Self::NotEnabled { .. } | Self::NoFim | Self::Cache(CacheError::NoStore) => Class::NotSupported,
            Self::Unauthorized => Class::Unauthorized,
            Self::MethodRefused { .. } => Class::Method,
            Self::Host(HostRefusal::Unknown { .. }) => Class::Forbidden,
            Self::Body(BodyError::TooLong { .. }) => Class::TooLong,
            Self::Body(BodyError::UnknownCoding) => Class::Coding,
            Self::Body(BodyError::Late { .. } | BodyError::Silent { .. }) => Class::TooLate,
            Self::Body(BodyError::NoRoom)
            | Self::PreparingFull { .. }
            | Self::Engine(EngineError::QueueFull { .. })
            | Self::Cache(CacheError::Busy) => Class::Overload,
            Self::Loading { .. }
            | Self::Downloading { .. }
            | Self::SubscribersFull { .. }
            | Self::Engine(EngineError::Draining)
            | Self::Cache(CacheError::Engine(EngineError::Draining)) => Class::Unavailable,
            Self::Engine(EngineError::Decode { .. } | EngineError::Stopped)
            | Self::Cache(CacheError::Engine(_) | CacheError::Export { .. })
            | Self::SlotFile { source: SlotFileError::Io(_), .. }
            | Self::Internal { .. } => Class::Internal,
        }
    }

    /// Returns the field that is to blame, where one is.
    pub fn param(&self) -> Option<String> {
        match self {
            Self::Field { param, .. } | Self::TextTooLong { param, .. } | Self::Respelled { param, .. } => {
                Some(param.clone())
            }
            Self::Dialect(error) => error.param().map(str::to_owned),
            Self::Salt(_) => Some(CACHE_SALT.to_owned()),
            Self::Unreadable(ReadError::Field { param, .. }) => param.clone(),
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

    /// Returns the error's name for programs, where it has one.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::Unauthorized => Some("invalid_api_key"),
            Self::Host(refusal) => refusal.code(),
            Self::Body(error) => error.code(),
            Self::Unreadable(ReadError::Json { .. }) => Some("invalid_json"),
            Self::Respelled { source, .. } => source.code(),
            Self::Dialect(DialectError::Read(ReadError::Json { .. })) => Some("invalid_json"),
            Self::Dialect(DialectError::Unsupported { .. }) | Self::Unsupported { .. } => Some("unsupported_parameter"),
            Self::ModelUnknown { .. } => Some("model_not_found"),
            Self::PromptTooLong { .. } | Self::TextTooLong { .. } => Some("context_length_exceeded"),
            Self::Prompt(_) | Self::Engine(EngineError::InvalidPrompt { .. }) => Some("invalid_prompt"),
            Self::Engine(EngineError::QueueFull { .. }) | Self::PreparingFull { .. } => Some("queue_full"),
            Self::Engine(EngineError::Draining) | Self::Cache(CacheError::Engine(EngineError::Draining)) => {
                Some("draining")
            }
            Self::Cache(CacheError::TooManyPins) => Some("too_many_pins"),
            Self::Cache(CacheError::SlotEmpty { .. }) => Some("slot_empty"),
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
}
