//! `/v1/models`: the model under each of its names.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use serde_json::{Value, json};
use warmpath_common::names::is_pattern;
use warmpath_shell::models::{self, ListedModel};
use warmpath_shell::refusal::Name;

use crate::app::App;
use crate::error::RequestError;
use crate::loaded_model::common::CommonState;
use crate::loaded_model::common::check_model;

/// Responds with every name of the model.
pub async fn list(State(app): State<App>, headers: HeaderMap, uri: Uri) -> Result<Json<Value>, RequestError> {
    let loaded_model = app.loaded_model()?;
    let common = loaded_model.common();
    let names = common.model.all_names().filter(|name| !is_pattern(name));
    Ok(models::list(names.map(|name| listed(common, name)).collect(), &headers, &uri)?)
}

/// Responds with the model under one name.
pub async fn show(
    State(app): State<App>,
    Name(name): Name,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, RequestError> {
    let loaded_model = app.loaded_model()?;
    let common = loaded_model.common();
    check_model(&common.model, Some(&name))?;
    Ok(models::show(listed(common, name), &headers, &uri))
}

fn listed(common: &CommonState, name: String) -> ListedModel {
    let mut model = ListedModel::new(name, common.loaded_at_s, &common.model);
    model.object["aliases"] = json!(common.model.names);
    let meta = &mut model.object["meta"];
    meta["description"] = json!(common.description);
    meta["n_params"] = json!(common.n_params);
    meta["size"] = json!(common.model_bytes);
    model
}
