//! `/props`: a model's properties as llama-server in router mode returns them, from what the router knows.
//!
//! Not here: what only a worker knows, such as its default sampling and the path of its model (`/props` of a worker).

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_common::llama_server;
use warmpath_common::model::ModelInfo;
use warmpath_common::prompts::MEDIA_MARKER;
use warmpath_router_core::fleet::FleetView;

use super::models::{check_model, find, permitted_names};
use crate::app::App;
use crate::error::RequestError;
use crate::fleet::vocabulary::{TemplateUse, Vocabulary, VocabularyState};
use crate::keys::ApiKey;

#[derive(Deserialize)]
struct PropsQuery {
    model: Option<String>,
}

/// Responds with the properties of the named model, or of the router.
///
/// Without a name, the response has the only model's properties as well, for clients that know one model only.
pub async fn show(
    State(app): State<App>,
    key: Option<Extension<Arc<ApiKey>>>,
    uri: Uri,
) -> Result<Json<Value>, RequestError> {
    app.first_contact().await?;
    let query = Query::<PropsQuery>::try_from_uri(&uri);
    let name_in_query = query.ok().and_then(|Query(query)| query.model).filter(|name| !name.is_empty());
    let view = app.fleet.view();
    if let Some(name) = name_in_query {
        check_model(key.as_deref(), &name)?;
        return describe(&app, &view, &name).map(Json);
    }
    let mut props = json!({
        "default_generation_settings": {"n_ctx": 0, "params": {}},
        "total_slots": 0,
        "build_info": concat!("warmpath-router ", env!("CARGO_PKG_VERSION")),
    });
    if let Some(name) = only_model(&view, key.as_deref()) {
        props = describe(&app, &view, &name)?;
    }
    props["role"] = json!("router");
    props["models_autoload"] = json!(!view.hosts.hosts.is_empty());
    Ok(Json(props))
}

/// Returns the first name of the only model that the client with this key may use; `None` if there are several models,
/// or none.
fn only_model(view: &FleetView, key: Option<&Arc<ApiKey>>) -> Option<String> {
    let names = permitted_names(view, key);
    let model = find(view, names.first()?).ok()?;
    names.iter().all(|name| find(view, name).is_ok_and(|other| other == model)).then(|| names[0].clone())
}

fn describe(app: &App, view: &FleetView, name: &str) -> Result<Value, RequestError> {
    let model = find(view, name)?;
    let serving = view.workers.iter().filter_map(|worker| worker.model_of_pool(name, &model));
    let mut props = json!({
        "default_generation_settings": {"n_ctx": model.context_tokens, "params": {}},
        "total_slots": serving.map(|model| u64::from(model.n_slots)).sum::<u64>(),
        "model_alias": name,
        "modalities": model.modalities(),
        "media_marker": MEDIA_MARKER,
        "is_sleeping": false,
        "build_info": concat!("warmpath-router ", env!("CARGO_PKG_VERSION")),
    });
    if let Some(VocabularyState::Ready(vocabulary)) = app.fleet.vocabulary(&model) {
        add_texts(&mut props, &vocabulary, &model);
    }
    Ok(props)
}

/// Adds the texts of the chat template and of control tokens. Without the vocabulary the router knows none of them.
fn add_texts(props: &mut Value, vocabulary: &Vocabulary, model: &ModelInfo) {
    let maker = &vocabulary.maker;
    let piece = |token: Option<u32>| {
        token.map_or_else(String::new, |token| String::from_utf8_lossy(&maker.piece(token)).into_owned())
    };
    props["bos_token"] = json!(piece(maker.vocabulary().bos));
    props["eos_token"] = json!(piece(maker.vocabulary().eos));
    if vocabulary.template == TemplateUse::Known {
        props["chat_template"] = json!(maker.chat_template().unwrap_or_default());
        props["chat_template_kwargs"] = json!(maker.chat_template_kwargs().variables());
        props["chat_template_caps"] = llama_server::chat_template_caps(model);
    }
}
