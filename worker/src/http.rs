//! The worker's HTTP routes, and the layers of every request.
//!
//! Not here: running a request (`lifecycle`), the worker's start and stop (`start`).

mod access;
pub mod body;
mod context;
mod delivery;
mod dialects;
mod fleet;
mod llama_server;
mod openai;
pub mod openapi;
mod vectors;

use axum::Router;
use axum::http::{Method, Uri};
use axum::middleware;
use axum::routing::{any, delete, get, post};
use warmpath_common::media::MEDIA_LAYOUT_PATH;
use warmpath_common::summary::{KV_PATH, SNAPSHOT_PATH, STREAM_PATH, VOCABULARY_PATH};
use warmpath_shell::refusal::Refusal;

use crate::app::App;
use crate::error::RequestError;
use dialects::{anthropic, responses};
use fleet::{cache, health, kv, pins, summary};
use llama_server::{lora, props, slots, tokenize};
use openai::{chat, completions, models};
use vectors::{embeddings, rerank};

/// Returns the service for all requests of a worker.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/chat/completions/input_tokens", post(chat::count_tokens))
        .route("/v1/completions", post(completions::create))
        .route("/completion", post(llama_server::completion))
        .route("/infill", post(llama_server::infill))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::count_tokens))
        .route("/v1/responses/{*id}", any(responses::stored))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/rerank", post(rerank::create))
        // Cohere's own path.
        .route("/v2/rerank", post(rerank::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*model}", get(models::show))
        // Aliases that llama-server's clients use.
        .route("/chat/completions", post(chat::create))
        .route("/chat/completions/input_tokens", post(chat::count_tokens))
        .route("/completions", post(llama_server::completion))
        .route("/responses", post(responses::create))
        .route("/models", get(models::list))
        .route("/embeddings", post(embeddings::create))
        .route("/embedding", post(embeddings::create))
        .route("/rerank", post(rerank::create))
        .route("/v1/reranking", post(rerank::create))
        .route("/reranking", post(rerank::create))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/apply-template", post(tokenize::apply_template))
        .route("/slots", get(slots::list))
        .route("/slots/{id}", post(slots::act))
        .route("/cache", get(cache::show))
        .route("/cache/clear", post(cache::clear))
        .route("/cache/pin", get(pins::list).post(pins::create))
        .route("/cache/pin/{id}", delete(pins::remove))
        .route("/lora-adapters", get(lora::list).post(lora::set))
        .route("/props", get(props::show))
        .route("/openapi.json", get(openapi::show))
        .merge(health_routes())
        .route(SNAPSHOT_PATH, get(summary::snapshot))
        .route(STREAM_PATH, get(summary::stream))
        .route(VOCABULARY_PATH, get(summary::vocabulary))
        .route(MEDIA_LAYOUT_PATH, get(summary::media_layout))
        .route(KV_PATH, get(kv::list).post(kv::prefetch))
        .route("/internal/v1/kv/{key}", get(kv::send))
        .method_not_allowed_fallback(method_refused)
        .fallback(path_unknown)
        .layer(middleware::from_fn_with_state(app.clone(), access::check_token))
        .layer(middleware::from_fn_with_state(app.clone(), access::check_client_host))
        .layer(middleware::from_fn_with_state(app.clone(), context::around))
        .with_state(app)
}

/// Returns the service for probes and scrapers only.
pub fn admin_router(app: App) -> Router {
    health_routes()
        .method_not_allowed_fallback(method_refused)
        .fallback(path_unknown)
        .layer(middleware::from_fn_with_state(app.clone(), access::check_probe_host))
        .with_state(app)
}

fn health_routes() -> Router<App> {
    Router::new()
        .route("/health", get(health::health))
        .route("/v1/health", get(health::health))
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
}

async fn path_unknown(uri: Uri) -> RequestError {
    Refusal::path(&uri).into()
}

async fn method_refused(method: Method, uri: Uri) -> RequestError {
    Refusal::method(&uri, &method).into()
}

#[cfg(test)]
mod tests;
