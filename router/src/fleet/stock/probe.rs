//! Polls of a stock server: its models, its health and its load.
//!
//! Only `/v1/models` is required, which every OpenAI-compatible server has. Further endpoints of llama-server and vLLM
//! (`/health`, `/props`, `/slots`, `/metrics`) are used if they exist. Responses are limited in time and size, and
//! implausible values count as absent.
//!
//! Not here: the conclusions (`stock`, the core's `stock`).

use std::collections::HashMap;

use axum::http::StatusCode;
use futures::StreamExt;
use serde_json::{Value, json};
use warmpath_router_core::fleet::compatibility::{NAME_BYTES_MAX, NAMES_MAX};
use warmpath_router_core::stock::{Activity, Residence, ServerInfo, ServerStatus, StockModel};

use crate::config::{
    STOCK_ANSWER_BYTES_MAX, STOCK_ANSWER_TIMEOUT, STOCK_CONTEXT_DEFAULT, STOCK_MODELS_MAX, STOCK_SLOTS_DEFAULT,
};
use crate::fleet::client::{CallError, WorkerClient};

const MODELS: &str = "/v1/models";
const HEALTH: &str = "/health";
const PROPS: &str = "/props";
const SLOTS: &str = "/slots";
const METRICS: &str = "/metrics";

/// Names under which servers count running requests, waiting requests, and tokens computed since their start.
///
/// Source: the metrics of llama-server (`tools/server/README.md`) and of vLLM (its page "Production metrics").
const METRIC_NAMES: [[&str; 3]; 2] = [
    ["llamacpp:requests_processing", "llamacpp:requests_deferred", "llamacpp:prompt_tokens_total"],
    ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:prompt_tokens_total"],
];

/// Reason why a stock server cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    #[error("cannot get {path}")]
    Fetch {
        path: &'static str,
        #[source]
        source: CallError,
    },
    #[error("{path} broke off")]
    Broken {
        path: &'static str,
        #[source]
        source: axum::Error,
    },
    #[error("{path} did not arrive within {} s", STOCK_ANSWER_TIMEOUT.as_secs())]
    Timeout { path: &'static str },
    #[error("{path} was answered with {status}")]
    Status { path: &'static str, status: u16 },
    #[error("{path} was answered with 401: the server requires a key, or another one (--worker-key-file)")]
    Refused { path: &'static str },
    #[error("{path} has more than {STOCK_ANSWER_BYTES_MAX} bytes")]
    TooLong { path: &'static str },
    #[error("{MODELS} lists no model in the form of OpenAI's API: the server is not OpenAI-compatible")]
    NotOpenAi,
    #[error("{HEALTH} was answered with 503: the server is loading its model")]
    Loading { names: Vec<String> },
    #[error("{MODELS} lists no model: the server serves none at the moment")]
    NoModel,
}

impl ProbeError {
    /// Returns whether the server did not respond at all.
    pub(super) fn is_silence(&self) -> bool {
        match self {
            Self::Fetch { source, .. } => source.is_away(),
            Self::Timeout { .. } => true,
            _ => false,
        }
    }

    /// Returns whether this machine lacked a file descriptor, a port or memory, whatever the state of the server.
    pub(super) fn is_shortage(&self) -> bool {
        matches!(self, Self::Fetch { source, .. } if source.is_shortage())
    }

    /// Returns a short name for metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Fetch { source, .. } if source.is_tls() => "tls",
            Self::Fetch { .. } => "connect",
            Self::Broken { .. } => "broken",
            Self::Timeout { .. } => "timeout",
            Self::Status { .. } => "status",
            Self::Refused { .. } => "refused",
            Self::TooLong { .. } => "too_long",
            Self::NotOpenAi => "not_openai",
            Self::Loading { .. } => "loading",
            Self::NoModel => "no_model",
        }
    }
}

/// A server that was found.
pub(super) struct FoundServer {
    pub(super) declared: ServerInfo,
    /// The server's list, for comparison with later lists.
    pub(super) models: Models,
    pub(super) ways: ProbePaths,
}

/// Result of a poll.
pub(super) struct ProbeResult {
    /// The server's own report of its load.
    pub(super) load: LoadReport,
    /// The server's current list; `None` if none arrived, which changes nothing.
    pub(super) models: Option<Models>,
}

/// A server's own report of its load.
pub(super) enum LoadReport {
    /// Its current load.
    Read(ServerStatus),
    /// None arrived, which changes nothing.
    Missing,
    /// It was not read, so that the server can fall asleep.
    Spared,
}

/// The models that a server lists.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Models {
    listed: Vec<ListedModel>,
    n_left_out: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct ListedModel {
    names: Vec<String>,
    context_tokens: Option<u32>,
    identity: String,
    residence: Residence,
}

/// The paths where the server reports its state.
pub(super) struct ProbePaths {
    health: &'static str,
    load: Option<&'static str>,
    sleep: SleepReport,
}

/// Whether a server tells in `/props` that it has unloaded its model, as llama-server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SleepReport {
    Absent,
    Awake,
    Asleep,
}

impl SleepReport {
    fn read(props: &Value) -> Self {
        match props["is_sleeping"].as_bool() {
            None => Self::Absent,
            Some(false) => Self::Awake,
            Some(true) => Self::Asleep,
        }
    }
}

/// The poller of one server.
pub(super) struct Probe {
    client: WorkerClient,
}

impl Probe {
    /// Returns the poller of the server that `client` connects to.
    pub(super) fn new(client: WorkerClient) -> Self {
        Self { client }
    }

    /// Returns the server's models and the paths where it reports its state.
    ///
    /// Errors: every [`ProbeError`].
    pub(super) async fn find(&self) -> Result<FoundServer, ProbeError> {
        let health = match self.get(HEALTH).await {
            Ok(_) => HEALTH,
            Err(ProbeError::Status { status: 403..=405 | 501, .. } | ProbeError::Refused { .. }) => MODELS,
            Err(error @ ProbeError::Status { status: 503, .. }) => return Err(self.loading().await.unwrap_or(error)),
            Err(error) => return Err(error),
        };
        let models: Value = serde_json::from_slice(&self.get(MODELS).await?).map_err(|_| ProbeError::NotOpenAi)?;
        let mut models = listed(&models)?;
        let props = self.json(PROPS).await;
        let sleep = SleepReport::read(&props);
        models.read_sleep(sleep);
        // To a llama-server this is work: it would load the model.
        let slots = if sleep == SleepReport::Asleep { Value::Null } else { self.json(SLOTS).await };
        let declared = declared(&models, &props, &slots);
        let metrics = self.get(METRICS).await.unwrap_or_default();
        let load = if status_of_metrics(&String::from_utf8_lossy(&metrics)).is_some() {
            Some(METRICS)
        } else {
            status_of_slots(&slots).map(|_| SLOTS)
        };
        Ok(FoundServer { declared, models, ways: ProbePaths { health, load, sleep } })
    }

    /// Returns the names that an unhealthy server will serve, if it lists them already. llama-server does so while it
    /// loads.
    async fn loading(&self) -> Option<ProbeError> {
        let models = listed(&self.json(MODELS).await).ok()?;
        Some(ProbeError::Loading { names: models.listed.into_iter().flat_map(|model| model.names).collect() })
    }

    /// Returns the server's load and its list of models. `activity` is that of this router's requests there.
    ///
    /// Errors: every [`ProbeError`] if the server is unhealthy or serves nothing any more. A missing load or list is no
    /// error: the server may be computing.
    pub(super) async fn poll(&self, ways: &ProbePaths, activity: Activity) -> Result<ProbeResult, ProbeError> {
        let health = self.get(ways.health).await?;
        let models = if ways.health == MODELS { health } else { self.get(MODELS).await.unwrap_or_default() };
        let mut models = match listed(&serde_json::from_slice(&models).unwrap_or_default()) {
            Ok(models) => Some(models),
            Err(ProbeError::NoModel) => return Err(ProbeError::NoModel),
            Err(_) => None,
        };
        let can_sleep = ways.sleep != SleepReport::Absent;
        if can_sleep && let Some(models) = &mut models {
            models.read_sleep(SleepReport::read(&self.json(PROPS).await));
        }
        let server_status = match ways.load {
            // A llama-server whose slots are read never falls asleep.
            Some(SLOTS) if can_sleep && activity == Activity::Idle => {
                return Ok(ProbeResult { load: LoadReport::Spared, models });
            }
            Some(METRICS) => {
                let text = self.get(METRICS).await.unwrap_or_default();
                status_of_metrics(&String::from_utf8_lossy(&text))
            }
            Some(path) => status_of_slots(&self.json(path).await),
            None => None,
        };
        Ok(ProbeResult { load: server_status.map_or(LoadReport::Missing, LoadReport::Read), models })
    }

    /// Returns the JSON at `path`; `Null` if there is none.
    async fn json(&self, path: &'static str) -> Value {
        let body = self.get(path).await.unwrap_or_default();
        serde_json::from_slice(&body).unwrap_or_default()
    }

    async fn get(&self, path: &'static str) -> Result<Vec<u8>, ProbeError> {
        let fetched = tokio::time::timeout(STOCK_ANSWER_TIMEOUT, self.fetch(path)).await;
        fetched.map_err(|_| ProbeError::Timeout { path })?
    }

    async fn fetch(&self, path: &'static str) -> Result<Vec<u8>, ProbeError> {
        let failed = |source| ProbeError::Fetch { path, source };
        let response = self.client.get(&self.client.url(path)).await.map_err(failed)?;
        if response.status() == StatusCode::UNAUTHORIZED {
            return Err(ProbeError::Refused { path });
        }
        if !response.status().is_success() {
            return Err(ProbeError::Status { path, status: response.status().as_u16() });
        }
        let mut body = Vec::new();
        let mut pieces = response.into_body().into_data_stream();
        while let Some(piece) = pieces.next().await {
            body.extend_from_slice(&piece.map_err(|source| ProbeError::Broken { path, source })?);
            if body.len() > STOCK_ANSWER_BYTES_MAX {
                return Err(ProbeError::TooLong { path });
            }
        }
        Ok(body)
    }
}

/// Returns the models that a server lists.
///
/// Errors: `NotOpenAi` if this is no list, or none of its entries has a name; `NoModel` if it is empty, null or absent.
fn listed(models: &Value) -> Result<Models, ProbeError> {
    let entries = match &models["data"] {
        Value::Array(entries) if entries.is_empty() => return Err(ProbeError::NoModel),
        Value::Array(entries) => entries,
        // Servers written in Go write an empty list as `null`, or leave it out.
        Value::Null if models.get("data").is_some() || models["object"] == "list" => return Err(ProbeError::NoModel),
        _ => return Err(ProbeError::NotOpenAi),
    };
    let mut listed: Vec<ListedModel> = Vec::new();
    let (mut place_of_name, mut place_of_root, mut n_left_out) = (HashMap::new(), HashMap::new(), 0);
    for (root, entry) in entries.iter().filter_map(ListedModel::read) {
        let known = entry.names.iter().find_map(|name| place_of_name.get(name).copied());
        let known = known.or_else(|| place_of_root.get(root.as_ref()?).copied());
        if known.is_none() && listed.len() == STOCK_MODELS_MAX {
            n_left_out += 1;
            continue;
        }
        let nth = known.unwrap_or(listed.len());
        let mut names = entry.names.clone();
        names.retain(|name| !place_of_name.contains_key(name));
        place_of_name.extend(names.iter().map(|name| (name.clone(), nth)));
        place_of_root.extend(root.map(|root| (root, nth)));
        match listed.get_mut(nth) {
            Some(model) => model.names.extend(names),
            None => listed.push(entry),
        }
    }
    for model in &mut listed {
        n_left_out += model.names.len().saturating_sub(NAMES_MAX);
        model.names.truncate(NAMES_MAX);
    }
    if listed.is_empty() { Err(ProbeError::NotOpenAi) } else { Ok(Models { listed, n_left_out }) }
}

impl Models {
    /// Records whether the server has unloaded its models; without a report the list says it.
    fn read_sleep(&mut self, sleep: SleepReport) {
        if sleep == SleepReport::Asleep {
            self.listed.iter_mut().for_each(|model| model.residence = Residence::Unloaded);
        }
    }
}

impl ListedModel {
    /// Returns the root of a list's entry, if the server names one, and the model of the entry; `None` if it has no
    /// usable name.
    fn read(entry: &Value) -> Option<(Option<String>, Self)> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let aliases = entry["aliases"].as_array().into_iter().flatten().filter_map(text);
        let mut names: Vec<String> = Vec::new();
        for name in text(&entry["id"]).into_iter().chain(aliases) {
            if !name.is_empty() && name.len() <= NAME_BYTES_MAX && !names.contains(&name) {
                names.push(name);
            }
        }
        // vLLM lists each name of its model, all with one `root`; an adapter has a parent, and is a model of its own.
        let root = text(&entry["root"]).filter(|_| entry["parent"].is_null());
        let meta = ["n_params", "size", "n_vocab"].map(|field| &entry["meta"][field]);
        let identity = json!([entry["root"], entry["path"], meta]).to_string();
        let context = count(&entry["max_model_len"]).or_else(|| count(&entry["meta"]["n_ctx"]));
        let residence = match entry["status"]["value"].as_str() {
            None | Some("loaded") => Residence::Loaded,
            Some(_) => Residence::Unloaded,
        };
        let context_tokens = context.and_then(|tokens| u32::try_from(tokens).ok());
        (!names.is_empty()).then_some((root, Self { names, context_tokens, identity, residence }))
    }
}

fn count(value: &Value) -> Option<u64> {
    value.as_u64().filter(|count| *count > 0)
}

/// Returns a server's declaration.
fn declared(models: &Models, props: &Value, slots: &Value) -> ServerInfo {
    let n_slots = count(&props["total_slots"]).or_else(|| slots.as_array().map(|slots| slots.len() as u64));
    let n_slots = n_slots.filter(|n| *n > 0).and_then(|n| u16::try_from(n).ok());
    let context = count(&props["default_generation_settings"]["n_ctx"]).and_then(|tokens| u32::try_from(tokens).ok());
    // The properties describe a slot of the only model. If there are several models, each may describe its own slots.
    let is_only = models.listed.len() == 1;
    let context = |listed: Option<u32>| if is_only { context.or(listed) } else { listed.or(context) };
    let model = |listed: &ListedModel| StockModel {
        names: listed.names.clone(),
        context_tokens: context(listed.context_tokens).unwrap_or(STOCK_CONTEXT_DEFAULT),
        identity: listed.identity.clone(),
        residence: listed.residence,
    };
    ServerInfo {
        models: models.listed.iter().map(model).collect(),
        n_slots: n_slots.unwrap_or(STOCK_SLOTS_DEFAULT),
        n_left_out: models.n_left_out,
    }
}

/// Returns the load in llama-server's `/slots`.
fn status_of_slots(slots: &Value) -> Option<ServerStatus> {
    let slots = slots.as_array().filter(|slots| slots.iter().all(|slot| slot["is_processing"].is_boolean()))?;
    let n_running = slots.iter().filter(|slot| slot["is_processing"] == true).count();
    // Tasks are numbered from the server's start.
    let progress = slots.iter().filter_map(|slot| slot["id_task"].as_u64()).max();
    Some(ServerStatus { n_running: u32::try_from(n_running).unwrap_or(u32::MAX), n_waiting: 0, progress })
}

/// Returns the load in `/metrics`, for a server whose names are known.
fn status_of_metrics(text: &str) -> Option<ServerStatus> {
    let value = |name: &str| {
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let rest = if rest.starts_with('{') { rest.split_once('}')?.1 } else { rest };
            rest.strip_prefix(' ')?.split(' ').next()?.parse::<f64>().ok()
        });
        // Each model or engine of a server has a line of its own.
        values.filter(|value| value.is_finite() && *value >= 0.0).reduce(|sum, value| sum + value)
    };
    METRIC_NAMES.iter().find_map(|[running, waiting, progress]| {
        Some(ServerStatus {
            n_running: value(running)? as u32,
            n_waiting: value(waiting).unwrap_or(0.0) as u32,
            progress: value(progress).map(|count| count as u64),
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Each model's names and context size, and the number of slots.
    type Shown = (Vec<(String, u32)>, u16);

    fn shown(models: &Value, props: &Value, slots: &Value) -> Option<Shown> {
        let ServerInfo { models, n_slots, .. } = declared(&listed(models).ok()?, props, slots);
        Some((models.into_iter().map(|model| (model.names.join(" "), model.context_tokens)).collect(), n_slots))
    }

    #[test]
    fn models_slots_and_context_are_read_from_either_place() {
        let check = |models: Value, props: Value, slots: Value, expected: Option<(&[(&str, u32)], u16)>| {
            let owned = |models: &[(&str, u32)]| models.iter().map(|&(name, n)| (name.to_owned(), n)).collect();
            let expected = expected.map(|(models, n_slots)| (owned(models), n_slots));
            assert_eq!(shown(&models, &props, &slots), expected, "{models}");
        };
        let llama = json!({"data": [{"id": "m", "aliases": ["m", "n"]}]});
        let props = json!({"total_slots": 3, "default_generation_settings": {"n_ctx": 4096}});
        check(llama.clone(), props.clone(), Value::Null, Some((&[("m n", 4096)], 3)));
        check(llama, Value::Null, json!([{}, {}]), Some((&[("m n", STOCK_CONTEXT_DEFAULT)], 2)));
        let vllm = json!({"data": [
            {"id": "base", "root": "org/base", "parent": null, "max_model_len": 500},
            {"id": "lora", "root": "org/base", "parent": "base"},
            {"id": "also", "root": "org/base", "parent": null, "max_model_len": 500},
        ]});
        let expected: &[(&str, u32)] = &[("base also", 500), ("lora", 4096)];
        check(vllm, props, json!([]), Some((expected, 3)));
        let twice = json!({"data": [{"id": "a"}, {"id": "b", "aliases": ["a", "c"]}, {"id": "a"}]});
        check(twice, Value::Null, Value::Null, Some((&[("a b c", STOCK_CONTEXT_DEFAULT)], STOCK_SLOTS_DEFAULT)));
        for none in
            [json!({}), json!([]), json!({"data": []}), json!({"data": [{"id": ""}, {"name": "m"}]}), Value::Null]
        {
            check(none, Value::Null, Value::Null, None);
        }
    }

    #[test]
    fn a_server_that_lists_no_model_is_distinguished_from_one_without_a_list() {
        let label = |models: Value| listed(&models).map_err(|error| error.label()).err();
        for none in [
            json!({"object": "list", "data": null}),
            json!({"object": "list", "data": []}),
            json!({"data": null}),
            json!({"object": "list"}),
        ] {
            assert_eq!(label(none.clone()), Some("no_model"), "{none}");
        }
        for other in
            [json!(null), json!([]), json!({}), json!({"data": {}}), json!({"data": [{}]}), json!({"hello": "world"})]
        {
            assert_eq!(label(other.clone()), Some("not_openai"), "{other}");
        }
        assert_eq!(label(json!({"data": [{"id": "m"}]})), None);
    }

    #[test]
    fn models_beyond_the_limit_are_counted() {
        let many = |n: usize| json!({"data": (0..n).map(|nth| json!({"id": format!("m{nth}")})).collect::<Vec<_>>()});
        let numbers = |n: usize| listed(&many(n)).map(|models| (models.listed.len(), models.n_left_out)).ok();
        assert_eq!(numbers(STOCK_MODELS_MAX), Some((STOCK_MODELS_MAX, 0)));
        assert_eq!(numbers(STOCK_MODELS_MAX + 3), Some((STOCK_MODELS_MAX, 3)));
        let aliases: Vec<_> = (0..NAMES_MAX + 1).map(|nth| format!("n{nth}")).collect();
        let models = listed(&json!({"data": [{"id": "m", "aliases": aliases}]})).expect("a model");
        assert_eq!((models.listed[0].names.len(), models.n_left_out), (NAMES_MAX, 2));
    }

    #[test]
    fn another_model_under_the_same_name_is_distinguished_from_an_unloaded_one() {
        let first = |entry: Value| listed(&json!({"data": [entry]})).expect("a model").listed.remove(0);
        let loaded = |meta: Value| first(json!({"id": "m", "created": 1, "meta": meta, "status": {"value": "loaded"}}));
        let one = loaded(json!({"n_params": 8, "size": 16}));
        assert_ne!(one.identity, loaded(json!({"n_params": 8, "size": 32})).identity);
        assert_eq!(one, first(json!({"id": "m", "created": 2, "meta": {"n_params": 8, "size": 16}})));
        assert_eq!(first(json!({"id": "m", "status": {"value": "sleeping"}})).residence, Residence::Unloaded);
    }

    #[test]
    fn load_is_read_from_slots_or_metrics() {
        let slots = json!([
            {"id": 0, "is_processing": true, "id_task": 7},
            {"id": 1, "is_processing": false, "id_task": 12},
            {"id": 2, "is_processing": false},
        ]);
        assert_eq!(status_of_slots(&slots), Some(ServerStatus { n_running: 1, n_waiting: 0, progress: Some(12) }));
        assert_eq!(status_of_slots(&json!({"error": {}})), None);
        assert_eq!(status_of_slots(&json!([{"id": 0}])), None);
        let llama = "# HELP llamacpp:requests_processing x\nllamacpp:requests_processing 2\n\
                     llamacpp:requests_deferred 5\nllamacpp:prompt_tokens_total 900\n";
        assert_eq!(status_of_metrics(llama), Some(ServerStatus { n_running: 2, n_waiting: 5, progress: Some(900) }));
        let vllm = "vllm:num_requests_running{engine=\"0\"} 3.0\nvllm:num_requests_running{engine=\"1\"} 4.0\n";
        assert_eq!(status_of_metrics(vllm), Some(ServerStatus { n_running: 7, n_waiting: 0, progress: None }));
        for none in ["", "llamacpp:requests_processing_seconds 2\n", "llamacpp:requests_processing NaN\n"] {
            assert_eq!(status_of_metrics(none), None, "{none}");
        }
    }
}
