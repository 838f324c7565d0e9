//! Bad samples, which show that every rule can fail.

use super::commits::{Commit, read_log};
use super::page::anchors;
use super::*;

fn messages(findings: Vec<Finding>) -> String {
    findings.iter().map(|finding| format!("{finding}\n")).collect()
}

fn rust(path: &str, text: &str) -> String {
    messages(check_rust_source(Path::new(path), text))
}

fn tree(files: &[(&str, &str)]) -> Tree {
    let files = files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
    Tree { root: PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".."), files }
}

#[test]
fn accepts_a_clean_file() {
    assert_eq!(
        rust("router/src/lib.rs", "//! A file.\n\n/// Adds.\npub fn add(a: u32, b: u32) -> u32 {\n    a + b\n}\n"),
        ""
    );
}

#[test]
fn refuses_files_without_a_header() {
    assert!(rust("a.rs", "fn f() {}\n").starts_with("a.rs:1: does not open with"));
}

#[test]
fn refuses_names_that_name_no_concept() {
    assert!(rust("a.rs", "//! A.\nstruct SlotManager;\n").contains("`manager`"));
    assert!(rust("a.rs", "//! A.\nenum RequestData {}\n").contains("`data`"));
    assert!(rust("router/src/http_utils.rs", "//! A.\n").contains("`utils`"));
    assert!(rust("a.rs", "//! A.\nfn process() {}\n").contains("`process`"));
    assert_eq!(rust("a.rs", "//! A.\nstruct DatasetOutline;\nfn process_id() {}\n"), "");
}

#[test]
fn refuses_flags_as_parameters_and_parts_that_only_tests_have() {
    assert!(rust("a.rs", "//! A.\nfn f(fast: bool) {}\n").contains("takes a `bool`"));
    assert_eq!(rust("router/tests/a.rs", "//! A.\nfn f(fast: bool) {}\n"), "");
    assert!(rust("a.rs", "//! A.\nstruct A { #[cfg(test)] clock: u8 }\n").contains("a field only for tests"));
    assert!(rust("a.rs", "//! A.\nfn f(#[cfg(test)] clock: u8) {}\n").contains("a parameter only for tests"));
}

#[test]
fn finds_parameters_that_are_tuples() {
    let found = |path: &str, text: &str| messages(tuple_parameters(Path::new(path), &format!("//! A.\n{text}\n")));
    for kind in ["(u8, u8)", "&(u8, u8)", "&[(u8, u8)]", "Option<(u8, u8)>", "impl Iterator<Item = (u8, u8)>"] {
        let text = format!("fn f(pair: {kind}) {{}}");
        assert_eq!(found("a.rs", &text), "a.rs:2: `f` takes a tuple: name its parts\n", "{kind}");
        assert!(found("a.rs", &format!("impl A {{\n{text}\n}}")).starts_with("a.rs:3:"), "{kind}");
        assert_eq!(found("router/tests/a.rs", &text), "", "{kind}");
        assert_eq!(found("a.rs", &format!("#[cfg(test)]\nmod tests {{\n{text}\n}}")), "", "{kind}");
    }
    for kind in ["u8", "()", "Result<(), u8>", "fn((u8, u8))", "impl Fn(u8, u8)", "&dyn Fn((u8, u8)) -> u8"] {
        assert_eq!(found("a.rs", &format!("fn f(one: {kind}) {{}}")), "", "{kind}");
    }
}

#[test]
fn refuses_tests_that_nothing_runs() {
    let tests = "//! A.\n#[cfg(test)]\nmod tests {}\n";
    assert!(rust("router/src/main.rs", tests).contains("which are not built"));
    assert_eq!(rust("router/src/lib.rs", tests), "");
    let comment = |text: &str| messages(check_comments(Path::new("router/src/a.rs"), text));
    for language in ["", "rust", "no_run", "ignore,E0277"] {
        let text = format!("/// ```{language}\n/// f()\n/// ```");
        assert!(comment(&text).starts_with("router/src/a.rs:1: an example that no test runs"), "{language}");
    }
    assert_eq!(comment("/// ```text\n/// f()\n/// ```\n// ```\n// f()\n// ```"), "");
}

#[test]
fn refuses_notes_to_self_and_files_that_do_not_parse() {
    let note = format!("//! A.\n// {}: later\n", concat!("TO", "DO"));
    assert!(rust("a.rs", &note).starts_with("a.rs:2: leaves a note to self"));
    assert!(rust("a.rs", "//! A.\nfn {\n").contains("does not parse"));
}

#[test]
fn refuses_io_and_clocks_in_pure_crates_but_not_in_their_tests() {
    let reads = "//! A.\nfn f() { std::fs::read(\"x\"); }\n";
    assert!(rust("router/core/src/a.rs", reads).contains("`std::fs` in a pure crate"));
    assert!(rust("common/src/a.rs", "//! A.\nfn f() { Instant::now(); }\n").contains("`Instant::now`"));
    assert_eq!(rust("router/src/a.rs", reads), "");
    assert_eq!(rust("router/core/src/a/tests.rs", reads), "");
    assert_eq!(rust("worker/core/src/a.rs", "//! A.\nfn f() -> &'static str { \"\" }\n"), "");
    assert!(rust("worker/core/src/a.rs", "//! A.\nstatic N: u8 = 0;\n").contains("`static `"));
    assert_eq!(rust("worker/core/src/a.rs", "//! A.\n#[cfg(test)]\nmod tests { static N: u8 = 0; }\n"), "");
}

#[test]
fn refuses_dependencies_against_the_arrow() {
    let manifest = |name: &str, used: &str| {
        let text = format!(
            "[package]\nname = \"{name}\"\n[lints]\nworkspace = true\n[dependencies]\n{used}.workspace = true\n"
        );
        messages(check_manifest(Path::new("x/Cargo.toml"), &text))
    };
    assert_eq!(manifest("warmpath-router", "warmpath-router-core"), "");
    assert!(manifest("warmpath-router", "warmpath-worker-core").contains("point one way"));
    assert!(manifest("warmpath-common", "warmpath-gguf").contains("point one way"));
    assert!(manifest("warmpath-router-core", "tokio").contains("is pure"));
    assert!(manifest("warmpath-common", "reqwest").contains("is pure"));
    assert!(manifest("warmpath-new", "serde").contains("not in the table"));
}

#[test]
fn refuses_manifests_without_the_shared_lints_or_with_a_second_profile() {
    let found = check_manifest(Path::new("x/Cargo.toml"), "[package]\nname = \"warmpath-common\"\n");
    assert!(messages(found).contains("lints"));
    let root = |text: &str| messages(check_root_manifest(Path::new("Cargo.toml"), text));
    assert!(root("[profile.bench]\ndebug = true\n").contains("profile `bench`"));
    assert_eq!(root("[profile.release]\ndebug = \"none\"\n"), "");
}

#[test]
fn refuses_links_that_lead_nowhere() {
    let pages = tree(&[("pages/a.md", "# The first part: `a`\n"), ("tests/b.md", "")]);
    let check = |text: &str| messages(check_page(Path::new("tests/b.md"), text, &pages));
    assert_eq!(check("[a](../pages/a.md) [b](https://example.org) [c](b.md)"), "");
    assert!(check("see\n[a](nowhere.md)").starts_with("tests/b.md:2: the link `nowhere.md`"));
    assert!(check("![a](../docs/none.svg)").contains("leads nowhere"));
    assert_eq!(anchors("# The first part: `a`\n"), ["the-first-part-a"]);
}

#[test]
fn refuses_links_that_leave_the_repository() {
    let pages = tree(&[("pages/a.md", "")]);
    let check = |text: &str| messages(check_page(Path::new("pages/a.md"), text, &pages));
    assert_eq!(check("[a](../pages/a.md)"), "");
    let above = check("[a](../../tests/src/tidy.rs) [b](../../pages/a.md)");
    assert_eq!(above.matches("leaves the repository").count(), 2, "{above}");
}

#[test]
fn refuses_a_long_readme_and_long_benchmarks() {
    let pages = tree(&[]);
    let check = |path: &str, n_words: usize| messages(check_page(Path::new(path), &"word ".repeat(n_words), &pages));
    assert_eq!(check("README.md", 900), "");
    assert!(check("README.md", 901).contains("901 words, more than 900"));
    assert!(check("docs/benchmarks.md", 3001).contains("more than 3000"));
}

#[test]
fn refuses_decisions_without_their_parts() {
    let pages = tree(&[]);
    let check = |text: &str| messages(check_page(Path::new("docs/decisions/0001-build.md"), text, &pages));
    assert_eq!(check("# A\n\n## Context\n\n## Decision\n\n## Figures\n\n## Consequence\n"), "");
    assert!(check("# A\n\n## Context\n\n## Decision\n").contains("no `Consequence`"));
    assert!(check("# A\n\n## Decision\n\n## Context\n\n## Consequence\n").contains("no `Decision`"));
}

#[test]
fn refuses_long_lines_of_comments_and_pages() {
    let comment = |text: &str| messages(check_comments(Path::new("bench/src/a.rs"), text));
    let page = |text: &str| messages(check_sentences(Path::new("a.md"), text));
    let words = "word ".repeat(30);
    for line in [format!("    // {words}"), format!("/// {words}"), format!("//! {words}")] {
        assert!(comment(&line).contains("more than 120"), "{line}");
    }
    assert_eq!(comment(&format!("let text = \"{words}\";")), "");
    assert_eq!(comment(&format!("//! ```text\n//! {words}\n//! ```")), "");
    assert_eq!(comment(&format!("// https://example.org/{}", "a".repeat(120))), "");
    assert!(page(&words).contains("a.md:1: 149 characters") || page(&words).contains("150 characters"));
    assert_eq!(page(&format!("| {words} |\n![{words}](a.svg)\n```text\n{words}\n```")), "");
}

#[test]
fn refuses_doc_comments_that_open_with_a_verb_of_being() {
    let check = |text: &str| messages(check_comments(Path::new("router/src/a.rs"), text));
    for opening in ["Is", "Are", "Says", "Lists"] {
        let text = format!("/// {opening} the worker.");
        assert!(check(&text).contains("noun phrase"), "{opening}");
    }
    assert_eq!(check("/// Issue of the worker.\n// Is it so?"), "");
}

#[test]
fn refuses_words_that_the_field_does_not_use() {
    // The words are split, so that the lint does not find this file.
    let check = |text: &str| messages(check_comments(Path::new("router/src/a.rs"), text));
    let page = |text: &str| messages(check_sentences(Path::new("a.md"), text));
    let strange = [
        concat!("who", "ever"),
        concat!("of ", "late"),
        concat!("the ", "books"),
        concat!("thou", "ghts"),
        concat!("every", "body"),
    ];
    for word in strange {
        assert!(check(&format!("// For {word} it is.")).contains("no term of the field"), "{word}");
        assert!(page(&format!("For {word} it is.")).contains("no term of the field"), "{word}");
        assert_eq!(page(&format!("See `{word}`.\n```text\n{word}\n```")), "", "{word}");
    }
    assert_eq!(check("// A bookshelf, a latecomer."), "");
}

#[test]
fn refuses_long_subjects_of_commits_and_large_commits_without_a_body() {
    let commit = |subject: &str, has_body, n_lines| Commit { subject: subject.to_owned(), has_body, n_lines };
    let check = |commit: Commit| messages(check_commits(&[commit]));
    assert_eq!(check(commit(&"a".repeat(72), true, 900)), "");
    assert!(check(commit(&"b".repeat(73), true, 1)).contains(&"b".repeat(73)));
    assert_eq!(check(commit("docs: mend a link", false, 100)), "");
    assert!(check(commit("router: rewrite it", false, 101)).contains("101 lines has no body: router: rewrite it"));
}

#[test]
fn reads_commits_and_does_not_count_the_first_one_of_a_shallow_clone() {
    let log = "\u{1e}b\u{1f}p\u{1f}Body.\n\u{1f}\n\n 2 files changed, 3 insertions(+), 4 deletions(-)\n\
               \u{1e}a\u{1f}\u{1f}\n\u{1f}\n\n 900 files changed, 90000 insertions(+)\n\u{1e}c\u{1f}p\u{1f}\u{1f}\n";
    let read: Vec<_> =
        read_log(log).into_iter().map(|commit| (commit.subject, commit.has_body, commit.n_lines)).collect();
    assert_eq!(read, [("b".to_owned(), true, 7), ("a".to_owned(), false, 0), ("c".to_owned(), false, 0)]);
}

#[test]
fn refuses_long_entries_of_the_changelog() {
    let check = |text: &str| messages(check_changelog(Path::new("CHANGELOG.md"), text));
    let words = "word ".repeat(39);
    assert_eq!(check(&format!("# Changes\n\n- {words}\n  ([a long text](docs/cache.md#part)).\n- B.\n")), "");
    let long = check(&format!("- A.\n- {words}\n  and more\n"));
    assert!(long.starts_with("CHANGELOG.md:2: an entry of 204 characters"), "{long}");
}

#[test]
fn refuses_headers_that_refer_to_modules_that_do_not_exist() {
    let files =
        tree(&[("a/src/cost.rs", "//! Costs.\nfn score() {}\n"), ("Cargo.toml", "[dependencies]\nkube = \"1\"\n")]);
    let known = files.known_names();
    let check = |text: &str| messages(check_not_here(Path::new("a.rs"), &format!("//! A file.\n//!\n{text}"), &known));
    assert_eq!(
        check("//! Not here: costs (`cost`), scores (`cost::score`),\n//! watching (`kube`), flags (`--a`).\n"),
        ""
    );
    assert!(check("//! Not here: costs\n//! (`costs`). So `there`.\n").contains("no module or function `costs`"));
    assert_eq!(check("//! So `there`. Not here: costs (`cost`). `There` too.\n"), "");
}

#[test]
fn refuses_headings_that_are_not_on_the_page() {
    let pages = tree(&[("CONTRIBUTING.md", "# Rules\n"), ("README.md", "")]);
    let check = |text: &str| messages(check_page(Path::new("README.md"), text, &pages));
    assert_eq!(check("[a](CONTRIBUTING.md#rules)"), "");
    assert!(check("[a](#rules)").contains("`README.md` has no heading `#rules`"));
    assert!(check("[a](CONTRIBUTING.md#laws)").contains("has no heading `#laws`"));
}

#[test]
fn refuses_invariants_whose_test_does_not_exist() {
    let pages = tree(&[
        ("a.rs", "proptest! { #[test] fn holds(x in 0..3) {} }\nfn stands() {}\n"),
        ("b.py", "    def test_it(self):\n"),
    ]);
    let check = |rows: &str| {
        let text = format!("# A\n\n## Invariants\n\n| what | tests |\n|---|---|\n{rows}\n\n## Next\n| a | `b` |\n");
        messages(check_page(Path::new("ARCHITECTURE.md"), &text, &pages))
    };
    assert_eq!(check("| it | `holds`, `stands`, `test_it` |"), "");
    assert!(check("| it | `falls` |").contains("there is no test `falls`"));
    assert!(check("| it | none |").contains("names no test"));
    let without = check_page(Path::new("ARCHITECTURE.md"), "# A\n", &pages);
    assert!(messages(without).contains("no table under a heading"));
}

#[test]
fn refuses_references_to_pages_that_do_not_exist() {
    let pages = tree(&[("docs/decisions/0001-build.md", "# Build\n")]);
    // The folder is split from the rest, so that the lint does not find this file.
    let check = |name: &str| {
        let text = format!("// see {}{name} for the reason", concat!("docs", "/"));
        messages(check_mentions(Path::new("a.rs"), &text, &pages))
    };
    assert_eq!(check("decisions/0001-build.md"), "");
    assert_eq!(check("decisions/0001."), "");
    assert_eq!(check("decisions/"), "");
    assert!(check("decisions/0999.").contains("decisions/0999"));
    assert!(check("decisions/0001-other.md").contains("decisions/0001-other.md"));
    assert!(check("api-of-old.md").contains("api-of-old.md"));
}

#[test]
fn refuses_a_list_of_decisions_that_misses_one() {
    let pages = tree(&[("docs/decisions/0001-build.md", "# Build\n"), ("docs/decisions/README.md", "")]);
    let check = |text: &str| messages(check_page(Path::new("docs/decisions/README.md"), text, &pages));
    assert_eq!(check("[0001](0001-build.md)"), "");
    assert!(check("nothing").contains("does not list 0001-build.md"));
}
