//! Qwen 3.5 with random weights: three gated delta nets, then attention.
//!
//! The channels of the residual stream have a use each: the first ones hold the token, and only attention and its
//! feed-forward part change them; one holds a constant; the last ones hold the context, which only the delta nets and
//! their feed-forward parts write. What a delta net reads depends on constant and context alone, so the context changes
//! slowly from token to token.

use std::ops::Range;

use warmpath_gguf::TensorType;

use crate::model::made::preset::{LayerKind, Spec};
use crate::model::made::tokenizer::Tokenizer;
use crate::model::made::weights::recurrent::{KERNEL, noise, output};
use crate::model::made::weights::{Tensor, tensor};

/// Size of a head's keys and values.
const HEAD_SIZE: usize = 32;
/// Number of heads with keys of their own; value heads share them.
const N_KEY_HEADS: usize = 2;
/// Time in which a head forgets. Units: tokens.
const MEMORY_TOKENS: [f32; 4] = [16.0, 128.0, 1024.0, 8192.0];
/// Number of channels of all values.
const INNER: usize = HEAD_SIZE * MEMORY_TOKENS.len();
/// Number of channels of all keys.
const KEYS: usize = HEAD_SIZE * N_KEY_HEADS;

/// Keys and values of the metadata that describe the states.
pub(crate) const SIZES: [(&str, usize); 5] = [
    ("ssm.conv_kernel", KERNEL),
    ("ssm.inner_size", INNER),
    ("ssm.state_size", HEAD_SIZE),
    ("ssm.time_step_rank", MEMORY_TOKENS.len()),
    ("ssm.group_count", N_KEY_HEADS),
];

/// Channels of the token, of the constant, and of the context.
const TOKEN: Range<usize> = 0..96;
const CONSTANT: usize = 96;
const CONTEXT: Range<usize> = 97..128;
/// Constant and context.
const SLOW: Range<usize> = CONSTANT..CONTEXT.end;
/// All channels.
const ALL: Range<usize> = 0..CONTEXT.end;
/// The constant; that of the other channels is about 1.
const CONSTANT_VALUE: f32 = 3.5;

/// Standard deviation of a channel of a normed query or key of attention; that of a score is its square.
const QUERY: f32 = 1.2;
/// Approximate standard deviation of what attention, or its feed-forward part, adds to a channel.
const GAIN: f32 = 2.0;
/// The same of a delta net, and of its feed-forward part, which reads no token and so adds nearly a constant.
const CONTEXT_GAIN: f32 = 2.5;
const CONTEXT_FEED_FORWARD_GAIN: f32 = 0.5;
/// Logit of the rate at which a token's value replaces that of its key; a small rate keeps early tokens.
const RATE_LOGIT: f32 = -3.0;
/// Standard deviation of what the content adds to the logits of the rates.
const RATE: f32 = 0.5;

/// Factor that undoes the norm of the model's last state.
///
/// Source: between 4 and 4.5, with which most drafts of six seeds are right.
const LAST_STATE: f32 = 4.25;

/// First stream of random numbers of the first layer, and number of streams that a layer may use.
const FIRST_STREAM: u64 = 600;
const STREAMS_PER_LAYER: u64 = 20;

/// Returns the tensors of a Qwen 3.5.
pub(super) fn tensors(spec: &Spec, seed: u64, tokenizer: &Tokenizer) -> Vec<Tensor> {
    assert_eq!(spec.width, ALL.len(), "the channels' uses are fixed");
    let weights = Weights { spec, seed };
    let mut tensors = vec![
        weights.embedding(tokenizer.n_tokens),
        constant("output_norm.weight", spec.width, 1.0),
        output(spec, seed, TensorType::F32, tokenizer),
    ];
    for (il, layer) in spec.layers.iter().enumerate() {
        let stream = FIRST_STREAM + STREAMS_PER_LAYER * il as u64;
        match layer.kind {
            LayerKind::DeltaNet => weights.add_delta_net(&mut tensors, il, stream),
            LayerKind::NextToken => {
                weights.add_attention(&mut tensors, il, stream - STREAMS_PER_LAYER);
                weights.add_inputs_of_head(&mut tensors, il);
            }
            _ => weights.add_attention(&mut tensors, il, stream),
        }
    }
    tensors
}

fn constant(name: &str, n: usize, value: f32) -> Tensor {
    tensor(name, TensorType::F32, &[n], move || vec![value; n])
}

/// Maker of one model's tensors. Each takes its random numbers from a stream of its own.
struct Weights<'a> {
    spec: &'a Spec,
    seed: u64,
}

impl Weights<'_> {
    fn embedding(&self, n_tokens: usize) -> Tensor {
        let (seed, width) = (self.seed, self.spec.width);
        tensor("token_embd.weight", TensorType::F32, &[width, n_tokens], move || {
            let mut cells = noise(seed, FIRST_STREAM - 1, width * n_tokens, 1.0);
            for row in cells.chunks_exact_mut(width) {
                row[CONSTANT] = CONSTANT_VALUE;
                row[CONTEXT].fill(0.0);
            }
            cells
        })
    }

    /// Adds a layer that reads the token and writes the context.
    fn add_delta_net(&self, tensors: &mut Vec<Tensor>, il: usize, stream: u64) {
        let name = |part: &str| format!("blk.{il}.{part}");
        let (seed, n_heads) = (self.seed, MEMORY_TOKENS.len());
        let kernel = move || noise(seed, stream + 1, KERNEL * (2 * KEYS + INNER), (KERNEL as f32).powf(-0.5));
        tensors.extend([
            constant(&name("attn_norm.weight"), self.spec.width, 1.0),
            self.queries_keys_values(&name("attn_qkv.weight"), stream),
            tensor(&name("ssm_conv1d.weight"), TensorType::F32, &[KERNEL, 2 * KEYS + INNER], kernel),
            self.reading(&name("attn_gate.weight"), stream + 2, SLOW, INNER, 1.0),
            self.reading(&name("ssm_alpha.weight"), stream + 3, SLOW, n_heads, RATE),
            self.rates(&name("ssm_beta.weight"), stream + 4),
            // The softplus of this value is 1: one token is about one unit of time.
            constant(&name("ssm_dt.bias"), n_heads, 0.541_324_9),
            tensor(&name("ssm_a"), TensorType::F32, &[n_heads], || MEMORY_TOKENS.map(|memory| -1.0 / memory).to_vec()),
            constant(&name("ssm_norm.weight"), HEAD_SIZE, 1.0),
            self.writing(&name("ssm_out.weight"), stream + 5, INNER, CONTEXT, CONTEXT_GAIN),
        ]);
        self.add_feed_forward(tensors, il, stream, SLOW, CONTEXT);
    }

    /// Adds a layer that reads everything and writes the token.
    fn add_attention(&self, tensors: &mut Vec<Tensor>, il: usize, stream: u64) {
        let name = |part: &str| format!("blk.{il}.{part}.weight");
        let (width, head_size) = (self.spec.width, self.spec.head_size);
        let (heads, kv_heads) = (self.spec.n_heads * head_size, self.spec.n_kv_heads * head_size);
        tensors.extend([
            constant(&name("attn_norm"), width, 1.0),
            // Each head's query and gate.
            self.reading(&name("attn_q"), stream, ALL, 2 * heads, 1.0),
            self.reading(&name("attn_k"), stream + 1, ALL, kv_heads, 1.0),
            self.reading(&name("attn_v"), stream + 2, ALL, kv_heads, GAIN),
            constant(&name("attn_q_norm"), head_size, QUERY),
            constant(&name("attn_k_norm"), head_size, QUERY),
            self.writing(&name("attn_output"), stream + 3, heads, TOKEN, GAIN),
        ]);
        self.add_feed_forward(tensors, il, stream, ALL, TOKEN);
    }

    /// Adds what combines a head's two inputs: the token's embedding, and the model's last state at the token before,
    /// which contains the context there.
    ///
    /// So the head's input is nearly that of the model's last layer, whose weights it has.
    fn add_inputs_of_head(&self, tensors: &mut Vec<Tensor>, il: usize) {
        let name = |part: &str| format!("blk.{il}.nextn.{part}.weight");
        let width = self.spec.width;
        let combined = move || {
            let mut cells = vec![0.0; 2 * width * width];
            for channel in ALL {
                let (input, weight) =
                    if CONTEXT.contains(&channel) { (width + channel, LAST_STATE) } else { (channel, 1.0) };
                cells[channel * 2 * width + input] = weight;
            }
            cells
        };
        // The root of an embedding's mean square.
        let embedded = ((TOKEN.len() as f32 + CONSTANT_VALUE * CONSTANT_VALUE) / width as f32).sqrt();
        tensors.extend([
            tensor(&name("eh_proj"), TensorType::F32, &[2 * width, width], combined),
            constant(&name("enorm"), width, embedded),
            constant(&name("hnorm"), width, 1.0),
        ]);
    }

    fn add_feed_forward(
        &self,
        tensors: &mut Vec<Tensor>,
        il: usize,
        stream: u64,
        reads: Range<usize>,
        writes: Range<usize>,
    ) {
        let name = |part: &str| format!("blk.{il}.{part}.weight");
        let n_ff = self.spec.n_ff;
        let gain = if writes == TOKEN { GAIN } else { CONTEXT_FEED_FORWARD_GAIN };
        tensors.extend([
            constant(&name("post_attention_norm"), self.spec.width, 1.0),
            self.reading(&name("ffn_gate"), stream + 10, reads.clone(), n_ff, GAIN),
            self.reading(&name("ffn_up"), stream + 11, reads, n_ff, 1.0),
            self.writing(&name("ffn_down"), stream + 12, n_ff, writes, gain),
        ]);
    }

    /// Returns the projection to queries, keys and values; queries do not depend on the token.
    fn queries_keys_values(&self, name: &str, stream: u64) -> Tensor {
        let (seed, width) = (self.seed, self.spec.width);
        tensor(name, TensorType::F32, &[width, 2 * KEYS + INNER], move || {
            let mut cells = noise(seed, stream, width * (2 * KEYS + INNER), GAIN / (width as f32).sqrt());
            cells.chunks_exact_mut(width).take(KEYS).for_each(|row| row[TOKEN].fill(0.0));
            cells
        })
    }

    /// Returns the projection to the rates at which values are replaced.
    fn rates(&self, name: &str, stream: u64) -> Tensor {
        let width = self.spec.width;
        let varying = self.reading(name, stream, TOKEN, MEMORY_TOKENS.len(), RATE);
        let fill = move || {
            let mut cells = (varying.fill)();
            cells.chunks_exact_mut(width).for_each(|row| row[CONSTANT] = RATE_LOGIT / CONSTANT_VALUE);
            cells
        };
        Tensor { fill: Box::new(fill), ..varying }
    }

    /// Returns a projection from the channels `reads`.
    fn reading(&self, name: &str, stream: u64, reads: Range<usize>, n_out: usize, deviation: f32) -> Tensor {
        let (seed, width) = (self.seed, self.spec.width);
        tensor(name, TensorType::F32, &[width, n_out], move || {
            let mut cells = noise(seed, stream, width * n_out, deviation / (reads.len() as f32).sqrt());
            for row in cells.chunks_exact_mut(width) {
                row[..reads.start].fill(0.0);
                row[reads.end..].fill(0.0);
            }
            cells
        })
    }

    /// Returns a projection to the channels `writes`.
    fn writing(&self, name: &str, stream: u64, n_in: usize, writes: Range<usize>, deviation: f32) -> Tensor {
        let (seed, width) = (self.seed, self.spec.width);
        tensor(name, TensorType::F32, &[n_in, width], move || {
            let mut cells = noise(seed, stream, n_in * width, deviation / (n_in as f32).sqrt());
            cells[..writes.start * n_in].fill(0.0);
            cells[writes.end * n_in..].fill(0.0);
            cells
        })
    }
}
