//! Tests of the hosts' view: which host serves a name soonest, and what a client is told.

use super::*;

fn model(name: &str, state: ModelState) -> HostModel {
    HostModel { aliases: vec![format!("{name}-alias")], ..HostModel::new(name, state) }
}

fn loaded() -> ModelState {
    ModelState::Loaded { worker_url: "http://w".into(), n_running: 0, idle_ms: 0, load_ms: 5 }
}

fn loading(progress: f32, remaining_ms: u64) -> ModelState {
    ModelState::Loading { worker_url: None, progress, remaining_ms }
}

fn loadable(load_ms: u64) -> ModelState {
    ModelState::Loadable { memory_bytes: 1, load_ms, wait_ms: 0, evicts_ms: 0, kept_ms: 0, is_local: true }
}

fn unloading() -> ModelState {
    ModelState::Unloading { worker_url: "http://w".into() }
}

fn impossible(reason: &str, retry_ms: Option<u64>) -> ModelState {
    ModelState::Impossible { reason: reason.into(), retry_ms }
}

fn host(link: HostLink, models: Vec<HostModel>) -> HostView {
    let summary = HostSummary { host: "desk".into(), sequence: 1, models, ..HostSummary::default() };
    HostView { name: "http://host".into(), link, summary: Some(Arc::new(summary)), trouble: None }
}

/// Returns live hosts that have one model `m` each, in these states.
fn hosts(states: impl IntoIterator<Item = ModelState>) -> HostsView {
    let host = |state| Arc::new(host(HostLink::Live, vec![model("m", state)]));
    HostsView { hosts: states.into_iter().map(host).collect() }
}

fn any(_: &Prospect<'_>) -> bool {
    true
}

fn refusal(hosts: &HostsView, autoload: Autoload) -> Option<ModelRefusal> {
    hosts.refusal("m", autoload, Instant::now(), any)
}

fn is_loading(percent: u8, remaining_ms: u64) -> Option<ModelRefusal> {
    Some(ModelRefusal::Loading { name: "m".into(), percent, remaining: Duration::from_millis(remaining_ms) })
}

#[test]
fn the_best_host_has_the_model_or_loads_it_or_is_where_a_load_costs_least() {
    let check = |states: Vec<ModelState>, expected: Option<usize>| {
        let best = hosts(states.clone()).best("m", Instant::now(), any).map(|prospect| prospect.host_idx);
        assert_eq!(best, expected, "{states:?}");
    };
    check(vec![loadable(5), loading(0.1, 90), loaded()], Some(2));
    check(vec![loadable(5), loading(0.1, 90), loading(0.9, 10)], Some(2));
    check(vec![loadable(50), loadable(5), unloading()], Some(1));
    check(vec![ModelState::Downloading(FetchedBytes::default()), loadable(50)], Some(1));
    check(vec![impossible("no", None), loadable(50)], Some(1));
    check(vec![unloading(), impossible("no", None)], Some(0));
    check(vec![loadable(5), loadable(5)], Some(0));
    let costly = |wait_ms, evicts_ms, kept_ms| ModelState::Loadable {
        memory_bytes: 1,
        load_ms: 5,
        wait_ms,
        evicts_ms,
        kept_ms,
        is_local: true,
    };
    check(vec![costly(50, 0, 0), loadable(50)], Some(1));
    check(vec![costly(0, 50, 0), loadable(50)], Some(1));
    check(vec![costly(30, 50, 40), loadable(50)], Some(0));
    check(vec![impossible("no", None)], None);
    check(vec![], None);
}

#[test]
fn routers_that_address_equal_hosts_in_different_order_choose_the_same_one() {
    let named = |name: &str, further: Vec<HostModel>| {
        let models = std::iter::once(model("m", loadable(5))).chain(further).collect();
        let summary = HostSummary { host: name.into(), models, ..HostSummary::default() };
        HostView { summary: Some(Arc::new(summary)), ..host(HostLink::Live, vec![]) }
    };
    let check = |hosts: [HostView; 2], expected: &str| {
        let [first, second] = hosts.map(Arc::new);
        for hosts in [vec![Arc::clone(&first), Arc::clone(&second)], vec![second, first]] {
            let hosts = HostsView { hosts };
            let best = hosts.best("m", Instant::now(), any).expect("both can load it");
            assert_eq!(hosts.hosts[best.host_idx].own_name(), Some(expected));
        }
    };
    check([named("b", vec![]), named("a", vec![])], "a");
    check([named("b", vec![]), named("a", vec![model("n", loaded())])], "b");
}

#[test]
fn the_hosts_together_have_a_limit_of_models_if_each_has_one() {
    let check = |limits: &[u32], expected: u32| {
        let mut hosts = hosts(limits.iter().map(|_| loadable(5)));
        for (host_idx, models_max) in limits.iter().enumerate() {
            let summary = HostSummary { models_max: *models_max, ..HostSummary::default() };
            let view = HostView { summary: Some(Arc::new(summary)), ..HostView::clone(&hosts.hosts[host_idx]) };
            hosts.set(host_idx, view);
        }
        assert_eq!(hosts.models_max(), expected, "{limits:?}");
    };
    check(&[], 0);
    check(&[2, 3], 5);
    check(&[2, 0], 0);
    check(&[u32::MAX, 3], u32::MAX);
}

#[test]
fn a_lost_host_comes_last_and_counts_only_for_a_while() {
    let now = Instant::now();
    let lost = host(HostLink::Lost { since: now }, vec![model("m", loaded())]);
    let mut hosts = hosts([loadable(5), loaded()]);
    hosts.set(1, lost.clone());
    assert_eq!(hosts.best("m", now, any).map(|prospect| prospect.host_idx), Some(0));
    let alone = HostsView { hosts: vec![Arc::new(lost)] };
    assert!(alone.best("m", now + LOST_HOST_KEPT, any).is_some());
    let late = now + LOST_HOST_KEPT + Duration::from_millis(1);
    assert!(alone.best("m", late, any).is_none() && !alone.can_serve(late));
    assert_eq!(
        alone.refusal("m", Autoload::ByModel, late, any),
        Some(ModelRefusal::Unreachable { name: "m".into() }),
        "the name is never unknown"
    );
}

#[test]
fn a_client_is_told_the_share_and_the_seconds_that_are_left() {
    for (state, percent, remaining_ms) in
        [(loaded(), 100, 0), (loading(0.405, 12_000), 40, 12_000), (loadable(7_000), 0, 7_000), (unloading(), 0, 0)]
    {
        assert_eq!(refusal(&hosts([state]), Autoload::ByModel), is_loading(percent, remaining_ms));
    }
    let told = is_loading(40, 11_001).expect("it is one").to_string();
    assert_eq!(told, "the model `m` is not ready yet: 40 % loaded, about 12 s left");
    assert_eq!(hosts([loaded()]).refusal("x", Autoload::ByModel, Instant::now(), any), None);
}

#[test]
fn a_model_that_no_host_can_load_is_refused_with_the_reasons_and_without_paths() {
    let one = impossible("cannot open /home/ann/m.gguf", Some(60_000));
    let hosts =
        hosts([one.clone(), impossible("no memory", Some(5_000)), one, impossible("c", None), impossible("d", None)]);
    let refusal = refusal(&hosts, Autoload::ByModel).expect("no host can load it");
    let told = "no host can load the model `m`: cannot open \u{2026}/m.gguf; no memory; c";
    assert_eq!((refusal.to_string().as_str(), refusal.retry_after()), (told, Some(Duration::from_secs(5))));
    assert!(!hosts.is_expected("m", Autoload::On, Instant::now(), any));
}

#[test]
fn a_request_loads_a_model_only_if_it_or_the_catalogue_says_so() {
    let by_hand = |state| HostModel { is_autoloaded: false, ..model("m", state) };
    let check = |of_model: HostModel, autoload, is_expected: bool, is_demanded: bool| {
        let text = format!("{of_model:?} {autoload:?}");
        let hosts = HostsView { hosts: vec![Arc::new(host(HostLink::Live, vec![of_model]))] };
        let now = Instant::now();
        assert_eq!(hosts.is_expected("m", autoload, now, any), is_expected, "{text}");
        assert_eq!(hosts.demanded("m", autoload, now, any).is_some(), is_demanded, "{text}");
        let is_unloaded = matches!(refusal(&hosts, autoload), Some(ModelRefusal::Unloaded { .. }));
        assert_eq!(is_unloaded, !is_expected, "{text}");
    };
    for state in [loadable(1), unloading()] {
        check(model("m", state.clone()), Autoload::ByModel, true, true);
        check(model("m", state.clone()), Autoload::Off, false, false);
        check(by_hand(state.clone()), Autoload::ByModel, false, false);
        check(by_hand(state), Autoload::On, true, true);
    }
    // What another client or a person loads is waited for.
    check(model("m", loading(0.5, 1)), Autoload::Off, true, false);
    check(by_hand(loaded()), Autoload::ByModel, true, false);
}

#[test]
fn a_host_whose_worker_cannot_be_used_does_not_count() {
    let hosts = hosts([loaded()]);
    let none = |_: &Prospect<'_>| false;
    assert!(!hosts.is_expected("m", Autoload::On, Instant::now(), none));
    assert!(matches!(hosts.refusal("m", Autoload::On, Instant::now(), none), Some(ModelRefusal::Unreachable { .. })));
}

#[test]
fn names_are_those_of_the_catalogues_and_no_name_means_the_only_model() {
    let two = HostsView {
        hosts: vec![
            Arc::new(host(HostLink::Live, vec![model("a", loaded()), model("b", loaded())])),
            Arc::new(host(HostLink::Live, vec![model("b", loadable(1)), model("c", loadable(1))])),
        ],
    };
    assert_eq!(two.names(), ["a", "a-alias", "b", "b-alias", "c", "c-alias"]);
    assert_eq!(two.distinct(), ["a", "b", "c"]);
    assert_eq!((two.meant(Some("c-alias")), two.meant(Some("x")), two.meant(None)), (Some("c-alias"), None, None));
    assert_eq!(hosts([loaded(), loadable(1)]).meant(None), Some("m"));
    assert_eq!(HostsView::default().meant(None), None);
    assert!(two.runs("http://w") && !two.runs("http://x"));
}

#[test]
fn a_list_has_the_best_state_of_all_hosts() {
    let check = |states: Vec<ModelState>, expected| assert_eq!(hosts(states).listed_state("m"), expected);
    check(vec![impossible("no", None), loadable(1), loading(0.5, 1), loaded()], Some(ListedState::Loaded));
    check(vec![impossible("no", None), loadable(1), loading(0.5, 1)], Some(ListedState::Loading { progress: 0.5 }));
    let bytes = FetchedBytes { done_bytes: 1, total_bytes: 2 };
    check(vec![loadable(1), ModelState::Downloading(bytes)], Some(ListedState::Downloading(bytes)));
    check(vec![impossible("no", None), unloading()], Some(ListedState::Unloaded));
    check(vec![impossible("no", None)], Some(ListedState::Failed));
    check(vec![], None);
}

#[test]
fn progress_is_no_news_for_waiting_requests() {
    let view = |state| host(HostLink::Live, vec![model("m", state)]);
    let check =
        |old: HostView, new: HostView, expected: bool| assert_eq!(old.is_news(&new), expected, "{old:?} {new:?}");
    check(view(loading(0.1, 9)), view(loading(0.2, 8)), false);
    check(view(loadable(1)), view(loading(0.0, 8)), true);
    check(view(loaded()), view(unloading()), true);
    check(view(loaded()), HostView { link: HostLink::Lost { since: Instant::now() }, ..view(loaded()) }, true);
    let at = |url: &str| ModelState::Loading { worker_url: Some(url.into()), progress: 0.1, remaining_ms: 1 };
    check(view(loading(0.1, 1)), view(at("http://a")), true);
    check(view(at("http://a")), view(at("http://b")), true);
}

#[test]
fn a_download_goes_to_the_host_that_has_the_model_and_a_removal_only_to_those_that_downloaded_it() {
    let removable = HostModel { is_removable: true, ..model("m", loadable(1)) };
    let mut hosts = hosts([loadable(1), loadable(1)]);
    hosts.set(1, host(HostLink::Live, vec![removable, model("n", loadable(1))]));
    assert_eq!(hosts.removable("m").map(|prospect| prospect.host_idx).collect::<Vec<_>>(), [1]);
    assert_eq!((hosts.for_download("n"), hosts.for_download("other")), (Some(1), Some(0)));
    hosts.set(0, host(HostLink::Connecting, vec![]));
    assert_eq!(hosts.for_download("other"), Some(1));
    hosts.set(1, host(HostLink::Connecting, vec![]));
    assert_eq!(hosts.for_download("other"), None);
}
