//! Files of stored state: chunks of the disk tier and saved slots.
//!
//! The checksum of a header is made here, since libFuzzer cannot guess one.

use warmpath_common::model::Fingerprint;
use warmpath_worker::store::format::{self, RecordHeader};
use warmpath_worker::store::slot_file;
use warmpath_worker::store::{Identity, SlotIdentity};

use crate::input::sections;

/// Start of a file: the magic number and the version.
pub(crate) type Start = (&'static [u8; 8], u32);

/// Start of a chunk's file.
pub(crate) const CHUNK: Start = (b"WARMPKVC", 1);

/// Starts of a slot's file, with and without checkpoints.
const SLOTS: [Start; 2] = [(b"WARMPSLT", 2), (b"WARMPSLT", 1)];

/// Identity of the slots in the corpus.
const SLOT_IDENTITY: SlotIdentity = SlotIdentity {
    common: Identity { model: Fingerprint([1; 32]), kv: Fingerprint([2; 32]), block_size_tokens: 16 },
    n_streams: 1,
};

/// Kind of the input's first byte: the rest is the file as it is.
const AS_IT_IS: u8 = 0;

/// Returns a file with a header and its checksum.
pub(crate) fn with_head((magic, version): Start, header: &[u8], rest: &[u8]) -> Vec<u8> {
    let length = u32::try_from(header.len()).expect("an input is short");
    let preamble = [&magic[..], &version.to_le_bytes(), &length.to_le_bytes()].concat();
    let checksum = blake3::Hasher::new().update(&preamble).update(header).finalize();
    [&preamble[..], checksum.as_bytes(), header, rest].concat()
}

/// Reads the header of a chunk's file: written again, it is the same.
pub(crate) fn chunk(input: &[u8]) {
    let Some((&kind, content)) = input.split_first() else { return };
    let file = if kind == AS_IT_IS {
        content.to_vec()
    } else {
        let sections = sections(content);
        with_head(CHUNK, sections[0], &sections[1..].concat())
    };
    let read = |mut file: &[u8]| {
        let file_bytes = file.len() as u64;
        format::read_header(&mut file, file_bytes)
    };
    let Ok((RecordHeader { identity, record, .. }, payload_at)) = read(&file) else { return };
    let payload_at = usize::try_from(payload_at).expect("the payload is in the file");
    let payload = &file[payload_at..];
    let head = format::encode(identity, &record, payload).expect("what was read can be written");
    let (again, _) = read(&[&head, payload].concat()).expect("what was written can be read");
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
        with_head(SLOTS[usize::from(kind) % SLOTS.len()], sections[0], &sections[1..].concat())
    };
    let n_bytes = file.len();
    let Ok(slot) = slot_file::parse(file, SLOT_IDENTITY) else { return };
    let n_partial: usize = slot.checkpoints.iter().map(|checkpoint| checkpoint.partial.len()).sum();
    assert!(slot.state.len() + n_partial < n_bytes, "the parts are in the file");
}
