//! A fake host: streams the summary that a test sets, and records what routers demand and order.

use std::sync::{Arc, Mutex, MutexGuard};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::watch;
use warmpath_common::host::{
    DEMAND_PATH, DOWNLOAD_PATH, Demand, EVENTS_PATH, HostModel, HostSummary, LOAD_PATH, ModelState, RELOAD_PATH,
    REMOVE_PATH, UNLOAD_PATH,
};

use super::fake_server::FakeServer;

/// State and behaviour of the host.
pub struct HostScript {
    pub summary: HostSummary,
    /// Bytes sent on a stream in place of summaries; then the stream stays open.
    pub raw: Option<Vec<u8>>,
    /// Whether a stream sends nothing.
    pub is_silent: bool,
    /// Status of every answer to an order; success for `None`.
    pub refuses: Option<u16>,
    /// Catalogue after an order that changes it; `None` if it is the same.
    pub reloaded: Option<Vec<HostModel>>,
    /// Reason in such answers.
    pub reason: &'static str,
    /// Token that every request must have; `None` if none is required.
    pub token: Option<String>,
    demands: Vec<Demand>,
    orders: Vec<(String, String)>,
}

struct Shared {
    script: Mutex<HostScript>,
    changed: watch::Sender<()>,
    server_log: Arc<super::fake_server::RequestLog>,
}

/// A fake host.
pub struct FakeHost {
    server: FakeServer,
    shared: Arc<Shared>,
}

impl FakeHost {
    /// Starts a host with these models.
    pub fn start(models: Vec<HostModel>) -> Self {
        let summary = HostSummary { host: "desk".to_owned(), sequence: 1, models, ..HostSummary::default() };
        let script = HostScript {
            summary,
            raw: None,
            is_silent: false,
            refuses: None,
            reloaded: None,
            reason: "scripted",
            token: None,
            demands: Vec::new(),
            orders: Vec::new(),
        };
        let server = FakeServer::at("127.0.0.1:0", "");
        let shared = Arc::new(Shared {
            script: Mutex::new(script),
            changed: watch::Sender::new(()),
            server_log: Arc::clone(&server.log),
        });
        let mut host = Self { server, shared };
        host.revive();
        host
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Ends the host with all its connections.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts the host, again on the same port.
    pub fn revive(&mut self) {
        let routes = Router::new()
            .route(EVENTS_PATH, get(events))
            .route(DEMAND_PATH, post(demand))
            .route(LOAD_PATH, post(order))
            .route(UNLOAD_PATH, post(order))
            .route(DOWNLOAD_PATH, post(reload))
            .route(REMOVE_PATH, post(reload))
            .route(RELOAD_PATH, post(reload))
            .layer(from_fn_with_state(Arc::clone(&self.shared), guard))
            .with_state(Arc::clone(&self.shared));
        self.server.start(routes);
    }

    /// Changes the script, and sends the summary with the next number.
    pub fn with(&self, change: impl FnOnce(&mut HostScript)) {
        let mut script = self.script();
        change(&mut script);
        script.summary.sequence += 1;
        drop(script);
        self.shared.changed.send_replace(());
    }

    /// Changes the state of a model.
    pub fn set(&self, name: &str, state: ModelState) {
        self.with(|script| {
            let model = script.summary.models.iter_mut().find(|model| model.name == name).expect("the model is there");
            model.state = state;
        });
    }

    pub fn demands(&self) -> Vec<Demand> {
        self.script().demands.clone()
    }

    /// Returns the path and body of each order other than demands.
    pub fn orders(&self) -> Vec<(String, String)> {
        self.script().orders.clone()
    }

    fn script(&self) -> MutexGuard<'_, HostScript> {
        self.shared.script.lock().expect("no test panics here")
    }
}

pub fn loadable() -> ModelState {
    ModelState::Loadable { memory_bytes: 1 << 20, load_ms: 7_000, wait_ms: 0, evicts_ms: 0, kept_ms: 0, is_local: true }
}

pub fn loading(worker_url: Option<String>) -> ModelState {
    ModelState::Loading { worker_url, progress: 0.4, remaining_ms: 11_500 }
}

pub fn loaded(worker_url: String) -> ModelState {
    ModelState::Loaded { worker_url, n_running: 0, idle_ms: 0, load_ms: 7_000 }
}

pub fn impossible(reason: &str) -> ModelState {
    ModelState::Impossible { reason: reason.to_owned(), retry_ms: Some(60_000) }
}

async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let token = shared.script.lock().expect("no test panics here").token.clone();
    match shared.server_log.admit(&request, token.as_deref()) {
        Ok(()) => next.run(request).await,
        Err(status) => status.into_response(),
    }
}

async fn events(State(shared): State<Arc<Shared>>) -> Response {
    let changes = shared.changed.subscribe();
    let stream = futures::stream::unfold((shared, changes, true), |(shared, mut changes, is_first)| async move {
        loop {
            if !is_first {
                changes.changed().await.ok()?;
            }
            let event = {
                let script = shared.script.lock().expect("no test panics here");
                match &script.raw {
                    _ if script.is_silent => None,
                    Some(raw) => Some(raw.clone()),
                    None => {
                        let summary = serde_json::to_string(&script.summary).expect("a summary has a JSON form");
                        Some(format!("data: {summary}\n\n").into_bytes())
                    }
                }
            };
            match event {
                Some(event) => return Some((Ok::<_, std::io::Error>(Bytes::from(event)), (shared, changes, false))),
                None => changes.changed().await.ok()?,
            }
        }
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response()
}

async fn demand(State(shared): State<Arc<Shared>>, Json(demand): Json<Demand>) -> Response {
    let mut script = shared.script.lock().expect("no test panics here");
    script.demands.push(demand);
    answer(&script)
}

async fn order(State(shared): State<Arc<Shared>>, uri: Uri, body: String) -> Response {
    let mut script = shared.script.lock().expect("no test panics here");
    script.orders.push((uri.path().to_owned(), body));
    answer(&script)
}

async fn reload(State(shared): State<Arc<Shared>>, uri: Uri, body: String) -> Response {
    let mut script = shared.script.lock().expect("no test panics here");
    script.orders.push((uri.path().to_owned(), body));
    if script.refuses.is_some() {
        return answer(&script);
    }
    if let Some(models) = script.reloaded.take() {
        script.summary.models = models;
    }
    script.summary.sequence += 1;
    let answer = Json(&script.summary).into_response();
    drop(script);
    shared.changed.send_replace(());
    answer
}

fn answer(script: &HostScript) -> Response {
    match script.refuses {
        None => Json(json!({})).into_response(),
        Some(status) => {
            let error: Value = json!({"error": {"message": script.reason, "type": "scripted", "code": null}});
            (StatusCode::from_u16(status).expect("a status"), Json(error)).into_response()
        }
    }
}
