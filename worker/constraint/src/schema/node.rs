//! One schema object: its keywords, each rebuilt or refused.
//!
//! One `match` handles all keywords. A keyword unknown to JSON Schema is an annotation and dropped, as the
//! specification says; a known keyword that is not supported is refused. Not here: numbers (`numbers`), constants
//! (`constants`), formats (`formats`), whether alternatives exclude each other (`one_of`).

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{At, SchemaError, SchemaWalk, constants, formats, numbers, one_of};

/// Keywords that would restrict the valid values and are not supported.
const UNSUPPORTED: [&str; 19] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "extends",
    "disallow",
    "divisibleBy",
    "optional",
];

/// Keywords among these that allow every value if they are an empty map.
const WITHOUT_EFFECT_IF_EMPTY: [&str; 8] = [
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Names of the types.
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Maximum number of properties of one object. Source: 500 optional ones cost 1 ms per token, and the cost is quadratic
/// (docs/decisions/0023).
const PROPERTIES_MAX: usize = 500;

/// Maximum number of alternatives of one keyword. Source: the alternatives of `oneOf` are compared with each other.
const ALTERNATIVES_MAX: usize = 1000;

/// Longest pattern. Units: bytes. Source: a pattern costs time for each character of a response.
const PATTERN_BYTES_MAX: usize = 2048;

/// Largest minimum of a length or number of items; larger maxima are dropped. Source: more than the tokens of a
/// context.
const COUNT_MAX: u64 = 1 << 20;

/// A schema object that is being rebuilt in the compiler's form.
pub(super) struct SchemaNode<'a> {
    keywords: &'a Map<String, Value>,
    at: &'a At<'a>,
    out: Map<String, Value>,
}

impl<'a> SchemaNode<'a> {
    pub(super) fn new(keywords: &'a Map<String, Value>, at: &'a At<'a>) -> Self {
        Self { keywords, at, out: Map::new() }
    }

    /// Returns the schema with the supported keywords, in their original order, which decides the order of an object's
    /// properties.
    pub(super) fn rebuild(mut self, walk: &mut SchemaWalk<'_>) -> Result<Map<String, Value>, SchemaError> {
        for (keyword, value) in self.keywords {
            self.take(walk, keyword, value)?;
        }
        self.check_counts()?;
        let draft_4 = |keyword: &str| self.keywords.get(keyword) == Some(&Value::Bool(true));
        numbers::complete_bounds(&mut self.out, [draft_4("exclusiveMinimum"), draft_4("exclusiveMaximum")]);
        Ok(self.out)
    }

    fn take(&mut self, walk: &mut SchemaWalk<'_>, keyword: &str, value: &Value) -> Result<(), SchemaError> {
        let at = self.at.then(keyword);
        let kept = match keyword {
            "type" => types(value, &at)?,
            "const" => constants::one(&mut walk.budget, value, &at)?,
            "enum" => constants::list(&mut walk.budget, value, &at)?,
            "properties" => named_schemas(walk, value, &at)?,
            "patternProperties" => self.pattern_properties(walk, value)?,
            "additionalProperties" => walk.schema(value, &at)?,
            "required" => required(walk, value, &at)?,
            "items" => return self.items(walk, value),
            "prefixItems" => schemas(walk, value, &at)?,
            "allOf" => return self.all_of(schemas(walk, value, &at)?),
            "anyOf" => schemas(walk, value, &at)?,
            "oneOf" => return self.one_of(walk, value),
            "$ref" => {
                let reference = value.as_str().ok_or_else(|| at.refuse("a `$ref` must be a string"))?;
                walk.target(reference, &at)?
            }
            "minLength" | "minItems" | "minProperties" => count(value, &at)?,
            "maxLength" | "maxItems" | "maxProperties" => match limit(value, &at)? {
                Some(limit) => limit,
                None => return Ok(()),
            },
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => match numbers::bound(value, &at)? {
                Some(bound) => bound,
                None => return Ok(()),
            },
            "multipleOf" => numbers::multiple_of(value, &at)?,
            "pattern" => pattern(walk, value, &at)?,
            "format" => return self.format(value),
            "propertyNames" if allows_every_name(value) => return Ok(()),
            "uniqueItems" if *value != Value::Bool(false) => {
                return Err(at.refuse("`uniqueItems` is not supported"));
            }
            _ if WITHOUT_EFFECT_IF_EMPTY.contains(&keyword) && value.as_object().is_some_and(Map::is_empty) => {
                return Ok(());
            }
            _ if UNSUPPORTED.contains(&keyword) => {
                return Err(at.refuse(format!("the keyword `{keyword}` is not supported")));
            }
            _ => return Ok(()),
        };
        self.out.insert(keyword.to_owned(), kept);
        Ok(())
    }

    /// Rebuilds `items`, which was a list accompanied by `additionalItems` in older drafts.
    fn items(&mut self, walk: &mut SchemaWalk<'_>, value: &Value) -> Result<(), SchemaError> {
        let at = self.at.then("items");
        if !value.is_array() {
            let items = walk.schema(value, &at)?;
            self.out.insert("items".to_owned(), items);
            return Ok(());
        }
        if self.keywords.contains_key("prefixItems") {
            return Err(at.refuse("`items` must be a schema if there is `prefixItems`"));
        }
        let prefix = schemas(walk, value, &at)?;
        self.out.insert("prefixItems".to_owned(), prefix);
        if let Some(items) = self.keywords.get("additionalItems") {
            let items = walk.schema(items, &self.at.then("additionalItems"))?;
            self.out.insert("items".to_owned(), items);
        }
        Ok(())
    }

    fn pattern_properties(&self, walk: &mut SchemaWalk<'_>, value: &Value) -> Result<Value, SchemaError> {
        let at = self.at.then("patternProperties");
        let map = value.as_object().ok_or_else(|| at.refuse("`patternProperties` must be an object"))?;
        let compiled = map.keys().map(|key| compiled_pattern(key, &at)).collect::<Result<Vec<_>, _>>()?;
        let Value::Object(schemas) = named_schemas(walk, value, &at)? else { return Ok(json!({})) };
        let mut rebuilt = Map::new();
        for (pattern, (_, schema)) in compiled.into_iter().zip(schemas) {
            // Two patterns may have the same form; then both schemas apply.
            match rebuilt.get_mut(&pattern) {
                Some(other) => *other = json!({ "allOf": [other.take(), schema] }),
                None => drop(rebuilt.insert(pattern, schema)),
            }
        }
        Ok(Value::Object(rebuilt))
    }

    fn format(&mut self, value: &Value) -> Result<(), SchemaError> {
        let at = self.at.then("format");
        let name = value.as_str().ok_or_else(|| at.refuse("`format` must be a string"))?;
        let says_string = |types: &Value| match types {
            Value::Array(types) => types.iter().any(|name| name == "string"),
            name => name == "string",
        };
        if self.keywords.get("type").is_some_and(|types| !says_string(types)) {
            return Ok(());
        }
        match formats::find(name) {
            Some(formats::EnforcedFormat::Pattern(pattern)) => {
                self.all_of(json!([{ "type": "string", "pattern": pattern }]))
            }
            Some(formats::EnforcedFormat::Name) => {
                self.out.insert("format".to_owned(), value.clone());
                Ok(())
            }
            None => Err(at.refuse(format!(
                "the format `{name:.64}` is not supported; the supported ones are: {}",
                formats::names()
            ))),
        }
    }

    fn all_of(&mut self, schemas: Value) -> Result<(), SchemaError> {
        let Value::Array(schemas) = schemas else { return Ok(()) };
        if let Value::Array(all) = self.out.entry("allOf").or_insert_with(|| json!([])) {
            all.extend(schemas);
        }
        Ok(())
    }

    /// Rebuilds `oneOf` as `anyOf` if no two alternatives can be valid together.
    fn one_of(&mut self, walk: &mut SchemaWalk<'_>, value: &Value) -> Result<(), SchemaError> {
        let at = self.at.then("oneOf");
        let alternatives = schemas(walk, value, &at)?;
        if let Some((a, b)) = one_of::overlap(walk.root, value.as_array().map_or(&[], Vec::as_slice)) {
            let reason = format!(
                "the alternatives {a} and {b} of `oneOf` may both be valid; they must differ in their types or in the constants \
                 of a property that one requires, or else use `anyOf`"
            );
            return Err(at.refuse(reason));
        }
        self.all_of(json!([{ "anyOf": alternatives }]))
    }

    /// Refuses inconsistent counts, and a minimum number of properties that a response could reach by repeating a
    /// name.
    fn check_counts(&self) -> Result<(), SchemaError> {
        let number = |keyword: &str| self.out.get(keyword).and_then(Value::as_u64);
        let pairs = [("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties")];
        for (least, most) in pairs {
            if let (Some(min), Some(max)) = (number(least), number(most))
                && min > max
            {
                return Err(self.at.then(least).refuse(format!("`{least}` is {min}, above `{most}`, {max}")));
            }
        }
        let n_required = self.out.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
        if number("minProperties").is_some_and(|min| min > n_required + 1) {
            let reason = "`minProperties` is supported up to one more than the number of `required` properties";
            return Err(self.at.then("minProperties").refuse(reason));
        }
        Ok(())
    }
}

fn types(value: &Value, at: &At<'_>) -> Result<Value, SchemaError> {
    let names = match value {
        Value::String(_) => std::slice::from_ref(value),
        Value::Array(names) if !names.is_empty() => names.as_slice(),
        _ => return Err(at.refuse("`type` must be a name or a list of names")),
    };
    if names.iter().all(|name| TYPES.iter().any(|known| name == known)) {
        return Ok(value.clone());
    }
    Err(at.refuse(format!("`type` must be one of {}", TYPES.join(", "))))
}

fn schemas(walk: &mut SchemaWalk<'_>, value: &Value, at: &At<'_>) -> Result<Value, SchemaError> {
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| at.refuse("it must be a list of schemas that is not empty"))?;
    if list.len() > ALTERNATIVES_MAX {
        return Err(at.refuse(format!("it has {} schemas, at most {ALTERNATIVES_MAX} are allowed", list.len())));
    }
    let rebuilt = list.iter().enumerate().map(|(idx, schema)| walk.schema(schema, &at.then(&idx.to_string())));
    rebuilt.collect::<Result<Vec<_>, _>>().map(Value::Array)
}

fn named_schemas(walk: &mut SchemaWalk<'_>, value: &Value, at: &At<'_>) -> Result<Value, SchemaError> {
    let map = value.as_object().ok_or_else(|| at.refuse("it must be an object of schemas"))?;
    if map.len() > PROPERTIES_MAX {
        return Err(at.refuse(format!("it has {} properties, at most {PROPERTIES_MAX} are allowed", map.len())));
    }
    let mut rebuilt = Map::new();
    for (name, schema) in map {
        walk.budget.take_text(name, at)?;
        rebuilt.insert(name.clone(), walk.schema(schema, &at.then(name))?);
    }
    Ok(Value::Object(rebuilt))
}

fn required(walk: &mut SchemaWalk<'_>, value: &Value, at: &At<'_>) -> Result<Value, SchemaError> {
    let names: Option<Vec<&str>> = value.as_array().and_then(|names| names.iter().map(Value::as_str).collect());
    let names = names.ok_or_else(|| at.refuse("`required` must be a list of names"))?;
    names.iter().try_for_each(|name| walk.budget.take_text(name, at))?;
    let mut seen = BTreeSet::new();
    let names: Vec<&str> = names.into_iter().filter(|name| seen.insert(*name)).collect();
    if names.len() > PROPERTIES_MAX {
        return Err(at.refuse(format!("it has {} names, at most {PROPERTIES_MAX} are allowed", names.len())));
    }
    Ok(json!(names))
}

/// Returns a minimum.
fn count(value: &Value, at: &At<'_>) -> Result<Value, SchemaError> {
    let n = whole(value).ok_or_else(|| at.refuse("it must be a whole number of at least 0"))?;
    if n > COUNT_MAX {
        return Err(at.refuse(format!("it is {n}; no response is that long, and at most {COUNT_MAX} is allowed")));
    }
    Ok(json!(n))
}

/// Returns a maximum, unless no response reaches it.
fn limit(value: &Value, at: &At<'_>) -> Result<Option<Value>, SchemaError> {
    let n = whole(value).ok_or_else(|| at.refuse("it must be a whole number of at least 0"))?;
    Ok((n <= COUNT_MAX).then(|| json!(n)))
}

fn whole(value: &Value) -> Option<u64> {
    // A float cast saturates; any larger value is above every limit.
    value.as_u64().or_else(|| value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0).map(|n| n as u64))
}

/// Returns whether a schema of names allows all of them: it only requires text.
fn allows_every_name(schema: &Value) -> bool {
    let is_text =
        |types: &Value| types == "string" || types.as_array().is_some_and(|types| types.contains(&json!("string")));
    let says_nothing = |(keyword, value): (&String, &Value)| match keyword.as_str() {
        "type" => is_text(value),
        "minLength" => value == 0,
        "title" | "description" | "$comment" | "examples" | "default" | "deprecated" => true,
        _ => false,
    };
    *schema == Value::Bool(true) || schema.as_object().is_some_and(|keywords| keywords.iter().all(says_nothing))
}

fn pattern(walk: &mut SchemaWalk<'_>, value: &Value, at: &At<'_>) -> Result<Value, SchemaError> {
    let pattern = value.as_str().ok_or_else(|| at.refuse("`pattern` must be a string"))?;
    walk.budget.take_text(pattern, at)?;
    compiled_pattern(pattern, at).map(Value::String)
}

/// Returns the compiler's form of a pattern, which is an expression of ECMA-262.
///
/// Source: the compiler reads patterns as the crate `regex-syntax` does: `findings/schema-patterns.sh`.
fn compiled_pattern(pattern: &str, at: &At<'_>) -> Result<String, SchemaError> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(
            at.refuse(format!("a pattern has {} bytes, at most {PATTERN_BYTES_MAX} are allowed", pattern.len()))
        );
    }
    if excludes_what_is_escaped(pattern) {
        return Err(at.refuse("a class of a pattern that excludes quotes or backslashes is not supported"));
    }
    let pattern = with_dots_as_classes(pattern);
    jsonschema_regex::to_rust_regex(&pattern).map(Cow::into_owned).map_err(|()| {
        let reason = match regex_syntax::ast::parse::Parser::new().parse(&pattern) {
            Err(error) => error.kind().to_string(),
            Ok(_) => "it is none of ECMA-262".to_owned(),
        };
        at.refuse(format!("the pattern is not a supported expression: {reason}"))
    })
}

/// Returns a pattern with a class in place of each dot: those of the compiler match some ends of lines.
fn with_dots_as_classes(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let (mut is_escaped, mut is_in_class) = (false, false);
    for c in pattern.chars() {
        match c {
            _ if is_escaped => {}
            '[' => is_in_class = true,
            ']' => is_in_class = false,
            '.' if !is_in_class => {
                out.push_str(r"[^\n\r\u2028\u2029]");
                continue;
            }
            _ => {}
        }
        is_escaped = c == '\\' && !is_escaped;
        out.push(c);
    }
    out
}

/// Returns whether a pattern may have a negated class that excludes quotes or backslashes. The compiler would allow
/// their escaped forms nevertheless.
///
/// Source: llguidance 1.9.1, for `^[^"]$` and `"\\""`.
fn excludes_what_is_escaped(pattern: &str) -> bool {
    let mut tail = pattern;
    while let Some(start) = tail.find("[^") {
        tail = &tail[start + 2..];
        let end = tail.char_indices().skip(1).find(|(idx, c)| *c == ']' && !tail[..*idx].ends_with('\\'));
        let class = &tail[..end.map_or(tail.len(), |(idx, _)| idx)];
        let names = ["\"", "\\\\", "\\x", "\\u", "\\p", "\\P", "\\W", "\\D", "\\S", "["];
        let chars: Vec<char> = class.chars().collect();
        let spans = |c: char| chars.windows(3).any(|w| w[1] == '-' && w[0] <= c && c <= w[2]);
        if names.iter().any(|name| class.contains(name)) || spans('"') || spans('\\') {
            return true;
        }
    }
    pattern.contains("\\P")
}
