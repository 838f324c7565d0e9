//! Peers that send damaged, foreign, truncated, endless or late state, or end: the response is the uncached one.
//!
//! Not here: records with other tokens, hashes or lengths (`store::exchange`'s own tests).

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::net::TcpListener;
use warmpath_common::headers::KV_PEER;

use crate::cache::{compute, prompt};
use crate::harness::TestWorker;
use crate::kv_transfer::{answer, hint, question, slow_worker, uncached};

/// Fault of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    FlipByte,
    SendAnotherRun,
    CutOff,
    Die,
    SendZerosForEver,
    SendRecordsForEver,
    ClaimHugeHeader,
    FallSilent,
    NeverAnswer,
    Redirect,
    Fail,
    SpeakNoHttp,
}

/// A peer that forwards another worker's state with a fault.
#[derive(Clone)]
struct Peer {
    holder: String,
    fault: Fault,
    /// State of the previous run. The lock is held while it is exchanged for the current one.
    earlier: Arc<Mutex<Option<Bytes>>>,
}

async fn respond(State(peer): State<Peer>, uri: Uri) -> Response {
    let good = reqwest::get(format!("{}{uri}", peer.holder)).await.expect("the holder responds");
    assert_eq!(good.status(), 200, "{uri}");
    let good = good.bytes().await.expect("the whole run");
    let half = good.slice(..good.len() / 2);
    let pieces = |pieces: Vec<Bytes>| stream::iter(pieces.into_iter().map(Ok::<_, Infallible>));
    match peer.fault {
        Fault::FlipByte => {
            let mut bytes = good.to_vec();
            let at = bytes.len() - 1000;
            bytes[at] ^= 1;
            bytes.into_response()
        }
        Fault::SendAnotherRun => {
            let earlier = peer.earlier.lock().expect("no test panics here").replace(good.clone());
            earlier.unwrap_or(good).into_response()
        }
        Fault::CutOff => half.into_response(),
        Fault::Die => {
            let broken = stream::iter([Ok(half), Err(std::io::Error::other("it dies"))]);
            Body::from_stream(broken).into_response()
        }
        Fault::SendZerosForEver => {
            let zeros = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[0; 4096])));
            Body::from_stream(zeros).into_response()
        }
        Fault::SendRecordsForEver => Body::from_stream(pieces(vec![half]).chain(
            // The same first records are repeated.
            stream::repeat_with(move || Ok(good.slice(..good.len() / 2))),
        ))
        .into_response(),
        Fault::ClaimHugeHeader => {
            let mut bytes = good.to_vec();
            bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
            bytes.into_response()
        }
        Fault::FallSilent => Body::from_stream(pieces(vec![half]).chain(stream::pending())).into_response(),
        Fault::NeverAnswer => pending().await,
        Fault::Redirect => {
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, format!("{}{uri}", peer.holder))]).into_response()
        }
        Fault::Fail | Fault::SpeakNoHttp => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Returns the base URL of a peer.
async fn peer(holder: &TestWorker, fault: Fault) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let base = format!("http://{}", listener.local_addr().expect("it is bound"));
    if fault == Fault::SpeakNoHttp {
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let _ = tokio::io::AsyncWriteExt::write_all(&mut connection, b"no HTTP at all\r\n\r\n").await;
            }
        });
        return base;
    }
    let state = Peer { holder: holder.base().to_owned(), fault, earlier: Arc::default() };
    let service = Router::new().fallback(respond).with_state(state);
    tokio::spawn(async move { axum::serve(listener, service).await });
    base
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_is_the_uncached_one_whatever_a_peer_sends() {
    let holder = slow_worker(100.0, "").await;
    let (first, second) = (prompt(1, 640), prompt(2, 640));
    compute(&holder, &first).await;
    compute(&holder, &second).await;
    for (fault, result) in [
        (Fault::FlipByte, "untrusted"),
        (Fault::SendAnotherRun, "untrusted"),
        (Fault::CutOff, "cut_off"),
        (Fault::Die, "cut_off"),
        (Fault::SendZerosForEver, "untrusted"),
        (Fault::SendRecordsForEver, "untrusted"),
        (Fault::ClaimHugeHeader, "untrusted"),
        (Fault::FallSilent, "late"),
        (Fault::NeverAnswer, "late"),
        (Fault::Redirect, "refused"),
        (Fault::Fail, "refused"),
        (Fault::SpeakNoHttp, "unreachable"),
    ] {
        // If computing a token is fast, the wait is short.
        let worker = slow_worker(if result == "late" { 1.0 } else { 100.0 }, "").await;
        let base = peer(&holder, fault).await;
        if fault == Fault::SendAnotherRun {
            answer(question(&worker, &second).header(KV_PEER, hint(&base, 20))).await;
        }
        let moved = answer(question(&worker, &first).header(KV_PEER, hint(&base, 20))).await;
        assert!(moved.n_cached < 620, "{fault:?}: {} tokens are cached", moved.n_cached);
        assert_eq!(moved.text, uncached(&worker, &first).await, "{fault:?}");
        let name = format!("kv_transfers_total{{direction=\"received\",result=\"{result}\"}}");
        let is_counted = async |worker: &TestWorker| worker.try_metric(&name).await == Some(1.0);
        worker.until(&format!("{fault:?} counts as {result}"), is_counted).await;
        // The stored state is correct, too: others start from it.
        let again = answer(question(&worker, &first)).await;
        assert_eq!(again.text, moved.text, "{fault:?}");
        worker.stop().await.expect("a good end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_peer_gets_no_further_requests_and_the_next_request_does_not_wait() {
    let holder = slow_worker(1.0, "").await;
    let worker = slow_worker(1.0, "").await;
    let (first, second) = (prompt(1, 640), prompt(2, 640));
    compute(&holder, &first).await;
    let base = peer(&holder, Fault::NeverAnswer).await;
    let moved = answer(question(&worker, &first).header(KV_PEER, hint(&base, 20))).await;
    assert!(moved.fetched.is_some_and(|fetched| fetched.starts_with("0;")));
    let name = "kv_transfers_total{direction=\"received\",result=\"late\"}";
    worker.until("the transfer counts as late", async |worker| worker.try_metric(name).await == Some(1.0)).await;
    let moved = answer(question(&worker, &second).header(KV_PEER, hint(&base, 20))).await;
    assert_eq!(moved.fetched, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_peer_does_not_make_requests_fail() {
    let worker = slow_worker(1.0, "").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let base = format!("http://{}", listener.local_addr().expect("it is bound"));
    drop(listener);
    let first = prompt(1, 640);
    let moved = answer(question(&worker, &first).header(KV_PEER, hint(&base, 20))).await;
    assert_eq!((moved.n_cached, moved.text), (0, uncached(&worker, &first).await));
}
