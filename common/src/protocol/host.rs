//! What a host and its routers exchange: the summary of a host, the demand for a model, loads and unloads.
//!
//! A host runs one worker for each loaded model of its catalogue. Its summary is small (some hundred bytes for each
//! model), so every event of its stream is a whole one: a router that missed some needs only the last.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::Fingerprint;

/// Path of the summary: `GET` returns a [`HostSummary`] as JSON.
pub const SUMMARY_PATH: &str = "/host/v1/summary";
/// Path of the stream of summaries: server-sent events, each with a [`HostSummary`] as data; the first comes at once.
pub const EVENTS_PATH: &str = "/host/v1/events";
/// Path of the demand: `POST` of a [`Demand`]; returns the model's [`HostModel`].
pub const DEMAND_PATH: &str = "/host/v1/demand";
/// Path of a load by hand: `POST` of a [`ModelName`]; returns the model's [`HostModel`].
pub const LOAD_PATH: &str = "/host/v1/load";
/// Path of an unload by hand: `POST` of a [`ModelName`]; returns the model's [`HostModel`].
pub const UNLOAD_PATH: &str = "/host/v1/unload";
/// Path of a download: `POST` of a [`ModelName`], a repository of Hugging Face, which joins the catalogue; returns the
/// [`HostSummary`].
pub const DOWNLOAD_PATH: &str = "/host/v1/download";
/// Path that removes such a model with its files: `POST` of a [`ModelName`]; returns the [`HostSummary`].
pub const REMOVE_PATH: &str = "/host/v1/remove";
/// Path that reads the catalogue again: `POST` without a body; returns the [`HostSummary`].
pub const RELOAD_PATH: &str = "/host/v1/reload";

/// Milliseconds for which a demand counts. A router repeats it three times as often while its requests wait, so the
/// demand of a router that ended is forgotten.
pub const DEMAND_TTL_MS: u64 = 3_000;

/// Everything that a router needs to know of a host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostSummary {
    /// Name of the host, for people.
    pub host: String,
    /// Number of this summary since the host started; a larger one is newer.
    pub sequence: u64,
    /// Most models that are loaded at a time; 0 for no limit but memory.
    #[serde(default)]
    pub models_max: u32,
    /// Memory by device.
    pub memory: Vec<HostMemory>,
    /// Models of the catalogue, in its order.
    pub models: Vec<HostModel>,
}

/// Name of the machine's own memory among the devices.
pub const RAM: &str = "ram";

/// Memory of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMemory {
    /// [`RAM`], or llama.cpp's name of a GPU, such as `CUDA0`.
    pub device: String,
    /// Bytes that models may take.
    pub budget_bytes: u64,
    /// Bytes of the budget that no loaded or loading model is expected to take.
    pub free_bytes: u64,
}

/// Fields of a request's body with their values.
pub type RequestFields = Map<String, Value>;

/// Returns the fields that a text in JSON has.
///
/// Errors: it is no JSON object.
pub fn request_fields(text: &str) -> Result<RequestFields, serde_json::Error> {
    serde_json::from_str(text)
}

/// A model of a host's catalogue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostModel {
    /// Name for clients.
    pub name: String,
    /// Further names for clients.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Fields that requests get in place of their own, by the name that they have for the model; a field with `null` is
    /// removed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set_params: BTreeMap<String, RequestFields>,
    /// Whether a request for the model loads it.
    pub is_autoloaded: bool,
    /// Whether the model never leaves.
    pub is_pinned: bool,
    /// Whether the model was downloaded by an order, so that another order may remove it.
    #[serde(default)]
    pub is_removable: bool,
    /// Fingerprint of its file; absent if the file is not on this machine, or has not been read yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// What the model is at this moment.
    #[serde(flatten)]
    pub state: ModelState,
}

/// What a model is on a host at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ModelState {
    /// A worker serves it.
    Loaded {
        /// URL of the worker.
        worker_url: String,
        /// Requests that it computes.
        n_running: u32,
        /// Milliseconds since its last request ended, or since it was loaded; 0 while it computes.
        idle_ms: u64,
        /// Milliseconds that loading it took.
        load_ms: u64,
    },
    /// A worker loads it, or will as soon as others that leave for it have left.
    Loading {
        /// URL of the worker; absent while memory is being freed.
        worker_url: Option<String>,
        /// Share of the load that is done, from 0 to 1.
        progress: f32,
        /// Milliseconds that the rest is expected to take.
        remaining_ms: u64,
    },
    /// Its worker finishes its last requests and keeps its cache.
    Unloading {
        /// URL of the worker.
        worker_url: String,
    },
    /// Its files are downloaded, and nothing waits for it.
    Downloading(FetchedBytes),
    /// It can be loaded. If requests wait for it, others have requests and keep their memory.
    Loadable {
        /// Bytes of memory that it is expected to take, over all devices.
        memory_bytes: u64,
        /// Milliseconds that loading it is expected to take.
        load_ms: u64,
        /// Milliseconds until there is memory for it, at the latest.
        #[serde(default)]
        wait_ms: u64,
        /// Milliseconds that loading the models that leave for it again would take, by the chance of their use.
        #[serde(default)]
        evicts_ms: u64,
        /// Milliseconds of computing that the KV state which it has here saves its next request.
        #[serde(default)]
        kept_ms: u64,
        /// Whether its file is on this machine; otherwise it must be downloaded first.
        is_local: bool,
    },
    /// It cannot be loaded.
    Impossible {
        /// Why, for people.
        reason: String,
        /// Milliseconds until the host tries again; absent if it never does by itself.
        retry_ms: Option<u64>,
    },
}

/// Progress of a download, as a worker's `--files fetch` prints it in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedBytes {
    /// Bytes of all files that are here.
    pub done_bytes: u64,
    /// Bytes of all files; 0 if unknown.
    pub total_bytes: u64,
}

/// Memory that a worker would take, and its model's identity, as its `--print-memory` prints them in JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryProjection {
    /// Whether the model's files are on this machine; otherwise nothing else is known.
    pub is_local: bool,
    /// Fingerprint of the model's file.
    pub fingerprint: Option<Fingerprint>,
    /// Context of all slots together, if a default one had to be reduced. Units: tokens.
    pub ctx_size: Option<u32>,
    /// Memory of each device that is used.
    pub devices: Vec<DeviceProjection>,
}

/// Memory that a worker would take of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProjection {
    /// [`RAM`], or llama.cpp's name of a GPU.
    pub device: String,
    /// Bytes that the worker would take, with weights that are mapped from their file.
    pub bytes: u64,
    /// Bytes that are available now; absent if the device does not report it.
    pub available_bytes: Option<u64>,
}

/// Requests that wait for a model at one router.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Name of the model, or one of its aliases.
    pub model: String,
    /// Identity of the router; its next demand for the model replaces this one.
    pub router: String,
    /// Requests that wait.
    pub n_waiting: u32,
    /// Milliseconds for which the oldest of them has waited.
    pub oldest_wait_ms: u64,
}

/// A model, named by a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelName {
    /// Name of the model, or one of its aliases.
    pub model: String,
}

impl HostSummary {
    /// Returns the model with this name or alias.
    pub fn model(&self, name: &str) -> Option<&HostModel> {
        self.models.iter().find(|model| model.answers_to(name))
    }
}

impl HostModel {
    /// Returns a model without aliases that requests load and that may leave, but not for good.
    pub fn new(name: impl Into<String>, state: ModelState) -> Self {
        let (aliases, set_params) = (Vec::new(), BTreeMap::new());
        let (name, is_pinned, is_removable, fingerprint) = (name.into(), false, false, None);
        Self { name, aliases, set_params, is_autoloaded: true, is_pinned, is_removable, fingerprint, state }
    }

    /// Returns whether this is the model's name or one of its aliases.
    pub fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

impl ModelState {
    /// Returns the URL of the model's worker, if there is one.
    pub fn worker_url(&self) -> Option<&str> {
        match self {
            Self::Loaded { worker_url, .. } | Self::Unloading { worker_url } => Some(worker_url),
            Self::Loading { worker_url, .. } => worker_url.as_deref(),
            Self::Downloading(_) | Self::Loadable { .. } | Self::Impossible { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_as_it_was_written_and_its_state_stands_beside_the_name() {
        let state = ModelState::Loading { worker_url: None, progress: 0.25, remaining_ms: 1_500 };
        let aliases = vec!["small".to_owned()];
        let model = HostModel { aliases, ..HostModel::new("qwen", state) };
        let memory = HostMemory { device: "ram".into(), budget_bytes: 8 << 30, free_bytes: 1 << 30 };
        let (memory, models) = (vec![memory], vec![model]);
        let summary = HostSummary { host: "desk".into(), sequence: 7, models_max: 4, memory, models };
        let text = serde_json::to_string(&summary).expect("a summary has a JSON form");
        assert!(text.contains(r#""name":"qwen","aliases":["small"],"is_autoloaded":true"#), "{text}");
        assert!(text.contains(r#""state":"loading","worker_url":null,"progress":0.25"#), "{text}");
        let read: HostSummary = serde_json::from_str(&text).expect("it is the same form");
        assert_eq!(read, summary);
        assert!(read.model("small").is_some() && read.model("qwen").is_some() && read.model("other").is_none());
    }
}
