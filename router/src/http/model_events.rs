//! `/models/sse`: the states of the models as events, as in llama-server's router mode.
//!
//! A stream begins with the state of every model, so that a client that lists the models before or after misses none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::watch;
use warmpath_common::host::FetchedBytes;
use warmpath_router_core::hosts::ListedState;
use warmpath_shell::event_stream;

use super::models::{permitted_names, shown_bytes, shown_share, state, status_value};
use crate::app::{App, RequestPlace};
use crate::config::COMMENT_INTERVAL;
use crate::error::RequestError;
use crate::fleet::Changes;
use crate::keys::ApiKey;

/// Shortest time between two looks at the states. Source: own choice: progress that people see.
const EVENTS_PAUSE: Duration = Duration::from_millis(100);

/// Responds with a stream of the models' states.
pub async fn stream(State(app): State<App>, key: Option<Extension<Arc<ApiKey>>>) -> Result<Response, RequestError> {
    let key = key.map(|Extension(key)| key);
    let place = app.place(key.as_deref())?;
    app.first_contact().await?;
    let (reports, changes) = (app.fleet.host_reports(), app.fleet.changes());
    let follower = StateFollower { app, key, reports, changes, seen: None, _place: place };
    let events = futures::stream::unfold(follower, |mut follower| async move {
        let events = follower.next().await?;
        Some((Ok::<_, std::convert::Infallible>(events), follower))
    });
    let mut response = Response::new(Body::from_stream(events));
    response.headers_mut().insert(header::CONTENT_TYPE, event_stream::CONTENT_TYPE);
    event_stream::keep_flowing(response.headers_mut());
    Ok(response)
}

/// The states that one client has seen.
struct StateFollower {
    app: App,
    key: Option<Arc<ApiKey>>,
    reports: watch::Receiver<()>,
    changes: Changes,
    /// State of each model in its last event; `None` before the first look.
    seen: Option<BTreeMap<String, ListedState>>,
    _place: RequestPlace,
}

impl StateFollower {
    /// Returns the next events, or a comment; `None` if the router shuts down.
    async fn next(&mut self) -> Option<Bytes> {
        let silence_ends = tokio::time::Instant::now() + COMMENT_INTERVAL;
        loop {
            self.reports.mark_unchanged();
            let events = self.events();
            if !events.is_empty() {
                return Some(events.into());
            }
            let change = async {
                tokio::select! {
                    result = self.reports.changed() => if result.is_err() { std::future::pending::<()>().await },
                    () = self.changes.wait() => {}
                }
                tokio::time::sleep(EVENTS_PAUSE).await;
            };
            match self.app.draining.run_until_cancelled(tokio::time::timeout_at(silence_ends, change)).await {
                None => return None,
                Some(Err(_)) => return Some(Bytes::from_static(b":\n\n")),
                Some(Ok(())) => {}
            }
        }
    }

    /// Returns the events since the last look.
    fn events(&mut self) -> String {
        let view = self.app.fleet.view();
        let names = permitted_names(&view, self.key.as_ref()).into_iter();
        let states: BTreeMap<String, ListedState> = names.map(|name| (name.clone(), state(&view, &name))).collect();
        let mut events = Vec::new();
        let last = self.seen.as_ref();
        for (model, now) in &states {
            let mut before = last.and_then(|last| last.get(model)).copied();
            let is_downloaded = || view.hosts.removable(model).next().is_some();
            if before.is_none() && last.is_some() && !matches!(now, ListedState::Downloading(_)) && is_downloaded() {
                // The download was over before the first look at it.
                before = Some(ListedState::Downloading(FetchedBytes::default()));
            }
            if before != Some(*now) {
                events.extend(events_of(model, before, *now));
            }
        }
        if let Some(last) = last {
            let removed_models = last.keys().filter(|model| !states.contains_key(*model));
            events.extend(removed_models.map(|model| json!({"model": model, "event": "model_remove"})));
            if !last.keys().eq(states.keys()) {
                events.push(json!({"model": "*", "event": "models_reload"}));
            }
        }
        self.seen = Some(states);
        events.iter().map(|event| format!("data: {event}\n\n")).collect()
    }
}

/// Returns the events of a model whose state has changed.
fn events_of(model: &str, before: Option<ListedState>, now: ListedState) -> Vec<Value> {
    let was_downloading = matches!(before, Some(ListedState::Downloading(_)));
    let mut status = json!({"status": status_value(now)});
    let mut events = Vec::new();
    match now {
        ListedState::Downloading(bytes) => {
            if !was_downloading {
                events.push(json!({"model": model, "event": "model_status", "data": status}));
            }
            let data = shown_bytes(model, bytes);
            events.push(json!({"model": model, "event": "download_progress", "data": data}));
            return events;
        }
        ListedState::Loading { progress } => {
            let value = shown_share(progress);
            status["progress"] = json!({"stages": ["text_model"], "current": "text_model", "value": value});
        }
        ListedState::Failed => status["failed"] = json!(true),
        ListedState::Loaded | ListedState::Unloaded => {}
    }
    if was_downloading {
        let end = if now == ListedState::Failed { "download_failed" } else { "download_finished" };
        events.push(json!({"model": model, "event": end}));
    }
    events.push(json!({"model": model, "event": "model_status", "data": status}));
    events
}
