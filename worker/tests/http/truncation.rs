//! Texts that are too long for a vector or a score: refused with their places, or shortened.

use serde_json::{Value, json};
use warmpath_bench::model::Preset;

use crate::harness::{TestWorker, model};

const EMBED: &str = "/v1/embeddings";
const RERANK: &str = "/v1/rerank";

/// Returns the response's object, and the number of shortened texts in its header.
async fn ask(worker: &TestWorker, path: &str, body: &Value) -> (Value, Option<String>) {
    let response = worker.post(path, body).send().await.expect("a response");
    let status = response.status();
    let cut = response.headers().get("x-warmpath-truncated-texts").map(|n| n.to_str().expect("a number").to_owned());
    let object: Value = response.json().await.expect("JSON");
    assert_eq!(status, 200, "{body}: {object}");
    (object, cut)
}

fn long(word: &str) -> String {
    format!("{word} ").repeat(600)
}

fn with(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("fields").clone());
    body
}

#[tokio::test]
async fn a_long_text_to_embed_is_refused_by_its_index_unless_the_request_shortens_it() {
    let worker = TestWorker::start_model(&model(Preset::TinyEmbed, 1), "--embedding").await;
    let body = json!({"input": ["short", long("river"), "other"]});
    for fields in [json!({}), json!({"truncate": false}), json!({"truncate": "NONE"}), json!({"truncate": null})] {
        let (status, object) = worker.try_ask(EMBED, &with(body.clone(), &fields)).await;
        assert_eq!((status, &object["error"]["param"]), (400, &json!("input[1]")), "{fields}: {object}");
        assert_eq!(object["error"]["code"], "context_length_exceeded", "{object}");
        assert!(object["error"]["message"].as_str().is_some_and(|text| text.contains("512")), "{object}");
    }
    let one = async |fields: Value| ask(&worker, EMBED, &with(body.clone(), &fields)).await;
    let (by_default, cut) = one(json!({"truncate": true})).await;
    assert_eq!(cut.as_deref(), Some("1"));
    assert_eq!(by_default["data"].as_array().map(Vec::len), Some(3));
    for same in [json!({"truncation": true}), json!({"truncate": "END"}), json!({"truncate_prompt_tokens": -1})] {
        let (object, cut) = one(same).await;
        assert_eq!((&object["usage"], cut.as_deref()), (&by_default["usage"], Some("1")));
    }
    let ends = json!({"input": format!("first {} last", long("river")), "truncate_prompt_tokens": 8.0});
    let (at_end, cut) = ask(&worker, EMBED, &ends).await;
    assert_eq!((&at_end["usage"]["prompt_tokens"], cut.as_deref()), (&json!(8), Some("1")));
    let mut vectors = Vec::new();
    for side in
        [json!({"truncation_side": "left"}), json!({"truncation_direction": "Left"}), json!({"truncate": "START"})]
    {
        vectors.push(ask(&worker, EMBED, &with(ends.clone(), &side)).await.0["data"].take());
    }
    assert!(vectors.iter().all(|vector| *vector == vectors[0]));
    assert_ne!(vectors[0], at_end["data"], "another part of the text has another vector");
    let (whole, cut) = ask(&worker, EMBED, &json!({"input": "short", "truncate": true})).await;
    assert_eq!((whole["data"].as_array().map(Vec::len), cut), (Some(1), None));
}

#[tokio::test]
async fn a_long_document_is_shortened_and_does_not_fail_the_others() {
    let worker = TestWorker::start_model(&model(Preset::TinyRank, 1), "--rerank").await;
    let documents = json!(["a stone", long("river"), "seven winters"]);
    let body = json!({"query": "river", "documents": documents});
    let (ranked, cut) = ask(&worker, RERANK, &body).await;
    assert_eq!((ranked["results"].as_array().map(Vec::len), cut.as_deref()), (Some(3), Some("1")));
    let fit = format!("river {}", long("river"));
    let score = |object: &Value, index: u64| {
        let results = object["results"].as_array().expect("results").clone();
        let result = results.iter().find(|result| result["index"] == index).expect("it is there").clone();
        result["relevance_score"].as_f64().expect("a score")
    };
    let (same, _) = ask(&worker, RERANK, &json!({"query": "river", "documents": ["a stone", fit]})).await;
    assert!((score(&same, 1) - score(&ranked, 1)).abs() < 1e-2, "the end that was removed does not count");
    let tei = json!({"query": "river", "texts": body["documents"], "return_text": true});
    let (tei, cut) = ask(&worker, "/rerank", &tei).await;
    assert_eq!((tei.as_array().map(Vec::len), cut.as_deref()), (Some(3), Some("1")));
    let (_, cut) = ask(&worker, RERANK, &with(body.clone(), &json!({"max_tokens_per_doc": 1}))).await;
    assert_eq!(cut.as_deref(), Some("3"));
    for fields in [json!({"truncate": false}), json!({"truncate": "NONE"}), json!({"truncation": false})] {
        let (status, object) = worker.try_ask(RERANK, &with(body.clone(), &fields)).await;
        assert_eq!((status, &object["error"]["param"]), (400, &json!("documents[1]")), "{fields}: {object}");
    }
}

#[tokio::test]
async fn fields_about_long_texts_are_checked() {
    let worker = TestWorker::start_model(&model(Preset::TinyRank, 1), "--rerank").await;
    for (fields, param) in [
        (json!({"truncate": "middle"}), "truncate"),
        (json!({"truncate": 5}), "truncate"),
        (json!({"truncation_direction": "up"}), "truncation_direction"),
        (json!({"truncate_prompt_tokens": 0}), "truncate_prompt_tokens"),
        (json!({"truncate_prompt_tokens": -2}), "truncate_prompt_tokens"),
        (json!({"truncate_prompt_tokens": 5, "truncate": false}), "truncate_prompt_tokens"),
        (json!({"max_tokens_per_doc": -1}), "max_tokens_per_doc"),
        (json!({"max_tokens_per_doc": 5, "truncate": "NONE"}), "max_tokens_per_doc"),
    ] {
        let body = with(json!({"query": "a", "documents": ["b"]}), &fields);
        let (status, object) = worker.try_ask(RERANK, &body).await;
        assert_eq!((status, &object["error"]["param"]), (400, &json!(param)), "{fields}: {object}");
    }
}
