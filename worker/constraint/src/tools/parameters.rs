//! The arguments of tools in formats that write them one by one, such as Qwen 3 Coder's: the place of each argument in
//! llama.cpp's grammar of calls, and the mark that closes it.
//!
//! llama.cpp gets tools whose parameters have made-up names, and creates a rule for each. At first all of them are
//! integers, which shows the text after a value; the second time strings are strings, which may have another opening
//! text. In the resulting grammar a placeholder token beyond the vocabulary replaces each value with its closing mark,
//! and the real names replace the made-up ones.
//!
//! Not here: formats that write all arguments as one JSON value (`arguments`), a value's own grammar (`schema::value`).

use serde_json::{Map, Value, json};

use crate::schema::Typing;

/// Name of the added tool, which is not one of the request's.
const PROBE: &str = "warmpath-probe";

/// Rules of strings in formats whose parsers treat text that is valid JSON as JSON.
///
/// Source: `parsers/qwen3-coder.cpp` and `parsers/ling3.cpp` of llama.cpp.
const TYPED_STRINGS: [&str; 2] = ["xml-arg-string", "ling3-arg-string"];

/// Properties of a format that writes arguments one by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Framing {
    /// Mark that closes each argument, by tool and parameter.
    pub closes: Vec<Vec<String>>,
    /// Way in which its parser determines the type of a value that may be a string.
    pub typing: Typing,
}

/// Returns the parameters of a tool.
pub fn names(tool: &Value) -> Vec<&str> {
    let properties = tool["function"]["parameters"]["properties"].as_object();
    properties.into_iter().flat_map(Map::keys).map(String::as_str).collect()
}

/// Returns tools with made-up parameters, all of them integers, and one more tool.
pub fn probes(tools: &[Value]) -> Vec<Value> {
    let (plain, nested) = (word(tools.len(), 0), word(tools.len(), 1));
    let inner = json!({"type": "object", "properties": {"i": {"type": "integer"}}});
    let properties = json!({"s": {"type": "string"}, plain: {"type": "integer"}, nested: inner});
    let parameters = json!({"type": "object", "properties": properties});
    let probe = json!({"type": "function", "function": {"name": PROBE, "description": "", "parameters": parameters}});
    let marked = tools.iter().enumerate().map(|(idx, tool)| marked(idx, tool, |_| "integer"));
    marked.chain([probe]).collect()
}

/// Returns a tool with made-up parameters in place of its own, of the types that `type_of` gives for each index.
pub fn marked(idx: usize, tool: &Value, type_of: impl Fn(usize) -> &'static str) -> Value {
    let words = (0..names(tool).len()).map(|at| word(idx, at)).collect();
    typed(tool, words, type_of)
}

/// Returns a tool of whose schema only the names and these types are left.
pub fn simplified(tool: &Value, type_of: impl Fn(usize) -> &'static str) -> Value {
    typed(tool, names(tool).into_iter().map(str::to_owned).collect(), type_of)
}

/// Returns a tool whose parameters have these names and types instead.
fn typed(tool: &Value, new_names: Vec<String>, type_of: impl Fn(usize) -> &'static str) -> Value {
    let required = tool["function"]["parameters"]["required"].as_array();
    let is_required = |name: &str| required.is_some_and(|required| required.iter().any(|one| one == name));
    let both = || names(tool).into_iter().zip(&new_names);
    let required: Vec<&String> = both().filter(|(name, _)| is_required(name)).map(|(_, new)| new).collect();
    let properties: Map<String, Value> =
        new_names.iter().enumerate().map(|(at, name)| (name.clone(), json!({"type": type_of(at)}))).collect();
    let mut typed_tool = tool.clone();
    typed_tool["function"]["parameters"] = json!({"type": "object", "properties": properties, "required": required});
    typed_tool
}

/// Returns the properties of a format, given its grammar of calls to [`probes`]; `None` if it does not write arguments
/// one by one.
pub fn framing(grammar: &str, tools: &[Value]) -> Option<Framing> {
    let closes_of = |(idx, tool): (usize, &Value)| {
        (0..names(tool).len()).map(|at| closing(&Argument::find(grammar, &word(idx, at))?)).collect::<Option<Vec<_>>>()
    };
    // The added tool has arguments even if no other tool has any. If its object is no single value, the format writes
    // the parts of values one by one, too.
    for at in [0, 1] {
        closing(&Argument::find(grammar, &word(tools.len(), at))?)?;
    }
    let closes = tools.iter().enumerate().map(closes_of).collect::<Option<Vec<_>>>()?;
    let has_rule = |name: &str| grammar.lines().any(|line| line.starts_with(&format!("{name} ::= ")));
    let typing = if TYPED_STRINGS.into_iter().any(has_rule) { Typing::Text } else { Typing::String };
    Some(Framing { closes, typing })
}

/// Returns a grammar of calls to [`marked`] tools with the real names, and a placeholder for each value, from `first`
/// on. `values` has the indexes of tools and parameters. `None` if a value is not found.
pub fn fill(grammar: &str, tools: &[Value], values: &[(usize, usize)], first: u32) -> Option<String> {
    let mut filled_grammar = grammar.to_owned();
    for ((tool, at), token) in values.iter().zip(first..) {
        let argument = Argument::find(&filled_grammar, &word(*tool, *at))?;
        let name = names(&tools[*tool])[*at];
        let opening: Vec<String> = argument.pieces[..argument.value].iter().map(|piece| piece.renamed(name)).collect();
        let rule = format!("{} ::= {} <[{token}]>", argument.rule, opening.join(" "));
        filled_grammar = filled_grammar.replace(argument.line, &rule);
    }
    Some(filled_grammar)
}

fn word(tool: usize, at: usize) -> String {
    format!("warmpath-{tool}-{at}.")
}

/// Rule of one argument in a grammar.
struct Argument<'g> {
    line: &'g str,
    rule: &'g str,
    pieces: Vec<RulePart<'g>>,
    /// Index of the piece for its value.
    value: usize,
}

/// Part of a rule that is a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RulePart<'g> {
    /// Literal, in quotes.
    Literal(&'g str),
    /// Optional white space.
    Space(&'g str),
    /// Name of the parameter.
    Name,
    /// Another rule.
    Rule,
}

impl RulePart<'_> {
    fn renamed(&self, name: &str) -> String {
        match self {
            Self::Literal(text) | Self::Space(text) => (*text).to_owned(),
            Self::Name => quoted(name),
            Self::Rule => String::new(),
        }
    }
}

impl<'g> Argument<'g> {
    /// Returns the rule of the argument with a made-up name; `None` if no rule is a sequence for this argument alone.
    fn find(grammar: &'g str, word: &str) -> Option<Self> {
        let name = quoted(word);
        let line = grammar.lines().find(|line| line.contains(&name))?;
        let (rule, body) = line.split_once(" ::= ")?;
        if !rule.contains("-arg-") {
            return None;
        }
        let pieces = pieces(body, &name)?;
        let named = pieces.iter().position(|piece| *piece == RulePart::Name)?;
        let value = named + pieces[named..].iter().position(|piece| *piece == RulePart::Rule)?;
        (!pieces[..named].contains(&RulePart::Rule)).then_some(Self { line, rule, pieces, value })
    }
}

/// Returns the mark that closes an integer.
fn closing(argument: &Argument<'_>) -> Option<String> {
    let behind = &argument.pieces[argument.value + 1..];
    let texts = behind.iter().map(|piece| match piece {
        RulePart::Literal(text) => unquoted(text),
        _ => None,
    });
    texts.collect::<Option<String>>().filter(|close| !close.is_empty())
}

/// Returns the parts of a rule; `None` if it is not a sequence.
fn pieces<'g>(mut body: &'g str, name: &str) -> Option<Vec<RulePart<'g>>> {
    let mut pieces = Vec::new();
    loop {
        body = body.trim_start_matches([' ', '(']);
        let Some(first) = body.chars().next() else { return Some(pieces) };
        let n_bytes = match first {
            '"' => literal_bytes(body)?,
            ')' => 1,
            _ => body.find([' ', ')', '"']).unwrap_or(body.len()),
        };
        let (piece, rest) = body.split_at(n_bytes);
        body = rest;
        match piece {
            // A bracketed part must occur exactly once.
            ")" if rest.starts_with([' ', ')']) || rest.is_empty() => {}
            "space" | "space?" => pieces.push(RulePart::Space(piece)),
            piece if piece == name => pieces.push(RulePart::Name),
            piece if first == '"' => pieces.push(RulePart::Literal(piece)),
            piece if piece.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') => pieces.push(RulePart::Rule),
            _ => return None,
        }
    }
}

/// Returns the length of the literal at the start of a text.
fn literal_bytes(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    let end = text.bytes().enumerate().skip(1).find(|(_, byte)| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    });
    end.map(|(idx, _)| idx + 1)
}

/// Returns a text as a literal of a grammar.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '"' | '\\' => quoted.extend(['\\', c]),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// Returns the text of a literal; `None` if it has escapes that llama.cpp does not write.
fn unquoted(literal: &str) -> Option<String> {
    let mut text = String::new();
    let mut chars = literal[1..literal.len() - 1].chars();
    while let Some(c) = chars.next() {
        text.push(match c {
            '\\' => match chars.next()? {
                'n' => '\n',
                'r' => '\r',
                c @ ('"' | '\\') => c,
                _ => return None,
            },
            c => c,
        });
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool() -> Value {
        let parameters = json!({"type": "object", "properties": {"a\"b": {"type": "string"}, "n": {"type": "integer"}}, "required": ["n"]});
        json!({"type": "function", "function": {"name": "f", "description": "", "parameters": parameters}})
    }

    const PROBED: &str = r#"tool-f-arg-warmpath-0-0- ::= ("<p=" "warmpath-0-0." ">\n") (tool-f-arg-0-schema "\n</p>\n")
tool-f-arg-warmpath-0-1- ::= "<p=" "warmpath-0-1." ">\n" integer "\n</p>\n"
tool-probe-arg-warmpath-1-0- ::= "<p=" "warmpath-1-0." ">\n" integer "\n</p>\n"
tool-probe-arg-warmpath-1-1- ::= "<p=" "warmpath-1-1." ">\n" tool-probe-arg-1-schema "\n</p>\n"
xml-arg-string ::= ac-1"#;

    #[test]
    fn the_grammar_shows_the_closing_mark_of_an_argument() {
        let framing = framing(PROBED, &[tool()]).expect("the arguments are written one by one");
        assert_eq!(framing.closes, [["\n</p>\n", "\n</p>\n"]]);
        assert_eq!(framing.typing, Typing::Text);
        assert_eq!(super::framing("tool-f ::= \"x\" (\"warmpath-0-0.\" | y)*", &[tool()]), None);
    }

    #[test]
    fn placeholders_replace_values_and_real_names_made_up_ones() {
        let grammar = r#"tool-f-arg-warmpath-0-0- ::= "<p=" "warmpath-0-0." ">\n" xml-arg-string
tool-f-arg-warmpath-0-1- ::= space? "<p=" "warmpath-0-1." ">\n" integer "\n</p>\n""#;
        let filled = fill(grammar, &[tool()], &[(0, 0), (0, 1)], 100).expect("both are there");
        assert!(filled.contains("::= \"<p=\" \"a\\\"b\" \">\\n\" <[100]>\n"), "{filled}");
        assert!(filled.contains("::= space? \"<p=\" \"n\" \">\\n\" <[101]>"), "{filled}");
        let marked = marked(0, &tool(), |at| ["string", "integer"][at]);
        let expected = json!({"type": "object", "properties": {"warmpath-0-0.": {"type": "string"}, "warmpath-0-1.": {"type": "integer"}},
            "required": ["warmpath-0-1."]});
        assert_eq!(marked["function"]["parameters"], expected);
    }
}
