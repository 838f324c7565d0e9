//! Exchange of stored blocks between workers: the disk tier's records, one after the other.
//!
//! The reader verifies everything: a record is accepted only if it continues the chain with the wanted hashes and
//! tokens, has the size of their state, and matches its checksums. So another worker can withhold state, but it cannot
//! substitute the state of other tokens or make the reader allocate more memory than the wanted state takes.
//!
//! Not here: the connection (`kv_transfer`), the bytes of a record (`format`).

use std::io;
use std::ops::Range;

use bytes::Bytes;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;
use warmpath_worker_core::store::chunk_index::{ChunkRecord, StateKind};

use super::Identity;
use super::format;
use super::preamble::{Damage, PREAMBLE_BYTES};
use crate::pages::Pages;

/// Blocks of one chunk that are sent.
#[derive(Debug, Clone)]
pub struct SentPart {
    /// Record of the blocks.
    pub record: ChunkRecord,
    /// Payload of the whole chunk.
    pub payload: Bytes,
    /// The blocks' part of the payload.
    pub bytes: Range<usize>,
}

impl SentPart {
    /// Returns the bytes of the record before its payload. Cost: a checksum of the payload.
    ///
    /// Errors: if record and payload are inconsistent.
    pub fn head(&self, identity: Identity) -> io::Result<Vec<u8>> {
        let payload = self.payload.get(self.bytes.clone());
        let payload = payload.ok_or_else(|| io::Error::other("the payload lacks blocks of its record"))?;
        format::encode(identity, &self.record, payload)
    }
}

/// Run of blocks to fetch from another worker.
#[derive(Debug, Clone)]
pub struct WantedRun {
    /// Identity of usable state.
    pub identity: Identity,
    /// Root of the chain.
    pub root: BlockHash,
    /// Number of blocks before the run.
    pub first_block: usize,
    /// Hash of the block before the run; `None` if there is none.
    pub parent: Option<BlockHash>,
    /// Hashes of the blocks, at least one.
    pub blocks: Vec<BlockHash>,
    /// Tokens of the blocks.
    pub tokens: Vec<Token>,
    /// Size of one block's state. Units: bytes.
    pub block_bytes: u64,
}

/// Received state of consecutive blocks, which matches its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Index of the first block in the chain.
    pub first_block: usize,
    /// Number of blocks.
    pub n_blocks: usize,
    /// State of the blocks.
    pub payload: Bytes,
}

/// Reason why bytes of another worker cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// The bytes are not a valid record.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// A record does not have the next blocks of the run.
    #[error("the record has another {what} than the requested one")]
    Foreign {
        /// Name of the property that differs.
        what: &'static str,
    },
}

/// Reader of a run's records from bytes in pieces of any size.
#[derive(Debug)]
pub struct RunReader {
    run: WantedRun,
    /// Number of the run's blocks that were received.
    n_received: usize,
    /// Bytes of the record that is being received, before its payload.
    head: Vec<u8>,
    /// Payload that is being received.
    open_part: Option<OpenPayload>,
}

#[derive(Debug)]
struct OpenPayload {
    n_blocks: usize,
    checksum: [u8; 32],
    payload: Pages,
    n_bytes_received: usize,
    hasher: blake3::Hasher,
}

impl RunReader {
    /// Returns a reader of a run that has not begun.
    pub fn new(wanted_run: WantedRun) -> Self {
        Self { run: wanted_run, n_received: 0, head: Vec::new(), open_part: None }
    }

    /// Returns the number of blocks that were received.
    pub fn n_received(&self) -> usize {
        self.n_received
    }

    /// Returns whether there was a record, and the last one is complete.
    pub fn is_between_records(&self) -> bool {
        self.n_received > 0 && self.head.is_empty() && self.open_part.is_none()
    }

    /// Returns the number of blocks that are still wanted.
    pub fn n_left(&self) -> usize {
        self.run.blocks.len() - self.n_received
    }

    /// Takes the next bytes and returns the records that they complete; bytes after the run's last block are ignored.
    ///
    /// Cost: a checksum and a copy of the bytes; memory for at most the run's state and one header.
    /// Errors: `Damaged`, `Foreign`; the reader must not be used again.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<Vec<Received>, Untrusted> {
        let mut complete = Vec::new();
        while !bytes.is_empty() && self.n_left() > 0 {
            let Some(open_part) = &mut self.open_part else {
                bytes = self.take_head(bytes)?;
                continue;
            };
            let missing_bytes = &mut open_part.payload[open_part.n_bytes_received..];
            let (taken, rest) = bytes.split_at(bytes.len().min(missing_bytes.len()));
            missing_bytes[..taken.len()].copy_from_slice(taken);
            open_part.n_bytes_received += taken.len();
            open_part.hasher.update(taken);
            bytes = rest;
            if open_part.n_bytes_received == open_part.payload.len() {
                complete.extend(self.close()?);
            }
        }
        Ok(complete)
    }

    /// Takes bytes of a record's head, and begins its payload once the head is complete.
    fn take_head<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], Untrusted> {
        let end = match self.head.len() < PREAMBLE_BYTES {
            true => PREAMBLE_BYTES,
            false => format::header_end(&self.head)?,
        };
        if end > self.head_bytes_max() {
            return Err(Damage::Header.into());
        }
        let (taken, rest) = bytes.split_at(bytes.len().min(end - self.head.len()));
        self.head.extend_from_slice(taken);
        if self.head.len() > PREAMBLE_BYTES && self.head.len() == end {
            let header = format::decode(&self.head)?;
            self.head.clear();
            self.open_part = Some(self.begin(&header)?);
        }
        Ok(rest)
    }

    /// Returns the length of the longest head that a record of the blocks still wanted can have.
    ///
    /// Source: `docs/cache.md`, format of a file: hashes of 32 bytes, varint tokens of at most 5, and the fixed fields.
    fn head_bytes_max(&self) -> usize {
        let block_bytes = 32 + 5 * self.run.identity.block_size_tokens as usize;
        PREAMBLE_BYTES + 512 + self.n_left() * block_bytes
    }

    fn begin(&self, header: &format::RecordHeader) -> Result<OpenPayload, Untrusted> {
        let (wanted, record) = (&self.run, &header.record);
        let block_tokens = wanted.identity.block_size_tokens as usize;
        let (from, n) = (self.n_received, record.blocks.len());
        let parent = from.checked_sub(1).map_or(wanted.parent, |before| Some(wanted.blocks[before]));
        let differs = [
            ("identity", header.identity != wanted.identity),
            ("kind", record.kind != StateKind::Chunk),
            ("root", record.root != wanted.root),
            ("place", record.first_block != wanted.first_block + from || record.parent != parent),
            ("chain", n == 0 || n > self.n_left() || record.blocks[..] != wanted.blocks[from..from + n]),
            ("number of tokens", record.tokens.len() != n.saturating_mul(block_tokens)),
        ];
        let differs = differs.iter().find(|(_, differs)| *differs).map(|(what, _)| *what);
        let what = differs.or_else(|| {
            let tokens = &wanted.tokens[from * block_tokens..(from + n) * block_tokens];
            let n_bytes = wanted.block_bytes.checked_mul(n as u64);
            match (record.tokens[..] == *tokens, n_bytes == Some(record.n_bytes)) {
                (true, true) => None,
                (false, _) => Some("text"),
                (true, false) => Some("size"),
            }
        });
        if let Some(what) = what {
            return Err(Untrusted::Foreign { what });
        }
        let n_bytes = usize::try_from(record.n_bytes).map_err(|_| Damage::Length)?;
        let (checksum, hasher) = (header.payload_checksum, blake3::Hasher::new());
        Ok(OpenPayload { n_blocks: n, checksum, payload: Pages::zeroed(n_bytes), n_bytes_received: 0, hasher })
    }

    /// Ends a payload once it is complete.
    fn close(&mut self) -> Result<Option<Received>, Untrusted> {
        let Some(open_part) = self.open_part.take() else { return Ok(None) };
        if *open_part.hasher.finalize().as_bytes() != open_part.checksum {
            return Err(Damage::Payload.into());
        }
        let first_block = self.run.first_block + self.n_received;
        self.n_received += open_part.n_blocks;
        Ok(Some(Received { first_block, n_blocks: open_part.n_blocks, payload: Bytes::from_owner(open_part.payload) }))
    }
}

#[cfg(test)]
mod tests;
