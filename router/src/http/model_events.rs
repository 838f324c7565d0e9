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
use warmpath_router_core::fleet::FleetView;
use warmpath_router_core::hosts::ListedState;
use warmpath_shell::event_stream;

use super::models::{permitted_names, shown_share, state, status_value};
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
    /// Data of the last event of each model; `None` before the first look.
    seen: Option<BTreeMap<String, Value>>,
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
        let states = states(&self.app.fleet.view(), self.key.as_ref());
        let mut events = Vec::new();
        let last = self.seen.as_ref();
        for (model, data) in &states {
            if last.and_then(|last| last.get(model)) != Some(data) {
                events.push(json!({"model": model, "event": "model_status", "data": data}));
            }
        }
        if let Some(last) = last {
            let removed = last.keys().filter(|model| !states.contains_key(*model));
            events.extend(removed.map(|model| json!({"model": model, "event": "model_remove"})));
            if !last.keys().eq(states.keys()) {
                events.push(json!({"model": "*", "event": "models_reload"}));
            }
        }
        self.seen = Some(states);
        events.iter().map(|event| format!("data: {event}\n\n")).collect()
    }
}

/// Returns the data of each model's event, for the client with this key.
fn states(view: &FleetView, key: Option<&Arc<ApiKey>>) -> BTreeMap<String, Value> {
    let data = |name: &str| {
        let state = state(view, name);
        let mut data = json!({"status": status_value(state)});
        if let ListedState::Loading { progress } = state {
            let value = shown_share(progress);
            data["progress"] = json!({"stages": ["text_model"], "current": "text_model", "value": value});
        }
        if state == ListedState::Failed {
            data["failed"] = json!(true);
        }
        data
    };
    permitted_names(view, key).into_iter().map(|name| (name.clone(), data(&name))).collect()
}
