//! Tests of grammars of values that are written as text: the texts that they accept. Their use in calls is tested in
//! `worker/tests/http`.

use super::*;

fn lark(schema: Value, typing: Typing) -> Result<String, String> {
    let schema = crate::schema::normalize(&schema).expect("the schema is valid");
    let (definitions, budget) = (Definitions::of(&schema), GrammarBudget::default());
    let grammar = ValueGrammar::new(&schema, &definitions, "\n</p>", typing, &budget);
    Ok(grammar.map_err(|error| error.path)?.lark(Value::to_string))
}

#[test]
fn values_other_than_strings_are_json_and_strings_are_text() {
    let json = lark(json!({"type": "integer", "minimum": 3, "maximum": 9}), Typing::String).expect("it is kept");
    let schema = r#"{"type":"integer","minimum":3,"maximum":9}"#;
    assert_eq!(json, format!("start: json CLOSE\nCLOSE: /(?:\\n<\\/p>)/\njson: %json {schema}\n"));
    let text = lark(json!({"enum": ["a/b", "c\n"]}), Typing::String).expect("it is kept");
    assert!(text.starts_with("start: VALUE\n") && text.contains("(?:(?:a\\/b)|(?:c\\n))"), "{text}");
}

#[test]
fn strings_that_look_like_other_types_are_excluded_if_the_parser_guesses_types() {
    let schema =
        json!({"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": {"type": "integer"}}]});
    let text = lark(schema.clone(), Typing::Text).expect("it is kept");
    assert!(text.starts_with("start: VALUE | json CLOSE\n"), "{text}");
    assert!(text.contains("& ~/[ \\n\\t]*(?:null|\\[(?s:.*))[ \\n\\t]*/)"), "{text}");
    let text = lark(schema, Typing::String).expect("it is kept");
    assert!(text.starts_with("start: VALUE\n") && !text.contains("null"), "{text}");
}

#[test]
fn refuses_constraints_that_cannot_be_enforced_in_text_and_names_the_keyword() {
    let bounded = json!({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]});
    assert_eq!(lark(bounded, Typing::Text), Err("minimum".to_owned()));
    assert_eq!(lark(json!({"type": "string", "pattern": "a(?:^b|c)d"}), Typing::String), Err("pattern".to_owned()));
}

#[test]
fn a_pattern_matches_anywhere_unless_it_is_anchored() {
    let check = |pattern: &str, expected: &str| assert_eq!(search(pattern).as_deref(), Ok(expected), "{pattern}");
    check("^a$", "(?:a)");
    check("a", "(?s:.*)(?:a)(?s:.*)");
    check("^\\d/x", "(?:[0-9])(?:(?:\\/x))(?s:.*)");
    check("^a|b$", "(?:(?:a)(?s:.*)|(?s:.*)(?:b))");
}

/// Returns a definition with `n` references to itself.
fn itself(n: usize) -> Value {
    json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": vec![json!({"$ref": "#/$defs/a"}); n]}}})
}

/// Returns a chain of definitions, each of which refers to the next one twice.
fn doubling(n_definitions: usize, last: Value) -> Value {
    let twice = |idx: usize| json!({"anyOf": vec![json!({"$ref": format!("#/$defs/{}", idx + 1)}); 2]});
    let mut definitions: Map<String, Value> = (0..n_definitions).map(|idx| (idx.to_string(), twice(idx))).collect();
    definitions.insert(n_definitions.to_string(), last);
    json!({"$ref": "#/$defs/0", "$defs": definitions})
}

#[test]
fn definitions_that_refer_to_each_other_often_have_a_limit() {
    for typing in [Typing::String, Typing::Text] {
        assert_eq!(lark(itself(8), typing), Err("$ref".to_owned()), "the types of each definition are read once");
        assert_eq!(lark(doubling(15, json!({"type": "string"})), typing), Err(String::new()));
        let kept = lark(doubling(8, json!({"type": "string", "minLength": 2})), typing).expect("it is kept");
        assert_eq!(kept.matches("{2,}").count(), 256);
    }
    // Values other than strings are not repeated, and each definition's types are read once.
    let json = lark(doubling(15, json!({"type": "array"})), Typing::String);
    assert!(json.expect("it is kept").starts_with("start: json CLOSE\n"));
}

#[test]
fn the_arguments_of_one_tool_share_the_budget() {
    let budget = GrammarBudget::default();
    let schema = crate::schema::normalize(&doubling(8, json!({"type": "string"}))).expect("the schema is valid");
    let definitions = Definitions::of(&schema);
    let write = || ValueGrammar::new(&schema, &definitions, "</p>", Typing::String, &budget);
    let n_kept = std::iter::repeat_with(write).take_while(Result::is_ok).count();
    assert!((10..1000).contains(&n_kept), "{n_kept}");
    let plain = json!({"type": "string"});
    let plain = ValueGrammar::new(&plain, &definitions, "</p>", Typing::String, &budget);
    assert!(plain.is_err(), "nothing is left");
}

#[test]
fn definitions_that_are_copied_for_each_argument_have_a_limit() {
    let definitions = json!({"large": {"enum": (0..5000).collect::<Vec<_>>()}, "small": {"type": "integer"}});
    // Returns how many of the arguments fit; the first `n_large` of them refer to the large definition.
    let n_kept = |n_large: usize| {
        let property = |idx: usize| {
            let name = if idx < n_large { "large" } else { "small" };
            (format!("p{idx}"), json!({"$ref": format!("#/$defs/{name}"), "maxItems": idx}))
        };
        let properties: Map<String, Value> = (0..500).map(property).collect();
        let schema = json!({"type": "object", "properties": properties, "$defs": definitions});
        let schema = crate::schema::normalize(&schema).expect("the schema is valid");
        let (definitions, budget) = (Definitions::of(&schema), GrammarBudget::default());
        budget.begin();
        let write = |schema: &Value| ValueGrammar::new(schema, &definitions, "</p>", Typing::Text, &budget);
        let properties = schema["properties"].as_object().expect("they are named");
        properties.values().take_while(|schema| write(schema).is_ok()).count()
    };
    assert!((10..100).contains(&n_kept(500)), "{}", n_kept(500));
    assert_eq!(n_kept(10), 500, "only the definition that an argument refers to is copied");
}

#[test]
fn a_filter_that_contains_filters_is_kept() {
    let of_filters = |name: &str| {
        let filters = json!({"type": "array", "items": {"$ref": "#/$defs/filter"}});
        json!({"type": "object", "properties": {name: filters}, "required": [name], "additionalProperties": false})
    };
    let leaf =
        json!({"type": "object", "properties": {"field": {"type": "string"}, "equals": {}}, "required": ["field"]});
    let filter = json!({"anyOf": [of_filters("and"), of_filters("or"), {"$ref": "#/$defs/leaf"}, {"type": "string"}]});
    let schema = json!({"$ref": "#/$defs/filter", "$defs": {"filter": filter, "leaf": leaf}});
    let text = lark(schema, Typing::Text).expect("it is kept");
    assert!(text.starts_with("start: VALUE | json CLOSE\n"), "{text}");
}

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
