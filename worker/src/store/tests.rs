//! Tests of the disk tier on real files: round trips, layout, damage, crashes, order and failures.
//!
//! The payload of a test's chunk is derived from its record, so any chunk can be checked. A callback that does not
//! return simulates a disk that does not respond, without a clock.

mod crash;
mod damage;
mod failures;
mod layout;
mod life;
mod model;
mod order;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use tempfile::TempDir;
use warmpath_common::block_hash::{BlockHash, block_chain, block_hash};
use warmpath_common::ids::Token;
use warmpath_worker_core::store::chunk_index::StateKind;
use warmpath_worker_core::tenants::TenantId;

use super::format::file_name;
use super::*;

/// Time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK_SIZE_TOKENS: u32 = 4;
const IDENTITY: Identity =
    Identity { model: Fingerprint([1; 32]), kv: Fingerprint([2; 32]), block_size_tokens: BLOCK_SIZE_TOKENS };
const LIMITS: StoreRequestLimits =
    StoreRequestLimits { queued_bytes_max: 256 << 20, write_pause: WRITE_PAUSE, end_patience: END_PATIENCE };
const ROOT: BlockHash = BlockHash([7; 32]);

/// Returns the record of two blocks at the start of the chain of `seed`, with a small payload.
fn chunk(seed: u32) -> ChunkRecord {
    sized(seed, 100)
}

/// Returns the record of [`chunk`] with a payload of `n_bytes`.
fn sized(seed: u32, n_bytes: usize) -> ChunkRecord {
    let tokens: Vec<Token> = (0..2 * BLOCK_SIZE_TOKENS).map(|i| seed * 1000 + i).collect();
    ChunkRecord {
        kind: StateKind::Chunk,
        root: ROOT,
        first_block: 0,
        parent: None,
        blocks: block_chain(&ROOT, &tokens, BLOCK_SIZE_TOKENS).into(),
        tokens: tokens.into(),
        n_bytes: n_bytes as u64,
        priority: 0,
        tenant: Some(TenantId(u128::MAX - u128::from(seed))),
    }
}

/// Returns the record of one block after `parent`.
fn child_of(parent: &ChunkRecord) -> ChunkRecord {
    let last = parent.blocks[parent.blocks.len() - 1];
    let tokens: Arc<[Token]> = vec![9; BLOCK_SIZE_TOKENS as usize].into();
    let first_block = parent.first_block + parent.blocks.len();
    let blocks = [block_hash(&last, &tokens)].into();
    ChunkRecord { first_block, parent: Some(last), blocks, tokens, ..parent.clone() }
}

/// Returns the payload that belongs to `record` in these tests.
fn payload(record: &ChunkRecord) -> Bytes {
    let mut bytes = vec![0; record.n_bytes as usize];
    blake3::Hasher::new().update(file_name(record).as_bytes()).finalize_xof().fill(&mut bytes);
    bytes.into()
}

/// An open store and its events.
struct Opened {
    store: DiskStore,
    files: Vec<StoredFile>,
    events: Receiver<DiskEvent>,
}

impl Opened {
    fn event(&self) -> DiskEvent {
        self.events.recv_timeout(PATIENCE).expect("the store responds")
    }

    /// Requests the write of the chunk whose id is also `seed`.
    fn write(&self, seed: u32, n_bytes: usize) {
        let record = sized(seed, n_bytes);
        let payload = payload(&record);
        self.store.write(ChunkId(seed.into()), record.into(), payload);
    }

    /// Writes a chunk and waits for the event.
    fn write_through(&self, record: &ChunkRecord) {
        self.store.write(ChunkId(0), record.clone().into(), payload(record));
        let event = self.event();
        assert!(matches!(event, DiskEvent::Written { .. }), "{event:?}");
    }

    fn read_through(&self, record: &ChunkRecord) -> Result<Bytes, ReadFailure> {
        self.store.read(ChunkId(0), record.clone().into());
        match self.event() {
            DiskEvent::Read { payload, .. } => Ok(payload),
            DiskEvent::ReadFailed { reason, .. } => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    fn flush(&self) {
        assert_eq!(self.store.flush(Instant::now() + PATIENCE), 0);
    }

    /// Returns the received events in words.
    fn said(&self) -> Vec<String> {
        self.events.try_iter().map(|event| said(&event)).collect()
    }
}

fn said(event: &DiskEvent) -> String {
    match event {
        DiskEvent::Written { id, .. } => format!("written {}", id.0),
        DiskEvent::WriteFailed { id, reason } => format!("write failed {}: {reason}", id.0),
        DiskEvent::Read { id, .. } => format!("read {}", id.0),
        DiskEvent::ReadFailed { id, reason } => format!("read failed {}: {reason}", id.0),
    }
}

fn open(dir: &TempDir) -> Opened {
    open_at(dir.path(), IDENTITY, LIMITS)
}

fn open_at(dir: &Path, identity: Identity, limits: StoreRequestLimits) -> Opened {
    let (sender, events) = channel();
    let tell = move |event| drop(sender.send(event));
    let (store, files) = DiskStore::open_limited(dir, identity, limits, tell).expect("the store opens");
    Opened { store, files, events }
}

/// Opens a store whose disk serves one request and then hangs until the sender is dropped or sends.
fn open_hanging(dir: &TempDir, limits: StoreRequestLimits) -> (Opened, Sender<()>) {
    let (sender, events) = channel();
    let (release, released) = channel();
    let tell = move |event| {
        drop(sender.send(event));
        let _ = released.recv();
    };
    let (store, files) = DiskStore::open_limited(dir.path(), IDENTITY, limits, tell).expect("the store opens");
    (Opened { store, files, events }, release)
}

fn dir() -> TempDir {
    tempfile::tempdir().expect("a folder can be made")
}

/// Returns the names in the store's folder without the lock's.
fn names(folder: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let mut names: Vec<OsString> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.retain(|name| name != "identity");
    names.sort();
    names
}
