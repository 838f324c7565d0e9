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
/// Shape: `declared` `[n]` -> `[n]`; `None` stands for a worker that is not connected. The order of the workers makes
/// no difference.
pub fn check_all(declared: &[Option<Declaration<'_>>]) -> Vec<Option<Mismatch>> {
    let mut verdicts: Vec<_> = declared.iter().map(|own| own.and_then(|own| check_alone(own.model))).collect();
    let sound = declared.iter().enumerate().filter_map(|(idx, own)| {
        let own = (*own).filter(|_| verdicts[idx].is_none())?;
        Some((idx, own, identity(own.model)))
    });
    let sound: Vec<_> = sound.collect();
    let mut pools: HashMap<(&str, bool), HashMap<&Identity, Support>> = HashMap::new();
    for (_, own, identity) in &sound {
        for name in &own.model.names {
            pools.entry(pool(own.model, name)).or_default().entry(identity).or_default().add(*own);
        }
    }
    let right: HashMap<_, &Identity> =
        pools.into_iter().filter_map(|(pool, models)| Some((pool, best_supported(models)?))).collect();
    for (idx, own, identity) in &sound {
        let differs = |name: &String| difference(name, identity, right[&pool(own.model, name)]);
        verdicts[*idx] = own.model.names.iter().find_map(differs);
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
type Identity = [(&'static str, String); 11];

fn identity(model: &ModelInfo) -> Identity {
    let adapters = model.adapters.iter();
    [
        ("fingerprint", model.fingerprint.to_string()),
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
            or_none(model.adapter_in_force.map(|applied| format!("{} x {}", applied.adapter, applied.scale))),
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
mod tests {
    use proptest::prelude::*;
    use warmpath_common::ids::WorkerUid;
    use warmpath_common::lora::AdapterInfo;
    use warmpath_common::model::{EmbeddingInfo, Pooling};

    use super::*;
    use crate::testing::model;

    /// Returns the declarations of workers that count and have started in this order.
    fn declared(models: &[ModelInfo]) -> Vec<Option<Declaration<'_>>> {
        let started = (1_u64..).map(Some);
        models
            .iter()
            .zip(started)
            .map(|(model, boot_epoch)| Some(Declaration { model, boot_epoch, counts: true }))
            .collect()
    }

    fn verdicts(models: &[ModelInfo]) -> Vec<Option<&'static str>> {
        fields(&declared(models))
    }

    fn fields(declared: &[Option<Declaration<'_>>]) -> Vec<Option<&'static str>> {
        let field = |verdict: Mismatch| match verdict {
            Mismatch::Nonsense { field, .. } | Mismatch::Model { field, .. } | Mismatch::Vocabulary { field, .. } => {
                field
            }
            other => other.label(),
        };
        check_all(declared).into_iter().map(|verdict| verdict.map(field)).collect()
    }

    #[test]
    fn workers_of_one_model_agree() {
        assert_eq!(verdicts(&[model(), model()]), [None, None]);
    }

    #[test]
    fn the_smaller_group_is_excluded_and_the_difference_is_named() {
        let other = ModelInfo { block_size_tokens: 64, ..model() };
        assert_eq!(verdicts(&[other, model(), model()]), [Some("block_size_tokens"), None, None]);
    }

    #[test]
    fn of_models_with_equally_many_workers_the_one_with_the_oldest_worker_is_right() {
        let other = ModelInfo { block_size_tokens: 64, ..model() };
        let models = [model(), other.clone(), model(), other];
        let excluded = |boot_epochs: [Option<u64>; 4]| {
            let of = |(model, boot_epoch)| Some(Declaration { model, boot_epoch, counts: true });
            let declared: Vec<_> = models.iter().zip(boot_epochs).map(of).collect();
            fields(&declared).iter().map(Option::is_some).collect::<Vec<_>>()
        };
        assert_eq!(excluded([Some(3), Some(4), Some(1), Some(2)]), [false, true, false, true]);
        assert_eq!(excluded([Some(2), Some(1), Some(3), Some(4)]), [true, false, true, false]);
        assert_eq!(excluded([None, None, None, Some(9)]), [true, false, true, false], "a stock server is the youngest");
    }

    #[test]
    fn workers_that_do_not_count_are_judged_by_the_others() {
        let other = ModelInfo { block_size_tokens: 64, ..model() };
        let models = [model(), model(), other];
        let excluded = |counts: [bool; 3]| {
            let mut declared = declared(&models);
            declared.iter_mut().flatten().zip(counts).for_each(|(own, counts)| own.counts = counts);
            fields(&declared).iter().map(Option::is_some).collect::<Vec<_>>()
        };
        assert_eq!(excluded([true, true, true]), [false, false, true]);
        assert_eq!(excluded([true, false, true]), [false, false, true], "the oldest worker counts");
        assert_eq!(excluded([false, false, true]), [true, true, false]);
        assert_eq!(excluded([false, false, false]), [false, false, true], "without one that counts age decides");
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
    fn a_declaration_is_excluded_from_the_first_value_beyond_a_limit() {
        use warmpath_common::lora::Scale;
        use warmpath_common::model::Fingerprint;
        let named = |n: usize, n_bytes: usize| vec!["m".repeat(n_bytes); n];
        let names = |names| ModelInfo { names, ..model() };
        let adapters = |names: Vec<String>| {
            let of = |name| AdapterInfo { name, fingerprint: Fingerprint([1; 32]), scale: Scale::ONE };
            ModelInfo { adapters: names.into_iter().map(of).collect(), ..model() }
        };
        for sound in [
            names(named(NAMES_MAX, NAME_BYTES_MAX)),
            adapters(named(NAMES_MAX, NAME_BYTES_MAX)),
            ModelInfo { block_size_tokens: BLOCK_SIZE_TOKENS_MAX, ..model() },
        ] {
            assert_eq!(check_alone(&sound), None);
        }
        for (field, value, wrong) in [
            ("the number of names", "65", names(named(NAMES_MAX + 1, 1))),
            ("the length of a name", "513", names(named(1, NAME_BYTES_MAX + 1))),
            ("the length of a name", "0", names(named(1, 0))),
            ("the number of adapters", "65", adapters(named(NAMES_MAX + 1, 1))),
            ("the length of an adapter's name", "513", adapters(named(1, NAME_BYTES_MAX + 1))),
            ("the length of an adapter's name", "0", adapters(named(1, 0))),
            ("block_size_tokens", "4097", ModelInfo { block_size_tokens: BLOCK_SIZE_TOKENS_MAX + 1, ..model() }),
        ] {
            let nonsense = Mismatch::Nonsense { field, value: value.to_owned() };
            assert_eq!(check_alone(&wrong), Some(nonsense));
        }
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
        let verdict = check_all(&declared(&[model(), other])).remove(1).expect("they differ");
        assert_eq!(verdict.to_string(), "the worker serves `m` with n_vocab = 9, the fleet with 1000");
    }

    proptest! {
        #[test]
        fn the_order_of_the_workers_makes_no_difference(
            workers in proptest::collection::vec((0_u8..6, 0_u64..3, any::<bool>()), 1..8),
            turn in 0_usize..8,
        ) {
            let models: Vec<_> = workers.iter().map(|(kind, ..)| kind_of_model(*kind)).collect();
            let of = |(model, (_, epoch, counts)): (_, &(u8, u64, bool))| {
                Some(Declaration { model, boot_epoch: Some(*epoch), counts: *counts })
            };
            let mut declared: Vec<_> = models.iter().zip(&workers).map(of).collect();
            let mut verdicts = check_all(&declared);
            let turn = turn % declared.len();
            declared.rotate_left(turn);
            verdicts.rotate_left(turn);
            prop_assert_eq!(&check_all(&declared), &verdicts);
            declared.reverse();
            verdicts.reverse();
            prop_assert_eq!(&check_all(&declared), &verdicts);
        }
    }

    /// Returns one of six declarations, which differ in names, model and configuration.
    fn kind_of_model(kind: u8) -> ModelInfo {
        let names = if kind < 3 { vec!["m".to_owned()] } else { vec!["m".to_owned(), "other".to_owned()] };
        let other = ModelInfo { names, ..model() };
        match kind % 3 {
            0 => other,
            1 => ModelInfo { block_size_tokens: 64, ..other },
            _ => ModelInfo { fingerprint: warmpath_common::model::Fingerprint([9; 32]), ..other },
        }
    }
}
