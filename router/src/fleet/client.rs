//! What connects to one worker: HTTP/1.1, by TLS where its URL says so, with the fleet's token where it is a Warmpath worker.
//!
//! Not here: what is asked (`subscriber`, `vocabulary`, `stock`, `lifecycle`). The idea: nobody but this file opens connections
//! to workers, so that no call can forget the token, and none can show it to somebody else. Certificates and token are looked
//! at for each connection and each request: what is renewed counts at once.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use url::Url;
use warmpath_shell::connect::{ConnectError, Connector, Secured};
use warmpath_shell::fleet_token::FleetTokens;
use warmpath_shell::tls::CurrentClient;

use crate::config::{CONNECTION_IDLE_MAX, WorkerAddress, WorkerApi};

/// Says why a worker did not begin to answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The path cannot stand in a request.
    #[error("the path cannot be asked for")]
    Path(#[source] axum::http::Error),
    /// No connection, or it broke.
    #[error("no answer")]
    Call(#[source] legacy::Error),
}

impl CallError {
    /// Returns whether no connection came about.
    pub fn is_connect(&self) -> bool {
        matches!(self, Self::Call(error) if error.is_connect())
    }

    /// Returns whether a connection came about that could not be secured.
    pub fn is_tls(&self) -> bool {
        let Self::Call(error) = self else { return false };
        let connect = error.source().and_then(|source| source.downcast_ref::<ConnectError>());
        connect.is_some_and(ConnectError::is_tls)
    }
}

/// Makes what connects to workers.
#[derive(Debug, Clone)]
pub struct Clients {
    connect_timeout: Duration,
    tls: CurrentClient,
    tokens: Option<Arc<FleetTokens>>,
}

impl Clients {
    /// Returns what makes clients that speak so, and show one of `tokens` to Warmpath workers.
    pub fn new(connect_timeout: Duration, tls: CurrentClient, tokens: Option<Arc<FleetTokens>>) -> Self {
        Self { connect_timeout, tls, tokens }
    }

    /// Returns what connects to the worker at an address.
    pub fn of(&self, address: &WorkerAddress) -> WorkerClient {
        let tls = (address.url.scheme() == "https").then(|| Secured {
            config: Arc::clone(&self.tls),
            name: address.server_name().expect("a URL's host is a name or an address"),
        });
        let connector = Connector::new(tls, self.connect_timeout);
        let (idle_max, tokens) = match address.api {
            WorkerApi::Warmpath => (usize::MAX, self.tokens.clone()),
            // A connection for each request: llama-server ends one after 5 s or 100 requests, and what is sent just then is lost.
            WorkerApi::OpenAi => (0, None),
        };
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_idle_timeout(CONNECTION_IDLE_MAX)
            .pool_max_idle_per_host(idle_max)
            .pool_timer(TokioTimer::new())
            .build(connector);
        WorkerClient { base: address.url.clone(), client, tokens }
    }
}

/// Connects to one worker.
#[derive(Clone)]
pub struct WorkerClient {
    base: Url,
    client: legacy::Client<Connector, Full<Bytes>>,
    /// Is what is shown to it; absent where nothing is.
    tokens: Option<Arc<FleetTokens>>,
}

impl WorkerClient {
    /// Returns the URL of one of the worker's endpoints.
    pub fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(path);
        url
    }

    /// Asks for what is at a URL of the worker's.
    ///
    /// Errors: every [`CallError`].
    pub async fn get(&self, url: &Url) -> Result<Response<Body>, CallError> {
        self.call((Method::GET, url), HeaderMap::new(), Bytes::new()).await
    }

    /// Sends a request; returns the answer once its head is there.
    ///
    /// A worker that refuses a token is shown the next one: files of tokens change at different times. Errors: every [`CallError`].
    pub async fn call(
        &self,
        (method, url): (Method, &Url),
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Body>, CallError> {
        let request = Request::builder().method(method).uri(url.as_str()).body(Full::new(body));
        let mut request = request.map_err(CallError::Path)?;
        *request.headers_mut() = headers;
        let mut shown = self.tokens.as_ref().map(|tokens| tokens.shown()).unwrap_or_default().into_iter();
        if let Some(token) = shown.next() {
            request.headers_mut().insert(header::AUTHORIZATION, token);
        }
        for next in shown {
            let response = self.client.request(request.clone()).await.map_err(CallError::Call)?;
            if response.status() != StatusCode::UNAUTHORIZED {
                return Ok(response.map(Body::new));
            }
            request.headers_mut().insert(header::AUTHORIZATION, next);
        }
        Ok(self.client.request(request).await.map_err(CallError::Call)?.map(Body::new))
    }
}
