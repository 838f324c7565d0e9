//! The store under random requests, compared with a map in which each request takes effect immediately.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy)]
enum Request {
    /// Writes a chunk that is not stored, deletes one that is.
    Toggle { seed: u32, n_bytes: usize },
    /// Reads a chunk, stored or not.
    Read { seed: u32 },
    /// Opens the store again after everything has been written.
    Restart,
}

fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        6 => (0..6_u32, 1..50_000_usize).prop_map(|(seed, n_bytes)| Request::Toggle { seed, n_bytes }),
        4 => (0..6_u32).prop_map(|seed| Request::Read { seed }),
        1 => Just(Request::Restart),
    ]
}

/// A store, and its expected content and events.
struct Model {
    dir: TempDir,
    opened: Option<Opened>,
    stored: HashMap<u32, (ChunkId, ChunkRecord)>,
    expected: VecDeque<Option<Bytes>>,
    next_id: u64,
}

impl Model {
    fn new() -> Self {
        let dir = dir();
        let opened = Some(open(&dir));
        Self { dir, opened, stored: HashMap::new(), expected: VecDeque::new(), next_id: 0 }
    }

    fn step(&mut self, request: Request) {
        let store = &self.opened.as_ref().expect("it is open").store;
        match request {
            Request::Toggle { seed, n_bytes } => {
                if let Some((id, record)) = self.stored.remove(&seed) {
                    store.delete(id, record.into());
                } else {
                    let record = sized(seed, n_bytes);
                    store.write(ChunkId(self.next_id), record.clone().into(), payload(&record));
                    self.stored.insert(seed, (ChunkId(self.next_id), record));
                    self.next_id += 1;
                }
            }
            Request::Read { seed } => {
                let found = self.stored.get(&seed);
                let (id, record) = found.cloned().unwrap_or((ChunkId(u64::MAX), chunk(seed)));
                self.expected.push_back(found.map(|(_, record)| payload(record)));
                store.read(id, record.into());
            }
            Request::Restart => self.restart(),
        }
    }

    /// Checks the events, and what a restarted store finds.
    fn restart(&mut self) {
        let opened = self.opened.take().expect("it is open");
        while let Some(expected) = self.expected.pop_front() {
            let found = std::iter::repeat_with(|| opened.event()).find_map(|event| match event {
                DiskEvent::Read { payload, .. } => Some(Some(payload)),
                DiskEvent::ReadFailed { reason: ReadFailure::Missing, .. } => Some(None),
                DiskEvent::Written { .. } => None,
                other => panic!("{other:?}"),
            });
            assert_eq!(found, Some(expected));
        }
        opened.flush();
        // Deletions have no event of their own, but come before this one.
        assert!(matches!(opened.read_absent(), ReadFailure::Missing));
        drop(opened);
        let opened = open(&self.dir);
        let found: HashMap<u32, &ChunkRecord> =
            opened.files.iter().map(|file| (file.record.tokens[0] / 1000, &file.record)).collect();
        assert_eq!(found, self.stored.iter().map(|(seed, (_, record))| (*seed, record)).collect());
        assert_eq!(names(opened.store.folder()).len(), found.len());
        self.opened = Some(opened);
    }
}

impl Opened {
    /// Reads a chunk that was never written, and returns why that failed.
    fn read_absent(&self) -> ReadFailure {
        self.store.read(ChunkId(u64::MAX), chunk(999).into());
        std::iter::repeat_with(|| self.event())
            .find_map(|event| match event {
                DiskEvent::ReadFailed { reason, .. } => Some(reason),
                _ => None,
            })
            .expect("the event of the read arrives")
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn requests_have_the_same_effect_as_on_a_map(requests in prop::collection::vec(any_request(), 1..40)) {
        let mut model = Model::new();
        for request in requests {
            model.step(request);
        }
        model.restart();
    }
}
