//! `/v1/models` in OpenAI's and Anthropic's dialects: the model object and the list, which Anthropic's API divides into
//! pages.
//!
//! Both use the same path. The header that Anthropic's clients must send distinguishes the two formats.
//! Not here: the models themselves (`http::models` of router and worker).
//! Source: Anthropic's API reference, "List Models" and "Get a Model".

use axum::Json;
use axum::extract::Query;
use axum::http::{HeaderMap, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_common::dialects::anthropic;
use warmpath_common::llama_server;
use warmpath_common::model::ModelInfo;

use crate::http::refusal::Refusal;
use crate::http::timestamps;

/// Header that every request of Anthropic's API has.
const VERSION: &str = "anthropic-version";

/// Most models of a page.
///
/// Source: Anthropic's API reference, `limit`.
const LIMIT_MAX: usize = 1000;

/// Models of a page if the request does not set `limit`.
///
/// Source: as [`LIMIT_MAX`].
const LIMIT_DEFAULT: usize = 20;

/// A model under one of its names.
#[derive(Debug, Clone)]
pub struct ListedModel {
    name: String,
    created_s: u64,
    context_tokens: u32,
    /// OpenAI's object, to which a program may add fields.
    pub object: Value,
}

/// Query of a page.
#[derive(Debug, Default, Deserialize)]
struct PageQuery {
    limit: Option<usize>,
    after_id: Option<String>,
    before_id: Option<String>,
}

impl ListedModel {
    /// Returns a model under this name, loaded at `created_s`, in seconds since 1970.
    pub fn new(name: String, created_s: u64, model: &ModelInfo) -> Self {
        let object = json!({
            "id": name,
            "object": "model",
            "parent": model.adapter_named(&name).map(|_| &model.names[0]),
            "created": created_s,
            "owned_by": "warmpath",
            "capabilities": model.capabilities,
            "modalities": model.modalities(),
            "architecture": llama_server::architecture(model),
            "status": llama_server::status(),
            "meta": {
                "fingerprint": model.fingerprint,
                "n_vocab": model.n_vocab,
                "n_ctx": model.context_tokens,
                "n_ctx_train": model.n_ctx_train,
                "n_embd_out": model.embedding.map(|embedding| embedding.dimensions),
                "pooling": model.embedding.map(|embedding| embedding.pooling),
            },
        });
        Self { name, created_s, context_tokens: model.context_tokens, object }
    }

    /// Returns Anthropic's object.
    fn anthropic(&self) -> Value {
        json!({
            "type": "model",
            "id": self.name,
            "display_name": self.name,
            "created_at": timestamps::of_seconds(self.created_s),
            "max_input_tokens": self.context_tokens,
            "max_tokens": self.context_tokens,
        })
    }
}

/// Returns the response with one model.
pub fn show(model: ListedModel, headers: &HeaderMap, uri: &Uri) -> Json<Value> {
    Json(if is_anthropic(uri.path(), headers) { model.anthropic() } else { model.object })
}

/// Returns the response with all models, or with the requested page of Anthropic's API.
///
/// Errors: `Field` if a parameter of a page cannot be read, or names an unknown model.
pub fn list(models: Vec<ListedModel>, headers: &HeaderMap, uri: &Uri) -> Result<Json<Value>, Refusal> {
    if is_anthropic(uri.path(), headers) {
        return page(&models, uri).map(Json);
    }
    let objects: Vec<Value> = models.into_iter().map(|model| model.object).collect();
    Ok(Json(json!({"object": "list", "data": objects})))
}

/// Returns whether a request is in Anthropic's dialect: by its path, or at the path of models by its header.
pub fn is_anthropic(path: &str, headers: &HeaderMap) -> bool {
    let is_models = ["/v1/models", "/models"].iter().any(|models| {
        path.strip_prefix(models).is_some_and(|below_models| below_models.is_empty() || below_models.starts_with('/'))
    });
    anthropic::is_path(path) || (is_models && headers.contains_key(VERSION))
}

/// Returns the requested page of Anthropic's list, given the query of `uri`.
fn page(models: &[ListedModel], uri: &Uri) -> Result<Value, Refusal> {
    let refuse = |param: &str, reason: &str| Refusal::field(param, format!("`{param}` {reason}"));
    let Query(query) = Query::<PageQuery>::try_from_uri(uri).map_err(|error| refuse("limit", &error.body_text()))?;
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(refuse("limit", &format!("must be 1 to {LIMIT_MAX}")));
    }
    let position = |param, name: &str| {
        let position = models.iter().position(|model| model.name == name);
        position.ok_or_else(|| refuse(param, &format!("is `{name}`, which is not in the list")))
    };
    let (page, has_more) = match (&query.after_id, &query.before_id) {
        (None, Some(before)) => {
            let earlier = &models[..position("before_id", before)?];
            let start = earlier.len().saturating_sub(limit);
            (&earlier[start..], start > 0)
        }
        (after, _) => {
            let start =
                after.as_ref().map_or(Ok(0), |after| position("after_id", after).map(|position| position + 1))?;
            let later = &models[start..];
            (&later[..later.len().min(limit)], later.len() > limit)
        }
    };
    Ok(json!({
        "data": page.iter().map(ListedModel::anthropic).collect::<Vec<_>>(),
        "has_more": has_more,
        "first_id": page.first().map(|model| &model.name),
        "last_id": page.last().map(|model| &model.name),
    }))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::http::api_error::ApiError as _;

    fn all() -> Vec<ListedModel> {
        let listed = |name: &str| ListedModel {
            name: name.to_owned(),
            created_s: 1_700_000_000,
            context_tokens: 8192,
            object: Value::Null,
        };
        ["a", "b", "c", "d"].map(listed).into()
    }

    #[test]
    fn a_page_is_the_one_that_is_asked_for() {
        let check = |query: &str, ids: &[&str], has_more: bool| {
            let uri: Uri = format!("/v1/models{query}").parse().expect("a URI");
            let page = page(&all(), &uri).expect(query);
            let shown: Vec<_> = page["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
            assert_eq!(
                (shown, &page["has_more"]),
                (ids.iter().map(|id| json!(id)).collect::<Vec<_>>().iter().collect(), &json!(has_more)),
                "{query}"
            );
            assert_eq!((&page["first_id"], &page["last_id"]), (&json!(ids.first()), &json!(ids.last())), "{query}");
        };
        check("", &["a", "b", "c", "d"], false);
        check("?limit=2", &["a", "b"], true);
        check("?limit=2&after_id=b", &["c", "d"], false);
        check("?limit=1&after_id=b", &["c"], true);
        check("?after_id=d", &[], false);
        check("?limit=2&before_id=d", &["b", "c"], true);
        check("?limit=3&before_id=d", &["a", "b", "c"], false);
        check("?before_id=a", &[], false);
        check("?limit=1000&other=1", &["a", "b", "c", "d"], false);
    }

    #[test]
    fn an_invalid_page_names_the_parameter() {
        for (query, param) in [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=x", "limit"),
            ("after_id=z", "after_id"),
            ("before_id=", "before_id"),
        ] {
            let uri: Uri = format!("/v1/models?{query}").parse().expect("a URI");
            assert_eq!(page(&all(), &uri).map_err(|error| error.param()), Err(Some(param.to_owned())), "{query}");
        }
    }

    #[test]
    fn a_model_has_anthropic_s_fields() {
        let model = all()[0].anthropic();
        assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!("a")));
        assert_eq!(model["created_at"], "2023-11-14T22:13:20Z");
        let model = ListedModel { created_s: u64::MAX, ..all()[0].clone() };
        assert_eq!(model.anthropic()["created_at"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn the_header_counts_only_at_the_path_of_models() {
        let (none, mut some) = (HeaderMap::new(), HeaderMap::new());
        some.insert(VERSION, HeaderValue::from_static("2023-06-01"));
        for (path, without, with) in [
            ("/v1/messages", true, true),
            ("/v1/models", false, true),
            ("/v1/models/org/x", false, true),
            ("/models", false, true),
            ("/v1/modelsx", false, false),
            ("/v1/chat/completions", false, false),
        ] {
            assert_eq!((is_anthropic(path, &none), is_anthropic(path, &some)), (without, with), "{path}");
        }
    }
}
