//! The bytes of a chunk's file: a preamble, a header with its checksum, the payload.
//!
//! The preamble identifies the file and has the header's checksum; the header describes the payload and has its
//! checksum. So a header can be verified without reading the payload. Not here: the paths of files and safe writing
//! (`folder`).
//!
//! ```text
//! offset  bytes  field
//! 0       8      magic "WARMPKVC"
//! 8       4      format version, little-endian
//! 12      4      length of the header in bytes (n), little-endian
//! 16      32     blake3 of bytes 0..16 and of the header
//! 48      n      header: postcard of `ChunkFileHeader`; if the tenant has a share, its identity, 16 bytes big-endian
//! 48 + n         payload, to the end of the file
//! ```

use std::borrow::Cow;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;
use warmpath_worker_core::chunk_index::{ChunkRecord, StateKind};
use warmpath_worker_core::tenants::TenantId;

use super::{Identity, ReadFailure};

/// First bytes of a file.
const MAGIC: [u8; 8] = *b"WARMPKVC";
/// Version of the format, including the layout of payloads. It is part of the folder's name, so that two versions can
/// coexist.
pub(super) const FORMAT_VERSION: u32 = 1;
/// Length of the preamble.
pub(super) const PREAMBLE_BYTES: usize = 48;
/// Length of the part of the preamble that the checksum covers.
const PREAMBLE_CHECKED_BYTES: usize = 16;
/// Longest header that is read.
///
/// Source: a checkpoint after a million tokens has 3 MB of tokens and 1 MB of hashes; the limit is far above both.
const HEADER_BYTES_MAX: usize = 64 << 20;
/// Length of the first read. Units: bytes. Source: it has the whole header of a chunk of 256 tokens, about 1.5 KB.
const FIRST_READ_BYTES: usize = 4096;

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

/// Content of a header.
#[derive(Debug)]
pub struct RecordHeader {
    /// Identity with which the payload can be used.
    pub identity: Identity,
    /// Blocks and size of the payload.
    pub record: ChunkRecord,
    /// Blake3 of the payload.
    pub payload_checksum: [u8; 32],
}

/// A header as in the file; the order of the fields is part of the format.
#[derive(Debug, Serialize, Deserialize)]
struct ChunkFileHeader<'a> {
    identity: Identity,
    is_checkpoint: bool,
    root: BlockHash,
    first_block: u64,
    parent: Option<BlockHash>,
    blocks: Cow<'a, [BlockHash]>,
    tokens: Cow<'a, [Token]>,
    priority: i32,
    payload_bytes: u64,
    payload_checksum: [u8; 32],
}

impl<'a> ChunkFileHeader<'a> {
    fn new(identity: Identity, record: &'a ChunkRecord, payload: &[u8]) -> Self {
        Self {
            identity,
            is_checkpoint: record.kind == StateKind::Checkpoint,
            root: record.root,
            first_block: record.first_block as u64,
            parent: record.parent,
            blocks: Cow::Borrowed(&record.blocks),
            tokens: Cow::Borrowed(&record.tokens),
            priority: record.priority,
            payload_bytes: record.n_bytes,
            payload_checksum: *blake3::hash(payload).as_bytes(),
        }
    }

    fn into_header(self, tenant: Option<TenantId>) -> Option<RecordHeader> {
        let record = ChunkRecord {
            kind: if self.is_checkpoint { StateKind::Checkpoint } else { StateKind::Chunk },
            root: self.root,
            first_block: usize::try_from(self.first_block).ok()?,
            parent: self.parent,
            blocks: self.blocks.into(),
            tokens: self.tokens.into(),
            n_bytes: self.payload_bytes,
            priority: self.priority,
            tenant,
        };
        Some(RecordHeader { identity: self.identity, record, payload_checksum: self.payload_checksum })
    }
}

/// Returns the name of a record's file, made of the last block's hash and the kind.
pub(super) fn file_name(record: &ChunkRecord) -> String {
    let last = record.blocks.last().unwrap_or(&record.root);
    let kind = match record.kind {
        StateKind::Chunk => "chunk",
        StateKind::Checkpoint => "checkpoint",
    };
    format!("{last}.{kind}")
}

/// Returns the bytes before the payload.
///
/// Errors: if record and payload are inconsistent, or the header is too long.
pub fn encode(identity: Identity, record: &ChunkRecord, payload: &[u8]) -> io::Result<Vec<u8>> {
    if record.n_bytes != payload.len() as u64 {
        let text = format!("the payload has {} bytes, and its record {}", payload.len(), record.n_bytes);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let header = ChunkFileHeader::new(identity, record, payload);
    let mut bytes = postcard::to_extend(&header, vec![0; PREAMBLE_BYTES]).map_err(io::Error::other)?;
    // After the other fields, so that files without a tenant can be read, too.
    bytes.extend(record.tenant.iter().flat_map(|tenant| tenant.0.to_be_bytes()));
    let header_bytes = bytes.len() - PREAMBLE_BYTES;
    if header_bytes > HEADER_BYTES_MAX {
        return Err(io::Error::other(format!("a header of {header_bytes} bytes is too long")));
    }
    let length = u32::try_from(header_bytes).expect("the limit is below 4 GiB");
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum(&bytes);
    bytes[PREAMBLE_CHECKED_BYTES..PREAMBLE_BYTES].copy_from_slice(&checksum);
    Ok(bytes)
}

/// Reads the header from the start of a file of `file_bytes`, and leaves `file` somewhere after it.
///
/// Returns the header and the offset of the payload.
/// Errors: `Damaged` if it is not a valid file of that length; `Io`.
pub fn read_header(file: &mut impl Read, file_bytes: u64) -> Result<(RecordHeader, u64), ReadFailure> {
    let mut bytes = Vec::with_capacity(FIRST_READ_BYTES);
    read_to(file, &mut bytes, FIRST_READ_BYTES)?;
    let end = header_end(&bytes)?;
    if end as u64 > file_bytes {
        return Err(Damage::Length.into());
    }
    read_to(file, &mut bytes, end)?;
    if bytes.len() < end {
        return Err(Damage::Length.into());
    }
    let header = decode(&bytes[..end])?;
    if header.record.n_bytes.checked_add(end as u64) != Some(file_bytes) {
        return Err(Damage::Length.into());
    }
    Ok((header, end as u64))
}

/// Reads until `bytes` has `wanted_bytes` or the file ends.
fn read_to(file: &mut impl Read, bytes: &mut Vec<u8>, wanted_bytes: usize) -> Result<(), ReadFailure> {
    let missing_bytes = wanted_bytes.saturating_sub(bytes.len()) as u64;
    file.take(missing_bytes).read_to_end(bytes).map_err(|source| ReadFailure::Io { source })?;
    Ok(())
}

/// Returns the end of the header, by the preamble at the start of `bytes`.
pub(super) fn header_end(bytes: &[u8]) -> Result<usize, Damage> {
    if !bytes.starts_with(&MAGIC) {
        return Err(Damage::Foreign);
    }
    if bytes.len() < PREAMBLE_BYTES {
        return Err(Damage::Length);
    }
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let version = word(8);
    if version != FORMAT_VERSION {
        return Err(Damage::Version { version });
    }
    let header_bytes = word(12) as usize;
    // A reader of pieces would wait for the bytes of an empty header without end.
    if header_bytes == 0 || header_bytes > HEADER_BYTES_MAX {
        Err(Damage::Header)
    } else {
        Ok(PREAMBLE_BYTES + header_bytes)
    }
}

/// Returns the header in `bytes`, which are preamble and header.
pub(super) fn decode(bytes: &[u8]) -> Result<RecordHeader, Damage> {
    if bytes[PREAMBLE_CHECKED_BYTES..PREAMBLE_BYTES] != checksum(bytes) {
        return Err(Damage::Header);
    }
    let (written, rest) =
        postcard::take_from_bytes::<ChunkFileHeader<'_>>(&bytes[PREAMBLE_BYTES..]).map_err(|_| Damage::Header)?;
    let tenant = match rest {
        [] => None,
        rest => Some(TenantId(u128::from_be_bytes(rest.try_into().map_err(|_| Damage::Header)?))),
    };
    written.into_header(tenant).ok_or(Damage::Header)
}

/// Returns the checksum of preamble and header, without the checksum's own bytes.
fn checksum(bytes: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes[..PREAMBLE_CHECKED_BYTES]);
    hasher.update(&bytes[PREAMBLE_BYTES..]);
    *hasher.finalize().as_bytes()
}
