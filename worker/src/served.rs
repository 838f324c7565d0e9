//! What a loaded worker is: one that generates, or one that embeds; and what both have in common.
//!
//! Not here: how it is loaded (`start`), how a request is answered (`http`, `lifecycle`).
//! The idea: a process is one or the other. What asks for the other gets an error that says so; what both have, like the
//! vocabulary and the summary, is reached without knowing which it is.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use warmpath_common::model::ModelInfo;
use warmpath_prompt::PromptMaker;

use crate::embedder::EmbedHandle;
use crate::embedder::vector::Norm;
use crate::engine::{CacheTotals, CounterValues, MemoryUse};
use crate::error::RequestError;
use crate::serving::{Preparing, Serving, VocabularyFile};
use crate::summary::Publisher;

/// Is a loaded worker; cheap to clone.
#[derive(Clone)]
pub enum Served {
    /// Generates text.
    Generator(Arc<Serving>),
    /// Makes vectors or scores of texts.
    Embedder(Arc<Embedding>),
}

/// Is everything that an embedding worker answers from.
pub struct Embedding {
    /// Runs the model.
    pub embedder: EmbedHandle,
    /// Is what vectors are divided by where a request does not say.
    pub norm: Norm,
    /// Turns texts into tokens.
    pub prompts: PromptMaker,
    /// Declares the model to routers.
    pub model: ModelInfo,
    /// Is the model's file.
    pub model_path: PathBuf,
    /// Is when the model was loaded. Units: seconds since 1970.
    pub loaded_at_s: u64,
    /// Is the model's metadata for routers.
    pub vocabulary: VocabularyFile,
    /// Publishes how busy the worker is.
    pub publisher: Publisher,
    /// Bounds the work that requests cost before they reach the embedder.
    pub preparing: Preparing,
    /// Memory that it takes; absent where that is not known.
    pub memory: Option<MemoryUse>,
}

/// Is what every loaded worker has.
#[derive(Clone, Copy)]
pub struct Base<'a> {
    /// Declares the model to routers.
    pub model: &'a ModelInfo,
    /// Turns texts into tokens.
    pub prompts: &'a PromptMaker,
    /// Publishes what is cached and how busy the worker is.
    pub publisher: &'a Publisher,
    /// Is the model's metadata for routers.
    pub vocabulary: &'a VocabularyFile,
    /// Is the model's file.
    pub model_path: &'a Path,
    /// Is when the model was loaded. Units: seconds since 1970.
    pub loaded_at_s: u64,
    /// Is the model in words.
    pub description: &'a str,
    /// Is the number of the model's parameters.
    pub n_params: u64,
    /// Is the size of the model's tensors.
    pub model_bytes: u64,
    /// Memory that it takes; absent where that is not known.
    pub memory: Option<MemoryUse>,
}

impl Served {
    /// Returns what it has in common with every other.
    pub fn base(&self) -> Base<'_> {
        match self {
            Self::Generator(serving) => Base {
                model: &serving.model,
                prompts: &serving.prompts,
                publisher: &serving.publisher,
                vocabulary: &serving.vocabulary,
                model_path: &serving.model_path,
                loaded_at_s: serving.loaded_at_s,
                description: &serving.engine.facts().description,
                n_params: serving.engine.facts().n_params,
                model_bytes: serving.engine.facts().model_bytes,
                memory: serving.memory,
            },
            Self::Embedder(embedding) => Base {
                model: &embedding.model,
                prompts: &embedding.prompts,
                publisher: &embedding.publisher,
                vocabulary: &embedding.vocabulary,
                model_path: &embedding.model_path,
                loaded_at_s: embedding.loaded_at_s,
                description: &embedding.embedder.facts().description,
                n_params: embedding.embedder.facts().n_params,
                model_bytes: embedding.embedder.facts().model_bytes,
                memory: embedding.memory,
            },
        }
    }

    /// Returns what it generates from.
    ///
    /// Errors: `NotEnabled` where it embeds.
    pub fn generator(&self) -> Result<Arc<Serving>, RequestError> {
        match self {
            Self::Generator(serving) => Ok(Arc::clone(serving)),
            Self::Embedder(_) => Err(RequestError::NotEnabled {
                what: "generating text",
                flag: "a model that generates and without --embedding",
            }),
        }
    }

    /// Returns what it embeds from.
    ///
    /// Errors: `NotEnabled` where it generates.
    pub fn embedder(&self) -> Result<Arc<Embedding>, RequestError> {
        match self {
            Self::Generator(_) => Err(RequestError::NotEnabled { what: "embedding texts", flag: "--embedding" }),
            Self::Embedder(embedding) => Ok(Arc::clone(embedding)),
        }
    }

    /// Returns what `work` makes of this, computed where it stalls nobody.
    ///
    /// Errors: `PreparingFull` when every place is taken, the work's own, `Internal` when it panics.
    pub async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce(Base<'_>) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let served = self.clone();
        let preparing = match self {
            Self::Generator(serving) => &serving.preparing,
            Self::Embedder(embedding) => &embedding.preparing,
        };
        preparing.run(move || work(served.base())).await
    }

    /// Returns the counters as they were after the last batch, and what the caches hold.
    pub fn counted(&self) -> (CounterValues, CacheTotals) {
        match self {
            Self::Generator(serving) => (serving.engine.counters(), CacheTotals::clone(&serving.engine.cache_totals())),
            Self::Embedder(embedding) => (embedding.embedder.counters(), CacheTotals::default()),
        }
    }

    /// Takes no more requests, lets those that are there finish until `within` has passed, and returns once that is done.
    pub async fn drain(&self, within: Duration) {
        match self {
            Self::Generator(serving) => serving.engine.drain(within).await,
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
