//! A slot's whole state in one file, for `POST /slots/{id}?action=save|restore`.
//!
//! As in a chunk's file, the preamble has the header's checksum and the header has the state's. The state is
//! llama.cpp's export, uncut, followed by its checkpoints. A file that is incomplete, changed, or of another model or
//! layout is refused before llama.cpp sees it. Not here: chunks of the disk tier (`folder`), the endpoint
//! (`http::slots`).
//!
//! ```text
//! offset  bytes  field
//! 0       8      magic "WARMPSLT"
//! 8       4      format version, little-endian
//! 12      4      length of the header in bytes (n), little-endian
//! 16      32     blake3 of bytes 0..16 and of the header
//! 48      n      header: postcard of `SlotFileHeader`, from version 2 on followed by that of the list of checkpoints
//! 48 + n         state
//!                checkpoints, to the end of the file
//! ```

use std::borrow::Cow;
use std::io::{self, Write as _};
use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;

use super::Identity;
use crate::engine::{SlotCheckpoint, SlotState};

/// First bytes of a file.
const MAGIC: [u8; 8] = *b"WARMPSLT";
/// Version of the format that is written.
const FORMAT_VERSION: u32 = 2;
/// Version without checkpoints, which can also be read.
const VERSION_WITHOUT_CHECKPOINTS: u32 = 1;
/// Length of the preamble.
const PREAMBLE_BYTES: usize = 48;
/// Length of the part of the preamble that its checksum covers.
const PREAMBLE_CHECKED_BYTES: usize = 16;

/// Identity with which a slot's state can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotIdentity {
    /// Identity of any stored state.
    pub common: Identity,
    /// 1 if all slots share one KV buffer, else the number of slots.
    pub n_streams: u32,
}

/// Error of writing or reading a slot's state.
#[derive(Debug, thiserror::Error)]
pub enum SlotFileError {
    /// There is no such file.
    #[error("there is no such file")]
    Missing,
    /// The file is not a slot's file, incomplete, or changed.
    #[error("it is not a slot's state, or damaged ({what})")]
    Damaged {
        /// Description of the defect.
        what: &'static str,
    },
    /// The file was saved with another model or other settings.
    #[error("it was saved with {other} than this worker's")]
    Foreign {
        /// Description of the difference.
        other: &'static str,
    },
    /// The system cannot write or read the file.
    #[error("the file cannot be written or read")]
    Io(#[source] io::Error),
}

#[derive(Debug, Serialize, Deserialize)]
struct SlotFileHeader<'a> {
    identity: SlotIdentity,
    root: BlockHash,
    tokens: Cow<'a, [Token]>,
    n_exact: u64,
    state_bytes: u64,
    state_checksum: [u8; 32],
}

/// Header of one checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct CheckpointHeader {
    n_tokens: u64,
    n_bytes: u64,
    checksum: [u8; 32],
}

/// Positions of a file's parts.
#[derive(Debug)]
struct PartPositions {
    slot: SlotState,
    state: std::ops::Range<usize>,
}

/// Writes a slot's state and returns the size of the file. An existing file of that name is replaced atomically.
///
/// Errors: `Io`.
pub fn write(path: &Path, identity: SlotIdentity, slot: &SlotState) -> Result<u64, SlotFileError> {
    let head = head(identity, slot).map_err(SlotFileError::Io)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || {
        let mut file = tempfile::Builder::new().prefix(".writing-").tempfile_in(folder)?;
        file.write_all(&head)?;
        file.write_all(&slot.state)?;
        slot.checkpoints.iter().try_for_each(|checkpoint| file.write_all(&checkpoint.partial))?;
        file.as_file().sync_data()?;
        file.persist(path).map_err(|error| error.error)
    };
    write().map_err(SlotFileError::Io)?;
    let n_partial: usize = slot.checkpoints.iter().map(|checkpoint| checkpoint.partial.len()).sum();
    Ok((head.len() + slot.state.len() + n_partial) as u64)
}

/// Reads a slot's state and returns it with the size of the file.
///
/// Errors: `Missing`, `Damaged`, `Foreign`, `Io`.
pub fn read(path: &Path, identity: SlotIdentity) -> Result<(SlotState, u64), SlotFileError> {
    let bytes = std::fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => SlotFileError::Missing,
        _ => SlotFileError::Io(error),
    })?;
    let n_bytes = bytes.len() as u64;
    Ok((parse(bytes, identity)?, n_bytes))
}

/// Returns the slot's state in the bytes of a file.
///
/// Errors: `Damaged`, `Foreign`.
pub fn parse(mut bytes: Vec<u8>, identity: SlotIdentity) -> Result<SlotState, SlotFileError> {
    let PartPositions { slot, state } = find_parts(&bytes, identity)?;
    bytes.truncate(state.end);
    bytes.drain(..state.start);
    Ok(SlotState { state: bytes, ..slot })
}

fn head(identity: SlotIdentity, slot: &SlotState) -> io::Result<Vec<u8>> {
    let header = SlotFileHeader {
        identity,
        root: slot.root,
        tokens: Cow::Borrowed(&slot.tokens),
        n_exact: slot.n_exact as u64,
        state_bytes: slot.state.len() as u64,
        state_checksum: *blake3::hash(&slot.state).as_bytes(),
    };
    let checkpoint = |checkpoint: &SlotCheckpoint| CheckpointHeader {
        n_tokens: checkpoint.n_tokens as u64,
        n_bytes: checkpoint.partial.len() as u64,
        checksum: *blake3::hash(&checkpoint.partial).as_bytes(),
    };
    let checkpoints: Vec<CheckpointHeader> = slot.checkpoints.iter().map(checkpoint).collect();
    let bytes = postcard::to_extend(&header, vec![0; PREAMBLE_BYTES]).map_err(io::Error::other)?;
    let mut bytes = postcard::to_extend(&checkpoints, bytes).map_err(io::Error::other)?;
    let header_bytes = u32::try_from(bytes.len() - PREAMBLE_BYTES).map_err(io::Error::other)?;
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&header_bytes.to_le_bytes());
    let checksum = checksum(&bytes);
    bytes[PREAMBLE_CHECKED_BYTES..PREAMBLE_BYTES].copy_from_slice(&checksum);
    Ok(bytes)
}

/// Returns the content of a file without the state itself, and the state's position.
fn find_parts(bytes: &[u8], identity: SlotIdentity) -> Result<PartPositions, SlotFileError> {
    let damaged = |what| SlotFileError::Damaged { what };
    if !bytes.starts_with(&MAGIC) || bytes.len() < PREAMBLE_BYTES {
        return Err(damaged("no preamble"));
    }
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let version = word(8);
    if ![VERSION_WITHOUT_CHECKPOINTS, FORMAT_VERSION].contains(&version) {
        return Err(SlotFileError::Foreign { other: "another version of the format" });
    }
    // The header is verified before it is parsed, and each part before it is used, because llama.cpp does not check its
    // input.
    let state_at = PREAMBLE_BYTES + word(12) as usize;
    let head = bytes.get(..state_at).ok_or(damaged("truncated"))?;
    if head[PREAMBLE_CHECKED_BYTES..PREAMBLE_BYTES] != checksum(head) {
        return Err(damaged("header"));
    }
    let (header, listed) = headers(&head[PREAMBLE_BYTES..], version).ok_or(damaged("header"))?;
    if let Some(other) = difference(&header.identity, &identity) {
        return Err(SlotFileError::Foreign { other });
    }
    let mut rest = &bytes[state_at..];
    let state = part(&mut rest, header.state_bytes).ok_or(damaged("truncated"))?;
    if *blake3::hash(state).as_bytes() != header.state_checksum {
        return Err(damaged("state"));
    }
    let mut checkpoints = Vec::new();
    for checkpoint in listed {
        let partial = part(&mut rest, checkpoint.n_bytes).ok_or(damaged("truncated"))?;
        let n_tokens = usize::try_from(checkpoint.n_tokens).map_err(|_| damaged("header"))?;
        if *blake3::hash(partial).as_bytes() != checkpoint.checksum {
            return Err(damaged("checkpoint"));
        }
        checkpoints.push(SlotCheckpoint { n_tokens, partial: Bytes::copy_from_slice(partial) });
    }
    if !rest.is_empty() {
        return Err(damaged("too long"));
    }
    let n_exact = usize::try_from(header.n_exact).map_err(|_| damaged("header"))?;
    let state = state_at..state_at + state.len();
    let tokens = header.tokens.into_owned();
    Ok(PartPositions { slot: SlotState { root: header.root, tokens, n_exact, state: Vec::new(), checkpoints }, state })
}

/// Returns a header, and the headers of its checkpoints; `None` if the bytes are not a header of that version.
fn headers(bytes: &[u8], version: u32) -> Option<(SlotFileHeader<'_>, Vec<CheckpointHeader>)> {
    let (header, rest) = postcard::take_from_bytes::<SlotFileHeader<'_>>(bytes).ok()?;
    let (checkpoints, rest) = match version {
        VERSION_WITHOUT_CHECKPOINTS => (Vec::new(), rest),
        _ => postcard::take_from_bytes(rest).ok()?,
    };
    rest.is_empty().then_some((header, checkpoints))
}

/// Takes the next `n_bytes` from the front of `rest`; `None` if there are fewer.
fn part<'a>(rest: &mut &'a [u8], n_bytes: u64) -> Option<&'a [u8]> {
    let (part, behind) = rest.split_at_checked(usize::try_from(n_bytes).ok()?)?;
    *rest = behind;
    Some(part)
}

/// Returns the difference between a file's identity and the worker's, if there is one.
fn difference(file: &SlotIdentity, own: &SlotIdentity) -> Option<&'static str> {
    if file.common.model != own.common.model {
        Some("another model")
    } else if file.common.kv != own.common.kv {
        Some("another layout of the KV state")
    } else if file.n_streams != own.n_streams {
        Some("another --kv-unified or number of slots")
    } else {
        None
    }
}

/// Returns the checksum of preamble and header, without the checksum's own bytes.
fn checksum(bytes: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes[..PREAMBLE_CHECKED_BYTES]);
    hasher.update(&bytes[PREAMBLE_BYTES..]);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use warmpath_common::model::Fingerprint;

    use super::*;

    const IDENTITY: SlotIdentity = SlotIdentity {
        common: Identity { model: Fingerprint([1; 32]), kv: Fingerprint([2; 32]), block_size_tokens: 32 },
        n_streams: 1,
    };

    fn saved() -> (tempfile::TempDir, std::path::PathBuf, SlotState) {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("slot.bin");
        let checkpoint = |n_tokens| SlotCheckpoint { n_tokens, partial: vec![n_tokens as u8; n_tokens].into() };
        let slot = SlotState {
            root: BlockHash([7; 32]),
            tokens: (0..300).collect(),
            n_exact: 200,
            state: vec![5; 999],
            checkpoints: vec![checkpoint(32), checkpoint(192)],
        };
        let n_bytes = write(&path, IDENTITY, &slot).expect("it can be written");
        assert_eq!(n_bytes, std::fs::metadata(&path).expect("it is there").len());
        (folder, path, slot)
    }

    #[test]
    fn a_written_state_can_be_read() {
        let (_folder, path, slot) = saved();
        let (read, n_bytes) = read(&path, IDENTITY).expect("it can be read");
        assert_eq!((read, n_bytes), (slot, std::fs::metadata(&path).expect("it is there").len()));
    }

    #[test]
    fn reads_a_file_of_the_version_without_checkpoints_and_none_of_a_later_one() {
        let (_folder, path, slot) = saved();
        let slot = SlotState { checkpoints: Vec::new(), ..slot };
        write(&path, IDENTITY, &slot).expect("it can be written");
        let bytes = std::fs::read(&path).expect("it can be read");
        let of_version = |version: u32, n_dropped: usize| {
            let header_end = bytes.len() - slot.state.len();
            let mut old = bytes[..header_end - n_dropped].to_vec();
            let header_bytes = (old.len() - PREAMBLE_BYTES) as u32;
            old[8..12].copy_from_slice(&version.to_le_bytes());
            old[12..16].copy_from_slice(&header_bytes.to_le_bytes());
            let checksum = checksum(&old);
            old[PREAMBLE_CHECKED_BYTES..PREAMBLE_BYTES].copy_from_slice(&checksum);
            old.extend(&bytes[header_end..]);
            std::fs::write(&path, old).expect("it can be written");
            read(&path, IDENTITY)
        };
        // An empty list is one byte.
        assert_eq!(of_version(1, 1).expect("it can be read").0, slot);
        assert!(matches!(of_version(1, 0), Err(SlotFileError::Damaged { .. })));
        let error = of_version(3, 0).expect_err("it is of a later version").to_string();
        assert!(error.contains("another version of the format"), "{error}");
    }

    #[test]
    fn refuses_a_file_with_any_byte_changed_or_any_length() {
        let (_folder, path, _) = saved();
        let good = std::fs::read(&path).expect("it can be read");
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(parse(bytes, IDENTITY).is_err(), "byte {at}");
            assert!(parse(good[..at].to_vec(), IDENTITY).is_err(), "{at} bytes");
        }
        let longer = [good.as_slice(), &[0]].concat();
        assert!(matches!(parse(longer, IDENTITY), Err(SlotFileError::Damaged { .. })));
    }

    #[test]
    fn refuses_a_file_of_another_model_layout_or_buffer() {
        let (_folder, path, _) = saved();
        let other = |identity| read(&path, identity).expect_err("the identity differs").to_string();
        let Identity { model, kv, .. } = IDENTITY.common;
        let common = Identity { model: Fingerprint([9; 32]), ..IDENTITY.common };
        assert!(other(SlotIdentity { common, ..IDENTITY }).contains("another model"));
        let common = Identity { model, kv: Fingerprint([9; 32]), ..IDENTITY.common };
        assert!(other(SlotIdentity { common, ..IDENTITY }).contains("layout"));
        let common = Identity { kv, ..IDENTITY.common };
        assert!(other(SlotIdentity { common, n_streams: 4 }).contains("--kv-unified"));
        assert!(matches!(read(&path.with_extension("none"), IDENTITY), Err(SlotFileError::Missing)));
    }
}
