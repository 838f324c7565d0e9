//! Tests of membership: by hand, and by random flaps against a model that remembers everything.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const LINGER: Duration = Duration::from_secs(30);
const VACANCY: Duration = Duration::from_secs(60);

fn options(workers_max: usize) -> MembershipOptions {
    MembershipOptions { workers_max, linger: LINGER, vacancy: VACANCY }
}

fn found(addresses: &[u32]) -> Vec<DiscoveredWorker<u32>> {
    addresses.iter().map(|&address| DiscoveredWorker { address, is_ending: false }).collect()
}

fn joined(worker: u32, address: u32) -> MembershipChange<u32> {
    MembershipChange::Joined { worker: WorkerIdx(worker), address }
}

fn changes(fleet: &mut Membership<u32>, listed: &[DiscoveredWorker<u32>], now: Instant) -> Vec<MembershipChange<u32>> {
    fleet.update(listed, now, |_| true).changes
}

#[test]
fn places_follow_the_order_of_the_list() {
    let mut fleet = Membership::new(options(10));
    let now = Instant::now();
    assert_eq!(changes(&mut fleet, &found(&[7, 5, 7]), now), [joined(0, 7), joined(1, 5)]);
    assert_eq!(changes(&mut fleet, &found(&[5, 6, 7]), now), [joined(2, 6)]);
}

#[test]
fn a_worker_that_is_found_again_in_time_keeps_its_place() {
    let mut fleet = Membership::new(options(10));
    let start = Instant::now();
    let worker = WorkerIdx(0);
    changes(&mut fleet, &found(&[7]), start);
    assert_eq!(changes(&mut fleet, &[], start), [MembershipChange::Leaving { worker }]);
    assert_eq!(changes(&mut fleet, &[], start + LINGER - SECOND), []);
    assert_eq!(changes(&mut fleet, &found(&[7]), start + LINGER), [MembershipChange::Stayed { worker }]);
    assert_eq!(changes(&mut fleet, &[], start + LINGER), [MembershipChange::Leaving { worker }]);
    assert_eq!(changes(&mut fleet, &[], start + LINGER * 2), [MembershipChange::Left { worker }]);
    let again = start + LINGER * 2 + SECOND;
    assert_eq!(
        changes(&mut fleet, &found(&[7]), again),
        [joined(1, 7)],
        "the place has not been empty for long enough"
    );
    assert_eq!(changes(&mut fleet, &found(&[7, 8]), start + LINGER * 2 + VACANCY), [joined(0, 8)]);
}

#[test]
fn a_terminating_worker_gets_no_requests_and_leaves_after_its_end() {
    let mut fleet = Membership::new(options(10));
    let start = Instant::now();
    let worker = WorkerIdx(0);
    let ending = [DiscoveredWorker { address: 7, is_ending: true }];
    assert_eq!(changes(&mut fleet, &ending, start), [], "a terminating worker does not join");
    changes(&mut fleet, &found(&[7]), start);
    assert_eq!(changes(&mut fleet, &ending, start), [MembershipChange::Leaving { worker }]);
    assert_eq!(changes(&mut fleet, &ending, start + LINGER * 9), [], "it is still listed");
    assert_eq!(changes(&mut fleet, &[], start + LINGER * 9), []);
    assert_eq!(changes(&mut fleet, &[], start + LINGER * 10), [MembershipChange::Left { worker }]);
}

#[test]
fn an_address_of_two_sources_leaves_when_both_drop_it() {
    let mut fleet = Membership::new(options(10));
    let now = Instant::now();
    let listed = |first, second| [first, second].map(|is_ending| DiscoveredWorker { address: 7, is_ending });
    assert_eq!(changes(&mut fleet, &listed(true, false), now), [joined(0, 7)]);
    assert_eq!(changes(&mut fleet, &listed(false, true), now), []);
    assert_eq!(changes(&mut fleet, &listed(true, true), now), [MembershipChange::Leaving { worker: WorkerIdx(0) }]);
}

#[test]
fn a_request_keeps_the_place_of_its_worker() {
    let mut fleet = Membership::new(options(10));
    let start = Instant::now();
    changes(&mut fleet, &found(&[7]), start);
    changes(&mut fleet, &[], start);
    assert_eq!(fleet.update(&[], start + LINGER * 5, |_| false).changes, []);
    assert_eq!(changes(&mut fleet, &[], start + LINGER * 5), [MembershipChange::Left { worker: WorkerIdx(0) }]);
}

#[test]
fn workers_beyond_the_limit_get_no_place() {
    let mut fleet = Membership::new(options(2));
    let start = Instant::now();
    let update = fleet.update(&found(&[1, 2, 3, 4]), start, |_| true);
    assert_eq!((update.changes.len(), update.n_refused), (2, 2));
    changes(&mut fleet, &found(&[2, 3, 4]), start);
    let update = fleet.update(&found(&[2, 3, 4]), start + LINGER, |_| true);
    assert_eq!(
        update,
        Update { changes: vec![MembershipChange::Left { worker: WorkerIdx(0) }, joined(2, 3)], n_refused: 1 }
    );
}

/// State of a place in the model.
#[derive(Debug, Default, Clone, Copy)]
struct Seat {
    address: Option<u32>,
    is_leaving: bool,
    left: Option<Instant>,
}

#[test]
fn random_flaps_never_mix_up_two_workers() {
    for seed in 0..50 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut fleet = Membership::new(options(6));
        let mut seats: BTreeMap<u32, Seat> = BTreeMap::new();
        let mut missing: BTreeMap<u32, Instant> = BTreeMap::new();
        let mut now = Instant::now();
        for _ in 0..400 {
            now += Duration::from_millis(rng.random_range(0..20_000));
            let listed: Vec<DiscoveredWorker<u32>> = (0..rng.random_range(0..8))
                .map(|_| DiscoveredWorker { address: rng.random_range(0..9), is_ending: rng.random_bool(0.2) })
                .collect();
            let busy: Vec<u32> = (0..9).filter(|_| rng.random_bool(0.2)).collect();
            let is_idle = |worker: WorkerIdx| !busy.contains(&worker.0);
            let Update { changes, n_refused } = fleet.update(&listed, now, is_idle);
            for address in 0..9 {
                if listed.iter().any(|found| found.address == address) {
                    missing.remove(&address);
                } else {
                    missing.entry(address).or_insert(now);
                }
            }
            for change in changes {
                apply(&mut seats, &missing, (change, now, &busy));
            }
            check(&seats, &listed, n_refused);
        }
    }
}

fn apply(
    seats: &mut BTreeMap<u32, Seat>,
    missing: &BTreeMap<u32, Instant>,
    (change, now, busy): (MembershipChange<u32>, Instant, &[u32]),
) {
    match change {
        MembershipChange::Joined { worker, address } => {
            let seat = seats.entry(worker.0).or_default();
            assert_eq!(seat.address, None, "a place that is taken is given away");
            if let Some(left) = seat.left {
                assert!(now - left >= VACANCY && !busy.contains(&worker.0), "a place is given away too early");
            }
            *seat = Seat { address: Some(address), ..Seat::default() };
        }
        MembershipChange::Leaving { worker } => {
            let seat = seats.get_mut(&worker.0).expect("it has joined");
            assert!(!std::mem::replace(&mut seat.is_leaving, true));
        }
        MembershipChange::Stayed { worker } => {
            let seat = seats.get_mut(&worker.0).expect("it has joined");
            assert!(std::mem::replace(&mut seat.is_leaving, false));
        }
        MembershipChange::Left { worker } => {
            let seat = seats.get_mut(&worker.0).expect("it has joined");
            let address = seat.address.take().expect("it was there");
            assert!(seat.is_leaving && now - missing[&address] >= LINGER && !busy.contains(&worker.0));
            seat.left = Some(now);
        }
    }
}

/// Checks that exactly the workers that are found and stay get requests, except for refused ones.
fn check(seats: &BTreeMap<u32, Seat>, listed: &[DiscoveredWorker<u32>], n_refused: usize) {
    let taken = || seats.values().filter(|seat| seat.address.is_some());
    assert!(taken().count() <= 6);
    for seat in taken().filter(|seat| !seat.is_leaving) {
        assert!(listed.iter().any(|found| Some(found.address) == seat.address && !found.is_ending));
    }
    let stays = |address| taken().filter(|seat| seat.address == Some(address) && !seat.is_leaving).count();
    let mut n_without = 0;
    for found in listed.iter().filter(|found| !found.is_ending) {
        match stays(found.address) {
            0 => n_without += 1,
            1 => {}
            n => panic!("address {} has {n} places", found.address),
        }
    }
    assert_eq!(n_without, n_refused);
}
