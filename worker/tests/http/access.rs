//! The worker's token: which clients are accepted, which paths need no token, and a file that changes.
//!
//! Not here: the file's form (`warmpath-shell`), routers (`router/tests/http/tokens.rs`).

use serde_json::{Value, json};

use crate::harness::{TestWorker, folder};

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_token_is_an_error_in_the_api_s_own_format() {
    let (old, new) = ("o".repeat(32), "n".repeat(32));
    let path = folder().join("token");
    std::fs::write(&path, &old).expect("it can be written");
    let worker = TestWorker::start(&format!("--fleet-token-file {}", path.display())).await;
    for open in ["/health", "/v1/health", "/livez", "/readyz", "/metrics", "/metrics/", "//health"] {
        assert_eq!(worker.get(open).await.status(), 200, "{open}");
    }
    let chat = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2});
    let (status, _) = worker.try_ask("/v1/chat/completions", &chat).await;
    assert_eq!(status, 401, "as the document says");
    for request in [
        worker.request("/v1/models"),
        worker.request("/internal/v1/summary"),
        worker.request("/nowhere"),
        worker.request("//v1//models/"),
        worker.post("/v1/chat/completions", &chat),
        worker.post("/v1/chat/completions", &chat).bearer_auth(&new),
        worker.post("/v1/chat/completions", &chat).bearer_auth(&old[1..]),
        worker.post("/v1/chat/completions", &chat).header("authorization", &old),
        worker.post("/v1/chat/completions", &chat).header("x-api-key", &new),
    ] {
        let response = request.send().await.expect("the worker responds");
        assert_eq!(
            (response.status().as_u16(), response.headers()["www-authenticate"].as_bytes()),
            (401, &b"Bearer"[..])
        );
        let error = response.json::<Value>().await.expect("JSON")["error"].clone();
        assert_eq!((&error["type"], &error["code"]), (&json!("authentication_error"), &json!("invalid_api_key")));
    }
    assert_eq!(worker.metric("auth_failures_total").await, 10.0);
    let response = worker.post("/v1/messages", &chat).send().await.expect("the worker responds");
    let body: Value = response.json().await.expect("JSON");
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("authentication_error")));

    let status = async |token: &str| {
        let request = worker.post("/v1/chat/completions", &chat).bearer_auth(token);
        request.send().await.expect("the worker responds").status().as_u16()
    };
    assert_eq!((status(&old).await, status(&new).await), (200, 401));
    let anthropic = worker.post("/v1/messages", &chat).header("x-api-key", &old);
    assert_eq!(anthropic.send().await.expect("the worker responds").status(), 200);

    std::fs::write(&path, "too short").expect("it can be written");
    worker.until("the wrong file is read", async |worker| worker.metric("token_file_failures_total").await > 0.0).await;
    assert_eq!(status(&old).await, 200, "a wrong file changes nothing");
    std::fs::write(&path, format!("{old}\n{new}")).expect("it can be written");
    worker.until("the new token is accepted", async |_| status(&new).await == 200).await;
    assert_eq!(status(&old).await, 200, "both tokens are accepted");
    std::fs::write(&path, &new).expect("it can be written");
    worker.until("the old token is refused", async |_| status(&old).await == 401).await;
    assert_eq!(status(&new).await, 200);
}
