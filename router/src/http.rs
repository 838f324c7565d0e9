//! The router's HTTP routes, for clients and for operators.
//!
//! Not here: the path of a request (`lifecycle`).

mod access;
mod admin;
mod completions;
mod context;
mod cors;
mod decisions_api;
mod health;
mod model_events;
mod model_orders;
mod model_reports;
mod models;
mod ollama;
mod openapi;
mod pages;
mod props;
mod route;

use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{any, get, post};
use warmpath_common::dialects::anthropic;
use warmpath_common::headers;
use warmpath_common::ids::RequestId;
use warmpath_shell::dialect_errors::{as_anthropic, as_ollama};
use warmpath_shell::models::is_anthropic;
use warmpath_shell::refusal::Refusal;

use self::context::RequestContext;
use self::health::Audience;
use crate::app::App;
use crate::config::WebConfig;
use crate::error::RequestError;
use crate::fleet::fresh_request_id;

/// Returns the routes for clients, also for web pages of the allowed origins, and the chat page if it is served.
pub fn client_routes(app: App, web: &WebConfig) -> Router {
    let pages = if web.chat_page { pages::chat_routes() } else { Router::new() };
    let routes = Router::new()
        .route("/v1/chat/completions", post(completions::chat))
        .route("/v1/chat/completions/input_tokens", post(completions::pass_chat))
        .route("/v1/completions", post(completions::text))
        .route("/completion", post(completions::text))
        .route("/infill", post(completions::infill))
        .route("/v1/messages", post(completions::messages))
        .route("/v1/messages/count_tokens", post(completions::pass_chat))
        .route("/v1/responses", post(completions::responses))
        .route("/v1/responses/input_tokens", post(completions::pass_chat))
        .route("/v1/responses/{*id}", any(completions::stored))
        .route("/tokenize", post(completions::pass))
        .route("/detokenize", post(completions::pass))
        .route("/apply-template", post(completions::pass_chat))
        .route("/v1/embeddings", post(completions::embeddings))
        .route("/v1/rerank", post(completions::rerank))
        // Cohere's own path.
        .route("/v2/rerank", post(completions::rerank))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::show))
        // Aliases that llama-server's clients use.
        .route("/chat/completions", post(completions::chat))
        .route("/chat/completions/input_tokens", post(completions::pass_chat))
        .route("/completions", post(completions::text))
        .route("/responses", post(completions::responses))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(ollama::embed))
        .route("/api/embeddings", post(ollama::embeddings))
        .route("/api/tags", get(ollama::models::tags))
        .route("/api/ps", get(ollama::models::ps))
        .route("/api/show", post(ollama::models::show))
        .route("/api/version", get(ollama::models::version))
        // llama-server's own of router mode.
        .route("/models", get(models::list).post(model_orders::download).delete(model_orders::remove))
        .route("/models/load", post(model_orders::load))
        .route("/models/unload", post(model_orders::unload))
        .route("/models/sse", get(model_events::stream))
        .route("/props", get(props::show))
        .route("/slots", get(model_reports::show))
        .route("/metrics", get(model_reports::show))
        .route("/lora-adapters", get(model_reports::show))
        .route("/embeddings", post(completions::embeddings))
        .route("/embedding", post(completions::embeddings))
        .route("/rerank", post(completions::rerank))
        .route("/v1/reranking", post(completions::rerank))
        .route("/reranking", post(completions::rerank))
        .layer(from_fn_with_state(app.clone(), access::check_key))
        .route("/openapi.json", get(openapi::clients))
        .merge(health::routes(Audience::Clients))
        .merge(pages)
        .fallback(unknown_path)
        .method_not_allowed_fallback(refused_method)
        .layer(from_fn_with_state(app.clone(), access::check_client_host))
        .layer(from_fn_with_state(app.clone(), around))
        .with_state(app);
    match &web.cors {
        Some(cors) => routes.layer(cors::layer(cors)),
        None => routes,
    }
}

/// Returns the routes for operators.
pub fn admin_routes(app: App) -> Router {
    Router::new()
        .route("/", get(pages::fleet_root))
        .route("/fleet", get(pages::fleet))
        .route("/fleet.css", get(pages::fleet_style))
        .route("/fleet.js", get(pages::fleet_script))
        .route("/metrics", get(admin::metrics))
        .route("/internal/v1/fleet", get(admin::fleet))
        .route("/models", get(models::list).post(model_orders::download).delete(model_orders::remove))
        .route("/models/load", post(model_orders::load))
        .route("/models/unload", post(model_orders::unload))
        .route("/internal/v1/decisions", get(decisions_api::decisions))
        .route("/internal/v1/history", get(decisions_api::history))
        .route("/internal/v1/route", post(route::route))
        .route("/openapi.json", get(openapi::operators))
        .merge(health::routes(Audience::Operators))
        .fallback(unknown_path)
        .method_not_allowed_fallback(refused_method)
        .layer(from_fn_with_state(app.clone(), access::check_operator_host))
        .with_state(app)
}

async fn unknown_path(uri: Uri) -> RequestError {
    Refusal::path(&uri).into()
}

async fn refused_method(method: Method, uri: Uri) -> RequestError {
    Refusal::method(&uri, &method).into()
}

/// Gives a request its id, has it answered, and completes and counts the response.
async fn around(State(app): State<App>, mut request: Request, next: Next) -> Response {
    // An unreadable id is replaced, because it only names the request in logs.
    let id_of_client =
        request.headers().get(headers::REQUEST_ID).and_then(|value| value.to_str().ok()).and_then(RequestId::new);
    let context = RequestContext { id: id_of_client.unwrap_or_else(fresh_request_id), arrived: Instant::now() };
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    request.extensions_mut().insert(context.clone());
    let is_anthropic = is_anthropic(request.uri().path(), request.headers());
    let is_ollama = warmpath_common::dialects::ollama::is_path(request.uri().path());
    let mut response = next.run(request).await;
    if is_anthropic {
        response = as_anthropic(response, &context.id);
    } else if is_ollama {
        response = as_ollama(response);
    }

    let endpoint = path.as_deref().unwrap_or("none");
    if !health::PROBES.contains(&endpoint) {
        app.metrics.requests.with_label_values(&[endpoint, response.status().as_str()]).inc();
    }
    tracing::debug!(request_id = %context.id, endpoint, status = response.status().as_u16(), "responded");
    if let Ok(id) = HeaderValue::from_str(context.id.as_str()) {
        if is_anthropic {
            response.headers_mut().insert(HeaderName::from_static(anthropic::REQUEST_ID), id.clone());
        }
        response.headers_mut().insert(HeaderName::from_static(headers::REQUEST_ID), id);
    }
    response
}
