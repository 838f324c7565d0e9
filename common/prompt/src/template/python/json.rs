//! `tojson` as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`.
//!
//! The text is written like CPython's encoder, down to its separators and its format of floats.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Layout of a JSON text.
struct Layout {
    /// Text of one level of indentation; `None` puts everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

/// Deepest nesting of a value.
///
/// Source: serde_json, which has parsed every value that comes from a request, refuses more than 128 levels.
const DEPTH_MAX: usize = 200;

/// Returns `value` as JSON text.
pub(super) fn tojson(value: &Value, args: Kwargs) -> Result<Value, Error> {
    let layout = Layout::from_args(&args)?;
    args.assert_all_used()?;
    let mut text = String::new();
    write(&mut text, value, &layout, 0)?;
    Ok(Value::from(text))
}

impl Layout {
    fn from_args(args: &Kwargs) -> Result<Self, Error> {
        let ensure_ascii: Option<bool> = args.get("ensure_ascii")?;
        let sort_keys: Option<bool> = args.get("sort_keys")?;
        let separators: Option<Vec<String>> = args.get("separators")?;
        let indent: Option<Value> = args.get("indent")?;
        let indent = match indent {
            Some(value) if value.kind() == ValueKind::Number => {
                Some(" ".repeat(usize::try_from(value).unwrap_or(0).min(INDENT_MAX)))
            }
            Some(value) => value.as_str().map(str::to_owned),
            None => None,
        };
        let default_item = if indent.is_some() { "," } else { ", " };
        let mut separators = separators.unwrap_or_default().into_iter();
        Ok(Self {
            item_separator: separators.next().unwrap_or_else(|| default_item.to_owned()),
            key_separator: separators.next().unwrap_or_else(|| ": ".to_owned()),
            indent,
            sort_keys: sort_keys.unwrap_or(false),
            ensure_ascii: ensure_ascii.unwrap_or(false),
        })
    }

    fn break_line(&self, text: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            text.push('\n');
            (0..depth).for_each(|_| text.push_str(indent));
        }
    }
}

/// Widest indentation. Source: own choice: a wider one is a mistake.
const INDENT_MAX: usize = 64;

fn write(text: &mut String, value: &Value, layout: &Layout, depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested too deep"));
    }
    match value.kind() {
        ValueKind::None => text.push_str("null"),
        ValueKind::Bool => text.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => text.push_str(&number(value)),
        ValueKind::String => write_string(text, value.as_str().unwrap_or_default(), layout),
        ValueKind::Seq | ValueKind::Iterable => write_list(text, value, layout, depth)?,
        ValueKind::Map => write_map(text, value, layout, depth)?,
        other => {
            let message = format!("tojson: a value of type {other} is not JSON serializable");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(())
}

fn write_list(text: &mut String, value: &Value, layout: &Layout, depth: usize) -> Result<(), Error> {
    text.push('[');
    let mut n_items = 0;
    for item in value.try_iter()?.checked() {
        if n_items > 0 {
            text.push_str(&layout.item_separator);
        }
        n_items += 1;
        layout.break_line(text, depth + 1);
        write(text, &item?, layout, depth + 1)?;
    }
    if n_items > 0 {
        layout.break_line(text, depth);
    }
    text.push(']');
    Ok(())
}

fn write_map(text: &mut String, value: &Value, layout: &Layout, depth: usize) -> Result<(), Error> {
    let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
    if layout.sort_keys {
        keys.sort();
    }
    text.push('{');
    for (key_idx, key) in keys.iter().enumerate() {
        if key_idx > 0 {
            text.push_str(&layout.item_separator);
        }
        layout.break_line(text, depth + 1);
        match key.kind() {
            ValueKind::String => write_string(text, key.as_str().unwrap_or_default(), layout),
            _ => {
                text.push('"');
                write(text, key, layout, depth + 1)?;
                text.push('"');
            }
        }
        text.push_str(&layout.key_separator);
        write(text, &value.get_item(key)?, layout, depth + 1)?;
    }
    if !keys.is_empty() {
        layout.break_line(text, depth);
    }
    text.push('}');
    Ok(())
}

/// Writes a number as Python's `repr` does.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float_repr)
}

/// Returns Python's `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float_repr(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let magnitude = float.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = float.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

fn write_string(text: &mut String, string: &str, layout: &Layout) {
    text.push('"');
    for character in string.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            character if character < ' ' || (layout.ensure_ascii && !character.is_ascii()) => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
            character => text.push(character),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests;
