//! Each rule of the swaps by an example.

use std::collections::BTreeMap;

use warmpath_common::host::ModelState;

use super::*;
use crate::catalogue::STOP_TIMEOUT_DEFAULT_S;

const LIMITS: SwapLimits = SwapLimits { swap_wait_max_ms: 10_000, models_max: 0, announce_ms: 0 };

/// Time at which the hosts here start.
const START_MS: u64 = 100_000;

fn entry(name: &str) -> Entry {
    Entry {
        name: name.to_owned(),
        aliases: vec![format!("{name}-alias")],
        set_params: BTreeMap::new(),
        flags: Vec::new(),
        file_bytes: 0,
        is_pinned: false,
        loads_on_startup: false,
        is_removable: false,
        ttl_ms: None,
        stop_timeout_ms: STOP_TIMEOUT_DEFAULT_S * 1000,
    }
}

/// A host of models that take 10 bytes each, unless stated otherwise, and its actions as text.
struct Host {
    swaps: Swaps,
    now_ms: u64,
}

impl Host {
    fn new(ram_bytes: u64, entries: Vec<Entry>) -> Self {
        Self::with(LIMITS, ram_bytes, entries)
    }

    fn with(limits: SwapLimits, ram_bytes: u64, entries: Vec<Entry>) -> Self {
        let names: Vec<_> = entries.iter().map(|entry| entry.name.clone()).collect();
        let mut swaps = Swaps::new(limits, ram_bytes, entries, START_MS);
        names.iter().for_each(|name| swaps.projected(name, DeviceBytes::ram(10)));
        Self { swaps, now_ms: START_MS }
    }

    /// Lets time pass; returns what must be done then.
    fn after(&mut self, ms: u64) -> String {
        self.now_ms += ms;
        let words = self.swaps.step(self.now_ms).into_iter().map(|action| match action {
            Action::Project(name) => format!("project {name}"),
            Action::Start(name) => format!("start {name}"),
            Action::Drain(name, _) => format!("drain {name}"),
            Action::Kill(name) => format!("kill {name}"),
        });
        words.collect::<Vec<_>>().join(", ")
    }

    fn demand_of(&mut self, router: &str, model: &str, oldest_wait_ms: u64) {
        let demand = Demand { model: model.to_owned(), router: router.to_owned(), n_waiting: 1, oldest_wait_ms };
        self.swaps.demand(&demand, self.now_ms);
    }

    fn demand(&mut self, model: &str, oldest_wait_ms: u64) {
        self.demand_of("router", model, oldest_wait_ms);
    }

    fn running(&mut self, model: &str, n_running: u32) {
        self.swaps.running(model, n_running, self.now_ms);
    }

    fn exited(&mut self, model: &str, reason: &str) {
        self.swaps.exited(model, reason.to_owned(), self.now_ms);
    }

    /// Loads a model, which takes some time, and lets it serve a request that takes as long.
    fn load(&mut self, model: &str, ms: u64) {
        self.demand(model, 0);
        assert_eq!(self.after(0), format!("start {model}"));
        self.swaps.listening(model, format!("http://{model}"));
        self.now_ms += ms;
        self.swaps.ready(model, None, self.now_ms);
        self.running(model, 1);
        self.now_ms += ms;
        self.running(model, 0);
    }

    fn state(&self, name: &str) -> ModelState {
        let models = self.swaps.models(|_| true, self.now_ms);
        models.into_iter().find(|model| model.name == name).expect("it is listed").state
    }

    fn reason(&self, name: &str) -> (String, Option<u64>) {
        match self.state(name) {
            ModelState::Impossible { reason, retry_ms } => (reason, retry_ms),
            state => panic!("{name} is {state:?}"),
        }
    }
}

#[test]
fn models_that_fit_are_loaded_beside_each_other() {
    let mut host = Host::new(20, vec![entry("a"), entry("b")]);
    host.load("a", 100);
    host.load("b", 100);
    let memory = HostMemory { device: "ram".to_owned(), budget_bytes: 20, free_bytes: 0 };
    assert_eq!(host.swaps.memory(), [memory]);
    assert!(matches!(host.state("a"), ModelState::Loaded { load_ms: 100, n_running: 0, idle_ms: 200, .. }));
}

#[test]
fn an_idle_model_leaves_for_another_and_the_other_starts_when_it_has_ended() {
    let mut host = Host::new(10, vec![entry("a"), entry("b")]);
    host.load("a", 100);
    host.demand("b-alias", 0);
    assert_eq!(host.after(IDLE_GRACE_MS), "drain a");
    assert_eq!(host.state("a"), ModelState::Unloading { worker_url: "http://a".to_owned() });
    assert!(matches!(host.state("b"), ModelState::Loading { worker_url: None, .. }));
    assert_eq!(host.after(IDLE_GRACE_MS), "", "nothing starts while the memory is taken");
    host.exited("a", "");
    assert_eq!(host.after(0), "start b");
    assert!(matches!(host.state("a"), ModelState::Loadable { memory_bytes: 10, load_ms: 100, is_local: true, .. }));
}

#[test]
fn a_model_with_requests_keeps_its_place_until_another_has_waited_for_long() {
    let mut host = Host::new(10, vec![entry("a"), entry("b")]);
    host.load("a", 100);
    host.running("a", 2);
    for wait_ms in (0..10_000).step_by(1000) {
        host.demand("b", wait_ms);
        assert_eq!(host.after(if wait_ms == 9000 { 999 } else { 1000 }), "");
    }
    host.demand("b", 9_999);
    assert_eq!(host.after(1), "drain a");
    host.running("a", 1);
    assert_eq!(host.after(2_000), "", "its answers go on");
}

#[test]
fn a_demand_is_announced_before_the_load_starts_and_an_order_is_not() {
    let mut host = Host::with(SwapLimits { announce_ms: 25, ..LIMITS }, 20, vec![entry("a"), entry("b")]);
    host.demand("a", 5_000);
    assert_eq!(host.after(0), "");
    assert!(matches!(host.state("a"), ModelState::Loading { worker_url: None, .. }));
    host.now_ms += 10;
    host.demand_of("other", "a", 0);
    assert_eq!(host.after(14), "");
    host.demand("a", 5_024);
    assert_eq!(host.after(1), "start a");
    host.swaps.load("b", host.now_ms);
    assert_eq!(host.after(0), "start b");
    // The routers have agreed on another host.
    let mut host = Host::with(SwapLimits { announce_ms: 25, ..LIMITS }, 20, vec![entry("a")]);
    host.demand("a", 0);
    host.swaps
        .demand(&Demand { model: "a".to_owned(), router: "router".to_owned(), n_waiting: 0, oldest_wait_ms: 0 }, 0);
    assert_eq!(host.after(25), "");
    assert!(matches!(host.state("a"), ModelState::Loadable { .. }));
}

#[test]
fn a_model_that_waits_for_one_with_requests_can_be_loaded_elsewhere_and_says_how_long_it_waits() {
    let mut host = Host::new(10, vec![entry("a"), entry("b")]);
    host.load("a", 100);
    host.running("a", 1);
    let wait_ms = |host: &Host| match host.state("b") {
        ModelState::Loadable { wait_ms, .. } => wait_ms,
        state => panic!("b is {state:?}"),
    };
    assert_eq!(wait_ms(&host), LIMITS.swap_wait_max_ms);
    // Loading it takes half a second.
    host.demand("b", 450);
    assert_eq!(host.after(0), "");
    assert_eq!(wait_ms(&host), DRAIN_MS, "its turn may come sooner than a load elsewhere");
    assert_eq!(host.after(50), "");
    assert_eq!(wait_ms(&host), LIMITS.swap_wait_max_ms - 500);
    host.running("a", 0);
    assert_eq!(host.after(IDLE_GRACE_MS), "drain a");
    assert!(matches!(host.state("b"), ModelState::Loading { worker_url: None, .. }));
}

#[test]
fn a_model_stays_while_its_requests_are_on_their_way() {
    let mut host = Host::new(10, vec![entry("a"), entry("b")]);
    host.demand("b", 0);
    assert_eq!(host.after(0), "start b");
    host.swaps.listening("b", "http://b".to_owned());
    host.swaps.ready("b", None, host.now_ms);
    host.demand("a", 0);
    host.demand("b", 1_000);
    assert_eq!(host.after(2_000), "", "the requests for b are on their way");
    host.running("b", 1);
    host.running("b", 0);
    host.demand("a", 2_000);
    assert_eq!(host.after(IDLE_GRACE_MS), "drain b");
}

#[test]
fn a_model_stays_for_as_long_as_it_loaded_once_loads_have_taken_a_minute() {
    let load_ms = LOAD_BURST_MS / 3;
    let mut host = Host::new(10, vec![entry("a"), entry("b")]);
    let mut stays_ms = Vec::new();
    let (mut loaded, mut waiting) = ("a", "b");
    host.load(loaded, load_ms);
    for _ in 0..8 {
        let since_ms = host.now_ms;
        host.demand(waiting, 0);
        while host.after(IDLE_GRACE_MS) != format!("drain {loaded}") {
            host.demand(waiting, host.now_ms - since_ms);
        }
        stays_ms.push(host.now_ms - since_ms);
        host.exited(loaded, "");
        (loaded, waiting) = (waiting, loaded);
        assert_eq!(host.after(0), format!("start {loaded}"));
        host.swaps.listening(loaded, format!("http://{loaded}"));
        host.now_ms += load_ms;
        host.swaps.ready(loaded, None, host.now_ms);
    }
    let first_stay = stays_ms.iter().position(|stay_ms| *stay_ms > IDLE_GRACE_MS);
    assert!(first_stay.is_some_and(|nth| nth >= 2), "{stays_ms:?}");
    assert!(stays_ms.iter().all(|stay_ms| *stay_ms <= load_ms), "{stays_ms:?}");
}

#[test]
fn the_least_valuable_model_leaves_and_no_more_than_necessary() {
    let mut host = Host::new(30, vec![entry("fast"), entry("slow"), entry("unused"), entry("large")]);
    host.swaps.projected("large", DeviceBytes::ram(20));
    host.swaps.projected("unused", DeviceBytes::ram(1));
    host.load("slow", 5_000);
    host.load("fast", 10);
    host.swaps.load("unused", host.now_ms);
    assert_eq!(host.after(0), "start unused");
    host.swaps.ready("unused", None, host.now_ms);
    host.demand("large", 0);
    assert_eq!(host.after(IDLE_GRACE_MS), "drain unused, drain fast");
    let mut host = Host::new(21, vec![entry("fast"), entry("slow"), entry("unused"), entry("large")]);
    host.swaps.projected("unused", DeviceBytes::ram(1));
    host.load("slow", 5_000);
    host.load("fast", 10);
    host.swaps.load("unused", host.now_ms);
    assert_eq!(host.after(0), "start unused");
    host.swaps.ready("unused", None, host.now_ms);
    host.demand("large", 0);
    assert_eq!(host.after(IDLE_GRACE_MS), "drain fast", "the memory of `unused` is not enough, and then not needed");
}

#[test]
fn of_models_that_nobody_has_used_the_one_that_was_loaded_first_leaves() {
    let mut host = Host::new(20, vec![entry("a"), entry("b"), entry("c")]);
    for name in ["b", "a"] {
        host.swaps.load(name, host.now_ms);
        assert_eq!(host.after(0), format!("start {name}"));
        host.now_ms += 100;
        host.swaps.ready(name, None, host.now_ms);
    }
    host.swaps.load("c", host.now_ms);
    assert_eq!(host.after(100), "drain b");
}

#[test]
fn the_longest_wait_is_served_first_and_its_memory_is_kept() {
    let mut host = Host::new(20, vec![entry("a"), entry("small"), entry("large")]);
    host.swaps.projected("large", DeviceBytes::ram(20));
    host.load("a", 100);
    host.running("a", 1);
    host.demand("large", 0);
    assert_eq!(host.after(1_000), "");
    host.demand("large", 10_000);
    host.demand("small", 0);
    assert_eq!(host.after(0), "drain a", "and `small`, which would fit, waits");
    host.exited("a", "");
    assert_eq!(host.after(0), "start large");
    let mut host = Host::new(20, vec![entry("a"), entry("small"), entry("large")]);
    host.swaps.projected("large", DeviceBytes::ram(20));
    host.load("a", 100);
    host.running("a", 1);
    host.demand("large", 5_000);
    host.demand("small", 0);
    assert_eq!(host.after(0), "start small", "while `large` may not take the place of `a` anyway");
}

#[test]
fn pinned_models_never_leave_and_others_must_fit_beside_them() {
    let pinned = Entry { is_pinned: true, loads_on_startup: true, ttl_ms: Some(1), ..entry("pinned") };
    let mut host = Host::new(15, vec![pinned, entry("b")]);
    assert_eq!(host.after(0), "start pinned");
    host.swaps.ready("pinned", None, host.now_ms);
    host.demand("b", 60_000);
    assert_eq!(host.after(60_000), "");
    let (reason, retry_ms) = host.reason("b");
    assert!(reason.contains("it needs 0 MiB of ram") && reason.contains("pinned models take"), "{reason}");
    assert_eq!(retry_ms, None);
    host.exited("pinned", "killed");
    assert_eq!(host.after(0), "start pinned", "it comes back by itself");
}

#[test]
fn a_model_that_could_be_loaded_says_what_room_for_it_costs() {
    let cost = |host: &Host, name: &str| match host.state(name) {
        ModelState::Loadable { wait_ms, evicts_ms, .. } => (wait_ms, evicts_ms),
        state => panic!("{name} is {state:?}"),
    };
    let mut host = Host::new(20, vec![entry("a"), entry("b"), entry("c")]);
    host.load("a", 1_000);
    assert_eq!(cost(&host, "b"), (0, 0), "there is room");
    host.load("b", 4_000);
    assert_eq!(host.after(IDLE_GRACE_MS), "");
    let (wait_ms, evicts_ms) = cost(&host, "c");
    assert_eq!(wait_ms, DRAIN_MS);
    assert!((990..=1_000).contains(&evicts_ms), "that of the model which loads sooner: {evicts_ms}");
    host.running("a", 1);
    host.running("b", 1);
    assert_eq!(cost(&host, "c").0, LIMITS.swap_wait_max_ms, "both have requests");
    host.swaps.unload("a");
    assert_eq!(host.after(0), "drain a");
    assert_eq!(cost(&host, "c"), (DRAIN_MS, 0), "a leaves anyway");
}

#[test]
fn the_state_that_a_model_left_is_worth_a_request_s_time() {
    let kept_ms = |host: &Host| match host.state("a") {
        ModelState::Loadable { kept_ms, .. } => kept_ms,
        state => panic!("a is {state:?}"),
    };
    let mut host = Host::new(10, vec![entry("a"), entry("b")]);
    assert_eq!(kept_ms(&host), 0);
    host.load("a", 1_000);
    host.running("a", 1);
    host.now_ms += 3_000;
    host.running("a", 0);
    host.demand("b", 0);
    assert_eq!(host.after(IDLE_GRACE_MS), "drain a");
    host.exited("a", "");
    // Older ones count a little less.
    assert!((1_990..2_010).contains(&kept_ms(&host)), "two requests took four seconds: {}", kept_ms(&host));
}

#[test]
fn models_of_the_start_do_not_displace_each_other() {
    let at_start = |name: &str| Entry { loads_on_startup: true, ..entry(name) };
    let mut host = Host::new(25, vec![at_start("a"), at_start("b"), at_start("c")]);
    assert_eq!(host.after(0), "start a, start b");
    for name in ["a", "b"] {
        host.swaps.ready(name, None, host.now_ms);
    }
    assert_eq!(host.after(60_000), "");
    assert!(matches!(host.state("c"), ModelState::Loadable { .. }));
}

#[test]
fn a_model_that_never_fits_is_impossible_and_blocks_nobody() {
    let mut host = Host::new(10, vec![entry("a"), entry("large")]);
    host.swaps.projected("large", DeviceBytes::ram(11));
    host.demand("large", 60_000);
    host.demand("a", 0);
    assert_eq!(host.after(0), "start a");
    assert!(host.reason("large").0.contains("--models-memory"));
    let mut host = Host::new(5, vec![Entry { loads_on_startup: true, is_pinned: true, ..entry("a") }]);
    assert_eq!(host.after(0), "");
    assert!(!host.swaps.is_settling());
}

#[test]
fn a_failed_load_is_repeated_with_growing_pauses() {
    let mut host = Host::new(10, vec![entry("a"), entry("b")]);
    for pause_ms in [1_000, 2_000, 4_000] {
        host.demand("a", 0);
        assert_eq!(host.after(0), "start a");
        host.exited("a", "no such tensor");
        assert_eq!(host.reason("a"), ("no such tensor".to_owned(), Some(pause_ms)));
        host.demand("a", 0);
        assert_eq!(host.after(pause_ms - 1), "");
        host.now_ms += 1;
    }
    host.demand("b", 0);
    assert_eq!(host.after(0), "start b", "nobody requests `a` now");
    host.exited("b", "");
    host.exited("a", "");
    host.swaps.load("a", host.now_ms);
    assert_eq!(host.after(0), "start a", "a person need not wait");
}

#[test]
fn a_first_crash_is_repaired_at_once_and_repeated_ones_after_pauses() {
    let mut host = Host::new(10, vec![entry("a")]);
    host.load("a", 100);
    host.exited("a", "killed by a signal");
    host.load("a", 100);
    host.exited("a", "killed by a signal");
    assert_eq!(host.reason("a"), ("killed by a signal".to_owned(), Some(1_000)));
    host.now_ms += 1_000;
    host.load("a", 100);
    host.now_ms += 60_000;
    host.exited("a", "killed by a signal");
    host.demand("a", 0);
    assert_eq!(host.after(0), "start a", "it had run for a while");
}

#[test]
fn a_worker_that_does_not_end_is_killed_only_after_its_last_answer() {
    let mut host = Host::new(10, vec![Entry { stop_timeout_ms: 500, ..entry("a") }]);
    host.load("a", 100);
    host.running("a", 1);
    host.swaps.unload("a");
    assert_eq!(host.after(0), "drain a");
    assert_eq!(host.after(60_000), "");
    host.running("a", 0);
    assert_eq!(host.after(499), "");
    assert_eq!(host.after(1), "kill a");
    assert_eq!(host.after(60_000), "", "once");
    host.exited("a", "");
    assert_eq!(host.after(0), "");
}

#[test]
fn an_unused_model_leaves_after_its_time_to_live() {
    let mut host = Host::new(10, vec![Entry { ttl_ms: Some(5_000), ..entry("a") }]);
    host.load("a", 100);
    assert_eq!(host.after(4_999), "");
    assert_eq!(host.after(1), "drain a");
}

#[test]
fn demands_of_routers_that_fall_silent_are_forgotten() {
    let mut host = Host::new(10, vec![entry("a"), entry("b")]);
    host.load("a", 100);
    host.running("a", 1);
    host.demand_of("dead", "b", 0);
    host.demand_of("alive", "b", 0);
    let demand = Demand { model: "b".to_owned(), router: "alive".to_owned(), n_waiting: 0, oldest_wait_ms: 0 };
    host.swaps.demand(&demand, host.now_ms);
    assert!(host.swaps.is_settling());
    assert_eq!(host.after(warmpath_common::host::DEMAND_TTL_MS), "");
    assert!(!host.swaps.is_settling());
    assert!(matches!(host.state("b"), ModelState::Loadable { .. }));
}

#[test]
fn the_number_of_models_has_a_limit_too() {
    let mut host = Host::with(SwapLimits { models_max: 1, ..LIMITS }, 100, vec![entry("a"), entry("b")]);
    host.load("a", 100);
    host.demand("b", 0);
    assert_eq!(host.after(IDLE_GRACE_MS), "drain a");
}

#[test]
fn a_process_that_takes_more_than_expected_counts_with_that() {
    let mut host = Host::new(20, vec![entry("a"), entry("b")]);
    host.load("a", 100);
    host.swaps.measured("a", DeviceBytes::ram(15));
    assert_eq!(host.swaps.memory()[0].free_bytes, 5);
    host.demand("b", 0);
    assert_eq!(host.after(IDLE_GRACE_MS), "drain a");
}

#[test]
fn a_file_that_is_not_here_is_fetched_when_it_is_wanted() {
    let mut host = Host { swaps: Swaps::new(LIMITS, 10, vec![entry("a")], START_MS), now_ms: START_MS };
    host.swaps.remote("a");
    assert!(matches!(host.state("a"), ModelState::Loadable { is_local: false, .. }));
    host.demand("a", 0);
    assert_eq!(host.after(0), "project a");
    assert_eq!(host.after(0), "", "once");
    host.swaps.downloading("a", FetchedBytes { done_bytes: 1, total_bytes: 4 });
    assert!(matches!(host.state("a"), ModelState::Loading { worker_url: None, progress: 0.25, .. }));
    host.swaps.projected("a", DeviceBytes::ram(3));
    assert_eq!(host.after(0), "start a");
}

#[test]
fn a_download_by_an_order_is_shown_until_it_ends_and_its_failure_as_that_of_a_load() {
    let mut host = Host::new(10, vec![entry("a")]);
    let bytes = FetchedBytes { done_bytes: 1, total_bytes: 3 };
    host.swaps.begin_download("a");
    host.swaps.downloading("a", bytes);
    assert_eq!(host.state("a"), ModelState::Downloading(bytes));
    assert!(host.swaps.is_settling() && host.after(0).is_empty());
    host.demand("a", 0);
    assert!(matches!(host.state("a"), ModelState::Loading { .. }), "requests wait for it");
    host.now_ms += warmpath_common::host::DEMAND_TTL_MS;
    assert_eq!(host.after(0), "");
    host.swaps.downloaded("a", Err("no such repository".to_owned()), host.now_ms);
    host.swaps.downloading("a", bytes);
    assert_eq!(host.reason("a").0, "no such repository", "late news");
    host.swaps.begin_download("a");
    host.swaps.downloaded("a", Ok(()), host.now_ms);
    assert!(matches!(host.state("a"), ModelState::Loadable { .. }));
}

#[test]
fn each_device_has_its_budget() {
    let mut host = Host::new(100, vec![entry("a"), entry("b")]);
    host.swaps.know_device("CUDA0", 10);
    host.swaps.know_device("CUDA0", 99);
    for name in ["a", "b"] {
        host.swaps.projected(name, [("ram", 1), ("CUDA0", 6)].into_iter().collect());
    }
    host.load("a", 100);
    host.demand("b", 0);
    assert_eq!(host.after(IDLE_GRACE_MS), "drain a");
}

#[test]
fn a_changed_or_removed_model_leaves_and_a_new_one_can_be_loaded() {
    let mut host = Host::new(100, vec![entry("a"), entry("b"), entry("c"), entry("e")]);
    host.load("a", 100);
    host.load("b", 100);
    host.load("c", 100);
    host.load("e", 100);
    let changed = Entry { flags: vec!["--slots=1".to_owned()], ..entry("b") };
    let renamed = Entry { aliases: vec!["other".to_owned()], ..entry("e") };
    host.swaps.replace_catalogue(vec![entry("c"), changed, entry("d"), renamed]);
    assert!(host.swaps.entry("a").is_none() && host.swaps.entry("d-alias").is_some());
    assert_eq!(host.after(0), "drain b, drain e, drain a");
    host.exited("a", "");
    host.exited("b", "");
    host.demand("b", 0);
    assert_eq!(host.after(0), "project b", "its memory may have changed");
}
