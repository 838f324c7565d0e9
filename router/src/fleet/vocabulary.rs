//! The vocabularies: fetches, once per model, what the router needs to tokenize like its workers.
//!
//! One task compares the fleet's models with its vocabularies. It fetches those that are missing, drops those that no
//! worker serves any more, and publishes the rest. Until its vocabulary is available, requests for a model are routed
//! by load; those that arrive just after the router's start wait for it (`Fleet::first_contact`).
//!
//! Not here: tokenizing (`warmpath-prompt`), whether a prompt could be tokenized (`prompt`).

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use warmpath_common::model::{Fingerprint, MediaReading, ModelInfo};
use warmpath_common::summary::VOCABULARY_PATH;
use warmpath_prompt::{DeclaredVocabulary, PromptMaker, PromptOptions};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::compatibility::Mismatch;
use warmpath_router_core::fleet::{ConnectionState, FleetView, WorkerView};
use warmpath_router_core::stock::text_blocks::is_text;
use warmpath_shell::chain;

use super::client::{CallError, WorkerClient};
use super::media_layouts::MediaLayouts;
use super::trial::{self, TrialError, TrialResult};
use super::{Fleet, TrackerMessage};
use crate::config::{
    VOCABULARIES_MAX, VOCABULARY_BYTES_MAX, VOCABULARY_RETRY_MAX, VOCABULARY_RETRY_MIN, VOCABULARY_TIMEOUT,
};

/// Key of a vocabulary: the fingerprints of the files with which a model's prompts are rendered and tokenized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VocabularyKey {
    /// Fingerprint of the model.
    pub fingerprint: Fingerprint,
    /// Fingerprint of the chat template, which a worker's flag may replace.
    pub chat_template: Fingerprint,
    /// How images and audio are read; `None` if the model reads text alone.
    pub media: Option<MediaReading>,
}

impl VocabularyKey {
    /// Returns the key of the vocabulary that `model` declares.
    pub fn of(model: &ModelInfo) -> Self {
        let ModelInfo { fingerprint, chat_template_fingerprint: chat_template, media, .. } = *model;
        Self { fingerprint, chat_template, media }
    }
}

/// All wanted vocabularies.
pub type Vocabularies = HashMap<VocabularyKey, VocabularyState>;

/// State of a vocabulary.
#[derive(Debug, Clone)]
pub enum VocabularyState {
    /// The first download is in progress.
    Pending,
    /// The download failed; it is tried again.
    Failed {
        /// Reason.
        reason: String,
    },
    /// The vocabulary differs from what the workers declare.
    Disagrees(Mismatch),
    /// The vocabulary can be used.
    Ready(Arc<Vocabulary>),
}

impl VocabularyState {
    /// Returns whether the state is not known yet.
    pub fn is_pending(&self) -> bool {
        matches!(self, Self::Pending)
    }

    /// Returns the difference from what the workers declare.
    pub fn disagreement(&self) -> Option<&Mismatch> {
        match self {
            Self::Disagrees(disagreement) => Some(disagreement),
            Self::Pending | Self::Failed { .. } | Self::Ready(_) => None,
        }
    }

    /// Returns the reason why it cannot be used; `None` if it can, or is being fetched.
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Failed { reason } => Some(reason.clone()),
            Self::Disagrees(disagreement) => Some(disagreement.to_string()),
            Self::Pending | Self::Ready(_) => None,
        }
    }

    /// Returns a short name for the fleet page and for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Failed { .. } => "failed",
            Self::Disagrees(_) => "disagrees",
            Self::Ready(vocabulary) if vocabulary.template == TemplateUse::Unknown => "ready_without_template",
            Self::Ready(_) => "ready",
        }
    }
}

/// A usable vocabulary.
pub struct Vocabulary {
    /// Tokenizer and templates.
    pub maker: PromptMaker,
    /// Whether chats can be rendered as the workers do.
    pub template: TemplateUse,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("template", &self.template).finish_non_exhaustive()
    }
}

/// Whether a vocabulary's chat template is the one that the workers use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateUse {
    /// It is the workers' template.
    Known,
    /// The workers use another template, of which only the fingerprint is known: chats are routed by load.
    Unknown,
}

/// Reason why a vocabulary could not be fetched.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("no worker that has it can be reached")]
    NoWorker,
    #[error("cannot fetch {url}")]
    Fetch {
        url: String,
        #[source]
        source: CallError,
    },
    #[error("{url} was answered with {status}")]
    Status { url: String, status: u16 },
    #[error("{url} broke off")]
    Broken {
        url: String,
        #[source]
        source: axum::Error,
    },
    #[error("{url} did not arrive within {} s", VOCABULARY_TIMEOUT.as_secs())]
    Timeout { url: String },
    #[error("{url} has more than {VOCABULARY_BYTES_MAX} bytes")]
    TooLong { url: String },
    #[error("cannot keep {url} in a temporary file")]
    Keep {
        url: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{url} was refused: {reason}")]
    Refused { worker: WorkerIdx, url: String, reason: String },
    #[error(transparent)]
    Trial(#[from] TrialError),
    #[error(transparent)]
    Open(#[from] warmpath_prompt::OpenError),
    #[error("loading the vocabulary of {url} failed")]
    Panicked { url: String },
    #[error("there are {VOCABULARIES_MAX} vocabularies already")]
    TooMany,
}

/// Returns the vocabularies that the workers in the fleet need and the operator has not given, in the order of the
/// workers.
pub fn wanted(fleet: &Fleet, view: &FleetView) -> Vec<VocabularyKey> {
    let mut keys = Vec::new();
    let models = view.workers.iter().flat_map(|worker| worker.models());
    for model in models.filter(|model| !is_text(model) && !fleet.given().iter().any(|given| given.cuts(model))) {
        let key = VocabularyKey::of(model);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Time of the next try for a failed download.
struct Retry {
    at: Instant,
    pause: Duration,
}

/// Keeps the vocabularies up to date as long as the router runs.
pub async fn fetch(fleet: Arc<Fleet>, reports: mpsc::Sender<TrackerMessage>) {
    let mut retries: HashMap<VocabularyKey, Retry> = HashMap::new();
    loop {
        let wanted = wanted(&fleet, &fleet.view());
        retries.retain(|key, _| wanted.contains(key));
        keep_only(&fleet, &wanted);
        let now = Instant::now();
        let current = fleet.vocabularies();
        let due = wanted.iter().find(|key| {
            let is_missing = !matches!(current.get(key), Some(VocabularyState::Ready(_)));
            is_missing && retries.get(key).is_none_or(|retry| retry.at <= now)
        });
        let Some(&key) = due else {
            let next = retries.values().map(|retry| retry.at).min().filter(|at| *at > now);
            let next = next.unwrap_or_else(|| now + VOCABULARY_RETRY_MAX);
            tokio::select! {
                () = fleet.models_changed.notified() => {}
                () = tokio::time::sleep_until(next) => {}
            }
            continue;
        };
        let (state, refused) = settle(&fleet, key, &mut retries).await;
        let outcome = if refused.is_some() { "refused" } else { state.label() };
        fleet.metrics.vocabularies.with_label_values(&[outcome]).inc();
        publish(&fleet, key, state);
        if reports.send(refused.unwrap_or(TrackerMessage::Vocabulary)).await.is_err() {
            return;
        }
    }
}

/// Tries once to fetch a vocabulary; reports a worker whose vocabulary was refused.
async fn settle(
    fleet: &Fleet,
    key: VocabularyKey,
    retries: &mut HashMap<VocabularyKey, Retry>,
) -> (VocabularyState, Option<TrackerMessage>) {
    match obtain(fleet, key).await {
        Ok(state) => {
            // A worker may be repaired under the same model.
            match state.disagreement() {
                Some(_) => {
                    let pause = VOCABULARY_RETRY_MAX;
                    retries.insert(key, Retry { at: Instant::now() + pause, pause });
                }
                None => drop(retries.remove(&key)),
            }
            (state, None)
        }
        Err(error) => {
            let before = retries.get(&key).map_or(VOCABULARY_RETRY_MIN / 2, |retry| retry.pause);
            let pause = (before * 2).min(VOCABULARY_RETRY_MAX);
            retries.insert(key, Retry { at: Instant::now() + pause, pause });
            let reason = chain(&error);
            tracing::warn!(fingerprint = %key.fingerprint, %reason, "vocabulary is not available; routing by load");
            let refused = match error {
                FetchError::Refused { worker, reason, .. } => Some(TrackerMessage::Refused { worker, key, reason }),
                _ => None,
            };
            (VocabularyState::Failed { reason }, refused)
        }
    }
}

async fn obtain(fleet: &Fleet, key: VocabularyKey) -> Result<VocabularyState, FetchError> {
    let is_loaded = |state: &&VocabularyState| matches!(state, VocabularyState::Ready(_));
    if fleet.vocabularies().values().filter(is_loaded).count() >= VOCABULARIES_MAX {
        return Err(FetchError::TooMany);
    }
    let view = fleet.view();
    let has_it = |worker: &&Arc<WorkerView>| {
        !matches!(worker.excluded, Some(Mismatch::Refused { .. }))
            && worker.link != ConnectionState::Connecting
            && worker.stock.is_none()
            && worker.declared_model().is_some_and(|model| VocabularyKey::of(model) == key)
    };
    // A different worker each time, in case one of them cannot serve it.
    let sources: Vec<_> = view.workers.iter().filter(has_it).collect();
    let nth = rand::random_range(0..sources.len().max(1));
    let worker = sources.get(nth).ok_or(FetchError::NoWorker)?;
    let model = worker.model.as_deref().ok_or(FetchError::NoWorker)?;
    let client = fleet.member(worker.idx).client.clone();
    let url = client.url(VOCABULARY_PATH);
    let file = tokio::time::timeout(VOCABULARY_TIMEOUT, download(&client, &url))
        .await
        .map_err(|_| FetchError::Timeout { url: url.to_string() })??;
    // A vocabulary that declares itself is read while its templates are tried.
    let declared = spawn_blocking(reading(file.path(), DeclaredVocabulary::open));
    if let TrialResult::Refused { reason } = trial::try_out(&fleet.trial, file.path()).await? {
        return Err(FetchError::Refused { worker: worker.idx, url: url.to_string(), reason });
    }
    let panicked = |_| FetchError::Panicked { url: url.to_string() };
    let declared = declared.await.map_err(panicked)??;
    let open = reading(file.path(), |path| match declared {
        Some(declared) => PromptMaker::of_declared(declared, PromptOptions::default()),
        None => PromptMaker::open(path, PromptOptions::default()),
    });
    let maker = spawn_blocking(open).await.map_err(panicked)??;
    let maker = match MediaLayouts::of(key, fleet.layouts_wanted.clone()) {
        Some(layouts) => maker.with_media(Arc::new(layouts)),
        None => maker,
    };
    tracing::info!(fingerprint = %key.fingerprint, worker = %worker.name, "vocabulary is loaded");
    Ok(compare(maker, model))
}

/// Downloads `url` into a temporary file, which is deleted when it is dropped.
async fn download(client: &WorkerClient, url: &url::Url) -> Result<tempfile::NamedTempFile, FetchError> {
    let fetch = |source| FetchError::Fetch { url: url.to_string(), source };
    let keep = |source| FetchError::Keep { url: url.to_string(), source };
    let response = client.get(url).await.map_err(fetch)?;
    if !response.status().is_success() {
        return Err(FetchError::Status { url: url.to_string(), status: response.status().as_u16() });
    }
    let mut file = tempfile::Builder::new().prefix("warmpath-vocabulary-").suffix(".gguf").tempfile().map_err(keep)?;
    let mut n_bytes = 0;
    let mut chunks = response.into_body().into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|source| FetchError::Broken { url: url.to_string(), source })?;
        n_bytes += chunk.len();
        if n_bytes > VOCABULARY_BYTES_MAX {
            return Err(FetchError::TooLong { url: url.to_string() });
        }
        // A blocking write, but only to the page cache, of some megabytes in all.
        file.write_all(&chunk).map_err(keep)?;
    }
    file.flush().map_err(keep)?;
    Ok(file)
}

/// Returns a function that reads the vocabulary at `path` in this way.
fn reading<T, F: FnOnce(&Path) -> T>(path: &Path, read: F) -> impl FnOnce() -> T + use<T, F> {
    let path = path.to_owned();
    move || read(&path)
}

/// Compares a vocabulary with its worker's declaration.
fn compare(maker: PromptMaker, model: &ModelInfo) -> VocabularyState {
    let info = maker.vocabulary();
    let fields = [
        ("n_vocab", model.n_vocab.to_string(), info.n_vocab.to_string()),
        ("add_bos", model.add_bos.to_string(), info.add_bos.to_string()),
        ("add_eos", model.add_eos.to_string(), info.add_eos.to_string()),
        ("chat_template_kwargs", model.chat_template_kwargs.clone(), maker.chat_template_kwargs().to_json()),
    ];
    for (field, worker, vocabulary) in fields {
        if worker != vocabulary {
            return VocabularyState::Disagrees(Mismatch::Vocabulary { field, worker, vocabulary });
        }
    }
    let template = if maker.chat_template_fingerprint() == model.chat_template_fingerprint {
        TemplateUse::Known
    } else {
        tracing::error!(
            declared = %model.chat_template_fingerprint,
            served = %maker.chat_template_fingerprint(),
            "workers use a chat template that is not in their vocabulary; chats are routed by load"
        );
        TemplateUse::Unknown
    };
    VocabularyState::Ready(Arc::new(Vocabulary { maker, template }))
}

/// Drops the vocabularies that are not wanted, and begins those that are missing.
///
/// A model that a host has unloaded is likely to be loaded again, so its vocabulary stays while there is room.
fn keep_only(fleet: &Fleet, wanted: &[VocabularyKey]) {
    let current = fleet.vocabularies();
    let state = |key| current.get(key).cloned().unwrap_or(VocabularyState::Pending);
    let mut kept: Vocabularies = wanted.iter().map(|key| (*key, state(key))).collect();
    if fleet.view().hosts.has_models() {
        let is_unused = |key: &VocabularyKey, state: &VocabularyState| {
            !wanted.contains(key) && matches!(state, VocabularyState::Ready(_))
        };
        let unused = current.iter().filter(|(key, state)| is_unused(key, state));
        let n_free = VOCABULARIES_MAX.saturating_sub(kept.len());
        kept.extend(unused.take(n_free).map(|(key, state)| (*key, state.clone())));
    }
    if kept.len() == current.len() && kept.keys().all(|key| current.contains_key(key)) {
        return;
    }
    fleet.vocabularies.store(Arc::new(kept));
    fleet.vocabularies_settled.send_replace(());
}

fn publish(fleet: &Fleet, key: VocabularyKey, state: VocabularyState) {
    let mut vocabularies = (*fleet.vocabularies()).clone();
    vocabularies.insert(key, state);
    fleet.vocabularies.store(Arc::new(vocabularies));
    fleet.vocabularies_settled.send_replace(());
}
