//! A JSON value with its path in the body, so that every error can name the field.
//!
//! Values are taken out of their object as they are read; `null` counts as absent.

use serde_json::{Map, Value};

use super::DialectError;
use crate::json::empty_maps::{fit_map, is_empty_list};
use crate::json::fields::ReadError;

/// A value and its path.
#[derive(Debug)]
pub(super) struct Field {
    pub path: String,
    pub value: Value,
}

/// An object and its path.
#[derive(Debug)]
pub(super) struct Object {
    /// Path; empty for the whole body.
    pub path: String,
    pub fields: Map<String, Value>,
}

/// Returns an error about the field at `path`.
pub(super) fn wrong(path: &str, what: &str) -> DialectError {
    ReadError::Field { param: Some(path.to_owned()), reason: format!("`{path}` {what}") }.into()
}

/// Returns an error about a feature that the field at `path` asks for.
pub(super) fn unsupported(path: &str, reason: impl Into<String>) -> DialectError {
    DialectError::Unsupported { param: path.to_owned(), reason: reason.into() }
}

impl Field {
    /// Returns the value as a text.
    pub fn text(self) -> Result<String, DialectError> {
        match self.value {
            Value::String(text) => Ok(text),
            _ => Err(wrong(&self.path, "must be a string")),
        }
    }

    /// Returns the value as an object; an empty list is an empty object.
    pub fn object(mut self) -> Result<Object, DialectError> {
        fit_map(&mut self.value);
        match self.value {
            Value::Object(fields) => Ok(Object { path: self.path, fields }),
            _ => Err(wrong(&self.path, "must be an object")),
        }
    }

    /// Returns the items of the value, an array.
    pub fn items(self) -> Result<Vec<Self>, DialectError> {
        match self.value {
            Value::Array(items) => {
                let place = |(idx, value)| Self { path: format!("{}[{idx}]", self.path), value };
                Ok(items.into_iter().enumerate().map(place).collect())
            }
            _ => Err(wrong(&self.path, "must be an array")),
        }
    }
}

impl Object {
    /// Returns the whole body.
    pub fn whole(fields: Map<String, Value>) -> Self {
        Self { path: String::new(), fields }
    }

    /// Returns the path of the field `name`.
    pub fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Takes a field out; `None` where it is absent or null.
    pub fn take(&mut self, name: &str) -> Option<Field> {
        let value = self.fields.remove(name).filter(|value| !value.is_null())?;
        Some(Field { path: self.path_of(name), value })
    }

    /// Takes out a required field.
    pub fn required(&mut self, name: &str) -> Result<Field, DialectError> {
        self.take(name).ok_or_else(|| wrong(&self.path_of(name), "is missing"))
    }

    /// Takes out a required text.
    pub fn text(&mut self, name: &str) -> Result<String, DialectError> {
        self.required(name)?.text()
    }

    /// Takes out a required field; `None` where it is null.
    pub fn nullable(&mut self, name: &str) -> Result<Option<Field>, DialectError> {
        let is_null = self.fields.get(name).is_some_and(Value::is_null);
        if is_null { Ok(None) } else { self.required(name).map(Some) }
    }

    /// Takes out a required text, which is empty where it is null.
    pub fn nullable_text(&mut self, name: &str) -> Result<String, DialectError> {
        self.nullable(name)?.map_or_else(|| Ok(String::new()), Field::text)
    }

    /// Takes out a text, if there is one.
    pub fn optional_text(&mut self, name: &str) -> Result<Option<String>, DialectError> {
        self.take(name).map(Field::text).transpose()
    }

    /// Takes out an object, if there is one; an empty list is none.
    pub fn optional_object(&mut self, name: &str) -> Result<Option<Self>, DialectError> {
        self.take(name).filter(|field| !is_empty_list(&field.value)).map(Field::object).transpose()
    }

    /// Takes out the items of an array; empty where there is no array.
    pub fn optional_items(&mut self, name: &str) -> Result<Vec<Field>, DialectError> {
        self.take(name).map_or_else(|| Ok(Vec::new()), Field::items)
    }
}
