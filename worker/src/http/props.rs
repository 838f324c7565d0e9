//! `/props`: what the worker serves and with which defaults, in llama-server's fields where it has them.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::state::App;
use crate::engine::{Generation, ProbabilitySource, ProbabilityWish, Sampling};
use crate::error::RequestError;

/// Answers with the model's and the worker's properties.
pub async fn show(State(app): State<App>) -> Result<Json<Value>, RequestError> {
    let serving = app.serving()?;
    let facts = serving.engine.facts();
    let vocabulary = serving.prompts.vocabulary();
    let piece = |token: Option<u32>| {
        token.map_or_else(String::new, |token| String::from_utf8_lossy(&serving.prompts.piece(token)).into_owned())
    };
    Ok(Json(json!({
        "default_generation_settings": {
            "n_ctx": facts.context_tokens,
            "params": default_params(&serving.defaults),
        },
        "total_slots": facts.n_slots,
        "model_alias": serving.model.names.first(),
        "model_path": serving.model_path,
        "modalities": {"vision": false, "audio": false},
        "chat_template": serving.prompts.chat_template().unwrap_or_default(),
        "bos_token": piece(vocabulary.bos),
        "eos_token": piece(vocabulary.eos),
        "build_info": concat!("warmpath-worker ", env!("CARGO_PKG_VERSION")),
        "model_info": serving.model,
        "flash_attn": facts.flash_attn,
        "kv_unified": facts.kv_unified,
        "self_test": facts.self_test,
    })))
}

/// Returns the fields of a generation as llama-server names them.
pub fn generation_params(generation: &Generation) -> Value {
    let Generation { max_tokens, stop, ignore_eos, probabilities, sampling, .. } = generation;
    let mut params = sampling_params(sampling);
    params["max_tokens"] = json!(max_tokens.map_or(-1, i64::from));
    params["n_predict"] = params["max_tokens"].clone();
    params["stop"] = json!(stop);
    params["ignore_eos"] = json!(ignore_eos);
    params["n_probs"] = json!(probabilities.map_or(0, |wish| wish.n_top));
    let is_sampler = |wish: ProbabilityWish| wish.source == ProbabilitySource::Sampler;
    params["post_sampling_probs"] = json!(probabilities.is_some_and(is_sampler));
    params
}

fn default_params(defaults: &Generation) -> Value {
    let mut params = generation_params(defaults);
    params["n_keep"] = json!(0);
    params["n_discard"] = json!(0);
    params
}

fn sampling_params(sampling: &Sampling) -> Value {
    let mut params = serde_json::to_value(sampling).unwrap_or_default();
    params["seed"] = json!(sampling.seed.unwrap_or(u32::MAX));
    params
}
