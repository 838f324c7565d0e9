//! Reasons why a request gets no response from a worker: one type from the body's first byte to the response's first.
//!
//! Not here: status codes and the error object (`warmpath_shell::api_error`), a worker's own error responses, which
//! pass through.

pub mod response;

use std::time::Duration;

use axum::http::StatusCode;
use warmpath_common::dialects::DialectError;
use warmpath_common::fields::ReadError;
use warmpath_common::openai::PromptExcess;
use warmpath_common::salt::SaltError;
use warmpath_prompt::TokenCount;
use warmpath_router_core::fleet::LookupError;
use warmpath_router_core::hosts::ModelRefusal;
use warmpath_router_core::ledger::NoWorker;
use warmpath_router_core::overload::admission::RETURN;
use warmpath_router_core::overload::retry::WorkerFailure;
use warmpath_shell::api_error::{ApiError, Class};
use warmpath_shell::body::BodyError;
use warmpath_shell::convert_refusals;
use warmpath_shell::refusal::Refusal;

use crate::fleet::hosts::HostCallError;
use crate::keys::{ForbiddenModel, RateLimited};

/// Reason why a request gets no response from a worker.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The request is refused for a reason that router and worker share.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request has no known API key.
    #[error("the API key is missing or unknown: send it as `Authorization: Bearer KEY`, or as `x-api-key: KEY`")]
    Unauthorized,
    /// The API key may neither give orders to hosts nor read reports of workers.
    #[error("orders to hosts and reports of workers need an API key with `admin = true`")]
    AdminKey,
    /// The API key may not use the model.
    #[error(transparent)]
    ForbiddenModel(#[from] ForbiddenModel),
    /// A host did not do what it was told.
    #[error(transparent)]
    HostCall(#[from] HostCallError),
    /// The API key has reached a limit.
    #[error(transparent)]
    RateLimited(#[from] RateLimited),
    /// No worker's context is large enough for the prompt.
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
        /// Reason.
        refusal: NoWorker,
        /// Expected time until a worker can.
        retry_after: Duration,
    },
    /// No worker of the model takes requests before this request's deadline, as the workers have announced.
    #[error("the servers of this model take no requests at the moment")]
    Paused {
        /// Time until the first of them takes requests again.
        retry_after: Duration,
    },
    /// The queue is full, and no other tenant has more requests in it.
    #[error("every worker is busy, and {waiting_max} requests are already waiting")]
    QueueFull {
        /// Limit of the queue.
        waiting_max: usize,
        /// Predicted time until the queue has a place.
        retry_after: Duration,
    },
    /// No worker could start the request before its deadline.
    #[error("no worker could start the request within {seconds} s")]
    QueueLate {
        /// Limit of the wait.
        seconds: f64,
        /// Predicted time until a worker could start it.
        retry_after: Duration,
    },
    /// Every attempt failed.
    #[error("{}: {}", attempts_text(*n_attempts), failure_text(*last))]
    Upstream {
        /// Number of attempts.
        n_attempts: u32,
        /// Failure of the last attempt.
        last: WorkerFailure,
    },
    /// Too many requests are running.
    #[error("the router is already serving {requests_max} requests")]
    RequestsFull {
        /// Limit of running requests.
        requests_max: usize,
        /// Predicted time until a place is free.
        retry_after: Duration,
    },
    /// The time for running responses to finish is over.
    #[error("the router is shutting down")]
    ShuttingDown,
    /// The router failed.
    #[error("the router failed on this request")]
    Internal {
        /// Reason, for the log.
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

fn failure_text(failure: WorkerFailure) -> &'static str {
    match failure {
        WorkerFailure::Connect => "the worker could not be reached",
        WorkerFailure::Shortage => "the router has no resources left for a connection to the worker",
        WorkerFailure::Timeout => "the worker did not respond in time",
        WorkerFailure::Full => "the worker's queue is full",
        WorkerFailure::Unready => "the worker cannot serve at the moment",
        WorkerFailure::Refused => "the worker rejects this router's token",
        WorkerFailure::Broken => "the worker ended its response early, or sent one that cannot be passed on",
        WorkerFailure::Error => "the worker responded with an error",
        WorkerFailure::Lost => "the worker was lost",
    }
}

convert_refusals!(RequestError: DialectError, ReadError, SaltError);

impl RequestError {
    /// Returns an error about the field `param`.
    pub fn field(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Refusal::field(param, reason).into()
    }
}

impl ApiError for RequestError {
    fn class(&self) -> Class {
        match self {
            Self::Refused(refusal) => refusal.class(),
            Self::PromptTooLong { .. } => Class::Client,
            Self::Lookup(LookupError::Ambiguous { .. }) => Class::Client,
            Self::Lookup(LookupError::Unknown { .. }) => Class::NotFound,
            Self::Lookup(LookupError::Host(ModelRefusal::Unloaded { .. })) => Class::Client,
            Self::Unauthorized => Class::Unauthorized,
            Self::AdminKey | Self::ForbiddenModel(_) => Class::Forbidden,
            Self::HostCall(HostCallError::Refused { status: StatusCode::SERVICE_UNAVAILABLE, .. }) => {
                Class::Unavailable
            }
            Self::HostCall(HostCallError::Refused { status: StatusCode::BAD_REQUEST, .. }) => Class::Client,
            Self::HostCall(HostCallError::Refused { status: StatusCode::NOT_FOUND, .. }) => Class::NotFound,
            Self::HostCall(HostCallError::Late) => Class::UpstreamLate,
            Self::HostCall(_) => Class::Upstream,
            Self::Lookup(
                LookupError::NoWorkers { .. }
                | LookupError::Loading { .. }
                | LookupError::Undeclared { .. }
                | LookupError::Host(_),
            ) => Class::Unavailable,
            Self::Lookup(LookupError::Incapable { .. }) => Class::NotSupported,
            Self::RequestsFull { .. }
            | Self::QueueFull { .. }
            | Self::QueueLate { .. }
            | Self::Paused { .. }
            | Self::RateLimited(_) => Class::Overload,
            Self::NoWorker { .. } | Self::ShuttingDown => Class::Unavailable,
            Self::Upstream { last: WorkerFailure::Timeout, .. } => Class::UpstreamLate,
            Self::Upstream { last: WorkerFailure::Full, .. } => Class::Overload,
            Self::Upstream { last: WorkerFailure::Unready | WorkerFailure::Shortage, .. } => Class::Unavailable,
            Self::Upstream { .. } => Class::Upstream,
            Self::Internal { .. } => Class::Internal,
        }
    }

    fn param(&self) -> Option<String> {
        match self {
            Self::Refused(refusal) => refusal.param(),
            Self::Lookup(
                LookupError::Unknown { .. }
                | LookupError::Ambiguous { .. }
                | LookupError::Incapable { .. }
                | LookupError::Host(ModelRefusal::Unloaded { .. }),
            ) => Some("model".to_owned()),
            _ => None,
        }
    }

    fn code(&self) -> Option<&'static str> {
        match self {
            Self::Unauthorized => Some("invalid_api_key"),
            Self::AdminKey => Some("admin_key_required"),
            Self::ForbiddenModel(_) => Some("model_forbidden"),
            Self::HostCall(_) => Some("host_failed"),
            Self::RateLimited(_) | Self::Paused { .. } => Some("rate_limit_exceeded"),
            Self::PromptTooLong { .. } => Some("context_length_exceeded"),
            Self::Refused(refusal) => refusal.code(),
            Self::Lookup(LookupError::Unknown { .. }) => Some("model_not_found"),
            Self::Lookup(LookupError::Ambiguous { .. }) => Some("model_required"),
            Self::Lookup(LookupError::NoWorkers { .. } | LookupError::Undeclared { .. }) => Some("no_worker"),
            Self::Lookup(LookupError::Loading { .. }) => Some("model_loading"),
            Self::Lookup(LookupError::Incapable { .. }) => Some("model_not_capable"),
            Self::Lookup(LookupError::Host(refusal)) => Some(match refusal {
                ModelRefusal::Loading { .. } => "model_loading",
                ModelRefusal::Unloaded { .. } => "model_not_loaded",
                ModelRefusal::Impossible { .. } => "model_impossible",
                ModelRefusal::Unreachable { .. } => "no_worker",
            }),
            Self::NoWorker { .. } => Some("no_worker"),
            Self::RequestsFull { .. } | Self::QueueFull { .. } => Some("queue_full"),
            Self::Upstream { last: WorkerFailure::Full, .. } => Some("queue_full"),
            Self::QueueLate { .. } => Some("queue_timeout"),
            Self::ShuttingDown => Some("draining"),
            Self::Upstream { .. } => Some("worker_failed"),
            _ => None,
        }
    }

    fn excess(&self) -> Option<PromptExcess> {
        match self {
            Self::PromptTooLong { n_tokens, context_tokens } => {
                Some(PromptExcess { n_prompt_tokens: n_tokens.number(), n_ctx: *context_tokens })
            }
            _ => None,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NoWorker { retry_after, .. }
            | Self::Paused { retry_after }
            | Self::QueueFull { retry_after, .. }
            | Self::QueueLate { retry_after, .. }
            | Self::RequestsFull { retry_after, .. }
            | Self::RateLimited(RateLimited::Rate { retry_after, .. }) => Some(*retry_after),
            Self::Lookup(LookupError::Host(refusal)) if self.class() == Class::Unavailable => {
                Some(refusal.retry_after().map_or(RETURN, |wait| wait.max(Duration::from_secs(1))))
            }
            Self::RateLimited(RateLimited::AtOnce { .. }) | Self::Refused(Refusal::Body(BodyError::NoRoom)) => {
                Some(RETURN)
            }
            _ if self.class() == Class::Unavailable => Some(RETURN),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_on_the_router_s_machine_is_a_refusal_with_retry_after() {
        let error = RequestError::Upstream { n_attempts: 1, last: WorkerFailure::Shortage };
        assert_eq!((error.class(), error.retry_after()), (Class::Unavailable, Some(RETURN)));
    }
}
