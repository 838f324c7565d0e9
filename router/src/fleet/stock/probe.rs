//! What a stock server is asked besides requests: what it serves, whether it is well, how busy it is.
//!
//! Not here: what follows from it (`stock`, the core's `stock`). The idea: only `/v1/models` must be there, which every
//! OpenAI-like server has; what llama-server and vLLM say beyond that (`/health`, `/props`, `/slots`, `/metrics`) is used
//! where it is there. Answers are bounded in time and size, and what makes no sense counts as absent.

use futures::StreamExt;
use serde_json::Value;
use warmpath_router_core::agreement::{NAME_BYTES_MAX, NAMES_MAX};
use warmpath_router_core::stock::{Declared, Pulse};

use crate::config::{STOCK_ANSWER_BYTES_MAX, STOCK_ANSWER_TIMEOUT, STOCK_CONTEXT_DEFAULT, STOCK_SLOTS_DEFAULT};
use crate::fleet::client::{CallError, WorkerClient};

const MODELS: &str = "/v1/models";
const HEALTH: &str = "/health";
const PROPS: &str = "/props";
const SLOTS: &str = "/slots";
const METRICS: &str = "/metrics";

/// Lists under which names servers count what runs, what waits, and what they have computed in their life.
///
/// Source: the metrics of llama-server (`tools/server/README.md`) and of vLLM (its page "Production metrics").
const METRIC_NAMES: [[&str; 3]; 2] = [
    ["llamacpp:requests_processing", "llamacpp:requests_deferred", "llamacpp:prompt_tokens_total"],
    ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:prompt_tokens_total"],
];

/// Says why a stock server cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    #[error("{path} cannot be had")]
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
    #[error("{path} did not come within {} s", STOCK_ANSWER_TIMEOUT.as_secs())]
    Timeout { path: &'static str },
    #[error("{path} was answered with {status}")]
    Status { path: &'static str, status: u16 },
    #[error("{path} has more than {STOCK_ANSWER_BYTES_MAX} bytes")]
    TooLong { path: &'static str },
    #[error("{MODELS} lists no model as OpenAI's API does: it is no such server")]
    NotOpenAi,
}

impl ProbeError {
    /// Returns whether the server did not answer at all.
    pub(super) fn is_silence(&self) -> bool {
        match self {
            Self::Fetch { source, .. } => source.is_away(),
            Self::Timeout { .. } => true,
            _ => false,
        }
    }

    /// Returns a short name for metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Fetch { source, .. } if source.is_tls() => "tls",
            Self::Fetch { .. } => "connect",
            Self::Broken { .. } => "broken",
            Self::Timeout { .. } => "timeout",
            Self::Status { .. } => "status",
            Self::TooLong { .. } => "too_long",
            Self::NotOpenAi => "not_openai",
        }
    }
}

/// Is a server that was found.
pub(super) struct Found {
    pub(super) declared: Declared,
    pub(super) ways: Ways,
}

/// Says where the server tells how it is.
pub(super) struct Ways {
    health: &'static str,
    load: Option<&'static str>,
}

/// Asks one server.
pub(super) struct Probe {
    client: WorkerClient,
}

impl Probe {
    /// Returns the probe of the server to which `client` connects.
    pub(super) fn new(client: WorkerClient) -> Self {
        Self { client }
    }

    /// Returns what the server serves and where it tells how it is.
    ///
    /// Errors: every [`ProbeError`].
    pub(super) async fn find(&self) -> Result<Found, ProbeError> {
        let health = match self.get(HEALTH).await {
            Ok(_) => HEALTH,
            Err(ProbeError::Status { status: 404 | 405 | 501, .. }) => MODELS,
            Err(error) => return Err(error),
        };
        let models: Value = serde_json::from_slice(&self.get(MODELS).await?).map_err(|_| ProbeError::NotOpenAi)?;
        let props = self.json(PROPS).await;
        let slots = self.json(SLOTS).await;
        let declared = declared(&models, &props, &slots).ok_or(ProbeError::NotOpenAi)?;
        let metrics = self.get(METRICS).await.unwrap_or_default();
        let load = if pulse_of_metrics(&String::from_utf8_lossy(&metrics)).is_some() {
            Some(METRICS)
        } else {
            pulse_of_slots(&slots).map(|_| SLOTS)
        };
        Ok(Found { declared, ways: Ways { health, load } })
    }

    /// Returns how busy the server says it is, if it does.
    ///
    /// Errors: every [`ProbeError`] where it is not well. That its load does not come is no illness: it may be computing.
    pub(super) async fn look(&self, ways: &Ways) -> Result<Option<Pulse>, ProbeError> {
        self.get(ways.health).await?;
        Ok(match ways.load {
            Some(METRICS) => {
                let text = self.get(METRICS).await.unwrap_or_default();
                pulse_of_metrics(&String::from_utf8_lossy(&text))
            }
            Some(path) => pulse_of_slots(&self.json(path).await),
            None => None,
        })
    }

    /// Returns what is at `path` as JSON; `Null` where nothing is, or nothing of the kind.
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

/// Returns what a server declares; `None` where it lists no model that can be named.
fn declared(models: &Value, props: &Value, slots: &Value) -> Option<Declared> {
    let listed = models["data"].as_array()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let aliases =
        |model: &Value| model["aliases"].as_array().into_iter().flatten().filter_map(text).collect::<Vec<_>>();
    let mut names: Vec<String> = Vec::new();
    for name in listed.iter().flat_map(|model| text(&model["id"]).into_iter().chain(aliases(model))) {
        if !name.is_empty() && name.len() <= NAME_BYTES_MAX && names.len() < NAMES_MAX && !names.contains(&name) {
            names.push(name);
        }
    }
    let count = |value: &Value| value.as_u64().filter(|count| *count > 0);
    let n_slots = count(&props["total_slots"]).or_else(|| slots.as_array().map(|slots| slots.len() as u64));
    let n_slots = n_slots.filter(|n| *n > 0).and_then(|n| u16::try_from(n).ok());
    let context = count(&props["default_generation_settings"]["n_ctx"])
        .or_else(|| listed.iter().find_map(|model| count(&model["max_model_len"])))
        .and_then(|tokens| u32::try_from(tokens).ok());
    (!names.is_empty()).then(|| Declared {
        names,
        n_slots: n_slots.unwrap_or(STOCK_SLOTS_DEFAULT),
        context_tokens: context.unwrap_or(STOCK_CONTEXT_DEFAULT),
    })
}

/// Returns what llama-server's `/slots` says.
fn pulse_of_slots(slots: &Value) -> Option<Pulse> {
    let slots = slots.as_array().filter(|slots| slots.iter().all(|slot| slot["is_processing"].is_boolean()))?;
    let n_running = slots.iter().filter(|slot| slot["is_processing"] == true).count();
    // Tasks are numbered from the server's start.
    let progress = slots.iter().filter_map(|slot| slot["id_task"].as_u64()).max();
    Some(Pulse { n_running: u32::try_from(n_running).unwrap_or(u32::MAX), n_waiting: 0, progress })
}

/// Returns what `/metrics` says, of a server whose names are known.
fn pulse_of_metrics(text: &str) -> Option<Pulse> {
    let value = |name: &str| {
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let rest = if rest.starts_with('{') { rest.split_once('}')?.1 } else { rest };
            rest.strip_prefix(' ')?.split(' ').next()?.parse::<f64>().ok()
        });
        // Several models or engines of one server each have a line.
        values.filter(|value| value.is_finite() && *value >= 0.0).reduce(|sum, value| sum + value)
    };
    METRIC_NAMES.iter().find_map(|[running, waiting, progress]| {
        Some(Pulse {
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

    #[test]
    fn names_slots_and_context_are_read_where_they_are() {
        let check = |models: Value, props: Value, slots: Value, expected: Option<(&[&str], u16, u32)>| {
            let found = declared(&models, &props, &slots).map(|d| (d.names, d.n_slots, d.context_tokens));
            let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
            assert_eq!(found, expected.map(|(names, n_slots, context)| (owned(names), n_slots, context)), "{models}");
        };
        let llama = json!({"data": [{"id": "m", "aliases": ["m", "n"]}]});
        let props = json!({"total_slots": 3, "default_generation_settings": {"n_ctx": 4096}});
        check(llama.clone(), props, Value::Null, Some((&["m", "n"], 3, 4096)));
        check(llama, Value::Null, json!([{}, {}]), Some((&["m", "n"], 2, STOCK_CONTEXT_DEFAULT)));
        let vllm = json!({"data": [{"id": "base", "max_model_len": 500}, {"id": "lora"}]});
        check(vllm, Value::Null, json!([]), Some((&["base", "lora"], STOCK_SLOTS_DEFAULT, 500)));
        for none in
            [json!({}), json!([]), json!({"data": []}), json!({"data": [{"id": ""}, {"name": "m"}]}), Value::Null]
        {
            check(none, Value::Null, Value::Null, None);
        }
        let many: Vec<_> = (0..2 * NAMES_MAX).map(|nth| json!({"id": format!("m{nth}")})).collect();
        let found = declared(&json!({"data": many}), &Value::Null, &Value::Null).expect("models are listed");
        assert_eq!(found.names.len(), NAMES_MAX);
    }

    #[test]
    fn load_is_read_from_slots_or_metrics() {
        let slots = json!([
            {"id": 0, "is_processing": true, "id_task": 7},
            {"id": 1, "is_processing": false, "id_task": 12},
            {"id": 2, "is_processing": false},
        ]);
        assert_eq!(pulse_of_slots(&slots), Some(Pulse { n_running: 1, n_waiting: 0, progress: Some(12) }));
        assert_eq!(pulse_of_slots(&json!({"error": {}})), None);
        assert_eq!(pulse_of_slots(&json!([{"id": 0}])), None);
        let llama = "# HELP llamacpp:requests_processing x\nllamacpp:requests_processing 2\n\
                     llamacpp:requests_deferred 5\nllamacpp:prompt_tokens_total 900\n";
        assert_eq!(pulse_of_metrics(llama), Some(Pulse { n_running: 2, n_waiting: 5, progress: Some(900) }));
        let vllm = "vllm:num_requests_running{engine=\"0\"} 3.0\nvllm:num_requests_running{engine=\"1\"} 4.0\n";
        assert_eq!(pulse_of_metrics(vllm), Some(Pulse { n_running: 7, n_waiting: 0, progress: None }));
        for none in ["", "llamacpp:requests_processing_seconds 2\n", "llamacpp:requests_processing NaN\n"] {
            assert_eq!(pulse_of_metrics(none), None, "{none}");
        }
    }
}
