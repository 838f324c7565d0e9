//! `/v1/rerank` and its other paths, with an encoder that has a classification head.

use serde_json::{Value, json};
use warmpath_bench::model::Preset;

use crate::harness::{TestWorker, model};

const PATH: &str = "/v1/rerank";
const DOCUMENTS: [&str; 5] = ["a stone in the river", "light", "seven winters", "paper and stone", "the answer"];

async fn reranker() -> TestWorker {
    TestWorker::start_model(&model(Preset::TinyRank, 1), "--rerank").await
}

/// Returns index and score of each result.
fn scores(results: &Value, field: &str) -> Vec<(u64, f64)> {
    let pair = |result: &Value| (result["index"].as_u64().expect("a place"), result[field].as_f64().expect("a score"));
    results.as_array().unwrap_or_else(|| panic!("no results: {results}")).iter().map(pair).collect()
}

#[tokio::test]
async fn results_are_ordered_by_score_and_scores_are_those_of_single_documents() {
    let worker = reranker().await;
    let answer = worker.ask(PATH, json!({"query": "river", "documents": DOCUMENTS})).await;
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("tiny")));
    let ranked = scores(&answer["results"], "relevance_score");
    assert_eq!(ranked.len(), DOCUMENTS.len());
    assert!(ranked.windows(2).all(|pair| pair[0].1 > pair[1].1), "{ranked:?}");
    let mut n_tokens = 0;
    for (index, score) in &ranked {
        let document = DOCUMENTS[*index as usize];
        let alone = worker.ask(PATH, json!({"query": "river", "documents": [document]})).await;
        n_tokens += alone["usage"]["prompt_tokens"].as_u64().expect("a count");
        let (_, alone) = scores(&alone["results"], "relevance_score")[0];
        assert!((alone - score).abs() < 1e-2, "{document}: {alone} and {score}");
    }
    assert_eq!(answer["usage"], json!({"prompt_tokens": n_tokens, "total_tokens": n_tokens}));
    let other = worker.ask(PATH, json!({"query": "winter", "documents": DOCUMENTS})).await;
    assert_ne!(scores(&other["results"], "relevance_score"), ranked, "the query does not change the scores");
}

#[tokio::test]
async fn the_requested_number_of_documents_is_returned_with_texts_on_request() {
    let worker = reranker().await;
    let all = worker.ask(PATH, json!({"query": "river", "documents": DOCUMENTS})).await;
    assert_eq!(all["results"][0].get("document"), None);
    let documents: Vec<Value> = DOCUMENTS.iter().map(|text| json!({"text": text})).collect();
    for path in [PATH, "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"] {
        let body = json!({"query": "river", "documents": documents, "top_n": 2, "return_documents": true});
        let two = worker.ask(path, body).await;
        let (two, all) = (&two["results"], scores(&all["results"], "relevance_score"));
        assert_eq!(scores(two, "relevance_score"), all[..2], "{path}");
        assert_eq!(two[0]["document"], json!({"text": DOCUMENTS[all[0].0 as usize]}));
    }
    let many = worker.ask(PATH, json!({"query": "river", "documents": DOCUMENTS, "top_n": 99})).await;
    assert_eq!(many["results"], all["results"]);
    let tei = worker.ask("/rerank", json!({"query": "river", "texts": DOCUMENTS, "return_text": true})).await;
    assert_eq!(scores(&tei, "score"), scores(&all["results"], "relevance_score"));
    assert_eq!(tei[0]["text"], DOCUMENTS[tei[0]["index"].as_u64().expect("a place") as usize]);
}

#[tokio::test]
async fn invalid_requests_are_refused_by_name() {
    let worker = reranker().await;
    let long = "word ".repeat(600);
    for (body, param) in [
        (json!({"documents": ["a"]}), "query"),
        (json!({"query": 5, "documents": ["a"]}), "query"),
        (json!({"query": "a"}), "documents"),
        (json!({"query": "a", "documents": []}), "documents"),
        (json!({"query": "a", "documents": "b"}), "documents"),
        (json!({"query": "a", "documents": vec!["b"; 2049]}), "documents"),
        (json!({"query": "a", "documents": ["b", 5]}), "documents[1]"),
        (json!({"query": "a", "documents": ["b", {"title": "c"}]}), "documents[1]"),
        (json!({"query": "a", "documents": ["b", long], "truncate": false}), "documents[1]"),
        (json!({"query": long, "documents": ["b"]}), "query"),
        (json!({"query": "a", "documents": ["b"], "texts": ["b"]}), "texts"),
        (json!({"query": "a", "documents": ["b"], "top_n": 0}), "top_n"),
        (json!({"query": "a", "documents": ["b"], "top_n": "two"}), "top_n"),
        (json!({"query": "a", "documents": ["b"], "return_documents": 1}), "return_documents"),
    ] {
        let (status, object) = worker.try_ask(PATH, &body).await;
        let shown = body.to_string().chars().take(80).collect::<String>();
        assert_eq!((status, &object["error"]["param"]), (400, &json!(param)), "{shown}: {object}");
    }
    let (status, object) = worker.try_ask("/v1/embeddings", &json!({"input": "a"})).await;
    assert_eq!((status, &object["error"]["code"]), (501, &json!("not_enabled")));
    assert_eq!(worker.get_json("/v1/models").await["data"][0]["capabilities"], json!(["rerank"]));
}

#[tokio::test]
async fn a_model_without_a_head_is_not_served_for_ranking() {
    use warmpath_worker::config::{flags::Flags, resolve};
    let file = model(Preset::TinyEmbed, 1);
    let command = format!("warmpath-worker --model {} --listen 127.0.0.1:0 --rerank", file.display());
    let flags = Flags::from_command_line(command.split_whitespace().map(Into::into))
        .expect("the flags parse")
        .run()
        .expect("a run");
    let bound = warmpath_worker::start::bind(resolve(flags).expect("they fit")).await.expect("it binds");
    let error = bound.serve(std::future::pending()).await.expect_err("it has no head");
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(source.contains("no classification head"), "{error}: {source}");
}
