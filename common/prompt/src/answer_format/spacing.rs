//! White space in grammars of calls, as the template writes it, so that a model's output is the same in the next
//! prompt.
//!
//! llama.cpp's grammars allow any white space where a template writes none or one kind. A call rendered by the template
//! is matched with the grammar, converted to a regular expression, and at each place the white space that was found
//! replaces the optional one. A place that was not matched, or that matched two kinds, stays as it is. If only brackets
//! follow the arguments, the match ends at the first bracket that may be their last, so white space after them may be
//! missed.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::ops::Range;

use fancy_regex::{Regex, RegexBuilder, escape};

/// Longest regular expression into which a grammar is converted. Units: bytes.
///
/// Source: own choice: a format of ten tools has some 4 kB if the rules of one of them are expanded.
const EXPRESSION_BYTES_MAX: usize = 64 << 10;

/// Deepest nesting of expanded rules. Source: own choice, far above the few levels of llama.cpp's formats.
const DEPTH_MAX: usize = 24;

/// Maximum work of a match. Source: `fancy_regex`'s own unit; some 10 ms.
const BACKTRACKS_MAX: usize = 100_000;

/// Rule of the whole response.
const ROOT: &str = "root";

/// Rule of white space. Source: `SPACE_RULE` of llama.cpp's `json-schema-to-grammar.cpp`.
const SPACE: &str = "space";
const SPACE_EXPRESSION: &str = "(\n{1,2}[ \t]{0,20}|[ ]|)";

/// A rendered call, and the names of the tools, which select the part of the grammar that it may match.
pub(crate) struct Written<'a> {
    /// Rendered text from the position where the grammar applies.
    pub text: &'a str,
    /// Whether the grammar applies from the text's start; otherwise it applies from a later place.
    pub from_start: bool,
    /// Whether the text before the call is that of a response, and not only of a past turn, which may lack reasoning.
    pub is_response: bool,
    /// Name of the called tool.
    pub tool: &'a str,
    /// Names of all tools.
    pub tools: &'a [&'a str],
}

/// Returns a grammar with the white space of a rendered call; `None` if the two do not match.
pub(crate) fn spaced(grammar: &str, written: &Written<'_>) -> Option<String> {
    let rules = Rules::new(grammar);
    let mut expression =
        Expression { rules: &rules, others: other_rules(written), text: String::new(), places: Vec::new() };
    expression.text.push_str(if written.from_start { "^" } else { "" });
    expression.rule(ROOT, &mut Vec::new())?;
    let regex: Regex = RegexBuilder::new(&expression.text).backtrack_limit(BACKTRACKS_MAX).build().ok()?;
    let captures = regex.captures(written.text).ok().flatten()?;
    let mut texts: HashMap<Place<'_>, Option<&str>> = HashMap::new();
    for (idx, place) in expression.places.iter().enumerate() {
        let Some(text) = captures.get(idx + 1).map(|group| group.as_str()) else { continue };
        if place.0 == ROOT && !written.is_response {
            continue;
        }
        let known_text = texts.entry(*place).or_insert(Some(text));
        if *known_text != Some(text) {
            *known_text = None;
        }
    }
    Some(rules.with(&texts))
}

/// Place of white space: a rule's name and the index of its part.
type Place<'g> = (&'g str, usize);

/// Returns the names of rules that belong to other tools than the called one.
fn other_rules(written: &Written<'_>) -> HashSet<String> {
    let others = written.tools.iter().filter(|name| **name != written.tool);
    others.map(|name| format!("tool-{}", name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"))).collect()
}

/// A grammar's rules, each with its parts, in their order.
struct Rules<'g> {
    grammar: &'g str,
    parts: HashMap<&'g str, Vec<&'g str>>,
}

impl<'g> Rules<'g> {
    fn new(grammar: &'g str) -> Self {
        let rules = grammar.lines().filter_map(|line| line.split_once(" ::= "));
        Self { grammar, parts: rules.map(|(name, body)| (name, parts(body))).collect() }
    }

    /// Returns the grammar with these texts in place of white space, also in rules of the same shape.
    fn with(&self, texts_found: &HashMap<Place<'_>, Option<&str>>) -> String {
        let mut by_shape: HashMap<String, HashMap<usize, &str>> = HashMap::new();
        for ((name, part), text) in texts_found {
            if let Some(text) = text {
                by_shape.entry(shape(&self.parts[name])).or_default().insert(*part, text);
            }
        }
        let mut grammar = String::with_capacity(self.grammar.len());
        for line in self.grammar.lines() {
            let rule = line.split_once(" ::= ").and_then(|(name, _)| Some((name, self.parts.get(name)?)));
            let texts = rule.and_then(|(_, parts)| by_shape.get(&shape(parts)));
            match (rule, texts) {
                (Some((name, parts)), Some(texts)) => write_rule(&mut grammar, name, parts, texts),
                _ => grammar.push_str(line),
            }
            grammar.push('\n');
        }
        grammar
    }
}

fn write_rule(grammar: &mut String, name: &str, parts: &[&str], texts: &HashMap<usize, &str>) {
    let _ = write!(grammar, "{name} ::=");
    let mut is_optional = false;
    for (idx, part) in parts.iter().enumerate() {
        // Optional white space is followed by a question mark.
        if std::mem::take(&mut is_optional) && *part == "?" {
            continue;
        }
        match texts.get(&idx) {
            Some(text) => {
                is_optional = true;
                let _ = write!(grammar, " \"{}\"", text.replace('\n', "\\n").replace('\t', "\\t"));
            }
            None if matches!(*part, "?" | "*" | "+") || part.starts_with('{') => grammar.push_str(part),
            None => {
                let _ = write!(grammar, " {part}");
            }
        }
    }
}

/// Returns the common form of rules of different tools: the kinds of their parts, and the first part.
fn shape(parts: &[&str]) -> String {
    let mut shape = parts.first().copied().unwrap_or_default().to_owned();
    for part in parts {
        shape.push(match part.chars().next() {
            Some('"') => 'l',
            Some(c) if c.is_ascii_alphanumeric() => {
                if *part == SPACE {
                    's'
                } else {
                    'r'
                }
            }
            Some(c) => c,
            None => ' ',
        });
    }
    shape
}

/// A regular expression under construction.
struct Expression<'r, 'g> {
    rules: &'r Rules<'g>,
    others: HashSet<String>,
    text: String,
    /// Place of each of its groups.
    places: Vec<Place<'g>>,
}

impl<'g> Expression<'_, 'g> {
    /// Adds the expansion of a rule.
    fn rule(&mut self, name: &str, within: &mut Vec<&'g str>) -> Option<()> {
        if self.text.len() > EXPRESSION_BYTES_MAX {
            return None;
        }
        let known = self.rules.parts.get_key_value(name);
        let is_text = ["until-", "ac-"].iter().any(|begin| name.starts_with(begin)) || name.ends_with("-schema");
        let (name, parts) = match known {
            Some(known) if !is_text && within.len() < DEPTH_MAX && !within.contains(known.0) => known,
            _ => {
                self.text.push_str("[\\s\\S]*?");
                return Some(());
            }
        };
        if self.others.contains(*name) {
            self.text.push_str("[^\\s\\S]");
            return Some(());
        }
        within.push(name);
        self.span(name, parts, 0..parts.len(), within)?;
        within.pop();
        Some(())
    }

    /// Adds a part of a rule; a repeated part is also added once by itself, so that each of its places has a group of
    /// its own.
    fn span(&mut self, rule: &'g str, parts: &[&'g str], span: Range<usize>, within: &mut Vec<&'g str>) -> Option<()> {
        self.text.push_str("(?:");
        let mut at = span.start;
        while at < span.end {
            let end = if parts[at] == "(" { closing(parts, at)? + 1 } else { at + 1 };
            let mut add = |own: &mut Self| own.atom(rule, parts, at..end, within);
            match parts.get(end).copied().filter(|_| end < span.end) {
                Some(sign @ ("+" | "*")) => {
                    self.text.push_str("(?:");
                    add(self)?;
                    self.text.push_str("(?:");
                    add(self)?;
                    self.text.push_str(if sign == "+" { ")*)" } else { ")*)?" });
                    at = end + 1;
                }
                _ => {
                    add(self)?;
                    at = end;
                }
            }
        }
        self.text.push(')');
        Some(())
    }

    /// Adds a literal, a class, a rule's name, an operator or a bracketed part.
    fn atom(&mut self, rule: &'g str, parts: &[&'g str], span: Range<usize>, within: &mut Vec<&'g str>) -> Option<()> {
        match parts[span.start] {
            "(" => self.span(rule, parts, span.start + 1..span.end - 1, within)?,
            SPACE => {
                self.text.push_str(SPACE_EXPRESSION);
                self.places.push((rule, span.start));
            }
            "." => self.text.push_str("[\\s\\S]"),
            part @ ("|" | "?") => self.text.push_str(part),
            part if part.starts_with(['[', '{']) => self.text.push_str(part),
            part if part.starts_with('"') => self.text.push_str(&format!("(?:{})", escape(&unquoted(part)?))),
            part if part.starts_with(|c: char| c.is_ascii_alphanumeric()) => {
                self.text.push_str("(?:");
                self.rule(part, within)?;
                self.text.push(')');
            }
            _ => return None,
        }
        Some(())
    }
}

/// Returns the index of the bracket that closes the one at an index.
fn closing(parts: &[&str], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    parts.iter().enumerate().skip(open).find_map(|(at, part)| {
        match *part {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

/// Returns the parts of a rule: literals, classes, names, brackets and operators.
fn parts(body: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), body.trim_start());
    while let Some(first) = rest.chars().next() {
        let n_bytes = match first {
            '"' => closed_at(rest, '"'),
            '[' => closed_at(rest, ']'),
            '{' => closed_at(rest, '}'),
            c if c.is_ascii_alphanumeric() => {
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len())
            }
            c => c.len_utf8(),
        };
        let (part, behind) = rest.split_at(n_bytes);
        parts.push(part);
        rest = behind.trim_start();
    }
    parts
}

/// Returns the length of a part that begins with a bracket or quote and is closed by `close`.
fn closed_at(text: &str, close: char) -> usize {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let is_end = *c == close && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        is_end
    });
    end.map_or(text.len(), |(at, c)| at + c.len_utf8())
}

/// Returns the text of a literal; `None` if it has escapes that llama.cpp does not write.
fn unquoted(literal: &str) -> Option<String> {
    let mut text = String::new();
    let mut chars = literal.get(1..literal.len() - 1)?.chars();
    while let Some(c) = chars.next() {
        text.push(match c {
            '\\' => match chars.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
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

    const GRAMMAR: &str = r#"root ::= space "<call>" space tool-call space "<end>" space
tool-call ::= tool-f | tool-g
tool-f ::= "{" space "\"name\"" space ":" space "\"f\"" space "," space tool-f-schema space "}"
tool-g ::= "{" space "\"name\"" space ":" space "\"g\"" space "," space tool-g-schema space "}"
tool-f-schema ::= "x" space
tool-g-schema ::= "y" space
space ::= | " " | "\n"{1,2} [ \t]{0,20}"#;

    fn written<'a>(text: &'a str, tools: &'a [&'a str]) -> Written<'a> {
        Written { text, from_start: true, is_response: true, tool: "f", tools }
    }

    #[test]
    fn white_space_is_that_of_the_template_for_every_tool() {
        let text = "\n<call>\n{\"name\": \"f\", {\"a\": 1}}\n<end>";
        let spaced = spaced(GRAMMAR, &written(text, &["f", "g"])).expect("the call matches the grammar");
        assert!(
            spaced.starts_with("root ::= \"\\n\" \"<call>\" \"\\n\" tool-call \"\\n\" \"<end>\" \"\"\n"),
            "{spaced}"
        );
        for (name, rule) in [("f", "tool-f-schema"), ("g", "tool-g-schema")] {
            let expected = format!(
                "tool-{name} ::= \"{{\" \"\" \"\\\"name\\\"\" \"\" \":\" \" \" \"\\\"{name}\\\"\" \"\" \",\" \" \" {rule} \"\" \"}}\"\n"
            );
            assert!(spaced.contains(&expected), "{spaced}");
        }
    }

    #[test]
    fn white_space_of_a_past_turn_is_that_of_its_calls_only() {
        let past = Written { is_response: false, ..written("\n<call>\n{\"name\": \"f\", {\"a\": 1}}\n<end>", &["f"]) };
        let spaced = spaced(GRAMMAR, &past).expect("the call matches the grammar");
        assert_eq!(spaced.lines().next(), GRAMMAR.lines().next());
        assert!(spaced.contains("tool-f ::= \"{\" \"\" \"\\\"name\\\"\" \"\" \":\" \" \""), "{spaced}");
    }

    #[test]
    fn places_that_match_nothing_or_two_kinds_of_white_space_stay() {
        assert_eq!(spaced(GRAMMAR, &written("{\"name\"", &["f", "g"])), None);
        let behind = "root ::= (tool-f space)+\ntool-f ::= \"f\"\nspace ::= | \" \"";
        let repeated = "root ::= tool-f (space tool-f)*\ntool-f ::= \"f\"\nspace ::= | \" \"";
        let text = written("f f;", &["f"]);
        assert_eq!(
            spaced(repeated, &text).as_deref(),
            Some("root ::= tool-f ( \" \" tool-f )*\ntool-f ::= \"f\"\nspace ::= | \" \"\n")
        );
        assert_eq!(spaced(behind, &text).map(|spaced| spaced.lines().next() == behind.lines().next()), Some(true));
    }
}
