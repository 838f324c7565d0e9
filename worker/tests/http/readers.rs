//! Clients that stop reading their streams.

use serde_json::json;

use crate::harness::{TestWorker, user};

#[tokio::test]
async fn a_client_that_stops_reading_is_cut_off_and_its_slot_is_free() {
    let worker = TestWorker::start("--slots 1 --ctx-size 16384 --idle-timeout 0.5").await;
    let chat = json!({"messages": user("It goes on"), "logprobs": true, "top_logprobs": 20});
    let native = json!({"prompt": "It goes on", "n_probs": 20});
    let mut unread = Vec::new();
    for (path, mut body) in [("/v1/chat/completions", chat), ("/completion", native)] {
        for (field, value) in [("stream", json!(true)), ("ignore_eos", json!(true)), ("temperature", json!(0))] {
            body[field] = value;
        }
        let response = worker.post(path, &body).send().await.expect("the worker responds");
        assert!(response.status().is_success(), "{path}");
        unread.push(response);
        let n_cut_off = f64::from(u32::try_from(unread.len()).expect("a few"));
        worker
            .until("its sequence has ended", async |worker| {
                worker.metric("sequences_cancelled_total").await == n_cut_off
            })
            .await;
    }
    worker.ask("/v1/completions", json!({"prompt": "Others go on", "max_tokens": 3})).await;
    worker.stop().await.expect("it was asked to stop");
}
