//! What router and worker set up alike before they serve: the address, and the files that their flags name alike.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prometheus::IntCounter;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::fleet_token::{FleetTokens, TokenError};
use crate::http::image_urls::{ImageHost, ImageUrls};
use crate::net::tls::{CurrentServer, ServerFiles, TlsError};
use crate::telemetry::trace::export::TraceError;

/// Reason why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// TLS for clients cannot be set up.
    #[error("--tls-cert, --tls-key, --tls-client-ca")]
    Tls(#[source] TlsError),
    /// TLS for the hosts of images cannot be set up.
    #[error("--image-url-host")]
    ImageTls(#[source] TlsError),
    /// The file of the fleet's tokens cannot be used.
    #[error("--fleet-token-file {path}", path = .path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: TokenError,
    },
    /// Traces cannot be sent.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Binds an address; returns the listener and the address with its port.
///
/// Errors: `Listen`.
pub async fn bind_address(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServerError> {
    let refuse = |source| ServerError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(refuse)?;
    let address = listener.local_addr().map_err(refuse)?;
    Ok((listener, address))
}

/// Content of the files of a server; `None` where its flags name none.
pub struct ServerResources {
    /// TLS with clients.
    pub tls: Option<CurrentServer>,
    /// The fleet's tokens.
    pub tokens: Option<Arc<FleetTokens>>,
    /// Fetcher of images, which trusts the system's root certificates.
    pub image_urls: Option<Arc<ImageUrls>>,
    tls_files: Option<ServerFiles>,
    token_file: Option<PathBuf>,
}

impl ServerResources {
    /// Reads the files.
    ///
    /// Errors: `Tls`, `Token`, `ImageTls`.
    pub fn open(
        tls_files: Option<&ServerFiles>,
        token_file: Option<&Path>,
        image_hosts: &[ImageHost],
    ) -> Result<Self, ServerError> {
        let open_tokens = |path: &Path| {
            FleetTokens::open(path).map(Arc::new).map_err(|source| ServerError::Token { path: path.into(), source })
        };
        Ok(Self {
            tls: tls_files.map(ServerFiles::open).transpose().map_err(ServerError::Tls)?,
            tokens: token_file.map(open_tokens).transpose()?,
            image_urls: ImageUrls::open(image_hosts).map_err(ServerError::ImageTls)?,
            tls_files: tls_files.cloned(),
            token_file: token_file.map(PathBuf::from),
        })
    }

    /// Follows changes of the files for as long as the tasks run, and counts failed reads.
    pub fn watch(&self, tls_failures: &IntCounter, token_failures: &IntCounter, tasks: &mut JoinSet<()>) {
        if let (Some(files), Some(tls)) = (self.tls_files.clone(), self.tls.clone()) {
            let failures = tls_failures.clone();
            tasks.spawn(async move { files.watch(tls, || failures.inc()).await });
        }
        if let (Some(path), Some(tokens)) = (self.token_file.clone(), self.tokens.clone()) {
            let failures = token_failures.clone();
            tasks.spawn(async move { tokens.watch(path, || failures.inc()).await });
        }
    }
}
