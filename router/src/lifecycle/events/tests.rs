//! Tests of an event stream that is cut anywhere, breaks, floods or falls silent.

use std::time::Duration;

use futures::Stream;
use proptest::prelude::*;
use warmpath_common::journal::LINE_START;

use super::*;

const IDLE: Duration = Duration::from_secs(300);
const RESPONSE: Duration = Duration::from_secs(600);

/// End of a scripted connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Close {
    Clean,
    Broken,
}

fn events(pieces: impl Stream<Item = Result<Bytes, WorkerFailure>> + Send + 'static) -> Events {
    Events::new(pieces.fuse().boxed(), EndMark::Done, Instant::now() + RESPONSE, IDLE)
}

fn scripted(pieces: Vec<Bytes>, close: Close) -> Events {
    let failure = (close == Close::Broken).then_some(Err(WorkerFailure::Broken));
    events(futures::stream::iter(pieces.into_iter().map(Ok).chain(failure)))
}

/// Returns everything that passes, and how it ends; further reads after the end give nothing new.
async fn passed(mut events: Events) -> (Vec<Bytes>, Result<(), WorkerFailure>) {
    let mut all = Vec::new();
    loop {
        match events.next().await {
            Some(Ok(passed)) => all.push(passed.bytes),
            Some(Err(failure)) => return (all, Err(failure)),
            None => {
                assert!(events.next().await.is_none(), "nothing follows the end");
                return (all, Ok(()));
            }
        }
    }
}

/// Returns the data of an event, given its lines; white space around it is ignored.
fn data_of(event: &str) -> String {
    let lines: Vec<_> = event.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    lines.join("\n").trim().to_owned()
}

fn json_of(event: &str) -> Option<serde_json::Value> {
    serde_json::from_str(&data_of(event)).ok()
}

fn ends_answer(event: &str) -> bool {
    data_of(event) == "[DONE]" || json_of(event).is_some_and(|object| !object["error"].is_null())
}

/// Returns the expected output of a text and the expected end of its stream, by a naive reading of its lines.
fn naive(text: &str, close: Close) -> (String, Result<(), WorkerFailure>) {
    let (mut whole, mut event, mut is_over, mut at) = (0, String::new(), false, 0);
    while let Some(len) = text[at..].find(['\n', '\r']) {
        let line = &text[at..at + len];
        at += len + if text[at + len..].starts_with("\r\n") { 2 } else { 1 };
        if line.is_empty() {
            is_over |= ends_answer(&event);
            event.clear();
        } else if !line.starts_with(':') {
            event.push_str(line);
            event.push('\n');
        }
        if event.is_empty() {
            whole = at;
        }
    }
    let (passes, rest) = text.split_at(whole);
    event.push_str(&text[at..]);
    let is_whole = data_of(&event) == "[DONE]" || json_of(&event).is_some();
    if close == Close::Clean && !rest.is_empty() && is_whole && (is_over || ends_answer(&event)) {
        return (format!("{text}\n\n"), Ok(()));
    }
    (passes.to_owned(), if is_over { Ok(()) } else { Err(WorkerFailure::Broken) })
}

proptest! {
    #[test]
    fn clients_get_complete_events_and_an_error_wherever_the_stream_is_cut(
        lines in prop::collection::vec(
            prop_oneof![
                4 => Just("data: {\"n\": 1}"),
                2 => Just(""),
                1 => Just(": ping"),
                1 => Just("data: [DONE]"),
                1 => Just("data: {\"error\": 1}"),
                1 => Just("event: x"),
            ],
            0..10,
        ),
        ending in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
        gaps in prop::bool::ANY,
        n_cut in 0_usize..12,
        cuts in prop::collection::vec(1_usize..30, 1..20),
        close in prop_oneof![Just(Close::Clean), Just(Close::Broken)],
    ) {
        // With gaps most lines are separate events.
        let gap = if gaps { ending } else { "" };
        let mut text: String = lines.iter().map(|line| format!("{line}{ending}{gap}")).collect();
        text.truncate(text.len().saturating_sub(n_cut));
        let (mut pieces, mut rest) = (Vec::new(), Bytes::from(text.clone()));
        for len in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            pieces.push(rest.split_to((*len).min(rest.len())));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (given, end) = runtime.block_on(passed(scripted(pieces, close)));
        let (expected, expected_end) = naive(&text, close);
        prop_assert_eq!((String::from_utf8(given.concat()).expect("text"), end), (expected, expected_end), "{:?}", text);
    }
}

#[tokio::test]
async fn whole_events_pass_at_once_and_without_a_copy() {
    let piece = Bytes::from_static(b"data: 1\n\ndata: 2\n\ndata: half");
    let rest = Bytes::from_static(b" an event\n\ndata: [DONE]\n\n");
    let mut events = scripted(vec![piece.clone(), rest], Close::Clean);
    let first = events.next().await.expect("events").expect("they are whole").bytes;
    assert_eq!(first.as_ptr(), piece.as_ptr());
    assert_eq!(first, "data: 1\n\ndata: 2\n\n");
    let (given, end) = passed(events).await;
    assert_eq!((given.concat(), end), (b"data: half an event\n\ndata: [DONE]\n\n".to_vec(), Ok(())));
}

#[tokio::test]
async fn an_event_that_is_too_long_to_be_held_back_passes_in_parts() {
    let long = format!("data: {}", "x".repeat(EVENT_HELD_BYTES_MAX));
    let pieces = |end: &'static str| vec![long.clone().into(), "y".into(), Bytes::from_static(end.as_bytes())];
    let mut events = scripted(pieces("\n\ndata: [DONE]\n\n"), Close::Clean);
    events.next().await.expect("a part").expect("it is whole");
    assert!(events.is_within_event());
    let (given, end) = passed(events).await;
    assert_eq!((given.concat(), end), (b"y\n\ndata: [DONE]\n\n".to_vec(), Ok(())));

    for close in [Close::Clean, Close::Broken] {
        let mut events = scripted(pieces("z"), close);
        while let Some(Ok(_)) = events.next().await {}
        assert!(events.is_within_event(), "no event can follow it");
    }
}

/// Returns endless comments.
fn comments() -> impl Stream<Item = Result<Bytes, WorkerFailure>> + Send {
    futures::stream::repeat(Bytes::from_static(b": ping\n\n")).then(async |comment| {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(comment)
    })
}

/// Checks that these events, followed by endless comments, end with a timeout.
async fn check_silence(opening: &'static str, mark: EndMark, patience: (Duration, Duration)) {
    let opening = futures::stream::once(async move { Ok(Bytes::from_static(opening.as_bytes())) });
    let pieces = opening.chain(comments()).boxed();
    let (given, end) = passed(Events::new(pieces, mark, Instant::now() + patience.0, patience.1)).await;
    assert_eq!(end, Err(WorkerFailure::Timeout), "{} pieces passed", given.len());
}

#[tokio::test]
async fn comments_do_not_keep_a_stream_alive() {
    let (short, never) = (Duration::from_millis(30), Duration::from_secs(100_000));
    check_silence(": first\n\n", EndMark::Done, (short, never)).await;
    check_silence("data: 1\n\n", EndMark::Done, (never, short)).await;
    check_silence("data: {\"choices\": []}\n\n", EndMark::Done, (never, short)).await;
    let ping = "event: ping\ndata: {}\n\n";
    check_silence(ping, EndMark::MessageStop, (short, never)).await;
    let delta = "event: content_block_delta\ndata: {\"delta\": {\"text\": \"a\"}}\n\n";
    check_silence(delta, EndMark::MessageStop, (never, short)).await;
    // An opening event is not a token: the first token may take as long as the beginning of a response.
    check_silence("event: message_start\ndata: {}\n\n", EndMark::MessageStop, (short, never)).await;
    check_silence("event: response.created\ndata: {}\n\n", EndMark::Response, (short, never)).await;
}

#[tokio::test]
async fn half_an_event_does_not_keep_a_stream_alive() {
    let half = futures::stream::repeat(Bytes::from_static(b"x")).then(async |part| {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(part)
    });
    let deadline = Instant::now() + Duration::from_millis(30);
    let (given, end) = passed(Events::new(half.boxed(), EndMark::Done, deadline, IDLE)).await;
    assert_eq!((given.len(), end), (0, Err(WorkerFailure::Timeout)));
}

#[tokio::test]
async fn a_flood_of_comments_is_silence_too() {
    let flood = futures::stream::repeat_with(|| Ok(Bytes::from_static(b": ping\n\n"))).boxed();
    let (_, end) = passed(Events::new(flood, EndMark::Done, Instant::now() + Duration::from_millis(5), IDLE)).await;
    assert_eq!(end, Err(WorkerFailure::Timeout));
}

#[tokio::test]
async fn events_that_the_journal_covers_are_passed_on_before_a_timeout() {
    let write = |events: &str| format!("{events}{LINE_START}0 5\n");
    let together = Bytes::from([write(": ping\n\n"), write("data: 1\n\n")].concat());
    let pieces = futures::stream::iter([Ok(together)]).chain(futures::stream::pending()).boxed();
    let mut events = Events::new(pieces, EndMark::Done, Instant::now(), IDLE).with_journal(Vec::new(), 0);
    let mut given = Vec::new();
    for _ in 0..2 {
        given.extend(events.next().await.expect("there is more").expect("it has arrived").bytes);
    }
    assert_eq!(given, b": ping\n\ndata: 1\n\n");
    assert_eq!(events.take_lines(), Some((b"0 5\n0 5\n".to_vec(), 0)));
}
