//! Prefetch: KV state that moves before requests need it, to a worker that joins empty and from one that drains.
//!
//! A worker lists its most valuable prefixes; this task chooses which worker fetches which of them, and sends each
//! worker its list. Only tokens pass through the router. If a worker does not answer, its prefixes are not moved but
//! computed when needed.
//!
//! Not here: the choice (the core's `routing::prefetch`), hints for a single request (`lifecycle::kv_transfer`).

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Method};
use futures::future::join_all;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use warmpath_common::prefetch::{
    HotList, HotPrefix, LIST_BYTES_MAX, LIST_TOKENS_MAX, Prefetch, PrefetchItem, Unpackable, pack, unpack,
};
use warmpath_common::summary::KV_PATH;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::routing::prefetch::{self, FleetChange, HotPrefixes, Receiver};
use warmpath_shell::chain;

use super::Fleet;
use super::client::AnswerError;
use crate::metrics;

/// Maximum number of events that wait; further ones are ignored.
///
/// Source: own choice: more workers than come and go in a moment.
pub const FLEET_CHANGES_QUEUED_MAX: usize = 256;

/// Longest time for a worker's answer.
///
/// Source: own choice: a worker answers between two steps of its engine, which may take a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why a worker lists or fetches nothing.
#[derive(Debug, thiserror::Error)]
enum PrefetchError {
    #[error(transparent)]
    Answer(#[from] AnswerError),
    #[error(transparent)]
    Unpackable(#[from] Unpackable),
    #[error("it did not respond within {} s", ANSWER_TIMEOUT.as_secs())]
    Late(#[from] tokio::time::error::Elapsed),
}

/// Handles each event in a task of its own, until the channel is closed.
pub async fn follow(fleet: Arc<Fleet>, mut fleet_changes: mpsc::Receiver<FleetChange>) {
    let mut tasks = JoinSet::new();
    while let Some(fleet_change) = fleet_changes.recv().await {
        while tasks.try_join_next().is_some() {}
        let fleet = Arc::clone(&fleet);
        tasks.spawn(async move {
            match fleet_change {
                FleetChange::Joined(worker) => fleet.warm(worker).await,
                FleetChange::Drains(worker) => fleet.hand_over(worker).await,
            }
        });
    }
}

impl Fleet {
    /// Lets a new worker fetch the prefixes that others used last.
    async fn warm(&self, worker: WorkerIdx) {
        let sources = prefetch::sources(&self.view(), worker);
        let lists =
            join_all(sources.into_iter().map(|source| async move { (source, self.list_of(source).await) })).await;
        let mut block_size_tokens = 0;
        let mut read = Vec::new();
        for (source, list) in lists {
            match list {
                Ok((size, prefixes)) => {
                    block_size_tokens = size;
                    read.push(HotPrefixes { worker: source, prefixes });
                }
                Err(error) => self.note(source, &error),
            }
        }
        if block_size_tokens > 0 {
            let prefixes = prefetch::merge(read, block_size_tokens);
            self.tell(metrics::JOIN, worker, block_size_tokens, prefixes).await;
        }
    }

    /// Divides the prefixes of a draining worker among the others.
    async fn hand_over(&self, worker: WorkerIdx) {
        let receivers = prefetch::receivers(&self.view(), worker);
        if receivers.is_empty() {
            return;
        }
        let (block_size_tokens, prefixes) = match self.list_of(worker).await {
            Ok(list) => list,
            Err(error) => return self.note(worker, &error),
        };
        let names: Vec<String> = receivers.iter().map(|receiver| self.member(*receiver).name()).collect();
        let receivers: Vec<_> = receivers.into_iter().zip(&names).map(|(idx, name)| Receiver { idx, name }).collect();
        let shares = prefetch::divide(prefixes, &receivers, block_size_tokens, |keys| self.index().matches(keys));
        let told = shares.into_iter().map(|(receiver, share)| {
            let share = share.into_iter().map(|prefix| (worker, prefix)).collect();
            self.tell(metrics::DRAIN, receiver, block_size_tokens, share)
        });
        join_all(told).await;
    }

    /// Returns a worker's block size and the prefixes that it lists.
    async fn list_of(&self, worker: WorkerIdx) -> Result<(u32, Vec<HotPrefix>), PrefetchError> {
        let member = self.member(worker);
        let client = &member.client;
        let mut url = client.url(KV_PATH);
        url.set_query(Some(&format!("tokens={LIST_TOKENS_MAX}")));
        let listed = async {
            let list: HotList = client.get_json(&url, LIST_BYTES_MAX).await?;
            // A block of no tokens would be hashed forever.
            Ok::<_, PrefetchError>((list.block_size_tokens.max(1), unpack(&list.prefixes)?))
        };
        tokio::time::timeout(ANSWER_TIMEOUT, listed).await?
    }

    /// Sends a worker the list of prefixes to fetch, each with its peer.
    async fn tell(&self, cause: &str, worker: WorkerIdx, block_size_tokens: u32, share: Vec<(WorkerIdx, HotPrefix)>) {
        if share.is_empty() {
            return;
        }
        let member = self.member(worker);
        let request_bytes = pack(share.iter().map(|(_, prefix)| prefix), block_size_tokens);
        let items = share.iter().zip(request_bytes);
        let items = items.map(|((peer, _), prefix)| PrefetchItem { peer: self.member(*peer).name(), prefix });
        let list = Prefetch { prefixes: items.collect() };
        let body = serde_json::to_vec(&list).expect("numbers and texts have a JSON form");
        let told = async {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
            let url = member.client.url(KV_PATH);
            let response = member.client.call(Method::POST, &url, headers, body.into()).await;
            let status = response.map_err(AnswerError::from)?.status();
            if status.is_success() { Ok(()) } else { Err(PrefetchError::from(AnswerError::Refused(status))) }
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, told).await.map_err(PrefetchError::from).flatten() {
            Ok(()) => {
                self.metrics.kv_prefetches.with_label_values(&[cause]).inc_by(share.len() as u64);
                let (worker, n_prefixes) = (member.name(), share.len());
                tracing::info!(%worker, cause, n_prefixes, "worker fetches KV state ahead");
            }
            Err(error) => self.note(worker, &error),
        }
    }

    fn note(&self, worker: WorkerIdx, error: &PrefetchError) {
        let worker = self.member(worker).name();
        tracing::warn!(%worker, error = chain(error), "no KV state moves ahead of requests");
    }
}
