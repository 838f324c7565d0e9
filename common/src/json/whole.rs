//! Whole numbers of a request, in any form of JSON: `7`, `7.0`, `7e0`.
//!
//! JSON has one kind of number, and low-code tools and languages without integers write whole ones with a fraction of
//! zero. Every whole number in a body is read by this type.

use std::borrow::Cow;
use std::fmt::Display;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// Largest accepted float. Source: the largest power of ten that an `i128` can represent.
const FLOAT_ABS_MAX: f64 = 1e38;

/// A whole number of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whole<T>(pub T);

/// Integer type of a field.
pub trait Integer: TryFrom<i128> + Display {
    /// Smallest value.
    const LEAST: Self;
    /// Largest value.
    const MOST: Self;
}

macro_rules! integers {
    ($($integer:ty),*) => {
        $(impl Integer for $integer {
            const LEAST: Self = Self::MIN;
            const MOST: Self = Self::MAX;
        })*
    };
}

integers!(u8, u32, i32, i64, i128);

impl<'de, T: Integer> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadWhole(PhantomData))
    }
}

struct ReadWhole<T>(PhantomData<T>);

impl<T: Integer> Visitor<'_> for ReadWhole<T> {
    type Value = Whole<T>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Whole<T>, E> {
        within(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Whole<T>, E> {
        within(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Whole<T>, E> {
        if value.fract() != 0.0 || value.abs() > FLOAT_ABS_MAX {
            return Err(E::invalid_type(Unexpected::Float(value), &self));
        }
        within(value as i128)
    }
}

fn within<T: Integer, E: Error>(value: i128) -> Result<Whole<T>, E> {
    T::try_from(value).map(Whole).map_err(|_| {
        let expected = format!("a whole number from {} to {}", T::LEAST, T::MOST);
        E::invalid_value(Unexpected::Other(&value.to_string()), &expected.as_str())
    })
}

impl<T: Integer + JsonSchema + Into<serde_json::Value>> JsonSchema for Whole<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(generator);
        schema.insert("minimum".to_owned(), T::LEAST.into());
        schema.insert("maximum".to_owned(), T::MOST.into());
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: Integer>(json: &str) -> Result<T, String> {
        serde_json::from_str::<Whole<T>>(json).map(|Whole(n)| n).map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_number_is_the_same_in_every_form_of_json() {
        for json in ["40", "40.0", "4e1", "4.0E+1", "400e-1"] {
            assert_eq!((read::<u32>(json), read::<i64>(json)), (Ok(40), Ok(40)), "{json}");
        }
        for json in ["-1", "-1.0", "-1e0"] {
            assert_eq!(read::<i32>(json), Ok(-1), "{json}");
        }
        assert_eq!((read::<u32>("-0.0"), read::<u32>("4294967295.0")), (Ok(0), Ok(u32::MAX)));
        assert_eq!(read::<i128>("36893488147419103232"), Ok(1 << 65));
        let of_value = serde_json::from_value::<Vec<Whole<u32>>>(serde_json::json!([1, 2.0, 3e0]));
        assert_eq!(of_value.expect("whole numbers"), [Whole(1), Whole(2), Whole(3)]);
    }

    #[test]
    fn other_values_are_refused_with_the_reason() {
        let check = |json: &str, part: &str| {
            let error = read::<u32>(json).expect_err(json);
            assert!(error.contains(part), "{json}: {error}");
        };
        check("4.5", "floating point `4.5`, expected a whole number");
        for other in ["\"4\"", "true", "[4]", "{}", "1e39"] {
            check(other, "invalid type");
        }
        for outside in ["-1", "-1.0", "4294967296", "4294967296.0", "1e20"] {
            check(outside, "expected a whole number from 0 to 4294967295");
        }
        check("-1.0", "invalid value: -1, expected");
    }
}
