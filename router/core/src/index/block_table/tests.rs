//! Tests of the writer's table against a naive map.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Op {
    /// Adds a hash with a segment.
    Insert(u64, u32),
    /// Removes one of the added hashes.
    Remove(prop::sample::Index),
    /// Moves one of the added hashes to a segment.
    Relabel(prop::sample::Index, u32),
    /// Grows the table by that many lines.
    Grow(usize),
}

fn op() -> impl Strategy<Value = Op> {
    // Few different first bits, so that some lines are full while others are empty.
    let hash = (0..16u64, any::<u64>()).prop_map(|(first, rest)| first << 58 | rest >> 6);
    prop_oneof![
        12 => (hash, 0..4u32).prop_map(|(hash, id)| Op::Insert(hash, id)),
        3 => any::<prop::sample::Index>().prop_map(Op::Remove),
        2 => (any::<prop::sample::Index>(), 0..4u32).prop_map(|(which, id)| Op::Relabel(which, id)),
        1 => (0..20usize).prop_map(Op::Grow),
    ]
}

/// Rebuilds a table from the known hashes, larger until all have a slot.
fn rebuild(table: &mut BlockTable, known: &HashMap<u64, u32>) {
    let mut bytes = table.bytes() + size_of::<TableLine>();
    loop {
        table.reset(bytes);
        if known.iter().all(|(&hash, &id)| table.insert(table.probe(hash), id)) {
            return;
        }
        bytes += bytes / 2;
    }
}

fn check(table: &BlockTable, known: &HashMap<u64, u32>) {
    assert_eq!(table.n_blocks(), known.len());
    let n_used = table.lines.iter().map(|line| (0..LINE_SLOTS).filter(|&idx| line.distance(idx).is_some()).count());
    assert_eq!(n_used.sum::<usize>(), known.len(), "every block has one slot");
    for (&hash, &id) in known {
        let found = table.find(table.probe(hash), |other| (other == id).then_some(()));
        assert!(found.is_some(), "{hash:x} is found in {id}");
    }
    let n_passes: u32 = table.lines.iter().map(|line| line.0[COUNT_WORD] >> COUNT_SHIFT).sum();
    let distances = table.lines.iter().flat_map(|line| (0..LINE_SLOTS).filter_map(|idx| line.distance(idx)));
    assert_eq!(n_passes as usize, distances.sum::<usize>(), "every line that a block passed counts it");
}

proptest! {
    #[test]
    fn finds_the_entries_of_a_naive_map(ops in prop::collection::vec(op(), 1..400)) {
        let mut table = BlockTable::new();
        let mut known: HashMap<u64, u32> = HashMap::new();
        for op in ops {
            let pick = |which: prop::sample::Index| {
                let mut hashes: Vec<u64> = known.keys().copied().collect();
                hashes.sort_unstable();
                (!hashes.is_empty()).then(|| hashes[which.index(hashes.len())])
            };
            match op {
                Op::Insert(hash, id) => {
                    if known.contains_key(&hash) {
                        continue;
                    }
                    if !table.insert(table.probe(hash), id) {
                        rebuild(&mut table, &known);
                        continue;
                    }
                    known.insert(hash, id);
                }
                Op::Remove(which) => {
                    if let Some(hash) = pick(which) {
                        let id = known.remove(&hash).unwrap();
                        table.remove(table.probe(hash), id);
                    }
                }
                Op::Relabel(which, to) => {
                    if let Some(hash) = pick(which) {
                        let from = known.insert(hash, to).unwrap();
                        table.relabel(table.probe(hash), from, to);
                    }
                }
                Op::Grow(n) => {
                    let bytes = table.bytes() + n * size_of::<TableLine>();
                    let had = table.bytes();
                    let has_grown = table.grow(bytes);
                    prop_assert_eq!(table.bytes(), if has_grown { bytes } else { had });
                }
            }
            check(&table, &known);
        }
    }
}

#[test]
fn grows_in_place_until_its_bits_distinguish_too_few_blocks() {
    let mut table = BlockTable::new();
    assert!(!table.grow(64 * size_of::<TableLine>()), "an empty table has nothing to copy");
    table.reset(5 * size_of::<TableLine>());
    let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let known: HashMap<u64, u32> = (0..50).map(|number| (hash(number), number as u32)).collect();
    assert!(known.iter().all(|(&hash, &id)| table.insert(table.probe(hash), id)));
    for n_lines in [7, 12, 20, 31] {
        assert!(table.grow(n_lines * size_of::<TableLine>()), "{n_lines} lines");
        check(&table, &known);
    }
    // Two bits distinguished four lines; eight times as many lines are the limit.
    assert!(!table.grow(32 * size_of::<TableLine>()));
    check(&table, &known);
}

#[test]
fn a_line_that_too_many_pass_takes_no_more() {
    let mut table = BlockTable::new();
    table.reset(1_024 * size_of::<TableLine>());
    let probe = |fine: u32| BlockProbe { home: 0, fine: fine % (1 << FINE_BITS) };
    let n = (0..10_000).take_while(|&id| table.insert(probe(id), id)).count() as u32;
    assert_eq!(n, LINE_SLOTS as u32 + PASSES_MAX);
    assert!(table.bytes_of_next(0, LOADS_PERCENT_NEW[1]) > Some(table.bytes()), "a larger table is requested");
    assert!((0..n).all(|id| table.find(probe(id), |other| (other == id).then_some(())).is_some()));
    (0..n).for_each(|id| {
        table.remove(probe(id), id);
    });
    check(&table, &HashMap::new());
}
