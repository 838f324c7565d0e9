//! Opens connections for hyper's client: plain, or by TLS with the certificates that are in force at that moment.
//!
//! Not here: to whom and why. The idea: a handshake that fails is told apart from a host that cannot be reached, and what
//! speaks no TLS at all is named.

use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Uri;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::Service;

use crate::tls::CurrentClient;

/// Says why no connection came about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody takes the connection.
    #[error("it cannot be reached")]
    Tcp(#[source] Box<dyn StdError + Send + Sync>),
    /// What takes it speaks no TLS.
    #[error("it speaks no TLS, and its URL says https")]
    PlainText,
    /// The handshake failed.
    #[error("TLS with it failed")]
    Tls(#[source] io::Error),
    /// It took too long.
    #[error("no connection within {} s", .0.as_secs_f64())]
    Late(Duration),
}

impl ConnectError {
    /// Returns whether a connection came about that could not be secured.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::PlainText | Self::Tls(_))
    }
}

/// Opens connections to one host.
#[derive(Clone)]
pub struct Connector {
    http: HttpConnector,
    tls: Option<Secured>,
    timeout: Duration,
}

/// Is how connections are secured.
#[derive(Clone)]
pub struct Secured {
    /// Is what is spoken.
    pub config: CurrentClient,
    /// Is the name that the host's certificate must bear.
    pub name: ServerName<'static>,
}

impl Connector {
    /// Returns what opens connections, TLS included, within `timeout`; in plain text where `tls` is absent.
    pub fn new(tls: Option<Secured>, timeout: Duration) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(timeout));
        Self { http, tls, timeout }
    }
}

type Connection = MaybeHttpsStream<TokioIo<TcpStream>>;

impl Service<Uri> for Connector {
    type Response = Connection;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Connection, ConnectError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.http.poll_ready(cx).map_err(|error| ConnectError::Tcp(error.into()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (tcp, tls, timeout) = (self.http.call(uri), self.tls.clone(), self.timeout);
        let connect = async move {
            let stream = tcp.await.map_err(|error| ConnectError::Tcp(error.into()))?;
            let Some(Secured { config, name }) = tls else { return Ok(MaybeHttpsStream::Http(stream)) };
            let connector = TlsConnector::from(Arc::clone(&config.load()));
            let secured = connector.connect(name, TokioIo::new(stream)).await.map_err(failed_handshake)?;
            Ok(MaybeHttpsStream::from(secured))
        };
        Box::pin(async move { tokio::time::timeout(timeout, connect).await.map_err(|_| ConnectError::Late(timeout))? })
    }
}

fn failed_handshake(error: io::Error) -> ConnectError {
    let reason = error.get_ref().and_then(|reason| reason.downcast_ref::<rustls::Error>());
    match reason {
        Some(rustls::Error::InvalidMessage(_)) => ConnectError::PlainText,
        _ => ConnectError::Tls(error),
    }
}
