//! Loops of a template that search among the messages, ended where they can find nothing more.
//!
//! jinja2 has no `break` of its own, so templates look at every other message for each message: at all earlier ones,
//! under `{% if not ns.found %}`, or at all later ones, to set a flag again and again. Their cost grows with the square
//! of the number of messages. A `break` is added where the rest of such a loop changes nothing. Not here: the reading of
//! a source (`source`).

use super::source::statement;

/// A part of a template's source.
#[derive(Debug)]
pub(super) enum Piece {
    /// Text between tags.
    Text(String),
    /// A statement: `{% ... %}`.
    Tag(String),
    /// An expression, a comment or a raw block.
    Other(String),
}

/// An `if` with its branches, by the indexes of their pieces.
#[derive(Debug, Default)]
struct Branches {
    /// Its `elif` and `else`.
    others: Vec<usize>,
    end: usize,
}

impl Piece {
    /// Returns the source of the piece.
    pub fn source(&self) -> &str {
        let (Self::Text(source) | Self::Tag(source) | Self::Other(source)) = self;
        source
    }

    /// Returns the statement of a tag; empty for anything else.
    fn statement(&self) -> &str {
        if let Self::Tag(tag) = self { statement(tag) } else { "" }
    }

    fn begins(&self, word: &str) -> bool {
        self.statement()
            .strip_prefix(word)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    }
}

/// Adds a `break` to each loop that searches.
///
/// Cost: O(n).
pub(super) fn end_searches(pieces: &mut [Piece]) {
    let branches = branches(pieces);
    for start in 0..pieces.len() {
        if !pieces[start].begins("for") || pieces[start].statement().ends_with("recursive") {
            continue;
        }
        let Some(condition) = next_tag(pieces, start).filter(|at| pieces[*at].begins("if")) else { continue };
        let Some(of_if) = &branches[condition] else { continue };
        if next_tag(pieces, of_if.end).is_some_and(|at| pieces[at].statement() == "endfor") {
            end_search(pieces, start, condition, of_if);
        }
    }
}

/// Adds a `break` to a loop whose body is an `if` and nothing else, if the loop searches.
fn end_search(pieces: &mut [Piece], start: usize, condition: usize, of_if: &Branches) {
    let tested = pieces[condition].statement()["if".len()..].trim().to_owned();
    let is_fixed = |name: &str| is_fixed(name, pieces[start].statement());
    let has_others = !of_if.others.is_empty();
    let is_empty = next_tag(pieces, condition) == of_if.others.first().copied();
    if tested.strip_prefix("not ").is_some_and(|name| is_fixed(name.trim())) && !has_others {
        // Once it is false, no later turn of the loop changes anything.
        let Piece::Tag(end) = &mut pieces[of_if.end] else { return };
        let mark = if end.starts_with("{%-") {
            "-"
        } else if end.starts_with("{%+") {
            "+"
        } else {
            ""
        };
        let inner = end["{%".len() + mark.len()..].to_owned();
        *end = format!("{{%{mark} else %}}{{% break %}}{{%- {inner}");
    } else if is_fixed(&tested) && has_others && is_empty {
        break_behind(&mut pieces[condition]);
    } else if let Some(last) = last_constant(pieces, condition, of_if).filter(|_| !tested.contains('(')) {
        // Later turns could only set the same values.
        break_behind(&mut pieces[last]);
    }
}

fn break_behind(piece: &mut Piece) {
    if let Piece::Tag(tag) = piece {
        tag.push_str("{% break %}");
    }
}

/// Returns the branches of each `if` that has an end.
fn branches(pieces: &[Piece]) -> Vec<Option<Branches>> {
    let mut of_pieces: Vec<Option<Branches>> = pieces.iter().map(|_| None).collect();
    // For each open block, its place and, of an `if`, its branches.
    let mut open: Vec<(usize, Branches)> = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        if piece.begins("if") || piece.begins("for") {
            open.push((at, Branches::default()));
        } else if piece.begins("elif") || piece.begins("else") {
            open.iter_mut().last().into_iter().for_each(|(_, branches)| branches.others.push(at));
        } else if piece.begins("endif") || piece.begins("endfor") {
            let Some((start, branches)) = open.pop() else { continue };
            if pieces[start].begins("if") && piece.begins("endif") {
                of_pieces[start] = Some(Branches { end: at, ..branches });
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
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && word.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    let targets = loop_statement["for".len()..].split(" in ").next().unwrap_or_default();
    let name = expression.split('.').next().unwrap_or_default();
    let is_target = targets.split(|c: char| !c.is_alphanumeric() && c != '_').any(|target| target == name);
    expression.split('.').all(is_word) && name != "loop" && !is_target
}

/// Returns the last tag of an `if` that has one branch and only sets attributes to constants.
fn last_constant(pieces: &[Piece], condition: usize, of_if: &Branches) -> Option<usize> {
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
    last.filter(|_| of_if.others.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::source::for_minijinja;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        assert_eq!(for_minijinja(source), expected, "{source:?}");
    }

    #[test]
    fn a_loop_ends_once_its_condition_stays_false() {
        check(
            "{% for m in x %}\n  {%- if not ns.found -%}\n a {{ m }} {% endif -%} {% endfor %}",
            "{% for m in x %}\n  {%- if not ns.found -%}\n a {{ m }} {% else %}{% break %}{%-  endif -%} {% endfor %}",
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
