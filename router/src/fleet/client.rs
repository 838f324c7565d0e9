//! What connects to one worker: HTTP/1.1, by TLS where its URL says so, with the fleet's token where it is a Warmpath worker.
//!
//! Not here: what is asked (`subscriber`, `vocabulary`, `stock`, `lifecycle`). The idea: nobody but this file opens connections
//! to workers, so that no call can forget the token, and none can show it to somebody else. Certificates and token are looked
//! at for each connection and each request: what is renewed counts at once. A stock server ends connections when it likes; what is
//! sent on one just then is sent once more on a new one, so that their end is never taken for the server's.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use url::Url;
use warmpath_shell::connect::{ConnectError, Connector, Past, Secured};
use warmpath_shell::fleet_token::FleetTokens;
use warmpath_shell::tls::CurrentClient;

use super::worker_keys::{WorkerKey, WorkerKeys};
use crate::config::{CONNECTION_IDLE_MAX, STOCK_CONNECTION_IDLE_MAX, WORKER_PATIENCE, WorkerAddress, WorkerApi};

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

    /// Returns whether nothing takes connections where the worker is; a lack of this machine's own is something else.
    pub fn is_away(&self) -> bool {
        let Self::Call(error) = self else { return false };
        error.source().and_then(|source| source.downcast_ref()).is_some_and(ConnectError::is_away)
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
    keys: Arc<WorkerKeys>,
}

impl Clients {
    /// Returns what makes clients that speak so, and show one of `tokens` to Warmpath workers.
    pub fn new(connect_timeout: Duration, tls: CurrentClient, tokens: Option<Arc<FleetTokens>>) -> Self {
        Self { connect_timeout, tls, tokens, keys: Arc::default() }
    }

    /// Returns the same, which shows stock servers their keys.
    pub fn with_keys(self, keys: Arc<WorkerKeys>) -> Self {
        Self { keys, ..self }
    }

    /// Returns what connects to the worker at an address.
    pub fn of(&self, address: &WorkerAddress) -> WorkerClient {
        let tls = (address.url.scheme() == "https").then(|| Secured {
            config: Arc::clone(&self.tls),
            name: address.server_name().expect("a URL's host is a name or an address"),
        });
        let connector = Connector::new(tls, self.connect_timeout);
        let mut pooled = legacy::Client::builder(TokioExecutor::new());
        pooled.pool_timer(TokioTimer::new());
        let base = address.url.clone();
        match address.api {
            WorkerApi::Warmpath => {
                let client =
                    pooled.pool_idle_timeout(CONNECTION_IDLE_MAX).build(connector.with_patience(WORKER_PATIENCE));
                WorkerClient { base, client, fresh: None, tokens: self.tokens.clone(), key: None }
            }
            WorkerApi::OpenAi => {
                let connector = connector.with_patience_for_late_readers(WORKER_PATIENCE);
                let client = pooled.pool_idle_timeout(STOCK_CONNECTION_IDLE_MAX).build(connector.clone());
                let fresh = legacy::Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
                WorkerClient { base, client, fresh: Some(fresh), tokens: None, key: self.keys.of(address) }
            }
        }
    }
}

/// Connects to one worker.
#[derive(Clone)]
pub struct WorkerClient {
    base: Url,
    client: legacy::Client<Connector, Full<Bytes>>,
    /// Takes what an old connection has lost; absent where connections do not end before their time.
    fresh: Option<legacy::Client<Connector, Full<Bytes>>>,
    /// Is what is shown to it; absent where nothing is.
    tokens: Option<Arc<FleetTokens>>,
    /// Key that a stock server wants; absent where clients show their own.
    key: Option<Arc<WorkerKey>>,
}

impl WorkerClient {
    /// Returns the URL of one of the worker's endpoints.
    pub fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        // Joining would replace the base's path.
        url.set_path(&[self.base.path().trim_end_matches('/'), path].concat());
        url
    }

    /// Returns whether the router shows the worker a key or token of its own, in place of clients'.
    pub fn has_own_key(&self) -> bool {
        self.tokens.is_some() || self.key.is_some()
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
        if let Some(key) = &self.key {
            key.show(request.headers_mut());
        }
        let mut shown = self.tokens.as_ref().map(|tokens| tokens.shown()).unwrap_or_default().into_iter();
        if let Some(token) = shown.next() {
            request.headers_mut().insert(header::AUTHORIZATION, token);
        }
        for next in shown {
            let response = self.send(request.clone()).await?;
            if response.status() != StatusCode::UNAUTHORIZED {
                return Ok(response);
            }
            request.headers_mut().insert(header::AUTHORIZATION, next);
        }
        self.send(request).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Body>, CallError> {
        let again = self.fresh.as_ref().map(|fresh| (fresh, request.clone()));
        let answer = match (self.client.request(request).await, again) {
            // Where a new connection does not help, the end of the old one was the server's.
            (Err(error), Some((fresh, request))) if was_used(&error) => fresh.request(request).await.map_err(|_| error),
            (answer, _) => answer,
        };
        let answer = answer.map_err(CallError::Call)?;
        if let Some(past) = answer.extensions().get::<Past>() {
            past.answered();
        }
        Ok(answer.map(Body::new))
    }
}

/// Returns whether a call failed on a connection that had carried an answer before.
fn was_used(error: &legacy::Error) -> bool {
    let mut extras = Extensions::new();
    if let Some(info) = error.connect_info() {
        info.get_extras(&mut extras);
    }
    extras.get::<Past>().is_some_and(Past::has_answered)
}
