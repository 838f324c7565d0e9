//! Tests of a view: which model a name means, why no worker serves a name, and why a worker cannot be used.

use warmpath_common::host::{HostModel, HostSummary, ModelState};

use super::*;
use crate::hosts::{HostLink, HostView};
use crate::testing::{model, worker};

fn fleet(workers: Vec<WorkerView>) -> FleetView {
    FleetView { workers: workers.into_iter().map(Arc::new).collect(), ..FleetView::default() }
}

fn named(idx: u32, name: &str, fingerprint: u8) -> WorkerView {
    let fingerprint = warmpath_common::model::Fingerprint([fingerprint; 32]);
    let model = ModelInfo { names: vec![name.into(), "shared".into()], fingerprint, ..model() };
    WorkerView { model: Some(Arc::new(model)), ..worker(idx) }
}

#[test]
fn a_name_finds_its_model() {
    let fleet = fleet(vec![named(0, "a", 1), named(1, "b", 2)]);
    assert_eq!(fleet.lookup(Some("b"), None, Instant::now()).expect("b is served").names[0], "b");
    let known = vec!["a".to_owned(), "shared".to_owned(), "b".to_owned()];
    let unknown = LookupError::Unknown { name: "c".into(), known: known.clone() };
    assert_eq!(unknown.to_string(), "the model `c` does not exist; available: `a`, `shared`, `b`");
    assert_eq!(fleet.lookup(Some("c"), Some(Capability::Completion), Instant::now()), Err(unknown));
    assert_eq!(fleet.lookup(None, None, Instant::now()), Err(LookupError::Ambiguous { known }));
}

#[test]
fn any_name_finds_the_only_model_and_no_other() {
    let lookup = |fleet: FleetView, name, wanted| {
        fleet.lookup_any(name, wanted, Instant::now()).map(|model| model.names[0].clone())
    };
    let completion = Some(Capability::Completion);
    let one = || fleet(vec![named(0, "a", 1), named(1, "a", 1)]);
    assert_eq!(lookup(one(), "gpt-4o", completion), Ok("a".to_owned()));
    assert_eq!(lookup(one(), "a", completion), Ok("a".to_owned()));
    let several = || fleet(vec![named(0, "a", 1), named(1, "b", 2)]);
    assert_eq!(lookup(several(), "b", completion), Ok("b".to_owned()));
    assert!(
        matches!(lookup(several(), "gpt-4o", completion), Err(LookupError::Unknown { name, .. }) if name == "gpt-4o")
    );
    let incapable = lookup(one(), "gpt-4o", Some(Capability::Rerank));
    assert!(matches!(incapable, Err(LookupError::Incapable { .. })), "{incapable:?}");
}

#[test]
fn a_request_must_name_one_of_several_models_of_a_server() {
    let several = |idx, names: &[&str]| {
        let mut models = names.iter().zip(1..).filter_map(|(name, print)| named(0, name, print).model);
        WorkerView { model: models.next(), further: models.collect(), ..worker(idx) }
    };
    let fleet = fleet(vec![several(0, &["a", "b"])]);
    assert_eq!(fleet.lookup(Some("b"), None, Instant::now()).expect("b is served").names[0], "b");
    let known = vec!["a".to_owned(), "shared".to_owned(), "b".to_owned()];
    let refused = fleet.lookup(None, Some(Capability::Completion), Instant::now()).expect_err("it names no model");
    assert_eq!(refused, LookupError::Ambiguous { known });
    let named = |name| fleet.workers[0].model_named(name).map(|model| model.names[0].clone());
    assert_eq!((named("b").as_deref(), named("c")), (Some("b"), None));
}

#[test]
fn a_pattern_stands_for_the_names_that_no_model_has() {
    let mut any = named(0, "*", 1);
    let mut pattern = named(2, "claude-*", 3);
    for worker in [&mut any, &mut pattern] {
        let model = ModelInfo::clone(worker.model.as_ref().expect("it has a model"));
        worker.model = Some(Arc::new(ModelInfo { names: vec![model.names[0].clone()], ..model }));
    }
    let fleet = fleet(vec![any, named(1, "claude-x", 2), pattern]);
    for (name, own, idx) in [("claude-x", "claude-x", 1), ("claude-y", "claude-*", 2), ("gpt", "*", 0)] {
        let model = fleet.lookup(Some(name), None, Instant::now()).expect(name);
        assert_eq!(model.names[0], own, "{name}");
        let pool = fleet.workers.iter().filter(|worker| worker.model_of_pool(name, &model).is_some());
        assert_eq!(pool.map(|worker| worker.idx.0).collect::<Vec<_>>(), [idx], "{name} goes to no other model");
    }
    let missing = fleet.lookup(None, None, Instant::now());
    assert!(matches!(missing, Err(LookupError::Ambiguous { .. })), "{missing:?}");
}

#[test]
fn a_name_that_matches_a_loading_worker_s_pattern_is_waited_for() {
    let now = Instant::now();
    let loading = WorkerView {
        model: None,
        link: ConnectionState::Loading { since: now },
        awaited: vec!["qwen".into(), "claude-*".into()],
        ..worker(0)
    };
    let fleet = fleet(vec![loading]);
    assert_eq!([Some("claude-x"), Some("gpt")].map(|name| fleet.is_awaited(name, None, now)), [true, false]);
}

#[test]
fn a_message_lists_only_so_many_names() {
    let names = |n: usize| (0..n).map(|nth| format!("m{nth}")).collect::<Vec<_>>();
    assert!(list(&names(LISTED_MAX)).ends_with("`m63`"));
    assert!(list(&names(LISTED_MAX + 2)).ends_with("`m63` and 2 more"));
}

#[test]
fn workers_are_found_by_their_place_even_if_some_have_left() {
    let fleet = fleet(vec![worker(1), worker(4)]);
    assert_eq!(fleet.worker(WorkerIdx(4)).map(|worker| worker.idx), Some(WorkerIdx(4)));
    assert!([0, 2, 5].iter().all(|&idx| fleet.worker(WorkerIdx(idx)).is_none()));
    assert_eq!((fleet.n_places(), FleetView::default().n_places()), (5, 0));
}

#[test]
fn a_model_that_is_loading_or_may_exist_is_not_reported_as_unknown() {
    let now = Instant::now();
    let silent = |idx| WorkerView { model: None, link: ConnectionState::Connecting, joined_at: now, ..worker(idx) };
    let loading = || WorkerView { awaited: vec!["b".into(), "b:x".into()], ..silent(1) };
    let out = Mismatch::HashVersion { worker: 9 };
    let excluded = || WorkerView { excluded: Some(out.clone()), ..named(2, "d", 4) };
    let check = |workers: Vec<WorkerView>, name, wanted, expected: &str| {
        let refused = fleet(workers).lookup(name, wanted, now).expect_err(expected).to_string();
        assert!(refused.contains(expected), "{refused}");
    };
    let loads = "the model `b` is not ready yet";
    check(vec![named(0, "a", 1), loading()], Some("b"), None, loads);
    check(vec![loading()], Some("b"), Some(Capability::Chat), loads);
    check(vec![loading()], Some("b:x"), None, "`b:x` is not ready yet");
    check(vec![loading()], None, Some(Capability::Chat), "a model is not ready yet");
    check(vec![named(0, "a", 1), excluded()], Some("d"), None, "`d` is not ready yet");
    check(vec![named(0, "a", 1), loading()], Some("c"), None, "the model `c` does not exist; available: `a`");
    check(vec![loading()], Some("c"), None, "the model `c` does not exist; available: none yet");
    let undeclared = "the model `c` is not known yet: 2 of the workers and hosts";
    check(vec![named(0, "a", 1), silent(1), silent(2)], Some("c"), None, undeclared);
    check(vec![silent(1), loading()], Some("c"), None, "no worker is ready: 2 known, 0 connected");
    check(vec![silent(1), silent(2)], Some("c"), None, "no worker is ready: 2 known, 0 connected");
    // A worker that has been silent for long may never report, and a leaving worker need not.
    let late = || WorkerView { joined_at: now.checked_sub(2 * UNDECLARED_GRACE).expect("an old clock"), ..silent(1) };
    let leaving = || WorkerView { is_leaving: true, ..silent(1) };
    for quiet in [late(), leaving()] {
        check(vec![named(0, "a", 1), quiet], Some("c"), None, "the model `c` does not exist");
    }
    // One name may stand for a model of each kind.
    check(vec![named(0, "b", 1), loading()], Some("b"), Some(Capability::Embedding), loads);
    check(vec![named(0, "b", 1)], Some("b"), Some(Capability::Embedding), "does not serve embedding");
    assert!(fleet(vec![named(0, "a", 1), loading()]).lookup(None, None, now).is_ok(), "it is the only one so far");
}

#[test]
fn a_request_is_held_while_no_worker_serves_its_model_and_one_may_soon() {
    let now = Instant::now();
    let silent = |link| WorkerView { model: None, link, joined_at: now, ..worker(1) };
    let loading = || WorkerView { awaited: vec!["b".into()], ..silent(ConnectionState::Loading { since: now }) };
    let down = |idx| WorkerView { link: ConnectionState::Down { since: now }, ..named(idx, "b", 1) };
    let check = |workers: Vec<WorkerView>, name, expected: bool| {
        let fleet = fleet(workers);
        let found = fleet.is_awaited(name, Some(Capability::Completion), now);
        assert_eq!(found, expected, "{name:?} {fleet:?}");
    };
    check(vec![], None, false);
    check(vec![loading()], Some("b"), true);
    check(vec![loading()], None, true);
    check(vec![loading()], Some("c"), false);
    check(vec![named(0, "a", 1), loading()], Some("b"), true);
    check(vec![named(0, "a", 1), loading()], None, false);
    check(vec![named(0, "b", 1), loading()], Some("b"), false);
    // A worker that comes back with the same model is not counted as loading another one.
    check(vec![WorkerView { model: named(1, "b", 1).model, ..loading() }], Some("b"), true);
    check(vec![down(0)], Some("b"), false);
    check(vec![down(0), loading()], Some("b"), true);
    for link in [ConnectionState::Connecting, ConnectionState::Down { since: now }] {
        check(vec![silent(link)], Some("b"), true);
        check(vec![silent(link)], None, true);
        check(vec![named(0, "a", 1), silent(link)], Some("b"), true);
        let since_long = WorkerView { joined_at: now - UNDECLARED_GRACE - Duration::from_millis(1), ..silent(link) };
        check(vec![since_long], Some("b"), false);
    }
    check(vec![silent(ConnectionState::Refused { since: now })], Some("b"), false);
    check(vec![WorkerView { is_leaving: true, ..loading() }], Some("b"), false);
    let embedder = ModelInfo { capabilities: vec![Capability::Embedding], ..model() };
    check(vec![WorkerView { model: Some(Arc::new(embedder)), ..worker(0) }, loading()], None, true);
}

#[test]
fn no_name_means_the_only_model() {
    assert_eq!(fleet(vec![worker(0), worker(1)]).lookup(None, None, Instant::now()), Ok(Arc::new(model())));
    let silent = WorkerView { model: None, link: ConnectionState::Connecting, ..worker(0) };
    let refused = fleet(vec![silent]).lookup(None, None, Instant::now());
    assert_eq!(refused, Err(LookupError::NoWorkers { n_known: 1, n_connected: 0, name: None }));
}

#[test]
fn the_task_decides_which_model_a_request_means() {
    let mut embedder = named(1, "e", 2);
    let declared = embedder.model.take().expect("it has a model");
    let capabilities = vec![Capability::Embedding];
    embedder.model = Some(Arc::new(ModelInfo { capabilities, ..ModelInfo::clone(&declared) }));
    let fleet = fleet(vec![named(0, "a", 1), embedder]);
    let first_name =
        |name, wanted| fleet.lookup(name, Some(wanted), Instant::now()).map(|model| model.names[0].clone());
    // One name may stand for a model of each kind, and no name means the only one of its kind.
    for name in [None, Some("shared")] {
        assert_eq!(first_name(name, Capability::Completion).as_deref(), Ok("a"));
        assert_eq!(first_name(name, Capability::Embedding).as_deref(), Ok("e"));
    }
    let refused = first_name(Some("a"), Capability::Embedding).expect_err("it only generates");
    assert_eq!(refused.to_string(), "the model `a` does not serve embedding; models that do: `e`, `shared`");
    let refused = first_name(None, Capability::Rerank).expect_err("no model does");
    assert_eq!(refused.to_string(), "no model here serves rerank; no other model does either");
    let unknown = first_name(Some("c"), Capability::Rerank).expect_err("there is no such model");
    assert!(matches!(unknown, LookupError::Unknown { .. }), "{unknown:?}");
}

#[test]
fn a_worker_is_unavailable_for_the_first_reason_that_holds() {
    let now = Instant::now() + Duration::from_secs(60);
    let since = |age| now.checked_sub(age).expect("the clock is old enough");
    let check = |change: &dyn Fn(&mut WorkerView), expected| {
        let mut worker = worker(0);
        change(&mut worker);
        assert_eq!(worker.unavailable(now), expected);
    };
    check(&|_| {}, None);
    check(&|worker| worker.link = ConnectionState::Connecting, Some(Unavailable::Connecting));
    check(&|worker| worker.link = ConnectionState::Down { since: now }, Some(Unavailable::Down));
    check(&|worker| worker.link = ConnectionState::Refused { since: now }, Some(Unavailable::Refused));
    check(&|worker| worker.link = ConnectionState::Loading { since: now }, Some(Unavailable::Loading));
    check(&|worker| worker.link = ConnectionState::Stale { since: now }, None);
    check(&|worker| worker.link = ConnectionState::Stale { since: since(STALE_AGE_MAX) }, None);
    let older = STALE_AGE_MAX + Duration::from_millis(1);
    check(&|worker| worker.link = ConnectionState::Stale { since: since(older) }, Some(Unavailable::Stale));
    check(&|worker| worker.load.draining = true, Some(Unavailable::Draining));
    check(&|worker| worker.is_leaving = true, Some(Unavailable::Leaving));
    let out = Mismatch::HashVersion { worker: 9 };
    check(&|worker| worker.excluded = Some(out.clone()), Some(Unavailable::Excluded));
}

fn loadable() -> ModelState {
    ModelState::Loadable { memory_bytes: 1, load_ms: 4_000, wait_ms: 0, evicts_ms: 0, kept_ms: 0, is_local: true }
}

fn loaded_by(worker: &WorkerView) -> ModelState {
    ModelState::Loaded { worker_url: worker.name.clone(), n_running: 0, idle_ms: 0, load_ms: 1 }
}

/// Returns a fleet with these workers and a host with these models.
fn hosted(workers: Vec<WorkerView>, models: Vec<HostModel>) -> FleetView {
    let summary = HostSummary { host: "desk".into(), sequence: 1, models, ..HostSummary::default() };
    let host =
        HostView { name: "http://h".into(), link: HostLink::Live, summary: Some(Arc::new(summary)), trouble: None };
    FleetView { hosts: Arc::new(HostsView { hosts: vec![Arc::new(host)] }), ..fleet(workers) }
}

#[test]
fn a_name_of_a_catalogue_is_never_unknown_and_is_awaited_until_a_worker_serves_it() {
    let now = Instant::now();
    let check = |fleet: FleetView, name, is_awaited: bool, expected: &str| {
        let refusal = fleet.lookup(name, None, now).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refusal.starts_with(expected) && refusal.is_empty() == expected.is_empty(), "{refusal}");
        assert_eq!(fleet.awaits_host(name, Autoload::ByModel, now, &[]), is_awaited, "{expected}");
    };
    let loads = "the model `a` is not ready yet: 0 % loaded, about 4 s left";
    check(hosted(vec![], vec![HostModel::new("a", loadable())]), Some("a"), true, loads);
    check(hosted(vec![], vec![HostModel::new("a", loadable())]), None, true, loads);
    check(hosted(vec![], vec![HostModel::new("a", loadable())]), Some("b"), false, "the model `b` does not exist");
    let served = named(0, "a", 1);
    let loaded = HostModel::new("a", loaded_by(&served));
    check(hosted(vec![served.clone()], vec![loaded.clone()]), Some("a"), false, "");
    check(hosted(vec![served.clone()], vec![loaded.clone()]), Some("x"), false, "the model `x` does not exist");
    // A worker of a host that has not reported yet is no reason to hold requests for other names.
    let silent = WorkerView { model: None, link: ConnectionState::Connecting, ..worker(1) };
    let loading = HostModel::new(
        "b",
        ModelState::Loading { worker_url: Some(silent.name.clone()), progress: 0.5, remaining_ms: 9 },
    );
    let fleet = || hosted(vec![served.clone(), silent.clone()], vec![loaded.clone(), loading.clone()]);
    check(fleet(), Some("x"), false, "the model `x` does not exist");
    check(fleet(), Some("b"), true, "the model `b` is not ready yet: 50 % loaded");
    check(fleet(), None, false, "`model` is missing, and there are several: `a`, `b`, `shared`");
    assert!(!fleet().is_awaited(Some("x"), None, now));
    // While a worker leaves, its name means its model, and requests wait for the next worker.
    let leaving = WorkerView { is_leaving: true, ..served.clone() };
    check(hosted(vec![leaving.clone()], vec![HostModel::new("a", loadable())]), Some("a"), true, "");
    assert!(
        hosted(vec![leaving], vec![HostModel::new("a", loadable())])
            .host_refusal(Some("a"), Autoload::Off, now)
            .is_some()
    );
}

#[test]
fn a_worker_that_has_refused_a_request_does_not_serve_it_again() {
    let (now, served) = (Instant::now(), named(0, "a", 1));
    let fleet = hosted(vec![served.clone()], vec![HostModel::new("a", loaded_by(&served))]);
    let awaits = |tried: &[WorkerIdx]| fleet.awaits_host(Some("a"), Autoload::ByModel, now, tried);
    assert_eq!((awaits(&[]), awaits(&[WorkerIdx(0)])), (false, true));
}

#[test]
fn a_worker_that_is_excluded_is_no_reason_to_wait_for_its_host() {
    let now = Instant::now();
    let excluded = WorkerView { excluded: Some(Mismatch::HashVersion { worker: 9 }), ..named(0, "a", 1) };
    let fleet = hosted(vec![excluded.clone()], vec![HostModel::new("a", loaded_by(&excluded))]);
    assert!(!fleet.awaits_host(Some("a"), Autoload::ByModel, now, &[]));
    assert!(fleet.demanded(Some("a"), Autoload::ByModel, now, &[]).is_none());
    assert_eq!(fleet.lookup(Some("a"), None, now), Err(LookupError::Loading { name: Some("a".into()) }));
}

#[test]
fn a_host_that_refused_a_demand_gets_none() {
    let fleet = hosted(vec![], vec![HostModel::new("a", loadable())]);
    let demanded =
        |refusing: &[usize]| fleet.demanded(Some("a"), Autoload::ByModel, Instant::now(), refusing).is_some();
    assert_eq!((demanded(&[]), demanded(&[0])), (true, false));
}
