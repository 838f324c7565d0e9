//! Tests of the compiler over a vocabulary with a token for each byte.

use std::sync::LazyLock;

use super::*;

static COMPILER: LazyLock<RuleCompiler> = LazyLock::new(|| {
    let bytes = (0..=u8::MAX).map(|byte| if byte == TokTrie::SPECIAL_TOKEN_MARKER { Vec::new() } else { vec![byte] });
    RuleCompiler::new(bytes.chain([Vec::new()]).collect(), &[256], |_| None).expect("there is an end")
});

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
