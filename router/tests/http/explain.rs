//! The router's reports about its decisions: the dry run, and where a conversation broke its prefix.

use crate::support::worker::{FakeWorker, MAKER, chat_keys, full, idle, model};
use crate::support::{
    TestRouter, VOCABULARY, chat_body, error_of, eventually, fleet_of_one, fleet_of_two, header, long_text,
};
use axum::body::Bytes;
use serde_json::{Value, json};
use warmpath_common::ids::RequestId;
use warmpath_common::model::ModelInfo;
use warmpath_common::summary::{Change, Load, Rates};
use warmpath_gguf::{VocabularyChanges, changed_vocabulary};
use warmpath_prompt::{PromptMaker, PromptOptions};

async fn dry_run(router: &TestRouter, body: &str) -> reqwest::Response {
    let url = format!("http://{}/internal/v1/route", router.server.admin_address);
    router.client.post(url).body(body.to_owned()).send().await.expect("the admin listener answers")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_every_worker_s_cost_and_changes_nothing() {
    let mut workers = [FakeWorker::start(1), FakeWorker::start(2), FakeWorker::start(3)];
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    let text = long_text("bread");
    let n_blocks = chat_keys(&text, "").len();
    workers[1].hold(&text, None, 2);
    workers[2].kill();
    eventually("the router knows", || async {
        let fleet = router.fleet().await;
        fleet["workers"][1]["blocks"] == json!(n_blocks) && fleet["workers"][2]["state"] == "down"
    })
    .await;
    let before = router.fleet().await;
    let answer: Value = dry_run(&router, &chat_body(&text, false)).await.json().await.expect("JSON");
    assert_eq!(answer["choice"], json!({"worker": workers[1].url(), "reason": "prefix"}), "{answer}");
    assert_eq!(answer["prompt"]["blocks"], json!(n_blocks));
    assert!(answer["prompt"]["tokens"].as_u64().is_some_and(|n| n >= n_blocks as u64 * 16), "{answer}");
    let [cold, warm, down] = [0, 1, 2].map(|idx| &answer["workers"][idx]);
    assert_eq!(
        (&cold["matched_blocks"], &cold["unavailable"], &cold["has_room"]),
        (&json!(0), &json!(null), &json!(true))
    );
    assert_eq!((&warm["matched_blocks"], &warm["claimed_blocks"]), (&json!(n_blocks), &json!(n_blocks)));
    assert_eq!((&warm["tier"], &warm["state"], &warm["slot"]), (&json!("resident"), &json!("ready"), &json!(2)));
    assert_eq!(warm["cached_tokens"], json!(n_blocks * 16));
    assert_eq!(down["unavailable"], "down");
    for worker in [cold, warm, down] {
        let costs = worker["cost_ms"].as_object().expect("an object");
        let total = costs["total"].as_f64().expect("a number");
        let sum: f64 = costs.values().filter_map(Value::as_f64).sum::<f64>() - total;
        assert!((total - sum).abs() < 1e-6, "the terms add up: {worker}");
    }
    assert!(cold["cost_ms"]["total"].as_f64() > warm["cost_ms"]["total"].as_f64());
    let after = router.fleet().await;
    for idx in 0..2 {
        assert_eq!(before["workers"][idx]["in_flight"], after["workers"][idx]["in_flight"]);
        assert_eq!(after["workers"][idx]["unreported"]["requests"], 0, "nothing is recorded");
    }
    assert!(workers[..2].iter().all(|worker| worker.seen().is_empty()), "nothing is sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_takes_no_turn() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let router = TestRouter::ready(&workers.each_ref(), &["--policy", "round-robin"]).await;
    let first = header(&router.chat("hello").await, "x-warmpath-worker");
    let mut choices = Vec::new();
    for _ in 0..3 {
        let answer: Value = dry_run(&router, "{\"prompt\": \"hello\"}").await.json().await.expect("JSON");
        choices.push(answer["choice"]["worker"].clone());
    }
    assert!(choices.iter().all(|choice| *choice == choices[0]), "{choices:?}");
    assert_ne!(header(&router.chat("hello").await, "x-warmpath-worker"), first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_says_why_a_request_would_wait_or_be_refused() {
    let (worker, router) = fleet_of_one().await;
    worker.update(Vec::new(), Some(full(10_000)));
    eventually("no worker has capacity", || async {
        let answer: Value = dry_run(&router, &chat_body("hello", false)).await.json().await.expect("JSON");
        answer["refusal"] == "no worker can take the request: 1 busy" && answer["choice"].is_null()
    })
    .await;
    assert_eq!(error_of(dry_run(&router, "{").await, 400).await["code"], "invalid_json");
    let unknown = json!({"model": "other", "prompt": "a"}).to_string();
    assert_eq!(error_of(dry_run(&router, &unknown).await, 404).await["code"], "model_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_knows_of_others_delays_a_long_prompt() {
    let (workers, router) = fleet_of_two().await;
    let slow = Rates { prefill_tokens_per_s: Some(100.0), ..Rates::default() };
    for worker in &workers {
        worker.update(Vec::new(), Some(Load { rates: slow, ..idle() }));
    }
    let body = chat_body(&long_text("bread"), false);
    let planned = || async { dry_run(&router, &body).await.json::<Value>().await.expect("JSON") };
    eventually("both are slow", || async {
        let answer = planned().await;
        (0..2).all(|idx| answer["workers"][idx]["cost_ms"]["prefill"].as_f64() > Some(2000.0))
    })
    .await;
    assert!(planned().await["listen_ms_max"].as_f64() > Some(0.0), "nothing is known of others");
    let request = router.client.post(router.url("/v1/chat/completions")).header("x-request-id", "own");
    assert_eq!(request.body(body.clone()).send().await.expect("an answer").status(), 200);
    let n_listened = || router.metric("warmpath_router_backoff_seconds_count");
    assert_eq!(n_listened().await, 1.0);
    let named = |id| vec![Change::Accepted(RequestId::new(id).expect("a request id"))];
    workers[0].update(named("own"), Some(Load { rates: slow, free_cells: 7, ..idle() }));
    eventually("the frame has arrived", || async {
        planned().await["listen_ms_max"] == 0.0 && is_heard(&router).await
    })
    .await;

    workers[0].update(named("another's"), None);
    eventually("there is another router", || async {
        let answer = planned().await;
        let prefills = (0..2).filter_map(|idx| answer["workers"][idx]["cost_ms"]["prefill"].as_f64());
        let expected = (prefills.reduce(f64::min).expect("a cost") / 25.0).min(100.0);
        (answer["listen_ms_max"].as_f64().expect("a number") - expected).abs() < 0.01
    })
    .await;
    assert_eq!(n_listened().await, 1.0, "a dry run does not back off");
    assert_eq!(router.post("/v1/chat/completions", body.clone()).await.status(), 200);
    assert_eq!(n_listened().await, 2.0);
    let short = json!({"prompt": "a", "max_tokens": 1}).to_string();
    assert_eq!(router.post("/v1/completions", short).await.status(), 200);
    assert_eq!(n_listened().await, 2.0, "a short prompt goes at once");
}

async fn is_heard(router: &TestRouter) -> bool {
    router.fleet().await["workers"][0]["load"]["free_cells"] == 7
}

/// Sends a chat of these messages and asks where its prefix broke.
async fn prefix_break(router: &TestRouter, messages: &[(&str, &str)]) -> String {
    let messages: Vec<Value> =
        messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    let request = router.client.post(router.url("/v1/chat/completions")).header("x-warmpath-debug", "prefix");
    let response = request.body(json!({"messages": messages}).to_string()).send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    header(&response, "x-warmpath-prefix-break")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_changes_its_past_gets_the_place() {
    let (worker, router) = fleet_of_one().await;
    let (system, question, answer) = (long_text("rules"), long_text("bread"), long_text("flour"));
    let mut turns: Vec<(&str, &str)> = vec![("system", &system), ("user", &question)];
    assert_eq!(prefix_break(&router, &turns).await, "new");
    turns.extend([("assistant", answer.as_str()), ("user", "And salt?")]);
    assert_eq!(prefix_break(&router, &turns).await, "intact");
    assert!(worker.seen().iter().all(|seen| !seen.headers.contains_key("x-warmpath-debug")));

    let other = long_text("butter");
    turns[2].1 = &other;
    turns.extend([("assistant", "Some."), ("user", "And yeast?")]);
    let told = prefix_break(&router, &turns).await;
    assert!(told.ends_with("; message=2; role=assistant"), "{told}");
    let token: usize =
        told.strip_prefix("token=").and_then(|rest| rest.split(';').next()?.parse().ok()).expect("a token");
    assert!(token > 0 && token.is_multiple_of(16), "{told}");

    let stamped = format!("It is 12:01. {system}");
    turns[0].1 = &stamped;
    turns.extend([("assistant", "Some."), ("user", "And sugar?")]);
    let told = prefix_break(&router, &turns).await;
    assert!(told.ends_with("; message=0; role=system"), "{told}");
    for (line, expected) in [
        ("warmpath_router_prefix_breaks_total{role=\"assistant\"}", 1.0),
        ("warmpath_router_prefix_breaks_total{role=\"system\"}", 1.0),
        ("warmpath_router_conversations_total{continuity=\"new\"}", 1.0),
        ("warmpath_router_conversations_total{continuity=\"intact\"}", 1.0),
        ("warmpath_router_conversations_total{continuity=\"broken\"}", 2.0),
    ] {
        assert_eq!(router.metric(line).await, expected, "{line}");
    }
}

/// Sends a chat of a session and asks where its prefix broke.
async fn break_of_session(router: &TestRouter, session: &str, body: &Value) -> String {
    let request = router.client.post(router.url("/v1/chat/completions")).header("x-warmpath-debug", "prefix");
    let response =
        request.header("x-session-affinity", session).body(body.to_string()).send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    header(&response, "x-warmpath-prefix-break")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_session_is_recognized_by_its_id_and_its_tools_are_compared() {
    let (worker, router) = fleet_of_one().await;
    let (rules, question) = (long_text("rules"), long_text("bread"));
    let system = json!({"role": "system", "content": rules});
    let asked = |question: &str, tools: &str| {
        let said = [json!({"role": "user", "content": question}), json!({"role": "assistant", "content": "Some."})];
        let messages = json!([system, said[0], said[1], {"role": "user", "content": "And salt?"}]);
        let tools: Value = serde_json::from_str(tools).expect("tools");
        json!({"messages": messages, "tools": tools})
    };
    let tools = [
        r#"[{"type": "function", "function": {"name": "a", "parameters": {"type": "object", "title": "x"}}}]"#,
        r#"[{"type": "function", "function": {"parameters": {"title": "x", "type": "object"}, "name": "a"}}]"#,
    ];
    let mut first = asked(&question, tools[0]);
    first["messages"].as_array_mut().expect("messages").truncate(2);
    assert_eq!(break_of_session(&router, "a", &first).await, "new");
    let without_reminder = &question[question.len() / 2..];
    let resumed = asked(without_reminder, tools[0]);
    assert_eq!(break_of_session(&router, "b", &resumed).await, "new", "another session");

    let router = TestRouter::ready(&[&worker], &[]).await;
    break_of_session(&router, "a", &first).await;
    let told = break_of_session(&router, "a", &resumed).await;
    assert!(told.ends_with("; message=1; role=user"), "{told}");

    let router = TestRouter::ready(&[&worker], &[]).await;
    break_of_session(&router, "a", &first).await;
    let told = break_of_session(&router, "a", &asked(&question, tools[1])).await;
    assert!(told.ends_with("; role=tools; cause=tools equal but for order (of keys)"), "{told}");
    assert_eq!(router.metric("warmpath_router_prefix_breaks_total{role=\"tools\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sub_agent_with_its_own_system_prompt_breaks_no_prefix() {
    let (_worker, router) = fleet_of_one().await;
    let (system, other, question) = (long_text("rules"), long_text("memory"), long_text("bread"));
    let mut main: Vec<(&str, &str)> = vec![("system", &system), ("user", &question)];
    assert_eq!(prefix_break(&router, &main).await, "new");
    for _ in 0..3 {
        // It shares the user's messages.
        let mut sub: Vec<(&str, &str)> = main.iter().filter(|(role, _)| *role == "user").copied().collect();
        sub.insert(0, ("system", &other));
        sub.push(("user", "What is worth to be remembered?"));
        let told = prefix_break(&router, &sub).await;
        assert!(["new", "intact"].contains(&told.as_str()), "{told}");
        main.extend([("assistant", "Some."), ("user", "And salt?")]);
        assert_eq!(prefix_break(&router, &main).await, "intact");
    }
    assert_eq!(router.metric("warmpath_router_conversations_total{continuity=\"broken\"}").await, 0.0);
}

/// Returns a vocabulary like the fleet's that declares tools first, and the model that it is of.
fn tools_first() -> (Bytes, ModelInfo) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), &*VOCABULARY).expect("the vocabulary is written");
    let changes = VocabularyChanges { tools_first: true, ..VocabularyChanges::default() };
    let vocabulary = changed_vocabulary(file.path(), changes).expect("it is sound");
    std::fs::write(file.path(), &vocabulary).expect("the vocabulary is written");
    let maker = PromptMaker::open(file.path(), PromptOptions::default()).expect("it opens");
    let chat_template_fingerprint = maker.chat_template_fingerprint();
    (vocabulary.into(), ModelInfo { chat_template_fingerprint, ..model() })
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_behind_another_system_text_are_reported_unless_they_come_first() {
    let tool =
        json!({"type": "function", "function": {"name": "look", "description": long_text("tools"), "parameters": {}}});
    let [bread, butter] = ["bread", "butter"].map(long_text);
    for (is_first, n_expected) in [(false, 1.0), (true, 0.0)] {
        let worker = FakeWorker::start(1);
        if is_first {
            worker.with(|script| (script.vocabulary, script.summary.snapshot.model) = tools_first());
        }
        let router = TestRouter::ready(&[&worker], &[]).await;
        for (system, question, tools, is_told) in [
            (&bread, "a", json!([tool]), false),
            (&butter, "b", json!([tool]), !is_first),
            (&butter, "c", json!([tool]), false),
            (&bread, "d", json!([tool]), false),
            (&butter, "e", json!([tool, tool]), false),
            (&bread, "f", json!([]), false),
        ] {
            let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": question}]);
            let request = router.client.post(router.url("/v1/chat/completions")).header("x-warmpath-debug", "prefix");
            let body = json!({"messages": messages, "tools": tools});
            let response = request.body(body.to_string()).send().await.expect("an answer");
            let told = header(&response, "x-warmpath-prefix-break");
            assert!(response.status() == 200 && told != "unknown", "{told}");
            assert_eq!(told.ends_with("; tools=again"), is_told, "{question}: {told}");
        }
        assert_eq!(router.metric("warmpath_router_repeated_tools_total").await, n_expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_prefixes_are_counted_without_a_request_for_them() {
    let (_worker, router) = fleet_of_one().await;
    let response = router.chat(&long_text("bread")).await;
    assert_eq!(header(&response, "x-warmpath-prefix-break"), "");
    router.wait_for_metric("warmpath_router_conversations_total{continuity=\"new\"}", 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_chats_have_the_same_tokens_wherever_they_are_prepared() {
    let worker = FakeWorker::start(1);
    worker.with(|script| script.summary.snapshot.model = ModelInfo { context_tokens: 1 << 20, ..model() });
    let router = TestRouter::ready(&[&worker], &[]).await;
    let chat = |n_messages: usize, n_words: usize| {
        let message = |n: usize| {
            let role = if n.is_multiple_of(2) { "user" } else { "assistant" };
            json!({"role": role, "content": format!("{n} {}", "bread and salt, ".repeat(n_words / 3))})
        };
        json!({"messages": (0..n_messages).map(message).collect::<Vec<_>>()}).to_string()
    };
    // More new text than is tokenized on the reading thread, more messages than are rendered there, more bytes than are
    // parsed there.
    for (n_messages, n_words) in [(1, 3), (3, 3000), (201, 3), (41, 1500)] {
        let body = chat(n_messages, n_words);
        let whole = MAKER.chat(&serde_json::from_str(&body).expect("a chat")).expect("it renders").tokens.len();
        // Text that is new at first is cached the second time.
        for _ in 0..2 {
            let answer: Value = dry_run(&router, &body).await.json().await.expect("JSON");
            assert_eq!(answer["prompt"]["tokens"], json!(whole), "{} bytes: {}", body.len(), answer["prompt"]);
            assert_eq!(answer["prompt"]["blocks"], json!(whole / 16), "{}", answer["prompt"]);
        }
    }
}
