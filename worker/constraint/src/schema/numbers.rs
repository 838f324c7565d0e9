//! Bounds of numbers: kept if a 64-bit float holds them exactly, otherwise moved inward.
//!
//! The compiler converts bounds to regular expressions and computes in `f64`. The bounds passed to it are small enough
//! for both, and never allow a number that the client's schema does not. Not here: constants.

use serde_json::{Map, Number, Value, json};

use super::{At, SchemaError};

/// Largest supported bound; the compiler writes bounds out digit by digit.
///
/// Source: the largest float below 2^63; the compiler counts in 64-bit integers.
const BOUND_MAX: f64 = 9_223_372_036_854_774_784.0;

/// Smallest bound other than 0. Source: it has about as many digits as the largest.
const BOUND_MIN: f64 = 1e-18;

/// Largest value of the significant digits of a `multipleOf`: the compiler has a state for each remainder.
///
/// Source: five digits cost it 1.2 s and 47 MB, and four 20 ms per token (docs/decisions/0023).
const MULTIPLE_DIGITS_MAX: u64 = 1000;

/// Largest integer that a 64-bit float holds exactly, together with all smaller ones.
const EXACT_MAX: f64 = 9_007_199_254_740_991.0;

/// Returns whether a 64-bit float holds exactly this number and the compiler can write it.
pub(super) fn is_exact(number: &Number) -> bool {
    let Some(float) = number.as_f64() else { return false };
    let magnitude = float.abs();
    let is_whole = number.is_i64() || number.is_u64();
    (is_whole && magnitude <= EXACT_MAX)
        || (!is_whole && (magnitude == 0.0 || (BOUND_MIN..=EXACT_MAX).contains(&magnitude)))
}

/// Returns a bound; `None` for older drafts' booleans, which [`complete_bounds`] handles.
///
/// Errors: a bound that is too large or too small.
pub(super) fn bound(value: &Value, at: &At<'_>) -> Result<Option<Value>, SchemaError> {
    if value.is_boolean() && at.segment.starts_with("exclusive") {
        return Ok(None);
    }
    let float = value.as_f64().filter(|float| float.is_finite()).ok_or_else(|| at.refuse("it must be a number"))?;
    let is_upper = at.segment.ends_with("aximum");
    let inward = if is_upper { inside_below(value, float) } else { inside_above(value, float) };
    let (outer, is_too_far) = if is_upper {
        (inward.min(BOUND_MAX), inward < -BOUND_MAX)
    } else {
        (inward.max(-BOUND_MAX), inward > BOUND_MAX)
    };
    let is_too_small = outer != 0.0 && outer.abs() < BOUND_MIN;
    if is_too_far || is_too_small {
        return Err(at.refuse(format!("bounds of numbers must be 0 or {BOUND_MIN:e} to {BOUND_MAX:e} in size")));
    }
    Ok(Some(number(outer)))
}

/// Returns the largest float that does not exceed an upper bound.
fn inside_below(value: &Value, float: f64) -> f64 {
    match as_integer(value) {
        Some(exact) if float as i128 > exact => float.next_down(),
        _ => float,
    }
}

/// Returns the smallest float that is not below a lower bound.
fn inside_above(value: &Value, float: f64) -> f64 {
    match as_integer(value) {
        Some(exact) if (float as i128) < exact => float.next_up(),
        _ => float,
    }
}

fn as_integer(value: &Value) -> Option<i128> {
    value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from))
}

/// Returns a float as JSON: an integer if it has no fraction.
fn number(float: f64) -> Value {
    if float.fract() == 0.0 && float.abs() <= BOUND_MAX { json!(float as i64) } else { json!(float) }
}

/// Returns a checked `multipleOf`.
pub(super) fn multiple_of(value: &Value, at: &At<'_>) -> Result<Value, SchemaError> {
    let step = value.as_f64().filter(|step| step.is_finite() && *step > 0.0);
    let step = step.ok_or_else(|| at.refuse("`multipleOf` must be a number above 0"))?;
    if !(1e-9..=1e9).contains(&step) {
        return Err(at.refuse("`multipleOf` must be 1e-9 to 1e9"));
    }
    if significant_digits(step) >= MULTIPLE_DIGITS_MAX {
        return Err(at.refuse("`multipleOf` must have at most three significant digits"));
    }
    Ok(value.clone())
}

/// Returns the significant digits of a number's shortest decimal form as one number: 25 for 0.25.
pub(super) fn significant_digits(number: f64) -> u64 {
    let text = format!("{number:e}");
    let digits: String = text.chars().take_while(|c| *c != 'e').filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(u64::MAX)
}

/// Converts older drafts' exclusive bounds to numbers, and limits integers without bounds to 64 bits, so that a
/// response cannot continue with digits forever.
pub(super) fn complete_bounds(keywords: &mut Map<String, Value>, [above, below]: [bool; 2]) {
    for (inclusive, exclusive, is_exclusive) in
        [("minimum", "exclusiveMinimum", above), ("maximum", "exclusiveMaximum", below)]
    {
        if is_exclusive && let Some(bound) = keywords.shift_remove(inclusive) {
            keywords.insert(exclusive.to_owned(), bound);
        }
    }
    let names = match keywords.get("type") {
        Some(Value::Array(names)) => names.clone(),
        Some(name) => vec![name.clone()],
        None => return,
    };
    if !names.iter().any(|name| name == "integer") || names.iter().any(|name| name == "number") {
        return;
    }
    for (inclusive, exclusive, bound) in
        [("minimum", "exclusiveMinimum", -BOUND_MAX), ("maximum", "exclusiveMaximum", BOUND_MAX)]
    {
        if !keywords.contains_key(inclusive) && !keywords.contains_key(exclusive) {
            keywords.insert(inclusive.to_owned(), number(bound));
        }
    }
}
