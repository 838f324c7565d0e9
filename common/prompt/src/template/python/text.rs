//! Python's methods of texts, lists and dicts that minijinja-contrib lacks or has with other results, and jinja2's
//! filters of texts.

use minijinja::value::{Kwargs, StringInput, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Characters between which Python's `splitlines` cuts. Source: Python's documentation of `str.splitlines`.
const LINE_ENDS: [char; 10] =
    ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];

/// End of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Left,
    Right,
}

/// Calls a method that a value has in Python.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let result = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => text_method(state, text, name, args)?,
        (ValueKind::Seq, _) => list_method(value, name, args)?,
        (ValueKind::Map, _) if name == "copy" => Some(value.clone()),
        _ => None,
    };
    result.map_or_else(|| unknown_method_callback(state, value, name, args), Ok)
}

/// Formats a text as Python's operator `%` does.
pub(super) fn percent_format(state: &mut State, text: &Value, value: &Value) -> Result<Value, Error> {
    let mut args = vec![text.clone()];
    match value.downcast_object_ref::<Tuple>() {
        Some(_) => args.extend(value.try_iter()?),
        None => args.push(value.clone()),
    }
    // It pays for a wide result in advance.
    state.apply_filter("format", &args)
}

/// Removes characters from both ends, white space by default.
pub(super) fn trim(text: StringInput<'_>, characters: Option<&str>) -> String {
    let text = stripped(text.as_str(), characters, End::Left);
    stripped(text, characters, End::Right).to_owned()
}

/// Indents every line but the first one.
///
/// Source: jinja2's `do_indent`.
pub(super) fn indent(
    state: &State,
    text: StringInput<'_>,
    width: Option<Value>,
    first: Option<bool>,
    args: Kwargs,
) -> Result<String, Error> {
    let width = width.map_or_else(|| args.get("width"), |width| Ok(Some(width)))?;
    let is_first_indented = first.map_or_else(|| args.get("first"), |first| Ok(Some(first)))?.unwrap_or(false);
    let are_blank_indented = args.get::<Option<bool>>("blank")?.unwrap_or(false);
    args.assert_all_used()?;
    let indentation = match width {
        None => " ".repeat(4),
        Some(text) if text.as_str().is_some() => text.to_string(),
        Some(width) => padding(state, ' ', usize::try_from(width)?)?,
    };
    let text = format!("{}\n", text.as_str());
    let lines: Vec<&str> = lines(&text).into_iter().map(|(line, _)| line).collect();
    pay(state, lines.len() * indentation.len())?;
    let mut output = if is_first_indented { indentation.clone() } else { String::new() };
    for (line_idx, line) in lines.into_iter().enumerate() {
        if line_idx > 0 {
            output.push('\n');
            if are_blank_indented || !line.is_empty() {
                output.push_str(&indentation);
            }
        }
        output.push_str(line);
    }
    Ok(output)
}

fn text_method(state: &State, text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (characters,): (Option<&str>,) = from_args(args)?;
            let text = if name == "rstrip" { text } else { stripped(text, characters, End::Left) };
            Value::from(if name == "lstrip" { text } else { stripped(text, characters, End::Right) })
        }
        "split" => split(text, args, End::Left)?,
        "rsplit" => split(text, args, End::Right)?,
        "splitlines" => {
            let (keeps_ends, args): (Option<bool>, Kwargs) = from_args(args)?;
            let keeps_ends = keeps_ends.map_or_else(|| args.get("keepends"), |keeps| Ok(Some(keeps)))?;
            let line =
                |(line, end)| if keeps_ends == Some(true) { format!("{line}{end}") } else { str::to_owned(line) };
            Value::from(lines(text).into_iter().map(line).collect::<Vec<_>>())
        }
        "index" | "rindex" => {
            let (wanted,): (&str,) = from_args(args)?;
            let at = if name == "index" { text.find(wanted) } else { text.rfind(wanted) };
            let at = at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = match name {
                "partition" => text.split_once(separator).unwrap_or((text, "")),
                _ => text.rsplit_once(separator).unwrap_or(("", text)),
            };
            let separator = if text.contains(separator) { separator } else { "" };
            Value::from(Tuple::from([parts.0, separator, parts.1].map(Value::from).to_vec()))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "ljust" | "rjust" | "zfill" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            let fill = fill.unwrap_or(if name == "zfill" { '0' } else { ' ' });
            let padding = padding(state, fill, width.saturating_sub(text.chars().count()))?;
            let (sign, digits) = text.split_at(usize::from(name == "zfill" && text.starts_with(['-', '+'])));
            Value::from(if name == "ljust" { format!("{text}{padding}") } else { format!("{sign}{padding}{digits}") })
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase())
        }
        _ => return Ok(None),
    }))
}

fn list_method(list: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match name {
        "copy" => Ok(Some(list.clone())),
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            let at = list.try_iter()?.position(|item| item == *wanted);
            at.map(|at| Some(Value::from(at)))
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("{wanted} is not in list")))
        }
        _ => Ok(None),
    }
}

/// Returns Python's `split`, which counts its cuts from the left, or `rsplit`.
fn split(text: &str, args: &[Value], counted_from: End) -> Result<Value, Error> {
    let (separator, n_max, args): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.map_or_else(|| args.get("sep"), |separator| Ok(Some(separator)))?;
    let n_max = n_max.map_or_else(|| args.get("maxsplit"), |n| Ok(Some(n)))?;
    args.assert_all_used()?;
    let n_parts = n_max.and_then(|n| usize::try_from(n).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
    let mut parts: Vec<&str> = match separator.as_ref().filter(|separator| !separator.is_none()) {
        None => split_at_space(text, n_parts, counted_from),
        Some(separator) => match (separator.as_str(), counted_from) {
            (Some(""), _) => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
            (Some(separator), End::Left) => text.splitn(n_parts, separator).collect(),
            (Some(separator), End::Right) => text.rsplitn(n_parts, separator).collect(),
            (None, _) => return Err(Error::new(ErrorKind::InvalidOperation, "the separator must be a string")),
        },
    };
    if counted_from == End::Right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Returns at most `n_parts` parts between runs of white space, in the order in which they are counted.
fn split_at_space(text: &str, n_parts: usize, counted_from: End) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut remainder = stripped(text, None, counted_from);
    while !remainder.is_empty() {
        let cut = match counted_from {
            _ if parts.len() + 1 == n_parts => None,
            End::Left => remainder.find(is_space).map(|end| (&remainder[..end], &remainder[end..])),
            End::Right => remainder.char_indices().rfind(|(_, character)| is_space(*character)).map(|(at, space)| {
                let start = at + space.len_utf8();
                (&remainder[start..], &remainder[..start])
            }),
        };
        let Some((part, behind)) = cut else {
            parts.push(remainder);
            break;
        };
        parts.push(part);
        remainder = stripped(behind, None, counted_from);
    }
    parts
}

/// Returns a text without these characters, or white space, at one end.
fn stripped<'t>(text: &'t str, characters: Option<&str>, end: End) -> &'t str {
    let is_removed = |character| characters.map_or_else(|| is_space(character), |all| all.contains(character));
    match end {
        End::Left => text.trim_start_matches(is_removed),
        End::Right => text.trim_end_matches(is_removed),
    }
}

/// Returns whether a character is white space in Python, which counts the four separators of ASCII.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Returns the lines of a text, each with its end.
fn lines(text: &str) -> Vec<(&str, &str)> {
    let mut lines = Vec::new();
    let mut remainder = text;
    while let Some(at) = remainder.find(LINE_ENDS) {
        let first = remainder[at..].chars().next().map_or(0, char::len_utf8);
        let length = if remainder[at..].starts_with("\r\n") { 2 } else { first };
        lines.push((&remainder[..at], &remainder[at..at + length]));
        remainder = &remainder[at + length..];
    }
    if !remainder.is_empty() {
        lines.push((remainder, ""));
    }
    lines
}

fn padding(state: &State, fill: char, width: usize) -> Result<String, Error> {
    pay(state, width.saturating_mul(fill.len_utf8()))?;
    Ok(fill.to_string().repeat(width))
}

/// Uses up the fuel for a text before it takes memory. Source: minijinja's fuel pays for 64 bytes.
fn pay(state: &State, n_bytes: usize) -> Result<(), Error> {
    state.consume_fuel(u64::try_from(n_bytes / 64).unwrap_or(u64::MAX))
}
