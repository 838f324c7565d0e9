//! Tests of the compatibility checks: tables, and the order of workers makes no difference.

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
        Mismatch::Nonsense { field, .. } | Mismatch::Model { field, .. } | Mismatch::Vocabulary { field, .. } => field,
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
    let stamps = [stamp(1, 5, 0), None, stamp(2, 5, 0), stamp(1, 5, 9), stamp(1, 6, 0), stamp(1, 6, 1), stamp(2, 5, 0)];
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

#[test]
fn workers_of_one_name_have_the_same_default_variables_of_the_template() {
    let with = |kwargs: &str| ModelInfo { chat_template_kwargs: kwargs.to_owned(), ..model() };
    let keeps = with("{\"preserve_thinking\":true}");
    assert_eq!(verdicts(&[keeps.clone(), model(), keeps.clone()]), [None, Some("chat_template_kwargs"), None]);
    let told = check_all(&declared(&[model(), keeps, model()])).remove(1).map(|mismatch| mismatch.to_string());
    let expected = "the worker serves `m` with chat_template_kwargs = {\"preserve_thinking\":true}, the fleet with {}";
    assert_eq!(told.as_deref(), Some(expected));
    let n_bytes = TEMPLATE_KWARGS_BYTES_MAX;
    assert_eq!(verdicts(&[with(&"x".repeat(n_bytes))]), [None]);
    assert_eq!(verdicts(&[with(&"x".repeat(n_bytes + 1))]), [Some("the length of chat_template_kwargs")]);
}
