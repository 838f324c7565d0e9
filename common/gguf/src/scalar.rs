//! A single metadata value, of any type.

/// A metadata value that is not a list.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataValue {
    /// Whole number.
    Int(i64),
    /// Number.
    Float(f64),
    /// Yes or no.
    Bool(bool),
    /// Text.
    Str(String),
}

impl std::fmt::Display for MetadataValue {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Int(value) => write!(out, "{value}"),
            Self::Float(value) => write!(out, "{value}"),
            Self::Bool(value) => write!(out, "{value}"),
            Self::Str(value) => out.write_str(value),
        }
    }
}
