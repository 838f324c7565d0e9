//! TLS on both sides of a connection, from PEM files that may be renewed.
//!
//! The listener is in `listen`.
//!
//! Certificates are read again when their files change, so that they can be renewed while responses are running; a
//! connection keeps the certificates with which it started. Invalid files change nothing.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use clap::Args;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::files::{self, FileFailure};

/// Flags of a TLS server.
#[derive(Debug, Clone, Args)]
pub struct TlsFlags {
    /// PEM file of the server's certificate, with the intermediate certificates; read again when it changes.
    #[arg(long, env = "WARMPATH_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// PEM file of that certificate's private key.
    #[arg(long, env = "WARMPATH_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// PEM file of the root certificates for client certificates (a router is a client of its workers); without it no
    /// client certificate is required.
    #[arg(long, env = "WARMPATH_TLS_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl TlsFlags {
    /// Returns the files; absent if TLS is not configured.
    pub fn files(self) -> Option<ServerFiles> {
        let own_files = CertFiles::of(self.tls_cert, self.tls_key)?;
        Some(ServerFiles { own: own_files, client_ca: self.tls_client_ca })
    }
}

/// Files of a TLS server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// Its certificate and private key.
    pub own: CertFiles,
    /// Roots of the certificates that clients must present; absent if clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// Files of a TLS client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Roots of the certificates that servers must present; absent for the system's roots.
    pub ca: Option<PathBuf>,
    /// Certificate and key for servers that ask for one.
    pub own: Option<CertFiles>,
}

/// Files of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertFiles {
    /// Certificate, with the intermediate certificates.
    pub cert: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
}

impl CertFiles {
    /// Returns the files if both are given; `clap` ensures that neither is given alone.
    pub fn of(cert: Option<PathBuf>, key: Option<PathBuf>) -> Option<Self> {
        cert.zip(key).map(|(cert, key)| Self { cert, key })
    }
}

/// Reason why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("{path} cannot be used", path = .path.display())]
    File {
        /// File.
        path: PathBuf,
        /// Reason.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// A file has no certificate.
    #[error("{path} contains no certificate", path = .path.display())]
    NoCertificate {
        /// File.
        path: PathBuf,
    },
    /// Certificate and key do not match, or cannot be used.
    #[error("the certificate cannot be used with the key")]
    Pair(#[source] rustls::Error),
    /// The verifier of client certificates cannot be built.
    #[error("the certificates for clients cannot be used")]
    Clients(#[source] rustls::server::VerifierBuilderError),
    /// A root cannot be used.
    #[error("{path} contains no certificate that can be a root", path = .path.display())]
    Root {
        /// File.
        path: PathBuf,
        /// Reason.
        #[source]
        source: rustls::Error,
    },
}

impl CertFiles {
    fn read(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let key = PrivateKeyDer::from_pem_file(&self.key);
        let key = key.map_err(|source| TlsError::File { path: self.key.clone(), source })?;
        Ok((certificates(&self.cert)?, key))
    }

    fn paths(&self) -> [PathBuf; 2] {
        [self.cert.clone(), self.key.clone()]
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |source| TlsError::File { path: path.to_owned(), source };
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<_, _>>).map_err(file)?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(certificates)
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|source| TlsError::Root { path: path.to_owned(), source })?;
    }
    Ok(roots)
}

/// Configuration with the certificates of files; it dereferences to the one in force.
pub struct Current<C> {
    config: ArcSwap<C>,
    /// Content of the files at the first read; absent for a file that could not be read.
    contents: Vec<Option<Vec<u8>>>,
}

impl<C> fmt::Debug for Current<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The content of keys must not be logged.
        f.debug_struct("Current").finish_non_exhaustive()
    }
}

impl<C> Deref for Current<C> {
    type Target = ArcSwap<C>;

    fn deref(&self) -> &ArcSwap<C> {
        &self.config
    }
}

impl<C> Current<C> {
    /// Returns the first configuration that `read_config` makes of the files.
    fn open(paths: &[PathBuf], read_config: impl FnOnce() -> Result<C, TlsError>) -> Result<Arc<Self>, TlsError> {
        // Before `read_config`: if a file changes in between, `follow` reads it again.
        let contents_read = contents(paths);
        Ok(Arc::new(Self { config: ArcSwap::from_pointee(read_config()?), contents: contents_read }))
    }

    /// Calls `read_config` whenever the content of a file has changed, since `open` at first.
    async fn follow(
        &self,
        paths: &[PathBuf],
        read_config: impl Fn() -> Result<C, TlsError>,
        mut on_failure: impl FnMut(),
    ) {
        let mut known_contents = self.contents.clone();
        let poll = || {
            let now = contents(paths);
            if now != known_contents {
                self.config.store(Arc::new(read_config()?));
                tracing::info!(first = ?paths.first(), "certificates were read again");
                known_contents = now;
            }
            Ok::<_, TlsError>(())
        };
        let report = |FileFailure { reason, is_new }| {
            on_failure();
            if is_new {
                // One of the files may not be written yet.
                tracing::warn!(%reason, "certificates cannot be used; the last ones stay in force");
            }
        };
        files::watch(poll, report).await;
    }
}

fn contents(paths: &[PathBuf]) -> Vec<Option<Vec<u8>>> {
    paths.iter().map(|path| std::fs::read(path).ok()).collect()
}

/// Current configuration of a server, loaded for each connection.
pub type CurrentServer = Arc<Current<ServerConfig>>;

impl ServerFiles {
    /// Returns the configuration with the certificates in the files.
    ///
    /// Errors: every [`TlsError`]; `Root` and `Clients` only if roots are given.
    pub fn open(&self) -> Result<CurrentServer, TlsError> {
        Current::open(&self.paths(), || self.read())
    }

    /// Follows the files for as long as the future is polled.
    pub async fn watch(self, current: CurrentServer, on_failure: impl FnMut()) {
        current.follow(&self.paths(), || self.read(), on_failure).await;
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.own.paths().into_iter().chain(self.client_ca.clone()).collect()
    }

    fn read(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Pair)?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path)?), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(TlsError::Clients)?)
            }
        };
        let (cert, key) = self.own.read()?;
        let mut config = builder.with_single_cert(cert, key).map_err(TlsError::Pair)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Current configuration of a client, loaded for each connection.
pub type CurrentClient = Arc<Current<ClientConfig>>;

impl ClientFiles {
    /// Returns the configuration with the certificates in the files.
    ///
    /// Errors: every [`TlsError`] except `Clients`.
    pub fn open(&self) -> Result<CurrentClient, TlsError> {
        Current::open(&self.paths(), || self.read())
    }

    /// Follows the files for as long as the future is polled.
    pub async fn watch(self, current: CurrentClient, on_failure: impl FnMut()) {
        current.follow(&self.paths(), || self.read(), on_failure).await;
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.own.iter().flat_map(CertFiles::paths).chain(self.ca.clone()).collect()
    }

    fn read(&self) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Pair)?;
        let roots = self.ca.as_deref().map_or_else(|| Ok(system_roots()), roots)?;
        let builder = builder.with_root_certificates(roots);
        let mut config = match &self.own {
            None => builder.with_no_client_auth(),
            Some(own_files) => {
                let (cert, key) = own_files.read()?;
                builder.with_client_auth_cert(cert, key).map_err(TlsError::Pair)?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A resumed session would be trusted even if its root has been removed.
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

/// Returns the roots of the system; if there are none, no server is trusted.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// Writes a new certificate with its key.
    fn renew(files: &CertFiles) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let cert = params.self_signed(&key).expect("a certificate");
        std::fs::write(&files.cert, cert.pem()).expect("it can be written");
        std::fs::write(&files.key, key.serialize_pem()).expect("it can be written");
    }

    #[tokio::test(start_paused = true)]
    async fn certificates_that_were_renewed_before_the_watch_began_are_read_and_unchanged_ones_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = CertFiles { cert: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
        renew(&own);
        let server = ServerFiles { own, client_ca: None };
        let current = server.open().expect("they fit");
        let opened = current.load_full();
        let watch = async || {
            let watched = server.clone().watch(Arc::clone(&current), || panic!("they fit"));
            tokio::time::timeout(2 * files::POLL_PAUSE, watched).await.expect_err("it never ends");
            current.load_full()
        };
        assert!(Arc::ptr_eq(&opened, &watch().await));
        renew(&server.own);
        assert!(!Arc::ptr_eq(&opened, &watch().await));
    }
}
