//! Order, cancellation and refusal of requests, with a simulated disk that hangs.

use super::*;

#[test]
fn reads_overtake_writes() {
    let dir = dir();
    let (opened, release) = open_hanging(&dir, LIMITS);
    opened.write(1, 100);
    assert_eq!(said(&opened.event()), "written 1");
    opened.write(2, 100);
    opened.write(3, 100);
    opened.store.read(ChunkId(10), chunk(1).into());
    drop(release);
    opened.flush();
    assert_eq!(opened.said(), ["read 10", "written 2", "written 3"]);
}

#[test]
fn a_chunk_that_waits_to_be_written_is_read_from_the_queue() {
    let dir = dir();
    let (opened, release) = open_hanging(&dir, LIMITS);
    opened.write(1, 100);
    opened.event();
    opened.write(2, 100);
    opened.store.read(ChunkId(2), chunk(2).into());
    drop(release);
    let DiskEvent::Read { id: ChunkId(2), payload: found, took: None } = opened.event() else { panic!("not read") };
    assert_eq!(found, payload(&chunk(2)));
    assert_eq!(said(&opened.event()), "written 2");
}

#[test]
fn a_chunk_deleted_before_it_is_written_is_not_written() {
    let dir = dir();
    let (opened, release) = open_hanging(&dir, LIMITS);
    opened.write(1, 100);
    opened.event();
    opened.write(2, 100);
    opened.write(3, 100);
    opened.store.delete(ChunkId(2), chunk(2).into());
    drop(release);
    opened.flush();
    assert_eq!(opened.said(), ["written 3"]);
    assert_eq!(names(opened.store.folder()).len(), 2);
}

#[test]
fn a_chunk_deleted_while_it_is_written_is_deleted_after_it() {
    let dir = dir();
    let (opened, release) = open_hanging(&dir, LIMITS);
    opened.write(1, 100);
    assert_eq!(said(&opened.event()), "written 1");
    opened.store.delete(ChunkId(1), chunk(1).into());
    drop(release);
    opened.write_through(&chunk(2));
    assert_eq!(names(opened.store.folder()), [OsString::from(file_name(&chunk(2)))]);
}

#[test]
fn writes_beyond_the_queues_limit_are_refused_until_there_is_room() {
    let dir = dir();
    let limits = StoreRequestLimits { queued_bytes_max: 10_000, ..LIMITS };
    let (opened, release) = open_hanging(&dir, limits);
    opened.write(1, 4_000);
    assert_eq!(said(&opened.event()), "written 1");
    opened.write(2, 5_000);
    opened.write(3, 4_000);
    opened.store.delete(ChunkId(2), chunk(2).into());
    opened.write(4, 5_000);
    drop(release);
    opened.flush();
    assert_eq!(opened.said(), ["write failed 3: queue full", "written 4"]);
    opened.write(3, 4_000);
    assert_eq!(said(&opened.event()), "written 3");
    opened.write(5, 10_000);
    assert_eq!(said(&opened.event()), "write failed 5: queue full");
}

#[test]
fn a_flush_waits_for_all_writes_and_their_events() {
    let dir = dir();
    let (opened, release) = open_hanging(&dir, LIMITS);
    for id in 0..20 {
        opened.write(id, 100);
    }
    assert_eq!(said(&opened.event()), "written 0");
    assert_eq!(opened.store.flush(Instant::now() + Duration::from_millis(1)), 20, "the disk hangs in the first");
    drop(release);
    assert_eq!(opened.store.flush(Instant::now() + PATIENCE), 0);
    assert_eq!(opened.said().len(), 19);
}

#[test]
fn a_dropped_store_drops_waiting_jobs() {
    let dir = dir();
    let (opened, release) = open_hanging(&dir, LIMITS);
    opened.write(1, 100);
    opened.event();
    opened.write(2, 100);
    opened.store.queue.close();
    drop(release);
    drop(opened);
    let opened = open(&dir);
    assert_eq!(opened.files.iter().map(|file| &file.record).collect::<Vec<_>>(), [&chunk(1)]);
}

#[test]
fn a_disk_that_hangs_does_not_hang_the_worker() {
    let dir = dir();
    let (opened, release) = open_hanging(&dir, StoreRequestLimits { end_patience: Duration::ZERO, ..LIMITS });
    opened.write(1, 100);
    opened.event();
    let queue = Arc::clone(&opened.store.queue);
    drop(opened);
    let error = DiskStore::open(dir.path(), IDENTITY, 1 << 20, drop).expect_err("the thread still has the folder");
    assert!(matches!(error, StoreError::InUse { .. }), "{error:?}");
    drop(release);
    assert!(queue.wait_for_end(Instant::now() + PATIENCE));
    assert_eq!(open(&dir).files.len(), 1);
}

#[test]
fn a_callback_that_panics_ends_the_store_and_not_the_worker() {
    let dir = dir();
    let (store, _) =
        DiskStore::open(dir.path(), IDENTITY, 1 << 20, |event| panic!("{event:?}")).expect("the store opens");
    store.write(ChunkId(1), chunk(1).into(), payload(&chunk(1)));
    store.write(ChunkId(2), chunk(2).into(), payload(&chunk(2)));
    let started_at = Instant::now();
    assert_eq!(store.flush(started_at + PATIENCE), 2);
    assert!(started_at.elapsed() < PATIENCE, "a thread that has ended is not awaited");
    drop(store);
    assert_eq!(open(&dir).files.len(), 1);
}
