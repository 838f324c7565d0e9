//! Files of stored state: chunks of the disk tier and saved slots.
//!
//! The checksum of a header is made here, since libFuzzer cannot guess one.

use warmpath_common::model::Fingerprint;
use warmpath_worker::store::format::{self, CHUNK_FILE, RecordHeader};
use warmpath_worker::store::preamble::{FileKind, PREAMBLE_BYTES};
use warmpath_worker::store::slot_file::{self, SLOT_FILE};
use warmpath_worker::store::{Identity, SlotIdentity};

use crate::input::sections;

/// Identity of the slots in the corpus.
const SLOT_IDENTITY: SlotIdentity = SlotIdentity {
    common: Identity { model: Fingerprint([1; 32]), kv: Fingerprint([2; 32]), block_size_tokens: 16 },
    n_streams: 1,
};

/// Kind of the input's first byte: the rest is the file as it is.
const AS_IT_IS: u8 = 0;

/// Returns a file with a header and its checksum.
pub(crate) fn with_head(kind: FileKind, header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut head = [&[0; PREAMBLE_BYTES][..], header].concat();
    kind.seal(&mut head).expect("an input is short");
    [&head[..], payload].concat()
}

/// Reads the header of a chunk's file: written again, it is the same.
pub(crate) fn chunk(input: &[u8]) {
    let Some((&kind, content)) = input.split_first() else { return };
    let file = if kind == AS_IT_IS {
        content.to_vec()
    } else {
        let sections = sections(content);
        with_head(CHUNK_FILE, sections[0], &sections[1..].concat())
    };
    let read_header = |mut file: &[u8]| {
        let file_bytes = file.len() as u64;
        format::read_header(&mut file, file_bytes)
    };
    let Ok((RecordHeader { identity, record, .. }, payload_at)) = read_header(&file) else { return };
    let payload_at = usize::try_from(payload_at).expect("the payload is in the file");
    let payload = &file[payload_at..];
    let head = format::encode(identity, &record, payload).expect("what was read can be written");
    let (again, _) = read_header(&[&head, payload].concat()).expect("what was written can be read");
    assert_eq!((again.identity, again.record), (identity, record));
    assert_eq!(again.payload_checksum, *blake3::hash(payload).as_bytes());
}

/// Reads a slot's file: its parts are those of the file.
pub(crate) fn slot(input: &[u8]) {
    let Some((&kind, content)) = input.split_first() else { return };
    let file = if kind == AS_IT_IS {
        content.to_vec()
    } else {
        let sections = sections(content);
        with_head(SLOT_FILE, sections[0], &sections[1..].concat())
    };
    let n_bytes = file.len();
    let Ok(slot) = slot_file::parse(file, SLOT_IDENTITY) else { return };
    let n_partial: usize = slot.checkpoints.iter().map(|checkpoint| checkpoint.partial.len()).sum();
    assert!(slot.state.len() + n_partial < n_bytes, "the parts are in the file");
}
