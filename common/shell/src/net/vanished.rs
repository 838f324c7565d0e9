//! Detects that the host at a connection's other end has vanished, even if it may read late what it is sent.
//!
//! Used for servers that requests wait for, and for clients that read responses. Connections without unacknowledged
//! data are checked by TCP keepalive instead. The system of a live host acknowledges each retransmission and each
//! window probe, even if its program does not read. `TCP_INFO` gives the time of the last acknowledgement and the
//! number of retransmissions and probes.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// Checks of a connection within the patience. Source: own choice: a vanished host is found at most a sixth later.
const CHECKS: u32 = 6;

/// Unacknowledged retransmissions and window probes after which a silent host counts as gone.
///
/// Source: own choice, as for TCP keepalive: a single lost packet proves nothing.
const UNANSWERED_MIN: u32 = 3;

/// Largest difference between two computed times of one acknowledgement.
///
/// Source: Linux counts in ticks of at most 10 ms; the rest allows for preemption of the thread.
const TICKS: Duration = Duration::from_millis(50);

/// Check of a connection's host from the time it is sent something until it sends something.
pub(crate) struct Watch {
    patience: Duration,
    waiting: Option<Waiting>,
}

/// Check in progress.
struct Waiting {
    next_check: Pin<Box<Sleep>>,
    silence: Silence,
}

/// Silence of a host since its last acknowledgement.
struct Silence {
    /// Last time at which everything was acknowledged.
    owed_since: Instant,
    acked_at: Instant,
    /// Retransmissions and probes that had been sent by then.
    n_asked: u32,
}

/// The system's information about a connection's host, at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sending {
    now: Instant,
    /// Whether data or a window probe is unacknowledged.
    is_owed: bool,
    acked_at: Instant,
    /// Number of retransmissions of the connection so far, plus window probes since the last acknowledgement.
    n_asked: u32,
}

impl Watch {
    /// Returns a check that allows a host to be silent for `patience`.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, waiting: None }
    }

    /// Starts the check, unless it is in progress. Called before something is sent.
    ///
    /// Errors: `TimedOut` if the host is gone.
    pub(crate) fn begin(&mut self, stream: &TcpStream, cx: &mut Context<'_>) -> io::Result<()> {
        if self.waiting.is_none() {
            let Some(sending) = sending(stream) else { return Ok(()) };
            let next_check = Box::pin(tokio::time::sleep(pause(self.patience)));
            self.waiting = Some(Waiting { next_check, silence: Silence::of(sending) });
        }
        match self.poll_gone(stream, cx) {
            Poll::Ready(error) => Err(error),
            Poll::Pending => Ok(()),
        }
    }

    /// Ends the check. Called when something has arrived.
    pub(crate) fn end(&mut self) {
        self.waiting = None;
    }

    /// Becomes ready when the host is gone; stays pending while no check is in progress.
    ///
    /// Reads and writes must both poll it: after data that it could send at once, hyper reads again only when woken,
    /// and if the host has vanished, nothing but this timer wakes it.
    pub(crate) fn poll_gone(&mut self, stream: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(Waiting { next_check, silence }) = &mut self.waiting else { return Poll::Pending };
        while next_check.as_mut().poll(cx).is_ready() {
            if sending(stream).is_some_and(|sending| silence.is_proof(sending, self.patience)) {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            next_check.as_mut().reset(Instant::now() + pause(self.patience));
        }
        Poll::Pending
    }
}

/// Returns the time between two checks; with a patience of 0 they must not follow each other at once.
fn pause(patience: Duration) -> Duration {
    (patience / CHECKS).max(TICKS)
}

impl Silence {
    fn of(sending: Sending) -> Self {
        Self { owed_since: sending.now, acked_at: sending.acked_at, n_asked: sending.n_asked }
    }

    /// Returns whether the host is gone.
    fn is_proof(&mut self, sending: Sending, patience: Duration) -> bool {
        if !sending.is_owed {
            *self = Self::of(sending);
            return false;
        }
        if sending.acked_at > self.acked_at + TICKS {
            (self.acked_at, self.n_asked) = (sending.acked_at, sending.n_asked);
            return false;
        }
        let silent_since = sending.acked_at.max(self.owed_since);
        let n_unanswered = sending.n_asked.saturating_sub(self.n_asked);
        sending.now - silent_since >= patience && n_unanswered >= UNANSWERED_MIN
    }
}

/// Returns the system's information about a connection's host; `None` if it gives none.
#[cfg(target_os = "linux")]
fn sending(stream: &TcpStream) -> Option<Sending> {
    use std::os::fd::AsRawFd as _;

    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut n_bytes = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY: the descriptor is open as long as the stream exists; the system writes at most `n_bytes`; any bytes are
    // a valid `tcp_info`, whose fields are numbers.
    let info = unsafe {
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let status = libc::getsockopt(stream.as_raw_fd(), level, name, info.as_mut_ptr().cast(), &mut n_bytes);
        if status != 0 {
            return None;
        }
        info.assume_init()
    };
    let now = Instant::now();
    Some(Sending {
        now,
        is_owed: info.tcpi_unacked > 0 || info.tcpi_probes > 0,
        acked_at: now.checked_sub(Duration::from_millis(info.tcpi_last_ack_recv.into())).unwrap_or(now),
        n_asked: info.tcpi_total_retrans.saturating_add(info.tcpi_probes.into()),
    })
}

#[cfg(not(target_os = "linux"))]
fn sending(_: &TcpStream) -> Option<Sending> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(6);

    /// State of a connection: whether an acknowledgement is due, seconds since the last one, retransmissions and probes
    /// so far.
    type State = (bool, u32, u32);

    /// Returns the second, counted from the request's, at which a host is found to be gone.
    fn gone_after(state: impl Fn(u32) -> State) -> Option<u32> {
        // Times before the request exist.
        let start = Instant::now() + Duration::from_secs(3_600);
        let sending = |second: u32| {
            let (is_owed, silent_s, n_asked) = state(second);
            let now = start + Duration::from_secs(second.into());
            Sending { now, is_owed, acked_at: now - Duration::from_secs(silent_s.into()), n_asked }
        };
        let mut silence = Silence::of(sending(0));
        (1..600).find(|second| silence.is_proof(sending(*second), PATIENCE))
    }

    #[test]
    fn checks_have_pauses_whatever_the_patience() {
        assert_eq!([Duration::ZERO, PATIENCE].map(pause), [TICKS, Duration::from_secs(1)]);
    }

    type Case<'a> = (&'a str, &'a dyn Fn(u32) -> State, Option<u32>);

    #[test]
    fn a_host_is_gone_after_the_patience_and_three_unanswered_probes_and_not_before() {
        // Retransmissions after 0.2, 0.6, 1.4, 3, 6.2, ... seconds.
        let resent = |second: u32| if second == 0 { 0 } else { 2 + second.ilog2() };
        let cases: [Case<'_>; 11] = [
            ("vanished as the request was sent", &|s| (true, s, resent(s)), Some(6)),
            ("vanished while the connection was idle", &|s| (true, s + 500, 7 + resent(s)), Some(6)),
            (
                "vanished halfway through the request",
                &|s| (true, s.saturating_sub(9), resent(s.saturating_sub(9))),
                Some(15),
            ),
            ("vanished while its window was full", &|s| (true, s, 2 * s / 5), Some(8)),
            ("vanished behind a slow link", &|s| (true, s, s / 10), Some(30)),
            ("vanished after it had everything", &|s| (s >= 20, s, resent(s.saturating_sub(20))), Some(25)),
            ("has everything and computes", &|s| (false, s, 0), None),
            ("drops what its full buffer cannot take", &|s| (true, s % 6, s), None),
            ("has a full window and answers probes", &|s| (true, s % 60, s / 30), None),
            ("reads slowly", &|_| (true, 0, 0), None),
            ("is behind a link that loses much", &|s| (true, 0, s), None),
        ];
        for (host, state, expected) in cases {
            assert_eq!(gone_after(state), expected, "the host {host}");
        }
    }
}
