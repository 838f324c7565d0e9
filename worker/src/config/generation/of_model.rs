//! Defaults of requests in a model's file, `general.sampling.*`, which converters write from `generation_config.json`.
//!
//! Each value has the range of the request's field. One that no request could have is not used, and the reason is kept
//! for the log.
//! Source: `common_init_sampler_from_model` of llama.cpp.

use serde_json::{Map, Number, Value, json};
use warmpath_gguf::{Header, MetadataValue};

use super::resolved;
use crate::engine::{Generation, MetadataOverride, SamplerKind};
use crate::request::generation::GenerationFields;

/// Beginning of the keys.
const PREFIX: &str = "general.sampling.";

/// Ends of the keys, and the request fields that they set.
const KEYS: [(&str, &str); 12] = [
    ("sequence", SAMPLERS),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("xtc_probability", "xtc_probability"),
    ("xtc_threshold", "xtc_threshold"),
    ("temp", "temperature"),
    ("penalty_last_n", "repeat_last_n"),
    ("penalty_repeat", "repeat_penalty"),
    ("mirostat", "mirostat"),
    ("mirostat_tau", "mirostat_tau"),
    ("mirostat_eta", "mirostat_eta"),
];

/// The only field that is not a number.
const SAMPLERS: &str = "samplers";

/// Text between the names of samplers.
const SEPARATOR: char = ';';

/// Defaults of requests that a model's file sets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelDefaults {
    /// Usable values, by the names of request fields.
    fields: Map<String, Value>,
    /// Values that are not used, or only in part.
    unusable: Vec<UnusableDefault>,
}

/// A default of a model's file that is not used, or only in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableDefault {
    /// Key in the file.
    pub key: String,
    /// Reason.
    pub reason: String,
}

impl ModelDefaults {
    /// Returns the defaults of a file's header, with the replacements of its values.
    pub fn read(header: &Header, overrides: &[MetadataOverride]) -> Self {
        let mut keys = header.keys();
        keys.extend(overrides.iter().map(|one| one.key.clone()));
        keys.retain(|key| key.starts_with(PREFIX));
        keys.sort();
        keys.dedup();
        let mut defaults = Self::default();
        for key in keys {
            let override_value = overrides.iter().find(|one| one.key == key).map(|one| one.value.clone());
            let value = override_value.or_else(|| header.scalar(&key));
            defaults.add(key, value);
        }
        defaults
    }

    /// Adds the value of a key; `None` stands for a list.
    fn add(&mut self, key: String, value: Option<MetadataValue>) {
        let name = key.strip_prefix(PREFIX).unwrap_or_default();
        let Some((_, field)) = KEYS.iter().find(|(known, _)| *known == name) else {
            return self.refuse(key, "there is no such default".to_owned());
        };
        let result = match (*field, value) {
            (_, None) => Err("it is a list".to_owned()),
            (SAMPLERS, Some(value)) => self.samplers(&key, &value),
            (_, Some(value)) => number(&value),
        };
        match result.and_then(|value| checked(field, value)) {
            Ok(value) => drop(self.fields.insert((*field).to_owned(), value)),
            Err(reason) => self.refuse(key, reason),
        }
    }

    /// Returns the samplers that a text names. Unknown names are left out, as in llama-server.
    ///
    /// Errors: it is no text, or it names no sampler.
    fn samplers(&mut self, key: &str, value: &MetadataValue) -> Result<Value, String> {
        let MetadataValue::Str(names) = value else { return Err(format!("{value} is not a text")) };
        let (known, unknown): (Vec<_>, Vec<_>) =
            names.split(SEPARATOR).partition(|name| SamplerKind::of_name(name).is_some());
        if known.is_empty() {
            return Err(format!("{names:?} names no sampler"));
        }
        if !unknown.is_empty() {
            self.refuse(key.to_owned(), format!("there is no sampler {}", json!(unknown)));
        }
        Ok(json!(known))
    }

    fn refuse(&mut self, key: String, reason: String) {
        self.unusable.push(UnusableDefault { key, reason });
    }

    /// Returns the generation parameters of a request without fields, at a worker without flags for them.
    pub fn generation(&self) -> Generation {
        let fields = fields(self.fields.clone()).expect("the values are checked one by one");
        resolved(fields, &Generation::default()).expect("the values are checked one by one")
    }

    /// Returns the usable values, by the names of request fields.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.fields.iter().map(|(field, value)| (field.as_str(), value))
    }

    /// Returns the values that are not used, or only in part.
    pub fn unusable(&self) -> &[UnusableDefault] {
        &self.unusable
    }
}

/// Returns a number as JSON, a whole one without a fraction.
///
/// Errors: it is not a number.
fn number(value: &MetadataValue) -> Result<Value, String> {
    let number = match value {
        MetadataValue::Int(whole) => Some(Number::from(*whole)),
        MetadataValue::Float(float) if *float as i64 as f64 == *float => Some(Number::from(*float as i64)),
        // The shortest decimal form of a 32-bit float: 0.7 is not 0.699999988079071.
        MetadataValue::Float(float) => (*float as f32).to_string().parse().ok().and_then(Number::from_f64),
        MetadataValue::Bool(_) | MetadataValue::Str(_) => None,
    };
    number.map(Value::Number).ok_or_else(|| format!("{value} is not a number"))
}

/// Returns the value if a request's field may have it.
///
/// Errors: the reason why it may not.
fn checked(field: &str, value: Value) -> Result<Value, String> {
    let one = fields(Map::from_iter([(field.to_owned(), value.clone())])).map_err(|error| error.to_string())?;
    resolved(one, &Generation::default()).map_err(|error| error.to_string())?;
    Ok(value)
}

/// Returns the fields of a request with these values.
///
/// Errors: serde's, if a value has another type than its field.
fn fields(values: Map<String, Value>) -> serde_json::Result<GenerationFields> {
    serde_json::from_value(Value::Object(values))
}

#[cfg(test)]
mod tests;
