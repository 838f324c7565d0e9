//! Connections that fail if their client stops reading or vanishes.
//!
//! A response is produced only as fast as its client reads it, since the server takes from a body only as much as the
//! connection accepts. So a client that reads nothing would keep the resources of its response forever. After a timeout
//! its connection fails, which drops the response.
//!
//! A client that vanishes while it waits for a response is detected by TCP keepalive. While sent bytes are
//! unacknowledged, the system sends no probes but resends them, and gives up after some 15 minutes; then `vanished`
//! detects that the client is gone.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::net::vanished::Watch;

/// Silence on a connection after which a keepalive probe is sent.
///
/// Source: own choice: it rarely wakes a phone, and keeps the connection in tables of home routers and firewalls, which
/// drop silent ones after some minutes.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Pause between two unanswered keepalive probes.
///
/// Source: own choice: with `PROBES_MAX` a phone has half a minute to come out of a tunnel or change its cell.
const PROBE_PAUSE: Duration = Duration::from_secs(10);

/// Unanswered keepalive probes after which a connection fails. Source: as [`PROBE_PAUSE`].
const PROBES_MAX: u32 = 3;

/// Longest silence of the client's system while sent bytes are unacknowledged. Source: as long as keepalive waits.
const PATIENCE: Duration = KEEPALIVE.saturating_add(PROBE_PAUSE.saturating_mul(PROBES_MAX));

/// Most bytes of a connection that wait in the system to be sent. Units: bytes.
///
/// Source: several times as much as a client reads at once, so that a client never waits for the server. Without this
/// limit the system buffers megabytes, and a slow client would seem to read nothing for as long as it reads those.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// A client's connection that fails if its machine has vanished.
pub struct WatchedStream {
    stream: TcpStream,
    watch: Watch,
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, watch } = &mut *self;
        let poll = Pin::new(&mut *stream).poll_read(context, buffer);
        if poll.is_ready() {
            watch.end();
            return poll;
        }
        watch.poll_gone(stream, context).map(Err)
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, watch } = &mut *self;
        watch.begin(stream, context)?;
        Pin::new(stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, watch } = &mut *self;
        watch.begin(stream, context)?;
        Pin::new(stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A connection that fails once its other end has read nothing for too long.
pub struct ReadConnection<T> {
    stream: T,
    timeout: Duration,
    /// Timer of the pending write; absent while no write is pending.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl ReadConnection<WatchedStream> {
    /// Returns a connection whose client must read something within the timeout while data waits for it, and whose
    /// machine must acknowledge what is sent.
    ///
    /// `TCP_USER_TIMEOUT` is not set, because it also disconnects clients that read. Linux counts from the first full
    /// window until the whole next segment fits, and a segment of 64 KiB never fits into a smaller window. With 12 s,
    /// Linux 6.18 disconnected a client that had a buffer of 64 KiB and read 40 KB a second.
    pub fn open(stream: TcpStream, timeout: Duration) -> Self {
        // An error means that the connection is gone; reading it will report that.
        let _ = stream.set_nodelay(true);
        let socket = SockRef::from(&stream);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(PROBE_PAUSE).with_retries(PROBES_MAX);
        let _ = socket.set_tcp_keepalive(&keepalive);
        #[cfg(target_os = "linux")]
        let _ = socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
        let stream = WatchedStream { stream, watch: Watch::new(PATIENCE.min(timeout)) };
        Self { stream, timeout, waiting: None }
    }
}

impl<T: AsyncWrite + Unpin> ReadConnection<T> {
    /// Returns the result of a write, or an error if it has been pending for too long.
    fn watch(&mut self, context: &mut Context<'_>, poll: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if poll.is_ready() {
            self.waiting = None;
            return poll;
        }
        let timeout = self.timeout;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        waiting.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ReadConnection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ReadConnection<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::net::TcpListener;

    use super::*;

    /// Returns a connection with a buffer of 4 bytes, and its other end.
    fn connection(timeout: Duration) -> (ReadConnection<DuplexStream>, DuplexStream) {
        let (stream, other_end) = tokio::io::duplex(4);
        (ReadConnection { stream, timeout, waiting: None }, other_end)
    }

    #[tokio::test]
    async fn a_silent_client_is_probed_and_one_that_reads_is_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
        let address = listener.local_addr().expect("it is bound");
        let _client = TcpStream::connect(address).await.expect("it listens");
        let (accepted, _) = listener.accept().await.expect("a connection");
        let connection = ReadConnection::open(accepted, Duration::from_secs(1));
        let socket = SockRef::from(&connection.stream.stream);
        assert!(socket.keepalive().expect("an option"));
        assert_eq!(socket.tcp_keepalive_time().expect("an option"), KEEPALIVE);
        assert_eq!(socket.tcp_keepalive_interval().expect("an option"), PROBE_PAUSE);
        assert_eq!(socket.tcp_keepalive_retries().expect("an option"), PROBES_MAX);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().expect("an option"), None, "it would end connections that are read");
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_cut_off() {
        let (mut connection, _other_end) = connection(Duration::from_millis(20));
        let error = connection.write_all(b"12345").await.expect_err("the other end takes nothing");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn each_read_starts_the_timeout_again() {
        let (mut connection, mut other_end) = connection(Duration::from_secs(100_000));
        connection.write_all(b"1234").await.expect("there is room");
        let is_full = poll_fn(|context| Poll::Ready(Pin::new(&mut connection).poll_write(context, b"5").is_pending()));
        assert!(is_full.await);
        assert!(connection.waiting.is_some());
        other_end.read_u8().await.expect("a byte");
        connection.write_all(b"5").await.expect("there is room again");
        assert!(connection.waiting.is_none());
    }
}
