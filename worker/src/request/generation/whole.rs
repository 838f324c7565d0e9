//! Whole numbers of any size in any JSON form: `7`, `7.0`, `18446744073709551615`, `1e20`.
//!
//! Not here: their ranges.

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// Largest accepted float. Source: the largest power of ten that an `i128` can represent.
const FLOAT_ABS_MAX: f64 = 1e38;

/// A whole number of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WholeNumber(pub(super) i128);

impl<'de> Deserialize<'de> for WholeNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadWhole)
    }
}

struct ReadWhole;

impl Visitor<'_> for ReadWhole {
    type Value = WholeNumber;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E>(self, value: i64) -> Result<WholeNumber, E> {
        Ok(WholeNumber(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<WholeNumber, E> {
        Ok(WholeNumber(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<WholeNumber, E> {
        if value.fract() != 0.0 || value.abs() > FLOAT_ABS_MAX {
            return Err(E::invalid_type(serde::de::Unexpected::Float(value), &self));
        }
        Ok(WholeNumber(value as i128))
    }
}
