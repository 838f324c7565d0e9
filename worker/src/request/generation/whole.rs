//! Whole numbers of any size, however JSON spells them: `7`, `7.0`, `18446744073709551615`, `1e20`.
//!
//! Not here: their ranges.

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// Largest float that is taken; 128 bits hold it. Source: own choice, far above any number with a meaning here.
const FLOAT_ABS_MAX: f64 = 1e38;

/// A whole number of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whole(pub(super) i128);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadWhole)
    }
}

struct ReadWhole;

impl Visitor<'_> for ReadWhole {
    type Value = Whole;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E>(self, value: i64) -> Result<Whole, E> {
        Ok(Whole(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Whole, E> {
        Ok(Whole(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Whole, E> {
        if value.fract() != 0.0 || value.abs() > FLOAT_ABS_MAX {
            return Err(E::invalid_type(serde::de::Unexpected::Float(value), &self));
        }
        Ok(Whole(value as i128))
    }
}
