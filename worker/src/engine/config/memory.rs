//! Sizes of memory in the configuration and in start-up errors.
//!
//! Not here: the memory that a worker takes (`footprint`).

use std::fmt;

/// Settings for fitting a default context to the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// Memory that stays free. Units: bytes.
    pub spare_bytes: u64,
    /// Smallest context of a slot. Units: tokens.
    pub slot_tokens_min: u32,
}

/// A size, formatted in a suitable unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0 as f64 / f64::from(1 << 20);
        if mib < 1024.0 { write!(out, "{mib:.1} MiB") } else { write!(out, "{:.1} GiB", mib / 1024.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn sizes_are_shown_in_a_suitable_unit() {
        assert_eq!(Bytes(0).to_string(), "0.0 MiB");
        assert_eq!(Bytes(1536 * MIB).to_string(), "1.5 GiB");
    }
}
