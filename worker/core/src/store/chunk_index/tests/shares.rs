//! Fair shares: the state that a tenant keeps in spite of other tenants, and the state that it loses.
//!
//! The order among one tenant's chunks is tested in `eviction`.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Returns the tenant of the requests with a salt, which is derived from the root of their chains.
fn tenant(salt: u8) -> Tenant {
    Tenant::with_share(TenantId::of_root(&root(salt)))
}

/// Returns the `n`th prompt of a salt: `n_blocks` blocks, without a common prefix with other prompts.
fn prompt(salt: u8, n: u32, n_blocks: usize) -> Sequence {
    let tokens: Vec<Token> = (0..n_blocks as u32 * BLOCK).map(|idx| n * 100 + idx).collect();
    Sequence { root: root(salt), chain: block_chain(&root(salt), &tokens, BLOCK), tokens }
}

fn bytes_of(index: &ChunkIndex, salt: u8) -> (u64, u64) {
    let its = |share: &ShareView| share.tenant == tenant(salt).id;
    index.shares().into_iter().find(its).map_or((0, 0), |share| (share.ram_bytes, share.disk_bytes))
}

/// Stores a prompt for a tenant and reports all files as written.
fn store_as(index: &mut ChunkIndex, sequence: &Sequence, (tenant, priority, now_ms): (Tenant, i32, u64)) {
    for blocks in index.missing(&sequence.prefix()) {
        let new = NewChunk { tenant, priority, ..sequence.new_chunk(blocks, now_ms) };
        if index.insert(&new).is_err() {
            break;
        }
        write_all(index, now_ms);
    }
}

fn write_all(index: &mut ChunkIndex, now_ms: u64) {
    for order in index.take_orders() {
        if let StoreOrder::Write(id) = order {
            index.written(id, now_ms);
        }
    }
}

/// Kinds of floods against a tenant that stays within its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flood {
    /// Prompts that are sent once.
    Plain,
    /// The same at the highest priority.
    Priority,
    /// Prompts that are each sent twice, within the minimum hold time.
    Reused,
    /// A fresh chain root for each prompt.
    FreshRoots,
    /// A fresh chain root for each prompt, and a named tenant.
    NamedFreshRoots,
}

fn flood(index: &mut ChunkIndex, kind: Flood, now_ms: u64) {
    for n in 0..200_u32 {
        let salt = match kind {
            Flood::FreshRoots | Flood::NamedFreshRoots => 10 + n as u8,
            Flood::Plain | Flood::Priority | Flood::Reused => 9,
        };
        let sequence = prompt(salt, 1000 + n, 4);
        let by = match kind {
            Flood::FreshRoots => Tenant::without_share(TenantId::of_root(&root(salt))),
            Flood::Plain | Flood::Priority | Flood::Reused | Flood::NamedFreshRoots => tenant(9),
        };
        let priority = if kind == Flood::Priority { 100 } else { 0 };
        store_as(index, &sequence, (by, priority, now_ms));
        if kind == Flood::Reused {
            let used: Vec<_> = index.find(&sequence.prefix()).first(usize::MAX).collect();
            index.touch(&used, by, now_ms);
        }
        index.check_invariants();
    }
}

#[test]
fn a_tenant_within_its_share_loses_nothing_to_anothers_flood() {
    let kinds = [Flood::Plain, Flood::Priority, Flood::Reused, Flood::FreshRoots, Flood::NamedFreshRoots];
    for kind in kinds {
        let mut index = ChunkIndex::new(StoreLimits { min_hold_ms: 1000, ..limits(40, 80) });
        // An earlier flood has filled the tiers.
        flood(&mut index, kind, 1);
        let innocent: Vec<Sequence> = (0..5).map(|n| prompt(0, n, 4)).collect();
        for sequence in &innocent {
            store_as(&mut index, sequence, (tenant(0), 0, 2));
        }
        flood(&mut index, kind, 3);
        for sequence in &innocent {
            assert_eq!(sequence.n_stored(&index), 4, "{kind:?}");
        }
        assert_eq!(bytes_of(&index, 0), (200, 200), "{kind:?}");
        assert_eq!(index.totals(Tier::Ram).n_bytes, 400, "{kind:?}: the flood has the remaining space");
    }
}

#[test]
fn other_tenants_use_an_unused_share_until_its_tenant_needs_it() {
    let mut index = ChunkIndex::new(limits(40, 0));
    flood(&mut index, Flood::Plain, 1);
    assert_eq!(bytes_of(&index, 9).0, 400, "a single tenant has the whole tier");
    assert_eq!(index.share_totals(Tier::Ram), ShareTotals { n_tenants: 1, largest_bytes: 400 });
    for n in 0..20 {
        store_as(&mut index, &prompt(0, n, 4), (tenant(0), 0, 2));
        store_as(&mut index, &prompt(1, n, 1), (tenant(1), 0, 2));
    }
    // A third of 400 bytes is 134; the nearest possible values differ by a chunk of 40.
    let shares = [0, 1, 9].map(|salt| bytes_of(&index, salt).0);
    assert!(shares.iter().all(|n_bytes| (94..=174).contains(n_bytes)), "{shares:?}");
    let reasons: Vec<Reason> = index.evicted().iter().map(|evicted| evicted.reason).collect();
    assert_eq!(reasons, [Reason::Capacity, Reason::OverShare]);
    index.check_invariants();
}

#[test]
fn a_tenant_without_recent_requests_loses_its_share() {
    let check = |quiet_ms: u64, expected: u64| {
        let mut index = ChunkIndex::new(limits(40, 0));
        for n in 0..5 {
            store_as(&mut index, &prompt(0, n, 4), (tenant(0), 0, 1));
        }
        flood(&mut index, Flood::Plain, 1 + quiet_ms);
        assert_eq!(bytes_of(&index, 0).0, expected);
        // The tenant has a share again once it comes back.
        for n in 0..5 {
            store_as(&mut index, &prompt(0, n, 4), (tenant(0), 0, 2 + quiet_ms));
            prompt(0, n, 4).touch(&mut index, 2 + quiet_ms);
        }
        flood(&mut index, Flood::Priority, 3 + quiet_ms);
        assert_eq!(bytes_of(&index, 0).0, 200);
    };
    check(QUIET_AFTER_MS.0, 200);
    check(QUIET_AFTER_MS.0 + 1, 0);
}

#[test]
fn state_of_an_earlier_process_is_charged_to_the_tenant_that_uses_it() {
    let mut index = ChunkIndex::new(limits(40, 40));
    let sequence = prompt(0, 1, 4);
    let record = ChunkRecord {
        kind: StateKind::Chunk,
        root: root(0),
        first_block: 0,
        parent: None,
        blocks: sequence.chain.clone().into(),
        tokens: sequence.tokens.clone().into(),
        n_bytes: 40,
        priority: 0,
        tenant: None,
    };
    let id = index.adopt(&[AdoptedFile { record, last_used_ms: 1 }])[0].expect("a good file");
    assert_eq!((bytes_of(&index, 0).1, index.share_totals(Tier::Disk).n_tenants), (40, 0));
    index.touch(&[UsedChunk { id, n_blocks: 4 }], tenant(7), 2);
    assert_eq!((bytes_of(&index, 0).1, bytes_of(&index, 7).1), (0, 40));
    flood(&mut index, Flood::Plain, 3);
    assert_eq!(sequence.n_stored(&index), 4);
    index.check_invariants();
}

#[test]
fn state_on_disk_of_an_earlier_process_is_charged_to_its_tenant() {
    let mut before = ChunkIndex::new(limits(40, 40));
    for n in 0..3 {
        store_as(&mut before, &prompt(0, n, 4), (tenant(0), 0, 1));
    }
    let file = |chunk: &Chunk| AdoptedFile { record: (*chunk.record).clone(), last_used_ms: 1 };
    let files: Vec<AdoptedFile> = before.chunks.values().map(file).collect();
    assert!(files.iter().all(|file| file.record.tenant == Some(tenant(0).id)));

    let mut index = ChunkIndex::new(limits(40, 40));
    assert!(index.adopt(&files).iter().all(Result::is_ok));
    assert_eq!((bytes_of(&index, 0).1, index.share_totals(Tier::Disk).n_tenants), (120, 1));
    flood(&mut index, Flood::Priority, 2);
    for order in index.take_orders() {
        if let StoreOrder::Write(id) = order {
            index.written(id, 2);
        }
    }
    flood(&mut index, Flood::Plain, 3);
    assert_eq!(bytes_of(&index, 0).1, 120, "a flood before the tenant's first request evicts none of its state");
    index.check_invariants();
}

#[test]
fn a_new_tenant_gets_room_even_if_a_share_is_smaller_than_a_chunk() {
    let check = |n_tenants: u8, n_blocks: usize, expected: [u64; 3]| {
        let mut index = ChunkIndex::new(limits(8, 0));
        for salt in 0..n_tenants {
            store_as(&mut index, &prompt(salt, 0, 1), (tenant(salt), 0, u64::from(salt)));
        }
        store_as(&mut index, &prompt(20, 0, n_blocks), (tenant(20), 0, 100));
        assert_eq!(bytes_of(&index, 20).0, n_blocks as u64 * BLOCK_BYTES);
        assert_eq!(
            [0, 1, 2].map(|salt| bytes_of(&index, salt).0),
            expected,
            "the least recently active tenants lose state"
        );
        index.check_invariants();
    };
    check(8, 2, [0, 0, 10]);
    check(5, 4, [0, 10, 10]);
}

#[test]
fn one_tenants_pins_leave_room_for_those_of_another() {
    let mut index = ChunkIndex::new(limits(40, 0));
    let pin = |index: &mut ChunkIndex, sequence: &Sequence, name: u64| {
        store_as(index, sequence, (tenant(sequence.root.0[0]), 0, 1));
        index.pin(PinId(name), &sequence.prefix()).expect("few pins").n_guarded_bytes
    };
    // Pins may keep five prompts and no more.
    let greedy: Vec<u64> = (0..6).map(|n| pin(&mut index, &prompt(1, n, 4), u64::from(n))).collect();
    assert_eq!(greedy, [40, 40, 40, 40, 40, 0]);
    let modest: Vec<u64> = (0..3).map(|n| pin(&mut index, &prompt(2, n, 4), 10 + u64::from(n))).collect();
    assert_eq!(modest, [40, 40, 0], "both tenants have the same number of guarded bytes");
    index.check_invariants();
    flood(&mut index, Flood::Plain, 2);
    assert!((0..2).all(|n| prompt(2, n, 4).n_stored(&index) == 4));
    let n_kept: u64 = index.pins().iter().map(|pin| pin.n_guarded_bytes).sum();
    assert_eq!(n_kept, 200);
    assert!(index.unpin(PinId(0)), "the next pin is guarded in its place");
    index.check_invariants();
}

/// Random event of several tenants.
#[derive(Debug, Clone)]
enum Step {
    Store { salt: u8, n: u32, n_blocks: usize, priority: i32 },
    StoreWithoutShare { n: u8 },
    Use { salt: u8, n: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let store = (0_u8..4, 0_u32..30, 1_usize..5, -1_i32..2);
    prop_oneof![
        6 => store.prop_map(|(salt, n, n_blocks, priority)| Step::Store { salt, n, n_blocks, priority }),
        1 => (50_u8..250).prop_map(|n| Step::StoreWithoutShare { n }),
        3 => (0_u8..4, 0_u32..30).prop_map(|(salt, n)| Step::Use { salt, n }),
    ]
}

/// Returns the bytes of each tenant, summed over all chunks.
fn naive_shares(index: &ChunkIndex) -> BTreeMap<TenantId, u64> {
    let mut shares = BTreeMap::new();
    for chunk in index.chunks.values().filter(|chunk| chunk.in_ram) {
        *shares.entry(chunk.tenant.id).or_default() += chunk.record.n_bytes;
    }
    shares
}

/// Checks the effect of storing one chunk on all tenants.
fn check_fair(before: &BTreeMap<TenantId, u64>, index: &ChunkIndex, (taker, n_bytes): (Tenant, u64)) {
    let (after, limit) = (naive_shares(index), index.limits().ram_bytes);
    let (n_before, n_after): (u64, u64) = (before.values().sum(), after.values().sum());
    assert!(n_after <= limit);
    if n_before + n_bytes <= limit {
        assert_eq!(n_after, n_before + n_bytes, "a chunk is evicted although there is space");
    } else {
        assert!(n_after + 4 * BLOCK_BYTES > limit, "more is evicted than needed");
    }
    let is_known = |id: &TenantId| (0..4).any(|salt| tenant(salt).id == *id);
    let others = before.keys().filter(|id| !is_known(id)).count() + usize::from(taker.share_id().is_none());
    let known = before.keys().filter(|id| is_known(id) && **id != taker.id).count();
    let n_shares = (known + usize::from(taker.share_id().is_some()) + usize::from(others > 0)) as u64;
    for (id, n_held) in before.iter().filter(|(id, _)| is_known(id) && **id != taker.id) {
        let n_left = after.get(id).copied().unwrap_or(0);
        assert!(n_left == *n_held || *n_held * n_shares > limit, "a tenant within its share loses state");
        // A tenant that loses chunks keeps at least an equal share less one chunk.
        assert!(n_left == *n_held || (n_left + 4 * BLOCK_BYTES) * n_shares > limit, "a tenant loses too much");
    }
}

proptest! {
    #[test]
    fn a_tenant_within_its_share_loses_nothing_to_others(
        ram_blocks in 24_u64..60,
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut index = ChunkIndex::new(limits(ram_blocks, 0));
        for (now_ms, step) in (1..).zip(&steps) {
            let before = naive_shares(&index);
            match *step {
                Step::Store { salt, n, n_blocks, priority } => {
                    let sequence = prompt(salt, n, n_blocks);
                    if index.find(&sequence.prefix()).n_tokens == 0 {
                        store_as(&mut index, &sequence, (tenant(salt), priority, now_ms));
                        check_fair(&before, &index, (tenant(salt), n_blocks as u64 * BLOCK_BYTES));
                    }
                }
                Step::StoreWithoutShare { n } => {
                    let newcomer = Tenant::without_share(TenantId::of_root(&root(n)));
                    let sequence = prompt(n, 0, 2);
                    if index.find(&sequence.prefix()).n_tokens == 0 {
                        store_as(&mut index, &sequence, (newcomer, 0, now_ms));
                        check_fair(&before, &index, (newcomer, 2 * BLOCK_BYTES));
                    }
                }
                Step::Use { salt, n } => {
                    let found = index.find(&prompt(salt, n, 4).prefix());
                    let used: Vec<_> = found.first(usize::MAX).collect();
                    index.touch(&used, tenant(salt), now_ms);
                }
            }
            index.check_invariants();
            let told: BTreeMap<TenantId, u64> =
                index.shares().iter().map(|share| (share.tenant, share.ram_bytes)).collect();
            prop_assert_eq!(told, naive_shares(&index));
        }
    }
}
