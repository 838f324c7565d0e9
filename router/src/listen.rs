//! The listener for clients: TLS where it is asked for, and no patience for slow heads.
//!
//! Not here: what is served (`http`), the admin listener, which is for a network of the operator's own.
//! The idea: certificates are read again when their files change, so that they can be renewed under running answers; a
//! connection keeps the one with which it began. Files that are wrong change nothing.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum_server::Handle;
use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use hyper_util::rt::TokioTimer;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::{TLS_FILES_PAUSE, TlsFiles};
use crate::fleet::subscriber::chain;
use crate::metrics::Metrics;

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
}

/// Returns what is spoken with the certificates that files hold.
///
/// Errors: every [`TlsError`].
fn read(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Pair)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(TlsError::Clients)?)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|source| TlsError::File { path: files.key.clone(), source })?;
    let mut config = builder.with_single_cert(certificates(&files.cert)?, key).map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
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

/// Returns what is spoken with the certificates that files hold, and follows the files.
///
/// Errors: every [`TlsError`].
pub fn tls(files: &TlsFiles, metrics: &Arc<Metrics>, tasks: &mut JoinSet<()>) -> Result<RustlsConfig, TlsError> {
    let config = RustlsConfig::from_config(Arc::new(read(files)?));
    tasks.spawn(watch(files.clone(), config.clone(), Arc::clone(metrics)));
    Ok(config)
}

async fn watch(files: TlsFiles, config: RustlsConfig, metrics: Arc<Metrics>) {
    let content = |files: &TlsFiles| {
        let paths = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()];
        paths.into_iter().flatten().map(|path| std::fs::read(path).ok()).collect::<Vec<_>>()
    };
    let mut known = content(&files);
    loop {
        tokio::time::sleep(TLS_FILES_PAUSE).await;
        let now = content(&files);
        if now == known {
            continue;
        }
        match read(&files) {
            Ok(new) => {
                config.reload_from_config(Arc::new(new));
                tracing::info!(cert = %files.cert.display(), "certificates are read anew");
                known = now;
            }
            // Perhaps one of the files is not yet written.
            Err(error) => {
                metrics.tls_failures.inc();
                tracing::warn!(reason = %chain(&error), "certificates cannot be used; the last ones stand");
            }
        }
    }
}

/// Serves clients until it is told to stop, and then until the last answer has ended.
pub async fn serve(
    listener: TcpListener,
    routes: axum::Router,
    (tls, head_timeout): (Option<RustlsConfig>, Duration),
    mut stopped: watch::Receiver<bool>,
) {
    let handle: Handle<SocketAddr> = Handle::new();
    let stopper = handle.clone();
    let stop = tokio::spawn(async move {
        // An error means that the server was dropped.
        let _ = stopped.wait_for(|stopped| *stopped).await;
        stopper.graceful_shutdown(None);
    });
    let mut server = axum_server::Server::from_listener(listener).handle(handle).http1_only();
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(head_timeout);
    let service = routes.into_make_service();
    let served = match tls {
        None => server.acceptor(NoDelayAcceptor::new()).serve(service).await,
        Some(config) => {
            server.acceptor(RustlsAcceptor::new(config).acceptor(NoDelayAcceptor::new())).serve(service).await
        }
    };
    stop.abort();
    if let Err(error) = served {
        tracing::error!(%error, "the listener for clients failed");
    }
}
