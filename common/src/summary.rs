//! The summary protocol: what a worker tells routers about what it holds and how busy it is.
//!
//! Not here: sending and receiving (the shells), keeping the view (`warmpath-router-core`).
//! The idea: a stream is one snapshot (`Begin`, `Runs`..., `End`) and then `Update`s, each stamped with
//! `(worker_uid, boot_epoch, seq)`. Every frame of a snapshot carries the `seq` that the snapshot shows; the first update
//! behind it carries `seq + 1`. A receiver that sees anything else drops the stream and opens another, asking for what
//! comes after the last stamp that it has: the worker then sends `Resumed` and the updates that were missed, or a snapshot.

mod digest;
mod ring;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use self::digest::Digest;
pub use self::ring::{Ring, RingLimits};

use crate::block_hash::BlockKey;
use crate::ids::{RequestId, SlotId, WorkerUid};
use crate::model::ModelInfo;

/// Is the version of the frames' encoding: the first byte of each.
pub const PROTOCOL_VERSION: u8 = 4;

/// Is the media type of the binary stream: frames, each behind its length as a big-endian u32.
pub const CONTENT_TYPE: &str = "application/vnd.warmpath.summary";

/// Is the longest frame that is sent or accepted; a sender splits longer content.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Is the most block keys a sender puts into one frame, so that it stays well below [`FRAME_BYTES_MAX`].
pub const KEYS_PER_FRAME_MAX: usize = 1 << 16;

/// Is the path of the snapshot as JSON.
pub const SNAPSHOT_PATH: &str = "/internal/v1/summary";
/// Is the path of the binary stream.
pub const STREAM_PATH: &str = "/internal/v1/summary/stream";
/// Is the query parameter of the stream that names the last [`Stamp`] which the receiver has.
pub const AFTER_PARAMETER: &str = "after";
/// Is the path of the model's metadata as a GGUF file without tensors.
pub const VOCABULARY_PATH: &str = "/internal/v1/vocabulary";

/// What a worker says to a subscriber while its model loads: the field [`Loading::FIELD`] of a JSON object with the status 503.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loading {
    /// Names under which clients will be able to ask for the model, those of its adapters included.
    pub names: Vec<String>,
    /// How much is loaded, 0 to 100.
    pub percent: u8,
}

impl Loading {
    /// Name of the field, which stands beside the error.
    pub const FIELD: &str = "loading";
}

/// Orders the frames of one worker's one life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Names the worker.
    pub worker_uid: WorkerUid,
    /// Names this life of the worker's process: a later start has a larger one. Units: nanoseconds since 1970.
    pub boot_epoch: u64,
    /// Counts the updates of this life.
    pub seq: u64,
}

impl Stamp {
    /// Returns whether both are of one life of one worker.
    pub fn is_same_life(self, other: Self) -> bool {
        (self.worker_uid, self.boot_epoch) == (other.worker_uid, other.boot_epoch)
    }
}

/// Spells the stamp as [`AFTER_PARAMETER`] carries it: `<uid>.<boot epoch>.<seq>`.
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.worker_uid, self.boot_epoch, self.seq)
    }
}

/// Says that a text does not spell a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stamp is `<uid>.<boot epoch>.<seq>`")]
pub struct NoStamp;

impl FromStr for Stamp {
    type Err = NoStamp;

    fn from_str(text: &str) -> Result<Self, NoStamp> {
        let mut parts = text.split('.');
        let mut part = || parts.next().ok_or(NoStamp);
        let uid = crate::block_hash::from_hex(part()?).ok_or(NoStamp)?;
        let (boot_epoch, seq) = (part()?.parse(), part()?.parse());
        let (Ok(boot_epoch), Ok(seq), None) = (boot_epoch, seq, parts.next()) else { return Err(NoStamp) };
        Ok(Self { worker_uid: WorkerUid(u64::from_be_bytes(uid)), boot_epoch, seq })
    }
}

/// Is one message of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// Orders the frame.
    pub stamp: Stamp,
    /// Is the content.
    pub body: Body,
}

/// Is the content of a frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Body {
    /// Opens a snapshot.
    Begin(Box<Opening>),
    /// Is a part of a snapshot: runs to be applied to an empty view.
    Runs(Vec<Run>),
    /// Closes a snapshot: the digest of all its runs.
    End(Digest),
    /// Is what has changed since the stamp before.
    Update {
        /// Lists the changes in the order in which they happened.
        changes: Vec<Change>,
        /// Is the load after the changes; absent where it did not change.
        load: Option<Load>,
        /// Is the digest of all that is held after the changes; absent in updates that carry nothing but the load.
        digest: Option<Digest>,
    },
    /// Opens a stream without a snapshot: updates go on behind this stamp, for which the receiver has asked.
    Resumed,
}

/// Is what a router needs to use a worker, ahead of what the worker holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// Declares the model.
    pub model: ModelInfo,
    /// Says how busy the worker is.
    pub load: Load,
}

/// Is a stretch of consecutive blocks of one chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Lists the blocks in the order of the chain, without gaps.
    pub keys: Vec<BlockKey>,
    /// Says where the blocks' KV state lies.
    pub tier: Tier,
    /// Says whether it is there already.
    pub state: RunState,
    /// Says behind which blocks a request may start.
    pub resume: Resume,
    /// Names the slot that holds the blocks; absent for state that lies in no slot.
    pub slot: Option<SlotId>,
}

/// Says where KV state lies, from the fastest to reach to the slowest.
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

/// Says whether KV state has been computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// A running request will have computed it before a request that arrives now needs it.
    Filling,
    /// It is there.
    Ready,
}

/// Says behind which blocks of a run a request may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resume {
    /// Behind each of them.
    EveryBlock,
    /// Only behind the last, a checkpoint.
    LastBlock,
    /// Behind none of them: what leads to a checkpoint further on.
    Nowhere,
}

impl Resume {
    /// Returns whether a request may start behind block `idx` of a run of `n_blocks`.
    pub fn is_behind(self, idx: usize, n_blocks: usize) -> bool {
        match self {
            Self::EveryBlock => true,
            Self::LastBlock => idx + 1 == n_blocks,
            Self::Nowhere => false,
        }
    }
}

/// Is one change of what a worker holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The worker holds these blocks, in this way; it replaces what was said of them before.
    Stored(Run),
    /// The worker no longer holds these blocks anywhere.
    Removed(Vec<BlockKey>),
    /// The worker has counted this request in its load.
    Accepted(RequestId),
}

/// Says how busy a worker is and how fast it has been.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Is the prompt tokens, beyond what is reused, of requests that wait for a slot.
    pub queued_prefill_tokens: u64,
    /// Is the prompt tokens still to be computed in running sequences.
    pub running_prefill_tokens: u64,
    /// Is the number of requests that wait for a slot.
    pub n_queued: u32,
    /// Is the number of sequences that decode.
    pub n_decoding: u32,
    /// Lists the slots that run a sequence.
    pub busy_slots: Vec<SlotId>,
    /// Is the number of free cells of the KV cache, idle slots' cells counted as taken.
    pub free_cells: u64,
    /// Says whether the worker takes no more requests because it is shutting down.
    pub draining: bool,
    /// Is what the worker has measured.
    pub rates: Rates,
}

/// Is what a worker has measured of itself, as moving averages; absent until it has been measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Units: prompt tokens per second, all sequences together.
    pub prefill_tokens_per_s: Option<f32>,
    /// Units: milliseconds of a step that decodes only.
    pub decode_step_ms: Option<f32>,
    /// Units: answer tokens of a finished request, on average.
    pub answer_tokens: Option<f32>,
}

/// Is a whole snapshot, as `GET /internal/v1/summary` shows it in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Orders the snapshot.
    pub stamp: Stamp,
    /// Declares the model.
    pub model: ModelInfo,
    /// Lists what is held.
    pub runs: Vec<Run>,
    /// Says how busy the worker is.
    pub load: Load,
}

impl Snapshot {
    /// Returns the frames that carry this snapshot, each below [`FRAME_BYTES_MAX`].
    pub fn into_frames(self) -> Vec<Frame> {
        let stamp = self.stamp;
        let digest = Digest::of(self.runs.iter().flat_map(|run| &run.keys));
        let mut bodies = vec![Body::Begin(Box::new(Opening { model: self.model, load: self.load }))];
        let mut batch = Vec::new();
        let mut n_keys = 0;
        for run in self.runs.into_iter().flat_map(Run::split) {
            if n_keys + run.keys.len() > KEYS_PER_FRAME_MAX && !batch.is_empty() {
                bodies.push(Body::Runs(std::mem::take(&mut batch)));
                n_keys = 0;
            }
            // A run's own fields cost about as much as two keys.
            n_keys += run.keys.len() + 2;
            batch.push(run);
        }
        if !batch.is_empty() {
            bodies.push(Body::Runs(batch));
        }
        bodies.push(Body::End(digest));
        bodies.into_iter().map(|body| Frame { stamp, body }).collect()
    }
}

impl Run {
    /// Cuts the run into runs that fit into a frame each and say the same together.
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

/// Says why bytes are not a frame.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The frame has no bytes.
    #[error("the frame is empty")]
    Empty,
    /// The frame is longer than [`FRAME_BYTES_MAX`].
    #[error("the frame has {n_bytes} bytes, more than {FRAME_BYTES_MAX}")]
    TooLong {
        /// Is the frame's length.
        n_bytes: usize,
    },
    /// The sender speaks another version.
    #[error("the frame has protocol version {version}, not {PROTOCOL_VERSION}")]
    Version {
        /// Is the sender's version.
        version: u8,
    },
    /// The bytes do not spell a frame.
    #[error("the frame cannot be decoded")]
    Malformed(#[source] postcard::Error),
    /// There are bytes behind the frame's end.
    #[error("the frame has {n_bytes} bytes behind its end")]
    Trailing {
        /// Is their number.
        n_bytes: usize,
    },
}

impl Frame {
    /// Returns the frame's bytes, without the length that stands before them in a stream.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![PROTOCOL_VERSION]).expect("a frame's types all have a postcard form")
    }

    /// Returns the frame that `bytes` spell.
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
