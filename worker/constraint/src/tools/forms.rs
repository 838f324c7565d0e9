//! Tools in chat templates' own formats: the place of the arguments in llama.cpp's grammar of calls.
//!
//! A tool's rule begins with literals around its name. In place of the arguments and the mark that closes the call, it
//! gets a placeholder token beyond the vocabulary. Not here: the grammar of the arguments (`schema::CallText`), other
//! formats (`arguments`, `parameters`).

use serde_json::{Value, json};

use super::parameters::quoted;
use crate::schema::ArgumentForm;

/// Formats, each with the literals before and after a tool's name in the tool's rule. Gemma's format has a rule after
/// the name instead.
///
/// Source: `parsers/` of llama.cpp.
const OPENINGS: [(ArgumentForm, &[&str], &[&str]); 5] = [
    (ArgumentForm::Gemma4, &[], &[]),
    (ArgumentForm::Lfm2, &[], &["("]),
    (ArgumentForm::KimiK3, &["<|open|>call tool=\""], &["\""]),
    (ArgumentForm::MiniCpm5, &["<function name=\""], &["\">"]),
    (ArgumentForm::MiniMaxM3, &["]<]minimax[>[<invoke name=\""], &["\">"]),
];

/// Rule of the arguments in Gemma's format.
const GEMMA_ARGUMENTS: &str = "gemma4-dict";

/// Returns tools without arguments, whose rules are created quickly.
pub fn probes(tools: &[Value]) -> Vec<Value> {
    let mut probes = tools.to_vec();
    for tool in &mut probes {
        tool["function"]["parameters"] = json!({"type": "object", "properties": {}});
    }
    probes
}

/// Returns the format of arguments in a grammar of calls to these tools; `None` if it is not one of [`OPENINGS`].
pub fn form(grammar: &str, tools: &[Value]) -> Option<ArgumentForm> {
    let name = tools.first()?["function"]["name"].as_str()?;
    let is_of = |form: &ArgumentForm| grammar.lines().any(|line| opening(line, *form, name).is_some());
    OPENINGS.into_iter().map(|(form, ..)| form).find(is_of)
}

/// Returns a grammar of calls with placeholders, from `first` on, for the arguments of the tools at `places`; `None` if
/// a tool's rule is not found.
pub fn fill(grammar: &str, form: ArgumentForm, (tools, places): (&[Value], &[usize]), first: u32) -> Option<String> {
    let mut n_found = 0;
    let filled = grammar.lines().map(|line| {
        let found = places.iter().zip(first..).find_map(|(idx, token)| {
            let name = tools[*idx]["function"]["name"].as_str()?;
            Some(format!("{} <[{token}]>", opening(line, form, name)?))
        });
        n_found += usize::from(found.is_some());
        found.unwrap_or_else(|| line.to_owned()) + "\n"
    });
    let filled = filled.collect();
    (n_found == places.len()).then_some(filled)
}

/// Returns a tool's rule up to its arguments; `None` for other rules. llama.cpp puts some literals in brackets.
fn opening(line: &str, form: ArgumentForm, name: &str) -> Option<String> {
    let (_, before, behind) = OPENINGS.iter().find(|(known, ..)| *known == form)?;
    let literals: Vec<String> = [before, &[name][..], behind].concat().into_iter().map(quoted).collect();
    let (rule, mut rest) = line.split_once(" ::= ")?;
    for literal in &literals {
        rest = rest.trim_start_matches([' ', '(']).strip_prefix(literal.as_str())?.trim_start_matches(')');
    }
    let arguments = rest.strip_prefix(' ')?;
    (form != ArgumentForm::Gemma4 || arguments == GEMMA_ARGUMENTS).then(|| format!("{rule} ::= {}", literals.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_replaces_the_arguments_of_each_tool() {
        let tools = [json!({"function": {"name": "a"}}), json!({"function": {"name": "a-b"}})];
        let grammar = "root ::= tool-a | tool-a-b\ntool-a ::= \"a\" \"(\" space (x | y)* \")\"\ntool-a-b ::= \"a-b\" \"(\" space \")\"\n";
        assert_eq!(form(grammar, &tools), Some(ArgumentForm::Lfm2));
        let filled = fill(grammar, ArgumentForm::Lfm2, (&tools, &[0, 1]), 100).expect("both are there");
        assert_eq!(
            filled,
            "root ::= tool-a | tool-a-b\ntool-a ::= \"a\" \"(\" <[100]>\ntool-a-b ::= \"a-b\" \"(\" <[101]>\n"
        );
        assert_eq!(fill(grammar, ArgumentForm::Gemma4, (&tools, &[0]), 100), None);
        let gemma = "tool-a ::= (\"a\") gemma4-dict\n";
        assert_eq!(form(gemma, &tools), Some(ArgumentForm::Gemma4));
        assert_eq!(fill(gemma, ArgumentForm::Gemma4, (&tools, &[0]), 7).as_deref(), Some("tool-a ::= \"a\" <[7]>\n"));
        assert_eq!(form("tool-a ::= \"{\" \"a\" x\n", &tools), None);
    }
}
