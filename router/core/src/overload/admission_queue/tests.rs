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
}

impl Naive {
    fn n_of(&self, tenant: TenantKey) -> usize {
        self.new_ones().filter(|(_, waiter)| waiter.tenant == tenant).count()
    }

    /// Returns the requests that begin, without the rests of streams.
    fn new_ones(&self) -> impl Iterator<Item = &(WaiterId, Waiter)> {
        self.waiting.iter().filter(|(_, waiter)| !waiter.is_continuation)
    }

    fn head(&self) -> Option<WaiterId> {
        let continued = self.waiting.iter().filter(|(_, waiter)| waiter.is_continuation).map(|(id, _)| *id).min();
        if continued.is_some() {
            return continued;
        }
        let oldest = |tenant: TenantKey| self.new_ones().filter(|(_, e)| e.tenant == tenant).map(|(id, _)| *id).min();
        let tenants = self.tags.iter().filter_map(|(&tenant, &tag)| Some((tag, oldest(tenant)?)));
        tenants.min().map(|(_, id)| id)
    }

    fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let at = self.waiting.iter().position(|(waiter, _)| *waiter == id)?;
        Some(self.waiting.remove(at).1)
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
        let waiter = self.remove(id).expect("the head waits");
        if waiter.is_continuation {
            return;
        }
        let tag = self.tags.entry(waiter.tenant).or_default();
        self.served_us = *tag;
        *tag += service_us;
    }
}

#[derive(Debug, Clone)]
enum Op {
    Enter { tenant: u64, patience_ms: u64, is_continuation: bool },
    Start { service_us: u64 },
    StartWithoutWorker { service_us: u64 },
    Leave(usize),
    Wait(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0u64..4, 0u64..50, prop::bool::weighted(0.2)).prop_map(|(tenant, patience_ms, is_continuation)| {
            Op::Enter { tenant, patience_ms, is_continuation }
        }),
        3 => (0u64..1000).prop_map(|service_us| Op::Start { service_us }),
        1 => (0u64..1000).prop_map(|service_us| Op::StartWithoutWorker { service_us }),
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
            Op::Enter { tenant, patience_ms, is_continuation } => {
                let deadline = self.now + Duration::from_millis(patience_ms);
                let id = self.ids.next();
                self.enter(id, Waiter { tenant: TenantKey(tenant), deadline, is_continuation })?;
            }
            Op::Start { service_us } => drop(self.start(service_us)?),
            Op::StartWithoutWorker { service_us } => {
                if let Some((id, waiter)) = self.start(service_us)? {
                    self.enter(id, waiter)?;
                }
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

    fn start(&mut self, service_us: u64) -> Result<Option<(WaiterId, Waiter)>, TestCaseError> {
        let Some(id) = self.naive.head() else { return Ok(None) };
        let waiter = self.naive.waiting.iter().find(|(waiter, _)| *waiter == id).expect("the head waits").1;
        let other = self.naive.waiting.iter().map(|(id, _)| *id).find(|other| *other != id);
        prop_assert!(!other.is_some_and(|other| self.queue.start(other, service_us)), "only the head starts");
        prop_assert!(self.queue.start(id, service_us));
        self.naive.start(id, service_us);
        self.n_gone += 1;
        Ok(Some((id, waiter)))
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.queue.head(), self.naive.head());
        prop_assert_eq!(self.queue.len(), self.naive.waiting.len());
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
            let id = queue.head().expect("every tenant keeps waiting");
            let tenant = owner[&id];
            prop_assert!(queue.start(id, service_us));
            given_us[tenant.0 as usize] += service_us;
            owner.insert(ids.enter(&mut queue, Waiter { deadline, ..waiter(tenant.0) }), tenant);
            let (least, most) = (given_us.iter().min(), given_us.iter().max());
            prop_assert!(most.unwrap() - least.unwrap() <= 2 * 1000, "at most twice the longest request apart: {:?}", given_us);
        }
    }
}

fn waiter(tenant: u64) -> Waiter {
    Waiter { tenant: TenantKey(tenant), deadline: Instant::now(), is_continuation: false }
}

#[test]
fn the_rest_of_a_stream_precedes_new_requests_and_takes_no_place() {
    let (mut queue, mut ids) = (AdmissionQueue::new(1), Ids::default());
    let new = ids.enter(&mut queue, waiter(0));
    let rest = Waiter { is_continuation: true, ..waiter(0) };
    let rests = [(); 2].map(|()| ids.enter(&mut queue, rest));
    assert_eq!(queue.len(), 3);
    assert_eq!(queue.enter(ids.next(), waiter(0)), Err(QueueFull { waiting_max: 1 }));
    assert!(!queue.start(new, 10), "it is not at the head");
    assert!(queue.start(rests[0], 1000) && queue.leave(rests[1]));
    assert_eq!(queue.head(), Some(new));
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
    assert!(queue.start(first[0], 100));
    assert!(queue.start(first[1], 100));
    let late = [(); 2].map(|()| ids.enter(&mut queue, waiter(1)));
    assert_eq!(queue.head(), Some(late[0]), "its tenant has used less time");
    assert!(queue.start(late[0], 150));
    assert_eq!(queue.head(), Some(first[2]), "its tenant began at the others' tag, not at zero");
}

#[test]
fn a_request_that_could_not_start_gets_its_old_place_back() {
    let (mut queue, mut ids) = (AdmissionQueue::new(8), Ids::default());
    let first = ids.enter(&mut queue, waiter(0));
    ids.enter(&mut queue, waiter(0));
    assert!(queue.start(first, 10));
    assert_eq!(queue.enter(first, waiter(0)), Ok(None));
    assert_eq!(queue.head(), Some(first));
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
        assert!(queue.start(id, 1000));
        assert!(queue.tenants.len() <= 4);
    }
}
