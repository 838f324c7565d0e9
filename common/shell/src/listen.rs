//! The listener: TLS where it is asked for, and no patience for slow heads.
//!
//! Not here: what is served, the certificates (`tls`), the router's admin listener, which is for a network of the operator's own.

use std::net::SocketAddr;
use std::time::Duration;

use axum_server::Handle;
use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::RustlsAcceptor;
use hyper_util::rt::TokioTimer;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::tls::RustlsConfig;

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
        tracing::error!(%error, "the listener failed");
    }
}
