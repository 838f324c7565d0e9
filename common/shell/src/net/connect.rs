//! Connections for hyper's client: plain, or with TLS and the current certificates.
//!
//! Targets are chosen by the callers; `vanished` detects hosts that vanish during a request.
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

use crate::net::tls::CurrentClient;
use crate::net::vanished::Watch;

/// Silence on a connection after which a keepalive probe is sent, and the pause between two probes.
///
/// Source: own choice: an idle connection costs a few bytes a second, and with `PROBES_MAX` a vanished host is detected
/// as soon as by a silent summary stream.
const KEEPALIVE: Duration = Duration::from_secs(1);

/// Unanswered keepalive probes after which a connection is closed. Source: as [`KEEPALIVE`].
const PROBES_MAX: u32 = 3;

/// Reason why no connection was established.
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
    /// Returns whether TCP succeeded and TLS failed.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::PlainText | Self::Tls(_))
    }

    /// Returns whether, according to the network, the host accepts no connections. False for a shortage of resources on
    /// this machine.
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
    /// Patience of [`Self::with_patience_for_late_readers`].
    patience_of_watch: Option<Duration>,
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
    /// Returns a connector whose connections, including TLS, are established within `timeout`; they are in plain text
    /// if `tls` is absent.
    pub fn new(tls: Option<Secured>, timeout: Duration) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(timeout));
        http.set_keepalive(Some(KEEPALIVE));
        http.set_keepalive_interval(Some(KEEPALIVE));
        http.set_keepalive_retries(Some(PROBES_MAX));
        Self { http, tls, timeout, patience_of_watch: None }
    }

    /// Closes connections if the host does not acknowledge sent data for this long; only for hosts that read all data
    /// at once.
    ///
    /// Source: tcp(7), `TCP_USER_TIMEOUT`. Linux also counts the time in which the host's window is full, so a server
    /// that first queues a long request and reads it late would lose the request.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        #[cfg(target_os = "linux")]
        self.http.set_tcp_user_timeout(Some(patience));
        #[cfg(not(target_os = "linux"))]
        let _ = patience;
        self
    }

    /// Closes connections if the host's system acknowledges nothing for this long, even if the host reads late.
    ///
    /// Only on Linux, while a request waits for its response.
    pub fn with_patience_for_late_readers(self, patience: Duration) -> Self {
        Self { patience_of_watch: Some(patience), ..self }
    }
}

/// History of a connection; attached to the client's responses and errors.
#[derive(Debug, Clone, Default)]
pub struct ConnectionHistory(Arc<AtomicBool>);

impl ConnectionHistory {
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
    history: ConnectionHistory,
    /// Absent if the system itself detects that the host is gone.
    watch: Option<Watch>,
}

fn tcp(stream: &MaybeHttpsStream<TokioIo<TcpStream>>) -> &TcpStream {
    match stream {
        MaybeHttpsStream::Http(plain) => plain.inner(),
        MaybeHttpsStream::Https(secured) => secured.inner().get_ref().0.inner().inner(),
    }
}

impl Connection {
    /// Checks the host before a part of a request is sent, and then repeatedly, even if the caller does not read.
    ///
    /// Errors: `TimedOut` if the host is gone.
    fn about_to_send(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(watch) = &mut self.watch else { return Ok(()) };
        watch.begin(tcp(&self.stream), cx)
    }
}

impl connect::Connection for Connection {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.history.clone())
    }
}

impl Read for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let Self { stream, watch, .. } = &mut *self;
        let poll = Pin::new(&mut *stream).poll_read(cx, buf);
        let Some(watch) = watch else { return poll };
        if poll.is_ready() {
            watch.end();
            return poll;
        }
        watch.poll_gone(tcp(stream), cx).map(Err)
    }
}

impl Write for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.about_to_send(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
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
        self.about_to_send(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
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
        let watch = self.patience_of_watch.map(Watch::new);
        let connect = async move {
            let stream = tcp.await.map_err(|error| ConnectError::Tcp(error.into()))?;
            let history = ConnectionHistory::default();
            let Some(Secured { config, name }) = tls else {
                return Ok(Connection { stream: MaybeHttpsStream::Http(stream), history, watch });
            };
            let connector = TlsConnector::from(Arc::clone(&config.load()));
            let tls_stream = connector.connect(name, TokioIo::new(stream)).await.map_err(failed_handshake)?;
            Ok(Connection { stream: MaybeHttpsStream::from(tls_stream), history, watch })
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
    async fn connections_detect_that_a_host_has_vanished() {
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

    #[tokio::test(start_paused = true)]
    async fn a_request_on_an_idle_connection_is_checked_even_if_nothing_is_read() {
        use hyper::rt::ReadBuf;

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
        let address = listener.local_addr().expect("it is bound");
        let patience = Duration::from_secs(6);
        let connector = Connector::new(None, Duration::from_secs(1)).with_patience_for_late_readers(patience);
        let mut connection = connect(&connector, address).await.expect("somebody listens");
        let (mut n_polls, mut bytes) = (0, [0; 6]);
        // Like hyper: it reads an idle connection, and after a request that was sent at once it reads only when woken.
        let woken = std::future::poll_fn(|cx| {
            n_polls += 1;
            if n_polls > 1 {
                return Poll::Ready(());
            }
            assert!(Pin::new(&mut connection).poll_read(cx, ReadBuf::new(&mut bytes).unfilled()).is_pending());
            assert!(Pin::new(&mut connection).poll_write(cx, b"request").is_ready());
            Poll::Pending
        });
        let sent_at = tokio::time::Instant::now();
        // After `patience` it polls the client, too.
        tokio::time::timeout(patience, woken).await.expect("it is polled");
        assert!(sent_at.elapsed() < patience, "the next check wakes the client");
    }

    #[tokio::test]
    async fn a_host_that_reads_late_keeps_its_connection_however_long_the_request_is() {
        use hyper::rt::ReadBuf;
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

        const REQUEST_BYTES: usize = 32 << 20;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
        let address = listener.local_addr().expect("it is bound");
        let patience = Duration::from_millis(300);
        let connector = Connector::new(None, Duration::from_secs(1)).with_patience_for_late_readers(patience);
        let mut connection = connect(&connector, address).await.expect("somebody listens");
        let (mut host, _) = listener.accept().await.expect("a connection");
        let (request, mut n_sent, mut bytes) = (vec![0; REQUEST_BYTES], 0, [0; 6]);
        // Like hyper: it writes as much as the system takes, then reads.
        let mut answer = std::pin::pin!(std::future::poll_fn(|cx| {
            while n_sent < REQUEST_BYTES {
                match Pin::new(&mut connection).poll_write(cx, &request[n_sent..]) {
                    Poll::Ready(written) => n_sent += written.expect("the host is there"),
                    Poll::Pending => break,
                }
            }
            Pin::new(&mut connection).poll_read(cx, ReadBuf::new(&mut bytes).unfilled())
        }));
        // Many checks, while the host has no room for the rest.
        let waited = tokio::time::timeout(10 * patience, &mut answer).await;
        assert!(waited.is_err(), "nothing has arrived: {waited:?}");
        let read = async {
            let mut read = vec![0; 1 << 20];
            for _ in 0..REQUEST_BYTES / read.len() {
                host.read_exact(&mut read).await.expect("everything arrives");
            }
            host.write_all(b"answer").await.expect("it is taken");
        };
        let (answered, ()) = tokio::join!(answer, read);
        answered.expect("an answer");
    }
}
