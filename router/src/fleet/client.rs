//! The connection to one worker: HTTP/1.1, over TLS if its URL says so, with the fleet's token for a Warmpath worker.
//!
//! Only this file opens connections to workers, so no call can omit the token or send it elsewhere. Certificates and
//! tokens are read for each connection and request, so a renewed file counts at once. A stock server may close an idle
//! connection at any time. A request that is sent at that moment is sent again on a new connection, so that the closed
//! connection is not mistaken for a failed server. A break that comes later is a failed attempt: the server has worked
//! on the request, so only `lifecycle` may send it again, within the limits on retries.
//!
//! Not here: the requests (`subscriber`, `vocabulary`, `stock`, `lifecycle`).

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use url::Url;
use warmpath_shell::connect::{ConnectError, ConnectionHistory, Connector, Secured};
use warmpath_shell::fleet_token::FleetTokens;
use warmpath_shell::tls::CurrentClient;

use super::worker_keys::{WorkerKey, WorkerKeys};
use crate::config::{
    CONNECTION_IDLE_MAX, RESEND_WITHIN, STOCK_CONNECTION_IDLE_MAX, WORKER_PATIENCE, WorkerAddress, WorkerApi,
};

/// Error codes of a shortage for which `std` has no kind: of file descriptors (ENFILE, EMFILE) and buffers (ENOBUFS).
///
/// Source: errno(3); ENOBUFS has another number on macOS and the BSDs.
const SHORTAGE_CODES: [i32; 3] = [23, 24, if cfg!(target_os = "linux") { 105 } else { 55 }];

/// Reason why a worker did not begin to respond.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The path is not valid in a request.
    #[error("the path is not valid in a request")]
    Path(#[source] axum::http::Error),
    /// No connection could be opened, or it broke.
    #[error("no answer")]
    Call(#[source] legacy::Error),
}

impl CallError {
    /// Returns whether no connection could be opened.
    pub fn is_connect(&self) -> bool {
        matches!(self, Self::Call(error) if error.is_connect())
    }

    /// Returns whether the worker's address accepts no connections. A shortage on this machine does not count.
    pub fn is_away(&self) -> bool {
        let Self::Call(error) = self else { return false };
        error.source().and_then(|source| source.downcast_ref()).is_some_and(ConnectError::is_away)
    }

    /// Returns whether this machine lacked a file descriptor, a port or memory, whatever the state of the worker.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::Call(error) if is_shortage(error))
    }

    /// Returns whether the TLS handshake failed.
    pub fn is_tls(&self) -> bool {
        let Self::Call(error) = self else { return false };
        let connect = error.source().and_then(|source| source.downcast_ref::<ConnectError>());
        connect.is_some_and(ConnectError::is_tls)
    }
}

/// Reason why a worker's short answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The worker did not begin to respond.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The worker responded with another status.
    #[error("it responded with {0}")]
    Refused(StatusCode),
    /// The body broke off, or is too long.
    #[error("the answer broke off or is too long")]
    Broken(#[source] axum::Error),
    /// The body is not the expected JSON.
    #[error("the answer cannot be read")]
    Malformed(#[from] serde_json::Error),
}

/// Factory of the connections to workers.
#[derive(Debug, Clone)]
pub struct Clients {
    connect_timeout: Duration,
    tls: CurrentClient,
    tokens: Option<Arc<FleetTokens>>,
    keys: Arc<WorkerKeys>,
}

impl Clients {
    /// Returns a factory of clients with these settings; Warmpath workers get one of `tokens`.
    pub fn new(connect_timeout: Duration, tls: CurrentClient, tokens: Option<Arc<FleetTokens>>) -> Self {
        Self { connect_timeout, tls, tokens, keys: Arc::default() }
    }

    /// Returns the same factory with keys for stock servers.
    pub fn with_keys(self, keys: Arc<WorkerKeys>) -> Self {
        Self { keys, ..self }
    }

    /// Returns the client of the worker at an address.
    pub fn of(&self, address: &WorkerAddress) -> WorkerClient {
        let tls = (address.url.scheme() == "https").then(|| Secured {
            config: Arc::clone(&self.tls),
            name: address.server_name().expect("a URL's host is a name or an address"),
        });
        let connector = Connector::new(tls, self.connect_timeout);
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new());
        let base = address.url.clone();
        match address.api {
            WorkerApi::Warmpath => {
                let client =
                    builder.pool_idle_timeout(CONNECTION_IDLE_MAX).build(connector.with_patience(WORKER_PATIENCE));
                WorkerClient { base, client, fresh: None, tokens: self.tokens.clone(), key: None }
            }
            WorkerApi::OpenAi => {
                let connector = connector.with_patience_for_late_readers(WORKER_PATIENCE);
                let client = builder.pool_idle_timeout(STOCK_CONNECTION_IDLE_MAX).build(connector.clone());
                let fresh = legacy::Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
                WorkerClient { base, client, fresh: Some(fresh), tokens: None, key: self.keys.of(address) }
            }
        }
    }
}

/// HTTP client of one worker.
#[derive(Clone)]
pub struct WorkerClient {
    base: Url,
    client: legacy::Client<Connector, Full<Bytes>>,
    /// Client that repeats a request which failed on an old connection; `None` for workers that do not close idle
    /// connections early.
    fresh: Option<legacy::Client<Connector, Full<Bytes>>>,
    /// The fleet's tokens; `None` if the worker gets none.
    tokens: Option<Arc<FleetTokens>>,
    /// Key for a stock server; `None` if clients send their own.
    key: Option<Arc<WorkerKey>>,
}

impl WorkerClient {
    /// Returns the URL of one of the worker's endpoints.
    pub fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        // Joining would replace the path of the base URL.
        url.set_path(&[self.base.path().trim_end_matches('/'), path].concat());
        url
    }

    /// Returns whether the router sends the worker a key or token of its own instead of the client's.
    pub fn has_own_key(&self) -> bool {
        self.tokens.is_some() || self.key.is_some()
    }

    /// Sends a GET request to one of the worker's URLs.
    ///
    /// Errors: every [`CallError`].
    pub async fn get(&self, url: &Url) -> Result<Response<Body>, CallError> {
        self.call(Method::GET, url, HeaderMap::new(), Bytes::new()).await
    }

    /// Returns the JSON that the worker answers to a GET request, from at most `bytes_max` bytes.
    ///
    /// Errors: every [`AnswerError`].
    pub async fn get_json<T: DeserializeOwned>(&self, url: &Url, bytes_max: usize) -> Result<T, AnswerError> {
        let response = self.get(url).await?;
        if response.status() != StatusCode::OK {
            return Err(AnswerError::Refused(response.status()));
        }
        let body = axum::body::to_bytes(response.into_body(), bytes_max).await.map_err(AnswerError::Broken)?;
        Ok(serde_json::from_slice(&body)?)
    }

    /// Sends a request; returns the response once its head has arrived.
    ///
    /// A worker that refuses a token gets the next one, because token files change at different times. Errors: every
    /// [`CallError`].
    pub async fn call(
        &self,
        method: Method,
        url: &Url,
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
        let sent_at = Instant::now();
        let answer = match (self.client.request(request).await, again) {
            (Err(error), Some((fresh, request))) if sent_at.elapsed() <= RESEND_WITHIN && was_used(&error) => {
                // If a new connection fails too, the server itself closed the old one, unless this machine is at fault.
                fresh.request(request).await.map_err(|again| if is_shortage(&again) { again } else { error })
            }
            (answer, _) => answer,
        };
        let answer = answer.map_err(CallError::Call)?;
        if let Some(past) = answer.extensions().get::<ConnectionHistory>() {
            past.answered();
        }
        Ok(answer.map(Body::new))
    }
}

/// Returns whether a call failed on a connection that had carried a response before.
fn was_used(error: &legacy::Error) -> bool {
    let mut extras = Extensions::new();
    if let Some(info) = error.connect_info() {
        info.get_extras(&mut extras);
    }
    extras.get::<ConnectionHistory>().is_some_and(ConnectionHistory::has_answered)
}

/// Returns whether an error is due to a shortage of resources on this machine.
fn is_shortage(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref().is_some_and(is_lack_of_resources) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn is_lack_of_resources(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrNotAvailable, OutOfMemory};
    let has_code = error.raw_os_error().is_some_and(|code| SHORTAGE_CODES.contains(&code));
    has_code || matches!(error.kind(), AddrNotAvailable | OutOfMemory)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_shortage_on_this_machine_is_not_mistaken_for_a_failed_worker() {
        let check = |code: Errno, expected: bool| {
            let error = || Box::new(io::Error::from_raw_os_error(code.raw_os_error()));
            let causes = ConnectError::Tcp(Box::new(ConnectError::Tcp(error())));
            assert_eq!((is_shortage(&*error()), is_shortage(&causes)), (expected, expected), "{code}");
        };
        for code in [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL, Errno::NOBUFS, Errno::NOMEM] {
            check(code, true);
        }
        for code in [Errno::CONNREFUSED, Errno::CONNRESET, Errno::HOSTUNREACH, Errno::NETUNREACH, Errno::TIMEDOUT] {
            check(code, false);
        }
        assert!(!is_shortage(&ConnectError::Late(Duration::from_secs(1))));
    }
}
