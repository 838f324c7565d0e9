//! Random schemas of every supported kind, small enough that responses of random tokens end.
//!
//! There is one function for each kind. A schema is satisfiable by construction, and a flag records whether a response
//! may continue forever. Not here: running them (`schemas`).

use rand::RngExt;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

/// A schema and whether all of its responses are short.
pub struct RandomSchema {
    pub schema: Value,
    pub is_bounded: bool,
}

/// Returns a schema that depends only on the random numbers.
pub fn random_schema(rng: &mut ChaCha8Rng) -> RandomSchema {
    let mut maker = Maker { rng, defs: Map::new(), is_bounded: true };
    let mut schema = maker.any_kind(3);
    if !maker.defs.is_empty() {
        schema = json!({ "allOf": [schema], "$defs": maker.defs });
    }
    RandomSchema { schema, is_bounded: maker.is_bounded }
}

const NAMES: [&str; 12] =
    ["a", "id", "name", "kind", "x y", "ключ", "é\"q", "long_property_name", "0", "n\n", "$ref", "type"];

const PATTERNS: [&str; 10] = [
    "^[0-9]{5}$",
    "^[a-z]{1,8}$",
    "^(foo|bar)-[0-9]{2,3}$",
    "^[A-Z][a-z]{0,5}( [A-Z][a-z]{0,5})?$",
    "^\\d{3}-\\d{4}$",
    "^\\w{1,6}$",
    "^#[0-9a-fA-F]{6}$",
    "^(a|b){2,4}c?$",
    "^[^a-z0-9]{1,4}$",
    "^v[0-9]{1,2}\\.[0-9]{1,2}\\.[0-9]{1,2}$",
];

const FORMATS: [&str; 7] = ["date", "time", "date-time", "uuid", "ipv4", "ipv6", "duration"];

struct Maker<'a> {
    rng: &'a mut ChaCha8Rng,
    defs: Map<String, Value>,
    is_bounded: bool,
}

impl Maker<'_> {
    fn any_kind(&mut self, depth: usize) -> Value {
        let n_kinds = if depth == 0 { 6 } else { 14 };
        match self.rng.random_range(0..n_kinds) {
            0 => self.text(),
            1 => self.integer(),
            2 => self.number(),
            3 => json!({ "type": "boolean" }),
            4 => self.constants(),
            5 => self.several_types(),
            6..=8 => self.object(depth),
            9 => self.array(depth),
            10 => {
                json!({ "anyOf": (0..self.rng.random_range(1..4)).map(|_| self.any_kind(depth - 1)).collect::<Vec<_>>() })
            }
            11 => self.one_of(depth),
            12 => self.all_of(depth),
            _ => self.reference(depth),
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn text(&mut self) -> Value {
        match self.rng.random_range(0..4) {
            0 => json!({ "type": "string", "pattern": PATTERNS.choose(self.rng) }),
            1 => json!({ "type": "string", "format": FORMATS.choose(self.rng) }),
            2 => {
                let min = self.rng.random_range(0..4);
                json!({ "type": "string", "minLength": min, "maxLength": min + self.rng.random_range(0..8) })
            }
            _ => json!({ "type": "string", "maxLength": self.rng.random_range(0..12) }),
        }
    }

    fn integer(&mut self) -> Value {
        let min = self.rng.random_range(-1000..1000);
        let max = min + self.rng.random_range(10..5000);
        match self.rng.random_range(0..5) {
            0 => json!({ "type": "integer" }),
            1 => json!({ "type": "integer", "minimum": min }),
            2 => json!({ "type": "integer", "exclusiveMinimum": min, "exclusiveMaximum": max }),
            3 => {
                json!({ "type": "integer", "minimum": min, "maximum": max, "multipleOf": self.rng.random_range(1..9) })
            }
            _ => json!({ "type": "integer", "minimum": min, "maximum": max }),
        }
    }

    fn number(&mut self) -> Value {
        let min = f64::from(self.rng.random_range(-100_000..100_000)) / 1000.0;
        let max = min + f64::from(self.rng.random_range(1..100_000)) / 100.0;
        if self.chance(20) {
            return json!({ "type": "number", "minimum": -10, "maximum": 10, "multipleOf": 0.25 });
        }
        if self.chance(50) {
            return json!({ "type": "number", "exclusiveMinimum": min, "maximum": max });
        }
        json!({ "type": "number", "minimum": min, "exclusiveMaximum": max })
    }

    fn constants(&mut self) -> Value {
        let values = [
            json!("red"),
            json!("grün"),
            json!("a\"b\\c\n"),
            json!(1),
            json!(-2.5),
            json!(null),
            json!(true),
            json!([1, "x"]),
            json!({ "k": [null] }),
            json!(""),
            json!("\t\u{c}"),
            json!(1e3),
        ];
        if self.chance(30) {
            return json!({ "const": values.choose(self.rng) });
        }
        let n = self.rng.random_range(1..6);
        json!({ "enum": values.sample(self.rng, n).collect::<Vec<_>>() })
    }

    fn several_types(&mut self) -> Value {
        json!({ "type": ["integer", "null", "boolean"], "minimum": 0, "maximum": self.rng.random_range(1..100) })
    }

    fn object(&mut self, depth: usize) -> Value {
        let n = self.rng.random_range(0..5);
        let names: Vec<&str> = NAMES.sample(self.rng, n).copied().collect();
        let properties: Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), self.any_kind(depth - 1))).collect();
        let required: Vec<&str> = names.iter().copied().filter(|_| self.chance(60)).collect();
        let mut schema = json!({ "type": "object", "properties": properties, "required": required });
        match self.rng.random_range(0..10) {
            0 => {
                self.is_bounded = false;
                schema["additionalProperties"] = self.any_kind(depth - 1);
            }
            1 => {
                schema["patternProperties"] = json!({ "^p_[0-9]{1,3}$": self.any_kind(depth - 1) });
                schema["additionalProperties"] = json!(false);
            }
            2 if required.len() == n => {
                self.is_bounded = false;
                schema["minProperties"] = json!(n + 1);
                schema["maxProperties"] = json!(n + 2);
                schema["additionalProperties"] = json!({ "type": "integer", "minimum": 0, "maximum": 9 });
            }
            _ => schema["additionalProperties"] = json!(false),
        }
        schema
    }

    fn array(&mut self, depth: usize) -> Value {
        let items = self.any_kind(depth - 1);
        let min = self.rng.random_range(0..3);
        let max = min + self.rng.random_range(0..3);
        if self.chance(30) {
            let prefix: Vec<Value> = (0..2).map(|_| self.any_kind(depth - 1)).collect();
            let n = prefix.len() + max;
            return json!({ "type": "array", "prefixItems": prefix, "items": items, "minItems": min, "maxItems": n });
        }
        json!({ "type": "array", "items": items, "minItems": min, "maxItems": max })
    }

    fn one_of(&mut self, depth: usize) -> Value {
        if self.chance(50) {
            return json!({ "oneOf": [self.text(), self.integer(), self.object(depth), { "type": "null" }] });
        }
        let mut tagged = |tag: &str| {
            let inner = self.any_kind(depth - 1);
            json!({
                "type": "object",
                "properties": { "kind": { "const": tag }, "value": inner },
                "required": ["kind", "value"],
                "additionalProperties": false,
            })
        };
        json!({ "oneOf": [tagged("cat"), tagged("dog"), tagged("cow")] })
    }

    fn all_of(&mut self, depth: usize) -> Value {
        if self.chance(50) {
            return json!({ "allOf": [{ "type": "integer", "minimum": 5 }, { "maximum": self.rng.random_range(6..300) }] });
        }
        let part =
            |name: &str, inner: Value| json!({ "type": "object", "properties": { name: inner }, "required": [name] });
        let (a, b) = (self.any_kind(depth - 1), self.any_kind(depth - 1));
        let both = json!({ "properties": { "first": true, "second": true }, "additionalProperties": false });
        json!({ "allOf": [part("first", a), part("second", b), both] })
    }

    fn reference(&mut self, depth: usize) -> Value {
        let name = format!("d{}", self.defs.len());
        let place = json!({ "$ref": format!("#/$defs/{name}") });
        self.defs.insert(name.clone(), Value::Null);
        let definition = if self.chance(50) {
            let inner = self.any_kind(depth - 1);
            json!({
                "type": "object",
                "properties": { "value": inner, "next": { "anyOf": [place, { "type": "null" }] } },
                "required": ["value", "next"],
                "additionalProperties": false,
            })
        } else {
            self.any_kind(depth - 1)
        };
        self.defs.insert(name, definition);
        place
    }
}
