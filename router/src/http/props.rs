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
use warmpath_router_core::hosts::ListedState;

use super::models::{find, permitted_names};
use crate::app::App;
use crate::error::RequestError;
use crate::fleet::vocabulary::{TemplateUse, Vocabulary, VocabularyState};
use crate::keys::{ApiKey, check_model};

#[derive(Deserialize)]
struct PropsQuery {
    model: Option<String>,
}

/// Responds with the properties of the named model, or of the router. A look loads no model.
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
    let mut props = match only_model(&view, key.as_deref()) {
        Some(name) => describe(&app, &view, &name)?,
        None => unknown(),
    };
    props["role"] = json!("router");
    props["models_autoload"] = json!(view.hosts.autoloads());
    props["max_instances"] = json!(view.hosts.models_max());
    Ok(Json(props))
}

/// Returns the first name of the only model that the client with this key may use; `None` if there are several models,
/// or none.
fn only_model(view: &FleetView, key: Option<&Arc<ApiKey>>) -> Option<String> {
    let names = permitted_names(view, key);
    let is_only = match find(view, names.first()?) {
        Ok(model) => names.iter().all(|name| find(view, name).is_ok_and(|other| other == model)),
        // A model that no worker serves is only in a catalogue.
        Err(_) => {
            let is_permitted = |model: &&str| names.iter().any(|name| name == model);
            let n_models = view.hosts.distinct().into_iter().filter(is_permitted).count();
            n_models == 1 && names.iter().all(|name| view.hosts.knows(name))
        }
    };
    is_only.then(|| names[0].clone())
}

/// Returns the properties of a model of which nothing is known.
fn unknown() -> Value {
    json!({
        "default_generation_settings": {"n_ctx": 0, "params": {}},
        "total_slots": 0,
        "build_info": concat!("warmpath-router ", env!("CARGO_PKG_VERSION")),
    })
}

fn describe(app: &App, view: &FleetView, name: &str) -> Result<Value, RequestError> {
    let state = view.hosts.listed_state(name);
    let mut props = unknown();
    props["model_alias"] = json!(name);
    // A model that is not loaded sleeps until a request: it leaves by itself after its time to live.
    props["is_sleeping"] = json!(state == Some(ListedState::Unloaded));
    let model = match find(view, name) {
        Ok(model) => model,
        Err(_) if state.is_some_and(|state| state != ListedState::Failed) => return Ok(props),
        Err(error) => return Err(error),
    };
    let serving = view.workers.iter().filter_map(|worker| worker.model_of_pool(name, &model));
    props["total_slots"] = json!(serving.map(|model| u64::from(model.n_slots)).sum::<u64>());
    props["default_generation_settings"]["n_ctx"] = json!(model.context_tokens);
    props["modalities"] = json!(model.modalities());
    props["media_marker"] = json!(MEDIA_MARKER);
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
