//! Streams of stock servers that are empty, cut off, encoded, endless or not ended as their dialect requires: clients
//! get whole events and the true end.

use crate::support::raw::{RawServer, Script, Step, events};
use crate::support::{TestRouter, error_of, eventually, header};
use futures::StreamExt;
use serde_json::{Value, json};

/// Each endpoint that streams, with the end of its streams, and an event before that.
const DIALECTS: [(&str, &str, &str); 7] = [
    ("/v1/chat/completions", DONE, "data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"a\"}}]}\n\n"),
    ("/v1/completions", DONE, "data: {\"choices\": [{\"index\": 0, \"text\": \"a\"}]}\n\n"),
    ("/completion", STOP, "data: {\"index\": 0, \"content\": \"a\", \"stop\": false}\n\n"),
    ("/completions", STOP, "data: {\"index\": 0, \"content\": \"a\", \"stop\": false}\n\n"),
    ("/infill", STOP, "data: {\"content\": \"a\", \"stop\": false}\n\n"),
    (
        "/v1/messages",
        "event: message_stop\ndata: {\"type\": \"message_stop\"}\n\n",
        "event: content_block_delta\ndata: {\"type\": \"content_block_delta\", \"delta\": {\"text\": \"a\"}}\n\n",
    ),
    (
        "/v1/responses",
        "event: response.completed\ndata: {\"type\": \"response.completed\", \"response\": {\"error\": null}}\n\n",
        "event: response.output_text.delta\ndata: {\"type\": \"response.output_text.delta\", \"delta\": \"a\"}\n\n",
    ),
];

/// Events with which servers open the streams of these endpoints, before the first part of a response.
const OPENINGS: [&[&str]; 7] = [
    &[
        "data: {\"choices\": [{\"index\": 0, \"delta\": {\"role\": \"assistant\", \"content\": null}}]}\n\n",
        "data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"\"}, \"finish_reason\": null}]}\n\n",
        "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 9}}\n\n",
    ],
    &["data: {\"choices\": [{\"index\": 0, \"text\": \"\", \"finish_reason\": null}]}\n\n"],
    &["data: {\"index\": 0, \"content\": \"\", \"stop\": false}\n\n"],
    &["data: {\"index\": 0, \"content\": \"\", \"stop\": false}\n\n"],
    &["data: {\"content\": \"\", \"stop\": false}\n\n"],
    &[
        "event: message_start\ndata: {\"type\": \"message_start\", \"message\": {\"id\": \"m\", \"content\": []}}\n\n",
        "event: ping\ndata: {\"type\": \"ping\"}\n\n",
        "event: content_block_start\ndata: {\"content_block\": {\"type\": \"text\", \"text\": \"\"}}\n\n",
    ],
    &[
        "event: response.created\ndata: {\"type\": \"response.created\", \"response\": {\"id\": \"r\"}}\n\n",
        "event: response.in_progress\ndata: {\"type\": \"response.in_progress\", \"response\": {\"id\": \"r\"}}\n\n",
        "event: response.output_item.added\ndata: {\"item\": {\"type\": \"message\", \"content\": []}}\n\n",
        "event: response.content_part.added\ndata: {\"part\": {\"type\": \"output_text\", \"text\": \"\"}}\n\n",
    ],
];

const DONE: &str = "data: [DONE]\n\n";
const STOP: &str = "data: {\"index\": 0, \"content\": \"\", \"stop\": true}\n\n";

/// Error event of a server.
const OWN_WORDS: &str = "data: {\"error\": {\"message\": \"the server's own words\"}}\n\n";

const FAILED_WITH_ERROR: &str = "warmpath_router_failed_attempts_total{failure=\"error\"}";

/// Returns a request that each of the endpoints accepts.
fn body() -> String {
    let message = json!([{"role": "user", "content": "hello"}]);
    json!({"messages": message, "input": "hello", "prompt": "hello", "input_prefix": "a", "input_suffix": "b",
        "max_tokens": 5, "stream": true})
    .to_string()
}

/// Returns a response in one piece.
fn whole_body(text: &str) -> Script {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n".to_owned();
    Script { head, steps: vec![Step::Send(text.as_bytes().to_vec())] }
}

/// Sends the same request until the first of two servers has got one; returns the texts of the responses.
async fn until_first_is_asked(servers: &[RawServer; 2], router: &TestRouter, path: &str, body: &str) -> Vec<String> {
    let mut texts = Vec::new();
    while servers[0].asked().is_empty() {
        assert!(texts.len() < 20, "{path}: the server was never asked");
        let response = router.post(path, body.to_owned()).await;
        assert_eq!(response.status(), 200, "{path}");
        texts.push(response.text().await.expect("the response ends in order"));
    }
    texts
}

async fn router_for(server: &RawServer, flags: &[&str]) -> TestRouter {
    TestRouter::ready_for(&[server.flag()], flags).await
}

/// Asserts that a text is `whole` and then one error event in an endpoint's dialect; returns that event's object.
fn error_behind(text: &str, whole: &str, path: &str) -> Value {
    let event = text.strip_prefix(whole).unwrap_or_else(|| panic!("{path}: not {whole:?} first: {text:?}"));
    let event = event.strip_suffix("\n\n").unwrap_or_else(|| panic!("{path}: no event: {event:?}"));
    let is_named = path == "/v1/messages" || path == "/v1/responses";
    let data = event.strip_prefix(if is_named { "event: error\ndata: " } else { "data: " });
    let data = data.unwrap_or_else(|| panic!("{path}: no error event: {event:?}"));
    let object: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{path}: {error}: {data:?}"));
    match path {
        "/v1/messages" => {
            let kind = &object["error"]["type"];
            assert!(kind == "api_error" || kind == "overloaded_error", "{object}");
        }
        "/v1/responses" => assert_eq!(object["type"], "error", "{object}"),
        _ => assert!(object["error"]["message"].is_string(), "{object}"),
    }
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_an_event_is_an_attempt_that_failed_and_is_tried_elsewhere() {
    let whole = [DIALECTS[0].2, DONE];
    for script in [
        events(&[]),
        events(&[]).then(Step::Break),
        events(&[": ping\n\n"]),
        events(&[": ping\n\n", ": ping\n\n"]).then(Step::Break),
        events(&["retry: 3000\n\n"]),
        events(&["\n"]),
        events(&["data: {\"choices\""]),
        events(&["data: {\"choices\""]).then(Step::Break),
        events(&[]).with("content-encoding: gzip"),
        events(&[]).with("content-encoding: gzip").then(Step::Break),
    ] {
        let servers = [RawServer::start(script.clone()).await, RawServer::start(events(&whole)).await];
        let router = TestRouter::ready_for(&servers.each_ref().map(RawServer::flag), &[]).await;
        for _ in 0..20 {
            let response = router.chat_stream("hello").await;
            assert_eq!(response.status(), 200, "{script:?}");
            let text = response.text().await.expect("the stream ends in order");
            assert_eq!(text.trim_start_matches(": the answer goes on\n\n"), whole.concat(), "{script:?}");
            if !servers[0].asked().is_empty() {
                break;
            }
        }
        assert!(!servers[0].asked().is_empty(), "the server was never asked: {script:?}");
        assert!(router.metric("warmpath_router_failed_attempts_total{failure=\"broken\"}").await >= 1.0, "{script:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_an_event_at_the_only_server_is_a_bad_gateway() {
    let server = RawServer::start(events(&[])).await;
    let router = router_for(&server, &[]).await;
    assert_eq!(error_of(router.chat_stream("hello").await, 502).await["code"], "worker_failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_nothing_but_an_error_is_a_failed_attempt_and_is_tried_elsewhere() {
    let whole = [DIALECTS[0].2, DONE];
    for script in [
        events(&[OWN_WORDS]),
        events(&[OWN_WORDS, DONE]),
        events(&[": ping\n\n", OWN_WORDS]),
        events(&[OWN_WORDS.trim_end()]),
        events(&[OWN_WORDS]).then(Step::Break),
        events(&["error: {\"code\": 500, \"message\": \"as of an older llama-server\"}\n\n"]),
    ] {
        let servers = [RawServer::start(script.clone()).await, RawServer::start(events(&whole)).await];
        let router = TestRouter::ready_for(&servers.each_ref().map(RawServer::flag), &[]).await;
        for text in until_first_is_asked(&servers, &router, DIALECTS[0].0, &body()).await {
            assert_eq!(text.trim_start_matches(": the answer goes on\n\n"), whole.concat(), "{script:?}");
        }
        assert_eq!(router.metric(FAILED_WITH_ERROR).await, 1.0, "{script:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_fails_before_its_first_part_is_tried_elsewhere_in_every_dialect() {
    for ((path, end, part), opening) in DIALECTS.into_iter().zip(OPENINGS) {
        let opened = events(opening);
        let failed = match path {
            "/v1/responses" => "event: response.failed\ndata: {\"response\": {\"output\": []}}\n\n",
            _ => OWN_WORDS,
        };
        for script in [
            opened.clone().then(Step::Send(failed.into())),
            events(&[&format!("{}{failed}", opening.concat())]),
            opened.clone(),
            opened.clone().then(Step::Break),
            opened.clone().then(Step::Send(": ping\n\n".into())).then(Step::Break),
        ] {
            let whole = [opening, &[part, end]].concat();
            let servers = [RawServer::start(script.clone()).await, RawServer::start(events(&whole)).await];
            let router = TestRouter::ready_for(&servers.each_ref().map(RawServer::flag), &[]).await;
            for text in until_first_is_asked(&servers, &router, path, &body()).await {
                assert_eq!(text.trim_start_matches(": the answer goes on\n\n"), whole.concat(), "{path}: {script:?}");
            }
            assert_eq!(router.metric("warmpath_router_broken_responses_total").await, 0.0, "{path}: {script:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_every_server_reports_reaches_the_client_behind_the_events_before_it() {
    let server = RawServer::start(events(&[])).await;
    let router = router_for(&server, &[]).await;
    for ((path, _, part), opening) in DIALECTS.into_iter().zip(OPENINGS) {
        let failed = [opening, &[OWN_WORDS]].concat();
        server.answer_with(events(&failed));
        let text = router.post(path, body()).await.text().await.expect("the stream ends in order");
        assert_eq!(text, failed.concat(), "{path}");
        // Without an error to pass on, the router's own is an HTTP error, for the client has got nothing.
        server.answer_with(events(opening));
        assert_eq!(router.post(path, body()).await.status(), 502, "{path}");
        // Behind a part the stream stays where it began.
        let begun = [opening, &[part, OWN_WORDS]].concat();
        server.answer_with(events(&begun));
        let text = router.post(path, body()).await.text().await.expect("the stream ends in order");
        assert_eq!(text, begun.concat(), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_every_server_reports_reaches_the_client_unchanged() {
    let server = RawServer::start(events(&[])).await;
    let router = router_for(&server, &[]).await;
    for (path, _, _) in DIALECTS {
        server.answer_with(events(&[OWN_WORDS, DONE]));
        let response = router.post(path, body()).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(header(&response, "x-accel-buffering"), "no", "{path}");
        assert_eq!(response.text().await.expect("the stream ends in order"), format!("{OWN_WORDS}{DONE}"), "{path}");
    }
    assert_eq!(router.metric(FAILED_WITH_ERROR).await, DIALECTS.len() as f64);
    // An error in the request is an answer.
    let mistake = "data: {\"error\": {\"code\": 400, \"message\": \"the prompt is too long\"}}\n\n";
    server.answer_with(events(&[mistake]));
    let text = router.post(DIALECTS[0].0, body()).await.text().await.expect("the stream ends in order");
    assert_eq!(text, mistake);
    assert_eq!(router.metric(FAILED_WITH_ERROR).await, DIALECTS.len() as f64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_response_of_nothing_but_an_error_is_a_failed_attempt() {
    let failed = "{\"error\": {\"message\": \"the server's own words\"}}";
    let request = json!({"messages": [{"role": "user", "content": "hello"}], "input": "hello", "query": "hello",
        "documents": ["a"], "max_tokens": 5})
    .to_string();
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/v1/rerank"] {
        for text in [failed, ""] {
            let servers = [RawServer::start(whole_body(text)).await, RawServer::start(whole_body("{\"x\": 9}")).await];
            let router = TestRouter::ready_for(&servers.each_ref().map(RawServer::flag), &[]).await;
            for text in until_first_is_asked(&servers, &router, path, &request).await {
                assert_eq!(text, "{\"x\": 9}", "{path}");
            }
            assert_eq!(router.metric(FAILED_WITH_ERROR).await, 1.0, "{path}: {text:?}");
        }
        let server = RawServer::start(whole_body(failed)).await;
        let router = router_for(&server, &[]).await;
        let response = router.post(path, request.clone()).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.text().await.expect("the response ends in order"), failed, "{path}");
        server.answer_with(whole_body(""));
        error_of(router.post(path, request.clone()).await, 502).await;
        // Other endpoints may return anything.
        assert_eq!(router.post("/tokenize", "{}").await.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_several_choices_is_complete_once_all_of_them_have_ended() {
    let server = RawServer::start(events(&[])).await;
    let router = router_for(&server, &[]).await;
    let (path, last, part) = DIALECTS[2];
    let [other_last, other_part] = [last, part].map(|event| event.replace("\"index\": 0", "\"index\": 1"));
    for (field, value) in [("prompt", json!(["hello", "you"])), ("n", json!(2)), ("n_cmpl", json!(2))] {
        let mut several: Value = serde_json::from_str(&body()).expect("JSON");
        several[field] = value;
        for incomplete in [vec![part, last], vec![part, last, &other_part], vec![part, &other_part, &other_last]] {
            for script in [events(&incomplete), events(&incomplete).then(Step::Break)] {
                server.answer_with(script);
                let response = router.post(path, several.to_string()).await;
                error_behind(&response.text().await.expect("the stream ends in order"), &incomplete.concat(), path);
            }
        }
        let complete = [part, last, &other_part, &other_last];
        server.answer_with(events(&complete).then(Step::Break));
        let text = router.post(path, several.to_string()).await.text().await.expect("the stream ends in order");
        assert_eq!(text, complete.concat(), "{field}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_with_their_dialect_s_end_pass_untouched() {
    let server = RawServer::start(events(&[])).await;
    let router = router_for(&server, &[]).await;
    for (path, end, part) in DIALECTS {
        let last = end.replace("completed", "failed");
        let failed = OWN_WORDS.to_owned();
        for ending in [end.to_owned(), last, failed, format!("{end}: comment\n\n"), format!("{end}{DONE}")] {
            server.answer_with(events(&[part, ": ping\n\n", &part[..9], &part[9..], &ending]));
            let text = router.post(path, body()).await.text().await.expect("the stream ends in order");
            assert_eq!(text, format!("{part}: ping\n\n{part}{ending}"), "{path}");
        }
        // A connection that breaks after the end takes nothing away.
        server.answer_with(events(&[part, end]).then(Step::Break));
        let text = router.post(path, body()).await.text().await.expect("the stream ends in order");
        assert_eq!(text, format!("{part}{end}"), "{path}");
        // The last event may lack its empty line.
        server.answer_with(events(&[part, end.trim_end()]));
        let text = router.post(path, body()).await.text().await.expect("the stream ends in order");
        assert_eq!(text, format!("{part}{end}"), "{path}");
    }
    assert_eq!(router.metric("warmpath_router_broken_responses_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_answer_ends_with_an_error_event_after_its_last_whole_event() {
    let server = RawServer::start(events(&[])).await;
    let router = router_for(&server, &[]).await;
    let mut n_broken = 0.0;
    for (path, end, part) in DIALECTS {
        let halves = ["", &part[..5], &part[..part.len() - 2], &part[..part.len() - 1], &end[..end.len() - 4]];
        let halves =
            halves.map(|half| (half, "\n")).into_iter().chain(["\r\n", "\r"].map(|ending| (&part[..9], ending)));
        for (half, ending) in halves {
            let (part, half) = (part.replace('\n', ending), half.replace('\n', ending));
            let script = events(&[&part, ": ping\n\n", &half]);
            for script in [script.clone(), script.then(Step::Break)] {
                server.answer_with(script);
                let text = router.post(path, body()).await.text().await.expect("the stream ends in order");
                error_behind(&text, &format!("{part}: ping\n\n"), path);
                n_broken += 1.0;
            }
        }
    }
    assert_eq!(router.metric("warmpath_router_broken_responses_total").await, n_broken);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_within_an_event_that_was_too_long_to_hold_back_breaks_the_connection() {
    let long = format!("data: {}", "x".repeat(2 << 20));
    let server = RawServer::start(events(&[DIALECTS[0].2, &long, "\n\n", DONE])).await;
    let router = router_for(&server, &[]).await;
    let text = router.chat_stream("hello").await.text().await.expect("the stream ends in order");
    assert_eq!(text.len(), DIALECTS[0].2.len() + long.len() + 2 + DONE.len());

    for script in [events(&[DIALECTS[0].2, &long]), events(&[DIALECTS[0].2, &long]).then(Step::Break)] {
        server.answer_with(script);
        let response = router.chat_stream("hello").await;
        assert!(response.text().await.is_err(), "no event can be put behind half of one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoded_stream_is_passed_on_unchanged_and_nothing_is_appended() {
    let bytes = [&b"\x1f\x8b\x08\x00half a gzip"[..], b" stream"].map(|piece| Step::Send(piece.to_vec()));
    let script = Script { steps: bytes.to_vec(), ..events(&[]).with("content-encoding: gzip") };
    let server = RawServer::start(script.clone()).await;
    let router = router_for(&server, &[]).await;
    let response = router.chat_stream("hello").await;
    assert_eq!(header(&response, "content-encoding"), "gzip");
    assert_eq!(response.bytes().await.expect("the stream ends"), &b"\x1f\x8b\x08\x00half a gzip stream"[..]);
    server.answer_with(script.then(Step::Break));
    let mut body = router.chat_stream("hello").await.bytes_stream();
    let mut given = Vec::new();
    while let Ok(piece) = body.next().await.expect("the connection does not end in order") {
        given.extend_from_slice(&piece);
    }
    assert_eq!(given, b"\x1f\x8b\x08\x00half a gzip stream");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_asked_for_streams_that_are_not_encoded() {
    let server = RawServer::start(events(&[DIALECTS[0].2, DONE])).await;
    let router = router_for(&server, &[]).await;
    let request = router.client.post(router.url("/v1/chat/completions")).header("accept-encoding", "gzip, br");
    request.body(body()).send().await.expect("the router answers");
    let head = server.asked().pop().expect("the server was asked");
    let wanted: Vec<&str> = head.lines().filter(|line| line.starts_with("accept-encoding")).collect();
    assert_eq!(wanted, ["accept-encoding: identity"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn comments_alone_do_not_keep_a_client() {
    let forever = Step::Repeat(b": ping\n\n".to_vec());
    let server = RawServer::start(events(&[]).then(forever.clone())).await;
    let flags = ["--response-timeout", "0.3", "--idle-timeout", "0.3", "--attempts-max", "1"];
    let router = router_for(&server, &flags).await;
    let text = router.chat_stream("hello").await.text().await.expect("the stream ends in order");
    let error = text.trim_start_matches(": the answer goes on\n\n");
    assert_eq!(error_behind(error, "", "/v1/chat/completions")["error"]["code"], "worker_failed");
    eventually("the server sees the client leave", || async { server.n_left() == 1 }).await;
    for (path, _, part) in DIALECTS {
        server.answer_with(events(&[part]).then(forever.clone()));
        eventually("the server is back", || async { router.get("/readyz").await.0 == 200 }).await;
        let text = router.post(path, body()).await.text().await.expect("the stream ends in order");
        let (comments, error) = text.split_at(text.rfind(": ping\n\n").expect("a comment") + 8);
        assert_eq!(comments.trim_start_matches(part).replace(": ping\n\n", ""), "", "{path}");
        error_behind(error, "", path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_stream_asks_proxies_not_to_buffer_it() {
    let server = RawServer::start(events(&[])).await;
    let router = router_for(&server, &[]).await;
    for (path, end, part) in DIALECTS {
        let plain = events(&[part, end]).with("cache-control: public, max-age=60").with("x-accel-buffering: yes");
        let commented = events(&[": ping\n\n", part, end]);
        for script in [plain, commented, events(&[part, end]).with("content-encoding: br")] {
            server.answer_with(script);
            let response = router.post(path, body()).await;
            assert_eq!(header(&response, "content-type"), "text/event-stream", "{path}");
            assert_eq!(header(&response, "x-accel-buffering"), "no", "{path}");
            assert_eq!(header(&response, "cache-control"), "no-cache, no-transform", "{path}");
            assert_eq!(response.headers().get_all("cache-control").iter().count(), 1, "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_outlast_the_drain_timeout_end_with_an_error_event() {
    let server = RawServer::start(events(&[])).await;
    let router = router_for(&server, &["--drain-timeout", "0.2"]).await;
    let mut streams = Vec::new();
    // As many as the server gets at a time.
    for (path, _, part) in [DIALECTS[0], DIALECTS[5], DIALECTS[6]] {
        for steps in [&[part, &part[..9]][..], &[": ping\n\n"]] {
            server.answer_with(events(steps).then(Step::Hang));
            streams.push((path, router.post(path, body()).await, if steps.len() > 1 { part } else { "" }));
        }
    }
    // A response without a head yet.
    server.answer_with(events(&[]).then(Step::Hang));
    let request = router.client.post(router.url("/v1/chat/completions")).body(body());
    let waiting = tokio::spawn(request.send());
    eventually("the server was asked", || async { server.asked().len() == streams.len() + 1 }).await;
    router.server.stop().await;
    for (path, response, whole) in streams {
        let text = response.text().await.expect("the stream ends in order");
        let object = error_behind(text.trim_start_matches(": the answer goes on\n\n"), whole, path);
        assert!(object.to_string().contains("the router is shutting down"), "{path}: {object}");
    }
    let response = waiting.await.expect("no panic").expect("an answer");
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(error_of(response, 503).await["code"], "draining");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_server_may_omit_the_last_event_after_the_finish_reason_of_the_only_choice() {
    let server = RawServer::start(events(&[])).await;
    let router = router_for(&server, &[]).await;
    let usage = "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 4}}\n\n";
    for (path, _, part) in &DIALECTS[..2] {
        let last = part.replace("}]}", ", \"finish_reason\": \"stop\"}]}");
        for behind in [&[][..], &[usage], &[": ping\n\n"]] {
            let whole = [&[*part, &last], behind].concat();
            server.answer_with(events(&whole));
            let text = router.post(path, body()).await.text().await.expect("the stream ends in order");
            assert_eq!(text, format!("{}{DONE}", whole.concat()), "{path}");
        }
        // The last object may lack its empty line, and may be the only one.
        server.answer_with(events(&[last.trim_end()]));
        let text = router.post(path, body()).await.text().await.expect("the stream ends in order");
        assert_eq!(text, format!("{last}{DONE}"), "{path}");
        assert_eq!(router.metric("warmpath_router_broken_responses_total").await, 0.0);
    }
    let (path, _, part) = DIALECTS[0];
    let last = part.replace("}]}", ", \"finish_reason\": \"stop\"}]}");
    for broken in
        [events(&[part, &last]).then(Step::Break), events(&[part, &last, "data: {\"choices\""]), events(&[&last, part])]
    {
        server.answer_with(broken.clone());
        let text = router.post(path, body()).await.text().await.expect("the stream ends in order");
        assert!(!text.contains(DONE) && text.contains("\"error\""), "{broken:?}: {text}");
    }
    // Another choice might have followed.
    let mut several: Value = serde_json::from_str(&body()).expect("JSON");
    several["n"] = json!(2);
    server.answer_with(events(&[part, &last]));
    let text = router.post(path, several.to_string()).await.text().await.expect("the stream ends in order");
    error_behind(&text, &format!("{part}{last}"), path);
}
