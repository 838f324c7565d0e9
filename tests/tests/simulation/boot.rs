//! Announcements of one boot of a worker, as a receiver without network faults would record them.
//!
//! They are the reference for every router's view, and share no code with the production code of a view.

use std::collections::BTreeSet;

use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::{Change, Digest, Frame, FrameBody};

use super::model::Build;

/// One boot of a worker's process.
pub struct Boot {
    /// Model and layout that it serves.
    pub build: Build,
    /// Blocks that it has announced and not removed.
    pub announced: BTreeSet<BlockKey>,
    /// Digest after each update; the first entry is that of the empty view.
    digests: Vec<Digest>,
}

impl Boot {
    /// Returns a boot that has announced nothing.
    pub fn new(build: Build) -> Self {
        Self { build, announced: BTreeSet::new(), digests: vec![Digest::default()] }
    }

    /// Records the next frame that the worker sends to every subscriber.
    pub fn send(&mut self, bytes: &[u8]) {
        let frame = Frame::decode(&bytes[4..]).expect("a worker sends whole frames");
        let FrameBody::Update { changes, .. } = frame.body else { panic!("subscribers share updates only") };
        for change in changes {
            match change {
                Change::Stored(run) => self.announced.extend(run.keys),
                Change::Removed(keys) => keys.iter().for_each(|key| _ = self.announced.remove(key)),
                Change::Accepted(_) => {}
            }
        }
        self.digests.push(Digest::of(&self.announced));
        assert_eq!(frame.stamp.seq + 1, self.digests.len() as u64, "updates have no gap");
    }

    /// Returns the number of updates so far.
    pub fn n_updates(&self) -> u64 {
        self.digests.len() as u64 - 1
    }

    /// Returns the digest after update `seq`; `None` if there was no such update.
    pub fn digest_at(&self, seq: u64) -> Option<Digest> {
        self.digests.get(seq as usize).copied()
    }

    /// Returns the digest after the last update.
    pub fn digest(&self) -> Digest {
        self.digests[self.digests.len() - 1]
    }

    /// Returns how many of a chain's first blocks are announced.
    pub fn n_announced(&self, keys: &[BlockKey]) -> usize {
        keys.iter().take_while(|key| self.announced.contains(key)).count()
    }
}
