//! Sample values for the tests of several modules.

use std::sync::Arc;
use std::time::Instant;

use warmpath_common::ids::WorkerUid;
use warmpath_common::model::{Fingerprint, ModelInfo};
use warmpath_common::summary::{Load, Rates};

use crate::WorkerIdx;
use crate::fleet::{ConnectionState, KnownBlocks, WorkerView};

/// Returns a valid model declaration.
pub(crate) fn model() -> ModelInfo {
    ModelInfo { names: vec!["m".into()], add_bos: true, ..ModelInfo::text(Fingerprint([1; 32]), 32, 8192, 4, 1000) }
}

/// Returns the load of an idle worker that computes 1,000 tokens a second.
pub(crate) fn idle() -> Load {
    let rates = Rates {
        prefill_tokens_per_s: Some(1000.0),
        decode_step_ms: Some(10.0),
        answer_tokens: Some(100.0),
        ..Rates::default()
    };
    Load { free_cells: 32_768, rates, ..Load::default() }
}

/// Returns a connected, idle worker.
pub(crate) fn worker(idx: u32) -> WorkerView {
    WorkerView {
        idx: WorkerIdx(idx),
        name: format!("http://worker-{idx}"),
        uid: Some(WorkerUid(u64::from(idx))),
        boot_epoch: Some(1),
        model: Some(Arc::new(model())),
        further: Vec::new(),
        awaited: Vec::new(),
        joined_at: Instant::now(),
        load: idle(),
        measured_at: Instant::now(),
        link: ConnectionState::Live,
        trouble: None,
        excluded: None,
        blocks: KnownBlocks::default(),
        stock: None,
        is_leaving: false,
    }
}
