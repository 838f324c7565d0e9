//! Streams that continue at another worker when theirs fails in the middle: fake workers that send a journal.
//!
//! Not here: what a worker replays (the worker's tests), real processes (`warmpath-tests`).

use crate::support::fake_server::Seen;
use crate::support::raw::{RawServer, Script, Step, events};
use crate::support::worker::answers::{
    End, N_TOKENS, RESPONSE_COMPLETED, RESPONSE_CREATED, RESPONSE_IN_PROGRESS, native_event, response_event,
};
use crate::support::worker::{Behaviour, FakeWorker, full};
use crate::support::{TestRouter, chat_body, eventually, header as head_of, long_text};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use serde_json::{Value, json};
use warmpath_common::ids::SlotId;
use warmpath_common::summary::Load;

const COMPLETE: Behaviour = Behaviour::Journaled(N_TOKENS, End::Close);
const WHOLE: Behaviour = Behaviour::JournaledWhole(N_TOKENS, End::Close);
const CONTINUED: &str = "warmpath_router_failovers_total{result=\"continued\"}";
const FAILED: &str = "warmpath_router_failovers_total{result=\"failed\"}";

/// Returns the events of the whole response.
fn whole() -> String {
    let events: String = (0..N_TOKENS).map(|n| format!("data: {{\"n\": {n}}}\n\n")).collect();
    events + "data: [DONE]\n\n"
}

/// Returns a stream without its comments, and the comments.
fn without_comments(text: &str) -> (String, Vec<&str>) {
    let (comments, events): (Vec<_>, Vec<_>) = text.split_inclusive("\n\n").partition(|event| event.starts_with(": "));
    (events.concat(), comments)
}

/// Workers of which the first gets the request, and the others continue in this order.
fn workers<const N: usize>(behaviours: [Behaviour; N]) -> [FakeWorker; N] {
    let mut uid = 0;
    behaviours.map(|behaviour| {
        uid += 1;
        let worker = FakeWorker::start(uid);
        worker.with(|script| script.behaviour = behaviour);
        worker
    })
}

/// Starts a router; the earlier a worker, the more of the prompt it has.
async fn router(workers: &[&FakeWorker], flags: &[&str]) -> TestRouter {
    let router = TestRouter::ready(workers, flags).await;
    for (idx, worker) in workers.iter().enumerate() {
        worker.hold(&long_text("failover"), [None, Some(8), Some(2)][idx], 0);
    }
    let has_blocks = |page: &Value, idx: usize| page["workers"][idx]["blocks"].as_u64() > Some(0);
    eventually("the router knows the blocks", || async {
        let page = router.fleet().await;
        (0..workers.len()).all(|idx| has_blocks(&page, idx))
    })
    .await;
    router
}

/// Begins a stream, and returns it with its text up to this part.
async fn begun(router: &TestRouter, part: &str) -> (impl Stream<Item = reqwest::Result<Bytes>> + Unpin, String) {
    let mut stream = router.chat_stream(&long_text("failover")).await.bytes_stream();
    let mut text = String::new();
    while !text.contains(part) {
        text.push_str(&String::from_utf8_lossy(&stream.next().await.expect("more").expect("it is whole")));
    }
    (stream, text)
}

/// Returns the whole text of a stream that has begun with this one.
async fn rest(mut stream: impl Stream<Item = reqwest::Result<Bytes>> + Unpin, mut text: String) -> String {
    while let Some(piece) = stream.next().await {
        text.push_str(&String::from_utf8_lossy(&piece.expect("the stream ends in order")));
    }
    text
}

/// Makes both workers full.
async fn fill(router: &TestRouter, workers: [&FakeWorker; 2]) {
    for worker in workers {
        worker.update(Vec::new(), Some(full(10_000)));
    }
    let is_full = |page: &Value, idx: usize| page["workers"][idx]["load"]["queued_prefill_tokens"] == 10_000;
    eventually("both are full", || async {
        let page = router.fleet().await;
        is_full(&page, 0) && is_full(&page, 1)
    })
    .await;
}

/// Frees one slot of a full worker, without which no request could start soon.
fn free_a_slot(worker: &FakeWorker) {
    let one_slot = Load { busy_slots: (0..3).map(SlotId).collect(), n_decoding: 3, ..full(10_000) };
    worker.update(Vec::new(), Some(one_slot));
}

async fn ask(router: &TestRouter) -> String {
    let response = router.chat_stream(&long_text("failover")).await;
    assert_eq!(response.status(), 200);
    response.text().await.expect("the stream ends in order")
}

fn header<'a>(seen: &'a Seen, name: &str) -> Option<&'a str> {
    seen.headers.get(name).map(|value| value.to_str().expect("text"))
}

/// Returns the last request that a worker has got.
fn last_seen(worker: &FakeWorker) -> Seen {
    worker.seen().pop().expect("it was asked")
}

/// Asserts that the second request is the first one with so many lines of a journal, and checks the client's comment.
fn assert_continues((before, after): (&Seen, &Seen), n_lines: usize, context: &str) {
    let lines: String = (0..n_lines).map(|n| format!("0 {n}\n")).collect();
    assert_eq!(after.body, [&before.body[..], lines.as_bytes()].concat(), "{context}");
    assert_eq!(header(after, "x-warmpath-journal-bytes"), Some(lines.len().to_string().as_str()));
    assert_eq!(header(after, "x-warmpath-cached-tokens"), Some("32"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_continues_at_another_worker_wherever_its_own_fails() {
    let anywhere = [1, 3, N_TOKENS - 1].map(|n_writes| (n_writes, End::Break));
    for (n_writes, end) in anywhere.into_iter().chain([(2, End::Close), (3, End::Error), (4, End::Hang)]) {
        let [first, second] = workers([Behaviour::Journaled(n_writes, end), COMPLETE]);
        let router = router(&[&first, &second], &["--idle-timeout", "0.4"]).await;
        let text = ask(&router).await;
        let (events, comments) = without_comments(&text);
        assert_eq!(events, whole(), "{end:?} {n_writes}");
        assert_eq!(router.metric(CONTINUED).await, 1.0, "{end:?} {n_writes}: {text}");
        assert_eq!(comments.last(), Some(&": x-warmpath-failovers: 1; exact\n\n"));
        let (before, after) = (last_seen(&first), last_seen(&second));
        assert_continues((&before, &after), n_writes, &format!("{end:?}"));
        assert_eq!(header(&after, "x-warmpath-journal"), header(&before, "x-warmpath-journal"));
        assert!(header(&before, "x-warmpath-journal").is_some_and(|identity| identity.len() > 40));
        assert_eq!(router.metric("warmpath_router_broken_responses_total").await, 0.0);
        if end == End::Hang {
            eventually("the hung worker sees its client leave", || async { first.n_left() == 1 }).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_continues_as_often_as_it_may_and_no_more() {
    let breaks = Behaviour::Journaled(2, End::Break);
    for (flags, n_workers_asked) in [(&[][..], 3), (&["--failover-max", "1"][..], 2), (&["--failover-max", "0"][..], 1)]
    {
        let [first, second, third] = workers([breaks, breaks, COMPLETE]);
        let all = [&first, &second, &third];
        let router = router(&all, flags).await;
        let text = ask(&router).await;
        let (events, comments) = without_comments(&text);
        assert_eq!(all.iter().map(|worker| worker.seen().len()).sum::<usize>(), n_workers_asked, "{text}");
        let n_failovers = n_workers_asked - 1;
        assert_eq!(router.metric(CONTINUED).await, n_failovers as f64);
        if n_failovers == 2 {
            assert_eq!(events, whole());
            assert_eq!(comments.last(), Some(&": x-warmpath-failovers: 2; exact\n\n"));
        } else {
            assert!(events.contains("worker_failed") && !events.contains("[DONE]"), "{text}");
            assert_eq!(router.metric("warmpath_router_broken_responses_total").await, 1.0);
        }
        let asks_for_journal = header(&first.seen()[0], "x-warmpath-journal").is_some();
        assert_eq!(asks_for_journal, n_failovers > 0);
        assert!(!text.contains(":wp") || n_failovers == 0, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_has_been_restarted_continues_a_stream_that_it_failed_before() {
    let hangs = Behaviour::Journaled(2, End::Hang);
    let [mut first, mut second] = workers([hangs, hangs]);
    let router = router(&[&first, &second], &[]).await;
    let (mut stream, mut text) = begun(&router, "\"n\": 1").await;
    first.kill();
    while !text.contains("\"n\": 3") {
        text.push_str(&String::from_utf8_lossy(&stream.next().await.expect("more").expect("it is whole")));
    }
    eventually("its loss is noticed", || async { router.state_of(0).await != "ready" }).await;
    first.with(|script| script.behaviour = COMPLETE);
    first.revive();
    eventually("it is back", || async { router.state_of(0).await == "ready" }).await;
    second.kill();
    let text = rest(stream, text).await;
    let (events, comments) = without_comments(&text);
    assert_eq!(events, whole());
    assert_eq!(comments.last(), Some(&": x-warmpath-failovers: 2; exact\n\n"));
    assert_eq!((first.seen().len(), second.seen().len()), (2, 1));
    assert_eq!(router.metric("warmpath_router_broken_responses_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_which_some_choices_have_ended_continues_with_the_others() {
    let half = N_TOKENS / 2;
    let two_prompts = json!({"prompt": ["a", "b"], "stream": true});
    let two_choices = json!({"prompt": "a", "n_cmpl": 2, "stream": true});
    for (body, n_writes, end) in [
        (&two_prompts, half, End::Close),
        (&two_prompts, half, End::Break),
        (&two_choices, half, End::Close),
        (&two_choices, half + 1, End::Close),
        (&two_choices, half - 1, End::Break),
    ] {
        // Any of them may get the request first.
        let breaks = Behaviour::Journaled(n_writes, end);
        let [first, second, third] = workers([breaks, breaks, breaks]);
        let router = router(&[&first, &second, &third], &[]).await;
        let response = router.post("/completion", body.to_string()).await;
        let text = response.text().await.expect("the stream ends in order");
        let events: String = (0..N_TOKENS).map(native_event).collect();
        assert_eq!(without_comments(&text).0, events, "{n_writes} {end:?}: {body}");
        let n_failovers = N_TOKENS.div_ceil(n_writes) - 1;
        assert_eq!(router.metric(CONTINUED).await, n_failovers as f64, "{n_writes} {end:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keep_alive_event_of_a_response_is_no_content_and_follows_no_item_at_another_worker() {
    let opening = [RESPONSE_CREATED, RESPONSE_IN_PROGRESS, RESPONSE_IN_PROGRESS].concat();
    let items: String = (0..N_TOKENS).map(response_event).collect();
    let whole = [opening.as_str(), &items, RESPONSE_COMPLETED].concat();
    // The first worker fails before the first item, or behind it.
    for n_writes in [0, 2] {
        let [first, second] = workers([Behaviour::Journaled(n_writes, End::Break), COMPLETE]);
        let router = router(&[&first, &second], &[]).await;
        let body = json!({"input": long_text("failover"), "stream": true});
        let response = router.post("/v1/responses", body.to_string()).await;
        let text = response.text().await.expect("the stream ends in order");
        assert_eq!(without_comments(&text).0, whole, "{n_writes}: {text}");
        assert_eq!(router.metric(CONTINUED).await, 1.0, "{n_writes}: {text}");
        assert_continues((&last_seen(&first), &last_seen(&second)), n_writes, "a response");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_continue_a_stream_is_skipped() {
    let breaks = Behaviour::Journaled(2, End::Break);
    let [first, second, third] = workers([breaks, Behaviour::Refuse(503), COMPLETE]);
    let all = [&first, &second, &third];
    let router = router(&all, &["--retry-budget", "1"]).await;
    let text = ask(&router).await;
    assert_eq!(without_comments(&text).0, whole());
    assert_eq!(third.seen().len(), 1);
    assert_eq!(router.metric(CONTINUED).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_another_worker_a_stream_ends_with_the_worker_s_error_or_the_router_s() {
    for (end, says) in [(End::Error, "my own words"), (End::Close, "worker_failed"), (End::Break, "worker_failed")] {
        let [only] = workers([Behaviour::Journaled(3, end)]);
        let router = router(&[&only], &[]).await;
        let text = ask(&router).await;
        let (events, _) = without_comments(&text);
        assert!(
            events.starts_with("data: {\"n\": 0}\n\ndata: {\"n\": 1}\n\ndata: {\"n\": 2}\n\ndata: {\"error\""),
            "{text}"
        );
        assert!(events.contains(says) && !text.contains(":wp") && !text.contains("half"), "{end:?}: {text}");
        assert_eq!(only.seen().len(), 1);
        assert_eq!(router.metric(FAILED).await, 1.0);
        assert_eq!(router.metric("warmpath_router_broken_responses_total").await, 1.0);
    }
    // The next worker refuses the journal.
    let [first, second] = workers([Behaviour::Journaled(3, End::Break), Behaviour::Refuse(400)]);
    let router = router(&[&first, &second], &[]).await;
    let text = ask(&router).await;
    assert!(text.contains("worker_failed") && !text.contains("scripted"), "{text}");
    assert_eq!(second.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_response_continues_at_another_worker_wherever_its_own_fails() {
    let anywhere = [1, 3, N_TOKENS - 1].map(|n_lines| (n_lines, End::Break));
    for (n_lines, end) in anywhere.into_iter().chain([(2, End::Close), (3, End::Error), (4, End::Hang)]) {
        let [first, second] = workers([Behaviour::JournaledWhole(n_lines, end), WHOLE]);
        let router = router(&[&first, &second], &["--idle-timeout", "0.4"]).await;
        let response = router.chat(&long_text("failover")).await;
        assert_eq!(
            (response.status().as_u16(), head_of(&response, "content-type").as_str()),
            (200, "application/json")
        );
        assert_eq!(head_of(&response, "x-warmpath-failovers"), "1; exact", "{end:?} {n_lines}");
        assert_eq!(head_of(&response, "x-warmpath-worker"), "0000000000000002");
        assert_eq!(head_of(&response, "x-warmpath-cached-tokens"), "32", "the first worker's, as in the usage");
        assert_eq!(head_of(&response, "x-warmpath-journal"), "");
        assert_eq!(response.text().await.expect("text"), "{\"answer\": 42}");
        assert_eq!(router.metric(CONTINUED).await, 1.0);
        let (before, after) = (last_seen(&first), last_seen(&second));
        assert_continues((&before, &after), n_lines, &format!("{end:?}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unstreamed_response_s_journal_grows_from_worker_to_worker() {
    let breaks = Behaviour::JournaledWhole(2, End::Break);
    let [first, second, third] = workers([breaks, breaks, WHOLE]);
    let router = router(&[&first, &second, &third], &[]).await;
    let response = router.chat(&long_text("failover")).await;
    assert_eq!(head_of(&response, "x-warmpath-failovers"), "2; exact");
    assert_eq!(response.text().await.expect("text"), "{\"answer\": 42}");
    let seen = third.seen();
    assert!(seen[0].body.ends_with(b"0 0\n0 1\n0 2\n0 3\n"), "{:?}", seen[0].body);
    // A worker that cannot take the journal is passed over.
    for refusal in [400, 503] {
        let [first, second, third] = workers([breaks, Behaviour::Refuse(refusal), WHOLE]);
        let router = self::router(&[&first, &second, &third], &[]).await;
        let response = router.chat(&long_text("failover")).await;
        assert_eq!((response.status().as_u16(), second.seen().len()), (200, 1), "{refusal}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_another_worker_a_whole_response_ends_with_the_worker_s_error_or_the_router_s() {
    for (end, status, says) in [(End::Error, 503, "my own words"), (End::Break, 502, "worker_failed")] {
        let [only] = workers([Behaviour::JournaledWhole(3, end)]);
        let router = router(&[&only], &[]).await;
        let response = router.chat(&long_text("failover")).await;
        assert_eq!((response.status().as_u16(), head_of(&response, "x-warmpath-failovers").as_str()), (status, ""));
        let text = response.text().await.expect("text");
        assert!(text.contains(says) && !text.contains(":wp"), "{text}");
        assert_eq!(router.metric(FAILED).await, 1.0);
    }
    let [first, second] = workers([Behaviour::JournaledWhole(3, End::Break), WHOLE]);
    let router = router(&[&first, &second], &["--failover-max", "0"]).await;
    let response = router.chat(&long_text("failover")).await;
    assert_eq!(header(&first.seen()[0], "x-warmpath-journal"), None);
    drop(response);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_server_starts_an_unstreamed_response_again() {
    let [first] = workers([Behaviour::JournaledWhole(3, End::Break)]);
    first.with(|script| script.summary.snapshot.model.names = vec!["raw".to_owned()]);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n".to_owned();
    let stock = RawServer::start(Script { head, steps: vec![Step::Send(b"{\"answer\": 9}".to_vec())] }).await;
    let router = TestRouter::ready_for(&[first.url(), stock.flag()], &[]).await;
    first.hold(&long_text("failover"), None, 0);
    eventually("a response was begun by the worker", || async {
        let n_seen = first.seen().len();
        let text = router.chat(&long_text("failover")).await.text().await.expect("text");
        assert_eq!(text, "{\"answer\": 9}");
        first.seen().len() > n_seen
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_server_continues_no_stream() {
    let [first] = workers([Behaviour::Journaled(3, End::Break)]);
    first.with(|script| script.summary.snapshot.model.names = vec!["raw".to_owned()]);
    let stock = RawServer::start(events(&["data: {\"n\": 9}\n\n", "data: [DONE]\n\n"])).await;
    let router = TestRouter::ready_for(&[first.url(), stock.flag()], &[]).await;
    first.hold(&long_text("failover"), None, 0);
    eventually("a stream came from the worker", || async {
        let text = ask(&router).await;
        assert!(!(text.contains("\"n\": 0") && text.contains("\"n\": 9")), "{text}");
        text.contains("\"n\": 0")
    })
    .await;
    // It does answer whole requests for the same model.
    first.with(|script| script.behaviour = Behaviour::Refuse(503));
    assert_eq!(without_comments(&ask(&router).await).0, "data: {\"n\": 9}\n\ndata: [DONE]\n\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_its_stream_changes_workers_frees_the_other() {
    let [first, second] = workers([Behaviour::Journaled(2, End::Break), Behaviour::Silent]);
    let router = router(&[&first, &second], &[]).await;
    let (stream, _) = begun(&router, ": the answer goes on").await;
    eventually("the second worker is asked", || async { second.seen().len() == 1 }).await;
    drop(stream);
    eventually("it sees the client leave", || async { second.n_left() == 1 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuation_goes_before_the_requests_that_wait() {
    let [mut first, second] = workers([Behaviour::Journaled(2, End::Hang), COMPLETE]);
    let router = router(&[&first, &second], &[]).await;
    let (stream, text) = begun(&router, "\"n\": 1").await;
    fill(&router, [&first, &second]).await;
    let new = router.client.post(router.url("/v1/chat/completions")).body(chat_body("hello", false));
    let new = tokio::spawn(async move { new.send().await });
    let waiting = async |n: f64| router.metric("warmpath_router_queue_requests").await == n;
    eventually("the new request waits", || waiting(1.0)).await;
    first.kill();
    eventually("the rest of the stream waits, too", || waiting(2.0)).await;
    free_a_slot(&second);
    assert_eq!(without_comments(&rest(stream, text).await).0, whole());
    assert!(header(&second.seen()[0], "x-warmpath-journal-bytes").is_some(), "the new request came first");
    new.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuation_waits_for_longer_than_a_new_request() {
    let [mut first, second] = workers([Behaviour::Journaled(2, End::Hang), COMPLETE]);
    let router = router(&[&first, &second], &["--queue-timeout", "0.2"]).await;
    let (stream, text) = begun(&router, "\"n\": 1").await;
    fill(&router, [&first, &second]).await;
    first.kill();
    let waiting = async |n: f64| router.metric("warmpath_router_queue_requests").await == n;
    eventually("the rest of the stream waits", || waiting(1.0)).await;
    // By the time that a later request is sent away, the stream has waited for longer than that.
    assert_eq!(router.chat("hello").await.status(), 429);
    assert!(waiting(1.0).await, "the rest of the stream waits on");
    free_a_slot(&second);
    assert_eq!(without_comments(&rest(stream, text).await).0, whole());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_client_asks_for_a_journal_or_sends_one() {
    let [worker] = workers([Behaviour::Answer]);
    let router = router(&[&worker], &["--failover-max", "0"]).await;
    let request = router.client.post(router.url("/v1/chat/completions"));
    let request = request.header("x-warmpath-journal", "0123456789abcdef0123456789abcdef.1");
    let request = request.header("x-warmpath-journal-bytes", "4").header("x-warmpath-cached-tokens", "7");
    let response = request.body(chat_body("hello", true)).send().await.expect("the router answers");
    assert_eq!(response.status(), 200);
    let seen = worker.seen().pop().expect("it was asked");
    for name in ["x-warmpath-journal", "x-warmpath-journal-bytes", "x-warmpath-cached-tokens"] {
        assert_eq!(header(&seen, name), None, "{name}");
    }
}
