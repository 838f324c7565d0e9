//! The operations of embedding workers, and those on adapters, with their schemas.
//!
//! Not here: the other operations (`paths`), how vectors are made (`embeddings`, `rerank`).

use serde_json::{Map, Value, json};

use super::operation::{Operation, SuccessBody, Tag, get, post};

/// Statuses of errors, including that of a generating worker.
const ERRORS: &[u16] = &[400, 404, 413, 415, 429, 500, 501, 503];

/// Returns the operations.
pub(super) fn operations() -> Vec<Operation> {
    let embeddings = Operation {
        summary: "Returns the vectors of texts.",
        errors: ERRORS,
        ..post("/v1/embeddings", "EmbeddingsRequest", SuccessBody::Json("Embeddings"))
    };
    let llama_server_operation = Operation {
        summary: "Returns the vectors of texts, in llama-server's format.",
        errors: ERRORS,
        ..post("/embeddings", "EmbeddingsRequest", SuccessBody::Json("OwnEmbeddings"))
    };
    let rerank = Operation {
        summary: "Orders documents by their relevance to a query.",
        errors: ERRORS,
        ..post("/v1/rerank", "RerankRequest", SuccessBody::Json("Ranking"))
    };
    let adapters = Operation {
        summary: "Returns the adapters.",
        errors: &[501, 503],
        parameters: &[super::paths::MODEL_OF_REPORT, super::paths::AUTOLOAD],
        ..get("/lora-adapters", SuccessBody::Json("Adapters"))
    };
    let set = Operation {
        summary: "Accepts only the scales that are in force.",
        errors: ERRORS,
        ..post("/lora-adapters", "AdapterScales", SuccessBody::Json("AdaptersSet"))
    };
    let set = Operation { tag: Tag::Cache, parameters: &[], ..set };
    vec![
        embeddings,
        llama_server_operation.also_at("/embedding"),
        llama_server_operation,
        rerank.also_at("/v2/rerank"),
        rerank.also_at("/rerank"),
        rerank.also_at("/v1/reranking"),
        rerank.also_at("/reranking"),
        rerank,
        Operation { tag: Tag::Cache, ..adapters },
        set,
    ]
}

/// Returns each schema that no type gives, by its name.
pub(super) fn schemas() -> Map<String, Value> {
    let Value::Object(schemas) = answers() else { return Map::new() };
    schemas
}

fn answers() -> Value {
    let usage = json!({
        "type": "object",
        "required": ["prompt_tokens", "total_tokens"],
        "properties": {"prompt_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"}},
    });
    let numbers = json!({"type": "array", "items": {"type": "number"}});
    let object = |properties: Value| {
        let required_fields: Vec<String> =
            properties.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
        json!({"type": "object", "required": required_fields, "properties": properties})
    };
    let list = |items: Value| json!({"type": "array", "items": items});
    let with = |mut object: Value, optional: &str| {
        object["properties"][optional] = json!({});
        object
    };
    let (index, score) = (json!({"type": "integer"}), json!({"type": "number"}));
    json!({
        "Embeddings": object(json!({
            "object": {"const": "list"},
            "data": list(object(json!({
                "object": {"const": "embedding"}, "index": index, "embedding": {"anyOf": [numbers, {"type": "string"}]},
            }))),
            "model": {"type": "string"},
            "usage": usage,
        })),
        "OwnEmbeddings": list(object(json!({"index": index, "embedding": list(numbers.clone())}))),
        "Ranking": {"anyOf": [
            object(json!({
                "object": {"const": "list"},
                "model": {"type": "string"},
                "results": list(with(object(json!({"index": index, "relevance_score": score})), "document")),
                "usage": usage,
            })),
            list(with(object(json!({"index": index, "score": score})), "text")),
        ]},
        "Adapters": list(object(json!({
            "id": index, "path": {"type": "string"}, "scale": score, "name": {"type": "string"},
            "named_scale": score, "fingerprint": {"type": "string"},
        }))),
        "AdaptersSet": object(json!({"success": {"const": true}})),
        "AdapterScales": list(object(json!({"id": {"type": "integer", "minimum": 0}, "scale": {"type": "number"}}))),
    })
}
