//! `samplers`: names or letters, in the order in which the samplers are applied.
//!
//! Not here: the samplers and their spellings (`engine::SamplerKind`).

use serde::Deserialize;

use super::at_most;
use crate::engine::{SamplerKind, Sampling};
use crate::error::RequestError;

/// Maximum number of samplers, each of which takes time at every token. Source: llama-server has eleven; this leaves
/// room to apply each of them twice.
pub(super) const SAMPLERS_MAX: usize = 32;

/// `samplers` in its two forms.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "an array of names, or a string of letters")]
pub(super) enum SamplersField {
    Letters(String),
    Names(Vec<String>),
}

/// Returns the samplers that a request names; unknown names are ignored, as in llama-server.
///
/// Errors: `Field` if there are too many.
pub(super) fn resolve(field: Option<SamplersField>, default: &[SamplerKind]) -> Result<Vec<SamplerKind>, RequestError> {
    let named_kinds: Vec<Option<SamplerKind>> = match field {
        None => return Ok(default.to_vec()),
        Some(SamplersField::Letters(letters)) => letters.chars().map(SamplerKind::of_letter).collect(),
        Some(SamplersField::Names(names)) => names.iter().map(|name| SamplerKind::of_name(name)).collect(),
    };
    at_most("samplers", "samplers", named_kinds.len(), SAMPLERS_MAX)?;
    Ok(named_kinds.into_iter().flatten().collect())
}

/// Refuses sampling near a target probability, which is on if there are both a target and the sampler's name.
///
/// Errors: `Unsupported`.
pub(super) fn check_target(target: Option<f32>, sampling: &Sampling) -> Result<(), RequestError> {
    let is_on = target.is_some_and(|target| target >= 0.0) && sampling.mirostat == 0;
    if is_on && sampling.samplers.contains(&SamplerKind::AdaptiveP) {
        let only = Some("only a negative number together with the sampler `adaptive_p`");
        return Err(RequestError::Unsupported { param: "adaptive_target", only });
    }
    Ok(())
}
