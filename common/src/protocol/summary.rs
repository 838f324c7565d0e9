//! The summary protocol: what a worker reports to routers about its blocks and its load.
//!
//! Sending and receiving belong to the worker and the router; the router's view is kept in `warmpath-router-core`. A
//! stream is one snapshot (`Begin`, `Runs`..., `End`) followed by `Update`s, each stamped with `(worker_uid,
//! boot_epoch, seq)`. All frames of a snapshot carry the `seq` of its state; the first update after it carries `seq +
//! 1`. If anything else arrives, the receiver drops the stream and opens another one, in which it requests the updates
//! after the last stamp that it has. The worker then sends `Resumed` and the missed updates, or a snapshot.

mod digest;
mod replay_buffer;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use self::digest::Digest;
pub use self::replay_buffer::{ReplayBuffer, ReplayLimits, SizedUpdate};

use crate::hash::block_hash::BlockKey;
use crate::ids::{RequestId, SlotId, WorkerUid};
use crate::model::ModelInfo;

/// Version of the frames' encoding: the first byte of each frame.
pub const PROTOCOL_VERSION: u8 = 10;

/// Media type of the binary stream: frames, each preceded by its length as a big-endian u32.
pub const CONTENT_TYPE: &str = "application/vnd.warmpath.summary";

/// Longest frame that is sent or accepted; a sender splits longer content.
///
/// Source: own choice: a receiver reserves this much for each stream, and a frame of the most keys has half.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Maximum number of block keys in a frame that is sent. Source: own choice: with eight bytes a key, half of
/// [`FRAME_BYTES_MAX`].
pub const KEYS_PER_FRAME_MAX: usize = 1 << 16;

/// Path of the snapshot as JSON.
pub const SNAPSHOT_PATH: &str = "/internal/v1/summary";
/// Path of the binary stream.
pub const STREAM_PATH: &str = "/internal/v1/summary/stream";
/// Query parameter of the stream with the last [`Stamp`] that the receiver has.
pub const AFTER_PARAMETER: &str = "after";
/// Path of the model's metadata as a GGUF file without tensors.
pub const VOCABULARY_PATH: &str = "/internal/v1/vocabulary";
/// Path of stored KV state, which is followed by the hash of the last wanted block.
pub const KV_PATH: &str = "/internal/v1/kv";

/// A worker's report while its model loads: the field [`Loading::FIELD`] of a JSON object in a response with status
/// 503.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loading {
    /// Model names that clients will be able to use, including those with adapters.
    pub names: Vec<String>,
    /// Loaded part of the model, 0 to 100.
    pub percent: u8,
}

impl Loading {
    /// Name of the field, which stands beside the error.
    pub const FIELD: &str = "loading";
}

/// Position of a frame among those of one worker since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Id of the worker.
    pub worker_uid: WorkerUid,
    /// Start time of the worker's process: one of its *boots*. A later boot has a larger one. Units: nanoseconds since
    /// 1970.
    pub boot_epoch: u64,
    /// Number of the update since that start.
    pub seq: u64,
}

impl Stamp {
    /// Returns whether both stamps are of one boot of one worker.
    pub fn is_same_boot(self, other: Self) -> bool {
        (self.worker_uid, self.boot_epoch) == (other.worker_uid, other.boot_epoch)
    }
}

/// Writes the stamp as [`AFTER_PARAMETER`] carries it: `<uid>.<boot epoch>.<seq>`.
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.worker_uid, self.boot_epoch, self.seq)
    }
}

/// Error: a text is not a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stamp is `<uid>.<boot epoch>.<seq>`")]
pub struct StampParseError;

impl FromStr for Stamp {
    type Err = StampParseError;

    fn from_str(text: &str) -> Result<Self, StampParseError> {
        let mut parts = text.split('.');
        let mut part = || parts.next().ok_or(StampParseError);
        let uid = crate::hash::hex::from_hex(part()?).ok_or(StampParseError)?;
        let (boot_epoch, seq) = (part()?.parse(), part()?.parse());
        let (Ok(boot_epoch), Ok(seq), None) = (boot_epoch, seq, parts.next()) else { return Err(StampParseError) };
        Ok(Self { worker_uid: WorkerUid(u64::from_be_bytes(uid)), boot_epoch, seq })
    }
}

/// One message of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// Position of the frame.
    pub stamp: Stamp,
    /// Content of the frame.
    pub body: FrameBody,
}

/// Content of a frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FrameBody {
    /// Start of a snapshot.
    Begin(Box<SnapshotHeader>),
    /// Part of a snapshot: runs to be applied to an empty view.
    Runs(Vec<Run>),
    /// End of a snapshot: the digest of all its runs.
    End(Digest),
    /// Changes since the previous stamp.
    Update {
        /// Changes in the order in which they happened.
        changes: Vec<Change>,
        /// Load after the changes; `None` if it did not change.
        load: Option<Load>,
        /// Digest of all blocks after the changes; absent in updates that contain only the load.
        digest: Option<Digest>,
    },
    /// Start of a stream without a snapshot: updates follow from the stamp that the receiver has.
    Resumed,
}

/// Information that a router needs to use a worker before it knows the worker's blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SnapshotHeader {
    /// Declaration of the model.
    pub model: ModelInfo,
    /// Load of the worker.
    pub load: Load,
}

/// Consecutive blocks of one chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Block keys in the order of the chain, without gaps.
    pub keys: Vec<BlockKey>,
    /// Tier of the blocks' KV state.
    pub tier: Tier,
    /// Whether the KV state is computed already.
    pub state: RunState,
    /// Blocks after which a request may start.
    pub resume: Resume,
    /// Slot that holds the blocks; absent for state outside slots.
    pub slot: Option<SlotId>,
}

/// Place of KV state, from the fastest tier to the slowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// In the KV cache of the context.
    Resident,
    /// In the worker's memory.
    Ram,
    /// On the worker's disk.
    Disk,
}

/// Whether KV state has been computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Not yet, but a running request will have computed it before a request that arrives now needs it.
    Filling,
    /// Computed.
    Ready,
}

/// Blocks of a run after which a request may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resume {
    /// After each block.
    EveryBlock,
    /// Only after the last block, a checkpoint.
    LastBlock,
    /// After none of them: the blocks only lead to a later checkpoint.
    Nowhere,
}

impl Resume {
    /// Returns whether a request may start after block `idx` of a run of `n_blocks`.
    pub fn is_behind(self, idx: usize, n_blocks: usize) -> bool {
        match self {
            Self::EveryBlock => true,
            Self::LastBlock => idx + 1 == n_blocks,
            Self::Nowhere => false,
        }
    }
}

/// One change of a worker's blocks or requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The worker holds these blocks; this replaces earlier reports about them.
    Stored(Run),
    /// The worker no longer holds these blocks in any tier.
    Removed(Vec<BlockKey>),
    /// The worker now counts this request in its load.
    Accepted(RequestId),
}

/// Load of a worker and the speed that it has measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Prompt tokens that must be computed for requests that wait for a slot. Units: tokens.
    pub queued_prefill_tokens: u64,
    /// Prompt tokens that must still be computed in running sequences. Units: tokens.
    pub running_prefill_tokens: u64,
    /// Number of requests that wait for a slot.
    pub n_queued: u32,
    /// Number of sequences that decode.
    pub n_decoding: u32,
    /// Slots that run a sequence.
    pub busy_slots: Vec<SlotId>,
    /// Number of free cells of the KV cache; cells of idle slots count as taken.
    pub free_cells: u64,
    /// Whether the worker accepts no more requests, because it is shutting down.
    pub draining: bool,
    /// Measured speed.
    pub rates: Rates,
}

/// Speed that a worker has measured, as moving averages; each is absent until it has been measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Prefill speed of all sequences together. Units: prompt tokens per second.
    pub prefill_tokens_per_s: Option<f32>,
    /// Duration of a step that only decodes. Units: milliseconds.
    pub decode_step_ms: Option<f32>,
    /// Average output of a finished request. Units: tokens.
    pub answer_tokens: Option<f32>,
    /// Time to encode a medium, for each of its tokens. Units: milliseconds.
    pub encode_ms_per_token: Option<f32>,
    /// Share of its computing time, 0 to 1, in which a thread waited for a processor because other programs had it.
    pub processor_wait: Option<f32>,
}

/// A whole snapshot, as `GET /internal/v1/summary` returns it in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Position of the snapshot.
    pub stamp: Stamp,
    /// Declaration of the model.
    pub model: ModelInfo,
    /// Block runs that the worker holds.
    pub runs: Vec<Run>,
    /// Load of the worker.
    pub load: Load,
}

impl Snapshot {
    /// Returns the frames that carry this snapshot, each below [`FRAME_BYTES_MAX`].
    pub fn into_frames(self) -> Vec<Frame> {
        let stamp = self.stamp;
        let digest = Digest::of(self.runs.iter().flat_map(|run| &run.keys));
        let mut bodies = vec![FrameBody::Begin(Box::new(SnapshotHeader { model: self.model, load: self.load }))];
        let mut batch = Vec::new();
        let mut n_keys = 0;
        for run in self.runs.into_iter().flat_map(Run::split) {
            if n_keys + run.keys.len() > KEYS_PER_FRAME_MAX && !batch.is_empty() {
                bodies.push(FrameBody::Runs(std::mem::take(&mut batch)));
                n_keys = 0;
            }
            // A run's own fields take about as many bytes as two keys.
            n_keys += run.keys.len() + 2;
            batch.push(run);
        }
        if !batch.is_empty() {
            bodies.push(FrameBody::Runs(batch));
        }
        bodies.push(FrameBody::End(digest));
        bodies.into_iter().map(|body| Frame { stamp, body }).collect()
    }
}

impl Run {
    /// Splits the run into runs that each fit into a frame and together mean the same.
    pub fn split(self) -> Vec<Self> {
        if self.keys.len() <= KEYS_PER_FRAME_MAX {
            return vec![self];
        }
        let before_last = match self.resume {
            Resume::EveryBlock => Resume::EveryBlock,
            Resume::LastBlock | Resume::Nowhere => Resume::Nowhere,
        };
        let form = Self { keys: Vec::new(), ..self };
        let parts = self.keys.chunks(KEYS_PER_FRAME_MAX);
        let mut parts: Vec<Self> =
            parts.map(|keys| Self { keys: keys.to_vec(), resume: before_last, ..form.clone() }).collect();
        if let Some(last) = parts.last_mut() {
            last.resume = form.resume;
        }
        parts
    }
}

/// Reason why bytes are not a frame.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The frame has no bytes.
    #[error("the frame is empty")]
    Empty,
    /// The frame is longer than [`FRAME_BYTES_MAX`].
    #[error("the frame has {n_bytes} bytes, more than {FRAME_BYTES_MAX}")]
    TooLong {
        /// Length of the frame.
        n_bytes: usize,
    },
    /// The sender has another version of the protocol.
    #[error("the frame has protocol version {version}, not {PROTOCOL_VERSION}")]
    Version {
        /// Version of the sender.
        version: u8,
    },
    /// The bytes do not decode to a frame.
    #[error("the frame cannot be decoded")]
    Malformed(#[source] postcard::Error),
    /// There are bytes after the frame's end.
    #[error("the frame has {n_bytes} bytes behind its end")]
    Trailing {
        /// Their number.
        n_bytes: usize,
    },
}

/// Bytes of the length before each frame of a stream.
pub const LENGTH_BYTES: usize = 4;

/// Error: the length before a frame is above [`FRAME_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame has {n_bytes} bytes, more than {FRAME_BYTES_MAX}")]
pub struct FrameTooLong {
    /// Announced length of the frame.
    pub n_bytes: usize,
}

/// Returns the length of the frame with which a stream's bytes begin, without [`LENGTH_BYTES`]; `None` if it is not
/// whole.
///
/// Errors: it is longer than a frame may be.
pub fn frame_length(bytes: &[u8]) -> Result<Option<usize>, FrameTooLong> {
    let Some((length, content)) = bytes.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let n_bytes = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if n_bytes > FRAME_BYTES_MAX {
        return Err(FrameTooLong { n_bytes });
    }
    Ok((content.len() >= n_bytes).then_some(n_bytes))
}

/// Returns a frame's bytes after their length as a big-endian u32, as a stream carries them.
///
/// Panics: if there are 4 GiB of them; a frame has at most [`FRAME_BYTES_MAX`].
pub fn with_length(content: &[u8]) -> Vec<u8> {
    let n_bytes = u32::try_from(content.len()).expect("a frame is below 1 MiB");
    [&n_bytes.to_be_bytes()[..], content].concat()
}

impl Frame {
    /// Returns the frame's bytes, without the length that precedes them in a stream.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![PROTOCOL_VERSION]).expect("a frame's types all have a postcard form")
    }

    /// Returns the frame that `bytes` encode.
    ///
    /// Errors: every [`DecodeError`]. Panics: never, whatever the bytes. Memory: in proportion to `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (&version, content) = bytes.split_first().ok_or(DecodeError::Empty)?;
        if bytes.len() > FRAME_BYTES_MAX {
            return Err(DecodeError::TooLong { n_bytes: bytes.len() });
        }
        if version != PROTOCOL_VERSION {
            return Err(DecodeError::Version { version });
        }
        let (frame, rest) = postcard::take_from_bytes(content).map_err(DecodeError::Malformed)?;
        if !rest.is_empty() {
            return Err(DecodeError::Trailing { n_bytes: rest.len() });
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests;
