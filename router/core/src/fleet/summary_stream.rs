//! One open stream of a worker's summary, without its socket: takes bytes as they arrive, returns changes of the view.
//!
//! Nothing that a worker sends is trusted. Frames are limited in size and rate, a snapshot in time, silence in length.
//! A stream that breaks a limit ends; the next one is opened from the position in `summary_reader`.
//!
//! Not here: the order of frames (`summary_reader`), opening and closing streams (the router's `subscriber`).

use std::time::{Duration, Instant};

use warmpath_common::summary::{DecodeError, Frame, FrameBody, FrameTooLong, LENGTH_BYTES, frame_length};

use crate::fleet::summary_reader::{FrameEffect, SummaryReader, Violation};

/// Period over which the rates of a stream are limited.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// Limits on one stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamLimits {
    /// Maximum number of frames per second.
    pub frames_per_s_max: u32,
    /// Maximum number of bytes of updates per second. A snapshot is limited by its blocks.
    pub update_bytes_per_s_max: usize,
    /// Longest time from the opening of the stream to the end of its snapshot.
    pub snapshot_timeout: Duration,
}

/// Reason why the bytes of a stream cannot be read any further.
#[derive(Debug, thiserror::Error)]
pub enum StreamFault {
    /// A frame is longer than the limit.
    #[error(transparent)]
    TooLong(#[from] FrameTooLong),
    /// A frame cannot be decoded.
    #[error("a frame could not be read")]
    Frame(#[from] DecodeError),
    /// Frames or bytes arrive faster than the limit.
    #[error("{what} arrived faster than the limit allows")]
    Flood {
        /// Data that exceeded the limit, such as frames.
        what: &'static str,
    },
    /// The snapshot has not ended in time.
    #[error("the snapshot did not end within {} s", .0.as_secs())]
    SlowSnapshot(Duration),
    /// A frame contradicts the frames before it.
    #[error(transparent)]
    Violation(#[from] Violation),
}

impl StreamFault {
    /// Returns a short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::TooLong(_) => "frame_too_long",
            Self::Frame(DecodeError::Version { .. }) => "protocol_version",
            Self::Frame(_) => "malformed",
            Self::Flood { .. } => "flood",
            Self::SlowSnapshot(_) => "slow_snapshot",
            Self::Violation(violation) => violation.label(),
        }
    }

    /// Returns whether everything before the fault was valid. After a violation the summary reader decides that itself.
    pub fn keeps_view(&self) -> bool {
        matches!(self, Self::SlowSnapshot(_) | Self::Violation(_))
    }

    /// Returns whether the worker speaks a version of the protocol that this router cannot read.
    pub fn is_other_version(&self) -> bool {
        matches!(self, Self::Frame(DecodeError::Version { .. }))
    }
}

/// Bytes of one open stream, and its limits.
///
/// Memory: the longest frame, and the bytes of the last [`SummaryStream::push`].
#[derive(Debug)]
pub struct SummaryStream {
    limits: StreamLimits,
    bytes: Vec<u8>,
    /// Number of `bytes` that were read already.
    n_read: usize,
    rates: RateWindow,
    snapshot_deadline: Instant,
}

/// Frames and bytes of updates since the start of a window.
#[derive(Debug)]
struct RateWindow {
    start: Instant,
    n_frames: u32,
    n_update_bytes: usize,
}

impl SummaryStream {
    /// Returns a stream that opens now.
    pub fn new(limits: StreamLimits, now: Instant) -> Self {
        Self {
            limits,
            bytes: Vec::new(),
            n_read: 0,
            rates: RateWindow { start: now, n_frames: 0, n_update_bytes: 0 },
            snapshot_deadline: now + limits.snapshot_timeout,
        }
    }

    /// Takes bytes that have arrived. [`Self::next`] must have returned `None` before, or the memory is not bounded.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.n_read));
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the number of bytes that wait for the rest of their frame, or for [`Self::next`].
    pub fn n_waiting_bytes(&self) -> usize {
        self.bytes.len() - self.n_read
    }

    /// Returns the effect of the next whole frame; `None` if more bytes are needed.
    ///
    /// Errors: every [`StreamFault`]; the stream must then be dropped.
    pub fn next(&mut self, reader: &mut SummaryReader, now: Instant) -> Result<Option<FrameEffect>, StreamFault> {
        let Some(n_bytes) = frame_length(&self.bytes[self.n_read..])? else { return Ok(None) };
        let start = self.n_read + LENGTH_BYTES;
        let frame = Frame::decode(&self.bytes[start..start + n_bytes])?;
        self.n_read = start + n_bytes;
        let is_update = matches!(frame.body, FrameBody::Update { .. });
        self.rates.count(if is_update { n_bytes } else { 0 }, &self.limits, now)?;
        let effect = reader.apply(frame)?;
        if effect == FrameEffect::Partial && now > self.snapshot_deadline {
            return Err(StreamFault::SlowSnapshot(self.limits.snapshot_timeout));
        }
        Ok(Some(effect))
    }
}

impl RateWindow {
    fn count(&mut self, n_update_bytes: usize, limits: &StreamLimits, now: Instant) -> Result<(), StreamFault> {
        if now.saturating_duration_since(self.start) >= RATE_WINDOW {
            *self = Self { start: now, n_frames: 0, n_update_bytes: 0 };
        }
        self.n_frames += 1;
        self.n_update_bytes += n_update_bytes;
        if self.n_frames > limits.frames_per_s_max {
            return Err(StreamFault::Flood { what: "frames" });
        }
        if self.n_update_bytes > limits.update_bytes_per_s_max {
            return Err(StreamFault::Flood { what: "bytes" });
        }
        Ok(())
    }
}

/// Watch over the silence of one stream while its next frame is awaited.
///
/// A router that receives nothing from any other worker may itself be cut off, and waits longer. The last part of each
/// wait is a wait of its own: a router that was stopped for a while finds the frames that arrived meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct SilenceWatch {
    start: Instant,
    /// Longest silence while other workers send.
    silence_max: Duration,
    /// Longest silence in any case.
    limit: Duration,
    part: Duration,
    due: Instant,
    is_last_part: bool,
}

impl SilenceWatch {
    /// Returns the watch over a silence that begins now; `silence_max` has `n_parts` parts.
    pub fn new(silence_max: Duration, n_parts: u32, limit: Duration, now: Instant) -> Self {
        let part = silence_max / n_parts;
        Self { start: now, silence_max, limit, part, due: now + (silence_max - part), is_last_part: false }
    }

    /// Returns when [`Self::check`] is due, if no frame arrives before.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Returns the longest accepted silence if it is over, so that the worker counts as lost.
    ///
    /// `received_from_another` returns whether a message of any other worker has arrived within a time.
    pub fn check(&mut self, now: Instant, received_from_another: impl FnOnce(Duration) -> bool) -> Option<Duration> {
        if std::mem::replace(&mut self.is_last_part, true) {
            if now.saturating_duration_since(self.start) >= self.limit {
                return Some(self.limit);
            }
            // Had the router been cut off when this worker fell silent, the others would have been silent for as long.
            if received_from_another(2 * self.part) {
                return Some(self.silence_max);
            }
        }
        self.due = now + self.part;
        None
    }
}

#[cfg(test)]
mod tests;
