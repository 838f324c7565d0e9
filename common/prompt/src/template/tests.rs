//! Tests of rendering: behaviour of transformers that minijinja lacks, and every limit.

use std::path::Path;

use serde_json::json;

use super::*;

fn compile(source: &str) -> Result<ChatTemplate, PromptError> {
    let now: jiff::civil::DateTime = "2026-07-04T05:06:07".parse().unwrap();
    let now = now.to_zoned(jiff::tz::TimeZone::UTC).unwrap();
    ChatTemplate::compile(source, Arc::new(move || now.clone()))
}

#[track_caller]
fn check(source: &str, expected: &str) {
    let variables = json!({
        "none": null, "yes": true, "float": 1e-7, "text": "a<b>'c'", "list": ["x", 1, null, "it's"],
        "map": {"b": [1.5, false], "a": {}}, "empty": [], "messages": [{"role": "user", "content": " hi "}],
    });
    let rendered = compile(source).unwrap().render_json(&variables);
    assert_eq!(rendered.unwrap_or_else(|error| panic!("{source}: {error}")), expected, "{source}");
}

#[test]
fn values_print_as_in_python() {
    check("{{ none }} {{ yes }} {{ float }} {{ 1.0 }} {{ undefined_name }}|", "None True 1e-07 1.0 |");
    check("{{ list }}", "['x', 1, None, \"it's\"]");
    check("{{ map }}", "{'b': [1.5, False], 'a': {}}");
    check("{{ float | string }} {{ none | string }}", "1e-07 None");
    check("{{ none is iterable }} {{ empty is iterable }} {{ text is iterable }}", "False True True");
}

#[test]
fn json_is_written_as_by_python() {
    check("{{ map | tojson }}", r#"{"b": [1.5, false], "a": {}}"#);
    check("{{ list | tojson }}", r#"["x", 1, null, "it's"]"#);
    check("{{ text | tojson }}", r#""a<b>'c'""#);
    check("{{ map | tojson(indent=2) }}", "{\n  \"b\": [\n    1.5,\n    false\n  ],\n  \"a\": {}\n}");
    check("{{ map | tojson(sort_keys=true, separators=(',', ':')) }}", r#"{"a":{},"b":[1.5,false]}"#);
    check("{{ 'é👋\\n' | tojson(ensure_ascii=true) }}", r#""\u00e9\ud83d\udc4b\n""#);
}

#[test]
fn blocks_are_trimmed_and_the_last_newline_dropped() {
    check("a\n  {% if yes %}\nb\n  {% endif %}\nc\n", "a\nb\nc");
}

#[test]
fn loops_can_break_and_continue() {
    check(
        "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
        "13",
    );
}

#[test]
fn texts_are_cut_joined_and_formatted_as_in_python() {
    check("{{ 'a</x>b</x>c'.rsplit('</x>', 1)[-1] }} {{ ' a b  c '.rsplit(none, 1) }}", "c [' a b', 'c']");
    check("{{ ' a b  c '.split(none, 1) }} {{ 'a,b,c'.split(sep=',', maxsplit=1) }}", "['a', 'b  c '] ['a', 'b,c']");
    check("{{ 'é<i>'.index('<') }} {{ 'abab'.rindex('b') }} {{ list.index('x') }}", "1 3 0");
    check("{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }}", "('a', '=', 'b=c') ('a=b', '=', 'c')");
    check("{{ 'abc'.partition('x') }} {{ 'abc'.rpartition('x') }}", "('abc', '', '') ('', '', 'abc')");
    check(
        "{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}{{ '-5'.zfill(4) }}|{{ 'x'.rjust(3) }}",
        "bcab-005|  x",
    );
    check(
        "{{ 'video_%02d' % 3 ~ '!' }} {{ '%s and %s' % ('a', [1]) }} {{ '%(k)s' % {'k': 1} }}",
        "video_03! a and [1] 1",
    );
    check("{{ 'a\\r\\nb\\x0bc'.splitlines() }} {{ 'a\\n'.splitlines(true) }}", "['a', 'b', 'c'] ['a\\n']");
    check(
        "{{ '\\x1c a \\u3000'.strip() }}|{{ '\\x1f a '|trim }}|{{ 'xxaxx'|trim('x') }}|{{ '--a'.lstrip('-') }}",
        "a|a|a|a",
    );
    check(
        "{{ 'a\\n\\nb'|indent(2) }}|{{ 'a\\nb'|indent('> ', true) }}|{{ '{\\n'|indent(4, first=true) }}|",
        "a\n\n  b|> a\n> b|    {\n|",
    );
    check("{{ [1.0, 1e-7, 1e22, {'a': 1e21, 'b': \"it's\"}] }}", "[1.0, 1e-07, 1e+22, {'a': 1e+21, 'b': \"it's\"}]");
    check("{{ text is sequence }} {{ map is sequence }} {{ none is sequence }} {{ [][::-1] }}", "True True False []");
    check_fails("{{ 'abc'.index('x') }}", "substring not found");
    check_fails("{{ 'x'.ljust(99999999999) }}", "instructions");
}

#[test]
fn generation_tags_mark_and_do_nothing() {
    check("a {%- generation -%} b {%- endgeneration %} c", "ab c");
    check("{% generation %}x{% endgeneration %}{{ 'generation' }}", "xgeneration");
}

#[test]
fn a_tag_that_ends_within_its_start_is_an_error() {
    check_fails("{%}", "chat_template:1");
    check_fails("{%} {% generation %}", "chat_template:1");
}

#[test]
fn the_time_comes_from_the_clock() {
    check(
        "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('%B %-d') }}",
        "04 Jul 2026|2026-07-04 05:06:07|July 4",
    );
}

#[test]
fn methods_behave_as_in_python() {
    check(
        "{{ messages[0].content.strip() }}|{{ 'a,b'.split(',') }}|{{ map.items() | list }}",
        "hi|['a', 'b']|[('b', [1.5, False]), ('a', {})]",
    );
    check("{{ messages[0].get('name', 'nobody') }}|{{ 'Ab'.upper() }}|{{ 'abc'.startswith('ab') }}", "nobody|AB|True");
}

#[test]
fn a_template_can_refuse() {
    let rendered = compile("{{ raise_exception('Roles must alternate') }}").unwrap().render_json(&json!({}));
    assert!(
        matches!(&rendered, Err(PromptError::Refused { message }) if message == "Roles must alternate"),
        "{rendered:?}"
    );
    let inside = "{% macro m() %}{{ raise_exception('no') }}{% endmacro %}{{ m() }}";
    let rendered = compile(inside).unwrap().render_json(&json!({}));
    assert!(matches!(&rendered, Err(PromptError::Refused { message }) if message == "no"), "{rendered:?}");
}

#[track_caller]
fn check_fails(source: &str, reason: &str) {
    let error = compile(source).and_then(|template| template.render_json(&json!({}))).unwrap_err();
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn an_error_of_a_template_names_the_line() {
    check_fails("{% if %}", "chat_template:1");
    check_fails("\n\n{{ nothing.at.all }}", "chat_template:3");
}

#[test]
fn a_long_loop_runs_out_of_fuel() {
    // Without a limit it ends after some seconds.
    let nested = "{% for a in range(9999) %}{% for b in range(5001) %}{% endfor %}{% endfor %}";
    check_fails(nested, "more than 10003200 instructions, which are enough for texts of this length");
}

#[test]
fn a_longer_text_may_run_longer() {
    let looks_twice = "{% for a in text %}{% for b in range(1000) %}{% endfor %}{% endfor %}{{ text | length }}";
    let template = compile(looks_twice).unwrap();
    let long = "x".repeat(100_000);
    let rendered = |text: &str, padding: &str| template.render_json(&json!({"text": text, "padding": padding}));
    assert!(rendered(&long[..8_000], "").unwrap_err().to_string().contains("instructions"));
    assert_eq!(rendered(&long[..8_000], &long).unwrap(), "8000");
    let n_bytes = bytes(&to_template_value(&json!({"text": long.repeat(20)})));
    assert_eq!(fuel(n_bytes), TEMPLATE_FUEL_MAX);
}

#[test]
fn a_template_may_not_render_endlessly() {
    // All texts together have 32 MiB.
    let doubling = "{% set ns = namespace(t='xxxxxxxx') %}{% for i in range(21) %}{% set ns.t = ns.t ~ ns.t %}{{ ns.t }}{% endfor %}";
    check_fails(doubling, "the rendered prompt is longer than 16777216 bytes");
    let long = "x".repeat(TEMPLATE_BYTES_MAX + 1);
    check_fails(&long, "the chat template is longer than 1048576 bytes");
    assert_eq!(compile(&long[1..]).unwrap().render_json(&json!({})).unwrap().len(), TEMPLATE_BYTES_MAX);
}

#[test]
fn recursion_beyond_the_limit_ends_before_a_small_stack_does() {
    let rendered = std::thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(|| {
            let deep = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(LEVELS) }}";
            check_fails(&deep.replace("LEVELS", &TEMPLATE_RECURSION_MAX.to_string()), "recursion");
        })
        .unwrap()
        .join();
    assert!(rendered.is_ok());
}

#[test]
fn a_thousand_messages_are_rendered_within_the_fuel() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fixtures/templates");
    let turn = |index: usize| {
        let role = if index.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": "Yes."})
    };
    let messages: Vec<_> = (0..999).map(turn).collect();
    let variables = json!({"messages": messages, "bos_token": "", "eos_token": "", "add_generation_prompt": true});
    let mut n_rendered = 0;
    for entry in std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{error}: run `make fixtures`")) {
        let path = entry.unwrap().path();
        let template = compile(&std::fs::read_to_string(&path).unwrap()).unwrap();
        match template.render_json(&variables) {
            Ok(_) => n_rendered += 1,
            Err(error) => assert!(!error.to_string().contains("instructions"), "{}: {error}", path.display()),
        }
    }
    assert!(n_rendered > 50, "{n_rendered}");
}

/// Pieces of random templates.
const WORDS: &[&str] = &[
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "{%- ",
    " -%}",
    "{# ",
    " #}",
    "for m in messages",
    "endfor",
    "if ",
    "elif ",
    "else",
    "endif",
    "set x = ",
    "set ns = namespace(a=1)",
    "ns.a",
    "macro f(x)",
    "endmacro",
    "f(f)",
    "messages",
    "m.role",
    "m['content']",
    "[::-1]",
    "[1:]",
    "[-1]",
    "range(100000000)",
    "range(9)",
    "'x' * 100000000",
    "x ~ x",
    "| tojson",
    "| trim",
    "| length",
    "| join('')",
    "| map('upper') | list",
    "| selectattr('a')",
    ".split('x')",
    ".strip()",
    ".items()",
    "is defined",
    "is none",
    "not ",
    " and ",
    "loop.index0",
    "raise_exception('no')",
    "strftime_now('%Y')",
    "'%'",
    "\"",
    "'",
    "\\",
    "\n",
    "é\u{10ffff}",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "generation",
    "endgeneration",
    "1 // 0",
    "1 % 0",
    "-9223372036854775808",
    "2 ** 100000",
    "call f()",
    "break",
    "continue",
    "include 'x'",
];

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: cases(), ..Default::default() })]

    #[test]
    fn no_template_panics_or_runs_or_writes_endlessly(
        words in proptest::collection::vec(proptest::sample::select(WORDS), 0..40),
        is_whole in proptest::bool::ANY,
    ) {
        // Half of them begin with a valid loop around the rest.
        let (start, end) = if is_whole { ("{% for m in messages %}{{ m.role }}", "{% endfor %}") } else { ("", "") };
        let source = format!("{start}{}{end}", words.concat());
        let variables = json!({"messages": [{"role": "user", "content": " hi "}, {}], "x": "a"});
        if let Ok(template) = compile(&source) {
            let n_bytes = template.render_json(&variables).map_or(0, |text| text.len());
            proptest::prop_assert!(n_bytes <= RENDERED_BYTES_MAX);
        }
    }
}

/// Returns the number of templates to try; `make fuzz` sets more.
fn cases() -> u32 {
    std::env::var("WARMPATH_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(500)
}
