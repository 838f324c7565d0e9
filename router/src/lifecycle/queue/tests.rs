//! Tests of the queues: places after a start without success, and requests that can use different workers.

use std::sync::atomic::AtomicBool;

use warmpath_router_core::fleet::Unavailable;

use super::*;

fn queue() -> RequestQueue {
    RequestQueue::new(8, Arc::new(Metrics::new()))
}

fn key(usable: &[u32]) -> QueueKey {
    QueueKey { model: Fingerprint([1; 32]), model_name: None, usable: usable.iter().copied().map(WorkerIdx).collect() }
}

fn request(is_continuation: bool, place: Option<WaiterId>) -> QueueRequest {
    let deadline = Instant::now() + Duration::from_secs(60);
    let waiter = Waiter { tenant: TenantKey(1), deadline, is_continuation };
    QueueRequest { waiter, admit_at: AdmitAt::AtOnce, place }
}

fn busy() -> NoWorker {
    NoWorker::counting([Unavailable::Busy])
}

/// Returns a start that succeeds once `is_free`, with the workers that the request was permitted to use.
fn start_if(
    is_free: &AtomicBool,
) -> impl FnMut(Permitted<'_>) -> Result<Admitted<Option<Vec<WorkerIdx>>>, NoWorker> + '_ {
    |permitted| match is_free.load(Ordering::Relaxed) {
        true => Ok(Admitted { value: permitted.map(<[_]>::to_vec), service_ms: 1.0 }),
        false => Err(busy()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_enters_again_shares_its_place_with_no_other() {
    let (queue, key) = (queue(), key(&[0, 1]));
    let mut n_asked = 0;
    let second_time = |_: Permitted<'_>| {
        n_asked += 1;
        if n_asked > 1 { Ok(Admitted { value: (), service_ms: 1.0 }) } else { Err(busy()) }
    };
    let ((), place) = queue.admit(request(false, None), || key.clone(), second_time).await.expect("it starts");
    assert!(place.is_some(), "it has waited");

    // Its worker refuses it after the queue has become empty, and another request waits by then.
    let is_free = AtomicBool::new(false);
    let enter = |place| queue.admit(request(false, place), || key.clone(), start_if(&is_free));
    let free = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(queue.n_waiting(&key.model), 2);
        is_free.store(true, Ordering::Relaxed);
    };
    let (new, again, ()) = tokio::join!(enter(None), enter(place), free);
    let (new, again) = (new.expect("it starts").1, again.expect("it starts").1);
    assert!(again == place && new > place, "{new:?} {again:?} {place:?}");
    assert_eq!(queue.n_waiting(&key.model), 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_request_passes_the_rest_of_a_stream_only_at_workers_that_cannot_continue_it() {
    let (queue, plain) = (queue(), key(&[0, 1, 2]));
    let (is_free, is_free_for_rests) = (AtomicBool::new(true), AtomicBool::new(false));
    let rest = |key: QueueKey| queue.admit(request(true, None), || key, start_if(&is_free_for_rests));
    let begin = || queue.admit(request(false, None), || plain.clone(), start_if(&is_free));
    let new = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (permitted, _) = begin().await.expect("it starts at once");
        assert_eq!(permitted, Some(vec![WorkerIdx(2)]));
        is_free_for_rests.store(true, Ordering::Relaxed);
    };
    let (one, other, ()) = tokio::join!(rest(key(&[0])), rest(key(&[1])), new);
    for rest in [one, other] {
        assert_eq!(rest.expect("it starts").0, None, "nothing precedes it");
    }
    let (permitted, place) = begin().await.expect("it starts");
    assert_eq!((permitted, place), (None, None), "nothing waits");
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_leaves_no_queue_behind() {
    let queue = RequestQueue::new(0, Arc::new(Metrics::new()));
    let (key, never) = (key(&[0]), AtomicBool::new(false));
    let refused = queue.admit(request(false, None), || key, start_if(&never)).await;
    assert!(matches!(refused, Err(QueueRefusal::Full)));
    assert!(queue.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_with_other_workers_do_not_wait_for_each_other() {
    let (queue, plain, tried) = (queue(), key(&[0, 1]), key(&[0]));
    let named = QueueKey { model_name: Some("other".to_owned()), ..key(&[0, 1]) };
    let (never, is_free) = (AtomicBool::new(false), AtomicBool::new(true));
    let mut waiting = Box::pin(queue.admit(request(false, None), || tried, start_if(&never)));
    assert!(futures::poll!(&mut waiting).is_pending());
    for key in [&plain, &named] {
        let admitted = queue.admit(request(false, None), || key.clone(), start_if(&is_free));
        let (permitted, _) = admitted.await.expect("it starts");
        assert_eq!(permitted, None);
    }
    assert_eq!(queue.n_waiting(&plain.model), 1);
    drop(waiting);
    assert_eq!(queue.n_waiting(&plain.model), 0);
}
