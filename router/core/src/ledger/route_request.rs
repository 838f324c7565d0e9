//! A request's input to the choice, and the decision about it.

use std::time::Instant;

use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::{RequestId, SlotId};
use warmpath_common::model::{Capability, ModelInfo};

use super::health::pause::Quota;
use crate::WorkerIdx;
use crate::overload::admission_queue::TenantKey;
use crate::routing::choose::{ChoiceReason, PromptView};
use crate::routing::cost::Cost;
use crate::routing::transfer::Transfer;

/// A request's input to the choice.
#[derive(Debug, Clone, Copy)]
pub struct RouteRequest<'a> {
    /// Id of the request.
    pub request_id: &'a RequestId,
    /// Name of the requested model; the worker must know it, because it gets the same body.
    pub model_name: Option<&'a str>,
    /// Account for which a server may have a quota; `None` if the client sends no key of its own.
    pub account: Option<TenantKey>,
    /// The model of that name.
    pub model: &'a ModelInfo,
    /// Capability that the worker needs; `None` if any worker will do.
    pub wanted: Option<Capability>,
    /// The prompt.
    pub prompt: PromptView<'a>,
    /// Workers at which this request has failed.
    pub tried: &'a [WorkerIdx],
    /// Workers that the request may not use now, because earlier requests wait for them.
    pub awaited: &'a [WorkerIdx],
    /// Number of responses that the request asks for, such as `n` of each prompt.
    pub n_sequences: u32,
    /// The current time.
    pub now: Instant,
}

impl RouteRequest<'_> {
    /// Returns what a worker's quota for it may depend on.
    pub(super) fn quota(&self) -> Quota<'_> {
        Quota { account: self.account, model_name: self.model_name }
    }
}

/// A request's worker, and the predictions for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// The worker.
    pub worker: WorkerIdx,
    /// Slot with the matched prefix; a hint.
    pub slot: Option<SlotId>,
    /// Last block whose reuse is expected.
    pub expected_block: Option<BlockKey>,
    /// Expected reuse, in whole blocks, of the worker's own and of fetched state. Units: tokens.
    pub cached_tokens: u32,
    /// State that the worker is to fetch from another one.
    pub transfer: Option<Transfer>,
    /// Part of the expected reuse that it is to fetch. Units: tokens.
    pub fetched_tokens: u32,
    /// Reason of the choice.
    pub reason: ChoiceReason,
    /// Cost of the request at the worker.
    pub cost: Cost,
    /// Time that the request takes of the worker: its prefill, and its response's share of the slots. Units:
    /// milliseconds.
    pub service_ms: f64,
}
