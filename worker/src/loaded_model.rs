//! The state of a loaded worker of either kind, generating or embedding, and the common part of both kinds.
//!
//! A process is of one kind, and a request for the other kind gets an error. The common part, such as the vocabulary
//! and the summary, has the same interface for both. Not here: loading (`start`), running a request (`http`,
//! `lifecycle`).

pub mod common;
pub mod generator;

use std::sync::Arc;
use std::time::Duration;

use crate::embedder::EmbedHandle;
use crate::embedder::vector::Norm;
use crate::engine::{CacheTotals, CounterValues};
use crate::error::RequestError;
use crate::kv_transfer::StateFetcher;
use common::CommonState;
use generator::Generator;

/// A loaded worker; cheap to clone.
#[derive(Clone)]
pub enum LoadedModel {
    /// Generates text.
    Generator(Arc<Generator>),
    /// Computes vectors or scores of texts.
    Embedder(Arc<Embedder>),
}

/// State of an embedding worker.
pub struct Embedder {
    /// State that a generating worker has, too.
    pub common: CommonState,
    /// Runs the model.
    pub handle: EmbedHandle,
    /// Default norm of vectors.
    pub norm: Norm,
}

impl LoadedModel {
    /// Returns the common state.
    pub fn common(&self) -> &CommonState {
        match self {
            Self::Generator(generator) => &generator.common,
            Self::Embedder(embedder) => &embedder.common,
        }
    }

    /// Returns the state of a generating worker.
    ///
    /// Errors: `NotEnabled` if it embeds.
    pub fn generator(&self) -> Result<Arc<Generator>, RequestError> {
        match self {
            Self::Generator(generator) => Ok(Arc::clone(generator)),
            Self::Embedder(_) => Err(RequestError::NotEnabled {
                what: "generating text",
                flag: "a model that generates and without --embedding",
            }),
        }
    }

    /// Returns the state of an embedding worker.
    ///
    /// Errors: `NotEnabled` if it generates.
    pub fn embedder(&self) -> Result<Arc<Embedder>, RequestError> {
        match self {
            Self::Generator(_) => Err(RequestError::NotEnabled { what: "embedding texts", flag: "--embedding" }),
            Self::Embedder(embedder) => Ok(Arc::clone(embedder)),
        }
    }

    /// Returns the counters after the last batch, and the totals of the caches.
    pub fn counted(&self) -> (CounterValues, CacheTotals) {
        match self {
            Self::Generator(generator) => {
                (generator.engine.counters(), CacheTotals::clone(&generator.engine.cache_totals()))
            }
            Self::Embedder(embedder) => (embedder.handle.counters(), CacheTotals::default()),
        }
    }

    /// Stops admission, lets running requests finish until `within` has passed, and then returns.
    ///
    /// Until then, KV state is sent to other workers as long as `transfers` requires.
    pub async fn drain(&self, within: Duration, transfers: Option<&StateFetcher>) {
        match self {
            Self::Generator(generator) => {
                let handed_over = async {
                    if let Some(transfers) = transfers.filter(|_| generator.engine.facts().exchange.is_some()) {
                        transfers.handed_over(&generator.engine, || generator.common.publisher.has_subscribers()).await;
                    }
                };
                generator.engine.drain(within, handed_over).await;
            }
            Self::Embedder(embedder) => embedder.handle.drain(within).await,
        }
    }

    /// Returns once the thread that computes has ended, for whatever reason.
    pub async fn stopped(&self) {
        match self {
            Self::Generator(generator) => generator.engine.stopped().await,
            Self::Embedder(embedder) => embedder.handle.stopped().await,
        }
    }
}
