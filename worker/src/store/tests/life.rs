//! Written chunks are found again: round trips, restarts, deletions, other models, other workers.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

#[test]
fn written_chunks_can_be_read() {
    let dir = dir();
    let opened = open(&dir);
    for (seed, n_bytes) in [(1, 0), (2, 1), (3, 4096), (4, 3_000_000)] {
        let record = sized(seed, n_bytes);
        opened.write_through(&record);
        assert_eq!(opened.read_through(&record).unwrap(), payload(&record), "{n_bytes} bytes");
    }
}

#[test]
fn a_read_reports_its_time() {
    let dir = dir();
    let opened = open(&dir);
    opened.write_through(&chunk(1));
    let requested_at = Instant::now();
    opened.store.read(ChunkId(1), chunk(1).into());
    let DiskEvent::Read { took: Some(took), .. } = opened.event() else { panic!("not read") };
    assert!(took > Duration::ZERO && took <= requested_at.elapsed(), "{took:?}");
}

#[test]
fn a_restart_finds_everything_with_parents_before_children() {
    let dir = dir();
    let opened = open(&dir);
    let mut written: Vec<ChunkRecord> = Vec::new();
    for seed in 0..20 {
        let parent = chunk(seed);
        let child = child_of(&parent);
        let checkpoint = ChunkRecord { kind: StateKind::Checkpoint, priority: -3, ..parent.clone() };
        for record in [child, parent, checkpoint] {
            opened.store.write(ChunkId(written.len() as u64), record.clone().into(), payload(&record));
            written.push(record);
        }
    }
    opened.flush();
    drop(opened);

    let opened = open(&dir);
    let depths: Vec<usize> = opened.files.iter().map(|file| file.record.first_block).collect();
    assert!(depths.is_sorted(), "{depths:?}");
    assert_eq!(opened.files.len(), written.len());
    assert!(opened.files.iter().all(|file| written.contains(&file.record)));
    for file in &opened.files {
        assert_eq!(opened.read_through(&file.record).unwrap(), payload(&file.record));
    }
}

#[test]
fn reading_counts_as_use_after_a_restart() {
    let dir = dir();
    let opened = open(&dir);
    for seed in [1, 2] {
        opened.write_through(&chunk(seed));
        let file = fs::File::open(opened.store.folder().join(file_name(&chunk(seed)))).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seed.into())).unwrap();
    }
    opened.read_through(&chunk(1)).expect("it was written");
    drop(opened);
    let files = open(&dir).files;
    assert_eq!(files.iter().map(|file| &file.record).collect::<Vec<_>>(), [&chunk(2), &chunk(1)]);
    assert_eq!(files[0].used_at, SystemTime::UNIX_EPOCH + Duration::from_secs(2));
}

#[test]
fn a_payload_of_another_size_than_its_record_says_is_refused() {
    let dir = dir();
    let opened = open(&dir);
    opened.store.write(ChunkId(1), sized(1, 200).into(), payload(&chunk(1)));
    assert_eq!(said(&opened.event()), "write failed 1: the file cannot be written");
}

#[test]
fn reported_sizes_are_those_of_the_files() {
    let dir = dir();
    let opened = open(&dir);
    opened.write(1, 5000);
    let DiskEvent::Written { id: ChunkId(1), n_bytes } = opened.event() else { panic!("not written") };
    let file = opened.store.folder().join(file_name(&chunk(1)));
    assert_eq!(n_bytes, fs::metadata(file).unwrap().len());
    drop(opened);
    assert_eq!(open(&dir).files[0].file_bytes, n_bytes);
}

#[test]
fn a_deleted_chunk_never_comes_back() {
    let dir = dir();
    let opened = open(&dir);
    opened.write_through(&chunk(1));
    opened.write_through(&chunk(2));
    opened.store.delete(ChunkId(1), chunk(1).into());
    assert!(matches!(opened.read_through(&chunk(1)), Err(ReadFailure::Missing)));
    drop(opened);
    let opened = open(&dir);
    assert_eq!(opened.files.len(), 1);
    assert_eq!(opened.files[0].record, chunk(2));
}

#[test]
fn a_chunk_deleted_and_written_again_is_there() {
    let dir = dir();
    let opened = open(&dir);
    opened.write(1, 100);
    opened.store.delete(ChunkId(1), chunk(1).into());
    opened.store.write(ChunkId(2), sized(1, 200).into(), payload(&sized(1, 200)));
    opened.flush();
    assert_eq!(opened.said().last().map(String::as_str), Some("written 2"));
    assert_eq!(opened.read_through(&sized(1, 200)).unwrap(), payload(&sized(1, 200)));
}

#[test]
fn deleting_a_missing_chunk_is_not_an_error() {
    let dir = dir();
    let opened = open(&dir);
    opened.store.delete(ChunkId(1), chunk(1).into());
    opened.write_through(&chunk(2));
}

#[test]
fn a_second_worker_in_the_same_folder_is_refused() {
    let dir = dir();
    let opened = open(&dir);
    let error = DiskStore::open(dir.path(), IDENTITY, 1 << 20, drop).expect_err("the folder is in use");
    assert!(matches!(error, StoreError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains("in use by another worker"), "{error}");
    drop(opened);
    DiskStore::open(dir.path(), IDENTITY, 1 << 20, drop).expect("the folder is free again");
}

#[test]
fn files_of_other_models_are_neither_seen_nor_touched() {
    let dir = dir();
    let others = [
        Identity { model: Fingerprint([3; 32]), ..IDENTITY },
        Identity { kv: Fingerprint([3; 32]), ..IDENTITY },
        Identity { block_size_tokens: 8, ..IDENTITY },
    ];
    let first = open(&dir);
    first.write_through(&chunk(1));
    for other in others {
        let opened = open_at(dir.path(), other, LIMITS);
        assert!(opened.files.is_empty(), "{other:?}");
        opened.write_through(&chunk(1));
    }
    drop(first);
    let first = open(&dir);
    assert_eq!(first.files.len(), 1);
    assert_eq!(first.read_through(&chunk(1)).unwrap(), payload(&chunk(1)));
}

#[test]
fn only_their_owner_can_read_files_of_the_store() {
    let dir = dir();
    let opened = open(&dir);
    opened.write_through(&chunk(1));
    let folder = opened.store.folder();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(folder), 0o700);
    assert_eq!(mode(&folder.join(file_name(&chunk(1)))), 0o600);
}

#[test]
fn the_error_names_a_folder_that_cannot_be_created() {
    let dir = dir();
    let file = dir.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    let error = DiskStore::open(&file, IDENTITY, 1 << 20, drop).expect_err("a file is not a folder");
    assert!(matches!(error, StoreError::Make { .. }), "{error:?}");
    assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
}
