//! TLS on both sides of a connection, from PEM files that may be renewed.
//!
//! Not here: the listener (`listen`), who is connected to. The idea: certificates are read again when their files change, so
//! that they can be renewed under running answers; a connection keeps those with which it began. Files that are wrong change
//! nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use clap::Args;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::files::{self, Failure};

/// Is the flags of a TLS server.
#[derive(Debug, Clone, Args)]
pub struct TlsFlags {
    /// PEM file of the certificate with which TLS is spoken, and of those between it and a root; read again when it changes.
    #[arg(long, env = "WARMPATH_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// PEM file of that certificate's private key.
    #[arg(long, env = "WARMPATH_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// PEM file of the roots of the certificates that clients must show (a router is one to its workers); without it they need none.
    #[arg(long, env = "WARMPATH_TLS_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl TlsFlags {
    /// Returns the files; absent where TLS is not spoken.
    pub fn files(self) -> Option<ServerFiles> {
        let own = CertFiles::of(self.tls_cert, self.tls_key)?;
        Some(ServerFiles { own, client_ca: self.tls_client_ca })
    }
}

/// Is the files of a TLS server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// Is its certificate, and its key.
    pub own: CertFiles,
    /// Holds the roots of the certificates that clients must show; absent where they need none.
    pub client_ca: Option<PathBuf>,
}

/// Is the files of a TLS client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Holds the roots of the certificates that servers must show; absent for the system's.
    pub ca: Option<PathBuf>,
    /// Is the certificate that is shown to servers that ask for one, and its key.
    pub own: Option<CertFiles>,
}

/// Is the files of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertFiles {
    /// Holds the certificate, and those between it and a root.
    pub cert: PathBuf,
    /// Holds the certificate's private key.
    pub key: PathBuf,
}

impl CertFiles {
    /// Returns the files where there are any: `clap` sees to it that certificate and key come together.
    pub fn of(cert: Option<PathBuf>, key: Option<PathBuf>) -> Option<Self> {
        cert.zip(key).map(|(cert, key)| Self { cert, key })
    }
}

/// Says why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is no PEM.
    #[error("{path} cannot be used", path = .path.display())]
    File {
        /// Is the file.
        path: PathBuf,
        /// Says why.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// A file holds no certificate.
    #[error("{path} holds no certificate", path = .path.display())]
    NoCertificate {
        /// Is the file.
        path: PathBuf,
    },
    /// Certificate and key do not fit together, or cannot be used.
    #[error("the certificate cannot be used with the key")]
    Pair(#[source] rustls::Error),
    /// No client could be verified.
    #[error("the certificates for clients cannot be used")]
    Clients(#[source] rustls::server::VerifierBuilderError),
    /// A root cannot be used.
    #[error("{path} holds no certificate that can be a root", path = .path.display())]
    Root {
        /// Is the file.
        path: PathBuf,
        /// Says why.
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

/// What a server speaks now, to be looked at for each connection.
pub type CurrentServer = Arc<ArcSwap<ServerConfig>>;

impl ServerFiles {
    /// Returns what is spoken with the certificates that the files hold.
    ///
    /// Errors: every [`TlsError`] but `Root` where no roots are given.
    pub fn open(&self) -> Result<CurrentServer, TlsError> {
        Ok(Arc::new(ArcSwap::from_pointee(self.read()?)))
    }

    /// Follows the files for as long as it is polled.
    pub async fn watch(self, config: CurrentServer, failed: impl FnMut()) {
        let paths = self.own.paths().into_iter().chain(self.client_ca.clone()).collect();
        let take = |new| config.store(Arc::new(new));
        follow(paths, || self.read().map(take), failed).await;
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

/// Is what a client speaks now, to be looked at for each connection.
pub type CurrentClient = Arc<ArcSwap<ClientConfig>>;

impl ClientFiles {
    /// Returns what is spoken to servers with the certificates that the files hold.
    ///
    /// Errors: every [`TlsError`] but `Clients`.
    pub fn open(&self) -> Result<CurrentClient, TlsError> {
        Ok(Arc::new(ArcSwap::from_pointee(self.read()?)))
    }

    /// Follows the files for as long as it is polled.
    pub async fn watch(self, config: CurrentClient, failed: impl FnMut()) {
        let own = self.own.iter().flat_map(CertFiles::paths);
        let paths = own.chain(self.ca.clone()).collect();
        follow(paths, || self.read().map(|new| config.store(Arc::new(new))), failed).await;
    }

    fn read(&self) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Pair)?;
        let roots = self.ca.as_deref().map_or_else(|| Ok(system_roots()), roots)?;
        let builder = builder.with_root_certificates(roots);
        let mut config = match &self.own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let (cert, key) = own.read()?;
                builder.with_client_auth_cert(cert, key).map_err(TlsError::Pair)?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A session that is resumed would be believed by roots that may be gone.
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

/// Returns the roots that the system has; none where it has none, and then no server is believed.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Reads anew whenever the content of files has changed.
async fn follow(paths: Vec<PathBuf>, read: impl Fn() -> Result<(), TlsError>, mut failed: impl FnMut()) {
    let contents = || paths.iter().map(|path| std::fs::read(path).ok()).collect::<Vec<_>>();
    let mut known = contents();
    let look = || {
        let now = contents();
        if now != known {
            read()?;
            tracing::info!(first = ?paths.first(), "certificates are read anew");
            known = now;
        }
        Ok::<_, TlsError>(())
    };
    let tell = |Failure { reason, is_new }| {
        failed();
        if is_new {
            // Perhaps one of the files is not yet written.
            tracing::warn!(%reason, "certificates cannot be used; the last ones stand");
        }
    };
    files::watch(look, tell).await;
}
