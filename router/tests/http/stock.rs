//! Stock servers: the assumed cache of requests sent there, its corrections, and faulty servers.

use crate::support::stock::{FakeStock, Says};
use crate::support::worker::{FakeWorker, chat_keys};
use crate::support::{TestRouter, VOCABULARY, chat_body, config_of, eventually, header, long_text};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use warmpath_router::config::STOCK_ANSWER_BYTES_MAX;
use warmpath_router::server::{Server, StartError};

/// Returns the vocabulary of the fake servers as a file.
fn vocabulary() -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    std::io::Write::write_all(&mut file, &VOCABULARY).expect("it takes the vocabulary");
    file
}

/// Starts a router in front of stock servers that tokenizes like them.
async fn tokenizing(servers: &[FakeStock], flags: &[&str]) -> TestRouter {
    let file = vocabulary();
    let path = file.path().display().to_string();
    let flags: Vec<_> = ["--vocab", &path].into_iter().chain(flags.iter().copied()).collect();
    TestRouter::ready_for(&flags_of(servers), &flags).await
}

fn flags_of(servers: &[FakeStock]) -> Vec<String> {
    servers.iter().map(FakeStock::flag).collect()
}

async fn worker(router: &TestRouter, idx: usize) -> Value {
    router.fleet().await["workers"][idx].clone()
}

fn index_of(servers: &[FakeStock], response: &reqwest::Response) -> usize {
    answerer(servers, response).expect("the name of a stock server")
}

/// Returns the server that a response came from; `None` if the router answered itself: on a busy machine all servers
/// may seem to be down for a moment.
fn answerer(servers: &[FakeStock], response: &reqwest::Response) -> Option<usize> {
    let name = header(response, "x-warmpath-worker");
    let idx = name.strip_prefix("stock-")?.parse().expect("the name of a stock server");
    assert!(idx < servers.len(), "{name}");
    Some(idx)
}

/// Returns the indexes of the workers that the router expects to have every whole block of a chat.
async fn holders(router: &TestRouter, body: &str) -> Vec<usize> {
    let url = format!("http://{}/internal/v1/route", router.server.admin_address);
    let response = router.client.post(url).body(body.to_owned()).send().await.expect("the admin listener answers");
    let plan: Value = response.json().await.expect("JSON");
    // There are none while all servers seem to be down.
    let workers = plan["workers"].as_array().into_iter().flatten().enumerate();
    workers.filter(|(_, worker)| worker["matched_blocks"] == plan["prompt"]["blocks"]).map(|(idx, _)| idx).collect()
}

/// Waits until the router expects every whole block of a chat to be cached.
async fn is_remembered(router: &TestRouter, body: &str) {
    eventually("the prompt is remembered", || async { !holders(router, body).await.is_empty() }).await;
}

/// Chats until the router remembers where; returns that.
async fn home_of(router: &TestRouter, servers: &[FakeStock], text: &str) -> usize {
    let home = std::cell::Cell::new(None);
    eventually("the chat is remembered", || async {
        home.set(answerer(servers, &router.chat(text).await));
        let holders = holders(router, &chat_body(text, false)).await;
        home.get().is_some_and(|home| holders.contains(&home))
    })
    .await;
    home.get().expect("it is remembered")
}

fn second_turn(text: &str) -> String {
    json!({"messages": [
        {"role": "user", "content": text},
        {"role": "assistant", "content": "Certainly."},
        {"role": "user", "content": "And then?"},
    ]})
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_turn_is_routed_to_the_worker_of_the_first_with_and_without_a_vocabulary() {
    for mode in ["text", "vocabulary"] {
        let servers = [FakeStock::start("tiny"), FakeStock::start("tiny"), FakeStock::start("tiny")];
        // The servers report their times: by the clock, the one that a busy machine delayed would be avoided.
        servers.iter().for_each(|server| server.with(|script| script.says = Says::Timings));
        let router = match mode {
            "text" => TestRouter::ready_for(&flags_of(&servers), &[]).await,
            _ => tokenizing(&servers, &[]).await,
        };
        assert_eq!(worker(&router, 0).await["mode"], mode);
        for topic in ["bread", "stars", "rivers"] {
            let text = long_text(topic);
            let first = router.chat(&text).await;
            assert!(header(&first, "x-warmpath-cached-tokens").parse::<u32>().is_ok(), "{mode}");
            let home = index_of(&servers, &first);
            is_remembered(&router, &chat_body(&text, false)).await;
            let second = router.post("/v1/chat/completions", second_turn(&text)).await;
            assert_eq!(index_of(&servers, &second), home, "{mode}");
            assert_eq!(header(&second, "x-warmpath-route"), "prefix");
            let number = |name| header(&second, name).parse::<u32>().expect("a number");
            let predicted = number("x-warmpath-predicted-cached-tokens");
            let whole = chat_keys(&text, "").len() as u32 * 16;
            assert!(predicted > 0 && (mode == "text" || predicted + 16 >= whole), "{mode}: {predicted} of {whole}");
            assert!(number("x-warmpath-cached-tokens") + 16 >= whole, "{mode}");
        }
        assert_eq!(router.metric("warmpath_router_stock_predictions_total{outcome=\"less\"}").await, 0.0, "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn siblings_of_one_system_prompt_go_to_the_server_that_has_it() {
    let servers = [FakeStock::start("tiny"), FakeStock::start("tiny")];
    let router = TestRouter::ready_for(&flags_of(&servers), &[]).await;
    let sibling = |question: &str| {
        let system = json!({"role": "system", "content": long_text("manners")});
        json!({"messages": [system, {"role": "user", "content": question}]}).to_string()
    };
    let home = index_of(&servers, &router.post("/v1/chat/completions", sibling("Who?")).await);
    is_remembered(&router, &sibling("Who?")).await;
    for question in ["What?", "When?", "Where?"] {
        let response = router.post("/v1/chat/completions", sibling(question)).await;
        assert_eq!(index_of(&servers, &response), home);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_answers_pass_unchanged_and_streams_report_their_reuse() {
    for says in [Says::Usage, Says::Timings] {
        let server = [FakeStock::start("tiny")];
        server[0].with(|script| script.says = says);
        let router = tokenizing(&server, &[]).await;
        let body = chat_body(&long_text("bread"), true);
        for _ in 0..2 {
            let through = router.post("/v1/chat/completions", body.clone()).await.text().await.expect("text");
            let direct = router.client.post(format!("{}/v1/chat/completions", server[0].url())).body(body.clone());
            let direct = direct.send().await.expect("it answers").text().await.expect("text");
            let counts = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
            assert_eq!(counts(&through), counts(&direct));
            is_remembered(&router, &body).await;
        }
        let seen = &server[0].seen()[0];
        assert_eq!(seen.body, body);
        let hints: Vec<_> = seen.headers.keys().filter(|name| name.as_str().starts_with("x-warmpath")).collect();
        assert!(hints.is_empty(), "{hints:?}");
        assert!(seen.headers.contains_key("x-request-id"));
        router.wait_for_metric("warmpath_router_cached_tokens_total", 1.0).await;
        assert_eq!(router.metric("warmpath_router_stock_predictions_total{outcome=\"less\"}").await, 0.0);
        eventually("rates are learnt", || async {
            worker(&router, 0).await["load"]["rates"]["decode_step_ms"].is_number()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_loses_its_traffic_and_its_assumed_cache() {
    let mut servers = [FakeStock::start("tiny"), FakeStock::start("tiny")];
    let router = TestRouter::ready_for(&flags_of(&servers), &[]).await;
    let text = long_text("bread");
    let home = home_of(&router, &servers, &text).await;
    servers[home].kill();
    eventually("the other one answers", || async {
        let response = router.chat(&text).await;
        response.status() == 200 && answerer(&servers, &response) == Some(1 - home)
    })
    .await;
    eventually("it is down", || async {
        let worker = worker(&router, home).await;
        worker["state"] == "down" && worker["blocks"] == 0
    })
    .await;
    servers[home].revive();
    eventually("it is back", || async { worker(&router, home).await["state"] == "ready" }).await;
    assert_eq!(worker(&router, home).await["blocks"], 0, "it holds nothing from before its restart");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_task_numbers_start_again_was_restarted() {
    let servers = [FakeStock::start("tiny")];
    let slots = |id_task| Some(json!([{"id": 0, "is_processing": false, "id_task": id_task}]));
    servers[0].with(|script| script.slots = slots(40));
    let router = TestRouter::ready_for(&flags_of(&servers), &[]).await;
    router.chat(&long_text("bread")).await;
    is_remembered(&router, &chat_body(&long_text("bread"), false)).await;
    // The first poll that begins after the response has seen the number.
    looks_again(&router).await;
    looks_again(&router).await;
    servers[0].with(|script| script.slots = slots(2));
    eventually("it is forgotten", || async { worker(&router, 0).await["blocks"] == 0 }).await;
    assert_eq!(worker(&router, 0).await["state"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_sleeps_holds_nothing_and_is_not_woken() {
    let servers = [FakeStock::start("tiny")];
    let slots = Some(json!([{"id": 0, "is_processing": false, "id_task": 40}]));
    servers[0].with(|script| (script.slots, script.is_sleeping) = (slots, Some(false)));
    let router = TestRouter::ready_for(&flags_of(&servers), &[]).await;
    let body = chat_body(&long_text("bread"), false);
    router.chat(&long_text("bread")).await;
    is_remembered(&router, &body).await;

    servers[0].with(|script| script.is_sleeping = Some(true));
    eventually("its cache has gone with the model", || async { worker(&router, 0).await["blocks"] == 0 }).await;
    let n_reads = || servers[0].asked().iter().filter(|(path, _)| path == "/slots").count();
    let n_before = n_reads();
    looks_again(&router).await;
    looks_again(&router).await;
    assert_eq!(
        (n_reads(), router.state_of(0).await),
        (n_before, "ready".to_owned()),
        "to read its slots would wake it"
    );

    servers[0].with(|script| script.is_sleeping = Some(false));
    router.chat(&long_text("bread")).await;
    is_remembered(&router, &body).await;
}

/// Waits until the router has polled its first worker again.
async fn looks_again(router: &TestRouter) {
    let age = || async { worker(router, 0).await["age_seconds"].as_f64().expect("it has sent a message") };
    let last = std::cell::Cell::new(age().await);
    eventually("the router looks again", || {
        let last = &last;
        async move {
            let now = age().await;
            now < last.replace(now)
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_assumed_cache_of_a_server_that_reuses_less_shrinks() {
    let servers = [FakeStock::start("tiny")];
    servers[0].with(|script| script.kept_max = 1);
    let router = tokenizing(&servers, &[]).await;
    for topic in ["bread", "stars"] {
        router.chat(&long_text(topic)).await;
        is_remembered(&router, &chat_body(&long_text(topic), false)).await;
    }
    let n_blocks = chat_keys(&long_text("stars"), "").len();
    for (n_missed, topic) in [(1, "bread"), (2, "stars")] {
        let missed = router.chat(&long_text(topic)).await;
        assert_ne!(header(&missed, "x-warmpath-predicted-cached-tokens"), "0");
        let outcome = "warmpath_router_stock_predictions_total{outcome=\"less\"}";
        router.wait_for_metric(outcome, f64::from(n_missed)).await;
    }
    eventually("little more than the last prompt is remembered", || async {
        worker(&router, 0).await["blocks"].as_u64().is_some_and(|blocks| (blocks as usize) < n_blocks * 5 / 4)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vocabulary_that_counts_differently_is_replaced_by_the_text() {
    let servers = [FakeStock::start("tiny"), FakeStock::start("tiny")];
    servers.iter().for_each(|server| server.with(|script| script.extra_tokens = 3));
    let router = tokenizing(&servers, &[]).await;
    assert_eq!(worker(&router, 0).await["mode"], "vocabulary");
    let text = long_text("bread");
    for _ in 0..6 {
        assert_eq!(router.chat(&text).await.status(), 200);
    }
    eventually("both are compared by their text", || async {
        worker(&router, 0).await["mode"] == "text" && worker(&router, 1).await["mode"] == "text"
    })
    .await;
    assert_eq!(router.metric("warmpath_router_stock_vocabulary_mismatches_total").await, 1.0);
    assert_eq!(router.metric("warmpath_router_workers_excluded{disagreement=\"model\"}").await, 0.0);
    router.chat(&text).await;
    is_remembered(&router, &chat_body(&text, false)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_reports_no_reuse_is_not_checked() {
    let servers = [FakeStock::start("tiny")];
    servers[0].with(|script| script.says = Says::NoReuse);
    let router = TestRouter::ready_for(&flags_of(&servers), &[]).await;
    let response = router.chat(&long_text("bread")).await;
    assert_eq!(header(&response, "x-warmpath-cached-tokens"), "");
    router.wait_for_metric("warmpath_router_stock_predictions_total{outcome=\"unchecked\"}", 1.0).await;
    is_remembered(&router, &chat_body(&long_text("bread"), false)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_and_foreign_servers_get_no_requests_and_the_reason_is_shown() {
    let servers = [FakeStock::start("tiny"), FakeStock::start("tiny"), FakeStock::start("tiny")];
    servers[0].with(|script| script.models = Some(json!({"hello": "world"})));
    servers[1].with(|script| script.health = Some(500));
    let router = TestRouter::ready_for(&flags_of(&servers), &[]).await;
    let losses = |reason| format!("warmpath_router_stock_losses_total{{reason=\"{reason}\"}}");
    router.wait_for_metric(&losses("not_openai"), 1.0).await;
    router.wait_for_metric(&losses("status"), 1.0).await;
    for _ in 0..4 {
        assert_eq!(index_of(&servers, &router.chat("hello").await), 2);
    }
    assert_eq!((router.state_of(0).await, router.state_of(1).await), ("down".to_owned(), "down".to_owned()));
    servers[0].with(|script| script.models = None);
    eventually("it is what it should be", || async { router.state_of(0).await == "ready" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_s_reports_are_bounded_in_time_and_size() {
    let servers = [FakeStock::start("tiny"), FakeStock::start("tiny"), FakeStock::start("tiny")];
    servers[0].with(|script| script.health = None);
    let padding = "a".repeat(STOCK_ANSWER_BYTES_MAX);
    servers[1].with(|script| script.models = Some(json!({"data": [{"id": "tiny"}], "padding": padding})));
    let router = TestRouter::ready_for(&flags_of(&servers), &[]).await;
    for reason in ["timeout", "too_long"] {
        router.wait_for_metric(&format!("warmpath_router_stock_losses_total{{reason=\"{reason}\"}}"), 1.0).await;
    }
    assert_eq!(index_of(&servers, &router.chat("hello").await), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_health_is_polled_by_its_models() {
    let servers = [FakeStock::start("tiny")];
    servers[0].with(|script| script.health = Some(404));
    let router = TestRouter::ready_for(&flags_of(&servers), &[]).await;
    assert_eq!(router.chat("hello").await.status(), 200);
    servers[0].with(|script| script.models = Some(Value::Null));
    looks_again(&router).await;
    assert_eq!(router.state_of(0).await, "ready", "it answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_busy_with_others_requests_is_spared() {
    let servers = [FakeStock::start("tiny"), FakeStock::start("tiny")];
    let slots = |busy: bool| Some(json!([{"id": 0, "is_processing": busy}, {"id": 1, "is_processing": busy}]));
    servers[0].with(|script| script.slots = slots(true));
    servers[1].with(|script| script.slots = slots(false));
    let router = TestRouter::ready_for(&flags_of(&servers), &[]).await;
    eventually("its load is known", || async {
        worker(&router, 0).await["load"]["busy_slots"].as_array().is_some_and(|slots| slots.len() == 2)
    })
    .await;
    for topic in ["bread", "stars", "rivers"] {
        assert_eq!(index_of(&servers, &router.chat(&long_text(topic)).await), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_flight_are_a_servers_load_until_their_clients_leave() {
    let servers = [FakeStock::start("tiny")];
    servers[0].with(|script| script.is_silent = true);
    let router = TestRouter::ready_for(&flags_of(&servers), &[]).await;
    let url = router.url("/v1/chat/completions");
    let request = router.client.post(url).body(chat_body(&long_text("bread"), true)).send();
    let asking = tokio::spawn(request);
    let prefill = || async { worker(&router, 0).await["load"]["running_prefill_tokens"].as_u64().unwrap_or(0) };
    eventually("its prompt is counted", || async { prefill().await > 0 }).await;
    assert_eq!(worker(&router, 0).await["unreported"]["requests"], 0);
    asking.abort();
    eventually("it has left", || async { prefill().await == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beside_a_warmpath_worker_of_the_same_name_its_vocabulary_counts() {
    let own = FakeWorker::start(1);
    let stock = FakeStock::start("tiny");
    let router = TestRouter::ready_for(&[stock.flag(), own.url()], &[]).await;
    eventually("it counts as the worker does", || async {
        let fleet = router.fleet().await;
        fleet["workers"][0]["mode"] == "vocabulary" && fleet["workers"][1]["mode"] == "summary"
    })
    .await;
    assert_eq!((router.state_of(0).await, router.state_of(1).await), ("ready".to_owned(), "ready".to_owned()));
    let text = long_text("bread");
    own.hold(&text, None, 0);
    is_remembered(&router, &chat_body(&text, false)).await;
    assert_eq!(header(&router.chat(&text).await, "x-warmpath-worker"), "0000000000000001");
    stock.with(|script| script.extra_tokens = 1);
    own.with(|script| script.summary.snapshot.load.draining = true);
    own.update(Vec::new(), Some(warmpath_common::summary::Load { draining: true, ..crate::support::worker::idle() }));
    eventually("the worker drains", || async { router.state_of(1).await == "draining" }).await;
    for _ in 0..3 {
        assert_eq!(header(&router.chat(&text).await, "x-warmpath-worker"), "stock-0");
    }
    eventually("it counts otherwise", || async { worker(&router, 0).await["mode"] == "load" }).await;
    assert_eq!(worker(&router, 0).await["excluded"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_with_a_wrong_vocabulary_does_not_start() {
    let file = NamedTempFile::new().expect("a temporary file");
    for path in ["/nowhere.gguf".to_owned(), file.path().display().to_string()] {
        let config = config_of(&["openai+http://127.0.0.1:9".to_owned()], &["--vocab", &path]);
        let error = Server::start(config).await.err().expect("it does not start");
        assert!(matches!(error, StartError::Vocabulary(_)), "{error}");
        assert!(error.to_string().contains(&path), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_body_that_cannot_be_read_is_routed_by_load_without_a_vocabulary() {
    let servers = [FakeStock::start("m")];
    let image = json!({"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}});
    let body = json!({"max_tokens": 5, "messages": [{"role": "user", "content": [image]}]}).to_string();
    let router = TestRouter::ready_for(&flags_of(&servers), &[]).await;
    let answer = router.post("/v1/messages", body.clone()).await;
    assert_eq!((answer.status().as_u16(), header(&answer, "x-warmpath-cached-tokens").as_str()), (200, "6"));
    assert_eq!(servers[0].seen().pop().expect("it was asked").body, body);
    assert_eq!(router.metric("warmpath_router_untokenized_prompts_total{cause=\"foreign\"}").await, 1.0);

    // A stock server would answer without the conversation.
    let thread = json!({"max_tokens": 5, "messages": [{"role": "user", "content": "a"}], "thread": {"type": "create"}});
    let answer = router.post("/v1/messages", thread.to_string()).await;
    assert_eq!(answer.status().as_u16(), 400);
    let error: Value = serde_json::from_str(&answer.text().await.expect("text")).expect("JSON");
    let details = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    assert_eq!((&error["type"], &error["error"]["details"]), (&json!("error"), &details), "{error}");
    assert_eq!(servers[0].seen().len(), 1, "only for the image");

    let tokenizing = tokenizing(&servers, &[]).await;
    assert_eq!(
        tokenizing.post("/v1/messages", body).await.status(),
        400,
        "a router with a vocabulary refuses what it cannot read"
    );
}
