//! A worker's stream of server-sent events with its journal, cut anywhere: the result must not depend on the cuts.

use bytes::Bytes;
use serde_json::Value;
use warmpath_common::dialects::Spelling;
use warmpath_common::dialects::ollama::AnswerForm;
use warmpath_router::lifecycle::journal::{JournalLimits, JournalReader};
use warmpath_router_core::event_stream::{EndMark, Ends, EventReader, Splitter, StreamState, contents, is_whole};
use warmpath_router_core::ollama::{AnswerWriter, MeasuredTimes};

use crate::input::Cuts;

/// Dialects, which an input chooses.
const MARKS: [EndMark; 5] =
    [EndMark::Done, EndMark::DoneOrFinished, EndMark::Stop { n_choices: 2 }, EndMark::MessageStop, EndMark::Response];

/// Limits that no input reaches: with them the result would depend on the cuts.
const LIMITS: JournalLimits = JournalLimits { journal_bytes_max: 1 << 20, held_bytes_max: 1 << 20 };

/// Limits that inputs reach.
const LOW_LIMITS: JournalLimits = JournalLimits { journal_bytes_max: 40, held_bytes_max: 20 };

/// What a stream has led to.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// Length of the whole events. Units: bytes.
    n_read: usize,
    state: StreamState,
    may_end: bool,
    lacks_only_done: bool,
}

/// Reads a stream whole and in pieces.
pub(crate) fn run(input: &[u8]) {
    let Some((cuts, input)) = Cuts::take(input) else { return };
    let Some((&mark, stream)) = input.split_first() else { return };
    let mark = MARKS[usize::from(mark) % MARKS.len()];
    let (whole, in_pieces) = (read(mark, std::iter::once(stream)), read(mark, cuts.pieces(stream)));
    assert_eq!(in_pieces, whole, "events in pieces, and whole");
    is_whole(&stream[whole.n_read..]);
    let (whole, in_pieces) = (as_lines(std::iter::once(stream)), as_lines(cuts.pieces(stream)));
    assert_eq!(in_pieces, whole, "Ollama's lines of events in pieces, and whole");
    let ends_well = |line: &Value| line["done"] == true || line["error"].is_string();
    assert!(whole.last().is_some_and(ends_well), "the last line says how the answer has ended");
    let (whole, in_pieces) = (without_journal(std::iter::once(stream)), without_journal(cuts.pieces(stream)));
    assert_eq!(in_pieces, whole, "a journal in pieces, and whole");
    let mut reader = JournalReader::new(LOW_LIMITS, Vec::new());
    let n_passed: usize =
        cuts.pieces(stream).flat_map(|piece| reader.push(Bytes::copy_from_slice(piece))).map(|bytes| bytes.len()).sum();
    assert!(n_passed + reader.rest().len() <= stream.len(), "nothing is passed on twice");
}

/// Reads whole events as the router's relay does.
fn read<'a>(mark: EndMark, pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let (mut splitter, mut reader) = (Splitter::default(), EventReader::new(mark));
    let (mut held, mut n_read) = (Vec::new(), 0);
    for piece in pieces {
        let Some(Ends { first, last }) = splitter.split(piece) else {
            held.extend_from_slice(piece);
            continue;
        };
        held.extend_from_slice(&piece[..first]);
        reader.read(&held);
        reader.read(&piece[first..last]);
        n_read += held.len() + last - first;
        held.clear();
        held.extend_from_slice(&piece[last..]);
    }
    let (state, may_end, lacks_only_done) = (reader.state(), reader.may_end(), reader.lacks_only_done());
    Outcome { n_read, state, may_end, lacks_only_done }
}

/// Returns Ollama's lines for the events of a stream.
fn as_lines<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Value> {
    let (mut splitter, mut held, mut out) = (Splitter::default(), Vec::new(), Vec::new());
    let mut writer = AnswerWriter::new(AnswerForm::Chat, None, Spelling::default());
    let times = MeasuredTimes::default();
    for piece in pieces {
        let last = splitter.split(piece).map_or(0, |ends| ends.last);
        held.extend_from_slice(&piece[..last]);
        if last > 0 {
            for data in contents(&held).flatten() {
                writer.event(&data, "", &times, &mut out);
            }
            held.clear();
        }
        held.extend_from_slice(&piece[last..]);
    }
    writer.end("", &times, &mut out);
    out
}

/// Returns the events that are passed on, those that wait, and the journal.
fn without_journal<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Vec<u8>, Option<Vec<u8>>) {
    let mut reader = JournalReader::new(LIMITS, Vec::new());
    let events: Vec<Bytes> = pieces.flat_map(|piece| reader.push(Bytes::copy_from_slice(piece))).collect();
    (events.concat(), reader.rest().to_vec(), reader.take_lines())
}
