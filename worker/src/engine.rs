//! The engine: one OS thread that owns the model and the context and runs submissions.
//!
//! Commands arrive through a bounded queue; events leave through each submission's own channel. The phases of a step
//! are admit, slot plan, batch plan, decode, sample, emit; `warmpath-worker-core` makes the decisions. The thread's
//! state has four owners, which `step` composes: `schedule`, `kv`, `output` and `publish`. Not here: HTTP, prompts as
//! text, the summary stream.

mod api;
mod codec;
mod config;
mod counters;
mod footprint;
mod handle;
mod kv;
mod llama;
mod media;
mod output;
mod processors;
mod publish;
mod schedule;
mod self_test;
mod sequence;
mod setup;
mod step;
mod thread;

pub use api::cache::{
    CHECKPOINTS_MAX, CacheError, CacheTotals, CacheView, EntryPage, NamedPin, NewPin, SlotCheckpoint, SlotState,
    TenantView,
};
pub use api::facts::{EngineFacts, Exchange};
pub use api::{
    CachedTokens, DraftOptions, Drafted, EngineError, EngineEvent, EventReceiver, EventSender, FetchOrder,
    FetchedState, FinishReason, Finished, Generation, Inbox, PastToken, PeerOffer, PeerSpeed, ProbabilityOptions,
    ProbabilitySource, PromptFault, ReasoningBudgetOptions, SampledToken, SamplerKind, Sampling, ShiftObstacle,
    ShiftOptions, SlotView, Started, Submission, UNREAD_BYTES_MAX, events,
};
pub use config::files::{AdapterFile, ProjectorConfig, ProjectorNeed};
pub use config::memory::{Bytes, Fit};
pub(crate) use config::metadata::Metadata;
pub use config::metadata::{KEY_BYTES_MAX, MetadataOverride, MetadataValue, TEXT_BYTES_MAX};
pub use config::placement::{GpuLayers, LoadMode, Numa, Placement, SplitMode, TensorOverride};
pub use config::rope::{RopeScaling, RopeSettings};
pub use config::speculation::{DraftCosts, HeadUse, SpeculationConfig};
pub use config::{
    AtContextEnd, CacheType, CostSource, DiskConfig, DraftModelConfig, EngineConfig, IdleState, PrefixCache,
    SLOT_CELLS_STEP, SLOT_CONTEXT_TOKENS_DEFAULT_MAX, SLOTS_MAX, SelfTest, ShiftConfig, StartError, StoreConfig,
    Switch,
};
pub use counters::CounterValues;
pub(crate) use counters::Counters;
pub(crate) use footprint::check_devices;
pub use footprint::{MemoryPlan, MemoryUse, plan as plan_memory, project as project_memory};
pub use handle::{ArrivalGuard, EngineHandle};
pub use kv::sending::{RunEnd, SENDS_MAX, SendError, SentRun};
pub(crate) use llama::adapters::check_file as check_adapter;
pub use llama::devices::list as list_devices;
pub(crate) use llama::measure::Outline;
pub use llama::offload::with_devices;
pub(crate) use llama::offload::with_devices_beside;
pub(crate) use llama::{Progress, StepThreads, describe as describe_model, load as load_model, with_rope};
pub use media::Projector;
pub(crate) use media::warn_of_text_only;
pub(crate) use publish::arrival_announcer::{ArrivalAnnouncer, EarlyAnnouncement};
pub(crate) use publish::summary_events::UpdateSender;
pub use self_test::{
    ContextSetting, Figures, FiguresOrigin, MeasureOutcome, SelfTestReport, StateCosts, SuffixRounding, TriedSetting,
};
pub use warmpath_worker_core::reports::summary_writer::EngineUpdate;

use tokio::sync::mpsc;

/// Starter of engines.
pub struct Engine;

impl Engine {
    /// Loads the model and starts the engine thread; blocks until it is ready for submissions.
    ///
    /// `progress` gets the loaded share, 0 to 1, and stops the loading by returning `false`. `updates` gets the changes
    /// after every step with changes; once its receiver is dropped no more are sent.
    /// Errors: every [`StartError`].
    pub fn start(
        config: EngineConfig,
        progress: impl FnMut(f32) -> bool + Send + 'static,
        updates: mpsc::UnboundedSender<EngineUpdate>,
    ) -> Result<EngineHandle, StartError> {
        thread::start(config, Box::new(progress), updates)
    }
}
