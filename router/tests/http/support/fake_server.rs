//! A fake server: serves routes in a runtime that can be killed as a whole, and records every request.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::runtime::Runtime;

use super::PATIENCE;

/// A request to generate something, as the server saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Path and query.
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Requests of one server.
#[derive(Debug, Default)]
pub struct RequestLog {
    seen: Mutex<Vec<Seen>>,
    /// Every requested path, with the headers, including refused ones.
    asked: Mutex<Vec<(String, HeaderMap)>>,
}

impl RequestLog {
    /// Records a request to generate something.
    pub fn record(&self, uri: &Uri, headers: HeaderMap, body: &Bytes) -> Seen {
        let seen = Seen { target: uri.to_string(), headers, body: body.clone() };
        self.seen.lock().expect("no test panics here").push(seen.clone());
        seen
    }

    /// Records any request; returns a refusal unless it carries the key, if there is one.
    pub fn admit(&self, request: &Request, key: Option<&str>) -> Result<(), StatusCode> {
        let asked = (request.uri().path().to_owned(), request.headers().clone());
        self.asked.lock().expect("no test panics here").push(asked);
        let shown = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let is_admitted = key.is_none_or(|key| shown == Some(&format!("Bearer {key}")));
        is_admitted.then_some(()).ok_or(StatusCode::UNAUTHORIZED)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no test panics here").clone()
    }

    /// Returns every requested path, with the headers.
    pub fn asked(&self) -> Vec<(String, HeaderMap)> {
        self.asked.lock().expect("no test panics here").clone()
    }
}

/// A server at an address that it keeps when it is killed and started again.
pub struct FakeServer {
    address: SocketAddr,
    /// Path before all of its endpoints.
    base: &'static str,
    pub log: Arc<RequestLog>,
    runtime: Option<Runtime>,
}

impl FakeServer {
    /// Returns a server that is not started yet; it chooses its port if that is 0.
    pub fn at(address: &str, base: &'static str) -> Self {
        let address = address.parse().expect("an address");
        Self { address, base, log: Arc::default(), runtime: None }
    }

    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, self.base)
    }

    /// Starts the server; returns the runtime in which it runs.
    pub fn start(&mut self, routes: Router) -> &Runtime {
        let routes = if self.base.is_empty() { routes } else { Router::new().nest(self.base, routes) };
        let (address, runtime) = serve_apart(self.address, routes);
        self.address = address;
        self.runtime.insert(runtime)
    }

    /// Ends the server with all its connections, and waits until its port is free: a server that is started there at
    /// once would find it in use.
    pub fn kill(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // A runtime cannot wait inside another one.
        std::thread::scope(|scope| {
            scope.spawn(|| runtime.shutdown_timeout(PATIENCE));
        });
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Serves `routes` at `address` in a separate runtime, so that all of it can be ended at once; returns the address,
/// with the port chosen for port 0.
pub fn serve_apart(address: SocketAddr, routes: Router) -> (SocketAddr, Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    // A runtime cannot wait inside another one.
    let bound = std::thread::scope(|scope| {
        let bind = || runtime.block_on(tokio::net::TcpListener::bind(address)).expect("the port is free");
        scope.spawn(bind).join().expect("binding does not panic")
    });
    let address = bound.local_addr().expect("it is bound");
    let service = routes.into_make_service_with_connect_info::<SocketAddr>();
    runtime.spawn(async move { axum::serve(bound, service).await.expect("it serves") });
    (address, runtime)
}

/// Returns a refusal with an error object, and this `Retry-After`.
pub fn refusal(status: u16, retry_after: Option<String>) -> Response {
    let error = json!({"error": {"message": "scripted", "type": "scripted", "param": null, "code": null}});
    let mut response = (StatusCode::from_u16(status).expect("a status"), axum::Json(error)).into_response();
    if let Some(after) = retry_after {
        response.headers_mut().insert("retry-after", after.parse().expect("a header"));
    }
    response
}
