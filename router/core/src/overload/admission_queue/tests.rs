//! Tests of the queue: comparison with a naive model; fairness, limit and deadlines one by one.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const PLACES: usize = 6;

/// A naive queue that scans every request every time.
#[derive(Default)]
struct Naive {
    served_us: u64,
    tags: BTreeMap<TenantKey, u64>,
    waiting: Vec<(WaiterId, Waiter)>,
    /// Workers that the requests with these needs wait for.
    awaited: BTreeMap<u64, Vec<WorkerIdx>>,
}

impl Naive {
    fn n_of(&self, tenant: TenantKey) -> usize {
        self.new_ones().filter(|(_, waiter)| waiter.tenant == tenant).count()
    }

    /// Returns the requests that begin, without the rests of streams.
    fn new_ones(&self) -> impl Iterator<Item = &(WaiterId, Waiter)> {
        self.waiting.iter().filter(|(_, waiter)| !waiter.is_continuation)
    }

    /// Returns all requests, in their order.
    fn in_order(&self) -> Vec<(WaiterId, Waiter)> {
        let oldest = |tenant: TenantKey| self.new_ones().filter(|(_, e)| e.tenant == tenant).map(|(id, _)| *id).min();
        let key = |(id, waiter): &(WaiterId, Waiter)| match waiter.is_continuation {
            true => (0, 0, None, *id),
            false => (1, self.tags[&waiter.tenant], oldest(waiter.tenant), *id),
        };
        let mut all = self.waiting.clone();
        all.sort_by_key(key);
        all
    }

    /// Returns the requests that may try to start, with the workers that they leave to earlier ones; `None` if an
    /// earlier one has not tried.
    fn trying(&self) -> Vec<(WaiterId, Option<Vec<WorkerIdx>>)> {
        let (mut trying, mut seen, mut left) = (Vec::new(), Vec::new(), Some(Vec::new()));
        for (id, waiter) in self.in_order() {
            if !seen.contains(&waiter.needs) {
                seen.push(waiter.needs);
                trying.push((id, left.clone()));
                let awaited = self.awaited.get(&waiter.needs.0);
                left = left.zip(awaited).map(|(left, awaited)| [left, awaited.clone()].concat());
            }
        }
        trying
    }

    fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let at = self.waiting.iter().position(|(waiter, _)| *waiter == id)?;
        let (_, removed) = self.waiting.remove(at);
        self.forget();
        Some(removed)
    }

    fn forget(&mut self) {
        let waiting = &self.waiting;
        self.awaited.retain(|needs, _| waiting.iter().any(|(_, waiter)| waiter.needs.0 == *needs));
    }

    /// Returns the request that gives its place to one of `tenant`; `None` if no tenant has at least two more requests.
    fn victim(&self, tenant: TenantKey) -> Option<WaiterId> {
        let newest = |of| self.new_ones().filter(|(_, e)| e.tenant == of).map(|(id, _)| *id).max();
        let longest = self.new_ones().map(|(_, e)| (self.n_of(e.tenant), newest(e.tenant))).max()?;
        (longest.0 > self.n_of(tenant) + 1).then_some(longest.1).flatten()
    }

    fn enter(&mut self, id: WaiterId, waiter: Waiter) {
        if !waiter.is_continuation {
            let is_first = self.n_of(waiter.tenant) == 0;
            let tag = self.tags.entry(waiter.tenant).or_default();
            if is_first {
                *tag = (*tag).max(self.served_us);
            }
        }
        self.waiting.push((id, waiter));
    }

    fn start(&mut self, id: WaiterId, service_us: u64) {
        let waiter = self.remove(id).expect("it waits");
        if waiter.is_continuation {
            return;
        }
        let tag = self.tags.entry(waiter.tenant).or_default();
        self.served_us = self.served_us.max(*tag);
        *tag += service_us;
    }
}

#[derive(Debug, Clone)]
enum Op {
    Enter { tenant: u64, needs: u64, patience_ms: u64, is_continuation: bool },
    Start { nth: usize, service_us: u64 },
    StartWithoutWorker { nth: usize, service_us: u64 },
    Refuse { nth: usize, awaited: Vec<u32> },
    Leave(usize),
    Wait(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0u64..4, 0u64..3, 0u64..50, prop::bool::weighted(0.2)).prop_map(
            |(tenant, needs, patience_ms, is_continuation)| Op::Enter { tenant, needs, patience_ms, is_continuation }
        ),
        3 => (0usize..3, 0u64..1000).prop_map(|(nth, service_us)| Op::Start { nth, service_us }),
        1 => (0usize..3, 0u64..1000).prop_map(|(nth, service_us)| Op::StartWithoutWorker { nth, service_us }),
        3 => (0usize..3, proptest::collection::vec(0u32..4, 0..3))
            .prop_map(|(nth, awaited)| Op::Refuse { nth, awaited }),
        1 => (0usize..PLACES).prop_map(Op::Leave),
        1 => (0u64..30).prop_map(Op::Wait),
    ];
    proptest::collection::vec(op, 0..120)
}

/// The queue beside its model, and the outcome of every request.
struct Pair {
    queue: AdmissionQueue,
    naive: Naive,
    now: Instant,
    ids: Ids,
    n_entered: usize,
    n_gone: usize,
}

/// Ids of requests, in the order of their arrival.
#[derive(Default)]
struct Ids(u64);

impl Ids {
    fn next(&mut self) -> WaiterId {
        self.0 += 1;
        WaiterId(self.0)
    }

    /// Adds a new request to the queue, which has a place for it.
    fn enter(&mut self, queue: &mut AdmissionQueue, waiter: Waiter) -> WaiterId {
        let id = self.next();
        assert_eq!(queue.enter(id, waiter), Ok(None));
        id
    }
}

impl Pair {
    fn new() -> Self {
        let (queue, naive) = (AdmissionQueue::new(PLACES), Naive::default());
        Self { queue, naive, now: Instant::now(), ids: Ids::default(), n_entered: 0, n_gone: 0 }
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Enter { tenant, needs, patience_ms, is_continuation } => {
                let deadline = self.now + Duration::from_millis(patience_ms);
                let (id, tenant, needs) = (self.ids.next(), TenantKey(tenant), NeedsKey(needs));
                self.enter(id, Waiter { tenant, needs, deadline, is_continuation })?;
            }
            Op::Start { nth, service_us } => drop(self.start(nth, service_us)),
            Op::StartWithoutWorker { nth, service_us } => {
                if let Some((id, waiter)) = self.start(nth, service_us) {
                    self.enter(id, waiter)?;
                }
            }
            Op::Refuse { nth, awaited } => {
                let Some((id, waiter)) = self.nth_trying(nth) else { return Ok(()) };
                let awaited: Vec<_> = awaited.into_iter().map(WorkerIdx).collect();
                let old = self.naive.awaited.insert(waiter.needs.0, awaited.clone());
                let may_others_try = old.is_none_or(|old| awaited.is_empty() && !old.is_empty());
                prop_assert_eq!(self.queue.refused(id, &awaited), may_others_try);
            }
            Op::Leave(nth) => {
                let Some(&(id, _)) = self.naive.waiting.get(nth) else { return Ok(()) };
                self.naive.remove(id);
                prop_assert!(self.queue.leave(id));
                prop_assert!(!self.queue.leave(id), "a request leaves once");
                self.n_gone += 1;
            }
            Op::Wait(ms) => {
                self.now += Duration::from_millis(ms);
                let now = self.now;
                let mut expired = self.queue.expire(now);
                expired.sort_unstable();
                let late = self.naive.waiting.iter().filter(|(_, waiter)| waiter.deadline <= now);
                let mut expected: Vec<_> = late.map(|(id, _)| *id).collect();
                expected.sort_unstable();
                prop_assert_eq!(&expired, &expected, "exactly the requests whose deadline has passed");
                self.naive.waiting.retain(|(id, _)| !expected.contains(id));
                self.naive.forget();
                self.n_gone += expired.len();
            }
        }
        Ok(())
    }

    fn enter(&mut self, id: WaiterId, waiter: Waiter) -> Result<(), TestCaseError> {
        let victim = self.naive.victim(waiter.tenant);
        let is_full = !waiter.is_continuation && self.naive.new_ones().count() == PLACES;
        match self.queue.enter(id, waiter) {
            Ok(displaced) => {
                prop_assert_eq!(displaced, victim.filter(|_| is_full));
                prop_assert!(!is_full || displaced.is_some());
                displaced.map(|id| self.naive.remove(id));
                self.n_gone += usize::from(displaced.is_some());
                self.naive.enter(id, waiter);
                self.n_entered += 1;
            }
            Err(QueueFull { waiting_max }) => {
                prop_assert_eq!(waiting_max, PLACES);
                prop_assert!(is_full && victim.is_none(), "only the tenant with the most waiting requests is refused");
            }
        }
        Ok(())
    }

    fn nth_trying(&self, nth: usize) -> Option<(WaiterId, Waiter)> {
        let trying = self.naive.trying();
        let (id, _) = trying.get(nth % trying.len().max(1))?;
        self.naive.waiting.iter().find(|(waiter, _)| waiter == id).copied()
    }

    fn start(&mut self, nth: usize, service_us: u64) -> Option<(WaiterId, Waiter)> {
        let (id, waiter) = self.nth_trying(nth)?;
        self.queue.start(id, service_us);
        self.naive.start(id, service_us);
        self.n_gone += 1;
        Some((id, waiter))
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let trying = self.naive.trying();
        prop_assert_eq!(self.queue.trying(), trying.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        for (id, _) in &self.naive.waiting {
            let left = trying.iter().find(|(other, _)| other == id).and_then(|(_, left)| left.clone());
            prop_assert_eq!(self.queue.turn(*id), left);
        }
        prop_assert!(self.queue.demands.len() <= self.queue.len());
        prop_assert_eq!(self.queue.len(), self.naive.waiting.len());
        prop_assert_eq!(self.queue.is_empty(), self.naive.waiting.is_empty());
        prop_assert!(self.naive.new_ones().count() <= PLACES, "the bound");
        prop_assert_eq!(self.n_entered, self.n_gone + self.queue.len(), "no request is lost");
        prop_assert!(self.naive.waiting.iter().all(|(id, _)| self.queue.contains(*id)));
        prop_assert_eq!(self.queue.deadlines.len(), self.queue.len());
        prop_assert!(self.queue.tenants.len() <= 2 * PLACES, "the record of tenants is bounded");
        Ok(())
    }
}

proptest! {
    #[test]
    fn behaves_like_a_naive_queue(ops in ops()) {
        let mut pair = Pair::new();
        for op in ops {
            pair.apply(op)?;
            pair.check()?;
        }
    }

    #[test]
    fn waiting_tenants_get_equal_time_however_long_their_requests_take(
        services_us in proptest::collection::vec(1u64..1000, 40..200),
        n_tenants in 2u64..4,
    ) {
        let deadline = Instant::now();
        let (mut queue, mut ids) = (AdmissionQueue::new(64), Ids::default());
        let mut owner = HashMap::new();
        let mut given_us = vec![0u64; n_tenants as usize];
        for tenant in (0..n_tenants).map(TenantKey) {
            // The first tenant sends all its requests at once, the others one by one.
            for _ in 0..if tenant.0 == 0 { 20 } else { 1 } {
                owner.insert(ids.enter(&mut queue, Waiter { deadline, ..waiter(tenant.0) }), tenant);
            }
        }
        for service_us in services_us {
            let id = queue.trying()[0];
            let tenant = owner[&id];
            queue.start(id, service_us);
            given_us[tenant.0 as usize] += service_us;
            owner.insert(ids.enter(&mut queue, Waiter { deadline, ..waiter(tenant.0) }), tenant);
            let (least, most) = (given_us.iter().min(), given_us.iter().max());
            prop_assert!(most.unwrap() - least.unwrap() <= 2 * 1000, "at most twice the longest request apart: {:?}", given_us);
        }
    }
}

fn waiter(tenant: u64) -> Waiter {
    Waiter { tenant: TenantKey(tenant), needs: NeedsKey(0), deadline: Instant::now(), is_continuation: false }
}

#[test]
fn the_rest_of_a_stream_precedes_new_requests_and_takes_no_place() {
    let (mut queue, mut ids) = (AdmissionQueue::new(1), Ids::default());
    let new = ids.enter(&mut queue, waiter(0));
    let rest = Waiter { is_continuation: true, ..waiter(0) };
    let rests = [(); 2].map(|()| ids.enter(&mut queue, rest));
    assert_eq!(queue.len(), 3);
    assert_eq!(queue.enter(ids.next(), waiter(0)), Err(QueueFull { waiting_max: 1 }));
    assert_eq!(queue.trying(), [rests[0]]);
    queue.start(rests[0], 1000);
    assert!(queue.leave(rests[1]));
    assert_eq!(queue.trying(), [new]);
    assert_eq!(queue.served_us, 0, "its time was charged when the stream began");
}

#[test]
fn a_flood_displaces_itself_and_not_the_others() {
    let (mut queue, mut ids) = (AdmissionQueue::new(4), Ids::default());
    let flood = [(); 4].map(|()| ids.enter(&mut queue, waiter(0)));
    let mut enter = |tenant| queue.enter(ids.next(), waiter(tenant));
    assert_eq!(enter(0), Err(QueueFull { waiting_max: 4 }));
    assert_eq!(enter(1), Ok(Some(flood[3])), "the newest request of the tenant with the most");
    assert_eq!(enter(1), Ok(Some(flood[2])));
    assert!(enter(1).is_err(), "two each: no tenant has more");
}

#[test]
fn a_later_tenant_starts_at_the_others_tag() {
    let (mut queue, mut ids) = (AdmissionQueue::new(8), Ids::default());
    let first = [(); 3].map(|()| ids.enter(&mut queue, waiter(0)));
    queue.start(first[0], 100);
    queue.start(first[1], 100);
    let late = [(); 2].map(|()| ids.enter(&mut queue, waiter(1)));
    assert_eq!(queue.trying(), [late[0]], "its tenant has used less time");
    queue.start(late[0], 150);
    assert_eq!(queue.trying(), [first[2]], "its tenant began at the others' tag, not at zero");
}

#[test]
fn a_request_that_could_not_start_gets_its_old_place_back() {
    let (mut queue, mut ids) = (AdmissionQueue::new(8), Ids::default());
    let first = ids.enter(&mut queue, waiter(0));
    ids.enter(&mut queue, waiter(0));
    queue.start(first, 10);
    assert_eq!(queue.enter(first, waiter(0)), Ok(None));
    assert_eq!(queue.trying(), [first]);
}

#[test]
fn a_queue_without_places_accepts_no_request() {
    assert_eq!(AdmissionQueue::new(0).enter(WaiterId(0), waiter(0)), Err(QueueFull { waiting_max: 0 }));
}

#[test]
fn the_record_of_tenants_that_left_is_bounded() {
    let (mut queue, mut ids) = (AdmissionQueue::new(4), Ids::default());
    for tenant in 0..100 {
        let id = ids.enter(&mut queue, waiter(tenant));
        queue.start(id, 1000);
        assert!(queue.tenants.len() <= 4);
    }
}

#[test]
fn tenants_ahead_are_remembered_however_many_others_wait() {
    let (mut queue, mut ids) = (AdmissionQueue::new(4), Ids::default());
    for tenant in 0..4 {
        let id = ids.enter(&mut queue, waiter(tenant));
        queue.start(id, 1000);
    }
    for tenant in 10..12 {
        ids.enter(&mut queue, waiter(tenant));
    }
    let not_ahead = ids.enter(&mut queue, waiter(20));
    queue.start(not_ahead, 0);
    let mut remembered: Vec<_> = queue.tenants.keys().map(|tenant| tenant.0).collect();
    remembered.sort_unstable();
    assert_eq!(remembered, [0, 1, 2, 3, 10, 11], "four idle ones, as many as places, and those that wait");
}

#[test]
fn requests_wait_neither_for_others_workers_nor_take_them() {
    let (mut queue, mut ids) = (AdmissionQueue::new(8), Ids::default());
    let first = ids.enter(&mut queue, waiter(0));
    let same = ids.enter(&mut queue, waiter(1));
    let other = ids.enter(&mut queue, Waiter { needs: NeedsKey(1), ..waiter(2) });
    let rest = ids.enter(&mut queue, Waiter { needs: NeedsKey(2), is_continuation: true, ..waiter(0) });
    assert_eq!(queue.trying(), [rest, first, other]);
    assert_eq!(queue.turn(same), None, "the first has the same needs");
    assert_eq!(queue.turn(other), None, "it is not known which workers they need");
    for (id, workers) in [(rest, vec![0]), (first, vec![0, 1])] {
        let workers: Vec<_> = workers.into_iter().map(WorkerIdx).collect();
        assert!(queue.refused(id, &workers) && !queue.refused(id, &workers), "others may try once it has tried");
    }
    assert_eq!(queue.turn(other), Some([0, 0, 1].map(WorkerIdx).to_vec()));
    assert!(queue.refused(rest, &[]), "its workers are paused, so others may pass");
    assert_eq!(queue.turn(first), Some(Vec::new()));
    queue.start(first, 10);
    assert_eq!(queue.trying(), [rest, same, other]);
    assert_eq!(queue.turn(other), Some([0, 1].map(WorkerIdx).to_vec()), "what the first waited for");
}

#[test]
fn a_client_that_invents_needs_has_few_requests_that_try() {
    let (mut queue, mut ids) = (AdmissionQueue::new(1000), Ids::default());
    let invented: Vec<_> =
        (0..500).map(|n| ids.enter(&mut queue, Waiter { needs: NeedsKey(n), ..waiter(0) })).collect();
    let other = ids.enter(&mut queue, Waiter { needs: NeedsKey(1000), ..waiter(1) });
    assert_eq!(queue.trying(), invented[..TRYING_MAX]);
    queue.start(invented[0], 1000);
    assert_eq!(queue.trying()[0], other, "its tenant has used less time");
    queue.start(other, 2000);
    assert!(invented[1..].iter().all(|id| queue.refused(*id, &[])));
    assert_eq!(queue.trying().len(), 499, "paused ones do not count");
}
