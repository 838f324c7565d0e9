//! Nemotron-H with random weights: Mamba 2, attention without positions, and feed-forward layers, each a layer of its
//! own.
//!
//! The idea is that of `recurrent`: states decay slowly, at rates from a few tokens to thousands, so that an early
//! token still matters. Here each head has one rate, and the states of all heads have one size.

use warmpath_gguf::TensorType;

use crate::model::made::preset::{LayerKind, Spec};
use crate::model::made::tokenizer::Tokenizer;
use crate::model::made::weights::recurrent::{KERNEL, noise, output};
use crate::model::made::weights::{Tensor, tensor};

/// Number of channels of a head, and of all heads.
const HEAD_SIZE: usize = 32;
const INNER: usize = HEAD_SIZE * TIME_STEPS.len();
/// Number of state channels for each inner channel.
const STATE_SIZE: usize = 16;
/// Number of groups of heads; a group has its own input and output of the states, and its own norm.
const N_GROUPS: usize = 2;
/// Time step of each head, and the bias whose softplus it is. The rate of decay is the time step too, so a head
/// remembers 4, 32, 256 or 2048 tokens, the inverse of the time step's square, and its states have the same size.
const TIME_STEPS: [(f32, f32); 4] = [(0.5, -0.4328), (0.176_776_7, -1.6432), (0.0625, -2.7412), (0.022_097_1, -3.8012)];

/// Keys and values of the metadata that describe the states.
pub(crate) const SIZES: [(&str, usize); 5] = [
    ("ssm.conv_kernel", KERNEL),
    ("ssm.inner_size", INNER),
    ("ssm.state_size", STATE_SIZE),
    ("ssm.time_step_rank", TIME_STEPS.len()),
    ("ssm.group_count", N_GROUPS),
];

/// Standard deviation of a query's or key's channel; that of a score is its square.
const QUERY: f32 = 1.6;
/// Approximate standard deviation of what a layer adds to a channel.
const GAIN: f32 = 2.5;
/// Standard deviation of what the content adds to the bias of a time step.
const TIME_STEP: f32 = 0.5;
/// Root of a hidden unit's mean square, which is half the mean fourth power of its normally distributed input.
const SQUARED: f32 = 1.225;

/// Returns the tensors of a Nemotron-H.
pub(super) fn tensors(spec: &Spec, seed: u64, tokenizer: &Tokenizer) -> Vec<Tensor> {
    let (width, n_ff, n_tokens) = (spec.width, spec.n_ff, tokenizer.n_tokens);
    let (heads, kv_heads) = (spec.n_heads * spec.head_size, spec.n_kv_heads * spec.head_size);
    let (convolved, n_heads) = (INNER + 2 * N_GROUPS * STATE_SIZE, TIME_STEPS.len());
    let mut stream = 500;
    let mut random = |name: &str, shape: &[usize], deviation: f32| {
        stream += 1;
        let (n, stream) = (shape.iter().product(), stream);
        // Each output channel sums over the inputs, whose mean square is 1.
        let deviation = deviation / (shape[0] as f32).sqrt();
        tensor(name, TensorType::F32, shape, move || noise(seed, stream, n, deviation))
    };
    let constant = |name: &str, shape: &[usize], value: f32| {
        let n = shape.iter().product();
        tensor(name, TensorType::F32, shape, move || vec![value; n])
    };
    let per_head = |name: &str, shape: &[usize], value: fn((f32, f32)) -> f32| {
        tensor(name, TensorType::F32, shape, move || TIME_STEPS.map(value).to_vec())
    };
    let mut tensors = vec![
        random("token_embd.weight", &[width, n_tokens], (width as f32).sqrt()),
        constant("output_norm.weight", &[width], 1.0),
        output(spec, seed, TensorType::F32, tokenizer),
    ];
    for (il, layer) in spec.layers.iter().enumerate() {
        let name = |part: &str| format!("blk.{il}.{part}");
        tensors.push(constant(&name("attn_norm.weight"), &[width], 1.0));
        match layer.kind {
            LayerKind::Mamba2 => tensors.extend([
                input(random(&name("ssm_in.weight"), &[width, INNER + convolved + n_heads], 1.0), width),
                random(&name("ssm_conv1d.weight"), &[KERNEL, convolved], GAIN),
                constant(&name("ssm_conv1d.bias"), &[convolved], 0.0),
                per_head(&name("ssm_dt.bias"), &[n_heads], |(_, bias)| bias),
                per_head(&name("ssm_a"), &[1, n_heads], |(time_step, _)| -time_step),
                constant(&name("ssm_d"), &[1, n_heads], 1.0),
                constant(&name("ssm_norm.weight"), &[INNER / N_GROUPS, N_GROUPS], 1.0),
                random(&name("ssm_out.weight"), &[INNER, width], GAIN),
            ]),
            LayerKind::FeedForward => tensors.extend([
                random(&name("ffn_up.weight"), &[width, n_ff], 1.0),
                random(&name("ffn_down.weight"), &[n_ff, width], GAIN / SQUARED),
            ]),
            _ => tensors.extend([
                random(&name("attn_q.weight"), &[width, heads], QUERY),
                random(&name("attn_k.weight"), &[width, kv_heads], QUERY),
                random(&name("attn_v.weight"), &[width, kv_heads], GAIN),
                random(&name("attn_output.weight"), &[heads, width], GAIN),
            ]),
        }
    }
    tensors
}

/// Returns the projection to gate, convolved channels and time steps, of which the last rows are smaller.
fn input(tensor: Tensor, width: usize) -> Tensor {
    let fill = move || {
        let mut cells = (tensor.fill)();
        let first = cells.len() - TIME_STEPS.len() * width;
        cells[first..].iter_mut().for_each(|weight| *weight *= TIME_STEP);
        cells
    };
    Tensor { fill: Box::new(fill), ..tensor }
}
