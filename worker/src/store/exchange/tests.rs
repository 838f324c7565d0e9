//! Runs that arrive whole, in pieces, damaged, or with other blocks than requested.

use proptest::prelude::*;
use warmpath_common::block_hash::block_chain;
use warmpath_common::model::Fingerprint;
use warmpath_worker_core::tenants::TenantId;

use super::*;

const BLOCK_TOKENS: u32 = 4;
const BLOCK_BYTES: usize = 24;
const IDENTITY: Identity =
    Identity { model: Fingerprint([1; 32]), kv: Fingerprint([2; 32]), block_size_tokens: BLOCK_TOKENS };
const ROOT: BlockHash = BlockHash([7; 32]);

/// A chain of blocks with their state.
struct Chain {
    blocks: Vec<BlockHash>,
    tokens: Vec<Token>,
    state: Vec<u8>,
}

impl Chain {
    fn new(seed: u32, n_blocks: usize) -> Self {
        let tokens: Vec<Token> = (0..n_blocks as u32 * BLOCK_TOKENS).map(|i| seed * 100_000 + i).collect();
        let mut state = vec![0; n_blocks * BLOCK_BYTES];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut state);
        Self { blocks: block_chain(&ROOT, &tokens, BLOCK_TOKENS), tokens, state }
    }

    fn wanted(&self, blocks: Range<usize>) -> WantedRun {
        let n = BLOCK_TOKENS as usize;
        WantedRun {
            identity: IDENTITY,
            root: ROOT,
            first_block: blocks.start,
            parent: blocks.start.checked_sub(1).map(|before| self.blocks[before]),
            blocks: self.blocks[blocks.clone()].to_vec(),
            tokens: self.tokens[blocks.start * n..blocks.end * n].to_vec(),
            block_bytes: BLOCK_BYTES as u64,
        }
    }

    fn record(&self, blocks: Range<usize>) -> ChunkRecord {
        let WantedRun { root, first_block, parent, blocks, tokens, .. } = self.wanted(blocks);
        let n_bytes = (blocks.len() * BLOCK_BYTES) as u64;
        let (kind, blocks, tokens) = (StateKind::Chunk, blocks.into(), tokens.into());
        ChunkRecord { kind, root, first_block, parent, blocks, tokens, n_bytes, priority: 0, tenant: None }
    }

    fn payload(&self, blocks: Range<usize>) -> &[u8] {
        &self.state[blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES]
    }

    /// Returns the bytes of records that end at `cuts`.
    fn sent(&self, start: usize, cuts: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (start, end) in std::iter::once(start).chain(cuts.iter().copied()).zip(cuts) {
            let chunk = Bytes::copy_from_slice(self.payload(0..self.blocks.len()));
            let range = start * BLOCK_BYTES..end * BLOCK_BYTES;
            let part = SentPart { record: self.record(start..*end), payload: chunk, bytes: range.clone() };
            bytes.extend(part.head(IDENTITY).expect("it fits together"));
            bytes.extend_from_slice(&self.state[range]);
        }
        bytes
    }
}

/// Returns the state that a reader takes, in order.
fn read(wanted: WantedRun, bytes: &[u8], step: usize) -> Result<(Vec<u8>, usize), Untrusted> {
    let mut reader = RunReader::new(wanted);
    let mut state = Vec::new();
    for piece in bytes.chunks(step) {
        for received in reader.push(piece)? {
            assert_eq!(received.payload.len(), received.n_blocks * BLOCK_BYTES);
            state.extend(received.payload);
        }
    }
    Ok((state, reader.n_left()))
}

fn one(record: &ChunkRecord, payload: &[u8]) -> Vec<u8> {
    [format::encode(IDENTITY, record, payload).expect("it fits together"), payload.to_vec()].concat()
}

#[test]
fn a_record_that_differs_is_refused_with_the_difference() {
    let chain = Chain::new(1, 8);
    let other = Chain::new(2, 8);
    let payload = chain.payload(2..4);
    let good = chain.record(2..4);
    let check = |bytes: &[u8], expected: &str| {
        let error = read(chain.wanted(2..8), bytes, 7).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error} is not about {expected}");
    };
    assert!(read(chain.wanted(2..8), &one(&good, payload), 7).is_ok());
    check(&one(&ChunkRecord { kind: StateKind::Checkpoint, ..good.clone() }, payload), "kind");
    check(&one(&ChunkRecord { root: BlockHash([8; 32]), ..good.clone() }, payload), "root");
    check(&one(&ChunkRecord { first_block: 3, ..good.clone() }, payload), "place");
    check(&one(&ChunkRecord { parent: None, ..good.clone() }, payload), "place");
    check(&one(&chain.record(3..5), payload), "place");
    check(&one(&ChunkRecord { blocks: other.blocks[2..4].into(), ..good.clone() }, payload), "chain");
    check(&one(&ChunkRecord { blocks: [].into(), tokens: [].into(), ..good.clone() }, payload), "chain");
    // Other tokens with the right hashes, which a peer can send.
    check(&one(&ChunkRecord { tokens: other.tokens[8..16].into(), ..good.clone() }, payload), "text");
    check(&one(&ChunkRecord { tokens: chain.tokens[8..15].into(), ..good.clone() }, payload), "number of tokens");
    check(&one(&ChunkRecord { n_bytes: 40, ..good.clone() }, &payload[..40]), "size");
    let long = Chain::new(1, 12);
    check(&one(&long.record(2..9), long.payload(2..9)), "chain");
    let foreign = Identity { kv: Fingerprint([3; 32]), ..IDENTITY };
    check(&[format::encode(foreign, &good, payload).expect("it fits"), payload.to_vec()].concat(), "identity");
}

#[test]
fn a_length_that_is_too_large_takes_no_memory() {
    let chain = Chain::new(1, 4);
    let mut huge = one(&chain.record(0..4), chain.payload(0..4));
    huge[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(read(chain.wanted(0..4), &huge, 100), Err(Damage::Header.into()));
    // Within the limit of a file, but more than these blocks need.
    huge[12..16].copy_from_slice(&(1_u32 << 20).to_le_bytes());
    let mut reader = RunReader::new(chain.wanted(0..4));
    assert_eq!(reader.push(&huge), Err(Damage::Header.into()));
    assert!(reader.head.capacity() < 1024);
}

#[test]
fn a_header_without_bytes_is_refused() {
    let chain = Chain::new(1, 4);
    let mut empty = one(&chain.record(0..4), chain.payload(0..4));
    empty[12..16].copy_from_slice(&0_u32.to_le_bytes());
    assert_eq!(read(chain.wanted(0..4), &empty, 100), Err(Damage::Header.into()));
}

#[test]
fn whatever_follows_the_run_is_ignored() {
    let chain = Chain::new(1, 6);
    let sent = [chain.sent(0, &[2, 6]), vec![0xAB; 10_000]].concat();
    assert_eq!(read(chain.wanted(0..6), &sent, 64), Ok((chain.state, 0)));
}

proptest! {
    #[test]
    fn a_sent_run_is_read_from_pieces_of_any_size(
        (lengths, first) in (prop::collection::vec(1..=4_usize, 1..6), 0..4_usize),
        step in 1..400_usize,
    ) {
        let cuts: Vec<usize> = lengths.iter().scan(first, |end, n| { *end += n; Some(*end) }).collect();
        let end = cuts[cuts.len() - 1];
        let chain = Chain::new(3, end);
        let expected = chain.payload(first..end).to_vec();
        prop_assert_eq!(read(chain.wanted(first..end), &chain.sent(first, &cuts), step), Ok((expected, 0)));
    }

    #[test]
    fn a_changed_byte_anywhere_is_noticed_or_without_effect(
        (at, change) in (0..2000_usize, 1..=255_u8),
        step in 1..400_usize,
    ) {
        let chain = Chain::new(4, 9);
        let mut sent = chain.sent(0, &[3, 4, 9]);
        let at = at % sent.len();
        sent[at] ^= change;
        if let Ok((state, n_left)) = read(chain.wanted(0..9), &sent, step) {
            prop_assert_eq!(n_left, 0);
            prop_assert_eq!(state, chain.state);
        }
    }

    #[test]
    fn a_cut_off_run_gives_only_whole_records(at in 0..2000_usize, step in 1..400_usize) {
        let chain = Chain::new(5, 9);
        let sent = chain.sent(0, &[3, 4, 9]);
        let (state, n_left) = read(chain.wanted(0..9), &sent[..at % sent.len()], step).expect("it begins well");
        prop_assert!([9, 6, 5].contains(&n_left));
        prop_assert_eq!(&state, chain.payload(0..9 - n_left));
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_incomplete(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let chain = Chain::new(6, 3);
        if let Ok((state, n_left)) = read(chain.wanted(0..3), &bytes, 50) {
            prop_assert_eq!((state.len(), n_left), (0, 3));
        }
    }
}

#[test]
fn a_record_that_is_sent_names_no_tenant() {
    let chain = Chain::new(1, 3);
    let stored = ChunkRecord { tenant: Some(TenantId(5)), priority: 3, ..chain.record(0..3) };
    let sent = stored.part(1..3);
    assert_eq!(sent, ChunkRecord { n_bytes: 2 * BLOCK_BYTES as u64, ..chain.record(1..3) });
}

#[test]
fn the_release_in_the_identity_is_the_one_that_is_built() {
    let lock = include_str!("../../../../Cargo.lock");
    let built = format!("name = \"llama-cpp-sys-2\"\nversion = \"{}\"", crate::store::STATE_VERSION);
    assert!(lock.contains(&built), "STATE_VERSION is not the version of llama-cpp-sys-2 in Cargo.lock");
}

#[test]
fn everything_in_the_identity_changes_its_fingerprint() {
    let others = [
        Identity { model: Fingerprint([9; 32]), ..IDENTITY },
        Identity { kv: Fingerprint([9; 32]), ..IDENTITY },
        Identity { block_size_tokens: 5, ..IDENTITY },
    ];
    for other in others {
        assert_ne!(other.fingerprint(), IDENTITY.fingerprint(), "{other:?}");
    }
    assert_ne!(Identity::new(IDENTITY.model, "a", 4), Identity::new(IDENTITY.model, "b", 4));
}
