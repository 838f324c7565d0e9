//! Tests of the queues: places after a start without success, and requests with different needs.

use std::sync::atomic::AtomicBool;

use warmpath_router_core::fleet::Unavailable;

use super::*;

fn queue() -> RequestQueue {
    RequestQueue::new(8, Arc::new(Metrics::new()))
}

const MODEL: Fingerprint = Fingerprint([1; 32]);

fn request(needs: u64, place: Option<WaiterId>) -> QueueRequest {
    let deadline = Instant::now() + Duration::from_secs(60);
    let waiter = Waiter { tenant: TenantKey(1), needs: NeedsKey(needs), deadline, is_continuation: false };
    QueueRequest { model: MODEL, waiter, admit_at: AdmitAt::AtOnce, place }
}

fn rest_of_a_stream(needs: u64) -> QueueRequest {
    let new = request(needs, None);
    QueueRequest { waiter: Waiter { is_continuation: true, ..new.waiter }, ..new }
}

/// Returns a start that succeeds once `is_free`, with the workers that the request leaves to others; until then its
/// workers are busy, or paused if there are none.
fn start_if<'a>(
    is_free: &'a AtomicBool,
    workers: &'a [u32],
) -> impl FnMut(&[WorkerIdx]) -> Result<Admitted<Vec<WorkerIdx>>, NoWorker> + 'a {
    |awaited| match is_free.load(Ordering::Relaxed) {
        true => Ok(Admitted { value: awaited.to_vec(), service_ms: 1.0 }),
        false if workers.is_empty() => {
            Err(NoWorker { pause: Some(Duration::from_secs(50)), ..NoWorker::counting([Unavailable::Full]) })
        }
        false => {
            let busy = workers.iter().copied().map(WorkerIdx).collect();
            Err(NoWorker { busy, ..NoWorker::counting([Unavailable::Busy]) })
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_enters_again_shares_its_place_with_no_other() {
    let queue = queue();
    let mut n_asked = 0;
    let second_time = |_: &[WorkerIdx]| {
        n_asked += 1;
        match n_asked > 1 {
            true => Ok(Admitted { value: (), service_ms: 1.0 }),
            false => Err(NoWorker::counting([Unavailable::Busy])),
        }
    };
    let ((), place) = queue.admit(request(0, None), second_time).await.expect("it starts");
    assert!(place.is_some(), "it has waited");

    // Its worker refuses it after the queue has become empty, and another request waits by then.
    let is_free = AtomicBool::new(false);
    let enter = |place| queue.admit(request(0, place), start_if(&is_free, &[0]));
    let free = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(queue.n_waiting(&MODEL), 2);
        is_free.store(true, Ordering::Relaxed);
    };
    let (new, again, ()) = tokio::join!(enter(None), enter(place), free);
    let (new, again) = (new.expect("it starts").1, again.expect("it starts").1);
    assert!(again == place && new > place, "{new:?} {again:?} {place:?}");
    assert_eq!(queue.n_waiting(&MODEL), 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_request_leaves_the_workers_of_a_waiting_rest_of_a_stream_to_it() {
    let queue = queue();
    let (is_free, is_free_for_rests) = (AtomicBool::new(true), AtomicBool::new(false));
    let rest = |needs, workers| queue.admit(rest_of_a_stream(needs), start_if(&is_free_for_rests, workers));
    let begin = || queue.admit(request(0, None), start_if(&is_free, &[0, 1, 2]));
    let new = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (left, _) = begin().await.expect("it starts at once");
        assert_eq!(left, [0, 1].map(WorkerIdx));
        is_free_for_rests.store(true, Ordering::Relaxed);
    };
    let (one, other, ()) = tokio::join!(rest(1, &[0]), rest(2, &[1]), new);
    assert!(one.is_ok() && other.is_ok());
    let (left, place) = begin().await.expect("it starts");
    assert_eq!((left, place), (Vec::new(), None), "nothing waits");
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_leaves_no_queue_behind() {
    let queue = RequestQueue::new(0, Arc::new(Metrics::new()));
    let never = AtomicBool::new(false);
    let refused = queue.admit(request(0, None), start_if(&never, &[0])).await;
    assert!(matches!(refused, Err(QueueRefusal::Full)));
    assert!(queue.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_with_other_workers_do_not_wait_for_each_other() {
    let queue = queue();
    let (never, is_free) = (AtomicBool::new(false), AtomicBool::new(true));
    let mut waiting = Box::pin(queue.admit(request(1, None), start_if(&never, &[0])));
    assert!(futures::poll!(&mut waiting).is_pending());
    let admitted = queue.admit(request(2, None), start_if(&is_free, &[0, 1])).await;
    assert_eq!(admitted.expect("it starts").0, [WorkerIdx(0)]);
    let mut behind = Box::pin(queue.admit(request(1, None), start_if(&is_free, &[0])));
    assert!(futures::poll!(&mut behind).is_pending(), "it waits for the first with its needs");
    drop(waiting);
    let (left, _) = behind.await.expect("it starts when the first has left");
    assert_eq!(left, []);
    assert!(queue.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_tenant_with_many_needs_take_no_turn_of_another_tenant() {
    let queue = RequestQueue::new(100, Arc::new(Metrics::new()));
    let (is_free, started) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let enter = |tenant, needs| {
        let new = request(needs, None);
        let waiter = Waiter { tenant: TenantKey(tenant), ..new.waiter };
        let (queue, is_free, started) = (&queue, &is_free, &started);
        queue.admit(QueueRequest { waiter, ..new }, move |awaited| {
            let is_next = is_free.load(Ordering::Relaxed) && started.lock().unwrap().len() < 4;
            if !is_next || awaited.contains(&WorkerIdx(0)) {
                return Err(NoWorker { busy: vec![WorkerIdx(0)], ..NoWorker::counting([Unavailable::Busy]) });
            }
            started.lock().unwrap().push(tenant);
            Ok(Admitted { value: (), service_ms: 1.0 })
        })
    };
    let mut waiting: Vec<_> = (0..50).map(|needs| Box::pin(enter(1, needs))).collect();
    waiting.extend([99, 99].map(|needs| Box::pin(enter(2, needs))));
    let all = futures::future::join_all(waiting);
    let free = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        is_free.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
        started.lock().unwrap().clone()
    };
    let started = tokio::select! {
        _ = all => unreachable!("only four start"),
        started = free => started,
    };
    assert_eq!(started.iter().filter(|tenant| **tenant == 2).count(), 2, "{started:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_pass_those_whose_workers_are_paused() {
    let queue = queue();
    let (never, is_free) = (AtomicBool::new(false), AtomicBool::new(true));
    let mut paused = Box::pin(queue.admit(rest_of_a_stream(1), start_if(&never, &[])));
    assert!(futures::poll!(&mut paused).is_pending());
    let (left, _) = queue.admit(request(2, None), start_if(&is_free, &[0])).await.expect("it starts at once");
    assert_eq!(left, []);
}
