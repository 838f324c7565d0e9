//! The engine: one OS thread that owns the model and the context and runs submissions.
//!
//! Commands come in through a bounded queue; events go out through each submission's own channel. A step is admit ->
//! slot plan -> batch plan -> decode -> sample -> emit; `warmpath-worker-core` makes the decisions. Not here: HTTP,
//! prompts as text, the summary stream.

mod adapters;
mod admin;
mod admit;
mod api;
mod arguments;
mod arrival_announcer;
mod batch;
mod config;
mod counters;
mod events;
mod facts;
mod footprint;
mod grammar;
mod handle;
mod json_schema;
pub mod kv_codec;
mod kv_receiving;
mod kv_sending;
mod kv_store;
mod llama;
mod metadata;
mod output_constraint;
mod placement;
mod reasoning;
mod rope;
mod sampler;
mod sampler_kind;
mod saved_slot;
mod schema_or_call;
mod self_test;
mod sequence;
mod setup;
mod shifts;
mod speculation;
mod state_saving;
mod step;
mod summary_events;
mod thread;
mod tool_grammar;

pub use adapters::AdapterFile;
pub use admin::{CacheError, CacheTotals, CacheView, NamedPin, NewPin, Page, TenantView};
pub use api::{
    CachedTokens, DraftWish, Drafted, EngineError, EngineUpdate, Event, FinishReason, Finished, Generation,
    ProbabilitySource, ProbabilityWish, PromptFault, SampledToken, Sampling, ShiftWish, SlotView, Started, Submission,
};
pub use arguments::{ArgumentSchemas, Extent};
pub(crate) use arrival_announcer::{ArrivalAnnouncer, Promise};
pub use config::{
    AtContextEnd, CacheType, CostSource, DiskConfig, EngineConfig, PrefixCache, SLOT_CELLS_STEP,
    SLOT_CONTEXT_TOKENS_DEFAULT_MAX, SLOTS_MAX, SelfTest, ShiftConfig, ShiftObstacle, StartError, StoreConfig, Switch,
};
pub use counters::CounterValues;
pub(crate) use counters::Counters;
pub use events::{EventReceiver, EventSender, UNREAD_BYTES_MAX, events};
pub use facts::{EngineFacts, Exchange};
pub(crate) use footprint::check_devices;
pub use footprint::{Bytes, Fit, MemoryPlan, MemoryUse, plan as plan_memory};
pub use handle::{ArrivalGuard, EngineHandle};
pub use json_schema::CompiledSchema;
pub use kv_receiving::{FetchOrder, Fetched, Inbox, PeerOffer, PeerSpeed};
pub use kv_sending::{SENDS_MAX, SendError, SentRun};
pub use llama::devices::list as list_devices;
pub(crate) use llama::devices::settle as settle_with;
pub(crate) use llama::measure::Outline;
pub(crate) use llama::{Progress, describe as describe_model, load as load_model, with_rope};
pub(crate) use metadata::Metadata;
pub use metadata::{KEY_BYTES_MAX, MetadataOverride, MetadataValue, TEXT_BYTES_MAX};
pub use placement::{GpuLayers, LoadMode, Numa, Placement, SplitMode, TensorOverride};
pub use reasoning::ThoughtsFirst;
pub use rope::{RopeScaling, RopeSettings};
pub use sampler_kind::SamplerKind;
pub use saved_slot::{CHECKPOINTS_MAX, SlotCheckpoint, SlotState};
pub use self_test::{Candidate, Costs, Figures, Origin, Outcome, SelfTestReport, Setting, SuffixRounding};
pub use speculation::SpeculationConfig;
pub(crate) use summary_events::Report;
pub use tool_grammar::{Begin, CallGrammar, CallStart};

use tokio::sync::mpsc;

/// Returns a configuration that names the device of each part.
///
/// A completed configuration stays as it is. Cost: if `--n-gpu-layers` is left open and there is a GPU, that of reading
/// the model's metadata several times. Errors: `Config` for a device or a buffer that does not exist.
pub fn settle(config: EngineConfig) -> Result<EngineConfig, StartError> {
    settle_with(config, llama::measure::wanted_context)
}

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
