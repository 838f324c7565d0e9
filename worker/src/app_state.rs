//! The state of a loaded worker that generates text, and the phases of a worker.
//!
//! Not here: an embedding worker, and the common part of both (`model_kind`); loading (`start`), running a request
//! (`lifecycle`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use warmpath_common::block_hash::{BlockHash, ChainRoot};
use warmpath_common::ids::Token;
use warmpath_common::lora::Applied;
use warmpath_common::model::ModelInfo;
use warmpath_common::openai::ChatPrompt;
use warmpath_prompt::{AddSpecial, MediaRun, ParseSpecial, unless_cancelled};
use warmpath_shell::processors::Processors;

use crate::engine::{EngineError, EngineHandle, Generation};
use crate::error::RequestError;
use crate::model_kind::{CommonState, LoadedModel};
use crate::room::SlotRoom;
use crate::tools::ReasoningOutput;

/// Length up to which every prompt is counted to its end, if no response to it is generated. Units: contexts of a slot.
///
/// Source: own choice: a client that shortens a prompt needs its length; one of more than two contexts must be divided
/// anyway.
const COUNTED_CONTEXTS_MAX: usize = 2;

/// Places of the requests that only count, tokenize or render.
///
/// Source: own choice: an agent counts some dozens of texts at a time, and this many bodies of 16 MiB take 512 MiB.
const COUNTING_PLACES: usize = 32;

/// Phase of a worker.
#[derive(Clone)]
pub enum Phase {
    /// The model is being downloaded.
    Downloading {
        /// Downloaded share, 0 to 100.
        percent: u8,
    },
    /// The model is loading.
    Loading {
        /// Loaded share, 0 to 100.
        percent: u8,
    },
    /// Requests are accepted.
    Ready(LoadedModel),
    /// Running responses finish, and no new requests are accepted.
    Draining(LoadedModel),
}

/// State of a loaded worker that generates text.
pub struct Serving {
    /// State that an embedding worker has, too.
    pub common: CommonState,
    /// Runs the model.
    pub engine: EngineHandle,
    /// Default generation parameters of requests.
    pub defaults: Generation,
    /// Field that gets reasoning unless a request says so.
    pub reasoning_output: ReasoningOutput,
    /// Default silence of a stream after which it sends a keep-alive comment.
    pub silence_max: Option<Duration>,
    /// Files of the adapters.
    pub adapter_files: Vec<PathBuf>,
}

/// A GGUF file of the model's metadata without tensors.
#[derive(Debug, Clone)]
pub struct VocabularyFile {
    /// Content of the file.
    pub bytes: Bytes,
    /// HTTP entity tag of the file, quotes included.
    pub etag: String,
}

/// Pools that parse, render and tokenize.
///
/// Requests that only count, tokenize or render have a pool of their own. So other requests wait for none of them,
/// however many and long they are.
pub struct Preparing {
    /// Pool of the requests that the model computes.
    pub(crate) computing: Pool,
    /// Pool of the requests that only count, tokenize or render.
    pub(crate) counting: Pool,
}

/// A pool: one running request per processor, and a limited number of waiting ones.
pub(crate) struct Pool {
    places: Arc<Semaphore>,
    n_places: usize,
    processors: Processors,
}

impl Preparing {
    /// Returns pools with the same number of places for requests that the model computes as the engine.
    pub fn new(n_places: usize) -> Self {
        Self { computing: Pool::new(n_places), counting: Pool::new(COUNTING_PLACES) }
    }
}

impl Pool {
    fn new(n_places: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(n_places)), n_places, processors: Processors::all() }
    }

    /// Returns the result of `work`, which runs on a thread for long work. Between two portions of a text the work
    /// yields to other work of this pool, and ends if its caller has gone.
    ///
    /// Errors: `PreparingFull` if every place is taken, the work's own, `Internal` if it panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let full = |_| RequestError::PreparingFull { places: self.n_places };
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(full)?;
        let worked = self.processors.run(move |is_cancelled| {
            let result = unless_cancelled(is_cancelled, work);
            // After a client disconnects, the work may continue for one more portion of its text, and keeps its place.
            drop(place);
            result.unwrap_or_else(|| Err(RequestError::Internal { reason: "the client has left".to_owned() }))
        });
        worked.await.map_err(|error| RequestError::Internal { reason: error.to_string() })?
    }
}

impl Serving {
    /// Returns the maximum number of running and waiting sequences. A request with more is never accepted.
    pub fn n_places(&self) -> usize {
        self.common.preparing.computing.n_places
    }

    /// Returns the result of `work` on this state, run on a thread for long work.
    ///
    /// Errors: `PreparingFull` if every place is taken, the work's own, `Internal` if it panics.
    pub async fn prepare<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let serving = Arc::clone(self);
        self.common.preparing.computing.run(move || work(&serving)).await
    }

    /// Returns the result of `work` like [`Self::prepare`], in the pool of requests that only count.
    ///
    /// Errors: those of [`Self::prepare`].
    pub async fn count<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let serving = Arc::clone(self);
        self.common.preparing.counting.run(move || work(&serving)).await
    }

    /// Returns the number of tokens of a chat's prompt.
    ///
    /// Errors: `Prompt` for messages, `PromptTooLong` if it is far longer than `COUNTED_CONTEXTS_MAX` contexts.
    pub fn count_tokens(&self, chat: &ChatPrompt) -> Result<usize, RequestError> {
        let room = self.room();
        let n_tokens_max = (room.context_tokens as usize).saturating_mul(COUNTED_CONTEXTS_MAX);
        let prompt = self.common.prompts.chat_within(chat, n_tokens_max);
        Ok(prompt.map_err(|error| RequestError::of_chat(error, room))?.tokens.len())
    }

    /// Checks that the engine has a free place before a prompt is prepared.
    ///
    /// The number is as of the last step; `submit` decides. Errors: `Engine(QueueFull)`.
    pub fn check_room(&self) -> Result<(), RequestError> {
        let counters = self.engine.counters();
        let n_held = usize::try_from(counters.busy_slots + counters.queued).unwrap_or(usize::MAX);
        if n_held < self.n_places() {
            return Ok(());
        }
        let queue_max = self.n_places() - usize::from(self.common.model.n_slots);
        Err(EngineError::QueueFull { queue_max }.into())
    }

    /// Returns the context of a slot.
    pub fn room(&self) -> SlotRoom {
        SlotRoom { is_limited: self.engine.facts().is_limited, ..SlotRoom::of(&self.common.model) }
    }

    /// Checks that a slot can run a prompt with these runs of media tokens.
    ///
    /// Errors: `Field` if it is empty or has a token that the vocabulary lacks; `PromptTooLong`.
    pub fn check_prompt(&self, prompt: &[Token], runs: &[MediaRun]) -> Result<(), RequestError> {
        let checked = self.engine.check_prompt(prompt, runs);
        checked.map_err(|fault| RequestError::of_fault(fault, self.room()))
    }

    /// Returns the tokens of a text that is not a prompt by itself.
    pub fn tokenize_plain(&self, text: &str) -> Vec<Token> {
        self.common.prompts.tokenize(text, AddSpecial::No, ParseSpecial::No)
    }

    /// Returns the root of the chains of prompts with this adapter, or without one, and this salt.
    pub fn chain_root(&self, adapter: Option<Applied>, salt: &str) -> BlockHash {
        let lora = self.common.model.lora_root(adapter);
        ChainRoot { model_fingerprint: &self.common.model.fingerprint.0, lora: &lora, cache_salt: salt.as_bytes() }
            .hash()
    }

    /// Returns a fingerprint of the weights and the KV layout, which changes whenever responses may change.
    pub fn system_fingerprint(&self) -> String {
        let (model, layout) = (self.common.model.fingerprint.to_string(), self.common.model.kv_fingerprint.to_string());
        format!("b{}-{}", &model[..8], &layout[..4])
    }

    /// Checks that `model`, if a request names one, is the served model.
    ///
    /// Errors: `ModelUnknown`.
    pub fn check_model(&self, model: Option<&str>) -> Result<(), RequestError> {
        check_model(&self.common.model, model)
    }
}

/// Checks that `wanted`, if a request names a model, is a name of `model`. An empty name counts as absent: llama.vim
/// sends it.
///
/// Errors: `ModelUnknown`.
pub fn check_model(model: &ModelInfo, wanted: Option<&str>) -> Result<(), RequestError> {
    match wanted {
        Some(wanted) if !wanted.is_empty() && !model.answers_to(wanted) => {
            Err(RequestError::ModelUnknown { model: wanted.to_owned(), names: model.all_names().collect() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;

    use tokio::sync::oneshot;
    use warmpath_bench::model::Preset;
    use warmpath_bench::model::cache::cached_model;
    use warmpath_prompt::{PromptMaker, PromptOptions};

    use super::*;

    /// Time limit of every wait in these tests.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_request_beyond_the_limit_is_refused() {
        let preparing = Arc::new(Preparing::new(1));
        let (release, released) = mpsc::channel::<()>();
        let holder = Arc::clone(&preparing);
        let held = tokio::spawn(async move { holder.computing.run(move || Ok(released.recv().is_ok())).await });
        while preparing.computing.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = preparing.computing.run(|| Ok(())).await;
        assert!(matches!(refused, Err(RequestError::PreparingFull { places: 1 })), "{refused:?}");
        release.send(()).expect("the work waits");
        assert!(held.await.expect("no panic").expect("the work succeeds"));
        preparing.computing.run(|| Ok(())).await.expect("the place is free again");
    }

    #[tokio::test]
    async fn requests_that_only_count_delay_no_others() {
        let preparing = Arc::new(Preparing::new(1));
        let hold = |_| {
            let (release, released) = mpsc::channel::<()>();
            let holder = Arc::clone(&preparing);
            (release, tokio::spawn(async move { holder.counting.run(move || Ok(released.recv().is_ok())).await }))
        };
        let (releases, counts): (Vec<_>, Vec<_>) = (0..COUNTING_PLACES).map(hold).unzip();
        while preparing.counting.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = preparing.counting.run(|| Ok(())).await;
        assert!(matches!(refused, Err(RequestError::PreparingFull { places: COUNTING_PLACES })), "{refused:?}");
        let chat = tokio::time::timeout(PATIENCE, preparing.computing.run(|| Ok(())));
        chat.await.expect("it does not wait").expect("it has its own place");
        drop(releases);
        for count in counts {
            count.await.expect("no panic").expect("the work succeeds");
        }
        preparing.counting.run(|| Ok(())).await.expect("the places are free again");
    }

    #[tokio::test]
    async fn tokenizing_ends_when_its_request_is_gone() {
        let models = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/models"));
        let model = cached_model(Preset::Tiny, 1, models).expect("it can be made");
        let prompts = PromptMaker::open(&model, PromptOptions::default()).expect("it has a vocabulary");
        let preparing = Arc::new(Preparing::new(1));
        let (begin, begun) = oneshot::channel();
        let holder = Arc::clone(&preparing);
        let asked = tokio::spawn(async move {
            let endless = move || {
                begin.send(()).expect("the test waits");
                loop {
                    prompts.tokenize("one of many texts", AddSpecial::No, ParseSpecial::No);
                }
            };
            holder.computing.run::<()>(endless).await
        });
        begun.await.expect("it begins");
        asked.abort();
        let ended = tokio::time::timeout(PATIENCE, Arc::clone(&preparing.computing.places).acquire_owned());
        ended.await.expect("the work ends").expect("the places are there").forget();
    }

    #[tokio::test]
    async fn long_texts_on_all_processors_yield_to_short_ones() {
        let models = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/models"));
        let model = cached_model(Preset::Tiny, 1, models).expect("it can be made");
        let prompts = Arc::new(PromptMaker::open(&model, PromptOptions::default()).expect("it has a vocabulary"));
        let preparing = Arc::new(Preparing::new(100));
        let endless: Vec<_> = (0..preparing.computing.processors.n_free())
            .map(|_| {
                let (holder, prompts) = (Arc::clone(&preparing), Arc::clone(&prompts));
                tokio::spawn(async move {
                    let work = move || loop {
                        prompts.tokenize("one of many portions", AddSpecial::No, ParseSpecial::No);
                    };
                    holder.computing.run::<()>(work).await
                })
            })
            .collect();
        while preparing.computing.processors.n_free() > 0 {
            tokio::task::yield_now().await;
        }
        for nth in 0..10 {
            let short = tokio::time::timeout(PATIENCE, preparing.computing.run(move || Ok(nth)));
            assert_eq!(short.await.expect("it does not wait for the long ones").expect("it succeeds"), nth);
        }
        endless.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn work_that_panics_is_an_internal_error_and_frees_its_place() {
        let preparing = Preparing::new(1);
        let failed = preparing.computing.run(|| -> Result<(), RequestError> { panic!("a test's panic") }).await;
        assert!(matches!(failed, Err(RequestError::Internal { .. })), "{failed:?}");
        preparing.computing.run(|| Ok(())).await.expect("the place is free again");
    }
}
