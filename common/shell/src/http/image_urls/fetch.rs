//! Fetching one image: address lookup, redirects, and checks of the response.
//!
//! The connection goes to the address that was looked up and checked here, which rules out DNS rebinding. Proxies of
//! the environment are not used, because they resolve names themselves.
//!
//! Not here: which hosts and addresses are allowed (`hosts`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use rustls::pki_types::ServerName;
use tokio::time::timeout;
use tower::Service as _;
use url::Url;
use warmpath_common::media::ImageFormat;

use super::ImageUrls;
use super::hosts::{address_of, allows_address, allows_url};
use super::places::{FetchedImage, WantedImage};
use crate::http::body::{BodyError, Claim};
use crate::http::refusal::Refusal;
use crate::net::connect::{ConnectError, Connection, Connector, Secured};

/// Most redirects of a file. Source: own choice: shortened links and storage of CDNs take one or two.
const REDIRECTS_MAX: usize = 3;

/// Longest time to connect. Source: own choice: it leaves time for another address of the host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Most addresses of a host that are tried. Source: own choice: one of each kind, and another.
const ADDRESSES_MAX: usize = 3;

/// Memory for each byte of a file: the file, and its base64 in the parsed and in the new body.
const COPIES: usize = 4;

/// Reason why an image is not fetched, in words for the client.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("the image's URL cannot be read")]
    Url,
    #[error("images are not fetched from {host}: send a data URL, or ask the operator for --image-url-host")]
    Host { host: String },
    #[error("images are not fetched from {host}: its address is not public, and not listed by --image-url-host")]
    Address { host: String },
    #[error("the image cannot be fetched: {host} cannot be reached")]
    Away {
        host: String,
        #[source]
        source: Option<ConnectError>,
    },
    #[error("the image cannot be fetched: {host} answers {status}")]
    Status { host: String, status: StatusCode },
    #[error("the image cannot be fetched: {host} answers no valid HTTP")]
    Broken {
        host: String,
        #[source]
        source: hyper::Error,
    },
    #[error("the image cannot be fetched: {host} redirects without an address that can be used")]
    Target { host: String },
    #[error("the image cannot be fetched: it is redirected more than {REDIRECTS_MAX} times")]
    Redirects,
    #[error("the image cannot be fetched: it has not arrived in time")]
    Late,
    #[error("the image at {host} is longer than {bytes_max} bytes")]
    Long { host: String, bytes_max: usize },
    #[error("the file at {host} is not a PNG, JPEG, WebP or GIF")]
    Kind { host: String },
    #[error(transparent)]
    Room(#[from] BodyError),
}

impl ImageUrls {
    /// Returns an image under its URL; `None` for one in the history that cannot be fetched.
    ///
    /// Errors: `Body`, `Field`.
    pub(super) async fn fetch(
        self: Arc<Self>,
        image: WantedImage,
        mut claim: Claim,
    ) -> Result<Option<(String, FetchedImage)>, Refusal> {
        let WantedImage { url, param, is_new } = image;
        let result = timeout(self.limits.file_timeout, self.file(&url, &mut claim)).await;
        match result.unwrap_or(Err(FetchError::Late)) {
            Ok((kind, file)) => Ok(Some((url, FetchedImage { kind, base64: STANDARD.encode(file), _claim: claim }))),
            Err(FetchError::Room(error)) => Err(error.into()),
            Err(error) => {
                tracing::info!(error = crate::chain(&error), is_new, "an image was not fetched");
                if !is_new {
                    return Ok(None);
                }
                Err(Refusal::field(param, error.to_string()))
            }
        }
    }

    /// Returns a file's media type and its bytes.
    async fn file(&self, url: &str, claim: &mut Claim) -> Result<(&'static str, Vec<u8>), FetchError> {
        let mut url = Url::parse(url).map_err(|_| FetchError::Url)?;
        for _ in 0..=REDIRECTS_MAX {
            let response = self.get(&url).await?;
            let (host, status) = (name_of(&url), response.status());
            if status.is_redirection() {
                url = target(&url, response.headers().get(header::LOCATION)).ok_or(FetchError::Target { host })?;
                continue;
            }
            if status != StatusCode::OK {
                return Err(FetchError::Status { host, status });
            }
            let file = self.body(response.into_body(), &host, claim).await?;
            // Servers often declare another type.
            let format = ImageFormat::of(&file).ok_or(FetchError::Kind { host })?;
            return Ok((format.media_type(), file));
        }
        Err(FetchError::Redirects)
    }

    async fn get(&self, url: &Url) -> Result<Response<Incoming>, FetchError> {
        let host = name_of(url);
        let connection = self.connect(url, &host).await?;
        let broken = |source| FetchError::Broken { host: host.clone(), source };
        let (mut sender, driver) = http1::handshake(connection).await.map_err(broken)?;
        // The task ends with the response, or when the response is dropped.
        tokio::spawn(driver);
        let request = Request::get(&url[url::Position::BeforePath..url::Position::AfterQuery])
            .header(header::HOST, &host)
            .header(header::USER_AGENT, concat!("warmpath/", env!("CARGO_PKG_VERSION")))
            .header(header::ACCEPT, "image/*")
            .body(Empty::<Bytes>::new());
        sender.send_request(request.map_err(|_| FetchError::Url)?).await.map_err(broken)
    }

    /// Returns a connection to a checked address of the URL's host.
    async fn connect(&self, url: &Url, host: &str) -> Result<Connection, FetchError> {
        if !allows_url(&self.hosts, url) {
            return Err(FetchError::Host { host: host.to_owned() });
        }
        let tls = (url.scheme() == "https").then(|| self.secured(url)).transpose()?;
        let mut connector = Connector::new(tls, CONNECT_TIMEOUT);
        let mut source = None;
        for address in self.addresses(url, host).await?.into_iter().take(ADDRESSES_MAX) {
            // The connector takes an address from a URI of any scheme.
            let uri = format!("http://{address}/").parse::<Uri>().map_err(|_| FetchError::Url)?;
            match connector.call(uri).await {
                Ok(connection) => return Ok(connection),
                Err(error) => source = Some(error),
            }
        }
        Err(FetchError::Away { host: host.to_owned(), source })
    }

    fn secured(&self, url: &Url) -> Result<Secured, FetchError> {
        let name = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(name).map_err(|_| FetchError::Url)?;
        Ok(Secured { config: Arc::clone(&self.tls), name })
    }

    /// Returns the allowed addresses of a URL's host, at least one.
    async fn addresses(&self, url: &Url, host: &str) -> Result<Vec<SocketAddr>, FetchError> {
        let (Some(named), Some(port)) = (url.host(), url.port_or_known_default()) else { return Err(FetchError::Url) };
        let addresses: Vec<SocketAddr> = match (address_of(&named), named) {
            (Some(address), _) => vec![(address, port).into()],
            (None, name) => {
                let looked_up = tokio::net::lookup_host((name.to_string(), port)).await;
                looked_up.map_err(|_| FetchError::Away { host: host.to_owned(), source: None })?.collect()
            }
        };
        let allowed_addresses: Vec<_> =
            addresses.into_iter().filter(|address| allows_address(&self.hosts, *address)).collect();
        if allowed_addresses.is_empty() {
            Err(FetchError::Address { host: host.to_owned() })
        } else {
            Ok(allowed_addresses)
        }
    }

    async fn body(&self, mut body: Incoming, host: &str, claim: &mut Claim) -> Result<Vec<u8>, FetchError> {
        let mut file = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|source| FetchError::Broken { host: host.to_owned(), source })?;
            let Ok(data) = frame.into_data() else { continue };
            if file.len() + data.len() > self.limits.bytes_max {
                return Err(FetchError::Long { host: host.to_owned(), bytes_max: self.limits.bytes_max });
            }
            claim.grow(COPIES * data.len())?;
            file.extend_from_slice(&data);
        }
        Ok(file)
    }
}

/// Returns the target of a redirect; `None` if there is none that can be fetched, or if it leaves TLS.
fn target(from: &Url, location: Option<&HeaderValue>) -> Option<Url> {
    let next = from.join(location?.to_str().ok()?).ok()?;
    let is_as_safe = next.scheme() == "https" || (next.scheme() == "http" && from.scheme() == "http");
    is_as_safe.then_some(next)
}

/// Returns a URL's host and port, as in a `Host` header.
fn name_of(url: &Url) -> String {
    url[url::Position::BeforeHost..url::Position::AfterPort].to_owned()
}
