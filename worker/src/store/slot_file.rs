//! A slot's whole state in one file, for `POST /slots/{id}?action=save|restore`.
//!
//! As in a chunk's file, the preamble has the header's checksum and the header has the state's. The state is
//! llama.cpp's export, uncut, followed by its checkpoints. A file that is incomplete, changed, or of another model or
//! layout is refused before llama.cpp sees it. Not here: the preamble (`preamble`), chunks of the disk tier (`folder`),
//! the endpoint (`http::llama_server::slots`).
//!
//! ```text
//! offset  bytes  field
//! 0       48     preamble, magic "WARMPSLT"
//! 48      n      header: postcard of `SlotFileHeader`, then of the list of checkpoints
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

use super::preamble::{self, FileKind, PREAMBLE_BYTES};
use super::{Damage, Identity};
use crate::engine::{SlotCheckpoint, SlotState};

/// Kind of a slot's file.
pub const SLOT_FILE: FileKind = FileKind { magic: *b"WARMPSLT", version: 2 };

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
    SLOT_FILE.seal(&mut bytes)?;
    Ok(bytes)
}

/// Returns the content of a file without the state itself, and the state's position.
fn find_parts(bytes: &[u8], identity: SlotIdentity) -> Result<PartPositions, SlotFileError> {
    let damage_error = |what| SlotFileError::Damaged { what };
    let header_bytes = SLOT_FILE.header_bytes(bytes).map_err(|damage| match damage {
        Damage::Version { .. } => SlotFileError::Foreign { other: "another version of the format" },
        _ => damage_error("no preamble"),
    })?;
    // The header is verified before it is parsed, and each part before it is used, because llama.cpp does not check its
    // input.
    let state_at = PREAMBLE_BYTES + header_bytes;
    let head = bytes.get(..state_at).ok_or(damage_error("truncated"))?;
    let (header, listed) = preamble::header(head).ok().and_then(headers).ok_or(damage_error("header"))?;
    if let Some(other) = difference(&header.identity, &identity) {
        return Err(SlotFileError::Foreign { other });
    }
    let mut bytes_left = &bytes[state_at..];
    let state = part(&mut bytes_left, header.state_bytes).ok_or(damage_error("truncated"))?;
    if *blake3::hash(state).as_bytes() != header.state_checksum {
        return Err(damage_error("state"));
    }
    let mut checkpoints = Vec::new();
    for checkpoint in listed {
        let partial = part(&mut bytes_left, checkpoint.n_bytes).ok_or(damage_error("truncated"))?;
        let n_tokens = usize::try_from(checkpoint.n_tokens).map_err(|_| damage_error("header"))?;
        if *blake3::hash(partial).as_bytes() != checkpoint.checksum {
            return Err(damage_error("checkpoint"));
        }
        checkpoints.push(SlotCheckpoint { n_tokens, partial: Bytes::copy_from_slice(partial) });
    }
    if !bytes_left.is_empty() {
        return Err(damage_error("too long"));
    }
    let n_exact = usize::try_from(header.n_exact).map_err(|_| damage_error("header"))?;
    let state = state_at..state_at + state.len();
    let tokens = header.tokens.into_owned();
    Ok(PartPositions { slot: SlotState { root: header.root, tokens, n_exact, state: Vec::new(), checkpoints }, state })
}

/// Returns a header, and the headers of its checkpoints; `None` if the bytes are no header.
fn headers(bytes: &[u8]) -> Option<(SlotFileHeader<'_>, Vec<CheckpointHeader>)> {
    let (header, rest) = postcard::take_from_bytes::<SlotFileHeader<'_>>(bytes).ok()?;
    let (checkpoints, rest) = postcard::take_from_bytes(rest).ok()?;
    rest.is_empty().then_some((header, checkpoints))
}

/// Takes the next `n_bytes` from the front of `bytes_left`; `None` if there are fewer.
fn part<'a>(bytes_left: &mut &'a [u8], n_bytes: u64) -> Option<&'a [u8]> {
    let (part, behind) = bytes_left.split_at_checked(usize::try_from(n_bytes).ok()?)?;
    *bytes_left = behind;
    Some(part)
}

/// Returns the difference between a file's identity and the worker's, if there is one.
fn difference(file: &SlotIdentity, own_identity: &SlotIdentity) -> Option<&'static str> {
    if file.common.model != own_identity.common.model {
        Some("another model")
    } else if file.common.kv != own_identity.common.kv {
        Some("another layout of the KV state or another llama.cpp")
    } else if file.n_streams != own_identity.n_streams {
        Some("another --kv-unified or number of slots")
    } else {
        None
    }
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
    fn refuses_a_file_of_another_version() {
        let (_folder, path, _) = saved();
        let mut bytes = std::fs::read(&path).expect("it can be read");
        let version = SLOT_FILE.version + 1;
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let error = parse(bytes, IDENTITY).expect_err("it is of another version").to_string();
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
