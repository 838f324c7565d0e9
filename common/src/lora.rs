//! LoRA adapters: the adapter with which a request runs, and its part of the root of the request's hash chain.
//!
//! The worker's engine loads and applies them. Router and worker resolve a request by one function from the worker's
//! declaration, so that both hash its prompt in the same way. State that was computed with another adapter or another
//! scale has another root.

pub(crate) mod adapter;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::json::whole::Whole;
use crate::model::ModelInfo;

pub use adapter::{AdapterInfo, Applied, SCALE_ABS_MAX, Scale, ScaleError};

/// Separator between a model's name and an adapter's.
pub const SEPARATOR: char = ':';

/// An entry of a request's `lora`, llama-server's field.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
pub struct RequestedAdapter {
    /// Index of the adapter.
    pub id: Whole<i64>,
    /// Scale at which it is applied.
    pub scale: f32,
}

/// Reason why the adapters that a request selects cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdapterError {
    /// There is no such adapter.
    #[error("`lora` names the adapter {id}; {}", loaded(*n_adapters))]
    Unknown {
        /// Requested index.
        id: i64,
        /// Number of loaded adapters.
        n_adapters: usize,
    },
    /// A scale is out of range or not a number.
    #[error("`lora` has the scale {scale}; {ScaleError}")]
    Scale {
        /// The scale.
        scale: String,
    },
    /// The request applies several adapters.
    #[error("`lora` applies several adapters; this worker applies one at a time")]
    Several,
    /// The model's name selects an adapter already.
    #[error("`lora` cannot be combined with an adapter in `model`")]
    Twice,
}

fn loaded(n_adapters: usize) -> String {
    match n_adapters {
        0 => "none is loaded".to_owned(),
        n => format!("{n} are loaded, from 0"),
    }
}

/// Returns the adapter with which a request runs: the adapter in its model name, the one in its `lora`, or the default
/// adapter.
///
/// Errors: every [`AdapterError`].
pub fn resolve(
    model: &ModelInfo,
    name: Option<&str>,
    requested_adapters: Option<&[RequestedAdapter]>,
) -> Result<Option<Applied>, AdapterError> {
    let adapter_of_name = name.and_then(|name| model.adapter_named(name));
    match (adapter_of_name, requested_adapters) {
        (Some(_), Some(_)) => Err(AdapterError::Twice),
        (Some(adapter), None) => Ok(applied(adapter, model.adapters[usize::from(adapter)].scale)),
        (None, Some(requested_adapters)) => chosen(model.adapters.len(), requested_adapters),
        (None, None) => Ok(model.adapter_in_force),
    }
}

/// Returns the adapter that remains after a list of scales is applied; adapters that the list does not mention are not
/// applied.
///
/// Errors: `Unknown`, `Scale`, `Several`.
pub fn chosen(n_adapters: usize, requested_adapters: &[RequestedAdapter]) -> Result<Option<Applied>, AdapterError> {
    let mut scales = vec![Scale::ZERO; n_adapters];
    for RequestedAdapter { id: Whole(id), scale } in requested_adapters {
        let unknown = AdapterError::Unknown { id: *id, n_adapters };
        let place = usize::try_from(*id).ok().and_then(|id| scales.get_mut(id)).ok_or(unknown)?;
        *place = Scale::try_from(*scale).map_err(|ScaleError| AdapterError::Scale { scale: scale.to_string() })?;
    }
    let mut applied_adapters = (0..).zip(scales).filter_map(|(adapter, scale)| applied(adapter, scale));
    let first = applied_adapters.next();
    if applied_adapters.next().is_some() { Err(AdapterError::Several) } else { Ok(first) }
}

fn applied(adapter: u16, scale: Scale) -> Option<Applied> {
    (!scale.is_zero()).then_some(Applied { adapter, scale })
}

/// Returns every name by which clients may request a model with adapters: its own names, then each of them with each
/// adapter.
pub fn all_names<'a>(
    names: &'a [String],
    adapters: impl Iterator<Item = &'a str> + 'a,
) -> impl Iterator<Item = String> + 'a {
    let with_adapter = |adapter: &'a str| names.iter().map(move |name| format!("{name}{SEPARATOR}{adapter}"));
    names.iter().cloned().chain(adapters.flat_map(with_adapter))
}

impl ModelInfo {
    /// Returns every name by which clients may request the model: its own names, then each of them with each adapter.
    pub fn all_names(&self) -> impl Iterator<Item = String> + '_ {
        all_names(&self.names, self.adapters.iter().map(|adapter| adapter.name.as_str()))
    }

    /// Returns the adapter's part of the root of a chain: its file's fingerprint and its scale; empty for no adapter.
    ///
    /// An index without an adapter counts as no adapter; [`resolve`] never returns one.
    pub fn lora_root(&self, adapter_in_force: Option<Applied>) -> Vec<u8> {
        let Some(Applied { adapter, scale }) = adapter_in_force else { return Vec::new() };
        let Some(adapter) = self.adapters.get(usize::from(adapter)) else { return Vec::new() };
        [&adapter.fingerprint.0[..], &f32::from(scale).to_le_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::block_hash::ChainRoot;
    use crate::hash::fingerprint::Fingerprint;

    fn model() -> ModelInfo {
        let adapter = |name: &str, byte, scale| AdapterInfo {
            name: name.to_owned(),
            fingerprint: Fingerprint([byte; 32]),
            scale: Scale::try_from(scale).expect("a scale"),
        };
        ModelInfo {
            names: vec!["base".to_owned(), "org/base:7b".to_owned()],
            adapters: vec![adapter("poet", 1, 1.0), adapter("clerk", 2, 0.5), adapter("mute", 3, 0.0)],
            ..ModelInfo::text(Fingerprint([1; 32]), 32, 8192, 4, 1000)
        }
    }

    fn apply(adapter: u16, scale: f32) -> Option<Applied> {
        Some(Applied { adapter, scale: Scale::try_from(scale).expect("a scale") })
    }

    #[test]
    fn the_model_has_every_name_that_is_listed() {
        let model = model();
        let names: Vec<String> = model.all_names().collect();
        assert_eq!(names.len(), 2 + 3 * 2);
        assert!(names.iter().all(|name| model.answers_to(name)), "{names:?}");
    }

    #[test]
    fn a_request_runs_with_its_adapter_or_the_default_one() {
        let mut model = model();
        let wanted = |id, scale| RequestedAdapter { id: Whole(id), scale };
        let resolve = |model: &ModelInfo, name, wanted: Option<&[RequestedAdapter]>| resolve(model, name, wanted);
        assert_eq!(resolve(&model, Some("base"), None), Ok(None));
        model.adapter_in_force = apply(0, 1.0);
        assert_eq!(resolve(&model, None, None), Ok(apply(0, 1.0)));
        assert_eq!(resolve(&model, Some("base"), None), Ok(apply(0, 1.0)));
        assert_eq!(resolve(&model, Some("base:clerk"), None), Ok(apply(1, 0.5)));
        assert_eq!(resolve(&model, Some("base:mute"), None), Ok(None));
        assert_eq!(resolve(&model, None, Some(&[])), Ok(None));
        assert_eq!(resolve(&model, None, Some(&[wanted(1, 2.0), wanted(0, 0.0)])), Ok(apply(1, 2.0)));
        assert_eq!(resolve(&model, None, Some(&[wanted(0, -0.0)])), Ok(None));
        let refused =
            |wanted: &[RequestedAdapter]| resolve(&model, None, Some(wanted)).expect_err("it cannot be applied");
        assert_eq!(refused(&[wanted(3, 1.0)]), AdapterError::Unknown { id: 3, n_adapters: 3 });
        assert_eq!(refused(&[wanted(-1, 1.0)]), AdapterError::Unknown { id: -1, n_adapters: 3 });
        assert!(matches!(refused(&[wanted(0, f32::NAN)]), AdapterError::Scale { .. }));
        assert!(matches!(refused(&[wanted(0, 101.0)]), AdapterError::Scale { .. }));
        assert_eq!(refused(&[wanted(0, 1.0), wanted(1, 1.0)]), AdapterError::Several);
        assert_eq!(resolve(&model, Some("base:poet"), Some(&[])), Err(AdapterError::Twice));
    }

    #[test]
    fn every_adapter_and_scale_has_a_root_of_its_own() {
        let model = model();
        let root = |applied| {
            let lora = model.lora_root(applied);
            ChainRoot { model_fingerprint: &model.fingerprint.0, lora: &lora, cache_salt: &[] }.hash()
        };
        let roots = [None, apply(0, 1.0), apply(0, 0.5), apply(1, 1.0), apply(1, 0.5), apply(0, -1.0)].map(root);
        for (idx, one) in roots.iter().enumerate() {
            assert!(!roots[..idx].contains(one), "{idx}");
        }
        assert_eq!(model.lora_root(None), Vec::<u8>::new());
    }
}
