//! The listener: HTTP/1.1 over TCP, optionally TLS, and limits on the cost of connections.
//!
//! The routes come from router and worker; certificates are in `tls`, and the choice of the displaced connection is in
//! `connections`.
//!
//! A client that makes the server wait is disconnected after the head timeout. At the limit of connections, a new
//! connection displaces the one whose client has been silent for longest, so silent clients never lock others out.

mod connections;
mod path;
mod watched;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use clap::Args;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use self::connections::{Accepted, Seat};
use self::watched::{Download, Upload};
use crate::net::hosts::{self, AllowedHosts, HostError};
use crate::net::reader_timeout::ReadConnection;
use crate::net::tls::CurrentServer;
use crate::process::descriptors;

pub use self::connections::Connections;

/// Longest head of a request to a router or an admin address. Units: bytes.
///
/// Source: nginx's default, four buffers of 8 KiB. 16,384 unfinished heads, one a connection, take 512 MiB.
pub const HEAD_BYTES_MAX: usize = 32 << 10;

/// Longest head of a request to a worker. A router adds fields to a client's head, and its worker must not refuse the
/// result. Units: bytes.
pub const WORKER_HEAD_BYTES_MAX: usize = 2 * HEAD_BYTES_MAX;

/// Share of a head's limit for each of its fields. Units: bytes. Source: own choice: browsers send twenty fields of 50
/// to 500 bytes; a router accepts 128, and a worker 256.
const FIELD_BYTES: usize = 256;

/// Pause after a failure to accept a connection.
///
/// Source: own choice: by then a connection may have ended and freed a file descriptor; health probes wait for at least
/// a second.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time in which a displaced connection may send the rest of a response.
///
/// Source: own choice: the response is complete, and most of the time the system already has it.
const DISPLACED_TIMEOUT: Duration = Duration::from_millis(250);

/// Response to a connection above the limit.
static REFUSAL: LazyLock<String> = LazyLock::new(|| {
    let error = r#"{"error":{"message":"there are too many connections","type":"unavailable_error","param":null,"code":"connections_full"}}"#;
    let head =
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close";
    format!("{head}\r\ncontent-length: {}\r\n\r\n{error}", error.len())
});

/// Flags of the listener for clients.
#[derive(Debug, Clone, Args)]
pub struct ListenFlags {
    /// Most connections of clients at a time; a further connection displaces the one that has been silent for longest,
    /// or gets status 503 [default: what the limit on open files allows, at most 16384].
    #[arg(long, env = "WARMPATH_CONNECTIONS_MAX", value_name = "N")]
    connections_max: Option<NonZeroUsize>,

    /// Host name or address by which clients may address this server, in addition to the machine's own names, or * for
    /// all; may be repeated, or a list with commas. By default a server on a loopback address accepts no further names,
    /// and a server on another address accepts all.
    #[arg(long = "allowed-host", env = "WARMPATH_ALLOWED_HOST", value_name = "HOST", value_delimiter = ',')]
    allowed_hosts: Vec<String>,

    /// Host name by which operators may address the admin listener, in addition to addresses, localhost and the names
    /// of --allowed-host, or * for all; may be repeated, or a list with commas.
    #[arg(
        long = "admin-allowed-host",
        env = "WARMPATH_ADMIN_ALLOWED_HOST",
        value_name = "HOST",
        value_delimiter = ','
    )]
    admin_allowed_hosts: Vec<String>,
}

impl ListenFlags {
    /// Returns the most connections of clients at a time.
    ///
    /// Reads: the limit on open files.
    pub fn connections_max(&self) -> usize {
        self.connections_max.map_or_else(descriptors::connections_max, NonZeroUsize::get)
    }

    /// Returns the names by which clients may address a server that listens at `listen`.
    ///
    /// Errors: a name is invalid.
    pub fn allowed_hosts(&self, listen: SocketAddr) -> Result<AllowedHosts, HostError> {
        AllowedHosts::of_clients(&self.allowed_hosts, listen)
    }

    /// Returns the names by which operators may address the admin listener.
    ///
    /// Errors: a name is invalid.
    pub fn admin_allowed_hosts(&self) -> Result<AllowedHosts, HostError> {
        let of_clients = self.allowed_hosts.iter().filter(|name| *name != hosts::ANY);
        AllowedHosts::of_operators(&self.admin_allowed_hosts.iter().chain(of_clients).cloned().collect::<Vec<_>>())
    }
}

/// Address of a request's client; an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddress(pub IpAddr);

/// Settings between the network and a listener's routes.
#[derive(Clone)]
pub struct ListenerOptions {
    /// Certificates of the TLS server; absent for plain text.
    pub tls: Option<CurrentServer>,
    /// Time in which a client must send a request's head, including idle time before it.
    pub head_timeout: Duration,
    /// Longest head of a request, and length of a connection's read buffer. Units: bytes.
    pub head_bytes_max: usize,
    /// Time in which a client must read some bytes of a response that waits for it.
    pub reader_timeout: Duration,
    /// Open connections.
    pub connections: Arc<Connections>,
}

/// Serves clients until `stop_signal` is true, and then until the last response has ended.
pub async fn serve(
    listener: TcpListener,
    routes: axum::Router,
    options: ListenerOptions,
    stop_signal: watch::Receiver<bool>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(options.head_timeout);
    http.max_header_size(options.head_bytes_max).max_headers(options.head_bytes_max / FIELD_BYTES);
    // After a long body hyper keeps a read buffer of this length, by default 408 KiB, until the connection ends. Bodies
    // arrive as fast with short reads: over loopback 16 MiB took no longer in reads of 32 KiB than of 408 KiB.
    http.max_buf_size(options.head_bytes_max);
    let mut connections = JoinSet::new();
    let mut is_failing = false;
    loop {
        let stream_result = tokio::select! {
            stream_result = listener.accept() => stream_result,
            Some(_) = connections.join_next() => continue,
            () = stop(stop_signal.clone()) => break,
        };
        match stream_result {
            Ok((stream, peer)) => {
                is_failing = false;
                let Some(seat) = admit(&options, &stream, peer) else { continue };
                let service = Served { http: http.clone(), routes: routes.clone(), options: options.clone(), seat };
                connections.spawn(service.connection(stream, stop_signal.clone()));
            }
            Err(error) => {
                if !is_failing {
                    tracing::error!(%error, "connections cannot be accepted");
                }
                is_failing = true;
                // No file descriptor is left: displacing a silent client frees one.
                options.connections.displace_one();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Returns once `stop_signal` is true or its sender is gone.
async fn stop(mut stop_signal: watch::Receiver<bool>) {
    let _ = stop_signal.wait_for(|stop_signal| *stop_signal).await;
}

/// Returns the seat of a new connection, if the limits allow one.
fn admit(options: &ListenerOptions, stream: &TcpStream, peer: SocketAddr) -> Option<Arc<Seat>> {
    match Connections::enter(&options.connections, peer.ip()) {
        Accepted::Seat(seat) => Some(Arc::new(seat)),
        Accepted::Full => {
            if options.tls.is_none() {
                // Received bytes are read first: with unread bytes the system would discard the refusal. Errors are
                // ignored, because the connection is closed anyway.
                let _ = stream.try_read(&mut [0; 4096]);
                let _ = stream.try_write(REFUSAL.as_bytes());
            }
            None
        }
    }
}

/// One connection with the routes and limits that serve it.
struct Served {
    http: http1::Builder,
    routes: axum::Router,
    options: ListenerOptions,
    seat: Arc<Seat>,
}

impl Served {
    async fn connection(self, stream: TcpStream, stop_signal: watch::Receiver<bool>) {
        let stream = ReadConnection::open(stream, self.options.reader_timeout);
        match &self.options.tls {
            None => self.requests(stream, stop_signal).await,
            Some(config) => {
                let handshake = TlsAcceptor::from(config.load_full()).accept(stream);
                let stream = tokio::select! {
                    stream = tokio::time::timeout(self.options.head_timeout, handshake) => stream,
                    () = self.seat.displaced() => return,
                    () = stop(stop_signal.clone()) => return,
                };
                if let Ok(Ok(stream)) = stream {
                    self.requests(stream, stop_signal).await;
                }
            }
        }
    }

    async fn requests<I: AsyncRead + AsyncWrite + Unpin>(self, stream: I, stop_signal: watch::Receiver<bool>) {
        let Self { http, routes, seat, .. } = self;
        let service = service_fn(|request| answer(routes.clone(), &seat, request));
        let connection = http.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        // An error means that the client is gone, late, or does not speak HTTP/1.1; such a client gets no response.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = seat.displaced() => {
                if seat.has_answered() {
                    connection.as_mut().graceful_shutdown();
                    let _ = tokio::time::timeout(DISPLACED_TIMEOUT, connection).await;
                }
                return;
            }
            () = stop(stop_signal) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// Answers one request, and records whether the server waits for the client to send something. A response that comes
/// before the whole request is read, such as 401, still reaches its client.
async fn answer(
    routes: axum::Router,
    seat: &Arc<Seat>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (mut request, unread) = Upload::within(request, seat);
    path::clean(request.uri_mut());
    request.extensions_mut().insert(ClientAddress(seat.address()));
    let mut response = routes.oneshot(request).await?;
    if !unread.discard(seat).await {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response.map(|body| Body::new(Download::new(body, Arc::clone(seat)))))
}

#[cfg(test)]
mod tests;
