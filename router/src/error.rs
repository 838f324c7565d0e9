//! Why a request gets no answer from a worker: one type for everything between the body's first byte and the answer's.
//!
//! Not here: status codes and the error object (`http::error`); errors that a worker answers, which pass through.

use std::time::Duration;

use warmpath_common::dialects::{DialectError, Spelling};
use warmpath_common::fields::ReadError;
use warmpath_common::headers::CACHE_SALT;
use warmpath_common::salt::SaltError;
use warmpath_prompt::TokenCount;
use warmpath_router_core::fleet::LookupError;
use warmpath_router_core::ledger::NoWorker;
use warmpath_router_core::overload::admission::RETURN;
use warmpath_router_core::overload::retry::Failure;
use warmpath_shell::body::BodyError;
use warmpath_shell::hosts::HostRefusal;

use crate::keys::RateLimited;

/// Says why a request gets no answer from a worker.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The request names no host, or one that this router is not called.
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
    /// The request presents no API key that is known.
    #[error("no API key, or one that is not known: send it as `Authorization: Bearer KEY`, or as `x-api-key: KEY`")]
    Unauthorized,
    /// The API key may not ask now.
    #[error(transparent)]
    RateLimited(#[from] RateLimited),
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
    /// No worker's context has room for the prompt.
    #[error(
        "the prompt of {n_tokens} tokens exceeds the available context size, which is {context_tokens} tokens, answer included; \
         a worker divides its --ctx-size among its --slots"
    )]
    PromptTooLong {
        /// Length of the prompt, as far as it was counted.
        n_tokens: TokenCount,
        /// Largest context of the model's workers.
        context_tokens: u32,
    },
    /// The model cannot be found.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// No worker can take the request.
    #[error("{refusal}")]
    NoWorker {
        /// Says why.
        refusal: NoWorker,
        /// Is when one is expected to.
        retry_after: Duration,
    },
    /// Every worker that could take the request has said that it takes none for longer than the request may wait.
    #[error("the servers of this model take no requests for another {} s", retry_after.as_secs_f64().ceil())]
    Paused {
        /// The time until the first of them does.
        retry_after: Duration,
    },
    /// Too many requests wait for a worker, and nobody has more of them.
    #[error("every worker is busy, and {waiting_max} requests wait already")]
    QueueFull {
        /// Is the limit.
        waiting_max: usize,
        /// Is when there is room again, as far as can be predicted.
        retry_after: Duration,
    },
    /// No worker could start the request before its deadline.
    #[error("no worker could start the request within {seconds} s")]
    QueueLate {
        /// Is the limit.
        seconds: f64,
        /// Is when one could, as far as can be predicted.
        retry_after: Duration,
    },
    /// Every attempt failed.
    #[error("{}: {}", attempts_text(*n_attempts), failure_text(*last))]
    Upstream {
        /// Is the number of attempts.
        n_attempts: u32,
        /// Is how the last one failed.
        last: Failure,
    },
    /// Too many requests are being answered.
    #[error("the router answers {requests_max} requests already")]
    RequestsFull {
        /// Is the limit.
        requests_max: usize,
        /// Is when a place is free again, as far as can be predicted.
        retry_after: Duration,
    },
    /// The time in which running answers may finish is over.
    #[error("the router is shutting down")]
    ShuttingDown,
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
    /// The router is at fault.
    #[error("the router failed on this request")]
    Internal {
        /// Says what failed, for the log.
        reason: String,
    },
}

fn attempts_text(n_attempts: u32) -> String {
    if n_attempts == 1 {
        "the attempt failed".to_owned()
    } else {
        format!("{n_attempts} attempts failed, the last one")
    }
}

fn failure_text(failure: Failure) -> &'static str {
    match failure {
        Failure::Connect => "the worker could not be reached",
        Failure::Timeout => "the worker did not answer in time",
        Failure::Full => "the worker's queue is full",
        Failure::Unready => "the worker does not serve at the moment",
        Failure::Refused => "the worker does not let this router in",
        Failure::Broken => "the worker broke off its answer, or gave one that cannot be passed on",
        Failure::Error => "the worker answered with an error",
        Failure::Lost => "the worker was lost",
    }
}

/// Is what kind of failure it is, and so who can do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The request can never succeed as it is.
    Client,
    /// Nobody knows who asks.
    Unauthorized,
    /// The request may come from a page that has no business here.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// The path is right, the method is not.
    Method,
    /// The body is over the limit.
    TooLong,
    /// The body has a content coding that is not known.
    Coding,
    /// The body took too long.
    TooLate,
    /// The model does not do such things.
    NotSupported,
    /// Every place is taken; later there will be room.
    Overload,
    /// Nobody serves at the moment.
    Unavailable,
    /// The worker failed.
    Upstream,
    /// The worker took too long.
    UpstreamLate,
    /// The router failed.
    Internal,
}

impl RequestError {
    /// Returns an error about the field `param`.
    pub fn field(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Field { param: param.into(), reason: reason.into() }
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
            | Self::PromptTooLong { .. } => Class::Client,
            Self::Lookup(LookupError::Ambiguous { .. }) => Class::Client,
            Self::Lookup(LookupError::Unknown { .. }) | Self::PathUnknown { .. } | Self::NotStored { .. } => {
                Class::NotFound
            }
            Self::Unauthorized => Class::Unauthorized,
            Self::Lookup(LookupError::NoWorkers { .. } | LookupError::Loading { .. } | LookupError::Unheard { .. }) => {
                Class::Unavailable
            }
            Self::Lookup(LookupError::Incapable { .. }) => Class::NotSupported,
            Self::MethodRefused { .. } => Class::Method,
            Self::Host(HostRefusal::Unknown { .. }) => Class::Forbidden,
            Self::Body(BodyError::TooLong { .. }) => Class::TooLong,
            Self::Body(BodyError::UnknownCoding) => Class::Coding,
            Self::Body(BodyError::Late { .. } | BodyError::Silent { .. }) => Class::TooLate,
            Self::Body(BodyError::NoRoom)
            | Self::RequestsFull { .. }
            | Self::QueueFull { .. }
            | Self::QueueLate { .. }
            | Self::Paused { .. }
            | Self::RateLimited(_) => Class::Overload,
            Self::NoWorker { .. } | Self::ShuttingDown => Class::Unavailable,
            Self::Upstream { last: Failure::Timeout, .. } => Class::UpstreamLate,
            Self::Upstream { last: Failure::Full, .. } => Class::Overload,
            Self::Upstream { last: Failure::Unready, .. } => Class::Unavailable,
            Self::Upstream { .. } => Class::Upstream,
            Self::Internal { .. } => Class::Internal,
        }
    }

    /// Returns when it may be worth to try again, where that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NoWorker { retry_after, .. }
            | Self::Paused { retry_after }
            | Self::QueueFull { retry_after, .. }
            | Self::QueueLate { retry_after, .. }
            | Self::RequestsFull { retry_after, .. }
            | Self::RateLimited(RateLimited::Rate { retry_after, .. }) => Some(*retry_after),
            Self::RateLimited(RateLimited::AtOnce { .. }) | Self::Body(BodyError::NoRoom) => Some(RETURN),
            _ if self.class() == Class::Unavailable => Some(RETURN),
            _ => None,
        }
    }

    /// Returns the field that is to blame, where one is.
    pub fn param(&self) -> Option<String> {
        match self {
            Self::Field { param, .. } | Self::Respelled { param, .. } => Some(param.clone()),
            Self::Dialect(error) => error.param().map(str::to_owned),
            Self::Salt(_) => Some(CACHE_SALT.to_owned()),
            Self::Unreadable(ReadError::Field { param, .. }) => param.clone(),
            Self::Lookup(
                LookupError::Unknown { .. } | LookupError::Ambiguous { .. } | LookupError::Incapable { .. },
            ) => Some("model".to_owned()),
            _ => None,
        }
    }

    /// Returns the error's name for programs, where it has one.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::Unauthorized => Some("invalid_api_key"),
            Self::RateLimited(_) | Self::Paused { .. } => Some("rate_limit_exceeded"),
            Self::PromptTooLong { .. } => Some("context_length_exceeded"),
            Self::Host(refusal) => refusal.code(),
            Self::Body(error) => error.code(),
            Self::Respelled { source, .. } => source.code(),
            Self::Unreadable(ReadError::Json { .. }) | Self::Dialect(DialectError::Read(ReadError::Json { .. })) => {
                Some("invalid_json")
            }
            Self::Dialect(DialectError::Unsupported { .. }) => Some("unsupported_parameter"),
            Self::Lookup(LookupError::Unknown { .. }) => Some("model_not_found"),
            Self::Lookup(LookupError::Ambiguous { .. }) => Some("model_required"),
            Self::Lookup(LookupError::NoWorkers { .. } | LookupError::Unheard { .. }) => Some("no_worker"),
            Self::Lookup(LookupError::Loading { .. }) => Some("model_loading"),
            Self::Lookup(LookupError::Incapable { .. }) => Some("model_not_capable"),
            Self::NoWorker { .. } => Some("no_worker"),
            Self::RequestsFull { .. } | Self::QueueFull { .. } => Some("queue_full"),
            Self::Upstream { last: Failure::Full, .. } => Some("queue_full"),
            Self::QueueLate { .. } => Some("queue_timeout"),
            Self::ShuttingDown => Some("draining"),
            Self::Upstream { .. } => Some("worker_failed"),
            _ => None,
        }
    }
}
