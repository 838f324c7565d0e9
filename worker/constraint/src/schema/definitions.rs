//! Copies of a schema's definitions, for the parts of the schema that have a grammar of their own.
//!
//! A part gets only the definitions that it leads to, and each copy is charged before it is made: a short schema can
//! refer to a large definition in every part. Not here: naming the definitions (`schema`), following references
//! (`value`).

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{GrammarBudget, SchemaError};

/// Beginning of a reference, before the name of the definition. Source: `SchemaWalk::target`.
const REFERENCE_START: &str = "#/$defs/";

/// Definitions of a normalized schema.
#[derive(Debug)]
pub struct Definitions<'a> {
    by_name: HashMap<&'a str, Definition<'a>>,
}

/// One definition.
#[derive(Debug)]
struct Definition<'a> {
    schema: &'a Value,
    /// Size as JSON.
    n_bytes: usize,
    /// Names of the definitions that it refers to.
    references: Vec<&'a str>,
}

impl<'a> Definitions<'a> {
    /// Returns the definitions of a normalized schema.
    pub fn of(schema: &'a Value) -> Self {
        let all = schema.get("$defs").and_then(Value::as_object);
        let read = |(name, schema): (&'a String, &'a Value)| {
            let n_bytes = schema.to_string().len();
            (name.as_str(), Definition { schema, n_bytes, references: references(schema) })
        };
        Self { by_name: all.into_iter().flatten().map(read).collect() }
    }

    /// Returns a part of the schema, which has no definitions yet, with copies of those that it leads to.
    ///
    /// Errors: the copies are beyond the budget.
    pub(super) fn complete(&self, mut part: Value, budget: &GrammarBudget) -> Result<Value, SchemaError> {
        let mut copies = Map::new();
        let mut names = references(&part);
        while let Some(name) = names.pop() {
            let Some(definition) = self.by_name.get(name).filter(|_| !copies.contains_key(name)) else { continue };
            budget.copy(definition.n_bytes)?;
            copies.insert(name.to_owned(), definition.schema.clone());
            names.extend(definition.references.iter().copied());
        }
        if !copies.is_empty() {
            part["$defs"] = Value::Object(copies);
        }
        Ok(part)
    }
}

/// Returns a schema as an object without definitions.
pub(super) fn without_definitions(schema: &Value) -> Value {
    match schema {
        Value::Object(keywords) => {
            let keywords = keywords.iter().filter(|(keyword, _)| keyword.as_str() != "$defs");
            Value::Object(keywords.map(|(keyword, value)| (keyword.clone(), value.clone())).collect())
        }
        // `false` allows no value; the equivalent object is an empty `enum`.
        Value::Bool(false) => Value::Object(Map::from_iter([("enum".to_owned(), Value::Array(Vec::new()))])),
        _ => Value::Object(Map::new()),
    }
}

/// Returns the names of the definitions that a schema refers to, each once; a constant can look like a reference.
fn references(schema: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    let mut schemas = vec![schema];
    while let Some(value) = schemas.pop() {
        match value {
            Value::Object(keywords) => {
                let reference = keywords.get("$ref").and_then(Value::as_str);
                names.extend(reference.and_then(|reference| reference.strip_prefix(REFERENCE_START)));
                schemas.extend(keywords.values());
            }
            Value::Array(items) => schemas.extend(items),
            _ => {}
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_part_gets_the_definitions_that_it_leads_to() {
        let first = json!({"items": {"$ref": "#/$defs/1"}});
        let second = json!({"anyOf": [{"$ref": "#/$defs/0"}, true]});
        let schema = json!({"$ref": "#/$defs/2", "$defs": {"0": first, "1": second, "2": {"const": 2}}});
        let definitions = Definitions::of(&schema);
        let check = |part: Value, expected: Value| {
            let completed = definitions.complete(without_definitions(&part), &GrammarBudget::default());
            assert_eq!(completed, Ok(expected), "{part}");
        };
        check(json!({"type": "string"}), json!({"type": "string"}));
        check(json!(true), json!({}));
        check(json!(false), json!({"enum": []}));
        let list = json!({"prefixItems": [{"$ref": "#/$defs/0"}]});
        check(list.clone(), json!({"prefixItems": list["prefixItems"], "$defs": {"0": first, "1": second}}));
        check(schema.clone(), json!({"$ref": "#/$defs/2", "$defs": {"2": {"const": 2}}}));
    }

    #[test]
    fn each_copy_is_charged_and_refused_beyond_the_budget() {
        let schema = json!({"$ref": "#/$defs/0", "$defs": {"0": {"const": "x".repeat(100_000)}}});
        let (definitions, budget) = (Definitions::of(&schema), GrammarBudget::default());
        let copied = || definitions.complete(without_definitions(&schema), &budget);
        let n_copies = std::iter::repeat_with(copied).take_while(Result::is_ok).count();
        assert!((10..100).contains(&n_copies), "{n_copies}");
    }
}
