//! The fields of every request about running it and delivering its response.
//!
//! Not here: the fields about generation (`generation`), the effect of shifts, priorities and slots (the engine).

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use warmpath_common::empty_maps;
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::lora::RequestedAdapter;
use warmpath_common::whole::Whole;
use warmpath_worker_core::slots::shift_plan::REUSE_TOKENS_DEFAULT;

use crate::engine::ShiftOptions;
use crate::error::RequestError;

/// Largest priority of a request; the smallest is its negative.
///
/// Source: only the order of priorities counts, and 201 levels are more than anyone distinguishes.
pub const PRIORITY_ABS_MAX: i32 = 100;

/// Longest silence of a stream that a client can request. Units: seconds. Source: a day, longer than any response
/// takes; -1 requests no limit.
const SILENCE_S_MAX: u64 = 24 * 60 * 60;

/// Maximum number of choices of one prompt. Source: OpenAI's limit.
const CHOICES_MAX: u32 = 128;

/// Way in which an answer reaches its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// One object.
    Whole,
    /// A stream of events.
    Stream,
    /// A stream of events that ends with the token counts.
    StreamWithUsage,
}

/// Options of running a request and delivering its response.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Options {
    /// Name of the model; absent means the only one.
    pub model: Option<String>,
    /// Keeps this request's prefixes apart from those with another salt.
    #[serde(deserialize_with = "warmpath_common::salt::of_body")]
    #[schemars(length(min = 1))]
    pub cache_salt: Option<String>,
    /// Number of choices of each prompt.
    #[serde(alias = "n_cmpl")]
    #[schemars(range(min = 1, max = 128))]
    n: Option<Whole<u32>>,
    /// Whether the response is streamed as server-sent events.
    stream: Option<bool>,
    /// Further options of a stream.
    #[serde(deserialize_with = "empty_maps::optional_object")]
    stream_options: Option<StreamOptions>,
    /// Seconds that a stream may be silent before a comment keeps it alive; -1 is forever.
    #[schemars(range(min = -1, max = 86400))]
    sse_ping_interval: Option<Whole<i64>>,
    /// Whether the request reuses cached state and leaves its own in the cache; absent means yes.
    pub cache_prompt: Option<bool>,
    /// Preferred slot, used unless another one has more reusable state; taken modulo the number of slots. -1 is any.
    #[schemars(range(min = -1))]
    id_slot: Option<Whole<i32>>,
    /// Priority of the request's state in the cache; state with lower priority is evicted first.
    #[schemars(range(min = -100, max = 100))]
    priority: Option<Whole<i32>>,
    /// Minimum length of a run of tokens whose state is moved to its position in the prompt; 0 and `false` move none.
    #[serde(alias = "n_cache_reuse")]
    cache_reuse: Option<CacheReuse>,
    /// Number of prompt tokens that a context shift keeps; -1 is all.
    #[schemars(range(min = -1, max = 4294967295_u32))]
    n_keep: Option<Whole<i64>>,
    /// Number of tokens that a context shift drops; 0 is half of those that it need not keep.
    #[schemars(range(min = 0, max = 4294967295_u32))]
    n_discard: Option<Whole<i64>>,
    /// Adapters to apply, by their indexes, with their scales; at most one of them above 0.
    pub lora: Option<Vec<RequestedAdapter>>,
}

/// `cache_reuse` in its two forms: a length, or a bool.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a number of tokens, or true or false")]
enum CacheReuse {
    Tokens(#[schemars(range(min = 0, max = 4294967295_u32))] Whole<i64>),
    Switch(bool),
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct StreamOptions {
    /// Whether the last event has the token counts.
    include_usage: Option<bool>,
}

/// Checked fields of a request about shifting.
#[derive(Debug, Clone, Copy)]
pub struct ShiftFields {
    cache_reuse_tokens: Option<u32>,
    /// Prompt tokens to keep besides the token that begins a text; absent for the whole prompt.
    n_keep: Option<u32>,
    n_discard: Option<u32>,
}

impl ShiftFields {
    /// Returns the settings for a prompt. The token that begins a text, `bos`, is kept in addition to `n_keep`.
    pub fn resolve(self, prompt: &[Token], bos: Option<Token>) -> ShiftOptions {
        let n_prompt = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let n_first = u32::from(bos.is_some() && prompt.first().copied() == bos);
        ShiftOptions {
            cache_reuse_tokens: self.cache_reuse_tokens,
            n_keep: self.n_keep.map_or(n_prompt, |n_keep| n_keep.saturating_add(n_first)),
            n_discard: self.n_discard,
        }
    }
}

impl Options {
    /// Returns how the answer reaches its client.
    pub fn delivery(&self) -> Delivery {
        let usage = self.stream_options.as_ref().and_then(|options| options.include_usage);
        match (self.stream.unwrap_or(false), usage.unwrap_or(false)) {
            (false, _) => Delivery::Whole,
            (true, false) => Delivery::Stream,
            (true, true) => Delivery::StreamWithUsage,
        }
    }

    /// Returns how long the response's stream may be silent; `None` for any time.
    ///
    /// Errors: `Field`.
    pub fn silence_max(&self, default: Option<Duration>) -> Result<Option<Duration>, RequestError> {
        let param = "sse_ping_interval";
        let wish = self.sse_ping_interval.map(|Whole(seconds)| silence_max(seconds)).transpose();
        let wish = wish.map_err(|reason| RequestError::field(param, format!("`{param}` {reason}")))?;
        Ok(wish.unwrap_or(default))
    }

    /// Returns the number of choices of each prompt.
    ///
    /// Errors: `Field`.
    pub fn n_choices(&self) -> Result<u32, RequestError> {
        let n = self.n.map_or(1, |Whole(n)| n);
        if !(1..=CHOICES_MAX).contains(&n) {
            return Err(RequestError::field("n", format!("`n` must be 1 to {CHOICES_MAX}; it is {n}")));
        }
        Ok(n)
    }

    /// Returns the priority of the request's state in the cache.
    ///
    /// Errors: `Field`.
    pub fn priority(&self) -> Result<i32, RequestError> {
        let priority = self.priority.map_or(0, |Whole(priority)| priority);
        if !(-PRIORITY_ABS_MAX..=PRIORITY_ABS_MAX).contains(&priority) {
            let reason = format!("`priority` must be -{PRIORITY_ABS_MAX} to {PRIORITY_ABS_MAX}; it is {priority}");
            return Err(RequestError::field("priority", reason));
        }
        Ok(priority)
    }

    /// Returns the slot that the request names, modulo the number of slots as in llama-server: llama.vim counts its
    /// requests in `id_slot`.
    ///
    /// Errors: `Field`.
    pub fn wanted_slot(&self, n_slots: u16) -> Result<Option<SlotId>, RequestError> {
        match self.id_slot {
            None | Some(Whole(-1)) => Ok(None),
            Some(Whole(id)) => {
                let n_slots = u32::from(n_slots.max(1));
                let slot = u32::try_from(id).ok().and_then(|id| u16::try_from(id % n_slots).ok());
                let reason = || format!("`id_slot` must be -1 or more; it is {id}");
                slot.map(|slot| Some(SlotId(slot))).ok_or_else(|| RequestError::field("id_slot", reason()))
            }
        }
    }

    /// Returns the fields about shifting. Absent fields have llama-server's defaults: keep nothing, drop half.
    ///
    /// Errors: `Field`.
    pub fn shifts(&self) -> Result<ShiftFields, RequestError> {
        let within = |param: &'static str, n: i64, n_min: i64| match u32::try_from(n) {
            Ok(n) => Ok(Some(n)),
            Err(_) if n == n_min => Ok(None),
            Err(_) => Err(RequestError::field(param, format!("`{param}` must be {n_min} to {}; it is {n}", u32::MAX))),
        };
        let cache_reuse_tokens = match self.cache_reuse {
            None => None,
            Some(CacheReuse::Switch(true)) => Some(REUSE_TOKENS_DEFAULT),
            Some(CacheReuse::Switch(false)) => Some(0),
            Some(CacheReuse::Tokens(Whole(n))) => within("cache_reuse", n, 0)?,
        };
        let n_discard = within("n_discard", self.n_discard.map_or(0, |Whole(n)| n), 0)?;
        Ok(ShiftFields {
            cache_reuse_tokens,
            n_keep: within("n_keep", self.n_keep.map_or(0, |Whole(n)| n), -1)?,
            n_discard: n_discard.filter(|n_discard| *n_discard > 0),
        })
    }
}

/// Returns the longest silence of a stream; `None` for no limit.
///
/// Errors: the reason why the value cannot be used.
pub fn silence_max(interval_s: i64) -> Result<Option<Duration>, String> {
    match u64::try_from(interval_s) {
        Ok(0) => Ok(None),
        Ok(seconds) if seconds <= SILENCE_S_MAX => Ok(Some(Duration::from_secs(seconds))),
        Err(_) if interval_s == -1 => Ok(None),
        _ => Err(format!("must be -1 to {SILENCE_S_MAX} seconds")),
    }
}
