//! Compatibility checks: whether router and workers, and all workers of one model name, hash a prompt in the same way.
//!
//! Prompts would never match the cache of a worker that hashes differently, and no error would show it. So the router
//! excludes such a worker and logs the reason. If workers of one name differ, the model of most workers counts as
//! right; of several such models, the one whose first worker has started first. The rule uses only what all routers
//! see, and not the order of the workers, so that all routers take the same model. Workers that generate and workers
//! that embed are compared separately, since one name may stand for a model of each kind.

use std::cmp::Reverse;
use std::collections::HashMap;

use warmpath_common::block_hash::HASH_VERSION;
use warmpath_common::model::{ModelInfo, TEMPLATE_KWARGS_BYTES_MAX};
use warmpath_common::summary::Stamp;

/// Largest block that a worker may declare. Units: tokens.
///
/// Source: own choice: with larger blocks hardly any prefix would be shared.
pub const BLOCK_SIZE_TOKENS_MAX: u32 = 4096;
/// Maximum number of names, and of adapters, that a worker may declare. Source: own choice, far above the names and
/// adapters of any real model.
pub const NAMES_MAX: usize = 64;
/// Longest name that a worker may declare. Units: bytes. Source: own choice, far above the names of any real model.
pub const NAME_BYTES_MAX: usize = 512;

/// Reason why a worker is incompatible with the router or with the fleet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The worker hashes by another version of the chain.
    #[error("the worker hashes blocks by version {worker}, this router by version {HASH_VERSION}")]
    HashVersion {
        /// Version of the worker.
        worker: u16,
    },
    /// The worker declares an impossible value.
    #[error("the worker declares {field} = {value}, which is impossible")]
    Nonsense {
        /// Name of the field.
        field: &'static str,
        /// Declared value.
        value: String,
    },
    /// Other workers serve the same name with a different model or configuration.
    #[error("the worker serves `{name}` with {field} = {worker}, the fleet with {fleet}")]
    Model {
        /// Name that is served differently.
        name: String,
        /// Name of the first field that differs.
        field: &'static str,
        /// Value of this worker.
        worker: String,
        /// Value of the model that counts as right.
        fleet: String,
    },
    /// The vocabulary that the worker serves differs from the one that it declares.
    #[error("the worker declares {field} = {worker}, the vocabulary that it serves says {vocabulary}")]
    Vocabulary {
        /// Name of the field.
        field: &'static str,
        /// Declared value.
        worker: String,
        /// Value in the vocabulary.
        vocabulary: String,
    },
    /// The vocabulary that the worker serves would harm a router.
    #[error("the vocabulary that the worker serves is refused: {reason}")]
    Refused {
        /// Harm that was found.
        reason: String,
    },
    /// The same process is already in the fleet under another URL, and would be counted twice.
    #[error("the same worker process is already in the fleet as {first}")]
    DuplicateWorker {
        /// URL that was configured first.
        first: String,
    },
}

impl Mismatch {
    /// Returns a short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::HashVersion { .. } => "hash_version",
            Self::Nonsense { .. } => "nonsense",
            Self::Model { .. } => "model",
            Self::Vocabulary { .. } => "vocabulary",
            Self::Refused { .. } => "vocabulary_refused",
            Self::DuplicateWorker { .. } => "duplicate_worker",
        }
    }
}

/// Returns what is wrong with one worker's declaration, regardless of other workers.
pub fn check_alone(model: &ModelInfo) -> Option<Mismatch> {
    let nonsense = |field, value: &dyn std::fmt::Display| Some(Mismatch::Nonsense { field, value: value.to_string() });
    if model.hash_version != HASH_VERSION {
        return Some(Mismatch::HashVersion { worker: model.hash_version });
    }
    if !(1..=BLOCK_SIZE_TOKENS_MAX).contains(&model.block_size_tokens) {
        return nonsense("block_size_tokens", &model.block_size_tokens);
    }
    // Names of the model and of its adapters.
    if model.names.is_empty() || model.names.len() > NAMES_MAX {
        return nonsense("the number of names", &model.names.len());
    }
    if let Some(name) = model.names.iter().find(|name| name.is_empty() || name.len() > NAME_BYTES_MAX) {
        return nonsense("the length of a name", &name.len());
    }
    if model.adapters.len() > NAMES_MAX {
        return nonsense("the number of adapters", &model.adapters.len());
    }
    if let Some(adapter) = model.adapters.iter().find(|a| a.name.is_empty() || a.name.len() > NAME_BYTES_MAX) {
        return nonsense("the length of an adapter's name", &adapter.name.len());
    }
    if let Some(adapter_in_force) =
        model.adapter_in_force.filter(|adapter_in_force| usize::from(adapter_in_force.adapter) >= model.adapters.len())
    {
        return nonsense("the adapter in force", &adapter_in_force.adapter);
    }
    // Sizes.
    if model.chat_template_kwargs.len() > TEMPLATE_KWARGS_BYTES_MAX {
        return nonsense("the length of chat_template_kwargs", &model.chat_template_kwargs.len());
    }
    for (field, value) in
        [("n_slots", u32::from(model.n_slots)), ("context_tokens", model.context_tokens), ("n_vocab", model.n_vocab)]
    {
        if value == 0 {
            return nonsense(field, &value);
        }
    }
    None
}

/// Declaration of one worker, as it is compared with others.
#[derive(Debug, Clone, Copy)]
pub struct Declaration<'a> {
    /// Declared model.
    pub model: &'a ModelInfo,
    /// Boot epoch of its process; `None` for a stock server.
    pub boot_epoch: Option<u64>,
    /// Whether it counts among the workers of its model.
    pub counts: bool,
}

/// Returns, for each worker that declares a model, the reason to exclude it from the fleet.
///
/// Shape: `declarations` `[n]` -> `[n]`; `None` stands for a worker that is not connected. The order of the workers
/// makes no difference.
pub fn check_all(declarations: &[Option<Declaration<'_>>]) -> Vec<Option<Mismatch>> {
    let mut verdicts: Vec<_> = declarations
        .iter()
        .map(|declaration| declaration.and_then(|declaration| check_alone(declaration.model)))
        .collect();
    let sound = declarations.iter().enumerate().filter_map(|(idx, declaration)| {
        let declaration = (*declaration).filter(|_| verdicts[idx].is_none())?;
        Some((idx, declaration, identity(declaration.model)))
    });
    let sound: Vec<_> = sound.collect();
    let mut pools: HashMap<(&str, bool), HashMap<&Identity, Support>> = HashMap::new();
    for (_, declaration, identity) in &sound {
        for name in &declaration.model.names {
            pools.entry(pool(declaration.model, name)).or_default().entry(identity).or_default().add(*declaration);
        }
    }
    let right: HashMap<_, &Identity> =
        pools.into_iter().filter_map(|(pool, models)| Some((pool, best_supported(models)?))).collect();
    for (idx, declaration, identity) in &sound {
        let differs = |name: &String| difference(name, identity, right[&pool(declaration.model, name)]);
        verdicts[*idx] = declaration.model.names.iter().find_map(differs);
    }
    verdicts
}

/// Identity that two entries of the fleet share, although each should have its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DuplicateWorker {
    /// Both are one process under two URLs. Contains the position of the first.
    Process(usize),
    /// Both are processes of their own with the same uid. Contains the position of the first. Their views are kept
    /// apart by URL.
    Identity(usize),
}

/// Returns, for each worker, an earlier one with the same process or uid.
///
/// Shape: `stamps` `[n]` -> `[n]`; `None` stands for a worker that is not connected.
pub fn duplicates(stamps: &[Option<Stamp>]) -> Vec<Option<DuplicateWorker>> {
    let mut first_of_process = HashMap::new();
    let mut first_of_uid = HashMap::new();
    let find = |(idx, stamp): (usize, &Option<Stamp>)| {
        let stamp = (*stamp)?;
        let process = *first_of_process.entry((stamp.worker_uid, stamp.boot_epoch)).or_insert(idx);
        let uid = *first_of_uid.entry(stamp.worker_uid).or_insert(idx);
        match (process < idx, uid < idx) {
            (true, _) => Some(DuplicateWorker::Process(process)),
            (false, true) => Some(DuplicateWorker::Identity(uid)),
            (false, false) => None,
        }
    };
    stamps.iter().enumerate().map(find).collect()
}

/// Workers of one model in a pool.
#[derive(Debug, Clone, Copy)]
struct Support {
    n_workers: usize,
    /// Earliest boot epoch.
    since: u64,
}

impl Default for Support {
    fn default() -> Self {
        Self { n_workers: 0, since: u64::MAX }
    }
}

impl Support {
    fn add(&mut self, worker: Declaration<'_>) {
        self.n_workers += usize::from(worker.counts);
        self.since = self.since.min(worker.boot_epoch.unwrap_or(u64::MAX));
    }
}

/// Returns the model that counts as right in a pool; `None` if the pool has no worker.
///
/// The age decides between models with equally many workers. So the model of a fleet changes once while workers are
/// restarted with another one, and a worker that ends and starts again with a wrong one changes nothing.
fn best_supported(models: HashMap<&Identity, Support>) -> Option<&Identity> {
    let first =
        models.into_iter().min_by_key(|(identity, support)| (Reverse(support.n_workers), support.since, *identity));
    first.map(|(identity, _)| identity)
}

/// Returns the pool of a name: generating and embedding workers are apart.
fn pool<'a>(model: &ModelInfo, name: &'a str) -> (&'a str, bool) {
    (name, model.embedding.is_some())
}

/// Names and values of the fields by which two models hash prompts or embed texts differently.
type Identity = [(&'static str, String); 12];

fn identity(model: &ModelInfo) -> Identity {
    let adapters = model.adapters.iter();
    [
        ("fingerprint", model.fingerprint.to_string()),
        // Before the fingerprint that includes them, because their text says more.
        ("chat_template_kwargs", model.chat_template_kwargs.clone()),
        ("chat_template_fingerprint", model.chat_template_fingerprint.to_string()),
        ("block_size_tokens", model.block_size_tokens.to_string()),
        ("add_bos", model.add_bos.to_string()),
        ("add_eos", model.add_eos.to_string()),
        ("n_vocab", model.n_vocab.to_string()),
        ("adapters", list(adapters.clone().map(|adapter| format!("{} x {}", adapter.name, adapter.scale)))),
        // They tell files of the same name apart.
        ("adapters", list(adapters.map(|adapter| adapter.fingerprint.to_string()))),
        (
            "the adapter in force",
            or_none(
                model
                    .adapter_in_force
                    .map(|adapter_in_force| format!("{} x {}", adapter_in_force.adapter, adapter_in_force.scale)),
            ),
        ),
        ("media", or_none(model.media.map(|reading| reading.fingerprint.to_string()))),
        ("embedding", or_none(model.embedding.map(|embedding| embedding.to_string()))),
    ]
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

fn or_none(value: Option<String>) -> String {
    value.unwrap_or_else(|| "none".to_owned())
}

/// Returns the first field in which a worker differs from the model that counts as right under a name.
fn difference(name: &str, worker: &Identity, right: &Identity) -> Option<Mismatch> {
    let (&(field, ref worker), (_, fleet)) = worker.iter().zip(right).find(|(worker, fleet)| worker != fleet)?;
    Some(Mismatch::Model { name: name.to_owned(), field, worker: worker.clone(), fleet: fleet.clone() })
}

#[cfg(test)]
mod tests;
