//! Incremental parser of one answer: new content, reasoning and tool calls.
//!
//! The worker decides when text is parsed, and what happens to text that cannot be parsed.

use std::ffi::{c_int, c_void};
use std::ptr;

use serde::Deserialize;

use crate::error::ChatError;
use crate::ffi;
use crate::stack::on_large_stack;

/// Deepest nesting of brackets in an answer that is parsed.
///
/// Source: no client reads more (serde_json and PHP end at 128 and 512 levels). At 4 kB of stack for each level,
/// llama.cpp would read as many on the 8 MiB of an ordinary thread, too.
pub const DEPTH_MAX: usize = 1024;

/// Deepest nesting of brackets for which the caller's own stack suffices.
///
/// Source: 4 kB of stack for each level, a quarter of a thread's 2 MiB.
const DEPTH_INLINE_MAX: usize = 128;

/// New parts of an answer; texts may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Delta {
    /// New reasoning.
    pub reasoning: String,
    /// New content.
    pub content: String,
    /// New parts of calls.
    pub tool_calls: Vec<CallDelta>,
}

/// New part of one call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct CallDelta {
    /// Index of the call.
    pub index: usize,
    /// Id of the call, in its first delta.
    pub id: Option<String>,
    /// Name of the function, in the call's first delta.
    pub name: Option<String>,
    /// New part of the arguments.
    pub arguments: String,
}

/// Parser of one answer.
#[derive(Debug)]
pub struct AnswerParser {
    raw: Raw,
    depth: Depth,
}

#[derive(Debug)]
struct Raw(*mut c_void);

// SAFETY: a reader has one user at a time, and nothing in it belongs to a thread.
unsafe impl Send for Raw {}

impl Raw {
    fn pointer(&mut self) -> *mut c_void {
        self.0
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: it came from `wp_reader_new` and is freed once.
        unsafe { ffi::wp_reader_free(self.0) };
    }
}

/// Nesting depth of brackets in a text that is read piece by piece; brackets in strings count, too.
#[derive(Debug, Default)]
struct Depth {
    n_read: usize,
    now: usize,
    most: usize,
}

impl Depth {
    /// Reads the part of the whole text that is new and returns the greatest depth so far.
    fn read(&mut self, text: &str) -> usize {
        for byte in text.as_bytes().get(self.n_read..).unwrap_or_default() {
            match byte {
                b'[' | b'{' | b'<' => self.now += 1,
                b']' | b'}' | b'>' => self.now = self.now.saturating_sub(1),
                _ => {}
            }
            self.most = self.most.max(self.now);
        }
        self.n_read = text.len();
        self.most
    }
}

/// Whether more of the answer follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    First,
    Whole,
}

impl AnswerParser {
    pub(crate) fn new(raw: *mut c_void) -> Self {
        Self { raw: Raw(raw), depth: Depth::default() }
    }

    /// Marks the part of the answer that the prompt already contains as returned; the answer's deltas then start after
    /// it.
    ///
    /// Errors: `Refused` if that part does not have the format.
    pub fn skip_prefix(&mut self) -> Result<(), ChatError> {
        // SAFETY: the reader is this one's own.
        ffi::call(|error| unsafe { ffi::wp_reader_skip(self.raw.0, error) })
    }

    /// Returns the new parts of an answer that has grown to `text` and is not complete. `fresh_id` is the prefix of new
    /// calls' ids.
    ///
    /// Cost: proportional to the whole text. Errors: `Refused` if the text does not have the format, `TooDeep`.
    pub fn read(&mut self, text: &str, fresh_id: &str) -> Result<Delta, ChatError> {
        self.read_part(text, fresh_id, Part::First)
    }

    /// Returns the new parts of an answer that is complete.
    ///
    /// Cost and errors: as [`Self::read`].
    pub fn finish(&mut self, text: &str, fresh_id: &str) -> Result<Delta, ChatError> {
        self.read_part(text, fresh_id, Part::Whole)
    }

    fn read_part(&mut self, text: &str, fresh_id: &str, part: Part) -> Result<Delta, ChatError> {
        let depth = self.depth.read(text);
        if depth > DEPTH_MAX {
            return Err(ChatError::TooDeep);
        }
        let (raw, fresh_id) = (&mut self.raw, ffi::c_text(fresh_id)?);
        let is_partial = c_int::from(part == Part::First);
        let mut read = move || {
            let mut delta = ptr::null_mut();
            // SAFETY: reader and texts live through the call, which writes `delta` if it succeeds.
            ffi::call(|error| unsafe {
                let text = (text.as_ptr().cast(), text.len());
                ffi::wp_reader_read(raw.pointer(), text.0, text.1, is_partial, fresh_id.as_ptr(), &mut delta, error)
            })?;
            let strange = |error: serde_json::Error| ChatError::Strange { reason: error.to_string() };
            serde_json::from_str(&ffi::take_text(delta)).map_err(strange)
        };
        if depth <= DEPTH_INLINE_MAX { read() } else { on_large_stack(read) }
    }
}
