//! The state that the engine thread publishes for other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use arc_swap::{ArcSwap, ArcSwapOption};

use crate::engine::api::SlotView;
use crate::engine::api::cache::CacheTotals;
use crate::engine::counters::Counters;
use crate::engine::self_test::SelfTestReport;

/// State that the thread publishes.
#[derive(Default)]
pub(crate) struct EngineView {
    pub counters: Arc<Counters>,
    pub slots: ArcSwap<Vec<SlotView>>,
    pub cache: ArcSwap<CacheTotals>,
    pub draining: AtomicBool,
    /// Whether the last handle was dropped.
    pub is_closed: AtomicBool,
    /// Whether the draining thread keeps running because other workers fetch its state.
    pub hands_over: AtomicBool,
    /// Number of requests whose submissions are being prepared.
    pub n_coming: AtomicUsize,
    /// Result of the last self-test; `None` if there was none.
    pub self_test: ArcSwapOption<SelfTestReport>,
}
