//! Random changes of inputs: of JSON's nodes, of grammars' words, and of the bytes of both.
//!
//! Each time there are only a few changes, so that most of an input stays valid and is parsed. Not here: the requests
//! (`fuzz`).

use rand::RngExt;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

/// Words that parsers know: fields, kinds, keywords of schemas.
const WORDS: &[&str] = &[
    "type",
    "text",
    "content",
    "role",
    "messages",
    "prompt",
    "tools",
    "tool_choice",
    "function",
    "name",
    "parameters",
    "response_format",
    "json_schema",
    "schema",
    "grammar",
    "stop",
    "stream",
    "n",
    "max_tokens",
    "logit_bias",
    "logprobs",
    "properties",
    "items",
    "prefixItems",
    "additionalProperties",
    "patternProperties",
    "required",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "$ref",
    "$defs",
    "pattern",
    "format",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "multipleOf",
    "minProperties",
    "maxProperties",
    "user",
    "assistant",
    "system",
    "tool",
    "string",
    "object",
    "array",
    "integer",
    "number",
    "boolean",
    "null",
    "auto",
    "required",
    "none",
    "#",
    "#/$defs/x",
    "date-time",
    "uuid",
    "^(a|b)*c{2,9}$",
    "(((a*)*)*)*",
    "[^\\x00-\\x{10FFFF}]",
];

/// Words of GBNF.
const GRAMMAR_WORDS: &[&str] = &[
    "root",
    "::=",
    "|",
    "(",
    ")",
    "*",
    "+",
    "?",
    "{2,}",
    "{,3}",
    "{3,1}",
    "{200}",
    "{99999999999}",
    "[a-z]",
    "[^a-z]",
    "[",
    "]",
    "\"x\"",
    "\"",
    "\\",
    "\\x41",
    "\\u00e9",
    "\\U0010FFFF",
    "\\UFFFFFFFF",
    "<[5]>",
    "!<[5]>",
    "<",
    ".",
    "#",
    "\n",
    "\r",
    "ws",
    "root ::= root",
    "x ::= x*",
    "x ::= ",
    "root ::= x",
    "(\"a\"*)*",
    "\0",
];

/// Returns a JSON input changed at a few places.
pub fn json(rng: &mut ChaCha8Rng, input: &str, other: &str) -> Vec<u8> {
    let (mut value, other) = (parse(input), parse(other));
    for _ in 0..rng.random_range(1..=3) {
        change_node(rng, &mut value, &other);
    }
    let text = value.to_string().into_bytes();
    if rng.random_ratio(1, 8) { bytes(rng, text) } else { text }
}

/// Returns a grammar changed at a few places.
pub fn grammar(rng: &mut ChaCha8Rng, input: &str, other: &str) -> String {
    let mut words: Vec<String> = input.split_inclusive(&[' ', '\n', ')', ']', '"']).map(str::to_owned).collect();
    for _ in 0..rng.random_range(1..=6) {
        let at = rng.random_range(0..=words.len());
        match rng.random_range(0..5) {
            0 if at < words.len() => drop(words.remove(at)),
            1 if at < words.len() => {
                let word = words[at].clone();
                let n = [1, 2, 50][rng.random_range(0..3)];
                words.splice(at..at, std::iter::repeat_n(word, n));
            }
            2 => {
                words.insert(at, other.lines().collect::<Vec<_>>().choose(rng).copied().unwrap_or_default().to_owned())
            }
            _ => words.insert(at, (*GRAMMAR_WORDS.choose(rng).expect("there are words")).to_owned()),
        }
    }
    let text = words.concat().into_bytes();
    let text = if rng.random_ratio(1, 4) { bytes(rng, text) } else { text };
    String::from_utf8_lossy(&text).into_owned()
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("the corpus is JSON")
}

/// Changes a random node.
fn change_node(rng: &mut ChaCha8Rng, value: &mut Value, other: &Value) {
    let goes_deeper = rng.random_ratio(3, 4);
    match value {
        Value::Object(fields) if goes_deeper && !fields.is_empty() => {
            let at = rng.random_range(0..fields.len());
            let (_, inner) = fields.iter_mut().nth(at).expect("it is below the length");
            change_node(rng, inner, other);
        }
        Value::Array(items) if goes_deeper && !items.is_empty() => {
            let at = rng.random_range(0..items.len());
            change_node(rng, &mut items[at], other);
        }
        _ => replace(rng, value, other),
    }
}

fn replace(rng: &mut ChaCha8Rng, value: &mut Value, other: &Value) {
    let word = |rng: &mut ChaCha8Rng| (*WORDS.choose(rng).expect("there are words")).to_owned();
    let old = value.take();
    *value = match (rng.random_range(0..10), old) {
        (0, Value::Object(mut fields)) => {
            let inner = node_of(rng, other);
            fields.insert(word(rng), inner);
            Value::Object(fields)
        }
        (1, Value::Object(mut fields)) if !fields.is_empty() => {
            let at = rng.random_range(0..fields.len());
            let name = fields.keys().nth(at).cloned().unwrap_or_default();
            let inner = fields.shift_remove(&name).unwrap_or_default();
            if rng.random_bool(0.5) {
                fields.insert(word(rng), inner);
            }
            Value::Object(fields)
        }
        (2, Value::Array(items)) => {
            let n = [2, 40, 700][rng.random_range(0..3)];
            Value::Array(items.iter().cycle().take(items.len().min(20) * n).cloned().collect())
        }
        (3, old) => (0..[1, 5, 150][rng.random_range(0..3)]).fold(old, |inner, _| match inner {
            inner if inner.is_array() => json!({ "items": inner }),
            inner => json!([inner]),
        }),
        (4, old) => Value::Object(Map::from_iter([(word(rng), old)])),
        (5, _) => node_of(rng, other),
        (6, _) => Value::String(word(rng)),
        (7, Value::String(text)) => Value::String(text.repeat(rng.random_range(0..400))),
        _ => scalar(rng),
    };
}

/// Returns a random node of a value.
fn node_of(rng: &mut ChaCha8Rng, value: &Value) -> Value {
    let inner = match value {
        Value::Object(fields) => fields.values().collect::<Vec<_>>().choose(rng).copied(),
        Value::Array(items) => items.choose(rng),
        _ => None,
    };
    match inner {
        Some(inner) if rng.random_ratio(3, 4) => node_of(rng, inner),
        _ => value.clone(),
    }
}

fn scalar(rng: &mut ChaCha8Rng) -> Value {
    let values = [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(-1),
        json!(1),
        json!(0.1),
        json!(-0.0),
        json!(1e300),
        json!(-1e-300),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(u32::MAX),
        json!(4096),
        json!(2147483648_u32),
        json!(""),
        json!("\0"),
        json!("é\u{10ffff}"),
        json!("a".repeat(5000)),
        json!([]),
        json!({}),
        json!([[[]]]),
    ];
    values.choose(rng).cloned().unwrap_or_default()
}

/// Returns bytes of which a few were changed, inserted or removed.
fn bytes(rng: &mut ChaCha8Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..rng.random_range(1..=4) {
        let at = rng.random_range(0..=bytes.len());
        match rng.random_range(0..4) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            _ => bytes.insert(at, rng.random()),
        }
    }
    bytes
}
