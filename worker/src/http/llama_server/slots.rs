//! `/slots`: each slot's request and state, and actions that save, restore or erase a slot; as in llama-server's API.
//!
//! The engine exports or imports a state between two steps. Neither the engine's thread nor the threads that serve HTTP
//! access the disk. Requests for a busy slot wait until it is idle. Not here: the file (`crate::store::slot_file`), a
//! slot's state (the engine).

use std::path::PathBuf;
use std::time::Instant;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::Uri;
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_common::ids::SlotId;
use warmpath_shell::refusal::Name;

use crate::app::App;
use crate::engine::SlotView;
use crate::error::RequestError;
use crate::http::body::Body;
use crate::loaded_model::generator::Generator;
use crate::store::slot_file::{self, SlotFileError};
use crate::store::{Identity, SlotIdentity};

/// Longest name of a slot's file. Units: bytes.
///
/// Source: half of the limit of common file systems.
pub const FILENAME_BYTES_MAX: usize = 128;

#[derive(Deserialize)]
struct SlotQuery {
    action: Option<String>,
}

#[derive(Deserialize)]
struct FileRequest {
    filename: String,
}

/// Responds with every slot after the engine's last step.
pub async fn list(State(app): State<App>) -> Result<Json<Vec<Value>>, RequestError> {
    let generator = app.generator()?;
    Ok(Json(generator.engine.slots().iter().map(|slot| describe(slot, &generator)).collect()))
}

/// Saves, restores or erases the state of one slot, once it is idle.
pub async fn act(State(app): State<App>, Name(slot): Name, uri: Uri, body: Body) -> Result<Json<Value>, RequestError> {
    let generator = app.open_generator()?;
    let slot = read_slot(&generator, &slot)?;
    let query = Query::<SlotQuery>::try_from_uri(&uri);
    let Query(query) = query.map_err(|error| RequestError::Query { reason: error.body_text() })?;
    match query.action.as_deref() {
        Some("save") => save(&app, &generator, slot, &body).await,
        Some("restore") => restore(&app, &generator, slot, &body).await,
        Some("erase") => {
            let n_erased = generator.engine.erase_slot(slot).await?;
            Ok(Json(json!({"id_slot": slot, "n_erased": n_erased})))
        }
        _ => Err(RequestError::field("action", "`action` must be save, restore or erase")),
    }
}

async fn save(app: &App, generator: &Generator, slot: SlotId, body: &Body) -> Result<Json<Value>, RequestError> {
    let (filename, path) = read_file(app, body)?;
    let began = Instant::now();
    let state = generator.engine.export_slot(slot).await?;
    let (n_saved, identity) = (state.tokens.len(), identity(generator));
    let n_written = on_disk(&filename, move || slot_file::write(&path, identity, &state)).await?;
    Ok(Json(json!({
        "id_slot": slot,
        "filename": filename,
        "n_saved": n_saved,
        "n_written": n_written,
        "timings": {"save_ms": elapsed_ms(began)},
    })))
}

async fn restore(app: &App, generator: &Generator, slot: SlotId, body: &Body) -> Result<Json<Value>, RequestError> {
    let (filename, path) = read_file(app, body)?;
    let began = Instant::now();
    let identity = identity(generator);
    let (state, n_read) = on_disk(&filename, move || slot_file::read(&path, identity)).await?;
    let n_restored = generator.engine.import_slot(slot, state).await?;
    Ok(Json(json!({
        "id_slot": slot,
        "filename": filename,
        "n_restored": n_restored,
        "n_read": n_read,
        "timings": {"restore_ms": elapsed_ms(began)},
    })))
}

fn elapsed_ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}

async fn on_disk<T: Send + 'static>(
    filename: &str,
    work: impl FnOnce() -> Result<T, SlotFileError> + Send + 'static,
) -> Result<T, RequestError> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|error| RequestError::Internal { reason: error.to_string() })?;
    done.map_err(|source| RequestError::SlotFile { filename: filename.to_owned(), source })
}

fn identity(generator: &Generator) -> SlotIdentity {
    let facts = generator.engine.facts();
    SlotIdentity {
        common: Identity::new(facts.model_fingerprint, &facts.kv_fingerprint.to_string(), facts.block_size_tokens),
        n_streams: if facts.kv_unified { 1 } else { u32::from(facts.n_slots) },
    }
}

fn read_slot(generator: &Generator, text: &str) -> Result<SlotId, RequestError> {
    let n_slots = generator.common.model.n_slots;
    let slot = text.parse().ok().filter(|slot| *slot < n_slots).map(SlotId);
    slot.ok_or_else(|| RequestError::field("id_slot", format!("there is no slot {text}; there are {n_slots}")))
}

/// Returns the file's name and its path, which is directly in the folder.
fn read_file(app: &App, body: &Body) -> Result<(String, PathBuf), RequestError> {
    let Some(folder) = &app.slot_save_path else {
        return Err(RequestError::NotEnabled { what: "saving slots", flag: "--slot-save-path" });
    };
    let FileRequest { filename } = body.parse()?;
    let plain = |c: char| !c.is_control() && !matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    let has_length = (1..=FILENAME_BYTES_MAX).contains(&filename.len());
    if !has_length || filename.starts_with('.') || !filename.chars().all(plain) {
        let reason = format!(
            "`filename` must be 1 to {FILENAME_BYTES_MAX} bytes, without path separators and without a '.' at its start"
        );
        return Err(RequestError::field("filename", reason));
    }
    let path = folder.join(&filename);
    Ok((filename, path))
}

fn describe(slot: &SlotView, generator: &Generator) -> Value {
    json!({
        "id": slot.id,
        "n_ctx": generator.common.model.context_tokens,
        "speculative": generator.engine.facts().drafted_max > 0,
        "is_processing": slot.request_id.is_some(),
        "request_id": slot.request_id,
        "n_prompt_tokens": slot.prompt_tokens,
        "n_prompt_tokens_cache": slot.cached_tokens,
        "n_held_tokens": slot.held_tokens,
        "n_exact_tokens": slot.exact_tokens,
        "next_token": [{
            "has_next_token": slot.request_id.is_some(),
            "n_remain": slot.remaining_tokens.map_or(-1, i64::from),
            "n_decoded": slot.decoded_tokens,
        }],
    })
}
