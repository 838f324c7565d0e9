//! Ids and units that several crates share: tokens, slots, workers, requests.
//!
//! Ids of a single crate, such as llama.cpp's sequence id in the worker, stay there.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One token of a model's vocabulary, as llama.cpp numbers it; never negative in a prompt.
pub type Token = u32;

/// Slot of a worker: the place that runs one sequence at a time.
///
/// Units: index, `0..n_slots`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotId(pub u16);

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Id of a worker. It survives restarts if the worker's configuration or cache directory stays the same.
///
/// Shape: any 64 bits; shown and parsed as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerUid(pub u64);

impl fmt::Display for WorkerUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

crate::hash::hex::hex_serde!(WorkerUid, 8, |uid: &WorkerUid| uid.0.to_be_bytes(), |bytes| WorkerUid(
    u64::from_be_bytes(bytes)
));

/// Id of an HTTP request through router and worker; the value of `x-request-id`.
///
/// Shape: 1 to [`RequestId::BYTES_MAX`] visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(String);

impl RequestId {
    /// Longest id that is accepted from a client; a longer id is replaced by a new one. Source: own choice: an id of
    /// two UUIDs fits.
    pub const BYTES_MAX: usize = 128;

    /// Returns `text` as a request id, or `None` if it is empty, too long or not visible ASCII.
    pub fn new(text: &str) -> Option<Self> {
        let fits = !text.is_empty() && text.len() <= Self::BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| Self(text.to_owned()))
    }

    /// Returns the text of the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
