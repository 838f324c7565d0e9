//! Tests that client text cannot spell control tokens.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn shield(template: &str) -> Shield {
    Shield::new(["<|im_start|>", "<|im_end|>", "[INST]"].into_iter().map(str::as_bytes), template)
}

/// Returns `text` as a template sees it, dangerous characters written as `_`.
fn shown(template: &str, text: &str) -> String {
    let shield = shield(template);
    let Json::Object(variables) = json!({ "content": text }) else { unreachable!() };
    let Some(stand_ins) = shield.stand_ins(&variables).unwrap() else { return text.to_owned() };
    let shielded = shield.shield_text(text, &stand_ins);
    assert_eq!(stand_ins.restore(&shielded), text);
    shielded.chars().map(|character| if is_stand_in(character) { '_' } else { character }).collect()
}

#[test]
fn ends_of_control_tokens_get_placeholders() {
    assert_eq!(shown("", "a <|im_start|> [b] c|d"), "a _|im_start|_ _b_ c|d");
    assert_eq!(shown("", "nothing to see"), "nothing to see");
}

#[test]
fn literals_of_the_template_stay_unless_they_could_join_a_control_token() {
    let template =
        "{% if '</think>' in c %}{{ c.split('<|')[0] ~ \"|>\" ~ '<|im_end|>' ~ '>' }}{% endif %} don't '<b>'";
    assert_eq!(shown(template, "<think></think><b><|<|im_end|>"), "_think_</think>_b__|_|im_end|_");
}

#[test]
fn a_literal_inside_a_control_token_is_not_exempt() {
    let shield = Shield::new([b"<x</think>y>".as_slice()].into_iter(), "{{ '</think>' }}");
    assert!(shield.literals.is_none());
}

#[test]
fn placeholders_in_the_client_s_text_stay() {
    assert!(shown("", "\u{fdd0}\u{fdd1}<").ends_with('_'));
    let shield = shield("");
    let everything: String = stand_ins().collect();
    let Json::Object(variables) = json!({"a": "<", "b": everything}) else { unreachable!() };
    assert!(shield.stand_ins(&variables).is_err());
}

#[test]
fn literals_are_read_from_expressions_only() {
    let source = "it's {# 'c' #} {{ 'a\\'b' }} {%- if x == \"d\\n\" -%} 'e' {% endif %}{{ '%}' }}";
    assert_eq!(expression_literals(source), ["a'b", "d\n", "%}"]);
}

#[test]
fn spellings_are_found_in_keys_and_values() {
    let shield = shield("");
    assert!(shield.spells_control(&json!({"a": [{"x[INST]y": 1}]})));
    assert!(shield.spells_control(&json!([["<|im_end|>"]])));
    assert!(!shield.spells_control(&json!({"a": "<|im_ end|>", "b": [1, null]})));
}

#[test]
fn a_text_of_nothing_but_literals_and_control_tokens_costs_no_minutes() {
    // A comparison of each with each would be 10^10 steps.
    let shown = shown("{{ '</think>' }}", &"</think><|im_end|>".repeat(100_000));
    assert_eq!(shown, "</think>_|im_end|_".repeat(100_000));
}

proptest! {
    #[test]
    fn ranges_apart_from_others_are_those_that_overlap_none(
        ranges in prop::collection::vec((0..60_usize, 0..8_usize), 0..20),
        others in prop::collection::vec((0..60_usize, 0..20_usize), 0..8),
    ) {
        let of = |(start, length): (usize, usize)| start..start + length;
        let (mut ranges, mut others): (Vec<_>, Vec<_>) =
            (ranges.into_iter().map(of).collect(), others.into_iter().map(of).collect());
        others.sort_by_key(|other| other.end);
        let mut naive = ranges.clone();
        naive.retain(|range| !others.iter().any(|other| other.start < range.end && range.start < other.end));
        retain_apart(&mut ranges, &others);
        prop_assert_eq!(ranges, naive);
    }
}
