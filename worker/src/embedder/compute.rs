//! The calls into llama.cpp: a context for embeddings, and one batch of texts at a time.
//!
//! A model without a KV cache computes a whole batch in one micro-batch, which must be as long as the longest text. A
//! causal model whose pooling uses only the last token can compute a text in pieces. Such a text has its own sequence
//! and cells, so that other texts can be computed between its pieces. Not here: the choice of texts (`thread`).

use std::num::NonZeroU32;

use llama_cpp_2::DecodeError;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{LlamaContextParams, LlamaPoolingType};
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use warmpath_common::ids::Token;
use warmpath_common::model::{EmbeddingInfo, Fingerprint, Pooling};
use warmpath_worker_core::batches::compute_threads::ThreadWaits;

use super::layout::EmbeddingLayout;
use super::{EmbedConfig, EmbedFacts};
use crate::engine::{SLOTS_MAX, StartError, StepThreads, describe_model, with_rope};

/// Context that computes batches of texts; sequence ids are indexes in the batch.
pub(super) struct Computer<'m> {
    context: LlamaContext<'m>,
    batch: LlamaBatch<'static>,
    threads: StepThreads,
    layout: EmbeddingLayout,
    n_slots: u16,
}

/// Output of the model for one text: one vector, or one for each token without pooling.
pub(super) type Vectors = Vec<Vec<f32>>;

impl<'m> Computer<'m> {
    /// Creates the context and tries it with one token.
    ///
    /// Errors: `Context`; `Unsupported` if the model does not support the configuration.
    pub(super) fn open(
        model: &'m LlamaModel,
        config: &EmbedConfig,
        fingerprint: Fingerprint,
    ) -> Result<(Self, EmbedFacts), StartError> {
        let unsupported_error = |reason: String| StartError::Unsupported { path: config.engine.model.clone(), reason };
        let file = |key: &str| model.meta_val_str(key).ok();
        let metadata = config.engine.metadata(&file);
        let n_ctx_train = config.engine.rope.extended(&metadata);
        let mut layout = EmbeddingLayout::new(&metadata, config);
        if layout.pooling == Pooling::Rank {
            check_head(config).map_err(unsupported_error)?;
        }
        let mut computer = Self::with_context(model, config, layout)?;
        // Only a model with a KV cache can compute a text in several micro-batches.
        let has_memory = computer.probe().map_err(unsupported_error)?;
        if !has_memory && layout.ubatch_tokens < layout.batch_tokens {
            layout = layout.unsplit();
            drop(computer);
            computer = Self::with_context(model, config, layout)?;
        }
        let EmbeddingLayout { pooling, text_tokens_max, .. } = layout;
        let n_out = match pooling {
            Pooling::Rank => model.n_cls_out(),
            _ => u32::try_from(model.n_embd_out()).unwrap_or(0),
        };
        let facts = EmbedFacts {
            text_tokens_max,
            n_sequences: config.engine.n_slots,
            n_vocab: model.n_vocab().unsigned_abs(),
            n_ctx_train,
            embedding: EmbeddingInfo { pooling, dimensions: n_out },
            model_fingerprint: fingerprint,
            description: describe_model(model, &config.engine.model),
            n_params: model.n_params(),
            model_bytes: model.size(),
        };
        Ok((computer, facts))
    }

    fn with_context(model: &'m LlamaModel, config: &EmbedConfig, layout: EmbeddingLayout) -> Result<Self, StartError> {
        let context = model.new_context(warmpath_prompt::backend(), context_params(config, layout));
        let context = context.map_err(|error| StartError::Context {
            n_slots: config.engine.n_slots,
            context_tokens_total: layout.batch_tokens,
            reason: error.to_string(),
        })?;
        let batch = LlamaBatch::new(context.n_batch() as usize, 1);
        let threads = StepThreads::new(&config.engine);
        Ok(Self { context, batch, threads, layout, n_slots: config.engine.n_slots })
    }

    /// Computes one token; returns whether the model has a KV cache.
    ///
    /// Errors: the reason why it cannot be computed.
    fn probe(&mut self) -> Result<bool, String> {
        self.batch.clear();
        let addition = self.batch.add(LlamaToken(0), 0, &[0], true);
        addition.expect("a batch has room for a token");
        self.decode().map_err(|error| format!("its first batch failed ({error})"))?;
        let has_memory = self.context.kv_cache_seq_pos_max(0) >= 0;
        self.vectors(0, 0..1)?;
        self.context.clear_kv_cache();
        Ok(has_memory)
    }

    /// Computes the batch.
    fn decode(&mut self) -> Result<(), DecodeError> {
        let Self { context, batch, threads, .. } = self;
        threads.decode(context, batch.n_tokens().unsigned_abs(), |context| context.decode(batch))
    }

    /// Returns how long threads waited for a processor in the last window of batches that has ended, once.
    pub(super) fn take_waits(&mut self) -> Option<ThreadWaits> {
        self.threads.take_waits()
    }

    /// Returns the maximum length of a piece of a text; `None` if texts are computed as a whole.
    pub(super) fn piece_tokens(&self) -> Option<u32> {
        self.layout.piece_tokens()
    }

    /// Returns the maximum number of texts of a batch.
    pub(super) fn n_sequences(&self) -> u16 {
        if self.piece_tokens().is_some() { n_sequences(self.n_slots) - 1 } else { self.n_slots }
    }

    /// Returns the vectors of texts, each computed independently of the others.
    ///
    /// Shape: `texts` `[n]` -> `[n]`, each text `[1..]`; together at most a micro-batch. Errors: a description of the
    /// failure; the computed part of a text in pieces is then dropped.
    pub(super) fn embed(&mut self, texts: &[&[Token]]) -> Result<Vec<Vectors>, String> {
        self.batch.clear();
        for (sequence, text) in (0..).zip(texts) {
            self.push(sequence, text, 0);
        }
        let result = self.decode().map_err(|error| error.to_string());
        let vectors = result.and_then(|()| {
            let mut first = 0;
            let vectors = |(sequence, text): (i32, &&[Token])| {
                let tokens = first..first + i32::try_from(text.len()).unwrap_or(i32::MAX);
                first = tokens.end;
                self.vectors(sequence, tokens)
            };
            (0..).zip(texts).map(vectors).collect()
        });
        match &vectors {
            Ok(_) => (0..).zip(texts).for_each(|(sequence, _)| self.clear(sequence)),
            Err(_) => self.clear_all(),
        }
        vectors
    }

    /// Computes the next piece of a text, after its first `n_computed` tokens; returns its vectors once it is complete.
    ///
    /// Shape: one text at a time is computed in pieces. Errors: a description of the failure; the computed part of the
    /// text is then dropped.
    pub(super) fn extend(&mut self, text: &[Token], n_computed: usize) -> Result<Option<Vectors>, String> {
        let tokens_left = &text[n_computed..];
        let piece_tokens = self.piece_tokens().map_or(tokens_left.len(), |n| tokens_left.len().min(n as usize));
        let sequence = self.own_sequence();
        self.batch.clear();
        self.push(sequence, &tokens_left[..piece_tokens], n_computed);
        let result = self.decode().map_err(|error| error.to_string());
        // The vectors of every piece are checked, so that no text beside a piece attends to cells that are not finite.
        let vectors = result.and_then(|()| self.vectors(sequence, 0..0));
        match &vectors {
            Ok(_) if piece_tokens < tokens_left.len() => return Ok(None),
            Ok(_) => self.give_up(),
            Err(_) => self.clear_all(),
        }
        vectors.map(Some)
    }

    /// Drops the text that is computed in pieces; all its numbers so far are finite.
    pub(super) fn give_up(&mut self) {
        self.clear(self.own_sequence());
    }

    /// Returns the sequence of the text that is computed in pieces.
    fn own_sequence(&self) -> i32 {
        i32::from(n_sequences(self.n_slots)) - 1
    }

    fn push(&mut self, sequence: i32, tokens: &[Token], position: usize) {
        let position = i32::try_from(position).expect("a position is below the context's size, an i32");
        for (position, token) in (position..).zip(tokens) {
            let token = LlamaToken(i32::try_from(*token).expect("tokens were checked against the vocabulary"));
            let addition = self.batch.add(token, position, &[sequence], true);
            addition.expect("the batch plan respects the batch's size");
        }
    }

    fn clear(&mut self, sequence: i32) {
        let result = self.context.clear_kv_cache_seq(Some(sequence.unsigned_abs()), None, None);
        debug_assert_eq!(result, Ok(true), "a whole sequence can always be removed");
    }

    /// Clears every cell and its keys and values, after a batch whose numbers may not be finite.
    ///
    /// Removing a sequence leaves its keys and values in the cells. Attention also reads masked cells, and a mask does
    /// not change NaN. Source: `llama_kv_cache::get_n_kv`, which rounds the number of cells up to a multiple of 256.
    fn clear_all(&mut self) {
        self.context.clear_kv_cache();
    }

    fn vectors(&self, sequence: i32, tokens: std::ops::Range<i32>) -> Result<Vectors, String> {
        let none = |_| "llama.cpp gave no vector".to_owned();
        let vectors: Vectors = if self.layout.pooling == Pooling::None {
            let of_token = |token| {
                self.context.embeddings_ith(token).map(<[f32]>::to_vec).map_err(|error| none(error.to_string()))
            };
            tokens.map(of_token).collect::<Result<_, _>>()?
        } else {
            let pooled_vector = self.context.embeddings_seq_ith(sequence).map_err(|error| none(error.to_string()))?;
            vec![pooled_vector.to_vec()]
        };
        // A vector with NaN would reach the client as nulls.
        if vectors.iter().flatten().any(|number| !number.is_finite()) {
            return Err("the model gave a vector with numbers that are not finite".to_owned());
        }
        Ok(vectors)
    }
}

/// Returns the settings of a context for batches of texts, with room for one more text if texts are computed in pieces.
pub(super) fn context_params(config: &EmbedConfig, layout: EmbeddingLayout) -> LlamaContextParams {
    let engine = &config.engine;
    let (n_sequences, piece_cells) = match layout.piece_tokens() {
        Some(piece_tokens) => (n_sequences(engine.n_slots), piece_tokens),
        None => (engine.n_slots, 0),
    };
    let flash_attn = match engine.uses_flash_attn() {
        true => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        false => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED,
    };
    let params = LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(layout.batch_tokens + piece_cells))
        .with_n_seq_max(u32::from(n_sequences))
        .with_n_batch(layout.batch_tokens.max(u32::from(n_sequences)))
        .with_n_ubatch(layout.ubatch_tokens)
        .with_n_threads(engine.n_threads().into())
        .with_n_threads_batch(engine.n_threads_batch().into())
        .with_flash_attention_policy(flash_attn)
        // With one buffer per sequence, llama.cpp splits a batch at the end of its shortest text, and pools each piece
        // by itself.
        .with_kv_unified(true)
        .with_embeddings(true)
        .with_pooling_type(pooling_type(layout.pooling))
        .with_offload_kqv(engine.placement.offloads_kv())
        .with_op_offload(engine.placement.offloads_products())
        .with_no_perf(true);
    with_rope(params, &engine.rope)
}

/// Returns the number of sequences of a context that computes a text in pieces; the last sequence is for that text.
fn n_sequences(n_slots: u16) -> u16 {
    n_slots.saturating_add(1).min(SLOTS_MAX)
}

/// Checks that a model for scores has a classification head.
///
/// Errors: the reason if it has none.
fn check_head(config: &EmbedConfig) -> Result<(), String> {
    let files = warmpath_gguf::Model::open(&config.engine.model).map_err(|error| error.to_string())?;
    match files.tensors().any(|tensor| tensor.name.starts_with("cls.")) {
        true => Ok(()),
        false => Err("it has no classification head, so it cannot score documents".to_owned()),
    }
}

fn pooling_type(pooling: Pooling) -> LlamaPoolingType {
    match pooling {
        Pooling::None => LlamaPoolingType::None,
        Pooling::Mean => LlamaPoolingType::Mean,
        Pooling::Cls => LlamaPoolingType::Cls,
        Pooling::Last => LlamaPoolingType::Last,
        Pooling::Rank => LlamaPoolingType::Rank,
    }
}
