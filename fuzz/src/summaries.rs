//! A worker's summary: frames in a stream that is cut anywhere, and the prefix index that is filled from them.
//!
//! The result must not depend on the cuts. After the worker has left, the index is empty, whatever it has sent.

use std::time::{Duration, Instant};

use warmpath_common::summary::{Frame, Stamp, with_length};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::summary_reader::{FrameEffect, SummaryReader};
use warmpath_router_core::fleet::summary_stream::{StreamLimits, SummaryStream};
use warmpath_router_core::index::{IndexOptions, IndexWriter};

use crate::input::{Cuts, sections};

/// Limits that no input reaches except with the length of its frames.
const LIMITS: StreamLimits = StreamLimits {
    frames_per_s_max: 1 << 20,
    update_bytes_per_s_max: 1 << 30,
    snapshot_timeout: Duration::from_secs(3),
};

/// Most blocks of the worker.
const BLOCKS_MAX: usize = 1000;

/// Memory of the index, small enough to be filled. Units: bytes.
const INDEX_BYTES_MAX: usize = 64 << 10;

/// What a stream has led to.
#[derive(Debug, Default)]
struct Outcome {
    effects: Vec<FrameEffect>,
    fault: Option<String>,
    n_waiting_bytes: usize,
    resumes_after: Option<Stamp>,
}

/// Reads a stream whole and in pieces, and fills an index.
pub(crate) fn run(input: &[u8]) {
    let Some((cuts, input)) = Cuts::take(input) else { return };
    let Some((&is_framed, content)) = input.split_first() else { return };
    let stream = if is_framed == 0 { content.to_vec() } else { framed(content) };
    let in_one_piece = read(std::iter::once(&stream[..]));
    let in_pieces = read(cuts.pieces(&stream));
    // As text, because a number that is none differs from itself.
    assert_eq!(format!("{in_pieces:?}"), format!("{in_one_piece:?}"), "a stream in pieces, and whole");
    fill_index(in_one_piece.effects);
}

/// Returns a stream of the sections as frames.
fn framed(content: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    for section in sections(content) {
        if let Ok(frame) = Frame::decode(section) {
            let again = Frame::decode(&frame.encode()).expect("an encoded frame can be decoded");
            assert_eq!(format!("{again:?}"), format!("{frame:?}"), "a frame, encoded and decoded");
        }
        stream.extend(with_length(section));
    }
    stream
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let now = Instant::now();
    let mut reader = SummaryReader::new(BLOCKS_MAX);
    reader.open();
    let mut stream = SummaryStream::new(LIMITS, now);
    let mut outcome = Outcome::default();
    for piece in pieces {
        stream.push(piece);
        loop {
            match stream.next(&mut reader, now) {
                Ok(Some(effect)) => outcome.effects.push(effect),
                Ok(None) => break,
                Err(fault) => {
                    outcome.fault = Some(fault.to_string());
                    outcome.resumes_after = reader.open();
                    return outcome;
                }
            }
        }
    }
    outcome.n_waiting_bytes = stream.n_waiting_bytes();
    outcome.resumes_after = reader.open();
    outcome
}

/// Applies all effects to one worker and every other one to a second worker, so that they share some segments.
fn fill_index(effects: Vec<FrameEffect>) {
    let mut index = IndexWriter::new(IndexOptions { bytes_max: INDEX_BYTES_MAX, seed: 7 });
    let workers = [WorkerIdx(0), WorkerIdx(1)];
    for (idx, effect) in effects.into_iter().enumerate() {
        for &worker in &workers[..1 + idx % 2] {
            match &effect {
                FrameEffect::Replace(view) => index.replace_worker(worker, view.runs.clone()),
                FrameEffect::Update { changes, .. } => changes.iter().for_each(|change| {
                    index.apply(worker, change);
                }),
                FrameEffect::Opened(_) | FrameEffect::Partial | FrameEffect::Resumed => {}
            }
        }
    }
    workers.into_iter().for_each(|worker| index.remove_worker(worker));
    assert_eq!(index.reader().n_blocks(), 0, "blocks of workers that have left");
}
