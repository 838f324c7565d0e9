//! Connections for hyper's client: plain, or with TLS and the certificates that are current at that moment.
//!
//! Targets are chosen by the callers.
//!
//! A failed handshake is distinguished from a host that cannot be reached, and a host that does not speak TLS is
//! reported as such. A connection remembers whether it has carried a response. If it breaks before that, the host has
//! failed; if it breaks later, it may only have been closed because of its age.

use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::{self, Connected, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::Service;

use crate::tls::CurrentClient;

/// Silence on a connection after which a keepalive probe is sent, and the pause between two probes.
///
/// Source: own choice: a few bytes a second for an idle connection; with `PROBES_MAX` a host that has vanished is
/// detected as soon as by the silence of a summary stream.
const KEEPALIVE: Duration = Duration::from_secs(1);

/// Unanswered keepalive probes after which a connection is closed.
const PROBES_MAX: u32 = 3;

/// Most bytes of a request during which the host must acknowledge sent data, if the host may read late. Units: bytes.
///
/// Source: half of the smallest initial window of a connection: 64 KiB on Linux, BSD and Windows, whether data is read
/// or not.
const SHORT_BYTES_MAX: usize = 32 << 10;

/// Reason for which no connection was established.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host cannot be reached.
    #[error("it cannot be reached")]
    Tcp(#[source] Box<dyn StdError + Send + Sync>),
    /// The host does not speak TLS.
    #[error("it speaks no TLS, and its URL says https")]
    PlainText,
    /// The handshake failed.
    #[error("TLS with it failed")]
    Tls(#[source] io::Error),
    /// The connection took too long.
    #[error("no connection within {} s", .0.as_secs_f64())]
    Late(Duration),
}

impl ConnectError {
    /// Returns whether a connection was established that could not be secured.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::PlainText | Self::Tls(_))
    }

    /// Returns whether the host accepts no connections, as far as the network reports; a shortage of resources on this
    /// machine is a different error.
    pub fn is_away(&self) -> bool {
        let Self::Tcp(error) = self else { return matches!(self, Self::Late(_)) };
        let mut cause: Option<&(dyn StdError + 'static)> = Some(&**error);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<io::Error>() {
                use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
                return matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable | TimedOut);
            }
            cause = error.source();
        }
        false
    }
}

/// Connector to one host.
#[derive(Clone)]
pub struct Connector {
    http: HttpConnector,
    tls: Option<Secured>,
    timeout: Duration,
    /// Patience for requests that fit into the host's window, if the host may read the rest late.
    patience_for_short: Option<Duration>,
}

/// TLS configuration of connections.
#[derive(Clone)]
pub struct Secured {
    /// Current configuration of the TLS client.
    pub config: CurrentClient,
    /// Name that the host's certificate must have.
    pub name: ServerName<'static>,
}

impl Connector {
    /// Returns a connector whose connections, TLS included, are established within `timeout`; in plain text if `tls` is
    /// absent.
    pub fn new(tls: Option<Secured>, timeout: Duration) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(timeout));
        http.set_keepalive(Some(KEEPALIVE));
        http.set_keepalive_interval(Some(KEEPALIVE));
        http.set_keepalive_retries(Some(PROBES_MAX));
        Self { http, tls, timeout, patience_for_short: None }
    }

    /// Closes connections if the host does not acknowledge sent data for this long; only for hosts that read all data
    /// at once.
    ///
    /// Source: tcp(7), `TCP_USER_TIMEOUT`. Linux also counts the time in which the host's window is full, so a server
    /// that reads a long request late, when its turn in a queue comes, would lose it.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience_for_short = None;
        self.set_patience(patience)
    }

    /// Does the same if the host may read a request late: only while the request fits into the host's window, so that
    /// the host's system acknowledges it whether it is read or not.
    pub fn with_patience_for_short(mut self, patience: Duration) -> Self {
        self.patience_for_short = Some(patience);
        self.set_patience(patience)
    }

    fn set_patience(mut self, patience: Duration) -> Self {
        #[cfg(target_os = "linux")]
        self.http.set_tcp_user_timeout(Some(patience));
        #[cfg(not(target_os = "linux"))]
        let _ = patience;
        self
    }
}

/// History of a connection; attached to the client's responses and errors.
#[derive(Debug, Clone, Default)]
pub struct Past(Arc<AtomicBool>);

impl Past {
    /// Records that a response has arrived.
    pub fn answered(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether a response has arrived.
    pub fn has_answered(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection to a host.
pub struct Connection {
    stream: MaybeHttpsStream<TokioIo<TcpStream>>,
    past: Past,
    /// Data of the current request; absent if the patience is constant.
    short: Option<Short>,
}

/// Sent bytes of one request, and the patience while they are few.
struct Short {
    patience: Duration,
    n_sent: usize,
    /// Whether the request may exceed the host's window, so that there is no time limit.
    is_long: bool,
    /// Whether a part of the response has arrived: data that is sent next belongs to another request.
    is_answered: bool,
}

impl Connection {
    fn tcp(&self) -> &TcpStream {
        match &self.stream {
            MaybeHttpsStream::Http(plain) => plain.inner(),
            MaybeHttpsStream::Https(secured) => secured.inner().get_ref().0.inner().inner(),
        }
    }

    /// Adapts the time limit to a request of which `n_bytes` more are about to be sent.
    fn about_to_send(&mut self, n_bytes: usize) {
        let Some(short) = &mut self.short else { return };
        let was_long = short.is_long;
        if std::mem::take(&mut short.is_answered) {
            (short.n_sent, short.is_long) = (0, false);
        }
        short.is_long |= short.n_sent.saturating_add(n_bytes) > SHORT_BYTES_MAX;
        let timeout = (!short.is_long).then_some(short.patience);
        if short.is_long != was_long {
            set_user_timeout(self.tcp(), timeout);
        }
    }

    fn sent(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let (Some(short), Poll::Ready(Ok(n_bytes))) = (&mut self.short, &written) {
            short.n_sent += n_bytes;
        }
        written
    }
}

/// Sets `TCP_USER_TIMEOUT`. An error is ignored: a connection that has failed reports that itself.
fn set_user_timeout(stream: &TcpStream, timeout: Option<Duration>) {
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(stream).set_tcp_user_timeout(timeout);
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, timeout);
}

impl connect::Connection for Connection {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.past.clone())
    }
}

impl Read for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let (Some(short), Poll::Ready(Ok(()))) = (&mut self.short, &read) {
            short.is_answered = true;
        }
        read
    }
}

impl Write for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.about_to_send(buf.len());
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.sent(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.about_to_send(bufs.iter().map(|buf| buf.len()).sum());
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.sent(written)
    }
}

impl Service<Uri> for Connector {
    type Response = Connection;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Connection, ConnectError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.http.poll_ready(cx).map_err(|error| ConnectError::Tcp(error.into()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (tcp, tls, timeout) = (self.http.call(uri), self.tls.clone(), self.timeout);
        let short = |patience| Short { patience, n_sent: 0, is_long: false, is_answered: false };
        let short = self.patience_for_short.map(short);
        let connect = async move {
            let stream = tcp.await.map_err(|error| ConnectError::Tcp(error.into()))?;
            let past = Past::default();
            let Some(Secured { config, name }) = tls else {
                return Ok(Connection { stream: MaybeHttpsStream::Http(stream), past, short });
            };
            let connector = TlsConnector::from(Arc::clone(&config.load()));
            let secured = connector.connect(name, TokioIo::new(stream)).await.map_err(failed_handshake)?;
            Ok(Connection { stream: MaybeHttpsStream::from(secured), past, short })
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

#[cfg(test)]
mod tests {
    use super::*;

    async fn connect(connector: &Connector, address: std::net::SocketAddr) -> Result<Connection, ConnectError> {
        let uri = format!("http://{address}").parse().expect("a URI");
        connector.clone().call(uri).await
    }

    #[tokio::test]
    async fn connections_find_out_that_a_host_has_vanished() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
        let address = listener.local_addr().expect("it is bound");
        let patience = Duration::from_secs(6);
        let connector = Connector::new(None, Duration::from_secs(1)).with_patience(patience);
        let connection = connect(&connector, address).await.expect("somebody listens");
        let MaybeHttpsStream::Http(stream) = &connection.stream else { panic!("plain text was asked for") };
        let socket = socket2::SockRef::from(stream.inner());
        assert!(socket.keepalive().expect("an option"));
        assert_eq!(socket.tcp_keepalive_time().expect("an option"), KEEPALIVE);
        assert_eq!(socket.tcp_keepalive_interval().expect("an option"), KEEPALIVE);
        assert_eq!(socket.tcp_keepalive_retries().expect("an option"), PROBES_MAX);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().expect("an option"), Some(patience));
        let lack = ConnectError::Tcp(Box::new(io::Error::from_raw_os_error(24)));
        assert!(!lack.is_away(), "this machine has no descriptor left");
        drop(listener);
        let refused = connect(&connector, address).await.err().expect("nobody listens");
        assert!(refused.is_away());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_host_that_may_read_late_must_take_at_once_what_fits_its_window() {
        use hyper::rt::ReadBuf;
        use tokio::io::AsyncWriteExt as _;

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
        let address = listener.local_addr().expect("it is bound");
        let patience = Duration::from_secs(6);
        let connector = Connector::new(None, Duration::from_secs(1)).with_patience_for_short(patience);
        let mut connection = connect(&connector, address).await.expect("somebody listens");
        let (mut host, _) = listener.accept().await.expect("a connection");
        let timeout = |connection: &Connection| {
            socket2::SockRef::from(connection.tcp()).tcp_user_timeout().expect("an option").filter(|t| !t.is_zero())
        };
        let piece = [0; SHORT_BYTES_MAX / 2];
        for (n_pieces, expected) in [(2, Some(patience)), (3, None), (1, Some(patience))] {
            for _ in 0..n_pieces {
                let send = std::future::poll_fn(|cx| Pin::new(&mut connection).poll_write(cx, &piece));
                assert_eq!(send.await.expect("there is room"), piece.len());
            }
            assert_eq!(timeout(&connection), expected, "{n_pieces} pieces");
            host.write_all(b"answer").await.expect("it is taken");
            let mut bytes = [0; 6];
            let mut answer = ReadBuf::new(&mut bytes);
            let read = std::future::poll_fn(|cx| Pin::new(&mut connection).poll_read(cx, answer.unfilled()));
            read.await.expect("an answer");
            assert_eq!(timeout(&connection), expected, "until something else is sent");
        }
    }
}
