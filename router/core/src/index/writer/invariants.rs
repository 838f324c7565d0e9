//! The invariants that hold between any two operations on the index.
//!
//! The results of lookups are tested in `index/tests`. Everything that is stored twice is counted again and compared.

use std::collections::HashMap;

use warmpath_common::summary::Digest;

use super::*;

/// Blocks and segments of a worker, counted.
#[derive(Debug, Default, PartialEq)]
struct HoldingCounts {
    digest: Digest,
    n_segments: usize,
}

impl IndexWriter {
    /// Asserts the invariants.
    pub(in super::super) fn check_invariants(&self) {
        assert!(self.bytes() <= self.options.bytes_max, "{} bytes, limit {}", self.bytes(), self.options.bytes_max);
        assert_eq!(self.index.bytes(), self.bytes(), "readers see the memory in use");
        let mut counts = HashMap::new();
        let (mut n_segments, mut n_blocks, mut bytes) = (0, 0, 0);
        self.numbers.check();
        for (id, segment) in self.numbers.iter() {
            self.check_segment(id, segment, &mut counts);
            n_segments += 1;
            n_blocks += segment.len();
            bytes += segment.bytes();
        }
        let list_bytes: usize = self.holdings.iter().map(WorkerBlocks::bytes).sum();
        assert_eq!(self.list_bytes, list_bytes, "the lists' bytes are counted");
        assert_eq!(self.segment_bytes, bytes, "the segments' bytes are counted");
        assert_eq!((self.locator.n_blocks(), self.index.n_blocks()), (n_blocks, n_blocks), "blocks are counted");
        assert_eq!(self.heads.n_live(), n_segments, "every head has a segment");
        for (idx, holdings) in (0..).zip(&self.holdings) {
            let holding_counts = HoldingCounts { digest: holdings.counted(), n_segments: holdings.n_segments() };
            let expected = counts.remove(&idx).unwrap_or_default();
            assert_eq!(holding_counts, expected, "blocks and segments of worker {idx}");
        }
        assert!(counts.is_empty(), "every worker is counted");
    }

    fn check_segment(&self, id: u32, segment: Segment<'_>, counts: &mut HashMap<u32, HoldingCounts>) {
        // The segment by itself.
        let spans: Vec<BlockSpan> = segment.spans().collect();
        let follows = |a: &BlockSpan, b: &BlockSpan| {
            let is_one = a.form() == b.form() && a.to() == b.from();
            a.worker() < b.worker() || a.worker() == b.worker() && a.to() <= b.from() && !is_one
        };
        assert!(spans.is_sorted_by(follows), "spans are ordered and as few as can be: {spans:?}");
        let end = spans.iter().map(|span| span.to()).max();
        assert_eq!(end, Some(segment.len()), "a worker holds the segment's last block, and none holds more");
        assert!(segment.len() <= SEGMENT_BLOCKS_MAX);
        let bytes_needed = Segment::bytes_of(spans.len(), segment.len());
        assert!(segment.bytes() < 2 * bytes_needed, "{} bytes where {bytes_needed} suffice", segment.bytes());
        // What its workers count.
        for span in &spans {
            let digest = &mut counts.entry(span.worker().0).or_default().digest;
            segment.keys()[span.from()..span.to()].iter().for_each(|key| digest.add(BlockKey(*key)));
        }
        let mut workers: Vec<u32> = spans.iter().map(|span| span.worker().0).collect();
        workers.dedup();
        for worker in workers {
            counts.entry(worker).or_default().n_segments += 1;
            let list = self.holdings[worker as usize].segments();
            assert!(list.contains(&id), "worker {worker} finds all its segments");
        }
        // How the writer and the readers find it.
        for (offset, &key) in segment.keys().iter().enumerate() {
            let place = self.locate(&[BlockKey(key)]).map(|place| (place.id, place.offset));
            assert_eq!(place, Some((id, offset)), "a block has one place, and it is found");
        }
        let table = self.index.heads.load();
        let head = table.find(segment.first());
        let readers_segment =
            head.as_ref().and_then(|segment_held| segment_held.as_ref()).expect("a reader finds every segment");
        let current_segment = self.numbers.get(id).expect("the segment was found above");
        assert_eq!(readers_segment.ptr(), current_segment.ptr(), "the readers' segment is the current one");
    }
}
