//! A grammar for one value that is written as text up to a mark, as in some chat templates' arguments of a call.
//!
//! Strings have no quotes, so their keywords are combined into one regular expression that excludes texts with the
//! mark. Other values are JSON and use the compiler's support of schemas. If the parser would read `12` as a number
//! although the argument may be a string, strings that look like numbers are excluded.
//!
//! Not here: the marks (`tools::parameters`), compiling (`compiler`).

mod search;

use std::cell::RefCell;
use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::definitions::without_definitions;
use super::{Definitions, GrammarBudget, SchemaError};
use search::{escaped, search};

/// Maximum number of nested references that are followed to find a value's types.
///
/// Source: recursive references need a limit, and no tool's schema is as deep.
const DEPTH_MAX: usize = 32;

/// Way in which a response's parser determines the type of an argument that may be a string or something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Typing {
    /// The argument is always a string.
    String,
    /// By its text: if that parses as JSON of another type of the schema, the argument has that type.
    Text,
}

/// Grammar of one value and the mark after it.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueGrammar {
    /// Normalized schema.
    pub schema: Value,
    /// Expression of the values written as text; `None` if there are none.
    text: Option<String>,
    /// Schema of the values written as JSON; `None` if there are none.
    json: Option<Value>,
    close: String,
}

impl ValueGrammar {
    /// Returns the grammar of a value that the mark `close` ends; `schema` is a part of the normalized schema that has
    /// the definitions.
    ///
    /// Errors: the part of the schema that cannot be enforced in a text, or a grammar beyond the budget.
    pub fn new(
        schema: &Value,
        definitions: &Definitions<'_>,
        close: &str,
        typing: Typing,
        budget: &GrammarBudget,
    ) -> Result<Self, SchemaError> {
        budget.visit()?;
        let schema = definitions.complete(without_definitions(schema), budget)?;
        let reader = SchemaReader::new(&schema, budget);
        let types = reader.types(&schema);
        let close = escaped(close);
        if types & STRING == 0 {
            return Ok(Self { text: None, json: Some(schema.clone()), schema, close });
        }
        let (text, json) = match typing {
            Typing::String => (reader.of(&schema, STRING, 0)?, None),
            Typing::Text => (reader.told_by_text(&schema, types)?, structured(&schema, types)),
        };
        if text.is_none() && json.is_none() {
            return Err(refuse("", "no value is valid"));
        }
        Ok(Self { text, json, schema, close })
    }

    /// Returns whether the value may be written as a string's text.
    pub fn is_text(&self) -> bool {
        self.text.is_some()
    }

    /// Returns the grammar in Lark's syntax, given the conversion of a schema to the compiler's JSON.
    pub fn lark(&self, compiler_s: impl Fn(&Value) -> String) -> String {
        let close = &self.close;
        let mut lark = String::from("start: ");
        lark += match (&self.text, &self.json) {
            (Some(_), Some(_)) => "VALUE | json CLOSE\n",
            (Some(_), None) => "VALUE\n",
            (None, _) => "json CLOSE\n",
        };
        lark += &format!("CLOSE: /{close}/\n");
        if let Some(text) = &self.text {
            lark += &format!("VALUE: ({text} CLOSE) & ~(/(?s:.*)/ CLOSE /(?s:.+)/)\n");
        }
        if let Some(json) = &self.json {
            lark += &format!("json: %json {}\n", compiler_s(json));
        }
        lark
    }
}

const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const INTEGER: u8 = 4;
const FRACTION: u8 = 8;
const NUMBER: u8 = INTEGER | FRACTION;
const STRING: u8 = 16;
const ARRAY: u8 = 32;
const OBJECT: u8 = 64;
const ALL: u8 = 127;

fn type_named(name: &str) -> u8 {
    match name {
        "null" => NULL,
        "boolean" => BOOLEAN,
        "integer" => INTEGER,
        "number" => NUMBER,
        "string" => STRING,
        "array" => ARRAY,
        "object" => OBJECT,
        _ => 0,
    }
}

fn type_of(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(number) if number.as_f64().is_some_and(|n| n.fract() == 0.0) => INTEGER,
        Value::Number(_) => FRACTION,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

/// Returns the part of a schema that is written as JSON, which excludes strings; `None` if there is none.
fn structured(schema: &Value, types: u8) -> Option<Value> {
    let names = [(ARRAY, "array"), (OBJECT, "object")];
    let names: Vec<&str> = names.into_iter().filter(|(bit, _)| types & bit != 0).map(|(_, name)| name).collect();
    let mut inner = schema.clone();
    let definitions = inner.as_object_mut().and_then(|keywords| keywords.remove("$defs"));
    let mut all = json!({"allOf": [inner, {"type": names}]});
    if let Some(definitions) = definitions {
        all["$defs"] = definitions;
    }
    (!names.is_empty()).then_some(all)
}

/// Reads a normalized schema.
struct SchemaReader<'a> {
    definitions: Option<&'a Map<String, Value>>,
    budget: &'a GrammarBudget,
    /// Types of each schema by its address, so that each is read once.
    known: RefCell<HashMap<usize, u8>>,
}

impl<'a> SchemaReader<'a> {
    /// Returns the reader of a schema that has its definitions.
    fn new(schema: &'a Value, budget: &'a GrammarBudget) -> Self {
        let definitions = schema.get("$defs").and_then(Value::as_object);
        Self { definitions, budget, known: RefCell::default() }
    }

    /// Returns the types that a value may have; more than these if the schema leads to itself or is too deep.
    ///
    /// Cost: O(schemas) for all calls together.
    fn types(&self, schema: &'a Value) -> u8 {
        self.types_within(schema, 0)
    }

    fn types_within(&self, schema: &'a Value, depth: usize) -> u8 {
        let keywords = match schema {
            Value::Object(keywords) if depth < DEPTH_MAX => keywords,
            Value::Bool(false) => return 0,
            _ => return ALL,
        };
        let place = std::ptr::from_ref(schema) as usize;
        if let Some(known) = self.known.borrow().get(&place) {
            return *known;
        }
        // A schema that leads to itself finds this.
        self.known.borrow_mut().insert(place, ALL);
        let types = self.types_of(keywords, depth + 1);
        self.known.borrow_mut().insert(place, types);
        types
    }

    fn types_of(&self, keywords: &'a Map<String, Value>, depth: usize) -> u8 {
        keywords.iter().fold(ALL, |types, (keyword, value)| {
            types
                & match (keyword.as_str(), value) {
                    ("type", Value::String(name)) => type_named(name),
                    ("type", Value::Array(names)) => {
                        names.iter().filter_map(Value::as_str).fold(0, |types, name| types | type_named(name))
                    }
                    ("const", value) => type_of(value),
                    ("enum", Value::Array(values)) => values.iter().fold(0, |types, value| types | type_of(value)),
                    ("anyOf", Value::Array(schemas)) => {
                        schemas.iter().fold(0, |types, schema| types | self.types_within(schema, depth))
                    }
                    ("allOf", Value::Array(schemas)) => {
                        schemas.iter().fold(ALL, |types, schema| types & self.types_within(schema, depth))
                    }
                    ("$ref", Value::String(name)) => {
                        self.found(name).map_or(ALL, |definition| self.types_within(definition, depth))
                    }
                    _ => ALL,
                }
        })
    }

    /// Returns the expression of strings, words and numbers for a parser that treats text which looks like JSON as
    /// JSON.
    fn told_by_text(&self, schema: &'a Value, types: u8) -> Result<Option<String>, SchemaError> {
        let looks = [
            (NULL, "null"),
            (BOOLEAN, "true|false"),
            (NUMBER, "[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?"),
            (ARRAY, "\\[(?s:.*)"),
            (OBJECT, "\\{(?s:.*)"),
        ];
        let others: Vec<&str> = looks.into_iter().filter(|(bits, _)| types & bits != 0).map(|(_, look)| look).collect();
        let mut alternatives = Vec::new();
        if let Some(strings) = self.of(schema, STRING, 0)? {
            alternatives.push(match others.is_empty() {
                true => strings,
                false => format!("({strings} & ~/[ \\n\\t]*(?:{})[ \\n\\t]*/)", others.join("|")),
            });
        }
        for bits in [NULL, BOOLEAN, NUMBER] {
            if types & bits != 0 {
                alternatives.extend(self.of(schema, bits, 0)?);
            }
        }
        Ok((!alternatives.is_empty()).then(|| format!("({})", alternatives.join(" | "))))
    }

    /// Returns the expression of a schema's values of a type; `None` if there are none.
    ///
    /// Errors: the part of the schema that cannot be enforced in a text, or an expression beyond the budget.
    fn of(&self, schema: &'a Value, kind: u8, depth: usize) -> Result<Option<String>, SchemaError> {
        self.budget.visit()?;
        let types = self.types(schema) & kind;
        if types == 0 {
            return Ok(None);
        }
        let mut terms = vec![any(types).to_owned()];
        let Value::Object(keywords) = schema else { return Ok(terms.pop()) };
        if depth >= DEPTH_MAX {
            return Err(refuse("$ref", "a string that refers to itself is not supported"));
        }
        let each = |schemas: &'a [Value]| schemas.iter().map(|one| self.of(one, kind, depth + 1));
        // Each keyword restricts the values; a keyword of another type has no effect.
        for (keyword, value) in keywords {
            let term = match (keyword.as_str(), value) {
                ("const", value) => one_of(std::slice::from_ref(value), kind),
                ("enum", Value::Array(values)) => one_of(values, kind),
                ("anyOf", Value::Array(schemas)) => {
                    let any: Vec<String> = each(schemas).filter_map(Result::transpose).collect::<Result<_, _>>()?;
                    if any.is_empty() {
                        return Ok(None);
                    }
                    format!("({})", any.join(" | "))
                }
                ("allOf", Value::Array(schemas)) => {
                    let all: Option<Vec<String>> = each(schemas).collect::<Result<_, _>>()?;
                    let Some(all) = all else { return Ok(None) };
                    format!("({})", all.join(" & "))
                }
                ("$ref", Value::String(name)) => {
                    let Some(definition) = self.found(name) else { continue };
                    let Some(term) = self.of(definition, kind, depth + 1)? else { return Ok(None) };
                    term
                }
                ("pattern", Value::String(pattern)) if kind == STRING => {
                    let expression = search(pattern).map_err(|reason| refuse("pattern", &reason))?;
                    format!("/{expression}/")
                }
                ("minLength", least) if kind == STRING => format!("/(?s:.{{{least},}})/"),
                ("maxLength", most) if kind == STRING => format!("/(?s:.{{0,{most}}})/"),
                ("format", Value::String(name)) if kind == STRING => match format_s(name) {
                    Some(expression) => format!("/{expression}/"),
                    None => {
                        return Err(refuse(
                            "format",
                            "this format is not supported in arguments that are written one by one",
                        ));
                    }
                },
                ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf", _)
                    if kind == NUMBER =>
                {
                    return Err(refuse(keyword, "bounds are not supported for a value that may also be a string"));
                }
                _ => continue,
            };
            terms.push(term);
        }
        let expression = format!("({})", terms.join(" & "));
        self.budget.take(expression.len())?;
        Ok(Some(expression))
    }

    /// Returns the definition that a reference leads to.
    fn found(&self, reference: &str) -> Option<&'a Value> {
        self.definitions?.get(reference.trim_start_matches("#/$defs/"))
    }
}

/// Returns the expression of every value of a type.
fn any(types: u8) -> &'static str {
    match types {
        NULL => "/null/",
        BOOLEAN => "/true|false/",
        INTEGER => "/-?(?:0|[1-9][0-9]{0,17})/",
        STRING => "/(?s:.*)/",
        _ => "/-?(?:0|[1-9][0-9]{0,17})(?:\\.[0-9]{1,17})?/",
    }
}

/// Returns the expression of those constants that have a type.
fn one_of(values: &[Value], kind: u8) -> String {
    let texts = values.iter().filter(|value| type_of(value) & kind != 0).map(|value| match value {
        Value::String(text) => escaped(text),
        other => escaped(&other.to_string()),
    });
    format!("/(?:{})/", texts.collect::<Vec<_>>().join("|"))
}

/// Returns an expression for a format that the compiler supports by name; it allows only values of the format.
fn format_s(name: &str) -> Option<&'static str> {
    Some(match name {
        "uuid" => "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
        "ipv4" => {
            "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
        }
        "ipv6" => "(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|(?:[0-9a-fA-F]{1,4}:){1,6}:[0-9a-fA-F]{1,4}|::1|::",
        "hostname" => "(?:[a-zA-Z0-9]{1,20}\\.){0,5}[a-zA-Z][a-zA-Z0-9]{0,20}",
        "email" => "[a-zA-Z0-9_+-]{1,20}(?:\\.[a-zA-Z0-9_+-]{1,20}){0,2}@(?:[a-zA-Z0-9]{1,20}\\.){1,5}[a-zA-Z]{2,20}",
        "uri" => {
            "[a-z][a-z0-9+.-]{0,20}:\\/\\/(?:[a-zA-Z0-9]{1,20}\\.){0,5}[a-zA-Z][a-zA-Z0-9]{0,20}(?::[0-9]{1,4})?\
             (?:\\/[a-zA-Z0-9._~!$&'()*+,;=:@-]*)*(?:\\?[a-zA-Z0-9._~!$&'()*+,;=:@\\/?-]*)?(?:#[a-zA-Z0-9._~!$&'()*+,;=:@\\/?-]*)?"
        }
        "duration" => "P(?:[0-9]{1,9}W|[0-9]{1,9}D(?:T[0-9]{1,9}H)?|T[0-9]{1,9}[HMS])",
        _ => return None,
    })
}

fn refuse(path: &str, reason: &str) -> SchemaError {
    SchemaError { path: path.to_owned(), reason: reason.to_owned() }
}

/// Checks that an object's normalized schema has no condition on several properties apart from `required`.
///
/// Errors: the keyword of such a condition.
pub fn check_apart(schema: &Map<String, Value>) -> Result<(), SchemaError> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let required: Vec<&Value> = schema.get("required").and_then(Value::as_array).into_iter().flatten().collect();
    let n_properties = properties.map_or(0, Map::len) as u64;
    for (keyword, value) in schema {
        let is_kept = match keyword.as_str() {
            "type" | "properties" | "additionalProperties" | "$defs" => true,
            "required" => required.iter().all(|name| {
                name.as_str().is_some_and(|name| properties.is_some_and(|properties| properties.contains_key(name)))
            }),
            "minProperties" => value.as_u64().is_some_and(|least| least <= required.len() as u64),
            "maxProperties" => value.as_u64().is_some_and(|most| most >= n_properties),
            _ => false,
        };
        if !is_kept {
            let reason = "it is not supported by this model's chat template, which writes the arguments one by one";
            return Err(refuse(keyword, reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
