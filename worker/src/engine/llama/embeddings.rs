//! A batch of embeddings, which llama.cpp reads instead of tokens, or beside them: a draft head reads a token and a
//! hidden state.
//!
//! All entries of a batch are alike, so the embeddings of a medium are a separate batch. The bindings only have batches
//! of tokens.

use std::num::NonZeroI32;
use std::ops::Range;
use std::ptr::{self, NonNull};

use llama_cpp_2::DecodeError;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_sys_2 as sys;

use super::Logits;
use crate::engine::media::RunAttention;

/// Embeddings of some sequences' consecutive tokens.
#[derive(Default)]
pub(super) struct EmbeddingBatch {
    /// Tokens beside the embeddings; empty for a medium.
    tokens: Vec<sys::llama_token>,
    floats: Vec<f32>,
    positions: Vec<sys::llama_pos>,
    sequences: Vec<sys::llama_seq_id>,
    /// 1 for an entry whose logits are wanted.
    logits: Vec<i8>,
    is_non_causal: bool,
}

impl EmbeddingBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    pub(super) fn n_tokens(&self) -> u32 {
        u32::try_from(self.positions.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn clear(&mut self) {
        let Self { tokens, floats, positions, sequences, logits, is_non_causal } = self;
        *is_non_causal = false;
        tokens.clear();
        floats.clear();
        positions.clear();
        sequences.clear();
        logits.clear();
    }

    /// Adds a token with a hidden state and returns its index.
    pub(super) fn push(&mut self, sequence: i32, position: i32, token: i32, hidden: &[f32], logits: Logits) -> i32 {
        self.tokens.push(token);
        self.floats.extend_from_slice(hidden);
        self.push_entry(sequence, position, logits);
        i32::try_from(self.positions.len()).unwrap_or(i32::MAX) - 1
    }

    fn push_entry(&mut self, sequence: i32, position: i32, logits: Logits) {
        self.positions.push(position);
        self.sequences.push(sequence);
        self.logits.push(i8::from(logits == Logits::Wanted));
    }

    /// Fills the batch and returns the index of its last token, the only one whose logits may be wanted.
    ///
    /// Shape: `floats` `[positions x width]`.
    pub(super) fn fill(
        &mut self,
        sequence: i32,
        positions: Range<i32>,
        floats: &[f32],
        attention: RunAttention,
        logits: Logits,
    ) -> i32 {
        self.clear();
        self.floats.extend_from_slice(floats);
        let last = positions.end - 1;
        for position in positions {
            self.push_entry(sequence, position, if position == last { logits } else { Logits::Unwanted });
        }
        self.is_non_causal = attention == RunAttention::NonCausal;
        i32::try_from(self.positions.len()).unwrap_or(i32::MAX) - 1
    }

    /// Computes the batch.
    ///
    /// Errors: those of llama.cpp.
    pub(super) fn decode(&mut self, context: &mut LlamaContext<'_>) -> Result<(), DecodeError> {
        let n_tokens = self.positions.len();
        let mut n_sequences = vec![1; n_tokens];
        let mut sequences: Vec<_> = self.sequences.iter_mut().map(ptr::from_mut).collect();
        let tokens = if self.tokens.is_empty() { ptr::null_mut() } else { self.tokens.as_mut_ptr() };
        let batch = sys::llama_batch {
            n_tokens: i32::try_from(n_tokens).unwrap_or(i32::MAX),
            token: tokens,
            embd: self.floats.as_mut_ptr(),
            pos: self.positions.as_mut_ptr(),
            n_seq_id: n_sequences.as_mut_ptr(),
            seq_id: sequences.as_mut_ptr(),
            logits: self.logits.as_mut_ptr(),
        };
        let context = raw_context(context).as_ptr();
        // SAFETY: the context is borrowed, and the lists live through the calls with as many entries as tokens.
        let result = unsafe {
            // The next batch has a causal mask again, whether this one succeeds or not.
            let is_causal = sys::llama_get_causal_attn(context);
            sys::llama_set_causal_attn(context, is_causal && !self.is_non_causal);
            let result = sys::llama_decode(context, batch);
            sys::llama_set_causal_attn(context, is_causal);
            result
        };
        NonZeroI32::new(result).map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Returns the pointer to a context.
///
/// The bindings do not export it, but their `Debug` text contains it.
pub(in crate::engine) fn raw_context(context: &LlamaContext<'_>) -> NonNull<sys::llama_context> {
    let text = format!("{context:?}");
    let digits = text.split("0x").nth(1).unwrap_or_default();
    let end = digits.find(|digit: char| !digit.is_ascii_hexdigit()).unwrap_or(digits.len());
    let address = usize::from_str_radix(&digits[..end], 16).ok();
    let pointer = address.and_then(|address| NonNull::new(ptr::with_exposed_provenance_mut(address)));
    pointer.expect("the debug text of the bindings, whose version is fixed, contains the pointer")
}
