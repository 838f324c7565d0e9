//! State that a worker fetches from another over HTTP, and the conditions for it.
//!
//! Not here: peers that send wrong data (`evil_peers`), whether the tokens are correct in every layout (the engine's
//! tests).

use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use warmpath_bench::model::Preset;
use warmpath_common::block_hash::{BlockHash, ChainRoot, block_chain};
use warmpath_common::headers::{CACHE_SALT, KV_FETCHED, KV_PEER};
use warmpath_worker::config::Config;
use warmpath_worker::engine::CostSource;
use warmpath_worker_core::store::restore_costs::Costs;

use crate::cache::{compute, prompt};
use crate::harness::{TestWorker, folder, model, tiny};

const COMPLETIONS: &str = "/v1/completions";
const FLAGS: &str = "--slots 3 --block-size 32 --cache-ram 64 --kv-unified off --flash-attn off";

/// Returns a worker that assumes this time per computed token, and no time for restoring state.
pub async fn slow_worker(prefill_ms_per_token: f64, flags: &str) -> TestWorker {
    slow_worker_changed(prefill_ms_per_token, flags, |_| {}).await
}

/// Returns a worker as [`slow_worker`] does, with a change of its configuration.
pub async fn slow_worker_changed(
    prefill_ms_per_token: f64,
    flags: &str,
    change: impl FnOnce(&mut Config),
) -> TestWorker {
    let change = move |config: &mut Config| {
        config.engine.costs = CostSource::Given(Costs {
            prefill_ms_per_token,
            copy_ms_per_token: Some(0.0001),
            export_ms_per_token: Some(0.0001),
            import_ms_per_byte: 0.0,
            read_ms_per_byte: 0.0,
            suffix_rounding: None,
        });
        change(config);
    };
    TestWorker::start_changed(tiny(), &format!("{FLAGS} {flags}"), change).await
}

/// Returns a request with a prompt.
pub fn question(worker: &TestWorker, prompt: &Value) -> RequestBuilder {
    worker.post(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true}))
}

/// Result of a request with the hint of a peer.
pub struct Moved {
    pub text: String,
    pub n_cached: u64,
    /// Value of the response's header about the transfer.
    pub fetched: Option<String>,
}

/// Sends a request and reads its response.
pub async fn answer(request: RequestBuilder) -> Moved {
    let response: Response = request.send().await.expect("the worker responds");
    assert_eq!(response.status(), 200);
    let fetched = response.headers().get(KV_FETCHED).map(|value| value.to_str().expect("text").to_owned());
    let object: Value = response.json().await.expect("JSON");
    Moved {
        text: object["choices"][0]["text"].as_str().expect("a text").to_owned(),
        n_cached: object["timings"]["cache_n"].as_u64().expect("a number"),
        fetched,
    }
}

/// Returns the hint that a peer has this number of a prompt's first blocks.
pub fn hint(base: &str, n_blocks: usize) -> String {
    format!("{base};blocks={n_blocks}")
}

/// Returns the text of a response without the cache.
pub async fn uncached(worker: &TestWorker, prompt: &Value) -> String {
    let body = json!({
        "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true, "cache_prompt": false,
    });
    worker.ask(COMPLETIONS, body).await["choices"][0]["text"].as_str().expect("a text").to_owned()
}

/// Returns the chain of a prompt on this worker.
async fn chain(worker: &TestWorker, prompt: &Value) -> Vec<BlockHash> {
    let summary = worker.get_json("/internal/v1/summary").await;
    let fingerprint: warmpath_common::model::Fingerprint =
        serde_json::from_value(summary["model"]["fingerprint"].clone()).expect("a fingerprint");
    let tokens: Vec<u32> = serde_json::from_value(prompt.clone()).expect("tokens");
    let root = ChainRoot { model_fingerprint: &fingerprint.0, lora: b"", cache_salt: b"" }.hash();
    block_chain(&root, &tokens, 32)
}

async fn count(worker: &TestWorker, direction: &str, result: &str) -> f64 {
    let name = format!("kv_transfers_total{{direction=\"{direction}\",result=\"{result}\"}}");
    worker.try_metric(&name).await.unwrap_or(0.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_of_another_worker_is_fetched_and_the_answer_is_the_uncached_one() {
    let (holder, other) = (slow_worker(100.0, "").await, slow_worker(100.0, "").await);
    let first = prompt(1, 320);
    compute(&holder, &first).await;
    let _beside = other.begin_long().await;
    let moved = answer(question(&other, &first).header(KV_PEER, hint(holder.base(), 10))).await;
    assert_eq!(moved.n_cached, 319, "all but the last token, which is computed for its logits");
    let fetched = moved.fetched.expect("the response reports the transfer");
    let (bytes, ms) = fetched.split_once(';').expect("bytes and milliseconds");
    assert!(bytes.parse::<u64>().expect("bytes") > 0 && ms.parse::<u64>().is_ok(), "{fetched}");
    assert_eq!(moved.text, uncached(&other, &first).await);
    let n_blocks = "kv_transfer_blocks_total{direction=\"received\"}";
    assert_eq!((count(&other, "received", "ok").await, other.try_metric(n_blocks).await), (1.0, Some(10.0)));
    holder.until("the holder has sent it", async |holder| count(holder, "sent", "ok").await == 1.0).await;
    assert_eq!(holder.try_metric("kv_transfer_blocks_total{direction=\"sent\"}").await, Some(10.0));
    // The state is announced like any other, and is not fetched a second time.
    let again = answer(question(&other, &first).header(KV_PEER, hint(holder.base(), 10))).await;
    assert_eq!((again.text, again.fetched), (moved.text, None));
    let announced = other.get_json("/internal/v1/summary").await.to_string();
    let last = chain(&other, &first).await[9].key();
    assert!(announced.contains(&last.to_string()), "{last} is not in {announced}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_state_and_invalid_requests_are_refused_immediately() {
    let worker = slow_worker(100.0, "").await;
    let first = prompt(1, 320);
    compute(&worker, &first).await;
    let other = "ab".repeat(32);
    let key = chain(&worker, &first).await[9].to_string();
    let layout = "cd".repeat(32);
    for (path, status, code) in [
        (format!("{key}?blocks=10&layout={layout}"), 404, json!("kv_layout_mismatch")),
        (format!("{other}?blocks=10&layout={layout}"), 404, json!("kv_layout_mismatch")),
        (format!("{key}?blocks=0&layout={layout}"), 400, Value::Null),
        (format!("{key}?blocks=-1&layout={layout}"), 400, Value::Null),
        (format!("{key}?blocks=10"), 400, Value::Null),
        (format!("{key}?layout={layout}"), 400, Value::Null),
        (format!("{key}?blocks=10&layout=1"), 400, Value::Null),
        (format!("{key}?blocks=10&layout={layout}&or=x"), 400, Value::Null),
        (format!("{key}?blocks=10&layout={layout}&or={other}.0"), 400, Value::Null),
        (format!("{key}?blocks=10&layout={layout}&or={}", vec![format!("{other}.1"); 33].join(",")), 400, Value::Null),
        (format!("{}?blocks=10&layout={layout}", &key[1..]), 400, Value::Null),
        (format!("nothing?blocks=10&layout={layout}"), 400, Value::Null),
    ] {
        let response = worker.get(&format!("/internal/v1/kv/{path}")).await;
        let found = response.status().as_u16();
        let object: Value = response.json().await.expect("JSON");
        assert_eq!((found, &object["error"]["code"]), (status, &code), "{path}: {object}");
        crate::contract::check("get", &format!("/internal/v1/kv/{path}"), found, &object);
    }
    let peer = slow_worker(100.0, "").await;
    let moved = answer(question(&peer, &prompt(2, 320)).header(KV_PEER, hint(worker.base(), 10))).await;
    assert_eq!((moved.n_cached, moved.fetched.as_deref().map(|text| text.starts_with("0;"))), (0, Some(true)));
    assert_eq!((count(&peer, "received", "missing").await, count(&worker, "sent", "missing").await), (1.0, 1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_prefix_is_fetched_if_its_end_was_evicted() {
    let (holder, other) = (slow_worker(100.0, "").await, slow_worker(100.0, "").await);
    // A router that does not know of the eviction yet names all ten blocks.
    let whole: Vec<u32> = serde_json::from_value(prompt(1, 320)).expect("tokens");
    compute(&holder, &json!(whole[..200])).await;
    let moved = answer(question(&other, &json!(whole)).header(KV_PEER, hint(holder.base(), 10))).await;
    assert_eq!((moved.n_cached, count(&other, "received", "partial").await), (192, 1.0));
    assert_eq!(moved.text, uncached(&other, &json!(whole)).await);
    // A worker that has only a part of the run has no fault.
    compute(&holder, &prompt(2, 320)).await;
    let moved = answer(question(&other, &prompt(2, 320)).header(KV_PEER, hint(holder.base(), 10))).await;
    assert_eq!(moved.n_cached, 319);
}

#[tokio::test(flavor = "multi_thread")]
async fn state_of_another_salt_is_not_fetched_from_another_worker() {
    let (holder, other) = (slow_worker(100.0, "").await, slow_worker(100.0, "").await);
    let first = prompt(1, 320);
    answer(question(&holder, &first).header(CACHE_SALT, "one")).await;
    let asked = |salt: &'static str| question(&other, &first).header(CACHE_SALT, salt);
    let foreign = answer(asked("two").header(KV_PEER, hint(holder.base(), 10))).await;
    assert_eq!((foreign.n_cached, count(&other, "received", "missing").await), (0, 1.0));
    let own = answer(asked("one").header(KV_PEER, hint(holder.base(), 10))).await;
    assert_eq!((own.n_cached, count(&other, "received", "ok").await), (319, 1.0));
    assert_eq!(own.text, foreign.text, "the same prompt has the same response");
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_are_computed_if_the_layout_differs_or_transfers_are_off() {
    let (holder, off) = (slow_worker(100.0, "").await, slow_worker(100.0, "--no-kv-transfer").await);
    let quantized = slow_worker(100.0, "--cache-type-k q8_0").await;
    let first = prompt(1, 320);
    compute(&holder, &first).await;
    let moved = answer(question(&quantized, &first).header(KV_PEER, hint(holder.base(), 10))).await;
    assert_eq!((moved.n_cached, moved.text), (0, uncached(&quantized, &first).await));
    assert_eq!(count(&holder, "sent", "layout").await, 1.0);
    let moved = answer(question(&off, &first).header(KV_PEER, hint(holder.base(), 10))).await;
    assert_eq!((moved.n_cached, moved.fetched), (0, None));
    let moved = answer(question(&quantized, &prompt(2, 320)).header(KV_PEER, hint(off.base(), 10))).await;
    assert_eq!(moved.n_cached, 0);
    let path = format!("/internal/v1/kv/{}?blocks=1&layout={}", "ab".repeat(32), "ab".repeat(32));
    let object: Value = off.get(&path).await.json().await.expect("JSON");
    assert_eq!(object["error"]["code"], "kv_transfer_off", "{object}");
    let sliding = TestWorker::start_model(&model(Preset::TinySwa, 1), FLAGS).await;
    let object: Value = sliding.get(&path).await.json().await.expect("JSON");
    assert_eq!(object["error"]["code"], "kv_transfer_off", "{object}");
    for (worker, declares) in [(&holder, true), (&quantized, true), (&off, false), (&sliding, false)] {
        let declared = worker.get_json("/internal/v1/summary").await["model"]["kv_transfer"].clone();
        assert_eq!(declared["bytes_per_token"].as_u64().is_some_and(|bytes| bytes > 0), declares, "{declared}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_sends_the_fleet_s_token_and_ignores_hints_to_other_machines_without_one() {
    let path = folder().join(format!("kv-token-{}", std::process::id()));
    let token = "t".repeat(32);
    std::fs::write(&path, &token).expect("it can be written");
    let with_token = format!("--fleet-token-file {}", path.display());
    let holder = slow_worker(100.0, &with_token).await;
    let (other, open) = (slow_worker(100.0, &with_token).await, slow_worker(100.0, "").await);
    let first = prompt(1, 320);
    answer(question(&holder, &first).bearer_auth(&token)).await;
    let moved = answer(question(&other, &first).bearer_auth(&token).header(KV_PEER, hint(holder.base(), 10))).await;
    assert_eq!(moved.n_cached, 319);
    // A worker without the token is refused, and computes.
    let moved = answer(question(&open, &first).header(KV_PEER, hint(holder.base(), 10))).await;
    assert_eq!((moved.n_cached, count(&open, "received", "refused").await), (0, 1.0));
    // 192.0.2.1 is not in use, so the worker would wait for a response from it.
    for peer in ["http://192.0.2.1:8081", "http://localhost.example:8081", "http://[2001:db8::1]:8081"] {
        let moved = answer(question(&open, &prompt(2, 320)).header(KV_PEER, hint(peer, 10))).await;
        assert_eq!(moved.fetched, None, "{peer}");
    }
    for wrong in ["", "nonsense", "http://127.0.0.1:1", "file:///etc/passwd;blocks=3"] {
        let moved = answer(question(&open, &prompt(3, 320)).header(KV_PEER, wrong)).await;
        assert_eq!(moved.fetched, None, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_with_hints_to_each_other_both_answer() {
    let (one, two) = (slow_worker(100.0, "").await, slow_worker(100.0, "").await);
    let first = prompt(1, 320);
    let of_one = answer(question(&one, &first).header(KV_PEER, hint(two.base(), 10)));
    let of_two = answer(question(&two, &first).header(KV_PEER, hint(one.base(), 10)));
    let (of_one, of_two) = tokio::join!(of_one, of_two);
    assert_eq!(of_one.text, of_two.text);
    assert_eq!(of_one.text, uncached(&one, &first).await);
    // A worker with a hint to itself gets no state, either.
    let itself = answer(question(&one, &prompt(2, 320)).header(KV_PEER, hint(one.base(), 10))).await;
    assert_eq!(itself.n_cached, 0);
}
