//! The bytes of a chunk's file: a preamble, a header with its checksum, the payload.
//!
//! The header describes the payload and has its checksum, so a header can be verified without reading the payload. Not
//! here: the preamble (`preamble`), the paths of files and safe writing (`folder`).
//!
//! ```text
//! offset  bytes  field
//! 0       48     preamble, magic "WARMPKVC"
//! 48      n      header: postcard of `ChunkFileHeader`; if the tenant has a share, its identity, 16 bytes big-endian
//! 48 + n         payload, to the end of the file
//! ```

use std::borrow::Cow;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;
use warmpath_worker_core::store::chunk_index::{ChunkRecord, StateKind};
use warmpath_worker_core::tenants::TenantId;

use super::preamble::{self, Damage, FileKind, PREAMBLE_BYTES};
use super::{Identity, ReadFailure};

/// Kind of a chunk's file. Its version includes the layout of payloads, and is part of the folder's name, so that two
/// versions can coexist.
pub const CHUNK_FILE: FileKind = FileKind { magic: *b"WARMPKVC", version: 1 };
/// Longest header that is read.
///
/// Source: a checkpoint after a million tokens has 3 MB of tokens and 1 MB of hashes; the limit is far above both.
const HEADER_BYTES_MAX: usize = 64 << 20;
/// Length of the first read. Units: bytes. Source: it has the whole header of a chunk of 256 tokens, about 1.5 KB.
const FIRST_READ_BYTES: usize = 4096;

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
    CHUNK_FILE.seal(&mut bytes)?;
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
    let header_bytes = CHUNK_FILE.header_bytes(bytes)?;
    // A reader of pieces would wait for the bytes of an empty header without end.
    if header_bytes == 0 || header_bytes > HEADER_BYTES_MAX {
        Err(Damage::Header)
    } else {
        Ok(PREAMBLE_BYTES + header_bytes)
    }
}

/// Returns the header in `bytes`, which are preamble and header.
pub(super) fn decode(bytes: &[u8]) -> Result<RecordHeader, Damage> {
    let header = preamble::header(bytes)?;
    let (written, rest) = postcard::take_from_bytes::<ChunkFileHeader<'_>>(header).map_err(|_| Damage::Header)?;
    let tenant = match rest {
        [] => None,
        rest => Some(TenantId(u128::from_be_bytes(rest.try_into().map_err(|_| Damage::Header)?))),
    };
    written.into_header(tenant).ok_or(Damage::Header)
}
