//! Conversion of JSON Schema's regular expressions, which match anywhere in a string, to expressions for whole strings
//! in Lark's syntax.

use regex_syntax::Parser;
use regex_syntax::hir::{Hir, HirKind, Look};

/// Text around a match.
const ANYTHING: &str = "(?s:.*)";

/// Returns the expression of the strings that contain a match of a pattern.
///
/// Errors: it does not parse, or has unsupported anchors; for the client.
pub(super) fn search(pattern: &str) -> Result<String, String> {
    // ECMAScript's classes are ASCII only.
    let pattern = llguidance::regex_to_lark(pattern, "dw");
    let parsed = Parser::new().parse(&pattern).map_err(|error| one_line(&error.to_string()))?;
    Ok(in_lark(&whole(&parsed)?))
}

/// Returns a text as an expression.
pub(super) fn escaped(text: &str) -> String {
    in_lark(&format!("(?:{})", regex_syntax::escape(text)))
}

/// Returns the expression of whole strings that contain a match of another expression.
fn whole(hir: &Hir) -> Result<String, String> {
    match hir.kind() {
        HirKind::Alternation(alternatives) => {
            let each: Result<Vec<String>, String> = alternatives.iter().map(whole).collect();
            Ok(format!("(?:{})", each?.join("|")))
        }
        HirKind::Capture(capture) => whole(&capture.sub),
        HirKind::Concat(parts) => anchored(parts),
        _ => anchored(std::slice::from_ref(hir)),
    }
}

/// Returns the expression of whole strings that contain matches of these parts one after the other.
fn anchored(parts: &[Hir]) -> Result<String, String> {
    let is = |part: &Hir, anchor: Look| *part.kind() == HirKind::Look(anchor);
    let n_start = parts.iter().take_while(|part| is(part, Look::Start)).count();
    let n_end = parts[n_start..].iter().rev().take_while(|part| is(part, Look::End)).count();
    let inner = &parts[n_start..parts.len() - n_end];
    if inner.iter().any(|part| !part.properties().look_set().is_empty()) {
        return Err("anchors are supported at the ends of a pattern and of its alternatives".to_owned());
    }
    let (before, behind) = (if n_start > 0 { "" } else { ANYTHING }, if n_end > 0 { "" } else { ANYTHING });
    let inner: String = inner.iter().map(|part| format!("(?:{part})")).collect();
    Ok(format!("{before}{inner}{behind}"))
}

/// Returns an expression in which characters that would end it in Lark's syntax, or break its line, are escaped.
fn in_lark(expression: &str) -> String {
    let mut escaped = String::with_capacity(expression.len());
    let mut is_quoted = false;
    for c in expression.chars() {
        match c {
            '/' if !is_quoted => escaped.push_str("\\/"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            c => escaped.push(c),
        }
        is_quoted = c == '\\' && !is_quoted;
    }
    escaped
}

fn one_line(error: &str) -> String {
    let is_word = |line: &&str| !line.is_empty() && !line.chars().all(|c| c == '^');
    error.lines().map(str::trim).filter(is_word).collect::<Vec<_>>().join(" ")
}
