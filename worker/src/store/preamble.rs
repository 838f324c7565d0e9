//! The first bytes of every file of stored state: its kind, and the checksum of the header behind them.
//!
//! ```text
//! offset  bytes  field
//! 0       8      magic number of the kind of file
//! 8       4      format version, little-endian
//! 12      4      length of the header in bytes, little-endian
//! 16      32     blake3 of bytes 0..16 and of the header
//! ```

use std::io;

/// Length of a preamble.
pub const PREAMBLE_BYTES: usize = 48;
/// Length of the part of a preamble that its checksum covers.
const CHECKED_BYTES: usize = 16;

/// Defect of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The magic number is not that of a chunk's file.
    #[error("not a chunk file")]
    Foreign,
    /// The version of the format is another one.
    #[error("format version {version}")]
    Version {
        /// Its version.
        version: u32,
    },
    /// Its length differs from the one in its header.
    #[error("truncated or too long")]
    Length,
    /// Its header does not match its checksum.
    #[error("damaged header")]
    Header,
    /// Its payload does not match the checksum in its header.
    #[error("damaged payload")]
    Payload,
    /// It belongs to another model, KV layout or block size.
    #[error("of another model")]
    Identity,
    /// Its name does not match its content.
    #[error("misnamed")]
    Name,
}

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileKind {
    /// First bytes of the file.
    pub magic: [u8; 8],
    /// Version of the format.
    pub version: u32,
}

impl FileKind {
    /// Writes the preamble of a file.
    ///
    /// Shape: `head` is room for the preamble, followed by the header. Errors: if the header is longer than 4 GiB.
    pub fn seal(self, head: &mut [u8]) -> io::Result<()> {
        let length = u32::try_from(head.len() - PREAMBLE_BYTES).map_err(io::Error::other)?;
        head[..8].copy_from_slice(&self.magic);
        head[8..12].copy_from_slice(&self.version.to_le_bytes());
        head[12..CHECKED_BYTES].copy_from_slice(&length.to_le_bytes());
        let checksum = checksum(head);
        head[CHECKED_BYTES..PREAMBLE_BYTES].copy_from_slice(&checksum);
        Ok(())
    }

    /// Returns the length of the header in a file that begins with `bytes`.
    ///
    /// Errors: `Foreign`; `Length` if the preamble is not whole; `Version`.
    pub(super) fn header_bytes(self, bytes: &[u8]) -> Result<usize, Damage> {
        if !bytes.starts_with(&self.magic) {
            return Err(Damage::Foreign);
        }
        if bytes.len() < PREAMBLE_BYTES {
            return Err(Damage::Length);
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        match word(8) {
            version if version == self.version => Ok(word(12) as usize),
            version => Err(Damage::Version { version }),
        }
    }
}

/// Returns the header in `head`, which is preamble and header.
///
/// Errors: `Header` if the header does not match its checksum.
pub(super) fn header(head: &[u8]) -> Result<&[u8], Damage> {
    if head[CHECKED_BYTES..PREAMBLE_BYTES] == checksum(head) {
        Ok(&head[PREAMBLE_BYTES..])
    } else {
        Err(Damage::Header)
    }
}

/// Returns the checksum of preamble and header, without the checksum's own bytes.
fn checksum(head: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head[..CHECKED_BYTES]);
    hasher.update(&head[PREAMBLE_BYTES..]);
    *hasher.finalize().as_bytes()
}
