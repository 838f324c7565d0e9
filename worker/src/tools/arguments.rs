//! The arguments of tools in the grammar of calls: a mark stands for each tool's arguments, and the tool's schema
//! replaces it.
//!
//! llama.cpp's converter ignores parts of a schema that it does not know. So it gets tools whose arguments are one word
//! each. In its grammar each of these words is replaced by balanced brackets or a token that no vocabulary has, at
//! which the engine starts to follow the schema. Formats whose arguments are not a JSON object have no such word
//! (`parameters`).
//!
//! Not here: following schemas (`engine`), schemas' keywords (`schema`).

use serde_json::{Map, Value, json};

use crate::schema::{self, SchemaError};

/// Rules of arguments whose schema is followed beside the grammar.
const RULES: &str = r#"
warmpath-arguments ::= "{" warmpath-part* "}"
warmpath-part ::= [^"{}] | warmpath-text | warmpath-arguments
warmpath-text ::= "\"" ( [^"\\] | "\\" . )* "\""
"#;

/// Returns the tools, those at these indexes with a mark in place of their arguments.
pub fn marked(tools: &[Value], places: &[usize]) -> Vec<Value> {
    let mut tools = tools.to_vec();
    for idx in places {
        tools[*idx]["function"]["parameters"] = json!({"const": word(*idx)});
    }
    tools
}

/// Returns a grammar of calls with arguments in place of the marks of the tools at these indexes; the tokens from
/// `first` on stand for their schemas. Returns `None` if its format does not write every tool's arguments as one JSON
/// value.
pub fn fill(grammar: &str, places: &[usize], first: u32) -> Option<String> {
    let mut filled = grammar.to_owned();
    for (idx, token) in places.iter().copied().zip(first..) {
        let mark = format!("\"\\\"{}\\\"\"", word(idx));
        if !filled.contains(&mark) {
            return None;
        }
        // White space after the arguments belongs to the format.
        let arguments = format!("( <[{token}]> | warmpath-arguments )");
        filled = filled.replace(&format!("{mark} space\n"), &format!("{arguments}\n")).replace(&mark, &arguments);
    }
    Some(filled + RULES)
}

/// Returns the normalized schema of a tool's arguments: an object without further properties, as in llama.cpp's own
/// grammars, unless the schema allows them.
///
/// Errors: the part of it that cannot be enforced.
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

fn word(idx: usize) -> String {
    format!("warmpath-arguments-{idx}.")
}

/// Returns whether some object's properties are defined in several places, so that no place may exclude the properties
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

/// Forbids further properties in every object that names its properties and does not say whether it may have others.
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
    fn arguments_are_objects_without_properties_that_nobody_named() {
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
