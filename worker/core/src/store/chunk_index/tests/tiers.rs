//! Moves of chunks between RAM and disk, and failures of the disk.

use super::*;

/// Executes the orders, all writes successfully, and returns the written chunks.
fn write_all(index: &mut ChunkIndex) -> Vec<ChunkId> {
    let write = |order| if let StoreOrder::Write(id) = order { Some(id) } else { None };
    let ids: Vec<ChunkId> = index.take_orders().into_iter().filter_map(write).collect();
    for id in &ids {
        index.written(*id, 0);
    }
    ids
}

/// Returns the files of an index as a later process finds them.
fn files(index: &ChunkIndex) -> Vec<AdoptedFile> {
    let on_disk = index.entries().into_iter().filter(|entry| entry.is_on_disk);
    let file = |entry: EntryView| AdoptedFile {
        record: ChunkRecord::clone(index.record(entry.chunk).unwrap()),
        last_used_ms: entry.last_used_ms,
    };
    on_disk.map(file).collect()
}

#[test]
fn state_on_disk_is_found_and_read_back_into_ram() {
    let mut index = ChunkIndex::new(limits(8, 100));
    let (first, second) = (Sequence::new(0..16), Sequence::new(50..66));
    let ids = first.store(&mut index, 1);
    assert_eq!(index.take_orders(), [StoreOrder::Write(ids[0]), StoreOrder::Write(ids[1])]);
    index.written(ids[0], 2);
    index.written(ids[1], 2);
    second.store(&mut index, 3);
    let dropped: Vec<StoreOrder> =
        index.take_orders().into_iter().filter(|order| !matches!(order, StoreOrder::Write(_))).collect();
    assert_eq!(dropped, [StoreOrder::DropRam(ids[1]), StoreOrder::DropRam(ids[0])]);
    let tiers = |index: &ChunkIndex| -> Vec<Tier> {
        index.find(&first.prefix()).pieces.iter().map(|piece| piece.tier).collect()
    };
    assert_eq!(tiers(&index), [Tier::Disk, Tier::Disk]);
    // No chunk of the second sequence has been written, so its last one is dropped for the first sequence.
    assert!(index.read_back(ids[0], 4) && index.read_back(ids[0], 4));
    assert_eq!((tiers(&index), second.n_stored(&index)), (vec![Tier::Ram, Tier::Disk], 4));
    index.check_invariants();
}

#[test]
fn a_chain_longer_than_ram_is_stored_while_it_is_written() {
    let mut index = ChunkIndex::new(limits(4, 100));
    let sequence = Sequence::new(0..24);
    for blocks in [0..4, 4..8, 8..12] {
        assert!(index.insert(&sequence.new_chunk(blocks.clone(), 1)).is_ok());
        let behind = blocks.end..(blocks.end + 4).min(12);
        if !behind.is_empty() {
            assert_eq!(index.insert(&sequence.new_chunk(behind, 1)), Err(NotStored::NoRoom));
        }
        write_all(&mut index);
    }
    assert_eq!(sequence.n_stored(&index), 12);
}

#[test]
fn read_bytes_are_not_kept_without_space() {
    let mut index = ChunkIndex::new(limits(4, 100));
    let (first, second) = (Sequence::new(0..8), Sequence::new(50..58));
    let id = first.store(&mut index, 1)[0];
    write_all(&mut index);
    let other = second.store(&mut index, 2)[0];
    index.hold(other);
    assert!(!index.read_back(id, 3));
    assert_eq!(index.tier(id), Some(Tier::Disk));
    index.release(other);
    assert!(index.read_back(id, 3));
    assert!(!index.read_back(ChunkId(99), 3), "an unknown chunk");
    index.check_invariants();
}

#[test]
fn chunks_being_written_leave_ram_last() {
    let mut index = ChunkIndex::new(limits(8, 100));
    let (old, new) = (Sequence::new(0..8), Sequence::new(50..58));
    let old_id = old.store(&mut index, 1)[0];
    let new_id = new.store(&mut index, 2)[0];
    index.written(new_id, 2);
    Sequence::new(100..108).store(&mut index, 3);
    assert_eq!((index.tier(old_id), index.tier(new_id)), (Some(Tier::Ram), Some(Tier::Disk)));
    index.take_orders();
    Sequence::new(150..158).store(&mut index, 4);
    assert_eq!(index.tier(old_id), None, "RAM can be reused although the disk hangs");
    let orders = index.take_orders();
    assert!(
        matches!(orders[..2], [StoreOrder::DropRam(ram), StoreOrder::DropFile(file, _)] if ram == old_id && file == old_id)
    );
    index.written(old_id, 5);
    index.check_invariants();
}

#[test]
fn disk_stays_within_its_limit_and_evicts_leaves_before_their_parents() {
    let mut index = ChunkIndex::new(limits(4, 12));
    let long = Sequence::new(0..24);
    for blocks in [0..4, 4..8, 8..12] {
        index.insert(&long.new_chunk(blocks, 1)).unwrap();
        write_all(&mut index);
    }
    assert_eq!((long.n_stored(&index), index.totals(Tier::Disk).n_bytes), (12, 120));
    for (n_left, start) in [(8, 100), (4, 200), (0, 300)] {
        Sequence::new(start..start + 8).store(&mut index, 2);
        write_all(&mut index);
        assert_eq!(long.n_stored(&index), n_left);
        index.check_invariants();
    }
}

#[test]
fn an_evicted_file_is_written_again_before_a_child_of_its_chunk() {
    let mut index = ChunkIndex::new(limits(20, 8));
    let sequence = Sequence::new(0..16);
    let parent = index.insert(&sequence.new_chunk(0..4, 1)).unwrap();
    write_all(&mut index);
    for start in [100, 200] {
        Sequence::new(start..start + 8).store(&mut index, 2);
        write_all(&mut index);
    }
    assert!(!index.entries()[0].is_on_disk);
    let child = index.insert(&sequence.new_chunk(4..8, 4)).unwrap();
    assert_eq!(write_all(&mut index), [parent, child]);
    index.check_invariants();
}

#[test]
fn after_a_failed_write_each_insertion_tries_one_until_it_succeeds() {
    let mut index = ChunkIndex::new(limits(100, 100));
    let sequences: Vec<Sequence> = (1..6).map(|idx| Sequence::new(idx * 100..idx * 100 + 8)).collect();
    let ids: Vec<ChunkId> = sequences[..2].iter().map(|sequence| sequence.store(&mut index, 1)[0]).collect();
    assert_eq!(index.take_orders().len(), 2);
    index.write_failed(ids[0]);
    index.write_failed(ids[1]);
    assert_eq!(index.take_orders(), [], "nothing is written to a full disk");
    assert_eq!(index.totals(Tier::Disk), Totals::default());
    sequences[2].store(&mut index, 2);
    sequences[3].store(&mut index, 3);
    assert_eq!(index.take_orders(), [StoreOrder::Write(ids[0])]);
    index.write_failed(ids[0]);
    sequences[4].store(&mut index, 4);
    assert_eq!(write_all(&mut index), [ids[0]]);
    assert_eq!(write_all(&mut index).len(), 4, "after a successful write all chunks are written");
    index.check_invariants();
}

#[test]
fn another_chunk_is_tried_when_the_failed_one_is_evicted() {
    let mut index = ChunkIndex::new(limits(8, 100));
    let failed = Sequence::new(100..108).store(&mut index, 1)[0];
    index.write_failed(failed);
    index.take_orders();
    let other = Sequence::new(200..208).store(&mut index, 2)[0];
    assert_eq!(index.take_orders(), [StoreOrder::Write(failed)]);
    index.hold(other);
    Sequence::new(300..308).store(&mut index, 3);
    assert_eq!(index.tier(failed), None);
    assert_eq!(write_all(&mut index), [other]);
    index.check_invariants();
}

#[test]
fn a_lost_chunk_is_removed_with_all_its_descendants() {
    let mut index = ChunkIndex::new(limits(16, 100));
    let sequence = Sequence::new(0..24);
    let branch = Sequence::new((0..4).chain(100..104));
    let ids = sequence.store(&mut index, 1);
    branch.store(&mut index, 1);
    write_all(&mut index);
    Sequence::new(200..232).store(&mut index, 2);
    write_all(&mut index);
    assert_eq!(index.tier(ids[1]), Some(Tier::Disk));
    assert!(index.read_back(ids[2], 3));
    index.take_orders();
    index.lost(ids[1]);
    assert_eq!((sequence.n_stored(&index), branch.n_stored(&index)), (4, 4));
    assert_eq!(index.tier(ids[2]), None, "the chunk is in RAM but unreachable");
    assert_eq!(index.take_orders().len(), 3, "two files and the bytes of one");
    index.lost(ids[0]);
    assert_eq!(branch.n_stored(&index), 0);
    index.check_invariants();
}

#[test]
fn a_discarded_chunk_is_removed_from_all_tiers_with_all_its_descendants() {
    let mut index = ChunkIndex::new(limits(100, 100));
    let sequence = Sequence::new(0..24);
    let branch = Sequence::new((0..4).chain(100..104));
    let ids = sequence.store(&mut index, 1);
    branch.store(&mut index, 1);
    let checkpoint = index.insert_checkpoint(&sequence.new_checkpoint(10, 1), CheckpointPlace::End).unwrap();
    write_all(&mut index);
    index.hold(ids[2]);
    index.discard(ids[1]);
    assert_eq!((sequence.n_stored(&index), branch.n_stored(&index)), (4, 4));
    assert_eq!(index.take_orders().len(), 4, "two files and the bytes of both");
    index.release(ids[2]);
    index.discard(ids[1]);
    assert_eq!(index.take_orders(), []);
    index.discard(checkpoint);
    assert!(index.checkpoints(&sequence.prefix()).is_empty());
    index.discard(ids[0]);
    assert_eq!(branch.n_stored(&index), 0);
    index.check_invariants();
}

#[test]
fn a_chunk_in_ram_survives_the_loss_of_its_file_and_is_written_again() {
    let mut index = ChunkIndex::new(limits(12, 100));
    let sequence = Sequence::new(0..8);
    let id = sequence.store(&mut index, 1)[0];
    write_all(&mut index);
    index.lost(id);
    assert_eq!(sequence.n_stored(&index), 4);
    Sequence::new(100..108).store(&mut index, 2);
    assert!(write_all(&mut index).contains(&id));
    index.check_invariants();
}

#[test]
fn adopts_the_files_of_an_earlier_process_in_any_order() {
    let mut index = ChunkIndex::new(limits(100, 100));
    let (first, second) = (Sequence::new(0..24), Sequence::new((0..12).chain(100..110)));
    first.store(&mut index, 1);
    second.store(&mut index, 2);
    index.insert_checkpoint(&first.new_checkpoint(10, 3), CheckpointPlace::End).unwrap();
    write_all(&mut index);
    let mut files = files(&index);
    files.reverse();
    let mut next = ChunkIndex::new(limits(100, 100));
    assert!(next.adopt(&files).iter().all(Result::is_ok));
    assert_eq!((first.n_stored(&next), second.n_stored(&next)), (12, 11));
    assert_eq!(next.checkpoints(&first.prefix())[0].tier, Tier::Disk);
    assert_eq!(next.take_changes().len(), files.len());
    assert_eq!(next.take_orders(), []);
    next.check_invariants();
}

#[test]
fn refuses_malformed_files_and_files_whose_parents_are_missing() {
    let mut index = ChunkIndex::new(limits(100, 100));
    let sequence = Sequence::new(0..32);
    sequence.store(&mut index, 1);
    write_all(&mut index);
    let whole = files(&index);
    let mut files = whole.clone();
    files[1].record.n_bytes = 10_000;
    files.push(whole[0].clone());
    let records = [
        ChunkRecord { tokens: [1, 2, 3].into(), ..whole[0].record.clone() },
        ChunkRecord { parent: None, ..whole[2].record.clone() },
        ChunkRecord { root: root(9), ..whole[1].record.clone() },
    ];
    files.extend(records.map(|record| AdoptedFile { record, last_used_ms: 1 }));
    let mut next = ChunkIndex::new(limits(100, 100));
    let outcomes: Vec<Option<NotStored>> = next.adopt(&files).into_iter().map(Result::err).collect();
    let (none, taken) = (Some(NotStored::NoParent), Some(NotStored::Taken));
    let malformed = Some(NotStored::Malformed);
    assert_eq!(outcomes, [None, Some(NotStored::TooLarge), none, none, taken, malformed, malformed, none]);
    next.check_invariants();
}

#[test]
fn a_smaller_limit_keeps_the_latest_files() {
    let mut index = ChunkIndex::new(limits(100, 100));
    let (old, new) = (Sequence::new(0..24), Sequence::new(100..124));
    old.store(&mut index, 1);
    new.store(&mut index, 2);
    write_all(&mut index);
    let mut next = ChunkIndex::new(limits(100, 16));
    assert!(next.adopt(&files(&index)).iter().all(Result::is_ok));
    assert_eq!((old.n_stored(&next), new.n_stored(&next)), (4, 12));
    assert_eq!(next.take_orders().len(), 2);
    next.check_invariants();
}
