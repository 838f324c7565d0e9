//! Fingerprints of files and of layouts, computed in `warmpath-gguf` and by the worker.

use std::fmt;

use crate::hash::hex::{hex_serde, to_hex};

/// Fingerprint of a model file or of a KV layout: 32 bytes of blake3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

hex_serde!(Fingerprint, 32, |print: &Fingerprint| print.0, Fingerprint);
