//! The state of a loaded worker of either kind, generating or embedding, and the common part of both kinds.
//!
//! A process is of one kind, and a request for the other kind gets an error. The common part, such as the vocabulary
//! and the summary, has the same interface for both. Not here: loading (`start`), running a request (`http`,
//! `lifecycle`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use warmpath_common::model::ModelInfo;
use warmpath_prompt::PromptMaker;

use crate::app_state::{Serving, VocabularyFile};
use crate::embedder::EmbedHandle;
use crate::embedder::vector::Norm;
use crate::engine::{CacheTotals, CounterValues, MemoryUse};
use crate::error::RequestError;
use crate::kv_transfer::StateFetcher;
use crate::prompt_pools::PromptPools;
use crate::summary::SummaryPublisher;

/// A loaded worker; cheap to clone.
#[derive(Clone)]
pub enum LoadedModel {
    /// Generates text.
    Generator(Arc<Serving>),
    /// Computes vectors or scores of texts.
    Embedder(Arc<Embedding>),
}

/// State of an embedding worker.
pub struct Embedding {
    /// State that a generating worker has, too.
    pub common: CommonState,
    /// Runs the model.
    pub embedder: EmbedHandle,
    /// Default norm of vectors.
    pub norm: Norm,
}

/// State common to every loaded worker.
pub struct CommonState {
    /// Declaration of the model for routers.
    pub model: ModelInfo,
    /// Tokenizer and templates.
    pub prompts: PromptMaker,
    /// Publisher of the cached blocks and the load.
    pub publisher: SummaryPublisher,
    /// The model's metadata for routers.
    pub vocabulary: VocabularyFile,
    /// File of the model.
    pub model_path: PathBuf,
    /// Time of loading. Units: seconds since 1970.
    pub loaded_at_s: u64,
    /// Pools for the work before the model.
    pub pools: PromptPools,
    /// Description of the model.
    pub description: String,
    /// Number of the model's parameters.
    pub n_params: u64,
    /// Size of the model's tensors.
    pub model_bytes: u64,
    /// Memory that the model takes; `None` if unknown.
    pub memory: Option<MemoryUse>,
}

impl LoadedModel {
    /// Returns the common state.
    pub fn common(&self) -> &CommonState {
        match self {
            Self::Generator(serving) => &serving.common,
            Self::Embedder(embedding) => &embedding.common,
        }
    }

    /// Returns the state of a generating worker.
    ///
    /// Errors: `NotEnabled` if it embeds.
    pub fn generator(&self) -> Result<Arc<Serving>, RequestError> {
        match self {
            Self::Generator(serving) => Ok(Arc::clone(serving)),
            Self::Embedder(_) => Err(RequestError::NotEnabled {
                what: "generating text",
                flag: "a model that generates and without --embedding",
            }),
        }
    }

    /// Returns the state of an embedding worker.
    ///
    /// Errors: `NotEnabled` if it generates.
    pub fn embedder(&self) -> Result<Arc<Embedding>, RequestError> {
        match self {
            Self::Generator(_) => Err(RequestError::NotEnabled { what: "embedding texts", flag: "--embedding" }),
            Self::Embedder(embedding) => Ok(Arc::clone(embedding)),
        }
    }

    /// Returns the counters after the last batch, and the totals of the caches.
    pub fn counted(&self) -> (CounterValues, CacheTotals) {
        match self {
            Self::Generator(serving) => (serving.engine.counters(), CacheTotals::clone(&serving.engine.cache_totals())),
            Self::Embedder(embedding) => (embedding.embedder.counters(), CacheTotals::default()),
        }
    }

    /// Stops admission, lets running requests finish until `within` has passed, and then returns.
    ///
    /// Until then, KV state is sent to other workers as long as `transfers` requires.
    pub async fn drain(&self, within: Duration, transfers: Option<&StateFetcher>) {
        match self {
            Self::Generator(serving) => {
                let handed_over = async {
                    if let Some(transfers) = transfers.filter(|_| serving.engine.facts().exchange.is_some()) {
                        transfers.handed_over(&serving.engine, || serving.common.publisher.has_subscribers()).await;
                    }
                };
                serving.engine.drain(within, handed_over).await;
            }
            Self::Embedder(embedding) => embedding.embedder.drain(within).await,
        }
    }

    /// Returns once the thread that computes has ended, for whatever reason.
    pub async fn stopped(&self) {
        match self {
            Self::Generator(serving) => serving.engine.stopped().await,
            Self::Embedder(embedding) => embedding.embedder.stopped().await,
        }
    }
}
