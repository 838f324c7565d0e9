//! `/api/tags`, `/api/ps`, `/api/show`, `/api/version`: the models of the fleet as Ollama describes its own.
//!
//! Sizes and parameters are not known to a router: sizes are 0, and texts are empty.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use serde_json::{Map, Value, json};
use warmpath_common::dialects::ollama;
use warmpath_common::model::{Capability, ModelInfo};
use warmpath_router_core::fleet::FleetView;
use warmpath_router_core::hosts::ListedState;
use warmpath_shell::refusal::Refusal;
use warmpath_shell::timestamps;

use super::served_name;
use crate::app::App;
use crate::error::RequestError;
use crate::fleet::vocabulary::{TemplateUse, Vocabulary, VocabularyState};
use crate::http::context::sender;
use crate::http::models::{find, permitted_names, state};
use crate::keys::{ApiKey, check_model};

/// End of a model's time in memory, which nobody knows: far in the future, as Ollama writes "forever".
const NEVER: &str = "2200-01-01T00:00:00Z";

/// Architecture of a model whose vocabulary the router does not have.
const UNKNOWN: &str = "unknown";

/// Words in a chat template that reads the settings of reasoning, or the reasoning of earlier messages.
const REASONING_WORDS: [&str; 3] = ["enable_thinking", "reasoning_effort", "reasoning_content"];

/// Responds with the version of the API.
pub async fn version() -> Json<Value> {
    Json(json!({"version": ollama::VERSION}))
}

/// Responds with every model name in the fleet.
pub async fn tags(State(app): State<App>, key: Option<Extension<Arc<ApiKey>>>) -> Result<Json<Value>, RequestError> {
    app.first_contact().await?;
    let view = app.fleet.view();
    let tag = |name: String| {
        let model = FoundModel::of(&app, &view, &name);
        let mut tag = model.head(&name);
        tag["modified_at"] = json!(timestamps::of_seconds(app.started_s));
        tag["capabilities"] = json!(model.capabilities());
        tag
    };
    Ok(Json(json!({"models": permitted_names(&view, key.as_deref()).into_iter().map(tag).collect::<Vec<_>>()})))
}

/// Responds with the models that are loaded.
pub async fn ps(State(app): State<App>, key: Option<Extension<Arc<ApiKey>>>) -> Result<Json<Value>, RequestError> {
    app.first_contact().await?;
    let view = app.fleet.view();
    let names = permitted_names(&view, key.as_deref());
    let loaded_names = names.into_iter().filter(|name| state(&view, name) == ListedState::Loaded);
    let process = |name: String| {
        let model = FoundModel::of(&app, &view, &name);
        let mut process = model.head(&name);
        process["expires_at"] = json!(NEVER);
        process["size_vram"] = json!(0);
        process["context_length"] = json!(model.context_tokens());
        process
    };
    Ok(Json(json!({"models": loaded_names.map(process).collect::<Vec<_>>()})))
}

/// Responds with the description of a model.
pub async fn show(
    State(app): State<App>,
    key: Option<Extension<Arc<ApiKey>>>,
    request: Request,
) -> Result<Json<Value>, RequestError> {
    let (mut parts, body) = request.into_parts();
    let sender = sender(&parts, key.as_deref().map(Arc::as_ref));
    let body = app.bodies.read(&mut parts.headers, body, sender).await.map_err(Refusal::from)?;
    let name = ollama::shown_model(&body)?;
    app.first_contact().await?;
    let view = app.fleet.view();
    let name = name.ok_or_else(|| RequestError::field("model", "`model` is missing"))?;
    let name = served_name(&view, &name);
    check_model(key.as_deref(), name)?;
    if !view.hosts.knows(name) {
        find(&view, name)?;
    }
    let model = FoundModel::of(&app, &view, name);
    Ok(Json(json!({
        "modelfile": format!("FROM {name}\n"),
        "parameters": "",
        "template": model.template().unwrap_or_default(),
        "details": model.details(),
        "model_info": model.info(name),
        "capabilities": model.capabilities(),
        "modified_at": timestamps::of_seconds(app.started_s),
    })))
}

/// What the router knows of a model.
struct FoundModel {
    /// Absent if no worker has loaded it.
    model: Option<Arc<ModelInfo>>,
    vocabulary: Option<Arc<Vocabulary>>,
}

impl FoundModel {
    fn of(app: &App, view: &FleetView, name: &str) -> Self {
        let model = find(view, name).ok();
        let vocabulary = match model.as_ref().and_then(|model| app.fleet.vocabulary(model)) {
            Some(VocabularyState::Ready(vocabulary)) => Some(vocabulary),
            _ => None,
        };
        Self { model, vocabulary }
    }

    /// Returns the fields that every list has.
    fn head(&self, name: &str) -> Value {
        let digest = self.model.as_ref().map(|model| model.fingerprint.to_string()).unwrap_or_default();
        json!({"name": name, "model": name, "size": 0, "digest": digest, "details": self.details()})
    }

    fn architecture(&self) -> &str {
        self.vocabulary.as_ref().map_or(UNKNOWN, |vocabulary| vocabulary.maker.architecture())
    }

    fn context_tokens(&self) -> u32 {
        self.model.as_ref().map_or(0, |model| model.context_tokens)
    }

    fn template(&self) -> Option<&str> {
        let vocabulary = self.vocabulary.as_ref().filter(|vocabulary| vocabulary.template == TemplateUse::Known)?;
        vocabulary.maker.chat_template()
    }

    fn details(&self) -> Value {
        let architecture = self.architecture();
        let mut details = json!({
            "parent_model": "",
            "format": if self.vocabulary.is_some() { "gguf" } else { "" },
            "family": architecture,
            "families": [architecture],
            "parameter_size": "",
            "quantization_level": "",
            "context_length": self.context_tokens(),
        });
        if let Some(embedding) = self.model.as_ref().and_then(|model| model.embedding) {
            details["embedding_length"] = json!(embedding.dimensions);
        }
        details
    }

    /// Returns the model's metadata, with the context of a slot, which is what a client can use.
    fn info(&self, name: &str) -> Value {
        let architecture = self.architecture();
        let mut info = Map::new();
        info.insert("general.architecture".to_owned(), architecture.into());
        info.insert("general.basename".to_owned(), name.into());
        info.insert(format!("{architecture}.context_length"), self.context_tokens().into());
        if let Some(embedding) = self.model.as_ref().and_then(|model| model.embedding) {
            info.insert(format!("{architecture}.embedding_length"), embedding.dimensions.into());
        }
        info.into()
    }

    /// Returns what the model can do, in Ollama's words.
    fn capabilities(&self) -> Vec<&'static str> {
        let Some(model) = &self.model else { return Vec::new() };
        let modalities = model.modalities();
        let has_gap = self.vocabulary.as_ref().is_some_and(|vocabulary| vocabulary.maker.vocabulary().fim.is_some());
        let template = self.template().unwrap_or_default();
        let generates = model.can(Some(Capability::Completion));
        let capabilities = [
            ("completion", generates),
            ("tools", model.can(Some(Capability::Tools))),
            ("insert", generates && has_gap),
            ("vision", modalities.vision),
            ("audio", modalities.audio),
            ("thinking", generates && REASONING_WORDS.iter().any(|word| template.contains(word))),
            ("embedding", model.can(Some(Capability::Embedding))),
        ];
        capabilities.into_iter().filter_map(|(name, is_there)| is_there.then_some(name)).collect()
    }
}
