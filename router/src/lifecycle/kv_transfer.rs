//! KV state from other workers: the hint that tells a worker where to fetch it, and the report of the transfer.
//!
//! The hint is private to router and worker: a client's own hint is dropped, and no client sees the report. Not here:
//! the choice of the peer (the core's `routing::transfer`), the transfer itself (the workers).

use std::time::Instant;

use axum::http::HeaderMap;
use warmpath_common::headers::{CACHED_TOKENS, KV_FETCHED};
use warmpath_router_core::routing::transfer::Transfer;

use super::attempt_target::AttemptTarget;
use super::headers;
use crate::app::App;

/// Returns the hint's header: the peer's URL and the number of the prompt's first blocks that it holds.
pub(super) fn hint(app: &App, transfer: Transfer) -> String {
    format!("{};blocks={}", app.fleet.member(transfer.peer).name(), transfer.blocks)
}

/// Records what a worker fetched from the peer in its hint; nothing if it got no hint.
///
/// A transfer has failed if less is reused than predicted: the peer had less, or the worker could not store the state.
/// If a worker reuses as much as predicted without fetching, it got the state in another way, which says nothing about
/// the peer.
pub(super) fn observe(app: &App, target: &AttemptTarget, headers: &HeaderMap) {
    let Some(transfer) = target.decision.transfer else { return };
    let fetched = headers::text(headers, KV_FETCHED).and_then(fetched);
    let cached_tokens: Option<u32> = headers::number(headers, CACHED_TOKENS);
    let is_less = cached_tokens.is_some_and(|cached_tokens| cached_tokens < target.decision.cached_tokens);
    if fetched.is_some() || is_less {
        let measured = fetched.filter(|_| !is_less);
        let (worker, peer, now) = (target.decision.worker, transfer.peer, Instant::now());
        if measured.is_some() {
            app.metrics.kv_transfer_tokens.inc_by(u64::from(target.decision.fetched_tokens));
        }
        let mut ledger = app.fleet.ledger();
        match measured {
            Some((bytes, ms)) => ledger.transfer_rates.fetched(worker, peer, bytes, ms, now),
            None => ledger.transfer_rates.failed(worker, peer, now),
        }
    }
}

/// Returns the bytes and milliseconds of [`KV_FETCHED`]; `None` if it is malformed or nothing was fetched.
fn fetched(text: &str) -> Option<(u64, f64)> {
    let (bytes, ms) = text.split_once(';')?;
    let (bytes, ms): (u64, f64) = (bytes.parse().ok()?, ms.parse().ok()?);
    (bytes > 0 && ms.is_finite() && ms >= 0.0).then_some((bytes, ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_reports_of_transfers_are_read_and_others_ignored() {
        for (text, expected) in [
            ("23040;7", Some((23_040, 7.0))),
            ("23040;0.5", Some((23_040, 0.5))),
            ("0;7", None),
            ("5;-1", None),
            ("5;NaN", None),
            ("5;inf", None),
            ("-5;1", None),
            ("5", None),
            ("5;1;2", None),
            ("", None),
        ] {
            assert_eq!(fetched(text), expected, "{text}");
        }
    }
}
