//! Loops of a template that search among the messages, ended where they can find nothing more.
//!
//! jinja2 has no `break` of its own, so templates look at every other message for each message: at all earlier ones,
//! under `{% if not ns.found %}`, or at all later ones, to set a flag again and again. Their cost grows with the square
//! of the number of messages. A `break` is added where the rest of such a loop changes nothing. Behind a message from
//! which on a search found nothing, the same search is left out.

use super::pieces::{Piece, token};

/// Words of a condition that are no names.
const KEYWORDS: [&str; 9] = ["and", "or", "not", "in", "is", "defined", "none", "true", "false"];

/// An `if` or a `for`, by the indexes of its pieces.
#[derive(Debug, Default)]
struct Block {
    /// The `elif` and `else` of an `if`.
    others: Vec<usize>,
    end: usize,
    /// The loop around it.
    outer: Option<usize>,
}

/// Ends each loop that searches.
///
/// Cost: O(n).
pub(super) fn end_searches(pieces: &mut [Piece]) {
    let blocks = blocks(pieces);
    for start in 0..pieces.len() {
        if !pieces[start].begins("for") || pieces[start].statement().ends_with("recursive") {
            continue;
        }
        let Some(condition) = next_tag(pieces, start).filter(|at| pieces[*at].begins("if")) else { continue };
        let (Some(of_for), Some(of_if)) = (&blocks[start], &blocks[condition]) else { continue };
        if next_tag(pieces, of_if.end) != Some(of_for.end) {
            continue;
        }
        match last_constant(pieces, condition, of_if) {
            Some(last) => {
                leave_out_searches(pieces, start, of_for, condition, last);
                // Later turns could only set the same values.
                append(&mut pieces[last], "{% break %}");
            }
            None => end_search(pieces, start, condition, of_if),
        }
    }
}

/// Adds a `break` to a loop whose body is an `if` and nothing else, if its condition stays false.
fn end_search(pieces: &mut [Piece], start: usize, condition: usize, of_if: &Block) {
    let condition_text = pieces[condition].statement()["if".len()..].trim();
    let is_fixed = |name: &str| is_fixed(name, pieces[start].statement());
    let has_others = !of_if.others.is_empty();
    let is_empty = next_tag(pieces, condition) == of_if.others.first().copied();
    if condition_text.strip_prefix("not ").is_some_and(|name| is_fixed(name.trim())) && !has_others {
        // Once it is false, no later turn of the loop changes anything.
        prepend(&mut pieces[of_if.end], "else %}{% break");
    } else if is_fixed(condition_text) && has_others && is_empty {
        append(&mut pieces[condition], "{% break %}");
    }
}

/// Leaves out a search among later messages if the same search among more of them has found nothing.
///
/// Such a loop goes through `list[loop.index:]` within one through `list`, and its condition reads only the item.
fn leave_out_searches(pieces: &mut [Piece], start: usize, of_for: &Block, condition: usize, last: usize) {
    let Some(outer) = of_for.outer else { return };
    let (Some((_, outer_list)), Some((item, list))) = (target(&pieces[outer]), target(&pieces[start])) else { return };
    let is_later = list.strip_suffix("[loop.index:]") == Some(outer_list) && is_word(outer_list);
    let sets_list = |piece: &Piece| {
        let name = piece.statement().strip_prefix("set ").map(|set| set.split('=').next().unwrap_or_default().trim());
        name == Some(outer_list)
    };
    if !is_later || !reads_only(&pieces[condition], item) || pieces[outer..start].iter().any(sets_list) {
        return;
    }
    let name = format!("searched_{start}");
    prepend(&mut pieces[outer], &format!("set {name} = namespace(in_vain=false)"));
    prepend(&mut pieces[start], &format!("if not {name}.in_vain %}}{{% set {name}.in_vain = true"));
    append(&mut pieces[last], &format!("{{% set {name}.in_vain = false %}}"));
    append_with_mark(&mut pieces[of_for.end], "endif");
}

/// Puts statements in front of a tag; the white space around them is treated as before.
fn prepend(piece: &mut Piece, statements: &str) {
    let Piece::Tag(tag) = piece else { return };
    let mark = if tag.starts_with("{%-") {
        "-"
    } else if tag.starts_with("{%+") {
        "+"
    } else {
        ""
    };
    *tag = format!("{{%{mark} {statements} %}}{{%-{}", &tag["{%".len() + mark.len()..]);
}

/// Puts statements behind a tag, of whose kind no text follows.
fn append(piece: &mut Piece, tags: &str) {
    if let Piece::Tag(tag) = piece {
        tag.push_str(tags);
    }
}

/// Puts a statement behind a tag; the white space behind them is treated as before.
fn append_with_mark(piece: &mut Piece, statement: &str) {
    let Piece::Tag(tag) = piece else { return };
    let mark = if tag.ends_with("-%}") {
        "-"
    } else if tag.ends_with("+%}") {
        "+"
    } else {
        ""
    };
    tag.push_str(&format!("{{% {statement} {mark}%}}"));
}

/// Returns the name of a loop's items and what it goes through.
fn target(piece: &Piece) -> Option<(&str, &str)> {
    let (item, list) = piece.statement().strip_prefix("for ")?.split_once(" in ")?;
    Some((item.trim(), list.trim()))
}

/// Returns whether a condition reads nothing but attributes of `item`.
fn reads_only(condition: &Piece, item: &str) -> bool {
    let condition_text = &condition.statement()["if".len()..];
    let mut is_attribute = false;
    let mut at = 0;
    while at < condition_text.len() {
        let word = &condition_text[token(condition_text, at)];
        at += word.len();
        let is_known = !is_word(word) || is_attribute || word == item || KEYWORDS.contains(&word);
        if !is_known {
            return false;
        }
        is_attribute = word == ".";
    }
    true
}

/// Returns each `if` and `for` that has an end, at the place of its first tag.
fn blocks(pieces: &[Piece]) -> Vec<Option<Block>> {
    let mut of_pieces: Vec<Option<Block>> = pieces.iter().map(|_| None).collect();
    // The open blocks, each with its place.
    let mut open: Vec<(usize, Block)> = Vec::new();
    let mut outer = None;
    for (at, piece) in pieces.iter().enumerate() {
        if piece.begins("if") || piece.begins("for") {
            open.push((at, Block { outer, ..Block::default() }));
            outer = if piece.begins("for") { Some(at) } else { outer };
        } else if piece.begins("elif") || piece.begins("else") {
            open.iter_mut().last().into_iter().for_each(|(_, block)| block.others.push(at));
        } else if piece.begins("endif") || piece.begins("endfor") {
            let Some((start, block)) = open.pop() else { continue };
            outer = block.outer;
            if pieces[start].begins("if") == piece.begins("endif") {
                of_pieces[start] = Some(Block { end: at, ..block });
            }
        }
    }
    of_pieces
}

/// Returns the tag behind another one if nothing is rendered between them.
fn next_tag(pieces: &[Piece], at: usize) -> Option<usize> {
    let (Piece::Text(text), next @ Piece::Tag(_)) = (pieces.get(at + 1)?, pieces.get(at + 2)?) else { return None };
    let (before, behind) = (pieces[at].source(), next.source());
    let is_removed = before.ends_with("-%}") || behind.starts_with("{%-");
    // The newline behind a block goes, and the white space before one at the beginning of a line.
    let line = text.strip_prefix('\n').filter(|_| !before.ends_with("+%}") && !behind.starts_with("{%+"));
    let is_trimmed = line.is_some_and(|line| line.trim_matches([' ', '\t']).is_empty());
    (text.is_empty() || (is_removed && text.trim().is_empty()) || is_trimmed).then_some(at + 2)
}

/// Returns whether an expression is a name, or attributes of one, that no turn of a loop defines.
fn is_fixed(expression: &str, loop_statement: &str) -> bool {
    let targets = loop_statement["for".len()..].split(" in ").next().unwrap_or_default();
    let name = expression.split('.').next().unwrap_or_default();
    let is_target = targets.split(|c: char| !c.is_alphanumeric() && c != '_').any(|target| target == name);
    expression.split('.').all(is_word) && name != "loop" && !is_target
}

fn is_word(word: &str) -> bool {
    let is_letter = |c: char| c.is_alphabetic() || c == '_';
    word.starts_with(is_letter) && word.chars().all(|c| is_letter(c) || c.is_numeric())
}

/// Returns the last tag of an `if` that has one branch, only sets attributes to constants, and calls nothing.
fn last_constant(pieces: &[Piece], condition: usize, of_if: &Block) -> Option<usize> {
    let is_constant = |at: usize| {
        let statement = pieces[at].statement().strip_prefix("set ")?;
        let (name, value) = statement.split_once('=')?;
        let value = value.trim();
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let is_literal = ["true", "false", "none", "True", "False", "None"].contains(&value) || is_number;
        (name.contains('.') && is_literal).then_some(())
    };
    let mut last = None;
    let mut at = next_tag(pieces, condition)?;
    while at != of_if.end {
        is_constant(at)?;
        last = Some(at);
        at = next_tag(pieces, at)?;
    }
    last.filter(|_| of_if.others.is_empty() && !pieces[condition].statement().contains('('))
}

#[cfg(test)]
mod tests {
    use super::super::for_minijinja;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        assert_eq!(for_minijinja(source), expected, "{source:?}");
    }

    #[test]
    fn a_loop_ends_once_its_condition_stays_false() {
        check(
            "{% for m in x %}\n  {%- if not ns.found -%}\n a {{ m }} {% endif -%} {% endfor %}",
            "{% for m in x %}\n  {%- if not ns.found -%}\n a {{ m }} {% else %}{% break %}{%- endif -%} {% endfor %}",
        );
        check(
            "{%- for k in x -%}{%- if ns.stopped -%} {%- elif k -%}{{ k }}{%- endif -%}{%- endfor -%}",
            "{%- for k in x -%}{%- if ns.stopped -%}{% break %} {%- elif k -%}{{ k }}{%- endif -%}{%- endfor -%}",
        );
    }

    #[test]
    fn a_loop_that_sets_a_flag_ends_once_it_is_set() {
        check(
            "{% for m in x[loop.index:] %}\n{% if m.role == 'a' and 'b' not in m %}\n  {% set ns.found = true %}\n{% endif %}\n{% endfor %}",
            "{% for m in x[loop.index:] %}\n{% if m.role == 'a' and 'b' not in m %}\n  {% set ns.found = true %}{% break %}\n{% endif %}\n{% endfor %}",
        );
    }

    #[test]
    fn a_search_is_left_out_where_a_longer_one_found_nothing() {
        check(
            "{%- for m in x %}{% set ns = namespace(a=false) %}{% for f in x[loop.index:] %}{% if f.role == 'a' %}{% set ns.a = true %}{% endif %}{% endfor -%}{% endfor %}",
            "{%- set searched_5 = namespace(in_vain=false) %}{%- for m in x %}{% set ns = namespace(a=false) %}\
             {% if not searched_5.in_vain %}{% set searched_5.in_vain = true %}{%- for f in x[loop.index:] %}{% if f.role == 'a' %}\
             {% set ns.a = true %}{% set searched_5.in_vain = false %}{% break %}{% endif %}{% endfor -%}{% endif -%}{% endfor %}",
        );
        let plain = |list: &str, test: &str, list_set: &str| {
            let start =
                format!("{{% for m in x %}}{list_set}{{% for f in {list} %}}{{% if {test} %}}{{% set ns.a = 1 %}}");
            check(
                &format!("{start}{{% endif %}}{{% endfor %}}{{% endfor %}}"),
                &format!("{start}{{% break %}}{{% endif %}}{{% endfor %}}{{% endfor %}}"),
            );
        };
        plain("y[loop.index:]", "f.a", "");
        plain("x[loop.index0:]", "f.a", "");
        plain("x[loop.index:]", "f.a == m.a", "");
        plain("x[loop.index:]", "f.a", "{% set x = y %}");
    }

    #[test]
    fn other_loops_stay_as_they_are() {
        for same in [
            "{% for m in x %}{% if not m.found %}a{% endif %}{% endfor %}",
            "{% for m in x %}{% if not loop.first %}a{% endif %}{% endfor %}",
            "{% for m in x %}{% if not ns.found %}a{% else %}b{% endif %}{% endfor %}",
            "{% for m in x %} {% if not ns.found %}a{% endif %}{% endfor %}",
            "{% for m in x %}{% if not ns.found %}a{% endif %}\n\n{% endfor %}",
            "{% for m in x %}{% if not ns.found %}a{% endif %}{{ m }}{% endfor %}",
            "{% for m in x %}{% if not f(ns) %}a{% endif %}{% endfor %}",
            "{% for m in x %}{% if ns.found %}a{% elif m %}b{% endif %}{% endfor %}",
            "{% for m in x %}{% if m.a %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}",
            "{% for m in x %}{% if m.a %}{% set ns.n = m %}{% endif %}{% endfor %}",
            "{% for m in x %}{% if m.a %}{% set ns.n = 1 %}b{% endif %}{% endfor %}",
            "{% for m in x %}{% if raise_exception(m) %}{% set ns.n = 1 %}{% endif %}{% endfor %}",
            "{% for m in x recursive %}{% if not ns.found %}a{% endif %}{% endfor %}",
            "{% for m in x %}{% if not ns.found %}a{% endif %}",
            "{% endif %}{% else %}{% for %}{% if %}{% endfor %}",
        ] {
            check(same, same);
        }
    }
}
