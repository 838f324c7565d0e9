//! A worker's declaration of a LoRA adapter, and the scale at which it is applied.

use serde::{Deserialize, Serialize};

use crate::hash::fingerprint::Fingerprint;

/// Largest scale; the smallest is its negative.
///
/// Source: own choice: adapters are used with scales around 1; far larger ones turn a model's output into noise.
pub const SCALE_ABS_MAX: f32 = 100.0;

/// Strength with which an adapter is applied; never NaN.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "f32", into = "f32")]
pub struct Scale(f32);

/// Error: a number is not a valid scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a scale must be within -{SCALE_ABS_MAX} and {SCALE_ABS_MAX}")]
pub struct ScaleError;

impl TryFrom<f32> for Scale {
    type Error = ScaleError;

    fn try_from(scale: f32) -> Result<Self, ScaleError> {
        // Minus zero becomes zero: both have the same effect, so they must have the same hash.
        if scale.abs() <= SCALE_ABS_MAX { Ok(Self(scale + 0.0)) } else { Err(ScaleError) }
    }
}

impl From<Scale> for f32 {
    fn from(scale: Scale) -> Self {
        scale.0
    }
}

impl Scale {
    /// Scale that the adapter was trained for.
    pub const ONE: Self = Self(1.0);
    /// Scale with which an adapter has no effect.
    pub const ZERO: Self = Self(0.0);

    /// Returns whether an adapter has no effect at this scale.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

impl PartialEq for Scale {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Scale {}

impl PartialOrd for Scale {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scale {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl std::fmt::Display for Scale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Declaration of one loaded adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterInfo {
    /// Name, which follows the model's name.
    pub name: String,
    /// Fingerprint of its file.
    pub fingerprint: Fingerprint,
    /// Scale with which it is applied when a client selects it by name.
    pub scale: Scale,
}

/// An applied adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Applied {
    /// Index among the loaded adapters.
    pub adapter: u16,
    /// Scale; never 0.
    pub scale: Scale,
}
