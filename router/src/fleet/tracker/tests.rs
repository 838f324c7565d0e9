//! Tests of the effects of reports on the tracker's views.

use std::time::Duration;

use warmpath_router_core::fleet::membership::MembershipOptions;
use warmpath_router_core::ledger::LedgerOptions;
use warmpath_shell::tls::ClientFiles;

use super::blocks::tests::run;
use super::*;
use crate::config::{FleetConfig, TrialConfig, WorkerAddress, WorkerApi};
use crate::fleet::client::Clients;
use crate::fleet::members::Member;
use crate::metrics::Metrics;

const WORKER: WorkerIdx = WorkerIdx(0);

/// More blocks than are taken in at a time.
const N_BLOCKS_OF_SLICES: u64 = 20_000;

/// Most blocks of a run: a run is taken in as a whole.
const RUN_BLOCKS_MAX: usize = 1_000;

/// Returns the tracker of a fleet with one worker.
fn tracker() -> Tracker {
    let tls = ClientFiles::default().open().expect("no file is given");
    let clients = Clients::new(Duration::from_secs(1), tls, None);
    let config = FleetConfig {
        hosts: Vec::new(),
        membership: MembershipOptions { workers_max: 1, linger: Duration::ZERO, vacancy: Duration::ZERO },
        vocabularies: Vec::new(),
        index_bytes_max: 64 << 20,
        dispatch: LedgerOptions::default(),
        first_contact_timeout: Duration::ZERO,
        connect_timeout: Duration::from_secs(1),
        worker_keys: Vec::new(),
        token_file: None,
        tls: ClientFiles::default(),
        trial: TrialConfig::default(),
    };
    let (fleet, tracker, _) = Fleet::new(&config, Vec::new(), clients.clone(), Arc::new(Metrics::new()), 7);
    let url = "http://127.0.0.1:1".parse().expect("a URL");
    let address = WorkerAddress { url, api: WorkerApi::Warmpath, certified: None };
    fleet.seat(WORKER, &Member::new(WORKER, &address, clients.of(&address)));
    tracker
}

fn snapshot(n_blocks: u64) -> TrackerMessage {
    let starts = (0..n_blocks).step_by(RUN_BLOCKS_MAX);
    let runs = starts.map(|start| run(start..n_blocks.min(start + RUN_BLOCKS_MAX as u64))).collect();
    TrackerMessage::Replaced { worker: WORKER, runs }
}

fn unreachable(kind: FollowErrorKind) -> TrackerMessage {
    TrackerMessage::Unreachable { worker: WORKER, trouble: FollowError { kind, reason: "a test's".into() } }
}

fn lost() -> TrackerMessage {
    TrackerMessage::Lost { worker: WORKER, reason: "a test's loss".into() }
}

/// Takes in all views that are on their way.
fn take_in(tracker: &mut Tracker) {
    while tracker.blocks.is_busy() {
        tracker.take_in_slice(Instant::now());
    }
}

#[test]
fn a_worker_s_blocks_are_current_from_a_whole_snapshot_until_its_stream_is_lost() {
    let mut tracker = tracker();
    let resumed = || TrackerMessage::Resumed { worker: WORKER };
    for (what, report, is_current, n_blocks) in [
        ("it joins", TrackerMessage::Joined { worker: WORKER }, false, 0),
        ("its snapshot comes", snapshot(3), true, 3),
        ("its stream is lost", lost(), false, 3),
        ("its stream goes on", resumed(), true, 3),
        ("another snapshot comes", snapshot(5), true, 5),
        ("it cannot be reached", unreachable(FollowErrorKind::Other), false, 0),
        ("it is back", snapshot(2), true, 2),
        ("it refuses this router", unreachable(FollowErrorKind::Refusal), false, 0),
        ("its stream is lost once more", lost(), false, 0),
    ] {
        tracker.take(report, Instant::now());
        take_in(&mut tracker);
        let known = tracker.workers[&WORKER].view.blocks;
        assert_eq!((known.is_current, known.n_blocks), (is_current, n_blocks), "{what}");
    }
}

#[test]
fn a_snapshot_s_blocks_are_not_current_before_its_last_one_nor_after_a_loss_behind_it() {
    let mut tracker = tracker();
    tracker.take(TrackerMessage::Joined { worker: WORKER }, Instant::now());
    let is_current = |tracker: &Tracker| tracker.workers[&WORKER].view.blocks.is_current;
    tracker.take(snapshot(N_BLOCKS_OF_SLICES), Instant::now());
    tracker.take_in_slice(Instant::now());
    assert!(tracker.blocks.is_busy() && !is_current(&tracker), "a part of it is in the index");
    tracker.take(lost(), Instant::now());
    take_in(&mut tracker);
    assert!(!is_current(&tracker), "the stream was lost behind the snapshot");
    tracker.take(snapshot(1), Instant::now());
    take_in(&mut tracker);
    assert!(is_current(&tracker));
}

#[test]
fn the_reason_of_a_loss_is_known_until_the_stream_resumes() {
    let mut tracker = tracker();
    for (report, expected) in [
        (TrackerMessage::Joined { worker: WORKER }, None),
        (lost(), Some("a test's loss")),
        (TrackerMessage::Resumed { worker: WORKER }, None),
    ] {
        tracker.take(report, Instant::now());
        assert_eq!(tracker.workers[&WORKER].view.trouble.as_deref(), expected);
    }
}
