//! Prevents text of clients from spelling control tokens, whatever a template does with it.
//!
//! A template is rendered a second time in which the *client's* characters with which a control token can begin or end
//! are replaced by placeholders. So the first and last character of a control token in that rendering come from the
//! template. A control token that is only in the plain rendering comes from the client.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use minijinja::value::Value;
use serde_json::{Map, Value as Json};

use crate::template::values::to_template_value_with;
use crate::vocabulary::partition::searcher;

/// Dangerous characters for one vocabulary and one template.
#[derive(Debug)]
pub(crate) struct Shield {
    /// First and last characters of all control tokens.
    hazards: Vec<char>,
    controls: Option<AhoCorasick>,
    /// Searcher for literals in the template's source, such as `</think>`. The template compares them with content, so
    /// they stay unchanged in the client's text.
    literals: Option<AhoCorasick>,
    /// Placeholders that cannot be used, because the template's source contains them.
    taken: BTreeSet<char>,
}

/// One mapping of dangerous characters to placeholders and back.
#[derive(Debug, Clone)]
pub(crate) struct StandIns {
    to: BTreeMap<char, char>,
    from: HashMap<char, char>,
}

impl Shield {
    /// Returns the shield for these spellings of control tokens and this template's source.
    pub fn new<'a>(controls: impl Iterator<Item = &'a [u8]>, template: &str) -> Self {
        let spellings: Vec<&str> = controls.filter_map(|text| std::str::from_utf8(text).ok()).collect();
        let ends =
            |text: &&str| [text.chars().next(), text.chars().next_back()].into_iter().flatten().collect::<Vec<_>>();
        let hazards: BTreeSet<char> = spellings.iter().flat_map(ends).collect();
        let hazards: Vec<char> = hazards.into_iter().collect();
        let literals: Vec<String> = expression_literals(template)
            .into_iter()
            .filter(|literal| literal.contains(&hazards[..]))
            .filter(|literal| !spellings.iter().any(|spelling| can_overlap(literal, spelling)))
            .collect();
        Self {
            hazards,
            controls: searcher(&spellings, MatchKind::Standard),
            literals: searcher(&literals, MatchKind::LeftmostLongest),
            taken: template.chars().filter(|character| is_stand_in(*character)).collect(),
        }
    }

    /// Returns placeholders for a request with these variables; `None` if nothing in them is dangerous.
    ///
    /// Errors: `()` if the request itself contains every placeholder.
    pub fn stand_ins(&self, variables: &Map<String, Json>) -> Result<Option<StandIns>, ()> {
        let mut survey = Survey { shield: self, dangerous: false, taken: self.taken.clone() };
        survey.map(variables);
        if !survey.dangerous {
            return Ok(None);
        }
        let usable = stand_ins().filter(|character| !survey.taken.contains(character));
        let to: BTreeMap<char, char> = self.hazards.iter().copied().zip(usable).collect();
        if to.len() < self.hazards.len() {
            return Err(());
        }
        let from = to.iter().map(|(hazard, stand_in)| (*stand_in, *hazard)).collect();
        Ok(Some(StandIns { to, from }))
    }

    /// Returns whether a text contains a dangerous character.
    fn is_dangerous(&self, text: &str) -> bool {
        self.hazards_in(text).next().is_some()
    }

    /// Returns the places of the dangerous characters in a text.
    fn hazards_in<'t>(&'t self, text: &'t str) -> Box<dyn Iterator<Item = (usize, char)> + 't> {
        let bytes = text.as_bytes();
        let at = |at: usize| (at, char::from(bytes[at]));
        // Most vocabularies have few of these characters, which can be searched many bytes at a time.
        match self.hazards[..] {
            [a] if a.is_ascii() => Box::new(memchr::memchr_iter(a as u8, bytes).map(at)),
            [a, b] if a.is_ascii() && b.is_ascii() => Box::new(memchr::memchr2_iter(a as u8, b as u8, bytes).map(at)),
            _ => Box::new(text.char_indices().filter(|(_, character)| self.hazards.contains(character))),
        }
    }

    /// Returns whether some string of `variables` spells a whole control token.
    pub fn spells_control(&self, json: &Json) -> bool {
        let spells = |text: &str| self.controls.as_ref().is_some_and(|controls| controls.is_match(text));
        match json {
            Json::String(text) => spells(text),
            Json::Array(items) => items.iter().any(|item| self.spells_control(item)),
            Json::Object(fields) => fields.iter().any(|(key, value)| spells(key) || self.spells_control(value)),
            _ => false,
        }
    }

    /// Returns `json` as a template's value, with placeholders for every dangerous character.
    pub fn shielded(&self, json: &Json, stand_ins: &StandIns) -> Value {
        to_template_value_with(json, &mut |text| match self.shield_text(text, stand_ins) {
            Cow::Owned(text) => Value::from(text),
            Cow::Borrowed(text) => Value::from(text),
        })
    }

    /// Returns `text` with placeholders.
    pub fn shield_text<'t>(&self, text: &'t str, stand_ins: &StandIns) -> Cow<'t, str> {
        if !self.is_dangerous(text) {
            return text.into();
        }
        let mut exempt = self.exempt(text).into_iter().peekable();
        let mut output = String::with_capacity(text.len() + text.len() / 8);
        let mut copied_to = 0;
        for (at, hazard) in self.hazards_in(text) {
            while exempt.next_if(|range| range.end <= at).is_some() {}
            let is_exempt = exempt.peek().is_some_and(|range| range.contains(&at));
            let Some(stand_in) = stand_ins.to.get(&hazard).filter(|_| !is_exempt) else { continue };
            output.push_str(&text[copied_to..at]);
            output.push(*stand_in);
            copied_to = at + hazard.len_utf8();
        }
        output.push_str(&text[copied_to..]);
        output.into()
    }

    /// Returns where `text` contains literals of the template that cannot be a part of a control token.
    fn exempt(&self, text: &str) -> Vec<Range<usize>> {
        let Some(literals) = &self.literals else { return Vec::new() };
        let mut exempt: Vec<Range<usize>> = literals.find_iter(text).map(|occurrence| occurrence.range()).collect();
        if let Some(controls) = self.controls.as_ref().filter(|_| !exempt.is_empty()) {
            let spellings: Vec<Range<usize>> =
                controls.find_overlapping_iter(text).map(|occurrence| occurrence.range()).collect();
            retain_apart(&mut exempt, &spellings);
        }
        exempt
    }
}

impl StandIns {
    /// Returns `text` with the original characters instead of placeholders.
    pub fn restore(&self, text: &str) -> String {
        let mut output = String::with_capacity(text.len());
        let mut copied_to = 0;
        for (at, stand_in) in stand_ins_in(text) {
            let Some(hazard) = self.from.get(&stand_in) else { continue };
            output.push_str(&text[copied_to..at]);
            output.push(*hazard);
            copied_to = at + stand_in.len_utf8();
        }
        output + &text[copied_to..]
    }
}

/// Result of one walk over a request: whether anything is dangerous, and which placeholders the client uses itself.
struct Survey<'s> {
    shield: &'s Shield,
    dangerous: bool,
    taken: BTreeSet<char>,
}

impl Survey<'_> {
    fn map(&mut self, fields: &Map<String, Json>) {
        for (key, value) in fields {
            self.text(key);
            self.value(value);
        }
    }

    fn value(&mut self, json: &Json) {
        match json {
            Json::String(text) => self.text(text),
            Json::Array(items) => items.iter().for_each(|item| self.value(item)),
            Json::Object(fields) => self.map(fields),
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        self.dangerous = self.dangerous || self.shield.is_dangerous(text);
        self.taken.extend(stand_ins_in(text).map(|(_, stand_in)| stand_in));
    }
}

/// Removes the ranges that overlap one of `others`, which are sorted by their ends.
///
/// Cost: O(m + n log m): a client chooses how many there are of both.
fn retain_apart(ranges: &mut Vec<Range<usize>>, others: &[Range<usize>]) {
    // The lowest start of each range and of those behind it.
    let mut starts: Vec<usize> = others.iter().map(|other| other.start).collect();
    for idx in (1..starts.len()).rev() {
        starts[idx - 1] = starts[idx - 1].min(starts[idx]);
    }
    ranges.retain(|range| {
        let first_idx = others.partition_point(|other| other.end <= range.start);
        starts.get(first_idx).is_none_or(|start| *start >= range.end)
    });
}

/// Returns every placeholder, the best first: noncharacters, which no honest text contains, then private characters.
fn stand_ins() -> impl Iterator<Item = char> {
    ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{ffffd}')
}

/// Returns the placeholders in a text, with their places.
fn stand_ins_in(text: &str) -> impl Iterator<Item = (usize, char)> {
    // The first bytes of all of them, searched many bytes at a time.
    let starts = memchr::memchr2_iter(0xef, 0xf3, text.as_bytes());
    starts.filter_map(|at| Some((at, text[at..].chars().next().filter(|character| is_stand_in(*character))?)))
}

fn is_stand_in(character: char) -> bool {
    ('\u{fdd0}'..='\u{fdef}').contains(&character) || ('\u{f0000}'..='\u{ffffd}').contains(&character)
}

/// Returns whether text that contains `literal` could spell `spelling` with a part of it.
fn can_overlap(literal: &str, spelling: &str) -> bool {
    let (literal, spelling) = (literal.as_bytes(), spelling.as_bytes());
    let contains = |long: &[u8], short: &[u8]| long.windows(short.len().max(1)).any(|window| window == short);
    let joins = |left: &[u8], right: &[u8]| {
        (1..=left.len().min(right.len())).any(|length| left[left.len() - length..] == right[..length])
    };
    contains(literal, spelling) || contains(spelling, literal) || joins(literal, spelling) || joins(spelling, literal)
}

/// Returns the string literals in the expressions and statements of a template's source.
fn expression_literals(source: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut source = source;
    while let Some(start) = source.find("{{").into_iter().chain(source.find("{%")).min() {
        source = &source[start + 2..];
        let mut characters = source.char_indices();
        let mut end = source.len();
        while let Some((at, character)) = characters.next() {
            if source[at..].starts_with("}}") || source[at..].starts_with("%}") {
                end = at;
                break;
            }
            if character == '"' || character == '\'' {
                literals.push(literal(&mut characters, character));
            }
        }
        source = &source[end..];
    }
    literals
}

/// Reads one string literal up to its closing quote.
fn literal(characters: &mut std::str::CharIndices<'_>, quote: char) -> String {
    let mut text = String::new();
    while let Some((_, character)) = characters.next() {
        match character {
            '\\' => text.extend(characters.next().map(|(_, escaped)| match escaped {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                other => other,
            })),
            character if character == quote => break,
            character => text.push(character),
        }
    }
    text
}

#[cfg(test)]
mod tests;
