//! Tests of the limits of a call's grammar. The texts that it accepts are tested beside the compiler.

use super::*;

#[test]
fn keywords_about_several_arguments_are_refused_except_required() {
    let check = |schema: Value, expected: Option<&str>| {
        let found = check_apart(schema.as_object().expect("an object")).err().map(|error| error.path);
        assert_eq!(found.as_deref(), expected, "{schema}");
    };
    let properties = json!({"a": true});
    check(json!({"type": "object", "properties": properties, "required": ["a"], "minProperties": 1}), None);
    check(json!({"properties": properties, "required": ["b"]}), Some("required"));
    check(json!({"properties": properties, "minProperties": 1}), Some("minProperties"));
    check(json!({"properties": properties, "anyOf": [{"required": ["a"]}]}), Some("anyOf"));
}

/// Formats that write strings as text.
const FORMS: [ArgumentForm; 4] =
    [ArgumentForm::Gemma4, ArgumentForm::KimiK3, ArgumentForm::MiniCpm5, ArgumentForm::MiniMaxM3];

fn written(property: Value, definitions: Value, form: ArgumentForm) -> Result<CallText, SchemaError> {
    let schema = json!({"type": "object", "properties": {"a": property}, "$defs": definitions});
    CallText::new(crate::schema::normalize(&schema).expect("the schema is valid"), form, &GrammarBudget::default())
}

/// Returns a chain of definitions, each of which refers to the next one twice.
fn doubling(n_definitions: usize, last: Value) -> Value {
    let twice = |idx: usize| json!({"anyOf": vec![json!({"$ref": format!("#/$defs/{}", idx + 1)}); 2]});
    let mut definitions: Map<String, Value> = (0..n_definitions).map(|idx| (idx.to_string(), twice(idx))).collect();
    definitions.insert(n_definitions.to_string(), last);
    Value::Object(definitions)
}

#[test]
fn definitions_that_refer_to_each_other_often_have_a_limit() {
    let check = |definitions: Value, form: ArgumentForm, is_kept: bool| {
        let found = written(json!({"$ref": "#/$defs/0"}), definitions, form);
        assert_eq!(found.is_ok(), is_kept, "{form:?}: {:?}", found.err());
    };
    for form in FORMS {
        check(json!({"0": {"anyOf": vec![json!({"$ref": "#/$defs/0"}); 8]}}), form, false);
        check(doubling(20, json!({"type": "string"})), form, false);
        check(doubling(6, json!({"type": "string"})), form, true);
        check(doubling(6, json!({"type": "array", "items": {"type": "integer"}})), form, true);
    }
    // Only these formats write lists and objects in a form of their own.
    for form in [ArgumentForm::Gemma4, ArgumentForm::MiniMaxM3] {
        check(doubling(20, json!({"type": "array", "items": {"type": "integer"}})), form, false);
    }
}

#[test]
fn an_object_that_contains_itself_often_is_written_as_json_where_it_is_deep() {
    let n_levels = |n_inner: usize| {
        let inner = (0..n_inner).map(|idx| (format!("p{idx}"), json!({"$ref": "#/$defs/0"})));
        let properties: Map<String, Value> = inner.chain([("n".to_owned(), json!({"type": "integer"}))]).collect();
        let object = json!({"type": "object", "properties": properties, "additionalProperties": false});
        let written = written(json!({"$ref": "#/$defs/0"}), json!({"0": object}), ArgumentForm::MiniMaxM3);
        let mut read = &written.expect("it is kept").parser_schema["properties"]["a"];
        let mut n_levels = 0;
        while let Some(inner) = read["properties"].get("p0") {
            (read, n_levels) = (inner, n_levels + 1);
        }
        n_levels
    };
    assert_eq!(n_levels(1), DEPTH_MAX, "a chain of objects fits");
    assert_eq!(n_levels(2), DEPTH_MAX, "a tree has 511 objects and 255 numbers");
    assert_eq!(n_levels(3), DEPTH_MAX / 2);
    assert_eq!(n_levels(4), DEPTH_MAX / 2);
    assert_eq!(n_levels(20), 2);
    assert_eq!(n_levels(400), 1);
}

#[test]
fn a_filter_that_contains_filters_is_kept_in_every_format() {
    let filters = json!({"type": "array", "items": {"$ref": "#/$defs/filter"}});
    let filter = json!({
        "type": "object",
        "properties": {"and": filters, "or": filters, "not": {"$ref": "#/$defs/filter"}, "field": {"type": "string"}},
        "additionalProperties": false,
    });
    for form in FORMS.into_iter().chain([ArgumentForm::Lfm2]) {
        let found = written(json!({"$ref": "#/$defs/filter"}), json!({"filter": filter}), form);
        assert!(found.is_ok(), "{form:?}: {:?}", found.err());
    }
}

#[test]
fn rules_within_each_other_have_a_limit() {
    // Each object refers to the next one, so the rules are written within each other.
    let chain = |n: usize| {
        let object =
            |idx: usize| json!({"type": "object", "properties": {"p": {"$ref": format!("#/$defs/{}", idx + 1)}}});
        let last = (n.to_string(), json!({"type": "integer"}));
        (0..n).map(|idx| (idx.to_string(), object(idx))).chain([last]).collect::<Map<_, _>>()
    };
    let written = |n: usize| written(json!({"$ref": "#/$defs/0"}), Value::Object(chain(n)), ArgumentForm::Gemma4);
    assert!(written(RULE_DEPTH_MAX).is_ok());
    let error = written(RULE_DEPTH_MAX + 1).expect_err("it is too deep");
    assert!(error.reason.contains("nested"), "{error}");
    assert!(written(900).is_err(), "the stack suffices");
}

#[test]
fn definitions_that_are_copied_for_each_argument_have_a_limit() {
    let definitions = json!({"0": {"enum": [["x".repeat(100_000)]]}});
    let schema = |n: usize| {
        let one = |idx: usize| (format!("p{idx}"), json!({"maxItems": idx, "anyOf": [{"$ref": "#/$defs/0"}]}));
        let schema =
            json!({"type": "object", "properties": (0..n).map(one).collect::<Map<_, _>>(), "$defs": definitions});
        crate::schema::normalize(&schema).expect("the schema is valid")
    };
    let written = |n: usize, budget: &GrammarBudget| CallText::new(schema(n), ArgumentForm::Lfm2, budget);
    assert!(written(8, &GrammarBudget::default()).is_ok());
    assert!(written(100, &GrammarBudget::default()).is_err());
    // The tools of a request share its budget.
    let budget = GrammarBudget::default();
    let n_kept = std::iter::repeat_with(|| written(5, &budget)).take_while(Result::is_ok).count();
    assert!((2..10).contains(&n_kept), "{n_kept}");
    assert!(written(1, &budget).is_ok(), "a smaller one fits into what is left");
}

#[test]
fn equal_arguments_share_a_copy_of_their_definitions() {
    let definitions = json!({"0": {"enum": [["x".repeat(100_000)]]}});
    let property = |idx: usize| (format!("p{idx}"), json!({"$ref": "#/$defs/0"}));
    let properties: Map<String, Value> = (0..100).map(property).collect();
    let schema = json!({"type": "object", "properties": properties, "$defs": definitions});
    let schema = crate::schema::normalize(&schema).expect("the schema is valid");
    let written = CallText::new(schema, ArgumentForm::Lfm2, &GrammarBudget::default()).expect("it is kept");
    assert_eq!(written.lark(Value::to_string).matches("%json").count(), 1);
}
