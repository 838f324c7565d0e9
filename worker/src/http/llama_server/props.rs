//! `/props`: the served model and the defaults, in llama-server's fields where it has them.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::Uri;
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_common::ids::Token;
use warmpath_common::llama_server;
use warmpath_common::prompts::MEDIA_MARKER;

use crate::app::App;
use crate::engine::{Generation, ProbabilityOptions, ProbabilitySource, Sampling};
use crate::error::RequestError;
use crate::loaded_model::LoadedModel;
use crate::loaded_model::common::check_model;
use crate::loaded_model::generator::Generator;

/// Llama-server's target if its sampler adaptive-p is off. Source: `common_params_sampling` in llama.cpp's `common.h`.
const ADAPTIVE_TARGET_OFF: f32 = -1.0;
/// Llama-server's default decay of the same sampler. Source: the same.
const ADAPTIVE_DECAY_DEFAULT: f32 = 0.9;

#[derive(Deserialize)]
struct PropsQuery {
    model: Option<String>,
}

/// Responds with the model's and the worker's properties.
pub async fn show(State(app): State<App>, uri: Uri) -> Result<Json<Value>, RequestError> {
    let loaded_model = app.loaded_model()?;
    let common = loaded_model.common();
    let query = Query::<PropsQuery>::try_from_uri(&uri);
    let model_name = query.ok().and_then(|Query(query)| query.model).filter(|name| !name.is_empty());
    check_model(&common.model, model_name.as_deref())?;
    let vocabulary = common.prompts.vocabulary();
    let piece = |token: Option<u32>| {
        token.map_or_else(String::new, |token| String::from_utf8_lossy(&common.prompts.piece(token)).into_owned())
    };
    let mut props = json!({
        "default_generation_settings": {"n_ctx": common.model.context_tokens},
        "total_slots": common.model.n_slots,
        "model_alias": common.model.names.first(),
        "model_path": common.model_path,
        "modalities": common.model.modalities(),
        "media_marker": MEDIA_MARKER,
        "chat_template": common.prompts.chat_template().unwrap_or_default(),
        "chat_template_caps": llama_server::chat_template_caps(&common.model),
        "chat_template_kwargs": common.prompts.chat_template_kwargs().variables(),
        "bos_token": piece(vocabulary.bos),
        "eos_token": piece(vocabulary.eos),
        "is_sleeping": false,
        "build_info": concat!("warmpath-worker ", env!("CARGO_PKG_VERSION")),
        "model_info": common.model,
        "memory": common.memory,
    });
    if let LoadedModel::Generator(generator) = &loaded_model {
        let facts = generator.engine.facts();
        props["default_generation_settings"]["params"] = default_params(generator);
        props["flash_attn"] = json!(facts.flash_attn);
        props["kv_unified"] = json!(facts.kv_unified);
        props["self_test"] = json!(generator.engine.self_test().as_deref());
    }
    Ok(Json(props))
}

/// Returns the fields of a generation with llama-server's names; `ends` are the tokens that end one.
pub fn generation_params(ends: &[Token], generation: &Generation) -> Value {
    let Generation { max_tokens, stop, ignore_eos, probabilities, sampling, .. } = generation;
    let mut params = sampling_params(sampling);
    let ends = ends.iter().map(|token| (*token, f32::NEG_INFINITY));
    let biases = sampling.logit_bias.iter().copied().chain(ends.filter(|_| *ignore_eos));
    params["logit_bias"] = biases.map(|(token, bias)| json!({"token": token, "bias": bias})).collect();
    params["max_tokens"] = json!(max_tokens.map_or(-1, i64::from));
    params["n_predict"] = params["max_tokens"].clone();
    params["stop"] = json!(stop);
    params["ignore_eos"] = json!(ignore_eos);
    params["n_probs"] = json!(probabilities.map_or(0, |wish| wish.n_top));
    let is_sampler = |wish: ProbabilityOptions| wish.source == ProbabilitySource::Sampler;
    params["post_sampling_probs"] = json!(probabilities.is_some_and(is_sampler));
    params
}

fn default_params(generator: &Generator) -> Value {
    let mut params = generation_params(&generator.common.prompts.vocabulary().end_of_generation, &generator.defaults);
    params["n_keep"] = json!(0);
    params["n_discard"] = json!(0);
    params["reasoning_format"] = json!(generator.reasoning_output.name());
    params
}

fn sampling_params(sampling: &Sampling) -> Value {
    let mut params = serde_json::to_value(sampling).unwrap_or_default();
    params["seed"] = json!(sampling.seed.unwrap_or(u32::MAX));
    // For the other samplers of llama-server, a request may only have the values that turn them off.
    params["adaptive_target"] = json!(ADAPTIVE_TARGET_OFF);
    params["adaptive_decay"] = json!(ADAPTIVE_DECAY_DEFAULT);
    params
}
