//! Tests of grammars of values that are written as text: the texts that they accept. Their use in calls is tested in
//! `worker/tests/http`.

use super::*;

fn lark(schema: Value, typing: Typing) -> Result<String, String> {
    let schema = crate::schema::normalize(&schema).expect("the schema is valid");
    let grammar = ValueGrammar::new(schema, "\n</p>", typing).map_err(|error| error.path)?;
    Ok(grammar.lark(Value::to_string))
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
