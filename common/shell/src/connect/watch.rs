//! Finds out that a host has vanished while it is sent a request, also where it may read the request late.
//!
//! Not here: connections on which nothing is under way, which TCP's keepalive looks after.
//! The idea: a host that lives answers whatever is sent again, and each question whether it has room again, whether its program
//! reads or not. The system knows when the last acknowledgement came and how often it has sent again since. A slow link and a
//! host without room are silent for a while, but not to several such questions in a row.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// Looks at a connection while the host has the patience to answer.
const LOOKS: u32 = 6;

/// Questions without an answer behind which a host that has been silent for long is gone.
///
/// Source: own choice, as for TCP's keepalive: one that is lost is no sign.
const UNANSWERED_MIN: u32 = 3;

/// Difference of two times of one acknowledgement at most. Source: Linux counts it in ticks, of 10 ms where they are longest.
const TICKS: Duration = Duration::from_millis(50);

/// Watches a connection while a request on it waits for its answer.
pub(super) struct Watch {
    patience: Duration,
    waiting: Option<Waiting>,
}

/// Request that waits for its answer, and what the host has acknowledged meanwhile.
struct Waiting {
    since: Instant,
    look: Pin<Box<Sleep>>,
    acked_at: Instant,
    /// Questions that had been asked by then.
    n_asked: u32,
}

/// State of a connection, as far as it says whether the host is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sending {
    /// Whether the host has to acknowledge something.
    is_owed: bool,
    /// Time since its last acknowledgement.
    silent_for: Duration,
    /// What was sent again, since the connection began, and the unanswered questions for room.
    n_asked: u32,
}

impl Watch {
    /// Returns what gives a host so much time.
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, waiting: None }
    }

    /// Begins to watch, unless it does: something of a request is sent.
    pub(super) fn begin(&mut self, stream: &TcpStream) {
        if self.waiting.is_some() {
            return;
        }
        let Some(sending) = sending(stream) else { return };
        let now = Instant::now();
        let look = Box::pin(tokio::time::sleep(self.patience / LOOKS));
        self.waiting = Some(Waiting::new((now, look), sending));
    }

    /// Stops: something of the answer has come.
    pub(super) fn end(&mut self) {
        self.waiting = None;
    }

    /// Becomes ready when the host is gone; never while nothing waits.
    pub(super) fn poll_gone(&mut self, stream: &TcpStream, cx: &mut Context<'_>) -> Poll<()> {
        let Some(waiting) = &mut self.waiting else { return Poll::Pending };
        while waiting.look.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if sending(stream).is_some_and(|sending| waiting.is_gone(sending, (now, self.patience))) {
                return Poll::Ready(());
            }
            waiting.look.as_mut().reset(now + self.patience / LOOKS);
        }
        Poll::Pending
    }
}

impl Waiting {
    fn new((now, look): (Instant, Pin<Box<Sleep>>), sending: Sending) -> Self {
        let acked_at = now.checked_sub(sending.silent_for).unwrap_or(now);
        Self { since: now, look, acked_at, n_asked: sending.n_asked }
    }

    /// Returns whether the host is gone, as of a look at the connection.
    fn is_gone(&mut self, sending: Sending, (now, patience): (Instant, Duration)) -> bool {
        let acked_at = now.checked_sub(sending.silent_for).unwrap_or(now);
        if !sending.is_owed || acked_at > self.acked_at + TICKS {
            (self.acked_at, self.n_asked) = (acked_at, sending.n_asked);
            return false;
        }
        let n_unanswered = sending.n_asked.saturating_sub(self.n_asked);
        sending.silent_for.min(now - self.since) >= patience && n_unanswered >= UNANSWERED_MIN
    }
}

/// Returns the state of a connection; absent where the system does not say.
#[cfg(target_os = "linux")]
fn sending(stream: &TcpStream) -> Option<Sending> {
    use std::os::fd::AsRawFd as _;

    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut n_bytes = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY: the descriptor is open as long as the stream is there; the system writes at most as many bytes as it is told, and any
    // bytes are a `tcp_info`, whose fields are numbers.
    let info = unsafe {
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let status = libc::getsockopt(stream.as_raw_fd(), level, name, info.as_mut_ptr().cast(), &mut n_bytes);
        if status != 0 {
            return None;
        }
        info.assume_init()
    };
    Some(Sending {
        is_owed: info.tcpi_unacked > 0 || info.tcpi_probes > 0,
        silent_for: Duration::from_millis(info.tcpi_last_ack_recv.into()),
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

    /// Looks once a second at what is silent for so long by then, with so many questions; returns after how many seconds it is gone.
    fn gone_after(looks: impl Fn(u32) -> (bool, Duration, u32)) -> Option<u32> {
        let start = Instant::now();
        let sending = |second| {
            let (is_owed, silent_for, n_asked) = looks(second);
            Sending { is_owed, silent_for, n_asked }
        };
        let look = Box::pin(tokio::time::sleep(Duration::ZERO));
        let mut waiting = Waiting::new((start, look), sending(0));
        (1..600).find(|second| {
            let now = start + Duration::from_secs((*second).into());
            waiting.is_gone(sending(*second), (now, PATIENCE))
        })
    }

    fn seconds(n: u32) -> Duration {
        Duration::from_secs(n.into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_is_gone_that_answers_no_question_and_not_before_its_patience() {
        // Sent again after 0.2, 0.6, 1.4, 3, 6.2 seconds.
        let resent = |second: u32| if second == 0 { 0 } else { 2 + second.ilog2() };
        assert_eq!(gone_after(|second| (true, seconds(second), resent(second))), Some(6));
        assert_eq!(gone_after(|second| (true, seconds(second + 500), 7 + resent(second))), Some(6), "it was idle");
        assert_eq!(gone_after(|second| (true, seconds(second), second / 10)), Some(30), "the link has a long way");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_answers_now_and_then_is_there() {
        assert_eq!(gone_after(|second| (true, seconds(second % 6), second)), None, "it drops what it has no room for");
        assert_eq!(gone_after(|second| (true, seconds(second % 60), second / 30)), None, "it has no room");
        assert_eq!(gone_after(|second| (false, seconds(second), 0)), None, "it has everything");
        assert_eq!(gone_after(|second| (true, Duration::ZERO, second)), None, "the link is slow");
    }
}
