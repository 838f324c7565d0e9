//! Evictions from RAM when space is needed, and the chunks that stay.

use super::*;

/// Returns `n` sequences of 4 blocks without common prefixes with each other or with sequences of small tokens.
fn other_sequences(n: u32) -> impl Iterator<Item = Sequence> {
    (1..=n).map(|idx| Sequence::new((0..8).map(move |token| idx * 1000 + token)))
}

#[test]
fn a_flood_of_one_off_prompts_does_not_evict_state_in_use() {
    let check = |n_uses: u64, n_stays: usize| {
        let mut index = ChunkIndex::new(limits(20, 0));
        let hot = Sequence::new(0..16);
        hot.store(&mut index, 0);
        for now_ms in 1..=n_uses {
            hot.touch(&mut index, now_ms);
        }
        for (now_ms, other) in (10..).zip(other_sequences(100)) {
            other.store(&mut index, now_ms);
            assert_eq!(other.n_stored(&index), 4);
        }
        index.check_invariants();
        assert_eq!(hot.n_stored(&index), n_stays, "used {n_uses} times");
    };
    check(1, 8);
    check(0, 0);
}

#[test]
fn prompts_with_a_common_prefix_only_do_not_evict_state_in_use() {
    let mut index = ChunkIndex::new(limits(30, 0));
    let hot = Sequence::new(0..8);
    hot.store(&mut index, 0);
    hot.touch(&mut index, 1);
    // They start with one of three blocks, so each of them uses a quarter of another sequence's chunk.
    for n in 0..100 {
        let own = (0..6).map(|token| 1000 + n * 10 + token);
        let other = Sequence::new([900 + n % 3, 910].into_iter().chain(own));
        other.touch(&mut index, 2 + u64::from(n));
        other.store(&mut index, 2 + u64::from(n));
        assert_eq!(other.n_stored(&index), 4);
    }
    index.check_invariants();
    assert_eq!(hot.n_stored(&index), 4);
}

#[test]
fn state_never_used_is_evicted_before_state_used_long_ago() {
    let mut index = ChunkIndex::new(StoreLimits { min_hold_ms: 100, ..limits(12, 0) });
    let used = Sequence::new(0..8);
    used.store(&mut index, 0);
    used.touch(&mut index, 1);
    for other in other_sequences(10) {
        other.store(&mut index, 1000);
    }
    assert_eq!(used.n_stored(&index), 4);
}

#[test]
fn reused_state_takes_at_most_two_fifths_at_first() {
    let mut index = ChunkIndex::new(limits(20, 0));
    let sequences: Vec<Sequence> = other_sequences(3).collect();
    for (now_ms, sequence) in (1..).zip(&sequences) {
        sequence.store(&mut index, now_ms);
        sequence.touch(&mut index, 10 + now_ms);
    }
    // The third use has moved the least recently used chunk to probation, so it is evicted in its turn.
    for (now_ms, other) in (20..).zip([0..8, 50..58, 60..68].map(Sequence::new)) {
        other.store(&mut index, now_ms);
    }
    let n_stored: Vec<usize> = sequences.iter().map(|sequence| sequence.n_stored(&index)).collect();
    assert_eq!(n_stored, [0, 4, 4]);
    index.check_invariants();
}

#[test]
fn the_least_recently_used_is_evicted_first_and_leaves_before_their_parents() {
    let mut index = ChunkIndex::new(limits(12, 0));
    let long = Sequence::new(0..24);
    long.store(&mut index, 1);
    assert_eq!(long.n_stored(&index), 12);
    for (n_left, other) in [8, 4, 0].into_iter().zip(other_sequences(3)) {
        other.store(&mut index, 2);
        assert_eq!(long.n_stored(&index), n_left);
    }
    index.check_invariants();
}

#[test]
fn lower_priority_is_evicted_before_older() {
    let mut index = ChunkIndex::new(limits(12, 0));
    let sequences: Vec<Sequence> = other_sequences(4).collect();
    for (priority, sequence) in [0, -1, 1].into_iter().zip(&sequences) {
        index.insert(&NewChunk { priority, ..sequence.new_chunk(0..4, 1) }).unwrap();
    }
    sequences[1].touch(&mut index, 5);
    sequences[3].store(&mut index, 6);
    let n_stored: Vec<usize> = sequences.iter().map(|sequence| sequence.n_stored(&index)).collect();
    assert_eq!(n_stored, [4, 0, 4, 4]);
}

#[test]
fn used_state_stays_for_the_minimum_hold_time() {
    let mut index = ChunkIndex::new(StoreLimits { min_hold_ms: 100, ..limits(10, 0) });
    let (used, fresh, other) = (Sequence::new(0..8), Sequence::new(50..58), Sequence::new(100..108));
    used.store(&mut index, 0);
    fresh.store(&mut index, 1);
    used.touch(&mut index, 1000);
    other.store(&mut index, 1001);
    assert_eq!(
        (used.n_stored(&index), fresh.n_stored(&index)),
        (4, 0),
        "the minimum hold time of the fresh one has passed"
    );
    Sequence::new(150..158).store(&mut index, 1002);
    assert_eq!(other.n_stored(&index), 0, "a chunk that was never used is evicted if no other can be");
    index.clear();
    used.store(&mut index, 0);
    used.touch(&mut index, 2000);
    let large = NewChunk { n_bytes: 70, ..other.new_chunk(0..4, 2099) };
    assert_eq!(index.insert(&large), Err(NotStored::NoRoom));
    assert!(index.insert(&NewChunk { now_ms: 2100, ..large }).is_ok());
    assert_eq!(used.n_stored(&index), 0);
    index.check_invariants();
}

#[test]
fn held_chunks_stay_until_they_are_released_as_often() {
    let mut index = ChunkIndex::new(limits(8, 0));
    let held = Sequence::new(0..8);
    let id = held.store(&mut index, 1)[0];
    index.hold(id);
    index.hold(id);
    let large = Sequence::new(100..108);
    let large = NewChunk { n_bytes: 80, ..large.new_chunk(0..4, 2) };
    assert_eq!(index.insert(&large), Err(NotStored::NoRoom));
    index.release(id);
    assert_eq!((index.insert(&large), index.is_held(id)), (Err(NotStored::NoRoom), true));
    index.release(id);
    assert!(!index.is_held(id));
    assert!(index.insert(&large).is_ok());
    assert_eq!(index.record(id), None);
}

#[test]
#[should_panic(expected = "released but not held")]
fn releasing_twice_panics() {
    let mut index = ChunkIndex::new(limits(8, 0));
    let id = Sequence::new(0..8).store(&mut index, 1)[0];
    index.hold(id);
    index.release(id);
    index.release(id);
}

#[test]
fn a_held_chunk_may_be_released_after_it_was_cleared() {
    let mut index = ChunkIndex::new(limits(8, 0));
    let id = Sequence::new(0..8).store(&mut index, 1)[0];
    index.hold(id);
    index.clear();
    index.release(id);
    index.check_invariants();
}

#[test]
fn a_pin_keeps_what_is_stored_before_and_after_it() {
    let mut index = ChunkIndex::new(limits(40, 0));
    let pinned = Sequence::new(0..16);
    index.insert(&pinned.new_chunk(0..4, 1)).unwrap();
    let view = index.pin(PinId(7), &pinned.prefix()).unwrap();
    assert_eq!(view, PinView { pin: PinId(7), n_tokens: 16, n_stored_bytes: 40, n_guarded_bytes: 40 });
    // Another chain follows the pin's first chunk and is not pinned.
    Sequence::new((0..8).chain(500..508)).store(&mut index, 1);
    index.insert(&pinned.new_chunk(4..8, 1)).unwrap();
    let checkpoint = NewChunk { n_bytes: 40, ..pinned.new_checkpoint(7, 1) };
    index.insert_checkpoint(&checkpoint, CheckpointPlace::End).unwrap();
    for other in other_sequences(20) {
        other.store(&mut index, 2);
    }
    assert_eq!(index.pins(), [PinView { n_stored_bytes: 120, n_guarded_bytes: 120, ..view }]);
    let n_pinned = index.entries().iter().filter(|entry| entry.is_pinned).count();
    assert_eq!((pinned.n_stored(&index), index.checkpoints(&pinned.prefix()).len(), n_pinned), (8, 1, 3));
    index.check_invariants();
    assert!(index.unpin(PinId(7)) && !index.unpin(PinId(7)));
    for other in other_sequences(20) {
        other.store(&mut index, 3);
    }
    assert_eq!((pinned.n_stored(&index), index.checkpoints(&pinned.prefix()).len()), (0, 0));
    index.check_invariants();
}

#[test]
fn pins_keep_at_most_half_and_report_how_much_they_keep() {
    let mut index = ChunkIndex::new(limits(20, 0));
    let pinned = Sequence::new(0..32);
    pinned.store(&mut index, 1);
    let view = index.pin(PinId(1), &pinned.prefix()).unwrap();
    assert_eq!((view.n_stored_bytes, view.n_guarded_bytes), (160, 80));
    for other in other_sequences(20) {
        other.store(&mut index, 2);
    }
    assert_eq!(pinned.n_stored(&index), 8);
    index.check_invariants();
    // A pin with the same name replaces it.
    let view = index.pin(PinId(1), &Sequence::new(0..8).prefix()).unwrap();
    assert_eq!((index.pins(), view.n_guarded_bytes), (vec![view], 40));
    index.check_invariants();
}

#[test]
fn the_number_of_pins_is_limited() {
    let mut index = ChunkIndex::new(limits(20, 0));
    let sequence = Sequence::new(0..8);
    for pin in 0..PIN_MAX as u64 {
        index.pin(PinId(pin), &sequence.prefix()).unwrap();
    }
    assert_eq!(index.pin(PinId(1 << 20), &sequence.prefix()), Err(TooManyPins));
    assert!(index.pin(PinId(3), &sequence.prefix()).is_ok());
    index.check_invariants();
}

#[test]
fn a_plain_lru_evicts_the_least_recently_used_however_often_others_were_used() {
    let n_left = |mut index: ChunkIndex| {
        let (hot, cold) = (Sequence::new(0..8), Sequence::new(50..58));
        hot.store(&mut index, 0);
        hot.touch(&mut index, 1);
        cold.store(&mut index, 2);
        Sequence::new(100..108).store(&mut index, 3);
        index.check_invariants();
        (hot.n_stored(&index), cold.n_stored(&index))
    };
    assert_eq!(n_left(ChunkIndex::plain_lru(limits(8, 0))), (0, 4));
    assert_eq!(n_left(ChunkIndex::new(limits(8, 0))), (0, 4), "more than two fifths are not protected");
    assert_eq!(n_left(ChunkIndex::new(limits(11, 0))), (4, 0));
    assert_eq!(n_left(ChunkIndex::plain_lru(limits(11, 0))), (0, 4));
}

/// Returns how many blocks of a sequence are stored, and the positions of its checkpoints.
fn resumable(index: &ChunkIndex, sequence: &Sequence) -> (usize, Vec<usize>) {
    let checkpoints = index.checkpoints(&sequence.prefix()).into_iter().map(|checkpoint| checkpoint.n_blocks);
    (sequence.n_stored(index), checkpoints.collect())
}

#[test]
fn a_checkpoint_leaves_before_the_chunks_that_it_needs_and_they_leave_next() {
    let mut index = ChunkIndex::new(limits(20, 0));
    let sequence = Sequence::new(0..24);
    sequence.store(&mut index, 1);
    let [used, _] = [4, 12].map(|n_blocks| {
        let checkpoint = NewChunk { n_bytes: BLOCK_BYTES, ..sequence.new_checkpoint(n_blocks, 1) };
        index.insert_checkpoint(&checkpoint, CheckpointPlace::Shared).unwrap()
    });
    index.touch_checkpoint(used, sequence.tenant(), 1);
    let states = other_sequences(4).map(|other| {
        other.store(&mut index, 2);
        index.check_invariants();
        resumable(&index, &sequence)
    });
    // 14 blocks are taken, and each sequence has 4. Behind the first checkpoint nothing is of use without the second.
    assert_eq!(states.collect::<Vec<_>>(), [(12, vec![4, 12]), (8, vec![4]), (4, vec![4]), (4, vec![4])]);
}

#[test]
fn a_checkpoint_that_its_conversation_has_passed_leaves_first_unless_prompts_diverge_there() {
    let check = |place: CheckpointPlace, n_uses: u64, expected: &[usize]| {
        let mut index = ChunkIndex::new(limits(20, 0));
        let sequence = Sequence::new(0..24);
        let checkpoint =
            |n_blocks, now_ms| NewChunk { n_bytes: 2 * BLOCK_BYTES, ..sequence.new_checkpoint(n_blocks, now_ms) };
        // It is the most recently used one.
        let passed = index.insert_checkpoint(&checkpoint(2, 2), place).unwrap();
        (0..n_uses).for_each(|_| index.touch_checkpoint(passed, sequence.tenant(), 2));
        for n_blocks in [6, 9] {
            index.insert_checkpoint(&checkpoint(n_blocks, 1), CheckpointPlace::End).unwrap();
        }
        // 6 blocks are taken, and each of these sequences has 4.
        other_sequences(4).for_each(|other| drop(other.store(&mut index, 3)));
        assert_eq!(resumable(&index, &sequence).1, expected, "{place:?} {n_uses}");
        index.check_invariants();
    };
    check(CheckpointPlace::End, 0, &[6, 9]);
    check(CheckpointPlace::End, 1, &[6, 9]);
    check(CheckpointPlace::End, 2, &[2, 9]);
    check(CheckpointPlace::Shared, 0, &[2, 9]);
}
