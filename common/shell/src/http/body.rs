//! Request bodies, read completely: within limits of length, of time, and of the memory of all bodies.
//!
//! Decoding is in `coding`, bodies that are needed only after a failure in `retained`. Not here: the content of bodies.
//!
//! Memory is reserved when bytes arrive, not when a header announces them, and it is free again when the last copy of
//! the body is dropped. A client may use half as much memory as is free. So the more clients there are, the less each
//! may use, and some is always left for the next one.

pub mod coding;
mod retained;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use coding::{CODINGS, Coding};
use retained::RetainedBodies;
pub use retained::RetainedBody;

/// Longest time without a byte of a body that is still arriving, if the time limit for the whole is longer.
///
/// Source: own choice: on a bad line a lost packet is sent again within seconds; an upload that pauses for longer has
/// been abandoned.
pub const BODY_SILENCE_MAX: Duration = Duration::from_secs(10);

/// U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Length of the parts of an encoded body; each part is freed once it has been decoded. Units: bytes.
///
/// Source: own choice: half of `coding::PIECE_BYTES`: few allocations, and little is in memory both encoded and
/// decoded.
const SEGMENT_BYTES: usize = 64 << 10;

/// Sender of a body; memory is divided among senders.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Sender {
    /// Clients with this API key.
    Key(String),
    /// Clients at this address.
    Address(IpAddr),
    /// Unknown sender.
    Unknown,
}

impl Sender {
    /// Returns the sender at an address; for IPv6 that is the network, since a host can have any number of a network's
    /// addresses.
    pub fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            address => address,
        })
    }
}

/// Reason why a body could not be read completely.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum BodyError {
    /// The body is longer than the limit, as received or decoded.
    #[error("the request body is longer than {bytes_max} bytes")]
    TooLong {
        /// Limit.
        bytes_max: usize,
    },
    /// The body did not arrive in time.
    #[error("the request body did not arrive within {seconds} s")]
    Late {
        /// Limit.
        seconds: f64,
    },
    /// No byte of the body arrived for too long.
    #[error("nothing of the request body arrived for {seconds} s")]
    Silent {
        /// Limit.
        seconds: f64,
    },
    /// All bodies together take too much memory.
    #[error("request bodies take too much memory at present")]
    NoRoom,
    /// The connection broke, or the received bytes are not a valid body.
    #[error("the request body could not be read")]
    Unread,
    /// The body has an unknown content coding, or several.
    #[error("the request's content-encoding must be one of {CODINGS}")]
    UnknownCoding,
    /// The body does not match its content coding.
    #[error("the request body is not valid {coding}")]
    Undecodable {
        /// Coding.
        coding: &'static str,
    },
}

impl BodyError {
    /// Returns the error's code for programs, if it has one.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::TooLong { .. } => Some("request_too_large"),
            Self::Late { .. } | Self::Silent { .. } => Some("request_timeout"),
            Self::NoRoom => Some("bodies_full"),
            Self::Unread => None,
            Self::UnknownCoding => Some("unsupported_content_encoding"),
            Self::Undecodable { .. } => Some("invalid_content_encoding"),
        }
    }
}

/// Limits on bodies.
#[derive(Debug, Clone)]
pub struct BodyLimits {
    /// Longest body. Units: bytes.
    pub bytes_max: usize,
    /// Longest time for a whole body.
    pub timeout: Duration,
    /// Memory for all bodies.
    pub room: Arc<BodyRoom>,
}

impl BodyLimits {
    /// Returns the whole body, decoded, and removes the content coding from the headers. The body's memory counts until
    /// its last copy is dropped.
    ///
    /// Errors: every [`BodyError`].
    pub async fn read(&self, headers: &mut HeaderMap, mut body: Body, sender: Sender) -> Result<Bytes, BodyError> {
        let too_late = |_| BodyError::Late { seconds: self.timeout.as_secs_f64() };
        let reading = async {
            let mut claim = BodyRoom::claim(&self.room, sender.clone());
            let bytes = match Coding::named(headers)? {
                None => self.take(&mut body, &mut claim).await?,
                Some(coding) => {
                    let encoded_pieces = self.take_apart(&mut body, &sender).await?;
                    coding.decode(encoded_pieces, self.bytes_max, &mut claim).await?
                }
            };
            Ok::<_, BodyError>(Bytes::from_owner(Claimed { bytes, claim }))
        };
        let reading = timeout(self.timeout, reading).await.unwrap_or_else(|error| Err(too_late(error)));
        headers.remove(header::CONTENT_ENCODING);
        reading.map(without_mark)
    }

    async fn take(&self, body: &mut Body, claim: &mut Claim) -> Result<Bytes, BodyError> {
        let mut bytes = BytesMut::new();
        while let Some(data) = self.next(body, bytes.len()).await? {
            claim.grow(data.len())?;
            if bytes.is_empty() && hyper::body::Body::is_end_stream(body) {
                return Ok(data);
            }
            // Copied, since a piece of a few bytes would keep the whole kilobytes of its read buffer in memory.
            bytes.extend_from_slice(&data);
        }
        Ok(bytes.freeze())
    }

    /// Returns a body in pieces; each piece frees its memory when it is dropped.
    async fn take_apart(&self, body: &mut Body, sender: &Sender) -> Result<Vec<Bytes>, BodyError> {
        let begin = || Claimed { bytes: BytesMut::new(), claim: BodyRoom::claim(&self.room, sender.clone()) };
        let (mut segments, mut last, mut n_bytes) = (Vec::new(), begin(), 0);
        while let Some(data) = self.next(body, n_bytes).await? {
            n_bytes += data.len();
            last.claim.grow(data.len())?;
            last.bytes.extend_from_slice(&data);
            if last.bytes.len() >= SEGMENT_BYTES {
                segments.push(Bytes::from_owner(std::mem::replace(&mut last, begin())));
            }
        }
        segments.push(Bytes::from_owner(last));
        Ok(segments)
    }

    /// Returns the next piece of a body of which `n_before` bytes have arrived.
    async fn next(&self, body: &mut Body, n_before: usize) -> Result<Option<Bytes>, BodyError> {
        let silence_max = BODY_SILENCE_MAX.min(self.timeout);
        let silent = |_| BodyError::Silent { seconds: silence_max.as_secs_f64() };
        while let Some(frame) = timeout(silence_max, body.frame()).await.map_err(silent)? {
            let Ok(data) = frame.map_err(|_| BodyError::Unread)?.into_data() else { continue };
            if n_before + data.len() > self.bytes_max {
                return Err(BodyError::TooLong { bytes_max: self.bytes_max });
            }
            return Ok(Some(data));
        }
        Ok(None)
    }
}

/// Bytes of a body, with the claim on the memory that they take.
struct Claimed<B> {
    bytes: B,
    claim: Claim,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Claimed<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Returns a body without the byte order mark that some clients put before UTF-8, and that JSON does not allow.
fn without_mark(body: Bytes) -> Bytes {
    if body.starts_with(BYTE_ORDER_MARK) { body.slice(BYTE_ORDER_MARK.len()..) } else { body }
}

/// Memory of all bodies: those that are arriving, and those that have arrived and are not dropped yet.
pub struct BodyRoom {
    bytes_max: usize,
    /// Memory in use. The lock is held for one change, never across `.await`, nor while a body is dropped, which takes
    /// it.
    usage: Mutex<Taken>,
}

impl std::fmt::Debug for BodyRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The content of bodies must not be logged.
        f.debug_struct("BodyRoom").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Taken {
    /// Memory of all claims. Units: bytes.
    n_bytes: usize,
    /// Memory of each sender's claims, without those of its retained bodies. Units: bytes.
    by_sender: HashMap<Sender, usize>,
    retained: RetainedBodies,
}

/// Memory reserved for one body; freed when this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    room: Arc<BodyRoom>,
    sender: Sender,
    n_bytes: usize,
}

/// Lowest ratio of the memory for all bodies to the longest body. Source: one sender gets at most a third of the
/// memory.
const ROOM_BODIES_MIN: usize = 3;

/// Memory for all bodies, unless the longest body needs more. Units: bytes.
///
/// Source: own choice: sixteen times the longest body by default.
const ROOM_BYTES_MIN: usize = 256 << 20;

/// Returns the memory for all bodies of up to `body_bytes_max` each. Units: bytes.
pub fn room_bytes(body_bytes_max: usize) -> usize {
    body_bytes_max.saturating_mul(ROOM_BODIES_MIN).max(ROOM_BYTES_MIN)
}

impl BodyRoom {
    /// Returns an account of `bytes_max` of memory. Units: bytes.
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, usage: Mutex::default() })
    }

    /// Returns the memory in use. Units: bytes.
    pub fn n_bytes(&self) -> usize {
        self.taken().n_bytes
    }

    /// Returns bytes that were made of a sender's body; their memory counts until their last copy is dropped.
    ///
    /// Errors: `NoRoom`.
    pub fn claimed(room: &Arc<Self>, sender: &Sender, bytes: Bytes) -> Result<Bytes, BodyError> {
        let mut claim = Self::claim(room, sender.clone());
        claim.grow(bytes.len())?;
        Ok(Bytes::from_owner(Claimed { bytes, claim }))
    }

    /// Returns an empty claim of a sender.
    pub(crate) fn claim(room: &Arc<Self>, sender: Sender) -> Claim {
        Claim { room: Arc::clone(room), sender, n_bytes: 0 }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Reserves more memory. A sender may use half as much as remains free, so a third of all if it is the only one.
    /// Retained bodies count as free: the longest are dropped where the memory is needed.
    ///
    /// Errors: `NoRoom`. Source: Choudhury and Hahne, Dynamic queue length thresholds for shared-memory packet
    /// switches, 1998. Each sender leaves two thirds of the free memory, so ten of them leave 1.7 %.
    pub(crate) fn grow(&mut self, n_bytes: usize) -> Result<(), BodyError> {
        if n_bytes == 0 {
            return Ok(());
        }
        let mut usage = self.room.taken();
        let n_free = self.room.bytes_max.saturating_sub(usage.n_bytes - usage.retained.n_bytes());
        let n_of_sender = usage.by_sender.get(&self.sender).copied().unwrap_or(0);
        if 2 * (n_of_sender + n_bytes) > n_free.saturating_sub(n_bytes) {
            return Err(BodyError::NoRoom);
        }
        usage.n_bytes += n_bytes;
        *usage.by_sender.entry(self.sender.clone()).or_default() += n_bytes;
        let released_bodies = usage.release_beyond(self.room.bytes_max);
        drop(usage);
        drop(released_bodies);
        self.n_bytes += n_bytes;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut usage = self.room.taken();
        usage.n_bytes -= self.n_bytes;
        usage.remove_from(&self.sender, self.n_bytes);
    }
}

impl Taken {
    /// Removes memory from a sender's.
    fn remove_from(&mut self, sender: &Sender, n_bytes: usize) {
        if let Some(n) = self.by_sender.get_mut(sender) {
            *n -= n_bytes;
            if *n == 0 {
                self.by_sender.remove(sender);
            }
        }
    }
}

#[cfg(test)]
mod tests;
