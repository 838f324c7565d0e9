//! The arguments of tools in the grammar of calls: the place of each tool's arguments is found by a marker word, and
//! the tool's schema replaces it.
//!
//! llama.cpp's converter ignores unsupported parts of a schema. So it gets tools whose arguments are a marker word
//! each. In its grammar each marker is replaced by balanced brackets or a placeholder token beyond the vocabulary, at
//! which the engine starts to follow the schema. Formats whose arguments are not a JSON object are in `parameters`.
//!
//! Not here: following schemas (`compiler`), schemas' keywords (`schema`).

use serde_json::{Map, Value, json};

use crate::schema::{self, SchemaError};

/// Rules of arguments whose schema is followed in addition to the grammar.
const RULES: &str = r#"
warmpath-arguments ::= "{" warmpath-part* "}"
warmpath-part ::= [^"{}] | warmpath-text | warmpath-arguments
warmpath-text ::= "\"" ( [^"\\] | "\\" . )* "\""
"#;

/// Returns tools of which those at `places` have a marker instead of arguments.
pub fn marked(tools: &[Value], places: &[usize]) -> Vec<Value> {
    let mut tools = tools.to_vec();
    for idx in places {
        tools[*idx]["function"]["parameters"] = json!({"const": word(*idx)});
    }
    tools
}

/// Returns a grammar of calls in which arguments replace the markers of the tools at these indexes; the placeholders of
/// their schemas start at `first`. Returns `None` if the format does not write all arguments as one JSON value.
pub fn fill(grammar: &str, places: &[usize], first: u32) -> Option<String> {
    let mut filled_grammar = grammar.to_owned();
    for (idx, token) in places.iter().copied().zip(first..) {
        let mark = format!("\"\\\"{}\\\"\"", word(idx));
        if !filled_grammar.contains(&mark) {
            return None;
        }
        // White space after the arguments belongs to the format.
        let arguments = format!("( <[{token}]> | warmpath-arguments )");
        filled_grammar =
            filled_grammar.replace(&format!("{mark} space\n"), &format!("{arguments}\n")).replace(&mark, &arguments);
    }
    Some(filled_grammar + RULES)
}

/// Returns the normalized schema of a tool's arguments: an object without further properties, as in llama.cpp's own
/// grammars, unless the schema allows them.
///
/// Errors: the part of the schema that cannot be enforced.
pub fn schema(parameters: &Map<String, Value>) -> Result<Value, SchemaError> {
    let mut parameters = Value::Object(parameters.clone());
    match &parameters["type"] {
        Value::Null => {}
        Value::String(name) if name == "object" => {}
        Value::Array(names) if names.contains(&json!("object")) => {}
        _ => return Err(SchemaError { path: "type".to_owned(), reason: "arguments must be an object".to_owned() }),
    }
    parameters["type"] = json!("object");
    if !is_composed(&parameters) {
        close(&mut parameters);
    }
    schema::normalize(&parameters)
}

/// Returns a tool of whose schema only the names and types of its arguments are left, for llama.cpp's converter.
pub fn loosened(tool: &Value) -> Value {
    let parameters = &tool["function"]["parameters"];
    let typed = |schema: &Value| {
        let typed = json!({"type": schema["type"]});
        if schema::normalize(&typed).is_ok() { typed } else { json!({}) }
    };
    let mut loose_parameters = json!({"type": "object"});
    if let Value::Object(properties) = &parameters["properties"] {
        let is_named = |name: &&Value| name.as_str().is_some_and(|name| properties.contains_key(name));
        let required = parameters["required"].as_array().into_iter().flatten();
        loose_parameters["required"] = required.filter(is_named).cloned().collect();
        loose_parameters["properties"] =
            properties.iter().map(|(name, schema)| (name.clone(), typed(schema))).collect();
        loose_parameters["additionalProperties"] = json!(allows_others(parameters));
    }
    let mut tool = tool.clone();
    tool["function"]["parameters"] = loose_parameters;
    tool
}

/// Returns whether an object may have other properties than those that its schema names in `properties`.
fn allows_others(schema: &Value) -> bool {
    let has = |keyword: &str| !schema[keyword].is_null();
    match &schema["additionalProperties"] {
        Value::Null => ["patternProperties", "allOf", "anyOf", "oneOf", "$ref"].into_iter().any(has),
        others => *others != Value::Bool(false),
    }
}

fn word(idx: usize) -> String {
    format!("warmpath-arguments-{idx}.")
}

/// Returns whether several schemas define the properties of one object, so that none of them may exclude the properties
/// of the others.
fn is_composed(schema: &Value) -> bool {
    match schema {
        Value::Object(keywords) => {
            let has = |keyword: &str| keywords.contains_key(keyword);
            has("allOf")
                || (has("properties") && ["anyOf", "oneOf", "$ref"].into_iter().any(has))
                || keywords.values().any(is_composed)
        }
        Value::Array(items) => items.iter().any(is_composed),
        _ => false,
    }
}

/// Forbids further properties in every object that names its properties and has no `additionalProperties`.
fn close(schema: &mut Value) {
    let Value::Object(keywords) = schema else { return };
    if keywords.contains_key("properties")
        && !["additionalProperties", "patternProperties"].iter().any(|keyword| keywords.contains_key(*keyword))
    {
        keywords.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    for (keyword, value) in keywords {
        match (keyword.as_str(), value) {
            ("properties" | "$defs" | "definitions", Value::Object(named)) => named.values_mut().for_each(close),
            ("items" | "prefixItems" | "anyOf" | "oneOf", Value::Array(several)) => several.iter_mut().for_each(close),
            ("items" | "additionalProperties", one) => close(one),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_replaced_by_brackets_and_a_token() {
        let tools =
            [json!({"function": {"name": "a", "parameters": {"type": "object"}}}), json!({"function": {"name": "b"}})];
        assert_eq!(marked(&tools, &[0, 1])[1]["function"]["parameters"], json!({"const": "warmpath-arguments-1."}));
        let grammar = r#"root ::= a | b
a ::= "\"warmpath-arguments-0.\""
b ::= "\"warmpath-arguments-1.\"" space
"#;
        let filled = fill(grammar, &[0, 1], 100).expect("both are there");
        assert!(filled.contains("a ::= ( <[100]> | warmpath-arguments )\n"), "{filled}");
        assert!(filled.contains("b ::= ( <[101]> | warmpath-arguments )\n"), "{filled}");
        assert_eq!(fill(grammar, &[0, 1, 2], 100), None);
    }

    #[test]
    fn names_and_types_of_arguments_are_left_of_a_loosened_schema() {
        let check = |parameters: Value, expected: Value| {
            let tool = json!({"type": "function", "function": {"name": "a", "parameters": parameters}});
            assert_eq!(loosened(&tool), json!({"type": "function", "function": {"name": "a", "parameters": expected}}));
        };
        check(json!({}), json!({"type": "object"}));
        check(json!({"$ref": "#/$defs/a", "$defs": {"a": {}}}), json!({"type": "object"}));
        let parameters = json!({
            "type": "object",
            "properties": {
                "a": {"type": "array", "uniqueItems": true, "items": {"$ref": "#"}},
                "b": {"type": ["string", "null"], "pattern": "("},
                "c": {"$ref": "#"},
                "d": {"type": "file"},
                "e": true,
            },
            "required": ["a", "f", 5],
        });
        let properties = json!({"a": {"type": "array"}, "b": {"type": ["string", "null"]}, "c": {}, "d": {}, "e": {}});
        let left = |is_open: bool| {
            let mut left = json!({"type": "object", "properties": properties, "required": ["a"]});
            left["additionalProperties"] = json!(is_open);
            left
        };
        check(parameters.clone(), left(false));
        for (keyword, value, is_open) in [
            ("additionalProperties", json!(true), true),
            ("additionalProperties", json!(false), false),
            ("additionalProperties", json!({"$ref": "#"}), true),
            ("anyOf", json!([{"properties": {"f": {}}}]), true),
        ] {
            let mut parameters = parameters.clone();
            parameters[keyword] = value;
            check(parameters, left(is_open));
        }
    }

    #[test]
    fn arguments_are_objects_without_unnamed_properties() {
        let check = |parameters: Value, expected: Value| {
            let parameters = parameters.as_object().expect("an object").clone();
            assert_eq!(schema(&parameters).expect("it is kept"), schema::normalize(&expected).expect("it is kept"));
        };
        check(json!({}), json!({"type": "object"}));
        check(json!({"type": ["object", "null"]}), json!({"type": "object"}));
        let inner = json!({"type": "object", "properties": {}});
        let closed = json!({"type": "object", "properties": {}, "additionalProperties": false});
        check(
            json!({"properties": {"a": inner, "b": {"items": inner}}}),
            json!({"properties": {"a": closed, "b": {"items": closed}}, "type": "object", "additionalProperties": false}),
        );
        let open = json!({"type": "object", "properties": {}, "additionalProperties": true});
        check(open.clone(), open);
        let composed = json!({"type": "object", "properties": {}, "anyOf": [inner]});
        check(composed.clone(), composed);
        let refused =
            |parameters: Value| schema(parameters.as_object().expect("an object")).expect_err("it is not kept").path;
        assert_eq!(refused(json!({"type": "string"})), "type");
        assert_eq!(refused(json!({"properties": {"a": {"not": {}}}})), "properties.a.not");
    }
}
