//! Tests of the normal form: supported keywords, refusals with their paths, limits.

use proptest::prelude::*;

use super::*;

fn check(schema: Value, expected: Value) {
    assert_eq!(normalize(&schema), Ok(expected), "{schema}");
}

fn check_refused(schema: Value, path: &str, words: &str) {
    let error = normalize(&schema).expect_err(&schema.to_string()[..schema.to_string().len().min(200)]);
    assert_eq!(error.path, path, "{error}");
    assert!(error.reason.contains(words), "{error} does not contain {words}");
}

#[test]
fn keeps_constraints_and_drops_annotations() {
    check(json!(true), json!(true));
    check(json!({"title": "A", "description": "b", "default": 5, "x-order": 1, "$schema": "urn:x"}), json!({}));
    check(
        json!({"type": "object", "required": ["b", "b"], "properties": {"b": {"type": "string", "title": "B"}, "a": {}}}),
        json!({"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}, "a": {}}}),
    );
    check(json!({"uniqueItems": false, "maxLength": 1e30}), json!({}));
    check(json!({"enum": ["a", 1, null, [1.5]]}), json!({"enum": ["a", 1, null, [1.5]]}));
}

#[test]
fn renames_references_and_follows_each_once() {
    check(
        json!({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"items": {"$ref": "#/$defs/a b"}}, "unused": 5}}),
        json!({"$ref": "#/$defs/0", "$defs": {"0": {"items": {"$ref": "#/$defs/0"}}}}),
    );
    check(
        json!({"items": {"$ref": "#"}}),
        json!({"items": {"$ref": "#/$defs/0"}, "$defs": {"0": {"items": {"$ref": "#/$defs/0"}}}}),
    );
    check(
        json!({"$ref": "#/definitions/a~1b/items", "definitions": {"a/b": {"items": {"const": 1}}}}),
        json!({"$ref": "#/$defs/0", "$defs": {"0": {"const": 1}}}),
    );
}

#[test]
fn reads_older_drafts() {
    check(
        json!({"items": [{"const": 1}], "additionalItems": false}),
        json!({"prefixItems": [{"const": 1}], "items": false}),
    );
    check(
        json!({"type": "number", "minimum": 1, "exclusiveMinimum": true}),
        json!({"type": "number", "exclusiveMinimum": 1}),
    );
    check(json!({"minimum": 1, "exclusiveMinimum": false}), json!({"minimum": 1}));
}

#[test]
fn gives_integers_bounds_and_moves_bounds_inward() {
    let most = 9_223_372_036_854_774_784_i64;
    check(json!({"type": "integer"}), json!({"type": "integer", "minimum": -most, "maximum": most}));
    check(
        json!({"type": ["integer", "null"], "exclusiveMinimum": 0, "maximum": u64::MAX}),
        json!({"type": ["integer", "null"], "exclusiveMinimum": 0, "maximum": most}),
    );
    // 2^53 + 1 lies between two floats.
    check(json!({"maximum": 9_007_199_254_740_993_i64}), json!({"maximum": 9_007_199_254_740_992_i64}));
    check(json!({"minimum": 9_007_199_254_740_993_i64}), json!({"minimum": 9_007_199_254_740_994_i64}));
    check(json!({"type": "number", "maximum": 1e300}), json!({"type": "number", "maximum": most}));
    check_refused(json!({"minimum": 1e300}), "minimum", "in size");
    check_refused(json!({"maximum": 1e-30}), "maximum", "in size");
    check_refused(json!({"minimum": "1"}), "minimum", "a number");
    check_refused(json!({"const": 9_007_199_254_740_993_i64}), "const", "too many digits");
    check_refused(json!({"multipleOf": 0}), "multipleOf", "above 0");
    check_refused(json!({"multipleOf": 12.34}), "multipleOf", "three significant digits");
    check(json!({"multipleOf": 0.001}), json!({"multipleOf": 0.001}));
    check(json!({"multipleOf": 600_000}), json!({"multipleOf": 600_000}));
}

#[test]
fn one_of_becomes_any_of_if_its_alternatives_exclude_each_other() {
    let tagged = |tag: &str| json!({"type": "object", "properties": {"kind": {"const": tag}}, "required": ["kind"]});
    let kept = |alternatives: Value| json!({"allOf": [{"anyOf": alternatives}]});
    let by_tag = json!([tagged("cat"), tagged("dog")]);
    check(json!({"oneOf": by_tag}), kept(by_tag.clone()));
    let by_type = json!([{"type": "string"}, {"type": "null"}, {"enum": [1, true]}]);
    check(json!({"oneOf": by_type}), kept(by_type.clone()));
    let closed = |name: &str| json!({"type": "object", "required": [name], "properties": {name: {}}, "additionalProperties": false});
    let by_name = json!([closed("a"), closed("b")]);
    check(json!({"oneOf": by_name}), kept(by_name.clone()));
    let referred =
        json!({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": tagged("a"), "b": tagged("b")}});
    assert!(normalize(&referred).is_ok());
    check_refused(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf", "0 and 1");
    check_refused(json!({"oneOf": [tagged("a"), tagged("b"), tagged("a")]}), "oneOf", "0 and 2");
    check_refused(json!({"oneOf": [{"const": 1}, {"enum": [1.0, 2]}]}), "oneOf", "anyOf");
    check_refused(json!({"oneOf": [{"const": [1]}, {"const": [1.0]}]}), "oneOf", "anyOf");
    check_refused(json!({"oneOf": [{}, {"type": "null"}]}), "oneOf", "anyOf");
}

#[test]
fn comparing_the_required_properties_of_alternatives_has_a_limit() {
    // Every pair of alternatives differs only in its last required property.
    let alternatives = |n_alternatives: usize, n_names: usize| {
        let one = |idx: usize| {
            let mut required = vec![""; n_names];
            required.push("kind");
            json!({"type": "object", "properties": {"kind": {"const": idx}}, "required": required})
        };
        json!({"oneOf": (0..n_alternatives).map(one).collect::<Vec<_>>()})
    };
    assert!(normalize(&alternatives(100, 100)).is_ok());
    check_refused(alternatives(100, 300), "oneOf", "may both be valid");
    // The constants of a property may be listed once for all alternatives.
    let listed: Vec<u32> = (0..1000).collect();
    let referred = |idx: usize| {
        let value = if idx.is_multiple_of(2) { json!({"$ref": "#/$defs/all"}) } else { json!({"type": "string"}) };
        json!({"type": "object", "properties": {"p": value, "kind": {"const": idx}}, "required": ["p", "kind"]})
    };
    let referred: Vec<Value> = (0..100).map(referred).collect();
    check_refused(json!({"oneOf": referred, "$defs": {"all": {"enum": listed}}}), "oneOf", "may both be valid");
}

#[test]
fn keeps_formats_of_strings_only() {
    check(
        json!({"type": "integer", "minimum": 0, "maximum": 9, "format": "int32"}),
        json!({"type": "integer", "minimum": 0, "maximum": 9}),
    );
    check(json!({"type": "string", "format": "uuid"}), json!({"type": "string", "format": "uuid"}));
    let date = normalize(&json!({"type": "string", "format": "date"})).expect("a date is known");
    assert!(date["allOf"][0]["pattern"].is_string(), "{date}");
    check_refused(json!({"type": "string", "format": "regex"}), "format", "date-time");
    check_refused(json!({"format": "regex"}), "format", "not supported");
}

#[test]
fn property_names_that_allow_all_names_are_dropped() {
    let text = json!({"type": "string"});
    for names in [json!(true), json!({}), text.clone(), json!({"type": ["string", "null"], "title": "Name"})] {
        check(json!({"type": "object", "propertyNames": names}), json!({"type": "object"}));
    }
    for names in
        [json!(false), json!({"type": "integer"}), json!({"type": "string", "pattern": "^a"}), json!({"enum": ["a"]})]
    {
        check_refused(json!({"propertyNames": names}), "propertyNames", "not supported");
    }
}

#[test]
fn refuses_unsupported_keywords_with_their_path() {
    for keyword in ["not", "if", "contains", "dependentRequired", "unevaluatedProperties", "$dynamicRef"] {
        let schema = json!({"properties": {"a": {"items": {keyword: {"b": {}}}}}});
        check_refused(schema, &format!("properties.a.items.{keyword}"), "not supported");
    }
    for keyword in ["if", "then", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems"] {
        check(json!({"type": "string", keyword: {}}), json!({"type": "string"}));
    }
    for pattern in ["[^\"]", "a[^b\\\\]", "[^!-~]", "[^\\x22]", "[^\\W]", "\\P{L}"] {
        check_refused(json!({"pattern": pattern}), "pattern", "backslashes");
    }
    assert!(normalize(&json!({"pattern": "^[^/\\s\\]]+[^a-z]\\\\\"$"})).is_ok());
    check_refused(json!({"uniqueItems": true}), "uniqueItems", "not supported");
    check_refused(json!({"anyOf": [{}, {"$ref": "https://example.com/x"}]}), "anyOf.1.$ref", "nothing is fetched");
    check_refused(json!({"$ref": "#anchor"}), "$ref", "anchors");
    check_refused(json!({"$ref": "#/$defs/a"}), "$ref", "nowhere");
    check_refused(json!({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}}), "$defs/a.not", "not supported");
    check_refused(json!({"required": ["a"], "minProperties": 3}), "minProperties", "one more");
    check_refused(json!({"enum": ["a\tb", "a\u{7f}b"]}), "enum", "control characters");
    check_refused(json!({"minLength": 5, "maxLength": 4}), "minLength", "above");
}

#[test]
fn schemas_of_two_patterns_with_one_form_both_apply() {
    let normal = normalize(&json!({"patternProperties": {"^\\d$": {"type": "string"}, "^[0-9]$": {"minLength": 2}}}));
    let of_digits = &normal.expect("it is accepted")["patternProperties"]["^[0-9]$"];
    assert_eq!(*of_digits, json!({"allOf": [{"type": "string"}, {"minLength": 2}]}));
}

#[test]
fn refuses_wrong_types_with_their_path() {
    for (schema, path) in [
        (json!(5), ""),
        (json!({"type": "text"}), "type"),
        (json!({"type": []}), "type"),
        (json!({"type": [["string"]]}), "type"),
        (json!({"enum": []}), "enum"),
        (json!({"enum": "a"}), "enum"),
        (json!({"properties": []}), "properties"),
        (json!({"properties": {"a": 1}}), "properties.a"),
        (json!({"required": [1]}), "required"),
        (json!({"required": true}), "required"),
        (json!({"items": 1}), "items"),
        (json!({"prefixItems": {}}), "prefixItems"),
        (json!({"items": [], "prefixItems": [{}]}), "items"),
        (json!({"anyOf": []}), "anyOf"),
        (json!({"allOf": [1]}), "allOf.0"),
        (json!({"oneOf": {}}), "oneOf"),
        (json!({"$ref": 1}), "$ref"),
        (json!({"minLength": -1}), "minLength"),
        (json!({"maxItems": 1.5}), "maxItems"),
        (json!({"pattern": 1}), "pattern"),
        (json!({"format": 1}), "format"),
        (json!({"exclusiveMaximum": []}), "exclusiveMaximum"),
        (json!({"multipleOf": "1"}), "multipleOf"),
        (json!({"additionalProperties": null}), "additionalProperties"),
    ] {
        check_refused(schema, path, "");
    }
}

#[test]
fn refuses_more_than_each_limit() {
    let names = |n: usize| -> Map<String, Value> { (0..n).map(|i| (format!("p{i}"), json!({}))).collect() };
    assert!(normalize(&json!({"properties": names(500)})).is_ok());
    check_refused(json!({"properties": names(501)}), "properties", "at most 500");
    check_refused(json!({"required": names(501).keys().collect::<Vec<_>>()}), "required", "at most 500");
    check_refused(json!({"anyOf": vec![json!({}); 1001]}), "anyOf", "at most 1000");
    check_refused(json!({"enum": (0..5001).collect::<Vec<_>>()}), "enum", "5000 constants");
    check_refused(json!({"const": "x".repeat(TEXT_BYTES_MAX + 1)}), "const", "bytes");
    check_refused(json!({"pattern": "x".repeat(2049)}), "pattern", "2049 bytes");
    check_refused(json!({"minItems": 2_000_000}), "minItems", "no response");
    let many = json!({"allOf": (0..21).map(|_| json!({"properties": names(500)})).collect::<Vec<_>>()});
    check_refused(many, "allOf.19.properties.p479", "more than 10000 parts");
    let deep = |n: usize| (0..n).fold(json!({}), |inner, _| json!({"items": inner}));
    assert!(normalize(&deep(DEPTH_MAX - 1)).is_ok());
    check_refused(deep(DEPTH_MAX), &["items"; DEPTH_MAX].join("."), "nested more than 100");
    let refs: Vec<Value> = (0..1001).map(|i| json!({"$ref": format!("#/$defs/p{i}")})).collect();
    let spread = json!({"allOf": [{"anyOf": refs[..600]}, {"anyOf": refs[600..]}], "$defs": names(1001)});
    check_refused(spread, "allOf.1.anyOf.400.$ref", "more than 1000 places");
    let long_name = json!({"properties": {"n".repeat(1000): {"not": {}}}});
    check_refused(long_name, &format!("properties.{}.not", "n".repeat(SEGMENT_CHARS_MAX)), "");
}

/// Generates JSON that resembles a schema: known keywords with fitting and unfitting values.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        proptest::sample::select(vec![
            "string", "integer", "#", "#/items", "#/%", "#/a%2", "date", "^a{2}$", "\u{0}", "é"
        ])
        .prop_map(Value::from),
    ];
    let keys = proptest::sample::select(vec![
        "type",
        "const",
        "enum",
        "properties",
        "required",
        "items",
        "prefixItems",
        "additionalItems",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "minLength",
        "maxLength",
        "minimum",
        "exclusiveMaximum",
        "multipleOf",
        "pattern",
        "format",
        "not",
        "patternProperties",
        "minProperties",
        "uniqueItems",
        "é",
    ]);
    leaf.prop_recursive(6, 60, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((keys.clone(), inner), 0..6)
                .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_json_is_refused_or_has_a_stable_normal_form(schema in any_json()) {
        if let Ok(normal) = normalize(&schema) {
            let again = normalize(&normal).expect("a normal form is accepted");
            prop_assert_eq!(normalize(&again), Ok(again.clone()), "{}", schema);
        }
    }
}
