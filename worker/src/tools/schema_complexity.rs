//! Estimate of llama.cpp's work for a tool's schema.
//!
//! The walk imitates llama.cpp's converter (json-schema.cpp, json-schema-to-grammar.cpp) with a budget. Types in a list
//! are converted one by one, and a reference only once, except that `allOf` inlines it each time. Names grow with the
//! path, and every pair of optional properties adds a rule. llama.cpp decodes no reference, and our own compiler does;
//! so both targets are walked. Not here: the meaning of a schema, the refusal of references that lead nowhere.

use std::collections::HashSet;

use serde_json::{Map, Value};
use warmpath_constraint::schema::pointer;

use crate::error::RequestError;

/// Largest cost of the schemas of all tools together; a unit is some 10 ns.
///
/// Source: measured with `the_largest_accepted_schemas_compile_quickly`.
const COST_MAX: u64 = 20_000_000;

/// Maximum depth of a schema, with references followed. Source: serde_json parses 128 levels.
const DEPTH_MAX: usize = 192;

/// Longest name of a property. Units: bytes. Source: llama.cpp puts it into the names of rules.
const PROPERTY_BYTES_MAX: usize = 256;

/// Cost of a schema without its name. Source: some ten allocations.
const NODE_COST: u64 = 400;

/// Cost of a pattern: all rules so far are copied. Source: as [`COST_MAX`].
const PATTERN_COST: u64 = 20_000;

/// Reason why a schema is refused.
type Refusal = String;

/// Checks the schemas of tools whose other fields are valid.
///
/// Errors: `Field`, naming the tool.
pub fn check(tools: &[Value]) -> Result<(), RequestError> {
    let mut purse = COST_MAX;
    for (idx, tool) in tools.iter().enumerate() {
        let schema = &tool["function"]["parameters"];
        let mut walk = ComplexityWalk { root: schema, purse: &mut purse, seen: HashSet::new() };
        walk.visit(schema, 0, 0).map_err(|reason| {
            let param = format!("tools[{idx}].function.parameters");
            RequestError::field(param.clone(), format!("`{param}` {reason}"))
        })?;
    }
    Ok(())
}

/// Returns the approximate length of a value as JSON.
pub(super) fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| json_bytes(item) + 1).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + 4 + json_bytes(value)).sum(),
    }
}

struct ComplexityWalk<'s, 'p> {
    root: &'s Value,
    purse: &'p mut u64,
    seen: HashSet<&'s str>,
}

impl<'s> ComplexityWalk<'s, '_> {
    fn pay(&mut self, cost: u64) -> Result<(), Refusal> {
        let cost_left = self.purse.checked_sub(cost);
        *self.purse = cost_left.ok_or("makes the tools' schemas too large in total")?;
        Ok(())
    }

    /// Walks a schema whose rule's name has `n_path` bytes.
    fn visit(&mut self, schema: &'s Value, n_path: usize, depth: usize) -> Result<(), Refusal> {
        let Value::Object(schema) = schema else { return Ok(()) };
        if depth > DEPTH_MAX {
            return Err(format!("nests more than {DEPTH_MAX} levels deep, or contains itself"));
        }
        self.pay(NODE_COST + 12 * n_path as u64)?;
        if let Some(Value::String(name)) = schema.get("$ref") {
            if !self.seen.insert(name) {
                return Ok(());
            }
            let targets = self.targets(name)?;
            return targets.into_iter().flatten().try_for_each(|target| self.visit(target, name.len(), depth + 1));
        }
        let n_types = schema.get("type").and_then(Value::as_array).map_or(1, Vec::len);
        for _ in 0..n_types {
            self.visit_parts(schema, n_path, depth)?;
        }
        Ok(())
    }

    fn visit_parts(&mut self, schema: &'s Map<String, Value>, n_path: usize, depth: usize) -> Result<(), Refusal> {
        if let Some(Value::Object(properties)) = schema.get("properties") {
            let is_required = |name: &String| {
                schema.get("required").and_then(Value::as_array).is_some_and(|all| all.iter().any(|one| one == name))
            };
            // The look-ups are charged as well: one for each property.
            self.pay((properties.len() * schema.get("required").and_then(Value::as_array).map_or(0, Vec::len)) as u64)?;
            let n_optional = 1 + properties.keys().filter(|name| !is_required(name)).count() as u64;
            self.pay(n_optional * n_optional * (n_path as u64 + n_optional + 100) / 8)?;
            for (name, property) in properties {
                if name.len() > PROPERTY_BYTES_MAX || name.contains('\0') {
                    return Err(format!("has a property whose name is over {PROPERTY_BYTES_MAX} bytes or holds a NUL"));
                }
                self.visit(property, n_path + name.len() + 1, depth + 1)?;
            }
        }
        for key in ["additionalProperties", "items", "prefixItems", "anyOf", "oneOf"] {
            match schema.get(key) {
                Some(Value::Array(items)) => {
                    items.iter().try_for_each(|item| self.visit(item, n_path + 8, depth + 1))?;
                }
                Some(schema) => self.visit(schema, n_path + 16, depth + 1)?,
                None => {}
            }
        }
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.visit_in_place(part, n_path, depth + 1)?;
            // The references of a part's alternatives are followed each time, too.
            let alternatives = ["anyOf", "oneOf"].into_iter().filter_map(|key| part.get(key)?.as_array()).flatten();
            for alternative in alternatives.filter(|alternative| alternative.get("$ref").is_some()) {
                self.visit_in_place(alternative, n_path, depth + 1)?;
            }
        }
        let n_bytes: usize = ["enum", "const"].iter().filter_map(|key| schema.get(*key)).map(json_bytes).sum();
        self.pay(n_bytes as u64 * 20)?;
        if let Some(Value::String(pattern)) = schema.get("pattern") {
            self.pay(PATTERN_COST + pattern.len() as u64 * 50)?;
        }
        Ok(())
    }

    /// Walks a part of `allOf`, which follows its references each time. Source: llama.cpp's `_visit_all_of`.
    fn visit_in_place(&mut self, part: &'s Value, n_path: usize, depth: usize) -> Result<(), Refusal> {
        let Some(Value::String(name)) = part.get("$ref") else { return self.visit(part, n_path, depth) };
        if depth > DEPTH_MAX {
            return Err("has a `$ref` that refers to itself".to_owned());
        }
        self.pay(NODE_COST)?;
        let targets = self.targets(name)?;
        targets.into_iter().flatten().try_for_each(|target| self.visit_in_place(target, n_path, depth + 1))
    }

    /// Returns the targets of a reference into the same schema: llama.cpp's, and our own compiler's if it is another
    /// one. No work follows a reference that leads nowhere.
    fn targets(&mut self, name: &str) -> Result<[Option<&'s Value>; 2], Refusal> {
        self.pay(name.len() as u64)?;
        let literal = literal_target(self.root, name)?;
        let node = pointer::canonical(name).and_then(|pointer| pointer::find(self.root, &pointer));
        let is_same = matches!((literal, node), (Some(a), Some(b)) if std::ptr::eq(a, b));
        Ok([literal, node.filter(|_| !is_same)])
    }
}

/// Returns llama.cpp's target of a reference, which it does not decode; `None` if it refuses the reference.
///
/// Errors: an index that llama.cpp may read in another way than this function. Source: its `resolve_ref`, which reads
/// ` 1`, `+1` and `1%20` as 1.
fn literal_target<'s>(root: &'s Value, name: &str) -> Result<Option<&'s Value>, Refusal> {
    let Some(path) = name.strip_prefix("#/") else { return Ok(None) };
    let mut target = root;
    for key in path.split('/') {
        let next = match target {
            Value::Object(fields) => fields.get(key),
            Value::Array(items) if key.bytes().all(|byte| byte.is_ascii_digit()) => {
                key.parse().ok().and_then(|idx: usize| items.get(idx))
            }
            Value::Array(_) => return Err("has a `$ref` with an index of a list that is not a number".to_owned()),
            _ => None,
        };
        let Some(next) = next else { return Ok(None) };
        target = next;
    }
    Ok(Some(target))
}
