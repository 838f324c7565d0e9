//! Grammar of all arguments of a call in a chat template's own format, up to the mark that closes the call.
//!
//! The grammar is built from the schema. Parts that the template writes as JSON use the compiler's support of schemas.
//! llama.cpp's parser decides by the tool's schema which arguments are strings. It gets a schema that has only types,
//! so that it parses exactly the texts that this grammar allows.
//!
//! Not here: arguments that are one JSON object, or between marks that are in llama.cpp's grammar (`tools`), compiling
//! (`compiler`).

mod text;

use serde_json::{Map, Value, json};

use super::definitions::without_definitions;
use super::value::{ALL, ARRAY, BOOLEAN, FRACTION, INTEGER, NULL, NUMBER, OBJECT, STRING, SchemaReader, refuse};
use super::{Definitions, GrammarBudget, SchemaError};
use text::{Least, Text};

/// Maximum depth of objects and lists that are written as elements; deeper ones are JSON.
///
/// Source: recursive schemas need a limit, and the arguments of tools are rarely deeper.
const DEPTH_MAX: usize = 8;

/// Maximum number of elements of one tool's arguments. If there are more, fewer levels are written as elements.
///
/// Source: twice the properties of one object; llama.cpp's parser gets each of them.
const ELEMENTS_MAX: usize = 1000;

/// Maximum depth of rules that are being written. Source: a recursive schema refers to the rules so far, and a level
/// takes up to 10 kB of a thread's stack, which has 2 MiB.
const RULE_DEPTH_MAX: usize = 64;

/// Schema of every value.
static ANYTHING: Value = Value::Bool(true);

/// Kind of a list's or an object's schema as a bit, with its keywords.
type Structure<'a> = (u8, &'a Map<String, Value>);

/// A chat template's own format of a call's arguments.
///
/// Source: `parsers/` of llama.cpp and the templates themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentForm {
    /// `{a:<|"|>text<|"|>,b:1}`: objects with bare names, sorted, and strings between marks, at any depth.
    Gemma4,
    /// A tag for each argument, with its name and type.
    KimiK3,
    /// `a="text", b=1`, with JSON values.
    Lfm2,
    /// An element for each argument; texts are verbatim or in CDATA.
    MiniCpm5,
    /// An element for each argument and for each of its members.
    MiniMaxM3,
}

/// Mark around strings. Source: the template of Gemma 4.
const GEMMA_MARK: &str = "<|\"|>";
/// Token that begins each tag. Source: the template of MiniMax M3.
const MINIMAX_MARK: &str = "]<]minimax[>[";

/// Grammar of the arguments of one tool's calls.
#[derive(Debug, Clone, PartialEq)]
pub struct CallText {
    /// Normalized schema.
    pub schema: Value,
    /// Schema that llama.cpp's parser gets, so that it parses the texts that the grammar allows.
    pub parser_schema: Value,
    text: Text,
}

impl CallText {
    /// Returns the grammar for a normalized schema of arguments. Except for `required`, the schema must not have
    /// conditions on several arguments.
    ///
    /// Errors: the part of the schema that this format cannot express, or a grammar beyond its limits.
    pub fn new(schema: Value, form: ArgumentForm, budget: &GrammarBudget) -> Result<Self, SchemaError> {
        let (text, parser_schema) = write(&schema, form, budget)?;
        Ok(Self { schema, parser_schema, text })
    }

    /// Returns the grammar in Lark's syntax; `compiler_s` converts a schema to the compiler's JSON.
    pub fn lark(&self, compiler_s: impl Fn(&Value) -> String) -> String {
        self.text.lark(compiler_s)
    }
}

/// Returns the grammar of a tool's arguments, and the schema with which it is parsed.
fn write(schema: &Value, form: ArgumentForm, budget: &GrammarBudget) -> Result<(Text, Value), SchemaError> {
    let definitions = Definitions::of(schema);
    let mut depth_max = if form == ArgumentForm::MiniMaxM3 { DEPTH_MAX } else { 0 };
    loop {
        budget.begin();
        let mut writer = CallWriter::new((form, depth_max), (schema, &definitions), budget);
        let written = writer.arguments(schema);
        // A schema that contains itself several times has several times as many elements at each level.
        if depth_max > 0 && (writer.n_elements > ELEMENTS_MAX || budget.is_spent()) {
            depth_max /= 2;
            continue;
        }
        let (start, parser_schema) = written?;
        let mut text = writer.text;
        text.start = start;
        return Ok((text, parser_schema));
    }
}

/// Part of the grammar, and the schema with which it is parsed.
type Written = Result<(String, Value), SchemaError>;

/// Property of an object.
struct ArgumentProperty {
    /// Expression of its name and value.
    expression: String,
    is_required: bool,
}

/// Writes the grammar of one tool.
struct CallWriter<'a> {
    form: ArgumentForm,
    depth_max: usize,
    reader: SchemaReader<'a>,
    definitions: &'a Definitions<'a>,
    n_elements: usize,
    text: Text,
}

impl<'a> CallWriter<'a> {
    fn new(
        (form, depth_max): (ArgumentForm, usize),
        (schema, definitions): (&'a Value, &'a Definitions<'a>),
        budget: &'a GrammarBudget,
    ) -> Self {
        let reader = SchemaReader::new(schema, budget);
        Self { form, depth_max, reader, definitions, n_elements: 0, text: Text::default() }
    }

    /// Writes all arguments and the mark that closes the call.
    fn arguments(&mut self, schema: &'a Value) -> Written {
        let Value::Object(keywords) = schema else { return Err(refuse("", "arguments must be an object")) };
        let (members, parser_schema) = self.members(keywords, 0)?;
        let quote = |text: &str| Text::quoted(text);
        let start = match self.form {
            ArgumentForm::Gemma4 => format!("\"{{\" {} \"}}\"", self.text.separated(members, ",", Least::None)),
            // llama.cpp cannot parse a call without arguments of a tool that has parameters.
            ArgumentForm::Lfm2 if !members.is_empty() => {
                format!("{} \")\"", self.text.separated(members, ", ", Least::One))
            }
            ArgumentForm::Lfm2 => "\")\"".to_owned(),
            ArgumentForm::KimiK3 => {
                let index = "/ index=\"[1-9][0-9]{0,2}\"<\\|sep\\|>/";
                format!("{index} {} {}", Text::joined(members), quote("<|close|>call<|sep|>"))
            }
            ArgumentForm::MiniCpm5 => format!("{} {}", Text::joined(members), quote("</function>")),
            ArgumentForm::MiniMaxM3 => {
                format!("{} {}", Text::joined(members), quote(&format!("{MINIMAX_MARK}</invoke>")))
            }
        };
        Ok((start, parser_schema))
    }

    /// Writes the properties of an object, in the order in which the template or llama.cpp's parser has them.
    fn members(
        &mut self,
        keywords: &'a Map<String, Value>,
        depth: usize,
    ) -> Result<(Vec<ArgumentProperty>, Value), SchemaError> {
        let required: Vec<&str> = keywords
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut properties: Vec<(&str, &Value)> = keywords
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(name, schema)| (name.as_str(), schema))
            .collect();
        match self.form {
            ArgumentForm::Gemma4 => properties.sort_by_key(|(name, _)| name.to_lowercase()),
            ArgumentForm::MiniMaxM3 => properties.sort_by_key(|(name, _)| !required.contains(name)),
            ArgumentForm::KimiK3 | ArgumentForm::Lfm2 | ArgumentForm::MiniCpm5 => {}
        }
        let (mut members, mut parser_schema) = (Vec::new(), Map::new());
        for (name, schema) in properties {
            let below = |error: SchemaError| error.below(&format!("properties.{name}"));
            let (expression, read) = self.member(name, schema, depth).map_err(below)?;
            members.push(ArgumentProperty { expression, is_required: required.contains(&name) });
            parser_schema.insert(name.to_owned(), read);
        }
        Ok((members, json!({"type": "object", "properties": parser_schema, "required": required})))
    }

    fn member(&mut self, name: &str, schema: &'a Value, depth: usize) -> Written {
        let quote = |text: &str| Text::quoted(text);
        match self.form {
            ArgumentForm::Gemma4 => {
                let is_bare = !name.is_empty() && !name.starts_with(char::is_whitespace) && !name.contains([':', '}']);
                if !is_bare {
                    return Err(refuse("", "this model's chat template cannot write the name"));
                }
                let value = self.gemma(schema, depth)?;
                Ok((format!("{} {value}", quote(&format!("{name}:"))), json!({})))
            }
            ArgumentForm::Lfm2 => {
                let value = self.json(schema, ALL)?;
                Ok((format!("{} {value}", quote(&format!("{name}="))), json!({})))
            }
            ArgumentForm::KimiK3 => {
                let (value, parser_schema) = self.kimi(schema)?;
                Ok((format!("{} {value}", quote(&format!("<|open|>argument key=\"{name}\" type="))), parser_schema))
            }
            ArgumentForm::MiniCpm5 => {
                let (value, parser_schema) = self.minicpm(schema)?;
                Ok((format!("{} {value}", quote(&format!("<param name=\"{name}\">"))), parser_schema))
            }
            ArgumentForm::MiniMaxM3 => {
                let (value, parser_schema) = self.minimax(schema, &format!("{MINIMAX_MARK}</{name}>"), depth)?;
                Ok((format!("{} {value}", quote(&format!("{MINIMAX_MARK}<{name}>"))), parser_schema))
            }
        }
    }

    /// Writes a value in the form of Kimi K3, after `type=`.
    fn kimi(&mut self, schema: &'a Value) -> Written {
        let close = "<|close|>argument<|sep|>";
        if let Some(text) = self.string(schema)? {
            let value = self.text.closed("", &text, close);
            return Ok((format!("{} {value}", Text::quoted("\"string\"<|sep|>")), json!({"type": "string"})));
        }
        let kinds = [(BOOLEAN, "boolean"), (NULL, "null"), (NUMBER, "number"), (OBJECT, "object"), (ARRAY, "array")];
        let types = self.reader.types(schema);
        let mut ways = Vec::new();
        for (kind, name) in kinds.into_iter().filter(|(kind, _)| types & kind != 0) {
            let value = self.json(schema, kind & types)?;
            ways.push(format!("{} {value}", Text::quoted(&format!("\"{name}\"<|sep|>"))));
        }
        Ok((format!("({}) {}", either(&ways)?, Text::quoted(close)), json!({"type": "object"})))
    }

    /// Writes a value in the form of MiniCPM 5, with its closing tag.
    fn minicpm(&mut self, schema: &'a Value) -> Written {
        const OPEN_CDATA: &str = "<![CDATA[";
        let Some(text) = self.string(schema)? else {
            let value = self.json(schema, ALL)?;
            return Ok((format!("{value} {}", Text::quoted("</param>")), json!({})));
        };
        let plain = format!("({text} & ~/{}(?s:.*)/)", Text::escaped(OPEN_CDATA));
        let (plain, data) = (self.text.closed("", &plain, "</param>"), self.text.closed(OPEN_CDATA, &text, "]]>"));
        Ok((format!("({plain} | {data} {})", Text::quoted("</param>")), json!({"type": "string"})))
    }

    /// Writes a value in the form of MiniMax M3, with its closing tag.
    fn minimax(&mut self, schema: &'a Value, close: &str, depth: usize) -> Written {
        self.n_elements += 1;
        if self.n_elements > ELEMENTS_MAX {
            return Err(refuse("", &format!("it has more than {ELEMENTS_MAX} elements")));
        }
        if let Some(text) = self.string(schema)? {
            return Ok((self.text.closed("", &text, close), json!({"type": "string"})));
        }
        let is_scalar = self.reader.types(schema) & (NUMBER | BOOLEAN) != 0;
        let structures = self.structures(schema, ALL, 0).unwrap_or_default();
        let (value, parser_schema) = match structures[..] {
            [(OBJECT, keywords)] if !is_scalar && depth < self.depth_max && is_written_by_name(keywords) => {
                let (members, parser_schema) = self.members(keywords, depth + 1)?;
                (Text::joined(members), parser_schema)
            }
            [(ARRAY, keywords)] if !is_scalar && depth < self.depth_max && !keywords.contains_key("prefixItems") => {
                let items = keywords.get("items").unwrap_or(&ANYTHING);
                let below = |error: SchemaError| error.below("items");
                let item_close = format!("{MINIMAX_MARK}</item>");
                let (item, parser_schema) = self.minimax(items, &item_close, depth + 1).map_err(below)?;
                let item = self.text.rule(format!("{} {item}", Text::quoted(&format!("{MINIMAX_MARK}<item>"))));
                let (least, most) = counts(keywords);
                (Text::repeated(&item, "", least, most), json!({"type": "array", "items": parser_schema}))
            }
            _ => (self.json(schema, ALL)?, json!({})),
        };
        self.text.check_size()?;
        Ok((format!("{value} {}", Text::quoted(close)), parser_schema))
    }

    /// Writes a value in the form of Gemma 4, as a rule.
    fn gemma(&mut self, schema: &'a Value, depth: usize) -> Result<String, SchemaError> {
        if is_any(schema) {
            return Ok(self.text.any_of_gemma());
        }
        let types = self.reader.types(schema);
        let mut ways = Vec::new();
        if let Some(text) = self.string(schema)? {
            ways.push(self.text.closed(GEMMA_MARK, &text, GEMMA_MARK));
        }
        if types & (NULL | BOOLEAN | NUMBER) != 0 {
            ways.push(self.json(schema, types & (NULL | BOOLEAN | NUMBER))?);
        }
        for (kind, keywords) in self.structures(schema, ALL, 0)? {
            let place = std::ptr::from_ref(keywords) as usize;
            let (rule, is_new) = self.text.named((place, kind));
            if is_new {
                if depth >= RULE_DEPTH_MAX {
                    return Err(refuse("", &format!("the schema is nested more than {RULE_DEPTH_MAX} deep")));
                }
                let body = match kind {
                    OBJECT => self.gemma_object(keywords, depth + 1)?,
                    _ => self.gemma_array(keywords, depth + 1)?,
                };
                self.text.define(&rule, &body);
            }
            ways.push(rule);
        }
        self.text.check_size()?;
        let ways = either(&ways)?;
        Ok(self.text.rule(ways))
    }

    fn gemma_object(&mut self, keywords: &'a Map<String, Value>, depth: usize) -> Result<String, SchemaError> {
        check_apart(keywords)?;
        let members = if keywords.contains_key("properties") {
            let (members, _) = self.members(keywords, depth)?;
            self.text.separated(members, ",", Least::None)
        } else {
            match keywords.get("additionalProperties") {
                Some(Value::Bool(false)) => String::new(),
                None | Some(Value::Bool(true)) => self.text.members_of_gemma(),
                Some(schema) => {
                    let value = self.gemma(schema, depth).map_err(|error| error.below("additionalProperties"))?;
                    self.text.named_by_anything(&value)
                }
            }
        };
        Ok(format!("\"{{\" {members} \"}}\""))
    }

    fn gemma_array(&mut self, keywords: &'a Map<String, Value>, depth: usize) -> Result<String, SchemaError> {
        if keywords.contains_key("prefixItems") {
            return Err(refuse("prefixItems", "it cannot be enforced with this model's chat template"));
        }
        let item = match keywords.get("items") {
            None => self.text.any_of_gemma(),
            Some(items) => self.gemma(items, depth).map_err(|error| error.below("items"))?,
        };
        let (least, most) = counts(keywords);
        Ok(format!("\"[\" {} \"]\"", Text::repeated(&item, "\",\"", least, most)))
    }

    /// Returns the expression of a schema's strings; `None` if it allows none.
    fn string(&self, schema: &'a Value) -> Result<Option<String>, SchemaError> {
        self.reader.of(schema, STRING, 0)
    }

    /// Returns the rule for a schema's values of some types, written as JSON.
    ///
    /// Errors: the grammar is beyond the budget.
    fn json(&mut self, schema: &'a Value, types: u8) -> Result<String, SchemaError> {
        let names = [
            (NULL, NULL, "null"),
            (BOOLEAN, BOOLEAN, "boolean"),
            (NUMBER, INTEGER, "integer"),
            (NUMBER, NUMBER, "number"),
            (NUMBER, FRACTION, "number"),
            (STRING, STRING, "string"),
            (ARRAY, ARRAY, "array"),
            (OBJECT, OBJECT, "object"),
        ];
        let names: Vec<&str> = names
            .into_iter()
            .filter(|(kinds, exactly, _)| types & kinds != 0 && types & kinds == *exactly)
            .map(|(_, _, name)| name)
            .collect();
        let own = without_definitions(schema);
        // A schema with only these types needs no further condition.
        let is_all = self.reader.types(schema) & !types == 0;
        let json = if is_all { own } else { json!({"allOf": [own, {"type": names}]}) };
        let own = json.to_string();
        self.reader.budget.take(own.len())?;
        if let Some(known) = self.text.known_json(&own) {
            return Ok(known);
        }
        let json = self.definitions.complete(json, self.reader.budget)?;
        Ok(self.text.json(&own, json))
    }

    /// Returns the lists and objects that a schema allows, each with the keywords that restrict it.
    ///
    /// Errors: several schemas restrict the same list or object, constants are lists or objects, or the list is beyond
    /// the budget.
    fn structures(&self, schema: &'a Value, mask: u8, depth: usize) -> Result<Vec<Structure<'a>>, SchemaError> {
        const OWN: [&str; 9] = [
            "properties",
            "patternProperties",
            "additionalProperties",
            "required",
            "minProperties",
            "maxProperties",
            "items",
            "minItems",
            "maxItems",
        ];
        self.reader.budget.visit()?;
        let mask = mask & self.reader.types(schema) & (ARRAY | OBJECT);
        let Value::Object(keywords) = schema else { return Ok(Vec::new()) };
        if mask == 0 {
            return Ok(Vec::new());
        }
        let combined: Vec<&str> =
            ["anyOf", "allOf", "$ref"].into_iter().filter(|keyword| keywords.contains_key(*keyword)).collect();
        let is_own = OWN.iter().any(|keyword| keywords.contains_key(*keyword)) || keywords.contains_key("prefixItems");
        if keywords.contains_key("const") || keywords.contains_key("enum") {
            return Err(refuse(
                "",
                "lists and objects as constants cannot be enforced with this model's chat template",
            ));
        }
        // Only one schema may restrict it: the template's form is written once for each list or object.
        let within = |schema: &'a Value| self.structures(schema, mask, depth + 1);
        match (combined.as_slice(), is_own) {
            ([], _) => {
                Ok([OBJECT, ARRAY].into_iter().filter(|kind| mask & kind != 0).map(|kind| (kind, keywords)).collect())
            }
            (["anyOf"], false) => {
                let all: Result<Vec<_>, _> = keywords["anyOf"].as_array().into_iter().flatten().map(within).collect();
                Ok(all?.concat())
            }
            (["allOf"], false) if keywords["allOf"].as_array().is_some_and(|all| all.len() == 1) => {
                within(&keywords["allOf"][0])
            }
            (["$ref"], false) if depth < super::DEPTH_MAX => {
                let name = keywords["$ref"].as_str().unwrap_or_default();
                self.reader.found(name).map_or_else(|| Ok(Vec::new()), within)
            }
            _ => {
                let reason = "lists and objects that several keywords combine cannot be enforced with this model's chat template";
                Err(refuse("", reason))
            }
        }
    }
}

/// Returns an expression for one of several alternatives.
fn either(ways: &[String]) -> Result<String, SchemaError> {
    if ways.is_empty() { Err(refuse("", "no value is valid")) } else { Ok(ways.join(" | ")) }
}

/// Returns whether a schema allows everything.
fn is_any(schema: &Value) -> bool {
    match schema {
        Value::Bool(any) => *any,
        Value::Object(keywords) => keywords.keys().all(|keyword| keyword == "$defs"),
        _ => false,
    }
}

/// Returns the minimum and the maximum number of items of a list.
fn counts(keywords: &Map<String, Value>) -> (u64, Option<u64>) {
    let count = |name: &str| keywords.get(name).and_then(Value::as_u64);
    (count("minItems").unwrap_or(0), count("maxItems"))
}

/// Checks that an object's normalized schema has no condition on several properties apart from `required`.
///
/// Errors: the keyword of such a condition.
pub fn check_apart(schema: &Map<String, Value>) -> Result<(), SchemaError> {
    let refuse = |path: &str, reason: &str| Err(SchemaError { path: path.to_owned(), reason: reason.to_owned() });
    let properties = schema.get("properties").and_then(Value::as_object);
    let required: Vec<&Value> = schema.get("required").and_then(Value::as_array).into_iter().flatten().collect();
    let n_properties = properties.map_or(0, Map::len) as u64;
    for (keyword, value) in schema {
        let is_kept = match keyword.as_str() {
            "type" | "properties" | "additionalProperties" | "$defs" => true,
            "required" => required.iter().all(|name| {
                name.as_str().is_some_and(|name| properties.is_some_and(|properties| properties.contains_key(name)))
            }),
            "minProperties" => value.as_u64().is_some_and(|least| least <= required.len() as u64),
            "maxProperties" => value.as_u64().is_some_and(|most| most >= n_properties),
            _ => false,
        };
        if !is_kept {
            return refuse(
                keyword,
                "it is not supported by this model's chat template, which writes the arguments one by one",
            );
        }
    }
    Ok(())
}

/// Returns whether every property of an object is named and independent of the others.
fn is_written_by_name(keywords: &Map<String, Value>) -> bool {
    keywords.get("properties").and_then(Value::as_object).is_some_and(|properties| !properties.is_empty())
        && check_apart(keywords).is_ok()
}

#[cfg(test)]
mod tests;
