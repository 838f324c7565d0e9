//! The rules for Rust files: header, functions, names, purity of the cores.

use std::path::Path;

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use super::Finding;

/// Words without meaning in the name of a type, a module or a function.
const EMPTY_WORDS: [&str; 7] = ["manager", "helper", "helpers", "util", "utils", "data", "misc"];
/// Function names without meaning.
const EMPTY_FUNCTIONS: [&str; 3] = ["process", "handle_stuff", "do_it"];
/// Attribute of the tests in a file of production code.
const TEST_CODE: &str = "#[cfg(test)]";
/// Folders with pure code.
const PURE_FOLDERS: [&str; 6] =
    ["common/src", "common/tokenizer/src", "host/core/src", "router/core/src", "worker/core/src", "worker/output/src"];
/// Names that pure code does not use: IO, clocks, globals, the environment, async.
const IMPURE: [&str; 11] = [
    "std::fs",
    "std::net::Tcp",
    "std::env",
    "std::thread",
    "std::process",
    "std::io",
    "Instant::now",
    "SystemTime",
    "rand::rng()",
    "async fn",
    "static ",
];

/// Returns the rules that the Rust file at `path` breaks.
pub(super) fn check_rust_source(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !text.starts_with("//! ") {
        findings.push(Finding::new(path, 1, "does not open with `//!`: what it is, what it is not, the idea"));
    }
    if path.ends_with("src/main.rs") && text.contains(TEST_CODE) {
        findings.push(Finding::new(path, 0, "has tests, which are not built: move the code to the library"));
    }
    findings.extend(check_notes(path, text));
    findings.extend(check_purity(path, text));
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if let Some(word) = empty_word(stem) {
        findings.push(Finding::new(path, 0, format!("the file's name says `{word}`, which is no concept")));
    }
    match syn::parse_file(text) {
        Ok(file) => {
            let mut visitor = Visitor { path, findings };
            visitor.visit_file(&file);
            visitor.findings
        }
        Err(error) => {
            findings.push(Finding::new(path, error.span().start().line, format!("does not parse: {error}")));
            findings
        }
    }
}

/// Returns a finding for each parameter of production code whose type has a tuple in it; those of closures aside.
pub(super) fn tuple_parameters(path: &Path, text: &str) -> Vec<Finding> {
    /// Whether a tuple was seen in a type.
    struct Tuples(bool);
    impl<'ast> Visit<'ast> for Tuples {
        fn visit_type_tuple(&mut self, tuple: &'ast syn::TypeTuple) {
            self.0 |= !tuple.elems.is_empty();
        }
        fn visit_type_fn_ptr(&mut self, _: &'ast syn::TypeFnPtr) {}
        fn visit_parenthesized_generic_arguments(&mut self, _: &'ast syn::ParenthesizedGenericArguments) {}
    }
    /// Parameters found in a file.
    struct Parameters<'p> {
        path: &'p Path,
        findings: Vec<Finding>,
    }
    impl<'ast> Visit<'ast> for Parameters<'_> {
        fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
            if !is_test_only(&module.attrs) {
                visit::visit_item_mod(self, module);
            }
        }
        fn visit_signature(&mut self, signature: &'ast syn::Signature) {
            for input in &signature.inputs {
                let syn::FnArg::Typed(input) = input else { continue };
                let mut tuples = Tuples(false);
                tuples.visit_type(&input.ty);
                if tuples.0 {
                    let message = format!("`{}` takes a tuple: name its parts", signature.ident);
                    self.findings.push(Finding::new(self.path, input.span().start().line, message));
                }
            }
        }
    }
    let mut parameters = Parameters { path, findings: Vec::new() };
    if !is_test_code(path)
        && let Ok(file) = syn::parse_file(text)
    {
        parameters.visit_file(&file);
    }
    parameters.findings
}

/// Returns the names of all functions in a Rust file; none if it does not parse.
pub(super) fn function_names(text: &str) -> Vec<String> {
    struct Names(Vec<String>);
    impl<'ast> Visit<'ast> for Names {
        fn visit_ident(&mut self, _: &'ast proc_macro2::Ident) {}
        fn visit_signature(&mut self, signature: &'ast syn::Signature) {
            self.0.push(signature.ident.to_string());
        }
        fn visit_macro(&mut self, call: &'ast syn::Macro) {
            // Functions inside `proptest! { ... }` are tokens, not items.
            let mut after_fn = false;
            for tree in call.tokens.clone() {
                let name = tree.to_string();
                if after_fn {
                    self.0.push(name.clone());
                }
                after_fn = name == "fn";
            }
        }
    }
    let mut names = Names(Vec::new());
    if let Ok(file) = syn::parse_file(text) {
        names.visit_file(&file);
    }
    names.0
}

fn check_notes(path: &Path, text: &str) -> Vec<Finding> {
    // Split in halves, so that this file does not find itself.
    let notes = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")];
    let lines = text.lines().enumerate();
    let hits = lines.filter(|(_, line)| line.contains("//") && notes.iter().any(|note| line.contains(note)));
    hits.map(|(line_idx, _)| Finding::new(path, line_idx + 1, "leaves a note to self: do it or file it")).collect()
}

/// Returns whether the whole file is test code.
fn is_test_code(path: &Path) -> bool {
    let is_test_file = path.file_stem().is_some_and(|stem| stem == "tests" || stem == "testing");
    is_test_file || path.components().any(|part| part.as_os_str() == "tests") && !path.starts_with("tests/src")
}

fn check_purity(path: &Path, text: &str) -> Vec<Finding> {
    if is_test_code(path) || !PURE_FOLDERS.iter().any(|folder| path.starts_with(folder)) {
        return Vec::new();
    }
    let production = text.lines().enumerate().take_while(|(_, line)| !line.starts_with(TEST_CODE));
    let code = production.filter(|(_, line)| !line.trim_start().starts_with("//"));
    let hits = code.filter_map(|(line_idx, line)| Some((line_idx, IMPURE.iter().find(|word| names_word(line, word))?)));
    hits.map(|(line_idx, word)| Finding::new(path, line_idx + 1, format!("`{word}` in a pure crate"))).collect()
}

/// Returns whether `line` contains `word` other than as the end of a longer name or a lifetime (`&'static str`).
fn names_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '\'')
    })
}

/// Returns the first word of a snake_case or CamelCase name that has no meaning.
fn empty_word(name: &str) -> Option<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if (c == '_' || c.is_uppercase()) && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c != '_') {
            word.extend(c.to_lowercase());
        }
    }
    words.into_iter().find(|word| EMPTY_WORDS.contains(&word.as_str()))
}

struct Visitor<'p> {
    path: &'p Path,
    findings: Vec<Finding>,
}

impl Visitor<'_> {
    fn find(&mut self, span: proc_macro2::Span, message: String) {
        self.findings.push(Finding::new(self.path, span.start().line, message));
    }

    fn check_function(&mut self, signature: &syn::Signature) {
        let name = signature.ident.to_string();
        if EMPTY_FUNCTIONS.contains(&name.as_str()) {
            self.find(signature.span(), format!("`{name}` does not say what the function does"));
        }
        if signature.inputs.iter().any(is_bool) && !is_test_code(self.path) {
            self.find(signature.span(), format!("`{name}` takes a `bool`: make two functions or an enum of it"));
        }
    }

    fn check_type_name(&mut self, name: &proc_macro2::Ident) {
        if let Some(word) = empty_word(&name.to_string()) {
            self.find(name.span(), format!("the name `{name}` says `{word}`, which is no concept"));
        }
    }
}

fn is_bool(input: &syn::FnArg) -> bool {
    let syn::FnArg::Typed(input) = input else { return false };
    matches!(&*input.ty, syn::Type::Path(path) if path.path.is_ident("bool"))
}

fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    let is_cfg_test = |attribute: &syn::Attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        list.path.is_ident("cfg") && list.tokens.to_string() == "test"
    };
    attributes.iter().any(is_cfg_test)
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.check_function(&item.sig);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.check_function(&item.sig);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if item.default.is_some() {
            self.check_function(&item.sig);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.check_type_name(&item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.check_type_name(&item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.check_type_name(&item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if is_test_only(&field.attrs) {
            self.find(field.span(), "a field only for tests: pass the clock, the RNG, the engine in".to_owned());
        }
        visit::visit_field(self, field);
    }

    fn visit_fn_arg(&mut self, input: &'ast syn::FnArg) {
        if let syn::FnArg::Typed(typed) = input
            && is_test_only(&typed.attrs)
        {
            self.find(typed.span(), "a parameter only for tests: pass the clock, the RNG, the engine in".to_owned());
        }
        visit::visit_fn_arg(self, input);
    }
}
