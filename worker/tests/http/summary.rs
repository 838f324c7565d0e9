//! The endpoints for routers: the snapshot, the stream, the vocabulary.

use std::collections::BTreeMap;

use futures::StreamExt;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use reqwest::StatusCode;
use serde_json::json;
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};
use tokio_util::io::StreamReader;
use warmpath_common::block_hash::{BlockKey, ChainRoot, block_chain};
use warmpath_common::openai::ChatPrompt;
use warmpath_common::summary::{
    AFTER_PARAMETER, Change, Digest, Frame, FrameBody, Run, RunState, SNAPSHOT_PATH, STREAM_PATH, Snapshot,
    VOCABULARY_PATH,
};
use warmpath_prompt::{PromptMaker, PromptOptions};

use crate::harness::{TestWorker, folder, user};

/// A router's view: each block with the properties of its run.
#[derive(Debug, Default, PartialEq)]
struct View {
    blocks: BTreeMap<BlockKey, Run>,
    seq: u64,
    accepted: Vec<String>,
}

impl View {
    fn apply(&mut self, frame: Frame) {
        let follows = match frame.body {
            FrameBody::Update { .. } => self.seq + 1,
            FrameBody::Begin(_) => frame.stamp.seq,
            _ => self.seq,
        };
        assert_eq!(frame.stamp.seq, follows, "the stream has a gap");
        self.seq = frame.stamp.seq;
        match frame.body {
            FrameBody::Begin(_) => self.blocks.clear(),
            FrameBody::Runs(runs) => runs.into_iter().for_each(|run| self.store(run)),
            FrameBody::Resumed => {}
            FrameBody::End(digest) => assert_eq!(digest, Digest::of(self.blocks.keys()), "the snapshot is whole"),
            FrameBody::Update { changes, digest, .. } => {
                changes.into_iter().for_each(|change| match change {
                    Change::Stored(run) => self.store(run),
                    Change::Removed(keys) => keys.iter().for_each(|key| drop(self.blocks.remove(key))),
                    Change::Accepted(id) => self.accepted.push(id.as_str().to_owned()),
                });
                let digest = digest.unwrap_or_else(|| Digest::of(self.blocks.keys()));
                assert_eq!(digest, Digest::of(self.blocks.keys()), "the worker and the router have the same blocks");
            }
        }
    }

    fn store(&mut self, run: Run) {
        for key in &run.keys {
            self.blocks.insert(*key, Run { keys: Vec::new(), ..run.clone() });
        }
    }
}

async fn snapshot(worker: &TestWorker) -> Snapshot {
    serde_json::from_value(worker.get_json(SNAPSHOT_PATH).await).expect("the snapshot is one")
}

async fn frames(worker: &TestWorker) -> impl futures::Stream<Item = Frame> + Unpin + use<> {
    frames_at(worker, STREAM_PATH).await
}

async fn frames_at(worker: &TestWorker, path: &str) -> impl futures::Stream<Item = Frame> + Unpin + use<> {
    let response = worker.get(path).await;
    assert_eq!(response.status(), StatusCode::OK);
    let bytes = StreamReader::new(response.bytes_stream().map(|chunk| chunk.map_err(std::io::Error::other)));
    let frames = FramedRead::new(bytes, LengthDelimitedCodec::new());
    Box::pin(frames.map(|bytes| Frame::decode(&bytes.expect("a frame is whole")).expect("a frame decodes")))
}

/// Applies frames until the view has the number `seq`.
async fn follow(frames: &mut (impl futures::Stream<Item = Frame> + Unpin), view: &mut View, seq: u64) {
    let mut complete = view.seq > 0;
    while view.seq < seq || !complete {
        let frame = tokio::time::timeout(crate::harness::PATIENCE, frames.next()).await.expect("a frame comes in time");
        let frame = frame.expect("the stream goes on");
        complete |= matches!(frame.body, FrameBody::End(_));
        view.apply(frame);
    }
}

#[tokio::test]
async fn a_snapshot_and_the_stream_agree_after_any_traffic() {
    let worker = TestWorker::start("--slots 3 --ctx-size 3072 --block-size 8").await;
    let mut stream = frames(&worker).await;
    let mut view = View::default();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut running = Vec::new();
    for round in 0..30 {
        // Some clients disconnect within long responses, so that slots are reassigned while others run.
        match rng.random_range(0..3) {
            0 if running.len() < 2 => running.push(worker.begin_long().await),
            1 => drop(running.pop()),
            _ => {}
        }
        let topic = ["owls ", "foxes ", "a long river "][rng.random_range(0..3)].repeat(rng.random_range(3..60));
        let body = json!({"messages": user(&topic), "max_tokens": rng.random_range(1..20), "seed": round});
        worker.ask("/v1/chat/completions", body).await;
        let snapshot = snapshot(&worker).await;
        follow(&mut stream, &mut view, snapshot.stamp.seq).await;
        let mut from_snapshot = View::default();
        snapshot.runs.into_iter().for_each(|run| from_snapshot.store(run));
        assert_eq!(from_snapshot.blocks, view.blocks, "round {round}");
    }
    running.clear();
    worker.until("nothing runs", async |worker| worker.metric("slots_busy").await == 0.0).await;
    let snapshot = snapshot(&worker).await;
    follow(&mut stream, &mut view, snapshot.stamp.seq).await;
    assert!(view.accepted.len() >= 30, "every request is accepted: {}", view.accepted.len());
    assert!(
        view.blocks.values().all(|run| run.state == RunState::Ready),
        "blocks are announced as filling although no request runs"
    );
}

#[tokio::test]
async fn a_stream_continues_after_the_requested_stamp() {
    let worker = TestWorker::start("--slots 2 --block-size 8").await;
    let mut stream = frames(&worker).await;
    let mut view = View::default();
    let ask = async |topic: &str| {
        worker.ask("/v1/chat/completions", json!({"messages": user(topic), "max_tokens": 3})).await;
        snapshot(&worker).await
    };
    let first = ask(&"owls ".repeat(30)).await;
    follow(&mut stream, &mut view, first.stamp.seq).await;
    drop(stream);
    let after = warmpath_common::summary::Stamp { seq: view.seq, ..first.stamp };

    let second = ask(&"foxes ".repeat(30)).await;
    let mut stream = frames_at(&worker, &format!("{STREAM_PATH}?{AFTER_PARAMETER}={after}")).await;
    let opening = stream.next().await.expect("the stream begins");
    assert_eq!(opening, Frame { stamp: after, body: FrameBody::Resumed });
    follow(&mut stream, &mut view, second.stamp.seq).await;
    let mut from_snapshot = View::default();
    second.runs.into_iter().for_each(|run| from_snapshot.store(run));
    assert_eq!(from_snapshot.blocks, view.blocks);

    for unknown in [format!("{}", warmpath_common::summary::Stamp { boot_epoch: 1, ..after }), "nonsense".to_owned()] {
        let mut stream = frames_at(&worker, &format!("{STREAM_PATH}?{AFTER_PARAMETER}={unknown}")).await;
        let opening = stream.next().await.expect("the stream begins");
        assert!(matches!(opening.body, FrameBody::Begin(_)), "{unknown}: {opening:?}");
    }
}

#[tokio::test]
async fn a_running_requests_blocks_are_announced_under_the_keys_that_a_router_computes() {
    let worker = TestWorker::start("--slots 1 --block-size 8").await;
    let before = snapshot(&worker).await;
    let mut stream = frames(&worker).await;
    let chat: ChatPrompt =
        serde_json::from_value(json!({"messages": user(&"Tell me more. ".repeat(20))})).expect("a chat");
    let body = json!({"messages": chat.messages, "max_tokens": 2, "cache_salt": "tenant-1"});
    let request = worker.post("/v1/chat/completions", &body).header("x-request-id", "announce-me");
    let answer: serde_json::Value = request.send().await.expect("a response").json().await.expect("JSON");

    let vocabulary = worker.get(VOCABULARY_PATH).await.bytes().await.expect("bytes");
    let file = folder().join(format!("announced-{}.gguf", std::process::id()));
    std::fs::write(&file, &vocabulary).expect("the vocabulary is written");
    let prompt = PromptMaker::open(&file, PromptOptions::default()).expect("it opens").chat(&chat).expect("it renders");
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.tokens.len(), "router and worker count the same tokens");
    let root = ChainRoot { model_fingerprint: &before.model.fingerprint.0, lora: &[], cache_salt: b"tenant-1" }.hash();
    let keys: Vec<BlockKey> = block_chain(&root, &prompt.tokens, 8).iter().map(|hash| hash.key()).collect();

    let mut announced = None;
    let mut accepted = false;
    let mut view = View::default();
    while announced.is_none() || !accepted {
        let frame = stream.next().await.expect("the stream goes on");
        if let FrameBody::Update { changes, .. } = &frame.body {
            let filling = changes.iter().find_map(|change| match change {
                Change::Stored(run) if run.state == RunState::Filling => Some(run.keys.clone()),
                _ => None,
            });
            announced = announced.or(filling);
            accepted |=
                changes.iter().any(|change| matches!(change, Change::Accepted(id) if id.as_str() == "announce-me"));
        }
        view.apply(frame);
    }
    assert_eq!(announced, Some(keys), "the blocks of the whole prompt are announced at admission");
}

#[tokio::test]
async fn the_vocabulary_is_sent_once() {
    let worker = TestWorker::start("--slots 1").await;
    let response = worker.get(VOCABULARY_PATH).await;
    let fingerprint = snapshot(&worker).await.model.fingerprint.to_string();
    assert_eq!(response.headers()["x-warmpath-model-fingerprint"].to_str().ok(), Some(fingerprint.as_str()));
    let etag = response.headers()["etag"].clone();
    assert!(!response.bytes().await.expect("bytes").is_empty());
    let again = worker.request(VOCABULARY_PATH).header("if-none-match", &etag).send().await.expect("a response");
    assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    assert!(again.bytes().await.expect("bytes").is_empty());
    let other = worker.request(VOCABULARY_PATH).header("if-none-match", "\"other\"").send().await.expect("a response");
    assert_eq!(other.status(), StatusCode::OK);
}

#[tokio::test]
async fn the_vocabulary_has_the_chat_template_in_use() {
    let template = folder().join("own.jinja");
    std::fs::write(&template, "own template: {{ messages[0].content }}").expect("the template is written");
    let worker = TestWorker::start(&format!("--slots 1 --chat-template-file {}", template.display())).await;
    let vocabulary = worker.get(VOCABULARY_PATH).await.bytes().await.expect("bytes");
    let file = folder().join(format!("own-{}.gguf", std::process::id()));
    std::fs::write(&file, &vocabulary).expect("the vocabulary is written");
    let maker = PromptMaker::open(&file, PromptOptions::default()).expect("it opens");
    assert_eq!(maker.chat_template(), Some("own template: {{ messages[0].content }}"));
    let declared = snapshot(&worker).await.model.chat_template_fingerprint;
    assert_eq!(maker.chat_template_fingerprint(), declared);
}
