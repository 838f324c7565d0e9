//! Limit on patterns for the same string, and on `multipleOf` for the same number: each multiplies the possible size of
//! the compiler's automaton.
//!
//! This is an upper bound. The factors of keywords that apply together (`allOf`, a reference and its siblings) are
//! multiplied, because they may apply to the same string. Among keywords that apply to different values (properties,
//! alternatives) the largest factor counts. Not here: the cost of a single pattern, which the compiler limits.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::numbers::significant_digits;

/// Largest product of factors. Source: the compiler takes 0.1 s there and six times as long for one more pattern
/// (docs/decisions/0023).
const PRODUCT_MAX: u64 = 1_000_000;

/// Factor of a format, which the compiler turns into a pattern.
///
/// Source: a format's pattern has a few alternatives and no long repetition.
const FORMAT_FACTOR: u64 = 8;

/// Refuses a normalized schema in which too many patterns apply together. Recurses once per schema: it needs a deep
/// stack.
///
/// Errors: the reason, for the client.
pub fn check_products(normal: &Value) -> Result<(), String> {
    let definitions = normal.get("$defs").and_then(Value::as_object);
    let product = Products { definitions, known: HashMap::new() }.of(normal);
    if product > PRODUCT_MAX {
        return Err("too many patterns, formats, lengths or steps must hold for one value".to_owned());
    }
    Ok(())
}

struct Products<'a> {
    definitions: Option<&'a Map<String, Value>>,
    /// Factor of each definition; 1 while it is being computed, which ends a recursion.
    known: HashMap<&'a str, u64>,
}

impl<'a> Products<'a> {
    fn of(&mut self, schema: &'a Value) -> u64 {
        let Value::Object(keywords) = schema else { return 1 };
        let mut product = own_factor(keywords);
        let mut apart = 1;
        for (keyword, value) in keywords {
            match (keyword.as_str(), value) {
                ("allOf", Value::Array(all)) => {
                    product = all.iter().fold(product, |product, schema| product.saturating_mul(self.of(schema)));
                }
                ("anyOf", Value::Array(any)) => product = product.saturating_mul(self.worst(any.iter())),
                ("prefixItems", Value::Array(items)) => apart = apart.max(self.worst(items.iter())),
                ("properties" | "patternProperties", Value::Object(named)) => {
                    apart = apart.max(self.worst(named.values()));
                }
                ("items" | "additionalProperties", schema) => apart = apart.max(self.of(schema)),
                ("$ref", Value::String(reference)) => product = product.saturating_mul(self.of_definition(reference)),
                _ => {}
            }
        }
        product.saturating_mul(apart)
    }

    fn worst(&mut self, schemas: impl Iterator<Item = &'a Value>) -> u64 {
        schemas.map(|schema| self.of(schema)).max().unwrap_or(1)
    }

    fn of_definition(&mut self, reference: &str) -> u64 {
        let name = reference.trim_start_matches("#/$defs/");
        let Some((name, schema)) = self.definitions.and_then(|all| all.get_key_value(name)) else { return 1 };
        if let Some(known) = self.known.get(name.as_str()) {
            return *known;
        }
        self.known.insert(name, 1);
        let product = self.of(schema);
        self.known.insert(name, product);
        product
    }
}

/// Returns the factor of a schema's own keywords. For a pattern it is one more than the number of its branches. For a
/// step it is its digits squared, so that the product of steps stays within the limit of a single one.
fn own_factor(keywords: &Map<String, Value>) -> u64 {
    let pattern = keywords.get("pattern").and_then(Value::as_str).map_or(1, |pattern| {
        let n_ways = pattern.bytes().filter(|byte| b"*+?{|".contains(byte)).count() as u64;
        let n_open = u64::from(!pattern.starts_with('^')) + u64::from(!pattern.ends_with('$'));
        1 + n_ways + n_open
    });
    let format = if keywords.contains_key("format") { FORMAT_FACTOR } else { 1 };
    let length = if keywords.contains_key("minLength") || keywords.contains_key("maxLength") { 2 } else { 1 };
    let step = keywords.get("multipleOf").and_then(Value::as_f64).map_or(1, significant_digits);
    (pattern * format * length).saturating_mul(step.saturating_mul(step))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn factor(schema: Value) -> u64 {
        Products { definitions: schema.get("$defs").and_then(Value::as_object), known: HashMap::new() }.of(&schema)
    }

    #[test]
    fn multiplies_patterns_that_apply_together_and_takes_the_largest_of_alternatives() {
        let three = json!({"pattern": "^a*b+$"});
        assert_eq!(factor(three.clone()), 3);
        assert_eq!(factor(json!({"pattern": "a"})), 3);
        assert_eq!(factor(json!({"pattern": "^a$", "minLength": 1, "format": "uuid"})), 16);
        assert_eq!(factor(json!({"allOf": [three, three, three]})), 27);
        assert_eq!(factor(json!({"anyOf": [three, three], "pattern": "^a*$"})), 6);
        assert_eq!(factor(json!({"multipleOf": 0.25})), 625);
        assert_eq!(factor(json!({"properties": {"a": three, "b": three}, "items": three})), 3);
        let twice = json!({"allOf": [{"$ref": "#/$defs/0"}, {"$ref": "#/$defs/0"}], "$defs": {"0": {"allOf": [three, {"items": {"$ref": "#/$defs/0"}}]}}});
        assert_eq!(factor(twice), 9);
    }

    #[test]
    fn refuses_a_product_above_the_limit() {
        let patterns = |n: usize| json!({"allOf": vec![json!({"pattern": "^a*b*c*$"}); n]});
        assert_eq!(check_products(&patterns(9)), Ok(()));
        assert!(check_products(&patterns(10)).is_err());
        assert_eq!(factor(patterns(100)), u64::MAX);
    }
}
