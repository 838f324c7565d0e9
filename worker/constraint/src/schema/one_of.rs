//! Whether the alternatives of a `oneOf` exclude each other, so that it is equivalent to `anyOf`.
//!
//! Every keyword of a schema is a separate condition, so it suffices to find one pair of conditions that no value can
//! meet: different types, different constants, or such a pair for a property that one of them requires. Not here: the
//! general question, which no grammar can answer.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::pointer;

/// Maximum length of a chain of references. Source: real schemas refer to a definition directly or through one or two
/// others.
const HOPS_MAX: usize = 16;

/// Maximum depth of compared properties. Source: alternatives differ in a property near their top.
const DEPTH_MAX: usize = 4;

/// Maximum number of comparisons of constants and of required properties for one `oneOf`. Source: enough for a
/// thousand alternatives, each with its own constant.
const PAIRS_MAX: usize = 1_000_000;

/// Returns the indexes of two alternatives that may both be valid; `None` if there are none.
pub(super) fn overlap(root: &Value, alternatives: &[Value]) -> Option<(usize, usize)> {
    let conditions: Vec<Conditions<'_>> = alternatives.iter().map(|schema| Conditions::of(root, schema)).collect();
    let mut judge = Judge { root, n_left: PAIRS_MAX };
    for (idx, a) in conditions.iter().enumerate() {
        for (other, b) in conditions.iter().enumerate().skip(idx + 1) {
            if !judge.exclude(a, b, DEPTH_MAX) {
                return Some((idx, other));
            }
        }
    }
    None
}

/// Conditions of a schema on a value.
struct Conditions<'a> {
    keywords: Option<&'a Map<String, Value>>,
    /// Possible types; `None` if any is.
    types: Option<BTreeSet<&'a str>>,
    /// Possible values; `None` if any is.
    values: Option<Vec<&'a Value>>,
    /// Whether no value is valid.
    is_never: bool,
}

impl<'a> Conditions<'a> {
    fn of(root: &'a Value, mut schema: &'a Value) -> Self {
        for _ in 0..HOPS_MAX {
            let target = schema.get("$ref").and_then(Value::as_str).and_then(pointer::canonical);
            let Some(definition) = target.and_then(|target| pointer::find(root, &target)) else { break };
            schema = definition;
        }
        let keywords = schema.as_object();
        let get = |keyword: &str| keywords.and_then(|keywords| keywords.get(keyword));
        let values = match (get("const"), get("enum")) {
            (Some(value), _) => Some(vec![value]),
            (None, Some(Value::Array(values))) => Some(values.iter().collect()),
            _ => None,
        };
        let types = match (&values, get("type")) {
            (Some(values), _) => Some(values.iter().map(|value| type_of(value)).collect()),
            (None, Some(Value::String(name))) => Some(BTreeSet::from([broad(name)])),
            (None, Some(Value::Array(names))) => Some(names.iter().filter_map(Value::as_str).map(broad).collect()),
            _ => None,
        };
        Self { keywords, types, values, is_never: *schema == Value::Bool(false) }
    }

    fn get(&self, keyword: &str) -> Option<&'a Value> {
        self.keywords?.get(keyword)
    }

    fn n_values(&self) -> usize {
        self.values.as_ref().map_or(0, Vec::len)
    }

    /// Returns whether only objects are valid.
    fn is_object(&self) -> bool {
        self.types.as_ref().is_some_and(|types| types.iter().all(|name| *name == "object"))
    }

    fn required(&self) -> impl Iterator<Item = &'a str> {
        self.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    }

    fn property(&self, name: &str) -> Option<&'a Value> {
        self.get("properties")?.get(name)
    }

    /// Returns whether an object is invalid because it has this property.
    fn lacks(&self, name: &str) -> bool {
        self.get("additionalProperties") == Some(&Value::Bool(false))
            && self.get("patternProperties").is_none()
            && self.property(name).is_none()
    }
}

/// Comparison of conditions, up to a limit.
struct Judge<'a> {
    root: &'a Value,
    n_left: usize,
}

impl<'a> Judge<'a> {
    /// Returns whether no value meets both conditions; `false` also if that was not determined.
    fn exclude(&mut self, a: &Conditions<'a>, b: &Conditions<'a>, depth: usize) -> bool {
        if !self.take(1) {
            return false;
        }
        if a.is_never || b.is_never {
            return true;
        }
        if let (Some(a), Some(b)) = (&a.types, &b.types)
            && a.is_disjoint(b)
        {
            return true;
        }
        if let (Some(a), Some(b)) = (&a.values, &b.values) {
            let n_pairs = a.len().saturating_mul(b.len());
            return self.take(n_pairs) && a.iter().all(|value| !b.iter().any(|other| same(value, other)));
        }
        depth > 0 && a.is_object() && b.is_object() && (self.tell_apart(a, b, depth) || self.tell_apart(b, a, depth))
    }

    /// Returns whether a property that `a` requires cannot meet the conditions of `b`.
    fn tell_apart(&mut self, a: &Conditions<'a>, b: &Conditions<'a>, depth: usize) -> bool {
        a.required().any(|name| {
            if !self.take(1) {
                return false;
            }
            if b.lacks(name) {
                return true;
            }
            let (Some(in_a), Some(in_b)) = (a.property(name), b.property(name)) else { return false };
            let (in_a, in_b) = (Conditions::of(self.root, in_a), Conditions::of(self.root, in_b));
            // Constants that many alternatives refer to are read each time.
            let n_read = in_a.n_values().max(in_b.n_values());
            self.take(n_read.saturating_sub(1)) && self.exclude(&in_a, &in_b, depth - 1)
        })
    }

    /// Counts comparisons; returns whether they are within the limit.
    fn take(&mut self, n: usize) -> bool {
        let left = self.n_left.checked_sub(n);
        self.n_left = left.unwrap_or_default();
        left.is_some()
    }
}

/// Returns whether two constants may be the same value; the content of lists and objects is not compared.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => a == b,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns a type's name, with `number` for an integer.
fn broad(name: &str) -> &str {
    if name == "integer" { "number" } else { name }
}
