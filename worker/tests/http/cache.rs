//! `/cache` and `/cache/clear`: the cache shows the computed prompts in pages, and clearing leaves only the state of
//! running requests.
//!
//! Not here: pins (`pins`), saved slots (`slot_files`), which state is kept for how long (the engine's own tests).

use futures::StreamExt;
use serde_json::{Value, json};
use warmpath_bench::model::Preset;
use warmpath_common::headers::{PRIORITY_MAX, TENANT};

use crate::harness::{TestWorker, model, user};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Returns a prompt of `n` tokens that has no common prefix with that of another seed.
pub fn prompt(seed: u32, n: u32) -> Value {
    json!((0..n).map(|at| 300 + (seed * 7919 + at * (seed + 13)) % 400).collect::<Vec<u32>>())
}

/// Computes a prompt and returns how many of its tokens were reused.
pub async fn compute(worker: &TestWorker, prompt: &Value) -> u64 {
    let answer = worker.ask(COMPLETIONS, json!({"prompt": prompt, "max_tokens": 1, "temperature": 0})).await;
    answer["timings"]["cache_n"].as_u64().expect("a number")
}

/// Returns one number of a tier.
pub async fn held(worker: &TestWorker, tier: &str, what: &str) -> u64 {
    let cache = worker.get_json("/cache?entries=0").await;
    cache["tiers"][tier][what].as_u64().unwrap_or_else(|| panic!("{tier}.{what} is not in {cache}"))
}

#[tokio::test]
async fn the_cache_shows_computed_prompts_in_pages_and_clearing_removes_them() {
    let worker = TestWorker::start("--slots 2 --block-size 32 --cache-ram 64 --kv-unified off --flash-attn off").await;
    let (short, long) = (prompt(1, 200), prompt(2, 700));
    assert_eq!((compute(&worker, &short).await, compute(&worker, &long).await), (0, 0));
    // The prompts have 6 and 21 whole blocks of 32 tokens, which are stored once the worker is idle.
    let all_stored = async |worker: &TestWorker| held(worker, "ram", "tokens").await == 192 + 672;
    worker.until("all whole blocks are stored", all_stored).await;
    let cache = worker.get_json("/cache").await;
    let (resident, ram) = (&cache["tiers"]["resident"], &cache["tiers"]["ram"]);
    assert_eq!((&resident["entries"], &resident["tokens"]), (&json!(2), &json!(900)));
    let token_bytes = ram["bytes"].as_u64().expect("a number") / 864;
    assert!(token_bytes > 0);
    assert_eq!(ram["bytes"], token_bytes * 864, "all tokens take the same number of bytes");
    assert_eq!(resident["bytes"], token_bytes * 900);
    assert_eq!(cache["tiers"]["disk"], json!({"entries": 0, "tokens": 0, "bytes": 0}));
    assert_eq!((&cache["limits"]["ram_bytes"], &cache["limits"]["block_tokens"]), (&json!(64 << 20), &json!(32)));

    let entries = cache["entries"].as_array().expect("an array");
    assert_eq!(ram["entries"], entries.len());
    let sizes: Vec<Option<u64>> = entries.iter().map(|entry| entry["tokens"].as_u64()).collect();
    assert_eq!(sizes.iter().flatten().sum::<u64>(), 864);
    for entry in entries {
        assert_eq!(entry["bytes"], entry["tokens"].as_u64().expect("a number") * token_bytes, "{entry}");
        assert_eq!((&entry["kind"], &entry["tier"], &entry["hits"]), (&json!("chunk"), &json!("ram"), &json!(0)));
        assert_eq!((&entry["on_disk"], &entry["pinned"]), (&json!(false), &json!(false)));
        assert!(entry["age_s"].as_f64() >= entry["idle_s"].as_f64() && entry["idle_s"].as_f64() >= Some(0.0));
    }
    let mut paged = Vec::new();
    let mut after = Value::Null;
    loop {
        let from = if after.is_null() { String::new() } else { format!("&after={after}") };
        let page = worker.get_json(&format!("/cache?entries=2{from}")).await;
        let on_page = page["entries"].as_array().expect("an array");
        assert!(on_page.len() <= 2);
        paged.extend(on_page.iter().map(|entry| entry["id"].clone()));
        after = page["next_after"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(paged, entries.iter().map(|entry| entry["id"].clone()).collect::<Vec<_>>());

    let cleared = worker.ask("/cache/clear", json!({})).await;
    assert_eq!(cleared["cleared"], cache["tiers"]);
    let after = worker.get_json("/cache").await;
    let nothing = json!({"entries": 0, "tokens": 0, "bytes": 0});
    assert_eq!(after["tiers"], json!({"resident": nothing, "ram": nothing, "disk": nothing}));
    assert_eq!(after["evicted"][0]["reason"], "cleared");
    assert_eq!((&after["evicted"][0]["tokens"], &after["entries"]), (&json!(864), &json!([])));
    assert_eq!(
        (compute(&worker, &short).await, compute(&worker, &long).await),
        (0, 0),
        "state was left after clearing"
    );
}

#[tokio::test]
async fn the_router_s_headers_set_tenant_and_priority() {
    let worker = TestWorker::start("--slots 1 --block-size 32 --cache-ram 1 --kv-unified off --flash-attn off").await;
    let send = async |n: u32, (priority, most): (i32, i32), stored: u64| {
        let body =
            json!({"prompt": prompt(n, 160), "max_tokens": 1, "priority": priority, "cache_salt": n.to_string()});
        let request = worker.post(COMPLETIONS, &body).header(TENANT, "team").header(PRIORITY_MAX, most);
        assert_eq!(request.send().await.expect("an answer").status(), 200);
        let is_stored = async |worker: &TestWorker| held(worker, "ram", "tokens").await == stored;
        worker.until("it is stored", is_stored).await;
    };
    // The store has room for 512 tokens in chunks of 32.
    send(1, (100, 0), 160).await;
    send(2, (1, 2), 320).await;
    let cache = worker.get_json("/cache").await;
    let tenants = cache["tenants"].as_array().expect("an array");
    assert_eq!((tenants.len(), &tenants[0]["ram_bytes"]), (1, &cache["tiers"]["ram"]["bytes"]), "{cache}");
    assert_eq!((&tenants[0]["resident_tokens"], &tenants[0]["disk_bytes"]), (&json!(160), &json!(0)));
    let shown = tenants[0]["tenant"].as_str().expect("text");
    assert!(shown.len() == 8 && shown.bytes().all(|byte| byte.is_ascii_hexdigit()), "{shown}");
    send(3, (0, 0), 480).await;
    send(4, (0, 0), 512).await;
    let n_left = async |ids: std::ops::Range<u64>| {
        let cache = worker.get_json("/cache").await;
        let entries = cache["entries"].as_array().expect("an array").clone();
        entries.iter().filter_map(|entry| entry["id"].as_u64()).filter(|id| ids.contains(id)).count()
    };
    assert_eq!(n_left(0..5).await, 1, "a priority of 100 counts as 0, so the oldest chunks are evicted");
    worker
        .get("/metrics")
        .await
        .text()
        .await
        .expect("text")
        .lines()
        .find(|line| *line == "warmpath_worker_cache_tenants{tier=\"ram\"} 1")
        .expect("one tenant");
    let body = json!({"prompt": prompt(5, 160), "max_tokens": 1});
    let request = worker.post(COMPLETIONS, &body).header(TENANT, "team");
    assert_eq!(request.send().await.expect("an answer").status(), 200);
    worker.until("the rest of the first is evicted", async |_: &TestWorker| n_left(0..5).await == 0).await;
    assert_eq!(n_left(5..10).await, 5, "a priority of 1 is allowed");
}

#[tokio::test]
async fn clearing_does_not_disturb_running_requests() {
    let worker = TestWorker::start("--slots 2").await;
    compute(&worker, &prompt(1, 100)).await;
    let mut running = worker.begin_long().await;
    let cleared = worker.ask("/cache/clear", json!({})).await;
    assert_eq!(cleared["cleared"]["resident"]["entries"], 1, "only the idle slot is cleared: {cleared}");
    assert_eq!(held(&worker, "resident", "entries").await, 1);
    for _ in 0..20 {
        assert!(running.next().await.is_some_and(|chunk| chunk.is_ok()), "the stream continues");
    }
}

#[tokio::test]
async fn answers_and_metrics_show_the_tier_of_the_reused_tokens() {
    let worker = TestWorker::start("--slots 1 --block-size 32 --cache-ram 64 --flash-attn off").await;
    let (one, other) = (prompt(1, 320), prompt(2, 320));
    let timings = async |prompt: &Value| {
        let answer = worker.ask(COMPLETIONS, json!({"prompt": prompt, "max_tokens": 1, "temperature": 0})).await;
        let timings = answer["timings"].clone();
        let (reused, computed) = (timings["cache_n"].as_f64(), timings["prompt_n"].as_f64());
        let (reused, computed) = (reused.expect("a number"), computed.expect("a number"));
        assert_eq!(reused + computed, 320.0);
        assert_eq!(timings["prefix_cache_ratio"], reused / 320.0);
        timings["prefix_cache_tokens"].clone()
    };
    assert_eq!(timings(&one).await, json!({"resident": 0, "ram": 0, "disk": 0, "shifted": 0}));
    let resident = timings(&one).await["resident"].as_u64().expect("a number");
    assert_eq!(resident, 319, "all but the last token, which is computed for its logits");
    assert_eq!(timings(&other).await, json!({"resident": 0, "ram": 0, "disk": 0, "shifted": 0}));
    let from_ram = timings(&one).await;
    assert!(from_ram["ram"].as_u64() >= Some(288), "the state was not restored from RAM: {from_ram}");

    let metrics = worker.get("/metrics").await.text().await.expect("text");
    for (tier, expected) in [("resident", resident), ("ram", from_ram["ram"].as_u64().expect("a number")), ("disk", 0)]
    {
        let line = format!("warmpath_worker_prefix_cache_tokens_total{{tier=\"{tier}\"}} {expected}\n");
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
    assert_eq!(worker.metric("prefix_cache_ratio_count").await, 4.0);
    assert!(worker.metric("restores_total").await >= 1.0 && worker.metric("restore_seconds_total").await > 0.0);
    assert!(worker.metric("saved_tokens_total").await >= 320.0);
    let agree = async |worker: &TestWorker| {
        let ram_tokens = held(worker, "ram", "tokens").await;
        let metrics = worker.get("/metrics").await.text().await.expect("text");
        ram_tokens == 640 && metrics.contains("warmpath_worker_cache_tokens{tier=\"ram\"} 640\n")
    };
    worker.until("both prompts are stored, also according to the metrics", agree).await;
}

#[tokio::test]
async fn invalid_queries_are_refused() {
    let worker = TestWorker::start("--slots 1").await;
    for (query, says) in
        [("entries=many", "query"), ("entries=-1", "query"), ("entries=10001", "10000"), ("after=x", "query")]
    {
        let response = worker.get(&format!("/cache?{query}")).await;
        assert_eq!(response.status(), 400, "{query}");
        let error: Value = response.json().await.expect("an error is JSON");
        assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains(says)), "{query}: {error}");
    }
}

#[tokio::test]
async fn a_model_that_cannot_be_rewound_resumes_at_the_end_of_its_instructions() {
    let flags = "--slots 1 --block-size 32 --cache-ram 64 --flash-attn off";
    let worker = TestWorker::start_model(&model(Preset::TinyHybrid, 1), flags).await;
    let system = "You are a careful clerk who answers in one line. ".repeat(12);
    let ask = async |question: &str| {
        let mut messages = json!([{"role": "system", "content": system}]);
        messages.as_array_mut().expect("an array").extend(user(question).as_array().expect("an array").clone());
        let answer = worker.ask(CHAT, json!({"messages": messages, "max_tokens": 1, "temperature": 0})).await;
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        (usage["prompt_tokens"].as_u64().expect("a number"), cached)
    };
    let question = "Which of the boats in the harbour belongs to the baker, and since when? ".repeat(6);
    let (n_prompt, cached) = ask(&question).await;
    assert_eq!(cached, 0);
    let (n_short, cached) = ask("Hello").await;
    assert!(n_prompt > n_short + 64, "the questions differ in more than a block: {n_prompt}, {n_short}");
    assert!(
        cached > 0 && cached + 32 + 32 > n_short,
        "resumed at {cached} of {n_short} tokens, not at the block where its instructions end"
    );
    assert!(worker.metric("checkpoint_uses_total").await >= 1.0);
}
