//! One order of the keys in tools, for clients that send equal tools with their keys in another order.
//!
//! Some clients keep schemas in maps without an order, so a session that is continued sends other text for the same
//! tools. The order is the one in which tools are usually written, so most tools stay as they are. The order of the
//! tools themselves is the client's: it may be a ranking.

use serde_json::{Map, Value as Json};

/// Keys in the order in which tools are usually written; all others follow, sorted.
///
/// Source: the examples of OpenAI's and Anthropic's API references, on which models are trained.
const USUAL_ORDER: [&str; 11] = [
    "type",
    "function",
    "name",
    "title",
    "description",
    "parameters",
    "items",
    "enum",
    "properties",
    "required",
    "additionalProperties",
];

/// Keys whose value maps names to schemas.
const NAMED_SCHEMAS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Sorts the keys of every object in a tool, however deep. Values and lists stay the same.
///
/// Names of properties come in the order of the list `required`, then sorted: their order in a call follows.
pub(crate) fn sort_keys(tool: &mut Json) {
    match tool {
        Json::Array(items) => items.iter_mut().for_each(sort_keys),
        Json::Object(fields) => sort_object(fields),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

fn sort_object(fields: &mut Map<String, Json>) {
    let usual = |name: &str| USUAL_ORDER.iter().position(|usual| *usual == name).unwrap_or(USUAL_ORDER.len());
    sort_by_rank(fields, usual);
    let list = fields.get("required").cloned();
    let required_names = list.as_ref().and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let place_among_required =
        |name: &str| required_names.iter().position(|required_name| required_name == name).unwrap_or(usize::MAX);
    for (key, value) in fields.iter_mut() {
        match value {
            Json::Object(named) if NAMED_SCHEMAS.contains(&key.as_str()) => {
                sort_by_rank(named, place_among_required);
                named.values_mut().for_each(sort_keys);
            }
            value => sort_keys(value),
        }
    }
}

/// Sorts fields by the rank of their names, and by name within a rank.
fn sort_by_rank(fields: &mut Map<String, Json>, rank: impl Fn(&str) -> usize) {
    let mut entries: Vec<(String, Json)> = std::mem::take(fields).into_iter().collect();
    entries.sort_by(|(a, _), (b, _)| (rank(a), a).cmp(&(rank(b), b)));
    fields.extend(entries);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sorted(text: &str) -> String {
        let mut tool = serde_json::from_str(text).expect(text);
        sort_keys(&mut tool);
        tool.to_string()
    }

    #[test]
    fn a_tool_as_it_is_usually_written_stays_the_same() {
        let usual = concat!(
            r#"{"type":"function","function":{"name":"look","description":"Looks.","parameters":{"type":"object","#,
            r#""properties":{"place":{"type":"string","description":"Where"},"at":{"type":"string"}},"#,
            r#""required":["place"],"additionalProperties":false}}}"#,
        );
        assert_eq!(sorted(usual), usual);
    }

    #[test]
    fn keys_in_any_order_give_the_same_text() {
        let one =
            r#"{"parameters":{"required":["b"],"properties":{"a":{"x":1,"type":"string"},"c":{},"b":{}}},"name":"f"}"#;
        let other =
            r#"{"name":"f","parameters":{"properties":{"b":{},"c":{},"a":{"type":"string","x":1}},"required":["b"]}}"#;
        let expected =
            r#"{"name":"f","parameters":{"properties":{"b":{},"a":{"type":"string","x":1},"c":{}},"required":["b"]}}"#;
        assert_eq!([sorted(one), sorted(other)], [expected, expected]);
    }

    #[test]
    fn lists_and_values_keep_their_order() {
        let mut tool = json!({"required": ["b", "a"], "enum": [3, 1, {"z": 1, "a": 2}], "default": "x"});
        let before = tool.clone();
        sort_keys(&mut tool);
        assert_eq!(tool, before);
        assert_eq!(tool.to_string(), r#"{"enum":[3,1,{"a":2,"z":1}],"required":["b","a"],"default":"x"}"#);
    }

    #[test]
    fn a_property_may_have_the_name_of_a_keyword() {
        let text = r#"{"properties":{"type":{"type":"string"},"description":{},"properties":{}}}"#;
        let expected = r#"{"properties":{"description":{},"properties":{},"type":{"type":"string"}}}"#;
        assert_eq!(sorted(text), expected);
    }
}
