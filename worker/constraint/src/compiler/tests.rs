//! Arguments in a template's own format: llama.cpp's parser must read every text that the grammar allows as arguments
//! that the schema allows.
//!
//! The vocabulary has a token for each byte, and all allowed tokens are equally likely. The templates are downloaded
//! (`make fixtures`).

use std::sync::LazyLock;

use jsonschema::validator_for;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::Map;
use warmpath_llama_chat::{ChatFormat, ChatTemplates, FormatInputs, ReasoningFormat, ToolChoice};

use super::*;
use crate::schema::{ArgumentForm, GrammarBudget};
use crate::tools::{arguments, forms};

#[path = "../../../tests/engine/random_schema.rs"]
mod random_schema;

/// Maximum length of a call. Units: bytes. Source: longer than the calls of these schemas, except endless ones.
const CALL_BYTES_MAX: usize = 4000;

const SEPARATORS: Separators = Separators { item: ", ", key: ": " };

/// Template with its own format, and the text of a response before and after the arguments of the tool `f`.
struct Case {
    form: ArgumentForm,
    template: &'static str,
    before: &'static str,
    behind: &'static str,
}

const CASES: [Case; 6] = [
    Case {
        form: ArgumentForm::Gemma4,
        template: "google-gemma-4-31B-it",
        before: "<|tool_call>call:f",
        behind: "<tool_call|>",
    },
    Case {
        form: ArgumentForm::KimiK3,
        template: "Kimi-K3",
        before: "<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\"",
        behind: "<|close|>tools<|sep|>",
    },
    Case {
        form: ArgumentForm::Lfm2,
        template: "LFM2-8B-A1B",
        before: "<|tool_call_start|>[f(",
        behind: "]<|tool_call_end|>",
    },
    Case {
        form: ArgumentForm::Lfm2,
        template: "LFM2.5-8B-A1B",
        before: "<|tool_call_start|>[f(",
        behind: "]<|tool_call_end|>",
    },
    Case { form: ArgumentForm::MiniCpm5, template: "openbmb-MiniCPM5-1B", before: "<function name=\"f\">", behind: "" },
    Case {
        form: ArgumentForm::MiniMaxM3,
        template: "MiniMax-M3",
        before: "</mm:think>]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">",
        behind: "]<]minimax[>[</tool_call>",
    },
];

static COMPILER: LazyLock<RuleCompiler> = LazyLock::new(|| {
    let bytes = (0..=u8::MAX).map(|byte| if byte == TokTrie::SPECIAL_TOKEN_MARKER { Vec::new() } else { vec![byte] });
    RuleCompiler::new(bytes.chain([Vec::new()]).collect(), &[256], |_| None).expect("there is an end")
});

/// Returns the format of calls to the tool `f` with these parameters.
fn format(case: &Case, parameters: &Value) -> ChatFormat {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fixtures/templates");
    let source = std::fs::read_to_string(folder.join(format!("{}.jinja", case.template)));
    let source = source.expect("run `make fixtures` to fetch the templates");
    let templates = ChatTemplates::compile(&source, ("<s>", "</s>")).expect("the template compiles");
    let function = json!({"name": "f", "description": "", "parameters": parameters});
    let inputs = FormatInputs {
        messages: &[json!({"role": "user", "content": "question"})],
        tools: &[json!({"type": "function", "function": function})],
        tool_choice: ToolChoice::Required,
        parallel_tool_calls: false,
        reasoning_format: ReasoningFormat::Auto,
        enable_thinking: false,
        continues: false,
        kwargs: &Map::new(),
    };
    templates.format(&inputs.to_json()).expect("there is a format")
}

/// Returns a random text that a constraint allows; `None` if it is too long or exceeds the limits.
fn walk(compiled: &CompiledSchema, random: &mut ChaCha8Rng) -> Option<Vec<u8>> {
    let mut constraint = compiled.begin();
    let mut text = Vec::new();
    while !constraint.is_complete() {
        let tokens: Vec<Token> = constraint.allowed().ok()?.into_mask().iter().collect();
        let token = *tokens
            .choose(random)
            .unwrap_or_else(|| panic!("no token is allowed after {}", String::from_utf8_lossy(&text)));
        constraint.take(token).ok()?;
        text.push(u8::try_from(token).expect("a byte"));
        if text.len() > CALL_BYTES_MAX {
            return None;
        }
    }
    Some(text)
}

/// Returns the arguments that llama.cpp reads from a call with this text.
fn read(case: &Case, format: &ChatFormat, text: &str) -> Value {
    let answer = format!("{}{text}{}", case.before, case.behind);
    let answer = if format.generation_prompt.contains("</think>") || case.form != ArgumentForm::MiniCpm5 {
        answer
    } else {
        format!("<think>\n\n</think>\n\n{answer}")
    };
    let mut reader = format.reader(&format.generation_prompt).expect("there is a reader");
    let read = reader.finish(&answer, "id").unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert_eq!(read.tool_calls.len(), 1, "{answer}: {read:?}");
    assert_eq!(read.content.trim(), "", "{answer}");
    let arguments = &read.tool_calls[0].arguments;
    serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {arguments} of {answer}"))
}

/// Checks a random call with these parameters; returns whether the call was completed.
///
/// Errors: the reason why the schema does not compile.
fn check(case: &Case, schema: &Value, random: &mut ChaCha8Rng) -> Result<bool, String> {
    let normalized = arguments::schema(schema.as_object().expect("an object")).map_err(|error| error.to_string())?;
    crate::schema::check_apart(normalized.as_object().expect("an object")).map_err(|error| error.to_string())?;
    let call = CallText::new(normalized, case.form, &GrammarBudget::default()).map_err(|error| error.to_string())?;
    let compiled = COMPILER.compile_call(&call, SEPARATORS)?;
    let Some(text) = walk(&compiled, random) else { return Ok(false) };
    let text = String::from_utf8(text).expect("a grammar only allows text");
    let arguments = read(case, &format(case, &call.parser_schema), &text);
    let validator = validator_for(schema).expect("the schema is valid");
    assert!(validator.is_valid(&arguments), "{:?}: {schema}: {arguments} of {text}", case.form);
    Ok(true)
}

/// Returns an object with one or two properties of a schema, whose definitions stay at the root.
fn object_of(mut schema: Value, is_required: bool) -> Value {
    let defs = schema.as_object_mut().and_then(|keywords| keywords.remove("$defs"));
    let required = if is_required { json!(["b"]) } else { json!([]) };
    let mut object = json!({"type": "object", "properties": {"b": schema, "A": schema}, "required": required});
    if let Some(defs) = defs {
        object["$defs"] = defs;
    }
    object
}

#[test]
fn the_format_of_each_template_is_found_in_its_grammar() {
    for case in &CASES {
        let tools = [json!({"type": "function", "function": {"name": "f", "description": "", "parameters": {}}})];
        let format = format(case, &json!({"type": "object", "properties": {}}));
        assert_eq!(forms::form(&format.grammar, &tools), Some(case.form), "{}", format.grammar);
        let filled = forms::fill(&format.grammar, case.form, (&tools, &[0]), 7).expect("it is found");
        assert!(filled.contains("<[7]>\n"), "{filled}");
    }
}

#[test]
fn a_pattern_allows_the_texts_that_ecma_262_allows() {
    let patterns = [
        "^[^+--]$",
        "^[+--]$",
        "^[^a&&b]$",
        "^[^a~~a]$",
        r"^[^ -~&&\w]$",
        "^[A-Z&&]$",
        "^[a[]$",
        "^[a-]$",
        r"^[\w-]$",
        "^.$",
        r"^\.$",
        r"^[.]$",
        r"^\s$",
        r"^[a\s]$",
        r"^\S$",
        r"^\d$",
        r"^\w$",
        "a.b",
        r"^\u0041$",
        r"^[\u2028a]$",
    ];
    let texts = [
        "", "a", "b", "A", "Z", "7", ",", "-", "+", "&", "~", "[", "]", ".", " ", "!", "\t", "\n", "\r", "\u{85}",
        "\u{a0}", "\u{2028}", "\u{feff}", "\u{663}", "é", "a\nb", "axb",
    ];
    for pattern in patterns {
        let schema = json!({"type": "string", "pattern": pattern});
        let Ok(normalized) = crate::schema::normalize(&schema) else { continue };
        let compiled = COMPILER.compile(&normalized).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        let reference = regress::Regex::with_flags(pattern, "u").expect("it is one of ECMA-262");
        for text in texts {
            let mut constraint = compiled.begin();
            let is_allowed =
                constraint.take_text(json!(text).to_string().as_bytes()).is_ok() && constraint.is_complete();
            assert_eq!(is_allowed, reference.find(text).is_some(), "{pattern} {text:?} {normalized}");
        }
    }
}

#[test]
fn common_tool_schemas_are_followed_in_every_format() {
    let place = json!({"type": "object", "properties": {"x": {"type": "number", "minimum": 0, "maximum": 9}, "on": {"type": "boolean"}}, "required": ["x"]});
    let schema = json!({
        "type": "object",
        "properties": {
            "code": {"type": "string", "pattern": "^\\d{3}-\\d{2}$"},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "share": {"type": "number", "minimum": 0.25, "exclusiveMaximum": 0.5},
            "list": {"type": "array", "items": {"type": "integer", "multipleOf": 5, "maximum": 10}, "minItems": 2, "maxItems": 3},
            "words": {"type": "array", "items": {"type": "string", "maxLength": 2}, "maxItems": 2},
            "note": {"anyOf": [{"type": "string", "minLength": 2, "maxLength": 4}, {"type": "null"}]},
            "count": {"anyOf": [{"type": "integer", "maximum": 5}, {"type": "null"}]},
            "place": place,
            "places": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/place"}, "maxItems": 2}, {"type": "null"}]},
            "day": {"type": "string", "format": "date"},
        },
        "required": ["code", "unit", "share", "list", "place", "day"],
        "$defs": {"place": place},
    });
    for case in &CASES {
        let mut n_whole = 0;
        for seed in 0..20 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            n_whole +=
                u32::from(check(case, &schema, &mut random).unwrap_or_else(|error| panic!("{:?}: {error}", case.form)));
        }
        assert!(n_whole > 10, "{:?}: {n_whole} whole calls", case.form);
    }
}

#[test]
fn texts_may_contain_something_that_looks_like_a_mark() {
    let texts = ["<", "<|\"", "</param", "]]>", "<![CDATA[", "]<]minimax[>[", "<|close|>argument", "a\"b\\c'd\ne"];
    let schema = json!({"type": "object", "properties": {"a": {"enum": texts}}, "required": ["a"]});
    for case in &CASES {
        for seed in 0..30 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let is_whole = check(case, &schema, &mut random);
            assert_eq!(is_whole, Ok(true), "{:?}", case.form);
        }
    }
}

#[test]
fn refuses_schemas_that_a_format_cannot_express_and_names_the_path() {
    let refused = |form: ArgumentForm, property: Value| {
        let schema = json!({"type": "object", "properties": {"a": property}});
        CallText::new(schema, form, &GrammarBudget::default()).map(|_| ()).map_err(|error| error.path)
    };
    let tuple = json!({"type": "array", "prefixItems": [{"type": "integer"}]});
    assert_eq!(refused(ArgumentForm::Gemma4, tuple.clone()), Err("properties.a.prefixItems".to_owned()));
    let all =
        json!({"allOf": [{"type": "object", "properties": {"b": {}}}, {"type": "object", "properties": {"c": {}}}]});
    assert_eq!(refused(ArgumentForm::Gemma4, all.clone()), Err("properties.a".to_owned()));
    assert_eq!(refused(ArgumentForm::KimiK3, json!(false)), Err("properties.a".to_owned()));
    for form in [ArgumentForm::KimiK3, ArgumentForm::Lfm2, ArgumentForm::MiniCpm5, ArgumentForm::MiniMaxM3] {
        assert_eq!((refused(form, tuple.clone()), refused(form, all.clone())), (Ok(()), Ok(())), "{form:?}");
    }
    let itself = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/0"}},
        "$defs": {"0": {"type": "object", "properties": {"next": {"$ref": "#/$defs/0"}, "n": {"type": "integer"}}}}});
    for form in [ArgumentForm::Gemma4, ArgumentForm::MiniMaxM3] {
        let written = CallText::new(itself.clone(), form, &GrammarBudget::default());
        written.unwrap_or_else(|error| panic!("{form:?}: {error}"));
    }
}

#[test]
fn cached_schemas_have_a_limit_of_memory() {
    let known = KnownSchemas::new(1 << 20);
    let schema = |n: usize| json!({"enum": (n * 1000..n * 1000 + 200).collect::<Vec<_>>()});
    for n in 0..40 {
        let schema = schema(n);
        known.get(&schema.to_string(), || COMPILER.compile(&schema)).expect("it compiles");
    }
    known.0.run_pending_tasks();
    assert!((1..40).contains(&known.0.entry_count()), "{}", known.0.entry_count());
    assert!(known.0.weighted_size() <= 1 << 20, "{}", known.0.weighted_size());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn arguments_of_random_schemas_are_valid_in_every_format(at in 0..CASES.len(), seed in any::<u64>(), is_required in any::<bool>()) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let schema = random_schema::random_schema(&mut random);
        if schema.is_bounded {
                    let _ = check(&CASES[at], &object_of(schema.schema, is_required), &mut random);
        }
    }
}
