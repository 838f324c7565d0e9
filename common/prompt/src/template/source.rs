//! A template's source in the form in which minijinja reads it as jinja2 does.
//!
//! Newlines become LF; the newline behind `{% raw %}` stays; `{% generation %}`, which only marks training data, does
//! nothing; `'%02d' % n` calls a filter, because minijinja's `%` takes numbers only.

mod pieces;
mod searches;

use pieces::{Piece, statement, token};
use searches::end_searches;

/// Name of the filter that formats a text as Python's `%` does.
pub(super) const PERCENT_FILTER: &str = "percent_format";

/// Most operators `%` within each other's operands. Source: own choice: each of them reads its operand once more.
const PERCENT_DEPTH_MAX: usize = 16;

/// Returns a source that minijinja renders like jinja2 renders `source`.
///
/// A source that is no template stays one: minijinja reports where it ends too early.
/// Cost: O(n).
pub(super) fn for_minijinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut pieces = Vec::new();
    let mut input = source.as_str();
    while let Some(start) = find_tag(input) {
        pieces.push(Piece::Text(input[..start].to_owned()));
        input = &input[start..];
        // Where the tag ends; an end within a string or in brackets does not count.
        let length = match &input[..2] {
            "{#" => input.find("#}").map(|end| end + 2),
            "{{" => expression_length(&input[2..], "}}").map(|inner| inner + 4),
            _ => expression_length(&input[2..], "%}").map(|inner| inner + 4),
        };
        let Some(length) = length else { break };
        let (tag, behind) = input.split_at(length);
        input = behind;
        // What minijinja reads otherwise is written otherwise.
        pieces.push(match statement(tag) {
            "generation" => Piece::Tag(tag.replace("generation", "if true")),
            "endgeneration" => Piece::Tag(tag.replace("endgeneration", "endif")),
            "raw" => {
                let (raw, behind) = input.split_at(raw_length(input));
                input = behind;
                Piece::Other(format!("{}{raw}", kept_newline(tag)))
            }
            _ if tag.starts_with("{%") => Piece::Tag(with_percent_filter(tag)),
            _ if tag.starts_with("{{") => Piece::Other(with_percent_filter(tag)),
            _ => Piece::Other(tag.to_owned()),
        });
    }
    pieces.push(Piece::Text(input.to_owned()));
    end_searches(&mut pieces);
    pieces.iter().map(Piece::source).collect()
}

/// Returns the tag that begins a raw block, with a plus, so that the newline behind it stays as in jinja2.
fn kept_newline(tag: &str) -> String {
    let inner = &tag[..tag.len() - 2];
    let plus = if inner.ends_with(['-', '+']) { "" } else { "+" };
    format!("{inner}{plus}%}}")
}

/// Returns the position of the next tag, expression or comment.
fn find_tag(text: &str) -> Option<usize> {
    let is_start = |at: &usize| matches!(text.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#'));
    text.match_indices('{').map(|(at, _)| at).find(is_start)
}

/// Returns the length of an expression up to `end`, which does not count within a string or brackets.
fn expression_length(text: &str, end: &str) -> Option<usize> {
    let mut at = 0;
    let mut depth = 0_usize;
    while at < text.len() {
        if depth == 0 && text[at..].starts_with(end) {
            return Some(at);
        }
        let next = token(text, at);
        match text.as_bytes()[at] {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at = next.end;
    }
    None
}

/// Returns the length of a raw block, up to the tag that ends it.
fn raw_length(text: &str) -> usize {
    let is_end = |at: &usize| {
        let behind = text[at + 2..].trim_start_matches(['-', '+']).trim_start().strip_prefix("endraw");
        behind.is_some_and(|behind| behind.trim_start().trim_start_matches(['-', '+']).starts_with("%}"))
    };
    text.match_indices("{%").map(|(at, _)| at).find(is_end).unwrap_or(text.len())
}

/// Returns an expression or tag in which a filter takes the place of `%` behind a string literal.
fn with_percent_filter(tag: &str) -> String {
    let mut output = String::with_capacity(tag.len());
    let mut at = 0;
    // Ends of the operands that are being read.
    let mut ends: Vec<usize> = Vec::new();
    while at < tag.len() {
        while ends.pop_if(|end| *end == at).is_some() {
            output.push(')');
        }
        let range = token(tag, at);
        output.push_str(&tag[range.clone()]);
        at = range.end;
        if !tag[range].starts_with(['"', '\'']) || ends.len() == PERCENT_DEPTH_MAX {
            continue;
        }
        let operator = at + space(&tag[at..]);
        if tag[operator..].starts_with('%') && !tag[operator..].starts_with("%}") {
            at = operator + 1 + space(&tag[operator + 1..]);
            ends.push(operand_end(tag, at));
            output.push_str(&format!("|{PERCENT_FILTER}("));
        }
    }
    output
}

fn space(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// Returns the end of the operand at `start`: a sign, a literal, name or bracket, and its attributes, calls, filters.
fn operand_end(text: &str, start: usize) -> usize {
    let mut at = start;
    if text[at..].starts_with(['-', '+']) {
        at += 1 + space(&text[at + 1..]);
    }
    at = group_end(text, at);
    loop {
        let next = at + space(&text[at..]);
        let is_named = text[next..].starts_with(['.', '|']);
        if !is_named && !text[next..].starts_with(['(', '[']) {
            return at;
        }
        let next = if is_named { next + 1 + space(&text[next + 1..]) } else { next };
        let end = group_end(text, next);
        if end == next {
            return at;
        }
        at = end;
    }
}

/// Returns the end of the token at `start`, or of the bracket that it opens.
fn group_end(text: &str, start: usize) -> usize {
    let closing = match text[start..].chars().next() {
        None => return start,
        Some('(') => ")",
        Some('[') => "]",
        Some('{') => "}",
        Some(_) => return token(text, start).end,
    };
    expression_length(&text[start + 1..], closing).map_or(text.len(), |inner| start + inner + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        assert_eq!(for_minijinja(source), expected, "{source:?}");
    }

    #[test]
    fn newlines_become_line_feeds() {
        check("a\r\nb\rc\n{{ 'd\r\n' }}", "a\nb\nc\n{{ 'd\n' }}");
    }

    #[test]
    fn the_newline_behind_raw_stays_and_the_block_is_untouched() {
        check(
            "{% raw %}\n{{ 'a' % b }}{% generation %}{%- endraw -%}\n",
            "{% raw +%}\n{{ 'a' % b }}{% generation %}{%- endraw -%}\n",
        );
        check("{%- raw -%} {% endraw %}", "{%- raw -%} {% endraw %}");
        check("{% raw %} {{", "{% raw +%} {{");
    }

    #[test]
    fn tags_in_comments_and_strings_are_none() {
        check(
            "{# {% generation %} #}{{ '{% raw %}' }}{% if '%}' %}{% endif %}",
            "{# {% generation %} #}{{ '{% raw %}' }}{% if '%}' %}{% endif %}",
        );
        check("{% generation %}{{ {'a': {}} }}{%- endgeneration -%}", "{% if true %}{{ {'a': {}} }}{%- endif -%}");
        check("{%}", "{%}");
        check("{{ 'open", "{{ 'open");
    }

    #[test]
    fn percent_behind_a_literal_is_a_filter_of_its_operand() {
        let calls = |operand: &str| format!("{{{{ 'x%d'|percent_format({operand}) }}}}");
        for operand in ["n", "-n", "ns.count", "(a, 'b)')", "f(x)[0] | int", "{'a': [1]}", "message['n']", "1.5"] {
            check(&format!("{{{{ 'x%d' % {operand} }}}}"), &calls(operand));
        }
        check("{% set a = 'x%d'%n ~ \"y\" %}", "{% set a = 'x%d'|percent_format(n) ~ \"y\" %}");
        check("{{ '%s' % ('%d' % n) }}", "{{ '%s'|percent_format(('%d'|percent_format(n))) }}");
        for same in ["{% if x == 'a' %}", "{{ a % b }}", "{{ 'it\\'s' }}", "{{ n % 2 == 'a' -%}}"] {
            check(same, same);
        }
    }
}
