//! Records of KV state from another worker, in a stream that is cut anywhere.
//!
//! The outcome must not depend on the cuts, and only wanted blocks are received, each with its size.

use warmpath_common::block_hash::{BlockHash, block_chain};
use warmpath_common::ids::Token;
use warmpath_common::model::Fingerprint;
use warmpath_worker::store::Identity;
use warmpath_worker::store::exchange::{Received, RunReader, WantedRun};
use warmpath_worker::store::format::CHUNK_FILE;

use crate::files::with_head;
use crate::input::{Cuts, sections};

/// Identity of the state in the corpus.
pub(crate) const IDENTITY: Identity =
    Identity { model: Fingerprint([1; 32]), kv: Fingerprint([2; 32]), block_size_tokens: BLOCK_TOKENS };

const BLOCK_TOKENS: u32 = 4;
const BLOCK_BYTES: usize = 24;
const N_BLOCKS: usize = 6;
const ROOT: BlockHash = BlockHash([7; 32]);

/// Kind of the input's first byte: the rest is the stream as it is.
const AS_IT_IS: u8 = 0;

/// What a stream has led to.
#[derive(Debug, PartialEq)]
struct Outcome {
    n_left: usize,
    fault: Option<String>,
}

/// Reads a stream whole and in pieces.
pub(crate) fn run(input: &[u8]) {
    let Some((cuts, input)) = Cuts::take(input) else { return };
    let Some((&kind, content)) = input.split_first() else { return };
    let stream = if kind == AS_IT_IS { content.to_vec() } else { records(content) };
    let (whole, _) = read(std::iter::once(&stream[..]));
    let (in_pieces, received) = read(cuts.pieces(&stream));
    assert_eq!(in_pieces, whole, "a stream in pieces, and whole");
    let mut next_block = 0;
    for Received { first_block, n_blocks, payload } in &received {
        assert_eq!((*first_block, payload.len()), (next_block, n_blocks * BLOCK_BYTES), "a received record");
        next_block += n_blocks;
    }
    if in_pieces.fault.is_none() {
        assert_eq!(next_block + in_pieces.n_left, N_BLOCKS, "received blocks, and those that are left");
    }
}

/// Returns the run that is wanted.
pub(crate) fn wanted() -> WantedRun {
    let tokens: Vec<Token> = (0..N_BLOCKS as u32 * BLOCK_TOKENS).collect();
    WantedRun {
        identity: IDENTITY,
        root: ROOT,
        first_block: 0,
        parent: None,
        blocks: block_chain(&ROOT, &tokens, BLOCK_TOKENS),
        tokens,
        block_bytes: BLOCK_BYTES as u64,
    }
}

/// Returns the sections as records: in turn a header and its payload.
fn records(content: &[u8]) -> Vec<u8> {
    let sections = sections(content);
    let record = |parts: &[&[u8]]| with_head(CHUNK_FILE, parts[0], parts.get(1).copied().unwrap_or_default());
    sections.chunks(2).flat_map(record).collect()
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Outcome, Vec<Received>) {
    let mut reader = RunReader::new(wanted());
    let (mut received, mut fault) = (Vec::new(), None);
    for piece in pieces {
        match reader.push(piece) {
            Ok(records) => received.extend(records),
            // The records before it in the same piece are lost.
            Err(error) => {
                fault = Some(error.to_string());
                break;
            }
        }
    }
    (Outcome { n_left: reader.n_left(), fault }, received)
}
