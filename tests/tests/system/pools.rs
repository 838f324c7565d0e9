//! Several models behind one router: two that generate, one that embeds, one that ranks; a pool for each.
//!
//! The worker's own tests cover the content of answers and vectors; routing within a pool is in `predictions`.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use warmpath_bench::model::Preset;
use warmpath_tests::rig::{Reply, Rig, WorkerLine};

/// Workers: name, model and seed, flags.
const WORKERS: &[WorkerLine<'_>] = &[
    ("alpha-0", Preset::Tiny, 1, "--alias alpha,first --slots 2 --ctx-size 4096"),
    ("alpha-1", Preset::Tiny, 1, "--alias alpha --alias first --slots 2 --ctx-size 4096"),
    ("beta-0", Preset::Tiny, 2, "--alias beta --slots 2 --ctx-size 2048"),
    ("embed-0", Preset::TinyEmbed, 1, "--alias embed --embedding --slots 4"),
    ("embed-1", Preset::TinyEmbed, 1, "--alias embed --embedding --slots 4"),
    ("rank-0", Preset::TinyRank, 1, "--alias rank --rerank"),
];

struct Asking<'a>(&'a Rig);

impl Asking<'_> {
    async fn post(&self, path: &str, body: Value) -> anyhow::Result<Reply> {
        self.0.post(&format!("{}{path}", self.0.router_url()), &body).await
    }

    /// Sends a request to the worker itself.
    async fn direct(&self, name: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        let idx = WORKERS.iter().position(|(own, ..)| *own == name).expect("there is such a worker");
        Ok(self.0.post(&format!("{}{path}", self.0.fleet.workers[idx].base_url()), body).await?.json())
    }

    async fn refused(&self, path: &str, body: Value, (status, code): (u16, &str)) -> anyhow::Result<String> {
        let reply = self.post(path, body).await?;
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (status, &json!(code)), "{}", reply.text);
        assert_eq!(reply.json()["error"]["param"], "model", "{}", reply.text);
        Ok(reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned())
    }
}

fn chat(model: Option<&str>, text: &str) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0});
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn each_name_has_its_pool_and_each_task_its_models() -> anyhow::Result<()> {
    let rig = Rig::start_models(WORKERS).await?;
    let ask = Asking(&rig);

    // A name leads to workers of its model, and the answer is the same as from one of them directly.
    for (name, pool, direct) in
        [("alpha", "alpha-", "alpha-0"), ("first", "alpha-", "alpha-0"), ("beta", "beta-", "beta-0")]
    {
        for nth in 0..4 {
            let body = chat(Some(name), &format!("Question {nth}"));
            let reply = ask.post("/v1/chat/completions", body.clone()).await?;
            assert_eq!(reply.status, 200, "{}", reply.text);
            assert!(
                reply.header("x-warmpath-worker").starts_with(pool),
                "{name}: {}",
                reply.header("x-warmpath-worker")
            );
            let expected = ask.direct(direct, "/v1/chat/completions", &body).await?;
            assert_eq!(reply.json()["choices"][0]["message"], expected["choices"][0]["message"], "{name} {nth}");
        }
    }
    let of = async |name: &str| anyhow::Ok(ask.post("/v1/chat/completions", chat(Some(name), "Hello")).await?.json());
    assert_ne!(of("alpha").await?["choices"], of("beta").await?["choices"], "they are two models");

    // Unknown names are all refused alike.
    let message = ask.refused("/v1/chat/completions", chat(Some("gamma"), "a"), (404, "model_not_found")).await?;
    assert_eq!(message, "the model `gamma` does not exist; available: `alpha`, `first`, `beta`, `embed`, `rank`");
    let message = ask.refused("/v1/chat/completions", chat(None, "a"), (400, "model_required")).await?;
    assert_eq!(message, "`model` is missing, and there are several: `alpha`, `first`, `beta`");

    // Requests that a model cannot serve.
    let body = json!({"model": "alpha", "input": "a"});
    let message = ask.refused("/v1/embeddings", body, (501, "model_not_capable")).await?;
    assert_eq!(message, "the model `alpha` does not serve embedding; models that do: `embed`");
    ask.refused("/v1/chat/completions", chat(Some("embed"), "a"), (501, "model_not_capable")).await?;
    let body = json!({"model": "embed", "query": "a", "documents": ["b"]});
    ask.refused("/v1/rerank", body, (501, "model_not_capable")).await?;
    let body = json!({"model": "embed", "messages": [{"role": "user", "content": "a"}]});
    ask.refused("/apply-template", body, (501, "model_not_capable")).await?;
    let tokens = ask.post("/tokenize", json!({"model": "embed", "content": "a b"})).await?;
    assert_eq!(tokens.status, 200, "{}", tokens.text);

    models_say_what_they_can(&rig).await
}

async fn models_say_what_they_can(rig: &Rig) -> anyhow::Result<()> {
    let list = rig.get(&format!("{}/v1/models", rig.router_url())).await?.json();
    let find = |name: &str| {
        let found = list["data"].as_array().and_then(|models| models.iter().find(|model| model["id"] == name));
        found.unwrap_or_else(|| panic!("{name} is not in {list}")).clone()
    };
    let check = |name: &str, capabilities: Value, (n_ctx, n_ctx_train, n_workers): (u32, u32, u32)| {
        let model = find(name);
        assert_eq!(model["capabilities"], capabilities, "{model}");
        let meta = &model["meta"];
        let sizes = [&meta["n_ctx"], &meta["n_ctx_train"], &meta["n_workers"]];
        assert_eq!(sizes, [&json!(n_ctx), &json!(n_ctx_train), &json!(n_workers)], "{model}");
    };
    let generates = json!(["completion", "chat", "tools"]);
    check("alpha", generates.clone(), (2048, 8192, 2));
    check("first", generates.clone(), (2048, 8192, 2));
    check("beta", generates, (1024, 8192, 1));
    check("embed", json!(["embedding"]), (512, 512, 2));
    check("rank", json!(["rerank"]), (512, 512, 1));
    assert_eq!(find("embed")["meta"]["n_embd_out"], 128);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_are_embedded_by_the_least_loaded_worker() -> anyhow::Result<()> {
    let mut rig = Rig::start_models(WORKERS).await?;
    let texts: Vec<String> = (0..300).map(|idx| format!("text {idx} of a river and a stone")).collect();
    let asked = texts.chunks(10).map(|texts| json!({"input": texts, "model": "embed"}));
    let asked = asked.map(|body| {
        let rig = &rig;
        async move { Asking(rig).post("/v1/embeddings", body).await }
    });
    let replies = futures::future::try_join_all(asked).await?;
    let workers: BTreeSet<&str> = replies.iter().map(|reply| reply.header("x-warmpath-worker")).collect();
    assert_eq!(workers, BTreeSet::from(["embed-0", "embed-1"]), "many at once are spread");
    for (reply, texts) in replies.iter().zip(texts.chunks(10)) {
        assert_eq!(
            (reply.status, reply.json()["data"].as_array().map(Vec::len)),
            (200, Some(texts.len())),
            "{}",
            reply.text
        );
        assert!(!reply.header("x-warmpath-route").is_empty() && !reply.header("x-request-id").is_empty());
        assert_eq!(reply.header("x-warmpath-predicted-cached-tokens"), "", "an embedded text leaves no cached state");
    }

    // The only model that embeds needs no name, on any path, and the result is the same as from its worker.
    let ask = Asking(&rig);
    let body = json!({"input": ["one text", "another"]});
    for path in ["/v1/embeddings", "/embeddings", "/embedding"] {
        let reply = ask.post(path, body.clone()).await?;
        assert_eq!((reply.status, reply.json()), (200, ask.direct("embed-0", path, &body).await?), "{path}");
    }
    let body = json!({"query": "river", "documents": ["a stone", "the sea", "a river bank"], "top_n": 2});
    for path in ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking", "/v2/rerank"] {
        let reply = ask.post(path, body.clone()).await?;
        assert_eq!((reply.status, reply.json()), (200, ask.direct("rank-0", path, &body).await?), "{path}");
    }
    let reply = ask.post("/v1/embeddings", json!({"input": []})).await?;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("input")), "the worker's own words");
    let line = "warmpath_router_requests_total{endpoint=\"/v1/embeddings\",status=\"200\"}";
    assert_eq!(rig.router_metric(line).await?, 31.0);
    for cached in ["none", "some", "half", "most", "unknown"] {
        let line = format!("warmpath_router_ttfb_seconds_count{{cached=\"{cached}\"}}");
        assert_eq!(rig.router_metric(&line).await?, 0.0, "there is no first token");
    }

    // One of two workers dies: all requests go to the other, and no client sees an error.
    let dead = WORKERS.iter().position(|(name, ..)| *name == "embed-0").expect("it is there");
    rig.fleet.workers[dead].kill().await?;
    for _ in 0..10 {
        let reply = Asking(&rig).post("/v1/embeddings", json!({"input": "a", "model": "embed"})).await?;
        assert_eq!((reply.status, reply.header("x-warmpath-worker")), (200, "embed-1"), "{}", reply.text);
    }
    Ok(())
}
