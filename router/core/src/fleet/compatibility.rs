//! Compatibility checks: whether router and workers, and all workers of one model name, hash a prompt in the same way.
//!
//! Prompts would never match the cache of a worker that hashes differently, and no error would show it. So the router
//! excludes such a worker and logs the reason. If workers of one name differ, the largest group counts as right; of
//! groups of equal size, the one with the worker that is configured first. Workers that generate and workers that embed
//! are compared separately, since one name may stand for a model of each kind.

use std::collections::HashMap;

use warmpath_common::block_hash::HASH_VERSION;
use warmpath_common::lora::AdapterInfo;
use warmpath_common::model::ModelInfo;
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
    #[error("the worker serves `{name}` with {field} = {worker}, most of the fleet with {fleet}")]
    Model {
        /// Name that is served differently.
        name: String,
        /// Name of the first field that differs.
        field: &'static str,
        /// Value of this worker.
        worker: String,
        /// Value of the other workers.
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
            Self::DuplicateWorker { .. } => "twin",
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
    if let Some(applied) = model.adapter_in_force.filter(|applied| usize::from(applied.adapter) >= model.adapters.len())
    {
        return nonsense("the adapter in force", &applied.adapter);
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

/// Returns, for each worker that declares a model, the reason to exclude it from the fleet.
///
/// Shape: `models` `[n]` -> `[n]`; `None` stands for a worker that is not connected and does not count.
pub fn check_all(models: &[Option<&ModelInfo>]) -> Vec<Option<Mismatch>> {
    let mut verdicts: Vec<_> = models.iter().map(|model| model.and_then(check_alone)).collect();
    let voters: Vec<(usize, &ModelInfo)> = models
        .iter()
        .enumerate()
        .filter_map(|(idx, model)| model.filter(|_| verdicts[idx].is_none()).map(|model| (idx, model)))
        .collect();
    let pool = |model: &ModelInfo, name: &str| (name.to_owned(), model.embedding.is_some());
    let mut pools: HashMap<(String, bool), Vec<&ModelInfo>> = HashMap::new();
    for (_, model) in &voters {
        model.names.iter().for_each(|name| pools.entry(pool(model, name)).or_default().push(model));
    }
    for (idx, model) in voters {
        verdicts[idx] = model.names.iter().find_map(|name| {
            let right = majority(&pools[&pool(model, name)]);
            difference(model, right).map(|(field, worker, fleet)| Mismatch::Model {
                name: name.clone(),
                field,
                worker,
                fleet,
            })
        });
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

/// Returns the declaration that most workers share; of equal groups, that of the first.
fn majority<'a>(models: &[&'a ModelInfo]) -> &'a ModelInfo {
    let mut groups: Vec<(&ModelInfo, usize)> = Vec::new();
    for model in models {
        match groups.iter_mut().find(|(first, _)| difference(first, model).is_none()) {
            Some((_, n)) => *n += 1,
            None => groups.push((model, 1)),
        }
    }
    // `max_by_key` would take the last of equal groups.
    let most = groups.iter().map(|(_, n)| *n).max().unwrap_or(0);
    groups.iter().find(|(_, n)| *n == most).map_or(models[0], |(model, _)| model)
}

/// Returns the first field that makes two models hash prompts or embed texts differently, with both values.
fn difference(a: &ModelInfo, b: &ModelInfo) -> Option<(&'static str, String, String)> {
    let field = |name, a: &dyn std::fmt::Display, b: &dyn std::fmt::Display| {
        let (a, b) = (a.to_string(), b.to_string());
        (a != b).then_some((name, a, b))
    };
    let template = "chat_template_fingerprint";
    field("fingerprint", &a.fingerprint, &b.fingerprint)
        .or_else(|| field(template, &a.chat_template_fingerprint, &b.chat_template_fingerprint))
        .or_else(|| field("block_size_tokens", &a.block_size_tokens, &b.block_size_tokens))
        .or_else(|| field("add_bos", &a.add_bos, &b.add_bos))
        .or_else(|| field("add_eos", &a.add_eos, &b.add_eos))
        .or_else(|| field("n_vocab", &a.n_vocab, &b.n_vocab))
        .or_else(|| field("adapters", &names_of(&a.adapters), &names_of(&b.adapters)))
        .or_else(|| (a.adapters != b.adapters).then(|| ("adapters", other_files(a), other_files(b))))
        .or_else(|| field("the adapter in force", &in_force(a), &in_force(b)))
        .or_else(|| field("media", &media(a), &media(b)))
        .or_else(|| match (&a.embedding, &b.embedding) {
            (Some(a), Some(b)) => field("embedding", a, b),
            _ => None,
        })
}

fn names_of(adapters: &[AdapterInfo]) -> String {
    let of = |adapter: &AdapterInfo| format!("{} x {}", adapter.name, adapter.scale);
    adapters.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// Returns the adapters' fingerprints, which tell files of the same name apart.
fn other_files(model: &ModelInfo) -> String {
    model.adapters.iter().map(|adapter| adapter.fingerprint.to_string()).collect::<Vec<_>>().join(", ")
}

fn in_force(model: &ModelInfo) -> String {
    model
        .adapter_in_force
        .map_or_else(|| "none".to_owned(), |applied| format!("{} x {}", applied.adapter, applied.scale))
}

fn media(model: &ModelInfo) -> String {
    model.media.map_or_else(|| "none".to_owned(), |reading| reading.fingerprint.to_string())
}

#[cfg(test)]
mod tests {
    use warmpath_common::ids::WorkerUid;
    use warmpath_common::model::{EmbeddingInfo, Pooling};

    use super::*;
    use crate::testing::model;

    fn verdicts(models: &[ModelInfo]) -> Vec<Option<&'static str>> {
        let models: Vec<_> = models.iter().map(Some).collect();
        let field = |verdict| match verdict {
            Mismatch::HashVersion { .. } => "hash_version",
            Mismatch::Nonsense { field, .. } | Mismatch::Model { field, .. } | Mismatch::Vocabulary { field, .. } => {
                field
            }
            Mismatch::Refused { .. } => "refused",
            Mismatch::DuplicateWorker { .. } => "twin",
        };
        check_all(&models).into_iter().map(|verdict| verdict.map(field)).collect()
    }

    #[test]
    fn workers_of_one_model_agree() {
        assert_eq!(verdicts(&[model(), model()]), [None, None]);
    }

    #[test]
    fn the_smaller_group_is_excluded_and_the_difference_is_named() {
        let other = ModelInfo { block_size_tokens: 64, ..model() };
        assert_eq!(verdicts(&[other.clone(), model(), model()]), [Some("block_size_tokens"), None, None]);
        assert_eq!(
            verdicts(&[other, model()]),
            [None, Some("block_size_tokens")],
            "of equal groups the first is right"
        );
    }

    #[test]
    fn other_names_are_other_models() {
        let other = ModelInfo { names: vec!["other".into()], block_size_tokens: 64, ..model() };
        assert_eq!(verdicts(&[other, model()]), [None, None]);
    }

    #[test]
    fn one_shared_alias_is_enough_to_disagree() {
        let other = ModelInfo { names: vec!["other".into(), "m".into()], add_bos: !model().add_bos, ..model() };
        assert_eq!(verdicts(&[model(), other]), [None, Some("add_bos")]);
    }

    #[test]
    fn workers_of_one_name_have_the_same_adapters() {
        use warmpath_common::lora::{Applied, Scale};
        use warmpath_common::model::Fingerprint;
        let adapter = |byte| AdapterInfo { name: "a".into(), fingerprint: Fingerprint([byte; 32]), scale: Scale::ONE };
        let with = |byte| ModelInfo { adapters: vec![adapter(byte)], ..model() };
        assert_eq!(verdicts(&[with(1), model(), with(1)]), [None, Some("adapters"), None]);
        assert_eq!(verdicts(&[with(1), with(2), with(1)]), [None, Some("adapters"), None]);
        let applied = Applied { adapter: 0, scale: Scale::ONE };
        let forced = |model| ModelInfo { adapter_in_force: Some(applied), ..model };
        assert_eq!(verdicts(&[with(1), forced(with(1)), with(1)]), [None, Some("the adapter in force"), None]);
        assert_eq!(verdicts(&[forced(model())]), [Some("the adapter in force")], "there is no such adapter");
    }

    #[test]
    fn workers_of_one_name_read_images_alike() {
        let reading = |byte| {
            let fingerprint = warmpath_common::model::Fingerprint([byte; 32]);
            let modalities = warmpath_common::model::Modalities { vision: true, audio: true };
            ModelInfo { media: Some(warmpath_common::model::MediaReading { fingerprint, modalities }), ..model() }
        };
        assert_eq!(verdicts(&[reading(1), model(), reading(1)]), [None, Some("media"), None]);
        assert_eq!(verdicts(&[reading(1), reading(2), reading(1)]), [None, Some("media"), None]);
    }

    #[test]
    fn embedding_workers_of_one_name_have_one_pooling() {
        let embedder = |pooling| ModelInfo { embedding: Some(EmbeddingInfo { pooling, dimensions: 8 }), ..model() };
        let (mean, cls) = (embedder(Pooling::Mean), embedder(Pooling::Cls));
        assert_eq!(verdicts(&[mean.clone(), cls, mean.clone()]), [None, Some("embedding"), None]);
        let generator = ModelInfo { fingerprint: warmpath_common::model::Fingerprint([9; 32]), ..model() };
        assert_eq!(verdicts(&[generator, mean.clone(), mean]), [None, None, None], "another kind, another pool");
    }

    #[test]
    fn impossible_declarations_are_excluded_and_do_not_count() {
        let versioned = ModelInfo { hash_version: HASH_VERSION + 1, ..model() };
        let blockless = ModelInfo { block_size_tokens: 0, ..model() };
        let nameless = ModelInfo { names: Vec::new(), ..model() };
        let slotless = ModelInfo { n_slots: 0, ..model() };
        let expected = [
            Some("hash_version"),
            Some("hash_version"),
            Some("block_size_tokens"),
            Some("the number of names"),
            Some("n_slots"),
            None,
        ];
        assert_eq!(verdicts(&[versioned.clone(), versioned, blockless, nameless, slotless, model()]), expected);
    }

    #[test]
    fn one_process_under_two_urls_and_two_processes_with_one_uid_are_found() {
        let stamp = |uid, boot_epoch, seq| Some(Stamp { worker_uid: WorkerUid(uid), boot_epoch, seq });
        let stamps =
            [stamp(1, 5, 0), None, stamp(2, 5, 0), stamp(1, 5, 9), stamp(1, 6, 0), stamp(1, 6, 1), stamp(2, 5, 0)];
        let expected = [
            None,
            None,
            None,
            Some(DuplicateWorker::Process(0)),
            Some(DuplicateWorker::Identity(0)),
            Some(DuplicateWorker::Process(4)),
            Some(DuplicateWorker::Process(2)),
        ];
        assert_eq!(duplicates(&stamps), expected);
    }

    #[test]
    fn the_reason_names_the_difference() {
        let other = ModelInfo { n_vocab: 9, ..model() };
        let verdict = check_all(&[Some(&model()), Some(&other)]).remove(1).expect("they differ");
        assert_eq!(verdict.to_string(), "the worker serves `m` with n_vocab = 9, most of the fleet with 1000");
    }
}
