//! JSON schemas of requests: the supported part, and its form for the grammar's compiler.
//!
//! A schema is rebuilt from the keywords that are enforced exactly. Annotations are dropped, references are counted and
//! renamed, and every keyword that a response could violate is refused with its path. So the compiler's input is small,
//! and the compiler supports all of it. Not here: compiling and following (`compiler`), the requests' fields
//! (the worker).

mod constants;
mod definitions;
mod formats;
mod grammar_budget;
mod node;
mod numbers;
mod one_of;
mod patterns;
pub mod pointer;
#[cfg(test)]
mod tests;
mod value;

use std::collections::HashMap;
use std::fmt;

use serde_json::{Map, Value, json};

pub use definitions::Definitions;
pub use grammar_budget::GrammarBudget;
use node::SchemaNode;
pub use patterns::check_products;
pub use value::{Typing, ValueGrammar, check_apart};

/// Maximum number of schemas in a schema, including nested and referenced ones, each counted once.
///
/// Source: OpenAI accepts 5,000 properties; the compiler takes some 10 microseconds for each.
const SCHEMAS_MAX: usize = 10_000;

/// Deepest nesting. Source: the parser of JSON accepts 128 levels, of which most schemas need two each.
const DEPTH_MAX: usize = 100;

/// Maximum number of bytes of names, constants and patterns taken together. Source: OpenAI accepts 120,000 characters.
const TEXT_BYTES_MAX: usize = 256 << 10;

/// Maximum number of different targets of references. Source: each is compiled once, like a tenth of [`SCHEMAS_MAX`].
const TARGETS_MAX: usize = 1000;

/// Error in a schema, and its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SchemaError {
    /// Path within the schema, its parts joined by dots; empty for the schema itself.
    pub path: String,
    /// Reason, for the client.
    pub reason: String,
}

impl SchemaError {
    /// Returns the error for a schema that contains this one's schema at a path.
    pub fn below(self, path: &str) -> Self {
        let joint = if self.path.is_empty() { "" } else { "." };
        Self { path: format!("{path}{joint}{}", self.path), ..self }
    }
}

/// Returns a schema in the compiler's form, which allows the same values or fewer.
///
/// Errors: `SchemaError`, if it is not a schema, cannot be enforced exactly, or is too large.
pub fn normalize(schema: &Value) -> Result<Value, SchemaError> {
    let mut walk = SchemaWalk { root: schema, targets: Vec::new(), known: HashMap::new(), budget: Budget::default() };
    let mut root = walk.schema(schema, &At::root())?;
    let mut defs = Map::new();
    while defs.len() < walk.targets.len() {
        let idx = defs.len();
        let pointer = walk.targets[idx].clone();
        let at = At { parent: None, segment: pointer.trim_start_matches(['#', '/']), depth: 0 };
        let definition = pointer::find(schema, &pointer).ok_or_else(|| at.refuse("the reference leads nowhere"))?;
        defs.insert(idx.to_string(), walk.schema(definition, &at)?);
    }
    if !defs.is_empty()
        && let Value::Object(root) = &mut root
    {
        root.insert("$defs".to_owned(), Value::Object(defs));
    }
    Ok(root)
}

/// A path in a schema, as a linked list to the root.
#[derive(Clone, Copy)]
struct At<'a> {
    parent: Option<&'a At<'a>>,
    segment: &'a str,
    depth: usize,
}

/// Longest part of a path that an error repeats. Units: characters.
const SEGMENT_CHARS_MAX: usize = 64;

impl<'a> At<'a> {
    fn root() -> Self {
        Self { parent: None, segment: "", depth: 0 }
    }

    fn then(&'a self, segment: &'a str) -> At<'a> {
        At { parent: Some(self), segment, depth: self.depth }
    }

    fn refuse(&self, reason: impl Into<String>) -> SchemaError {
        SchemaError { path: self.to_string(), reason: reason.into() }
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
            if parent.parent.is_some() || !parent.segment.is_empty() {
                f.write_str(".")?;
            }
        }
        self.segment.chars().take(SEGMENT_CHARS_MAX).try_for_each(|c| f.write_str(c.encode_utf8(&mut [0; 4])))
    }
}

/// Remaining budget of a schema's parts.
#[derive(Default)]
struct Budget {
    n_schemas: usize,
    n_constants: usize,
    text_bytes: usize,
}

impl Budget {
    fn take_text(&mut self, text: &str, at: &At<'_>) -> Result<(), SchemaError> {
        self.text_bytes += text.len();
        if self.text_bytes > TEXT_BYTES_MAX {
            let reason = format!("the schema's names, constants and patterns have more than {TEXT_BYTES_MAX} bytes");
            return Err(at.refuse(reason));
        }
        Ok(())
    }
}

/// A walk over a schema and everything that it refers to.
struct SchemaWalk<'a> {
    root: &'a Value,
    /// Targets of references in the order of their first occurrence; the index in this list is the new name.
    targets: Vec<String>,
    known: HashMap<String, usize>,
    budget: Budget,
}

impl SchemaWalk<'_> {
    /// Returns one schema rebuilt.
    fn schema(&mut self, schema: &Value, at: &At<'_>) -> Result<Value, SchemaError> {
        self.budget.n_schemas += 1;
        if self.budget.n_schemas > SCHEMAS_MAX {
            return Err(at.refuse(format!("the schema has more than {SCHEMAS_MAX} parts")));
        }
        if at.depth >= DEPTH_MAX {
            return Err(at.refuse(format!("the schema is nested more than {DEPTH_MAX} deep")));
        }
        let at = At { depth: at.depth + 1, ..*at };
        match schema {
            Value::Bool(_) => Ok(schema.clone()),
            Value::Object(keywords) => SchemaNode::new(keywords, &at).rebuild(self).map(Value::Object),
            _ => Err(at.refuse("a schema must be an object or a boolean")),
        }
    }

    /// Returns the new name of a reference's target.
    fn target(&mut self, reference: &str, at: &At<'_>) -> Result<Value, SchemaError> {
        if !reference.starts_with('#') {
            return Err(at.refuse("a `$ref` must lead into the schema itself, as `#/$defs/...`; nothing is fetched"));
        }
        let pointer = pointer::canonical(reference)
            .ok_or_else(|| at.refuse("a `$ref` must be `#` or begin with `#/`; anchors are not supported"))?;
        if pointer::find(self.root, &pointer).is_none() {
            return Err(at.refuse("the `$ref` leads nowhere"));
        }
        let idx = *self.known.entry(pointer.clone()).or_insert(self.targets.len());
        if idx == self.targets.len() {
            if idx >= TARGETS_MAX {
                return Err(at.refuse(format!("the schema refers to more than {TARGETS_MAX} places")));
            }
            self.targets.push(pointer);
        }
        Ok(json!(format!("#/$defs/{idx}")))
    }
}
