//! Writer of a grammar in Lark's syntax: its rules, its terminals and the JSON schemas in it.
//!
//! Equal terminals and schemas get one name, because most arguments are plain texts. Not here: the rules of a schema
//! (`call`).

use std::collections::HashMap;

use serde_json::{Value, json};

use super::super::value::refuse;
use super::super::{SchemaError, value};
use super::{ArgumentProperty, GEMMA_MARK};

/// Maximum number of rules of one tool's arguments. Source: recursive schemas grow with each level and need a limit.
const RULES_MAX: usize = 2000;

/// Names of properties that a schema does not name. Source: names that every format can write.
const ANY_NAME: &str = "/[a-zA-Z0-9_.-]{1,64}/";

/// Minimum number of properties of an object, in addition to its schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Least {
    /// The object may be empty.
    None,
    /// The object has at least one property if its schema names any.
    One,
}

/// Grammar of the arguments of one tool.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Text {
    /// Expression of the whole text.
    pub start: String,
    /// Names of terminals and other rules, by expression; that of a JSON schema has no definitions.
    names: HashMap<String, String>,
    /// Rules in the order in which they were written.
    rules: Vec<String>,
    jsons: Vec<(String, Value)>,
    /// Rules of objects and lists by their address and their type, so that recursive schemas end.
    places: HashMap<(usize, u8), String>,
}

impl Text {
    /// Returns a literal.
    pub fn quoted(text: &str) -> String {
        Value::from(text).to_string()
    }

    /// Returns a text as a part of a regular expression.
    pub fn escaped(text: &str) -> String {
        value::escaped(text)
    }

    /// Returns the expression of properties one after the other.
    pub fn joined(members: Vec<ArgumentProperty>) -> String {
        let one = |ArgumentProperty { expression, is_required }| {
            if is_required { expression } else { format!("({expression})?") }
        };
        members.into_iter().map(one).collect::<Vec<_>>().join(" ")
    }

    /// Returns the expression of `least` to `most` items; `item` is a rule, `separator` the expression between two
    /// items.
    pub fn repeated(item: &str, separator: &str, least: u64, most: Option<u64>) -> String {
        let times = |least: u64, most: Option<u64>| match most {
            Some(most) => format!("{{{least},{most}}}"),
            None if least == 0 => "*".to_owned(),
            None => format!("{{{least},}}"),
        };
        match (separator, most) {
            (_, Some(0)) => String::new(),
            ("", most) => format!("({item}){}", times(least, most)),
            (separator, most) => {
                let rest = times(least.saturating_sub(1), most.map(|most| most - 1));
                let some = format!("{item} ({separator} {item}){rest}");
                if least == 0 { format!("({some})?") } else { some }
            }
        }
    }

    /// Returns the expression of properties with a separator between each two; `least` is the minimum number of them.
    pub fn separated(&mut self, members: Vec<ArgumentProperty>, separator: &str, least: Least) -> String {
        let separator = Self::quoted(separator);
        // From the last property to the first: `rest` may follow a written property, and the list begins with one of
        // `starts`.
        let (mut rest, mut starts, mut may_be_empty) = (String::new(), Vec::new(), true);
        for ArgumentProperty { expression, is_required } in members.into_iter().rev() {
            let member = self.rule(expression);
            if is_required {
                starts.clear();
                may_be_empty = false;
            }
            starts.push(format!("{member} {rest}"));
            let next = if is_required { format!("{separator} {member}") } else { format!("({separator} {member})?") };
            rest = self.rule(format!("{next} {rest}"));
        }
        match (starts.is_empty(), may_be_empty && least == Least::None) {
            (true, _) => String::new(),
            (false, true) => format!("({})?", starts.join(" | ")),
            (false, false) => format!("({})", starts.join(" | ")),
        }
    }

    /// Returns the terminal of a text between two marks; `text` is its expression, and the text does not contain the
    /// second mark.
    pub fn closed(&mut self, open: &str, text: &str, close: &str) -> String {
        let open = if open.is_empty() { String::new() } else { format!("/{}/ ", Self::escaped(open)) };
        let close = format!("/{}/", Self::escaped(close));
        self.name("T", format!("({open}{text} {close}) & ~({open}/(?s:.*)/ {close} /(?s:.+)/)"))
    }

    /// Returns a rule with this body.
    pub fn rule(&mut self, body: String) -> String {
        self.name("r", body)
    }

    /// Returns the rule of a schema that is JSON; `own` is the schema's text without definitions.
    pub fn json(&mut self, own: &str, schema: Value) -> String {
        if let Some(known) = self.known_json(own) {
            return known;
        }
        let name = format!("j{}", self.jsons.len());
        self.jsons.push((name.clone(), schema));
        self.names.insert(json_body(own), name.clone());
        name
    }

    /// Returns the rule of a schema by its text without definitions; `None` if it has no rule yet.
    pub fn known_json(&self, own: &str) -> Option<String> {
        self.names.get(&json_body(own)).cloned()
    }

    /// Returns the rule of an object or list by its address, and whether it has no body yet.
    pub fn named(&mut self, place: (usize, u8)) -> (String, bool) {
        let n = self.places.len();
        let mut is_new = false;
        let name = self.places.entry(place).or_insert_with(|| {
            is_new = true;
            format!("n{n}")
        });
        (name.clone(), is_new)
    }

    /// Gives a rule its body.
    pub fn define(&mut self, name: &str, body: &str) {
        self.rules.push(format!("{name}: {body}\n"));
    }

    /// Returns the rule of any value in the form of Gemma 4.
    pub fn any_of_gemma(&mut self) -> String {
        const ANY: &str = "any";
        if self.names.insert(ANY.to_owned(), ANY.to_owned()).is_none() {
            let text = self.closed(GEMMA_MARK, "/(?s:.*)/", GEMMA_MARK);
            let scalar = json!({"type": ["null", "boolean", "number"]});
            let scalar = self.json(&scalar.to_string(), scalar);
            let (members, items) = (self.members_of_gemma(), Self::repeated(ANY, "\",\"", 0, None));
            self.define(ANY, &format!("{text} | {scalar} | \"{{\" {members} \"}}\" | \"[\" {items} \"]\""));
        }
        ANY.to_owned()
    }

    /// Returns the properties of any object in the form of Gemma 4.
    pub fn members_of_gemma(&mut self) -> String {
        let any = self.any_of_gemma();
        self.named_by_anything(&any)
    }

    /// Returns properties of any name whose values follow a rule, in the form of Gemma 4.
    pub fn named_by_anything(&mut self, value: &str) -> String {
        let name = self.name("T", ANY_NAME.to_owned());
        let member = self.rule(format!("{name} \":\" {value}"));
        Self::repeated(&member, "\",\"", 0, None)
    }

    /// Refuses a grammar that is too large.
    pub fn check_size(&self) -> Result<(), SchemaError> {
        if self.rules.len() + self.jsons.len() > RULES_MAX {
            return Err(refuse("", &format!("its grammar has more than {RULES_MAX} rules")));
        }
        Ok(())
    }

    /// Returns the grammar; `compiler_s` converts a schema to the compiler's JSON.
    pub fn lark(&self, compiler_s: impl Fn(&Value) -> String) -> String {
        let jsons = self.jsons.iter().map(|(name, schema)| format!("{name}: %json {}\n", compiler_s(schema)));
        format!("start: {}\n{}{}", self.start, self.rules.concat(), jsons.collect::<String>())
    }

    fn name(&mut self, kind: &str, body: String) -> String {
        if let Some(known) = self.names.get(&body) {
            return known.clone();
        }
        let name = format!("{kind}{}", self.rules.len());
        self.define(&name, &body);
        self.names.insert(body, name.clone());
        name
    }
}

/// Returns the expression of a schema without its definitions.
fn json_body(own: &str) -> String {
    format!("%json {own}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_items_is_within_its_limits() {
        let check = |separator: &str, least, most, expected: &str| {
            assert_eq!(Text::repeated("x", separator, least, most), expected);
        };
        check("", 0, None, "(x)*");
        check("", 2, Some(3), "(x){2,3}");
        check("\",\"", 0, None, "(x (\",\" x)*)?");
        check("\",\"", 0, Some(2), "(x (\",\" x){0,1})?");
        check("\",\"", 2, None, "x (\",\" x){1,}");
        check("\",\"", 0, Some(0), "");
    }

    #[test]
    fn separators_are_between_the_present_properties() {
        let member = |name: &str, is_required| ArgumentProperty { expression: format!("\"{name}\""), is_required };
        let separated = |members: Vec<ArgumentProperty>, least| {
            let mut text = Text::default();
            let expression = text.separated(members, ",", least);
            // Rules are replaced by their bodies, so that the result is one expression.
            text.rules.iter().rev().fold(expression, |expression, rule| {
                let (name, body) = rule.trim_end().split_once(": ").expect("a rule has a name");
                expression.replace(name, &format!("<{body}>"))
            })
        };
        assert_eq!(separated(Vec::new(), Least::One), "");
        let one = separated(vec![member("a", false)], Least::None);
        assert_eq!(one, "(<\"a\"> )?");
        let two = separated(vec![member("a", false), member("b", true)], Least::None);
        assert_eq!(two, "(<\"b\">  | <\"a\"> <\",\" <\"b\">>)");
        assert!(
            separated(vec![member("a", false), member("b", false)], Least::One).ends_with(')'),
            "at least one property is written"
        );
    }
}
