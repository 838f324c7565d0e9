//! `/slots`: what each slot runs and holds, in llama-server's fields where it has them.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::state::App;
use crate::engine::SlotView;
use crate::error::RequestError;

/// Answers with every slot as it was after the engine's last step.
pub async fn list(State(app): State<App>) -> Result<Json<Vec<Value>>, RequestError> {
    let serving = app.serving()?;
    let n_ctx = serving.model.context_tokens;
    Ok(Json(serving.engine.slots().iter().map(|slot| describe(slot, n_ctx)).collect()))
}

fn describe(slot: &SlotView, n_ctx: u32) -> Value {
    json!({
        "id": slot.id,
        "n_ctx": n_ctx,
        "speculative": false,
        "is_processing": slot.request_id.is_some(),
        "request_id": slot.request_id,
        "n_prompt_tokens": slot.prompt_tokens,
        "n_prompt_tokens_cache": slot.cached_tokens,
        "n_held_tokens": slot.held_tokens,
        "next_token": [{
            "has_next_token": slot.request_id.is_some(),
            "n_decoded": slot.decoded_tokens,
        }],
    })
}
