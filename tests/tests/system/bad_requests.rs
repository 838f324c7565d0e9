//! Every invalid request through the router gets OpenAI's error object with a suitable status.
//!
//! Refusals for lack of workers are in `failures`.

use serde_json::{Value, json};
use warmpath_bench::prompts::words;
use warmpath_tests::rig::{MODEL_NAME, Reply, Rig, SLOT_CONTEXT_TOKENS};

/// Checks that `reply` is OpenAI's error object with this status and code, and returns its message.
fn check(reply: &Reply, status: u16, code: &str) -> String {
    assert_eq!(reply.status, status, "{}", reply.text);
    let error = &reply.json()["error"];
    assert!(error["type"].is_string() && error.get("param").is_some(), "{error}");
    assert_eq!(error["code"].as_str().unwrap_or_default(), code, "{error}");
    assert!(!reply.header("x-request-id").is_empty());
    error["message"].as_str().unwrap_or_default().to_owned()
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

async fn raw(rig: &Rig, path: &str, body: String) -> anyhow::Result<Reply> {
    let url = format!("{}{path}", rig.router_url());
    let response = rig.http.post(url).header("content-type", "application/json").body(body).send().await?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Ok(Reply { status, headers, text: response.text().await? })
}

#[tokio::test]
async fn wrong_requests_get_typed_errors() -> anyhow::Result<()> {
    let rig = Rig::start(1, &[]).await?;
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let message = check(&raw(&rig, path, "{\"messages\": [".to_owned()).await?, 400, "invalid_json");
        assert!(message.contains("JSON"), "{message}");
        raw(&rig, path, String::new()).await.map(|reply| assert_eq!(reply.status, 400, "{}", reply.text))?;
        raw(&rig, path, "[1, 2]".to_owned()).await.map(|reply| assert_eq!(reply.status, 400, "{}", reply.text))?;
        raw(&rig, path, "{}".to_owned()).await.map(|reply| assert_eq!(reply.status, 400, "{}", reply.text))?;
    }
    for (field, wrong) in [
        ("messages", json!("hello")),
        ("messages", json!([])),
        ("messages", json!([{"content": "no role"}])),
        ("max_tokens", json!("many")),
        ("max_tokens", json!(-5)),
        ("temperature", json!("hot")),
        ("stop", json!({"a": 1})),
        ("stream", json!("yes")),
    ] {
        let mut body = json!({"messages": user("hi"), "max_tokens": 2});
        body[field] = wrong.clone();
        let reply = rig.chat(&body).await?;
        assert_eq!(reply.status, 400, "{field} = {wrong}: {}", reply.text);
        let error = &reply.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["param"].as_str().is_some_and(|param| param.starts_with(field)), "{field} = {wrong}: {error}");
    }
    let reply = rig.chat(&json!({"messages": user("hi"), "model": "another"})).await?;
    let message = check(&reply, 404, "model_not_found");
    assert!(message.contains("another") && message.contains(MODEL_NAME), "{message}");
    assert_eq!(rig.get(&format!("{}/nowhere", rig.router_url())).await?.status, 404);
    assert_eq!(rig.get(&format!("{}/v1/chat/completions", rig.router_url())).await?.status, 405);
    let good = rig.chat(&json!({"messages": user("hi"), "model": MODEL_NAME, "max_tokens": 2})).await?;
    assert_eq!(good.status, 200, "{}", good.text);
    Ok(())
}

#[tokio::test]
async fn refusals_name_the_limit() -> anyhow::Result<()> {
    let rig = Rig::start_with(1, &["--queue-max", "1"], &["--body-max", "100000", "--queue-max", "0"]).await?;
    let reply = rig.chat(&json!({"messages": user(&words(1, 5_000))})).await?;
    let message = check(&reply, 400, "context_length_exceeded");
    assert!(message.contains(&SLOT_CONTEXT_TOKENS.to_string()), "{message}");
    let numbers = message.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<usize>().ok());
    assert!(numbers.into_iter().any(|n| n > SLOT_CONTEXT_TOKENS), "the prompt's length is named too: {message}");

    let reply = rig.chat(&json!({"messages": user(&"x".repeat(100_001))})).await?;
    check(&reply, 413, "request_too_large");

    // Three slots, a queue of one in the worker and none in the router: at least four of eight endless requests are
    // refused.
    let endless = json!({"messages": user("go on"), "ignore_eos": true, "max_tokens": 300, "temperature": 0});
    let replies = futures::future::join_all((0..8).map(|_| rig.chat(&endless))).await;
    let refused: Vec<Reply> = replies.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let refused: Vec<&Reply> = refused.iter().filter(|reply| reply.status != 200).collect();
    assert!(refused.len() >= 4, "{} of 8 were refused", refused.len());
    for reply in refused {
        check(reply, 429, "queue_full");
        assert!(!reply.header("retry-after").is_empty());
    }
    Ok(())
}

#[tokio::test]
async fn a_template_s_refusal_reaches_the_client() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let template = folder.path().join("strict.jinja");
    std::fs::write(&template, "{{ raise_exception('this template takes no messages') }}")?;
    let rig = Rig::start_with(1, &["--chat-template-file", &template.display().to_string()], &[]).await?;
    let reply = rig.chat(&json!({"messages": user("hi")})).await?;
    assert_eq!(reply.status, 400, "{}", reply.text);
    assert!(reply.text.contains("this template takes no messages"), "{}", reply.text);
    Ok(())
}
