//! `/v1/models` in Anthropic's dialect: the model object and the pages of the list.
//!
//! OpenAI and Anthropic use the same path. The header that Anthropic's clients must send distinguishes the two formats.
//! Not here: the models themselves (`http::models` of router and worker).
//! Source: Anthropic's API reference, "List Models" and "Get a Model".

use axum::extract::Query;
use axum::http::{HeaderMap, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_common::dialects::anthropic;

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
pub struct Listed {
    /// Name of the model.
    pub id: String,
    /// Time at which it was loaded. Units: seconds since 1970.
    pub created_s: u64,
    /// Longest sequence, prompt and response together. Units: tokens.
    pub context_tokens: u32,
}

/// Part of the list that a request asks for.
#[derive(Debug, Default, Deserialize)]
struct Page {
    limit: Option<usize>,
    after_id: Option<String>,
    before_id: Option<String>,
}

/// Reason why a page cannot be returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{param}` {reason}")]
pub struct PageError {
    /// Parameter at fault.
    pub param: &'static str,
    reason: String,
}

/// Returns whether a request is in Anthropic's dialect: by its path, or at the path of models by its header.
pub fn is_spoken(path: &str, headers: &HeaderMap) -> bool {
    let is_models = ["/v1/models", "/models"]
        .iter()
        .any(|models| path.strip_prefix(models).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    anthropic::is_path(path) || (is_models && headers.contains_key(VERSION))
}

/// Returns a model's object.
pub fn model(listed: &Listed) -> Value {
    let created = i64::try_from(listed.created_s).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    json!({
        "type": "model",
        "id": listed.id,
        "display_name": listed.id,
        "created_at": created.unwrap_or_default().to_string(),
        "max_input_tokens": listed.context_tokens,
        "max_tokens": listed.context_tokens,
    })
}

/// Returns the requested page of the list, given the query of `uri`.
///
/// Errors: [`PageError`] if a parameter cannot be read, or names an unknown model.
pub fn page(all: &[Listed], uri: &Uri) -> Result<Value, PageError> {
    let unreadable = |reason: String| PageError { param: "limit", reason };
    let Query(asked) = Query::<Page>::try_from_uri(uri).map_err(|error| unreadable(error.body_text()))?;
    let limit = asked.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(unreadable(format!("must be 1 to {LIMIT_MAX}")));
    }
    let place = |param, id: &str| {
        let place = all.iter().position(|listed| listed.id == id);
        place.ok_or_else(|| PageError { param, reason: format!("is `{id}`, which is not in the list") })
    };
    let (shown, has_more) = match (&asked.after_id, &asked.before_id) {
        (None, Some(before)) => {
            let earlier = &all[..place("before_id", before)?];
            let n_left = earlier.len().saturating_sub(limit);
            (&earlier[n_left..], n_left > 0)
        }
        (after, _) => {
            let start = after.as_ref().map_or(Ok(0), |after| place("after_id", after).map(|place| place + 1))?;
            let later = &all[start..];
            (&later[..later.len().min(limit)], later.len() > limit)
        }
    };
    Ok(json!({
        "data": shown.iter().map(model).collect::<Vec<_>>(),
        "has_more": has_more,
        "first_id": shown.first().map(|listed| &listed.id),
        "last_id": shown.last().map(|listed| &listed.id),
    }))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn all() -> Vec<Listed> {
        let listed = |id: &str| Listed { id: id.to_owned(), created_s: 1_700_000_000, context_tokens: 8192 };
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
            assert_eq!(page(&all(), &uri).map_err(|error| error.param), Err(param), "{query}");
        }
    }

    #[test]
    fn a_model_has_anthropic_s_fields() {
        let model = model(&all()[0]);
        assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!("a")));
        assert_eq!(model["created_at"], "2023-11-14T22:13:20Z");
        assert_eq!(
            super::model(&Listed { created_s: u64::MAX, ..all()[0].clone() })["created_at"],
            "1970-01-01T00:00:00Z"
        );
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
            assert_eq!((is_spoken(path, &none), is_spoken(path, &some)), (without, with), "{path}");
        }
    }
}
