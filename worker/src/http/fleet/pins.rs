//! `/cache/pin`: prefixes that are not evicted until they are unpinned.
//!
//! A pin names a prefix, not its stored part. So it can be created before the first request with that prefix, and it
//! survives `/cache/clear`. Not here: the share of the store for pins (`warmpath_worker_core::store::chunk_index`).

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use warmpath_common::ids::Token;
use warmpath_common::lora::{self, RequestedAdapter};
use warmpath_common::media::MEDIA_TOKEN_MIN;
use warmpath_shell::refusal::Name;

use crate::app::App;
use crate::engine::{EntryPage, NamedPin, NewPin};
use crate::error::RequestError;
use crate::http::body::Body;
use crate::http::context::RequestContext;
use crate::lifecycle::prompts;
use crate::loaded_model::generator::Generator;
use crate::request::{read_chat, read_raw};

/// Longest name of a pin. Units: bytes.
///
/// Source: names are parts of paths, and operators type them.
pub const NAME_BYTES_MAX: usize = 64;

/// Number of the hash's bytes that are in the derived name of a pin. Source: 2⁶⁴ names make collisions improbable.
const DERIVED_NAME_BYTES: usize = 8;

#[derive(Deserialize)]
struct PinRequest {
    name: Option<String>,
    #[serde(default, deserialize_with = "warmpath_common::salt::of_body")]
    cache_salt: Option<String>,
    model: Option<String>,
    lora: Option<Vec<RequestedAdapter>>,
    messages: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
}

/// Pins a prefix, given as messages or as a prompt.
pub async fn create(State(app): State<App>, context: RequestContext, body: Body) -> Result<Json<Value>, RequestError> {
    let generator = app.open_generator()?;
    let reader = Arc::clone(&generator);
    let pin = generator.common.pools.compute.run(move || read(&reader, &context, &body)).await?;
    let pin_view = generator.engine.pin(pin).await?;
    Ok(Json(describe(&pin_view, generator.common.model.block_size_tokens)))
}

/// Responds with the pins, the oldest first.
pub async fn list(State(app): State<App>) -> Result<Json<Value>, RequestError> {
    let generator = app.generator()?;
    let view = generator.engine.cache_view(EntryPage { after: None, entries_max: 0 }).await?;
    let block_tokens = generator.common.model.block_size_tokens;
    Ok(Json(json!({"pins": view.pins.iter().map(|pin| describe(pin, block_tokens)).collect::<Vec<_>>()})))
}

/// Removes a pin.
pub async fn remove(State(app): State<App>, Name(id): Name) -> Result<Json<Value>, RequestError> {
    match app.open_generator()?.engine.unpin(id.clone()).await? {
        true => Ok(Json(json!({"id": id, "unpinned": true}))),
        false => Err(RequestError::PinUnknown { id }),
    }
}

/// Returns a pin in the form of responses.
pub fn describe(pin: &NamedPin, block_tokens: u32) -> Value {
    json!({
        "id": pin.name,
        "tokens": pin.view.n_tokens,
        "blocks": pin.view.n_tokens / u64::from(block_tokens),
        "stored_bytes": pin.view.n_stored_bytes,
        "kept_bytes": pin.view.n_guarded_bytes,
    })
}

fn read(generator: &Generator, context: &RequestContext, body: &Body) -> Result<NewPin, RequestError> {
    let request: PinRequest = body.parse()?;
    generator.check_model(request.model.as_deref())?;
    let of_header = context.cache_salt.as_ref().map_err(|error| *error)?;
    let salt = request.cache_salt.as_deref().or(of_header.as_deref()).unwrap_or_default();
    let mut tokens = read_prefix(generator, &request, body, salt)?;
    let block_tokens = generator.common.model.block_size_tokens as usize;
    let param = if request.messages.is_some() { "messages" } else { "prompt" };
    if tokens.len() < block_tokens {
        let reason = format!("the prefix has {} tokens; a pin needs a block of {block_tokens}", tokens.len());
        return Err(RequestError::field(param, reason));
    }
    tokens.truncate(tokens.len() / block_tokens * block_tokens);
    if tokens.iter().any(|token| *token >= MEDIA_TOKEN_MIN) {
        return Err(RequestError::field(param, "a pin cannot have images or audio"));
    }
    generator.check_prompt(&tokens, &[])?;
    let adapter = lora::resolve(&generator.common.model, request.model.as_deref(), request.lora.as_deref())?;
    let root = generator.chain_root(adapter, salt);
    let name = match request.name {
        Some(name) => check_name(name)?,
        None => {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&root.0);
            for token in &tokens {
                hasher.update(&token.to_le_bytes());
            }
            hasher.finalize().to_hex()[..2 * DERIVED_NAME_BYTES].to_owned()
        }
    };
    Ok(NewPin { name, root, tokens })
}

fn read_prefix(
    generator: &Generator,
    request: &PinRequest,
    body: &Body,
    salt: &str,
) -> Result<Vec<Token>, RequestError> {
    match (&request.messages, &request.prompt) {
        (Some(_), Some(_)) => Err(RequestError::field("prompt", "give `messages` or `prompt`, not both")),
        (None, None) => Err(RequestError::field("messages", "`messages` or `prompt` is missing")),
        (Some(_), None) => Ok(generator.common.prompts.chat_prefix(&read_chat(&body.0, salt)?)?),
        (None, Some(_)) => {
            let mut prompts = prompts::raw(generator, &read_raw(&body.0)?, salt)?;
            match (prompts.pop(), prompts.is_empty()) {
                (Some(prompt), true) => Ok(prompt.tokens),
                _ => Err(RequestError::field("prompt", "a pin takes one prompt")),
            }
        }
    }
}

fn check_name(name: String) -> Result<String, RequestError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
        let reason = format!("`name` must be 1 to {NAME_BYTES_MAX} letters, digits, '_', '-' or '.'");
        return Err(RequestError::field("name", reason));
    }
    Ok(name)
}
