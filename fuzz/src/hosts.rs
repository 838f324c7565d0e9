//! A host's stream of summaries, cut anywhere: what is accepted keeps the rules, and no reason shows a path.

use std::time::Instant;

use warmpath_common::clean_text;
use warmpath_router_core::hosts::stream::{EVENT_BYTES_MAX, HostStream, check};

use crate::input::Cuts;

/// Reads a stream in pieces, and its text as a reason.
pub(crate) fn run(input: &[u8]) {
    let Some((cuts, content)) = Cuts::take(input) else { return };
    let now = Instant::now();
    let mut stream = HostStream::new(now);
    let mut last = None;
    for piece in cuts.pieces(content) {
        let Ok(summary) = stream.take(piece, now) else { break };
        let Some(summary) = summary else { continue };
        assert!(check(&summary).is_ok(), "an accepted summary keeps the rules");
        assert!(last < Some(summary.sequence), "an accepted summary is newer");
        last = Some(summary.sequence);
        let text = serde_json::to_string(&summary).expect("a summary has a JSON form");
        assert!(text.len() < 8 * EVENT_BYTES_MAX, "a summary is about as long as its event");
    }
    let reason = String::from_utf8_lossy(content);
    if !reason.contains("SECRET") {
        let clean = clean_text::without_paths(&format!("cannot open /home/SECRET/{reason}"));
        assert!(!clean.contains("SECRET"), "the folders of a path are gone");
    }
}
