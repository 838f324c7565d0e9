//! Empty maps that clients write as `[]`, because their language has one type for lists and maps, such as PHP.
//!
//! Where only a map is possible, an empty list means an empty map, in every dialect; for an optional object, no object.
//! Router and worker read a body with these functions, so both render the same text. Lists of a schema, such as
//! `required` and `enum`, stay lists.

use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::{Map, Value};

/// Keywords whose value maps names to schemas. Source: JSON Schema, drafts 4 to 2020-12.
const NAMED_SCHEMAS: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// Keywords whose value is another map. Source: as [`NAMED_SCHEMAS`].
const OTHER_MAPS: [&str; 2] = ["dependentRequired", "$vocabulary"];

/// Keywords whose value is a schema, or in older drafts a list of schemas. Source: as [`NAMED_SCHEMAS`].
const SCHEMAS: [&str; 12] = [
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
];

/// Keywords whose value is a list of schemas. Source: as [`NAMED_SCHEMAS`].
const SCHEMA_LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];

/// Returns whether a value is an empty list.
pub fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

/// Makes an empty list an empty map.
pub fn fit_map(value: &mut Value) {
    if is_empty_list(value) {
        *value = Value::Object(Map::new());
    }
}

/// Makes every empty list of a JSON schema an empty map where only a map is possible.
pub fn fit_schema(schema: &mut Value) {
    fit_map(schema);
    let Value::Object(keywords) = schema else { return };
    for (keyword, value) in keywords {
        let is_one_of = |keywords: &[&str]| keywords.contains(&keyword.as_str());
        if is_one_of(&OTHER_MAPS) {
            fit_map(value);
        } else if is_one_of(&NAMED_SCHEMAS) {
            fit_map(value);
            let schemas = value.as_object_mut().into_iter().flat_map(Map::values_mut);
            // The names on which a property depends are a list.
            schemas.filter(|schema| keyword != "dependencies" || schema.is_object()).for_each(fit_schema);
        } else if is_one_of(&SCHEMA_LISTS) || (is_one_of(&SCHEMAS) && value.is_array() && !is_empty_list(value)) {
            value.as_array_mut().into_iter().flatten().for_each(fit_schema);
        } else if is_one_of(&SCHEMAS) {
            fit_schema(value);
        }
    }
}

/// Reads an object, or null or an empty list as none. Serde alone would accept any list as the fields of a struct in
/// their order.
///
/// Errors: the value has another type, or a field of the object is wrong.
pub fn optional_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    struct OnlyObject<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for OnlyObject<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_unit<E>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<T>, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Option<T>, A::Error> {
            match list.next_element::<IgnoredAny>()? {
                Some(_) => Err(A::Error::invalid_type(Unexpected::Seq, &self)),
                None => Ok(None),
            }
        }
    }

    deserializer.deserialize_any(OnlyObject(PhantomData))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(mut schema: Value, expected: &Value) {
        fit_schema(&mut schema);
        assert_eq!(schema, *expected);
    }

    #[test]
    fn maps_of_schemas_are_fitted_at_every_depth_and_lists_stay() {
        check(json!([]), &json!({}));
        for keyword in NAMED_SCHEMAS.into_iter().chain(OTHER_MAPS).chain(SCHEMAS) {
            check(json!({keyword: []}), &json!({keyword: {}}));
            check(json!({"items": {keyword: []}}), &json!({"items": {keyword: {}}}));
        }
        for keyword in NAMED_SCHEMAS.into_iter().filter(|keyword| *keyword != "dependencies") {
            let nested = |empty: Value| json!({keyword: {"a": empty, "b": {"properties": empty}, "c": true}});
            check(nested(json!([])), &nested(json!({})));
        }
        for keyword in SCHEMA_LISTS.into_iter().chain(["items"]) {
            let nested = |empty: Value| json!({keyword: [empty, {"not": empty}, false]});
            check(nested(json!([])), &nested(json!({})));
        }
        let lists = json!({
            "required": [], "enum": [], "type": [], "examples": [[]], "default": [], "const": [], "anyOf": [],
            "prefixItems": [], "dependencies": {"a": []}, "dependentRequired": {"a": []}, "unknown": [],
            "properties": {"enum": {"enum": [[]]}},
        });
        check(lists.clone(), &lists);
        check(json!("text"), &json!("text"));
    }

    #[test]
    fn an_empty_list_is_no_object_and_other_lists_are_refused() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Fields {
            first: u8,
        }
        let read = |text: &str| optional_object(&mut serde_json::Deserializer::from_str(text));
        assert_eq!(read("[]").expect("it is empty"), None);
        assert_eq!(read(r#"{"first": 2}"#).expect("an object"), Some(Fields { first: 2 }));
        assert_eq!(read("null").expect("nothing"), None);
        for wrong in ["[2]", "5", "\"text\"", r#"{"first": "a"}"#] {
            read(wrong).expect_err(wrong);
        }
    }
}
