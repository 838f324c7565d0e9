//! `/cache/pin`: pinned prefixes are not evicted, and invalid pins are refused.
//!
//! Not here: the share of the store that pins may take (`warmpath_worker_core`).

use std::time::Duration;

use serde_json::{Value, json};
use warmpath_worker::config::Config;

use crate::cache::{compute, held, prompt};
use crate::harness::{TestWorker, tiny, user};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_pinned_prefix_survives_a_flood_and_others_do_not() {
    let flags = "--slots 1 --block-size 32 --cache-ram 2 --flash-attn off";
    let hold_nothing = |config: &mut Config| config.engine.store.min_hold = Duration::ZERO;
    let worker = TestWorker::start_changed(tiny(), flags, hold_nothing).await;
    let (pinned, other) = (prompt(1, 320), prompt(2, 320));
    // The prefix is pinned before any of it is stored.
    let pin = worker.ask("/cache/pin", json!({"prompt": pinned, "name": "house-rules"})).await;
    assert_eq!(pin, json!({"id": "house-rules", "tokens": 320, "blocks": 10, "stored_bytes": 0, "kept_bytes": 0}));
    assert_eq!((compute(&worker, &pinned).await, compute(&worker, &other).await), (0, 0));
    let stored = async |worker: &TestWorker| held(worker, "ram", "tokens").await == 640;
    worker.until("both are stored", stored).await;
    let room = worker.get_json("/cache").await;
    let bytes = room["tiers"]["ram"]["bytes"].as_u64().expect("a number");
    let n_floods = u32::try_from((6 << 20) / (bytes / 2)).expect("a small number");
    for seed in 0..n_floods {
        assert_eq!(compute(&worker, &prompt(10 + seed, 320)).await, 0);
    }
    let pins = worker.get_json("/cache/pin").await;
    assert_eq!(pins["pins"][0]["id"], "house-rules");
    assert_eq!(pins["pins"][0]["stored_bytes"], bytes / 2);
    assert_eq!(pins["pins"][0]["kept_bytes"], bytes / 2);
    assert!(compute(&worker, &pinned).await >= 288, "the pinned prompt was evicted");
    assert_eq!(compute(&worker, &other).await, 0, "the flood was too small");
    let evicted = worker.get_json("/cache").await["evicted"].clone();
    assert_eq!((&evicted[0]["tier"], &evicted[0]["reason"]), (&json!("ram"), &json!("capacity")), "{evicted}");
}

#[tokio::test]
async fn a_pinned_start_of_a_conversation_serves_all_its_continuations() {
    let worker = TestWorker::start("--slots 1 --block-size 32 --cache-ram 64 --flash-attn off").await;
    let system = json!({"role": "system", "content": "You are a careful clerk. ".repeat(20)});
    let pin = worker.ask("/cache/pin", json!({"messages": [system], "cache_salt": "a"})).await;
    let id = pin["id"].as_str().expect("a derived name").to_owned();
    let again = worker.ask("/cache/pin", json!({"messages": [system], "cache_salt": "a"})).await;
    assert_eq!(again["id"], id, "the same prefix is the same pin");
    let other = worker.ask("/cache/pin", json!({"messages": [system], "cache_salt": "b"})).await;
    assert_ne!(other["id"], id, "another tenant's prefix is another");
    let mut messages = vec![system];
    messages.extend(user("Who has the keys?").as_array().expect("an array").clone());
    worker.ask(CHAT, json!({"messages": messages, "max_tokens": 1, "cache_salt": "a"})).await;
    let pins = async |worker: &TestWorker| worker.get_json("/cache/pin").await["pins"].clone();
    let is_kept = async |worker: &TestWorker| {
        let pins = pins(worker).await;
        pins[0]["kept_bytes"].as_u64() > Some(0) && pins[0]["kept_bytes"] == pins[0]["stored_bytes"]
    };
    worker.until("the stored part of the pinned prefix is kept", is_kept).await;
    let pinned = worker.get_json("/cache").await;
    assert!(pinned["entries"].as_array().expect("an array").iter().any(|entry| entry["pinned"] == true), "{pinned}");
    assert_eq!(pins(&worker).await[1]["stored_bytes"], 0, "the other tenant has sent nothing");

    worker.ask("/cache/clear", json!({})).await;
    assert_eq!(pins(&worker).await.as_array().map(Vec::len), Some(2), "pins are names of prefixes, not of state");
    assert_eq!(worker.delete(&format!("/cache/pin/{id}")).await, (200, json!({"id": id, "unpinned": true})));
    let (status, error) = worker.delete(&format!("/cache/pin/{id}")).await;
    assert_eq!((status, &error["error"]["code"]), (404, &json!("pin_not_found")), "{error}");
}

#[tokio::test]
async fn a_name_that_is_used_again_names_the_new_prefix() {
    let worker = TestWorker::start("--slots 1 --block-size 32 --cache-ram 64").await;
    for (n_tokens, n_pinned) in [(100, 96), (64, 64)] {
        let pin = worker.ask("/cache/pin", json!({"prompt": prompt(1, n_tokens), "name": "x"})).await;
        assert_eq!(pin["tokens"], n_pinned);
    }
    assert_eq!(worker.get_json("/cache/pin").await["pins"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn invalid_pins_are_refused_with_the_name_of_the_field() {
    let worker = TestWorker::start("--slots 1 --block-size 32 --ctx-size 512 --cache-ram 64").await;
    let cases: [(Value, &str, &str); 9] = [
        (json!({}), "messages", "missing"),
        (json!({"messages": [], "prompt": "a"}), "prompt", "not both"),
        (json!({"messages": []}), "messages", "empty"),
        (json!({"prompt": 7}), "prompt", "array of token ids"),
        (json!({"prompt": prompt(1, 31)}), "prompt", "a block of 32"),
        (json!({"prompt": [prompt(1, 32), prompt(2, 32)]}), "prompt", "one prompt"),
        (json!({"prompt": vec![99_999_999; 32]}), "prompt", "token 99999999"),
        (json!({"prompt": prompt(1, 32), "name": "a/b"}), "name", "letters"),
        (json!({"prompt": prompt(1, 32), "name": ""}), "name", "1 to 64"),
    ];
    for (body, param, says) in cases {
        let (status, answer) = worker.try_ask("/cache/pin", &body).await;
        let error = &answer["error"];
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{body}: {error}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(says)), "{body}: {error}");
    }
    let (status, answer) = worker.try_ask("/cache/pin", &json!({"prompt": prompt(1, 512)})).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")));
    let (status, _) = worker.try_ask("/cache/pin", &json!({"prompt": prompt(1, 32), "model": "gpt-9"})).await;
    assert_eq!(status, 404);
    assert_eq!(worker.get_json("/cache/pin").await, json!({"pins": []}));
}

#[tokio::test]
async fn there_are_at_most_256_pins() {
    let worker = TestWorker::start("--slots 1 --block-size 32 --cache-ram 64").await;
    for seed in 0..256 {
        worker.ask("/cache/pin", json!({"prompt": prompt(seed, 32), "name": seed.to_string()})).await;
    }
    let (status, answer) = worker.try_ask("/cache/pin", &json!({"prompt": prompt(999, 32)})).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("too_many_pins")), "{answer}");
    worker.ask("/cache/pin", json!({"prompt": prompt(999, 32), "name": "7"})).await;
    assert_eq!(worker.delete("/cache/pin/7").await.0, 200);
    worker.ask("/cache/pin", json!({"prompt": prompt(999, 32)})).await;
}

#[tokio::test]
async fn a_worker_without_a_store_refuses_pins() {
    for flags in ["--slots 1 --cache-ram 0", "--slots 1 --disable-prefix-cache"] {
        let worker = TestWorker::start(flags).await;
        let (status, answer) = worker.try_ask("/cache/pin", &json!({"prompt": prompt(1, 32)})).await;
        assert_eq!((status, &answer["error"]["type"]), (501, &json!("not_supported_error")), "{answer}");
        assert_eq!(held(&worker, "ram", "tokens").await, 0);
    }
}
