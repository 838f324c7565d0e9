//! Requests to the hub and to other hosts: redirects, proxies, the meaning of statuses, and which failures are worth
//! another attempt.
//!
//! A token is sent only to the host for which it was issued, never to the target of a redirect. Logs and messages omit
//! the query of a URL, since it may contain a signature. Not here: the hub's protocol (`hub`), a file's bytes
//! (`transfer`).

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioExecutor;
use tracing::warn;
use url::Url;
use warmpath_shell::tls::{ClientFiles, CurrentClient};

use super::error::DownloadError;
use super::source::HubToken;

/// Longest time to connect. Source: `huggingface_hub` uses 10 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time without a byte; then a response counts as interrupted. Source: three times the limit of
/// `huggingface_hub`, for slow mirrors.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Maximum number of redirects of a request. Source: a limit common among HTTP clients.
const REDIRECTS_MAX: usize = 10;

/// Attempts without progress after which a download fails. Source: `huggingface_hub` makes 5.
const ATTEMPTS_MAX: u32 = 5;

/// Pause before the second attempt, doubled for each further one. Source: the pauses between five attempts take 8 s in
/// all, about the time in which a host restarts.
const PAUSE: Duration = Duration::from_millis(500);

/// Longest pause, even when the host asks for a longer one.
///
/// Source: an operator is waiting for the download.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Maximum length of a host's explanation in messages. Units: characters.
///
/// Source: four lines of a terminal.
const SAYS_MAX: usize = 300;

/// Longest body from which an explanation is read. Units: bytes.
///
/// Source: explanations are short; pages of HTML are not shown.
const EXPLANATION_BYTES_MAX: usize = 64 << 10;

/// HTTP client of a download.
pub struct Web {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    /// TLS configuration; the client for a proxy is created when one is needed.
    tls: CurrentClient,
    proxies: Matcher,
    /// Advice for the user when the host refuses access.
    advice: &'static str,
}

/// A request to a host.
#[derive(Debug)]
pub struct HostRequest<'a> {
    /// Address.
    pub url: Url,
    /// Token for this address' host.
    pub token: Option<&'a HubToken>,
    /// Further headers.
    pub headers: Vec<(HeaderName, String)>,
    /// Description of the requested file or listing, for messages.
    pub what: &'a str,
}

/// A usable response: a success, or another status that the caller's headers allow for.
#[derive(Debug)]
pub struct HostResponse {
    /// Address that sent the response, after redirects.
    pub url: Url,
    /// Status.
    pub status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
}

/// Failure of one attempt.
#[derive(Debug)]
pub enum AttemptFailure {
    /// Another attempt may succeed.
    Transient {
        /// Reason.
        reason: String,
        /// Pause that the host requests.
        pause: Option<Duration>,
    },
    /// Another attempt would fail too.
    Final(DownloadError),
}

impl AttemptFailure {
    pub fn transient(reason: impl ToString) -> Self {
        Self::Transient { reason: reason.to_string(), pause: None }
    }
}

impl From<DownloadError> for AttemptFailure {
    fn from(error: DownloadError) -> Self {
        Self::Final(error)
    }
}

impl Web {
    /// Returns a client that uses the proxies given by the environment (`HTTPS_PROXY`, `NO_PROXY`).
    ///
    /// Errors: `Tls`.
    pub fn new(advice: &'static str) -> Result<Self, DownloadError> {
        let tls = ClientFiles::default().open().map_err(DownloadError::Tls)?;
        let client = Client::builder(TokioExecutor::new()).build(HttpsConnector::from((connector(), tls.load_full())));
        Ok(Self { client, tls, proxies: Matcher::from_env(), advice })
    }

    /// Sends a request and follows its redirects.
    ///
    /// Errors: `Transient`; `Final` with `Denied`, `NotFound`, `Answer`.
    pub async fn get(&self, ask: &HostRequest<'_>) -> Result<HostResponse, AttemptFailure> {
        let mut url = ask.url.clone();
        let mut token = ask.token;
        for _ in 0..=REDIRECTS_MAX {
            let answer = self.send(ask, &url, token).await?;
            let location = answer.header(header::LOCATION).filter(|_| answer.status.is_redirection());
            let Some(location) = location else { return self.checked(ask.what, answer).await };
            let next = url.join(&location).ok().filter(|next| ["http", "https"].contains(&next.scheme()));
            let next = next.ok_or_else(|| unusable(&url, ask.what, "it redirects without a URL"))?;
            if url.scheme() == "https" && next.scheme() != "https" {
                return Err(unusable(&url, ask.what, "it redirects from https to http"));
            }
            token = token.filter(|_| next.origin() == ask.url.origin());
            url = next;
        }
        Err(unusable(&url, ask.what, "it redirects too often"))
    }

    async fn send(
        &self,
        ask: &HostRequest<'_>,
        url: &Url,
        token: Option<&HubToken>,
    ) -> Result<HostResponse, AttemptFailure> {
        let uri: Uri = url.as_str().parse().map_err(|_| unusable(url, ask.what, "its URL is not valid"))?;
        let mut request = Request::get(uri.clone());
        request = request.header(header::USER_AGENT, concat!("warmpath/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &ask.headers {
            request = request.header(name, value);
        }
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, token.header());
        }
        let request = request.body(Empty::new()).map_err(|_| unusable(url, ask.what, "a header cannot be sent"))?;
        let sending = async {
            match self.proxies.intercept(&uri).filter(|_| url.scheme() == "https") {
                Some(proxy) => self.client_through(&proxy).request(request).await,
                None => self.client.request(request).await,
            }
        };
        let response = tokio::time::timeout(CONNECT_TIMEOUT + SILENCE_MAX, sending).await;
        let response = response.map_err(|_| AttemptFailure::transient("it does not respond"))?;
        let response = response.map_err(|error| AttemptFailure::transient(warmpath_shell::chain(&error)))?;
        let (parts, body) = response.into_parts();
        Ok(HostResponse { url: url.clone(), status: parts.status, headers: parts.headers, body })
    }

    fn client_through(&self, proxy: &Intercept) -> Client<HttpsConnector<Tunnel<HttpConnector>>, Empty<Bytes>> {
        let mut tunnel = Tunnel::new(proxy.uri().clone(), connector());
        if let Some(auth) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(auth.clone());
        }
        Client::builder(TokioExecutor::new()).build(HttpsConnector::from((tunnel, self.tls.load_full())))
    }

    async fn checked(&self, what: &str, answer: HostResponse) -> Result<HostResponse, AttemptFailure> {
        let status = answer.status;
        if status.is_success() || [StatusCode::NOT_MODIFIED, StatusCode::RANGE_NOT_SATISFIABLE].contains(&status) {
            return Ok(answer);
        }
        if status.is_server_error() || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status) {
            let pause = answer.header(header::RETRY_AFTER).and_then(|seconds| seconds.trim().parse().ok());
            let pause = pause.map(Duration::from_secs);
            return Err(AttemptFailure::Transient { reason: format!("it responds with {status}"), pause });
        }
        let (host, what, status) = (host(&answer.url), what.to_owned(), status.as_u16());
        let says = answer.explanation().await;
        Err(AttemptFailure::Final(match status {
            401 | 403 => DownloadError::Denied { host, what, status, says, advice: self.advice },
            404 | 410 => DownloadError::NotFound { host, what, says },
            _ => DownloadError::Answer { host, what, reason: format!("status {status} {says}").trim_end().to_owned() },
        }))
    }
}

fn connector() -> HttpConnector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    http
}

impl HostResponse {
    /// Returns a header's text.
    pub fn header(&self, name: HeaderName) -> Option<String> {
        self.headers.get(name).and_then(|value| HeaderValue::to_str(value).ok()).map(str::to_owned)
    }

    /// Returns the length of the body if the host announces it. Units: bytes.
    pub fn content_length(&self) -> Option<u64> {
        self.header(header::CONTENT_LENGTH)?.parse().ok()
    }

    /// Returns the next bytes of the body; `None` at its end.
    ///
    /// Errors: `Transient` if the response breaks off or no byte arrives in time.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, AttemptFailure> {
        loop {
            let frame = tokio::time::timeout(SILENCE_MAX, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| AttemptFailure::transient("it stopped sending"))? else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| AttemptFailure::transient(warmpath_shell::chain(&error)))?;
            // A frame without data has trailers.
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes));
            }
        }
    }

    /// Returns the complete body.
    ///
    /// Errors: `Transient` if the response breaks off; `Final` if the body exceeds `bytes_max`.
    pub async fn whole(&mut self, what: &str, bytes_max: usize) -> Result<Vec<u8>, AttemptFailure> {
        let mut body = Vec::new();
        while let Some(bytes) = self.chunk().await? {
            if body.len() + bytes.len() > bytes_max {
                return Err(unusable(&self.url, what, &format!("it is longer than {bytes_max} bytes")));
            }
            body.extend_from_slice(&bytes);
        }
        Ok(body)
    }

    /// Returns the host's explanation of a refusal, from the hub's header or from `error` in a JSON body.
    async fn explanation(mut self) -> String {
        let header = self.header(HeaderName::from_static("x-error-message"));
        let text = match header {
            Some(text) => text,
            None => {
                let body = self.whole("", EXPLANATION_BYTES_MAX).await.unwrap_or_default();
                let json: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
                json.and_then(|json| json.get("error")?.as_str().map(str::to_owned)).unwrap_or_default()
            }
        };
        text.chars().filter(|c| !c.is_control()).take(SAYS_MAX).collect::<String>().trim().to_owned()
    }
}

/// Returns the failure for a response that another attempt would not change.
pub fn unusable(url: &Url, what: &str, reason: &str) -> AttemptFailure {
    AttemptFailure::Final(DownloadError::Answer { host: host(url), what: what.to_owned(), reason: reason.to_owned() })
}

/// Returns the host of a URL, for messages.
pub fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or("?");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Number of failed attempts since the last progress.
#[derive(Debug, Default)]
pub struct Attempts(u32);

impl Attempts {
    /// Resets the count after progress.
    pub fn progressed(&mut self) {
        self.0 = 0;
    }

    /// Waits until the next attempt is due.
    ///
    /// Errors: the failure itself if it is final; `Broken` after the last attempt.
    pub async fn again(&mut self, failure: AttemptFailure, host: &str, what: &str) -> Result<(), DownloadError> {
        let (reason, pause) = match failure {
            AttemptFailure::Final(error) => return Err(error),
            AttemptFailure::Transient { reason, pause } => (reason, pause),
        };
        self.0 += 1;
        if self.0 >= ATTEMPTS_MAX {
            let (host, what) = (host.to_owned(), what.to_owned());
            return Err(DownloadError::Broken { host, what, reason, n_attempts: self.0 });
        }
        let pause = pause.unwrap_or(PAUSE * 2_u32.pow(self.0 - 1)).min(PAUSE_MAX);
        warn!(host, what, reason, pause_s = pause.as_secs_f64(), "a download failed and will be retried");
        tokio::time::sleep(pause).await;
        Ok(())
    }
}
