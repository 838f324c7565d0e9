//! A worker with a wrong summary: a proxy in front of it also announces the blocks of another worker.
//!
//! Not here: the time of the fault (`faults`). Everything else passes unchanged. So requests that are routed here
//! because of those blocks are computed from their beginning, and workers that try to fetch the blocks from here get
//! nothing. Each frame and its digest are consistent with the frames before it, so no router can detect the fault.

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::serve::ListenerExt as _;
use futures::{StreamExt as _, TryStreamExt as _};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};
use tokio_util::io::StreamReader;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::{
    self, Change, Digest, FRAME_BYTES_MAX, Frame, FrameBody, KEYS_PER_FRAME_MAX, Run, SNAPSHOT_PATH, STREAM_PATH,
    Snapshot, Tier, with_length,
};

/// Longest body of a request that is passed on.
const BODY_BYTES_MAX: usize = 16 << 20;

/// A proxy in front of an honest worker.
pub struct Liar {
    http: reqwest::Client,
    /// Base URL of the honest worker.
    honest: String,
    /// Blocks of another worker.
    stolen: Vec<Run>,
}

impl Liar {
    /// Returns a proxy in front of the worker `honest` that also announces the current blocks of the worker `victim`.
    ///
    /// Errors: the victim does not report its blocks.
    pub async fn new(honest: String, victim: &str) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().build()?;
        let view = http.get(format!("{victim}{SNAPSHOT_PATH}")).send().await?.error_for_status()?;
        let view: Snapshot = view.json().await.with_context(|| format!("reading the blocks of {victim}"))?;
        Ok(Self { http, honest, stolen: stolen(view.runs) })
    }

    /// Returns the number of the other worker's blocks that it announces.
    pub fn n_stolen(&self) -> usize {
        self.stolen.iter().map(|run| run.keys.len()).sum()
    }

    /// Serves until `end`, and then until every connection is closed.
    ///
    /// Errors: the listener fails.
    pub async fn serve(
        self,
        listener: std::net::TcpListener,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> anyhow::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?.tap_io(|connection| {
            let _ = connection.set_nodelay(true);
        });
        let routes = Router::new().route(STREAM_PATH, get(lie)).fallback(pass).with_state(Arc::new(self));
        Ok(axum::serve(listener, routes).with_graceful_shutdown(end).await?)
    }

    async fn open_summary(&self, mut headers: HeaderMap) -> reqwest::Result<reqwest::Response> {
        headers.remove(HOST);
        // The position that a router asks for is left out, so that it gets a snapshot.
        self.http.get(format!("{}{STREAM_PATH}", self.honest)).headers(headers).send().await
    }
}

/// Returns the runs in the form for blocks outside slots, as many as fit into one frame.
fn stolen(runs: Vec<Run>) -> Vec<Run> {
    let mut n_keys = 0;
    let mut fits = |run: &Run| {
        n_keys += run.keys.len();
        n_keys <= KEYS_PER_FRAME_MAX / 2
    };
    runs.into_iter().take_while(|run| fits(run)).map(|run| Run { tier: Tier::Ram, slot: None, ..run }).collect()
}

/// Passes the summary on with the stolen blocks in it.
async fn lie(State(liar): State<Arc<Liar>>, headers: HeaderMap) -> Response {
    let honest = match liar.open_summary(headers).await {
        Ok(response) if response.status().is_success() => response,
        Ok(response) => return answered(response),
        Err(error) => return failed(&error),
    };
    let mut lie = Lie::new(liar.stolen.clone());
    let codec = LengthDelimitedCodec::builder().max_frame_length(FRAME_BYTES_MAX).new_codec();
    let bytes = StreamReader::new(honest.bytes_stream().map_err(std::io::Error::other));
    let frames = FramedRead::new(bytes, codec).map(move |bytes| {
        let frame = Frame::decode(&bytes?).map_err(std::io::Error::other)?;
        let frames: Vec<Bytes> = lie.frames(frame).iter().map(|frame| with_length(&frame.encode()).into()).collect();
        Ok::<_, std::io::Error>(Bytes::from(frames.concat()))
    });
    ([(CONTENT_TYPE, summary::CONTENT_TYPE)], Body::from_stream(frames)).into_response()
}

/// Forwards a request and its response.
async fn pass(State(liar): State<Arc<Liar>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, BODY_BYTES_MAX).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    parts.headers.remove(HOST);
    parts.headers.remove(TRANSFER_ENCODING);
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let url = format!("{}{path}", liar.honest);
    let upstream_response = liar.http.request(parts.method, url).headers(parts.headers).body(body).send().await;
    upstream_response.map_or_else(|error| failed(&error), answered)
}

fn answered(honest: reqwest::Response) -> Response {
    let (status, mut headers) = (honest.status(), honest.headers().clone());
    for of_the_connection in [CONNECTION, TRANSFER_ENCODING] {
        headers.remove(of_the_connection);
    }
    (status, headers, Body::from_stream(honest.bytes_stream())).into_response()
}

fn failed(error: &reqwest::Error) -> Response {
    (StatusCode::BAD_GATEWAY, error.to_string()).into_response()
}

/// A summary with stolen blocks in it, frame by frame.
struct Lie {
    stolen: Vec<Run>,
    stolen_keys: HashSet<BlockKey>,
    /// Blocks that the honest worker holds.
    own: HashSet<BlockKey>,
}

impl Lie {
    fn new(stolen: Vec<Run>) -> Self {
        let stolen_keys = stolen.iter().flat_map(|run| &run.keys).copied().collect();
        Self { stolen, stolen_keys, own: HashSet::new() }
    }

    /// Returns what is sent in place of an honest frame.
    fn frames(&mut self, Frame { stamp, body }: Frame) -> Vec<Frame> {
        let mut before = None;
        let body = match body {
            FrameBody::Begin(_) => {
                self.own.clear();
                body
            }
            FrameBody::Runs(ref runs) => {
                self.own.extend(runs.iter().flat_map(|run| &run.keys));
                body
            }
            FrameBody::End(_) => {
                let runs = self.not_own();
                before = (!runs.is_empty()).then_some(FrameBody::Runs(runs));
                FrameBody::End(self.digest())
            }
            FrameBody::Update { changes, load, digest } => {
                let changes = changes.into_iter().filter_map(|change| self.change(change)).collect();
                FrameBody::Update { changes, load, digest: digest.map(|_| self.digest()) }
            }
            FrameBody::Resumed => body,
        };
        before.into_iter().chain([body]).map(|body| Frame { stamp, body }).collect()
    }

    /// Returns the stolen runs without the blocks that the snapshot has already.
    fn not_own(&self) -> Vec<Run> {
        let without = |run: &Run| Run {
            keys: run.keys.iter().filter(|key| !self.own.contains(key)).copied().collect(),
            ..run.clone()
        };
        self.stolen.iter().map(without).filter(|run| !run.keys.is_empty()).collect()
    }

    fn change(&mut self, change: Change) -> Option<Change> {
        match change {
            Change::Stored(run) => {
                self.own.extend(&run.keys);
                Some(Change::Stored(run))
            }
            Change::Removed(mut keys) => {
                keys.iter().for_each(|key| {
                    self.own.remove(key);
                });
                keys.retain(|key| !self.stolen_keys.contains(key));
                (!keys.is_empty()).then_some(Change::Removed(keys))
            }
            Change::Accepted(id) => Some(Change::Accepted(id)),
        }
    }

    fn digest(&self) -> Digest {
        Digest::of(self.own.union(&self.stolen_keys))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use warmpath_common::ids::WorkerUid;
    use warmpath_common::model::{Fingerprint, ModelInfo};
    use warmpath_common::summary::{Load, Resume, RunState, Stamp};
    use warmpath_router_core::fleet::summary_reader::{FrameEffect, SummaryReader};

    use super::*;

    fn run(keys: &[u64]) -> Run {
        Run {
            keys: keys.iter().copied().map(BlockKey).collect(),
            tier: Tier::Resident,
            state: RunState::Ready,
            resume: Resume::EveryBlock,
            slot: None,
        }
    }

    /// Returns the frames of a worker that holds some blocks, and stores or removes one with each update.
    fn honest(held: &HashSet<u64>, changes: &[(u64, bool)]) -> Vec<Frame> {
        let mut own: HashSet<BlockKey> = held.iter().copied().map(BlockKey).collect();
        let held: Vec<u64> = held.iter().copied().collect();
        let stamp = Stamp { worker_uid: WorkerUid(1), boot_epoch: 1, seq: 0 };
        let runs = if held.is_empty() { Vec::new() } else { vec![run(&held)] };
        let sizes = ModelInfo::text(Fingerprint([0; 32]), 16, 4096, 4, 1000);
        let model = ModelInfo { names: vec!["tiny".to_owned()], ..sizes };
        let mut frames = Snapshot { stamp, model, runs, load: Load::default() }.into_frames();
        for (seq, (key, is_stored)) in (1..).zip(changes) {
            let change = match is_stored {
                true => Change::Stored(run(&[*key])),
                false => Change::Removed(vec![BlockKey(*key)]),
            };
            let _ = if *is_stored { own.insert(BlockKey(*key)) } else { own.remove(&BlockKey(*key)) };
            let body = FrameBody::Update { changes: vec![change], load: None, digest: Some(Digest::of(&own)) };
            frames.push(Frame { stamp: Stamp { seq, ..stamp }, body });
        }
        frames
    }

    proptest! {
        #[test]
        fn a_router_accepts_every_wrong_frame_and_counts_the_stolen_blocks(
            held in prop::collection::hash_set(0_u64..20, 0..10),
            stolen_keys in prop::collection::hash_set(0_u64..20, 1..10),
            changes in prop::collection::vec((0_u64..20, any::<bool>()), 0..30),
        ) {
            let keys: Vec<u64> = stolen_keys.iter().copied().collect();
            let mut lie = Lie::new(stolen(vec![run(&keys)]));
            let mut reader = SummaryReader::new(100);
            reader.open();
            let mut view: HashSet<BlockKey> = HashSet::new();
            for frame in honest(&held, &changes).into_iter().flat_map(|frame| lie.frames(frame)) {
                match reader.apply(frame).expect("each frame is consistent with those before it") {
                    FrameEffect::Replace(new) => view = new.runs.into_iter().flat_map(|run| run.keys).collect(),
                    FrameEffect::Update { changes, digest, .. } => {
                        for change in changes {
                            match change {
                                Change::Stored(run) => view.extend(run.keys),
                                Change::Removed(keys) => keys.iter().for_each(|key| { view.remove(key); }),
                                Change::Accepted(_) => {}
                            }
                        }
                        prop_assert_eq!(digest, Some(Digest::of(&view)));
                    }
                    FrameEffect::Opened(_) | FrameEffect::Partial | FrameEffect::Resumed => continue,
                }
                prop_assert!(keys.iter().all(|key| view.contains(&BlockKey(*key))));
            }
            let own = changes.iter().fold(held, |mut own, (key, is_stored)| {
                let _ = if *is_stored { own.insert(*key) } else { own.remove(key) };
                own
            });
            let expected: HashSet<BlockKey> = own.union(&stolen_keys).copied().map(BlockKey).collect();
            prop_assert_eq!(view, expected);
        }
    }
}
