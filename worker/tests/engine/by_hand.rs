//! One sequence in a separate context, moved with llama.cpp's own calls, for comparison with the engine's shifted
//! responses.
//!
//! The calls are those of llama.cpp's server, in the same order, and use no code of the engine. Its server cannot
//! compute tokens in front of others; that takes further sequences, which share the cells.

use std::num::NonZeroU32;
use std::ops::Range;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use warmpath_common::ids::Token;
use warmpath_worker::engine::{EngineConfig, Switch};

/// A context with one sequence.
pub struct ByHand {
    model: &'static LlamaModel,
    context: LlamaContext<'static>,
    n_held: u32,
    logits: Vec<f32>,
}

impl ByHand {
    pub fn new(config: &EngineConfig) -> Self {
        let model = LlamaModel::load_from_file(warmpath_prompt::backend(), &config.model, &LlamaModelParams::default());
        // The context borrows the model until the test ends.
        let model: &'static LlamaModel = Box::leak(Box::new(model.unwrap()));
        let flash_attn = match config.flash_attn {
            Switch::On => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED,
            Switch::Auto | Switch::Off => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        };
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(1024))
            .with_n_seq_max(4)
            .with_kv_unified(true)
            .with_n_threads(1)
            .with_n_threads_batch(1)
            .with_flash_attention_policy(flash_attn);
        let context = model.new_context(warmpath_prompt::backend(), params).unwrap();
        Self { model, context, n_held: 0, logits: Vec::new() }
    }

    /// Computes tokens after the existing ones.
    pub fn compute(&mut self, tokens: &[Token]) {
        self.logits = self.compute_listed(tokens, 1).pop().unwrap();
    }

    /// Computes tokens in one batch after the existing ones; returns the logits of the last `n_listed`.
    pub fn compute_listed(&mut self, tokens: &[Token], n_listed: usize) -> Vec<Vec<f32>> {
        let mut batch = LlamaBatch::new(tokens.len(), 1);
        let first_listed = tokens.len() - n_listed;
        for (idx, (position, token)) in (self.n_held..).zip(tokens).enumerate() {
            batch.add(LlamaToken(*token as i32), position as i32, &[0], idx >= first_listed).unwrap();
        }
        self.context.decode(&mut batch).unwrap();
        self.n_held += tokens.len() as u32;
        (first_listed..tokens.len()).map(|idx| self.context.get_logits_ith(idx as i32).to_vec()).collect()
    }

    /// Drops all tokens.
    pub fn clear(&mut self) {
        self.context.clear_kv_cache();
        self.n_held = 0;
    }

    /// Returns the number of tokens.
    pub fn n_held(&self) -> u32 {
        self.n_held
    }

    /// Returns whether a token ends a text.
    pub fn is_end(&self, token: Token) -> bool {
        self.model.vocab().is_eog(LlamaToken(token as i32))
    }

    /// Returns the logits of the last token.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Drops `n_dropped` tokens after the first `n_kept`, and moves the rest to their positions.
    pub fn shift(&mut self, n_kept: u32, n_dropped: u32) {
        let from = n_kept + n_dropped;
        assert!(self.context.clear_kv_cache_seq(Some(0), Some(n_kept), Some(from)).unwrap());
        self.context.kv_cache_seq_add(0, Some(from), None, -(n_dropped as i32)).unwrap();
        self.n_held -= n_dropped;
    }

    /// Adds the tokens at these positions to another sequence as well.
    pub fn lay_aside(&mut self, sequence: i32, positions: Range<u32>) {
        self.context.kv_cache_seq_cp(0, sequence, Some(positions.start), Some(positions.end)).unwrap();
    }

    /// Drops the tokens after the first `n_kept`.
    pub fn cut(&mut self, n_kept: u32) {
        assert!(self.context.clear_kv_cache_seq(Some(0), Some(n_kept), None).unwrap());
        self.n_held = n_kept;
    }

    /// Appends the tokens of another sequence, which begin at the position `from`.
    pub fn take_back(&mut self, sequence: i32, from: u32) {
        self.context.kv_cache_seq_add(sequence, None, None, self.n_held as i32 - from as i32).unwrap();
        self.context.kv_cache_seq_cp(sequence, 0, None, None).unwrap();
        self.n_held = self.context.kv_cache_seq_pos_max(0) as u32 + 1;
    }

    /// Continues with the most likely tokens that do not end the text.
    pub fn answer(&mut self, n_tokens: usize) -> Vec<Token> {
        self.endless_answer(n_tokens, (u32::MAX, 0, None))
    }

    /// Continues, and shifts whenever a context of that size is full.
    pub fn endless_answer(
        &mut self,
        n_tokens: usize,
        (context_tokens, n_keep, n_discard): (u32, u32, Option<u32>),
    ) -> Vec<Token> {
        let mut answer = Vec::new();
        while answer.len() < n_tokens {
            let goes_on = |token: &Token| !self.is_end(*token);
            let tokens = (0..self.logits.len() as Token).filter(goes_on);
            let best = tokens.max_by(|a, b| self.logits[*a as usize].total_cmp(&self.logits[*b as usize])).unwrap();
            answer.push(best);
            if self.n_held == context_tokens {
                self.shift(n_keep, n_discard.unwrap_or((self.n_held - n_keep) / 2));
            }
            self.compute(&[best]);
        }
        answer
    }
}
