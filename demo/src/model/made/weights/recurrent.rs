//! Mamba with random weights, which is not digital.
//!
//! A state space has no place where a bit could be rounded, but it also has neither a 16-bit KV cache nor flash
//! attention, so its noise is that of 32-bit sums. The states decay slowly, at rates from a few tokens to the whole
//! context, so that an early token still matters at its end.

use rand_chacha::rand_core::Rng as _;
use warmpath_gguf::TensorType;

use crate::model::made::hash_net::rng;
use crate::model::made::preset::Spec;
use crate::model::made::tokenizer::Tokenizer;
use crate::model::made::weights::{Tensor, tensor};

/// Length of the convolution.
pub(super) const KERNEL: usize = 4;
/// Number of state channels for each inner channel.
const STATE_SIZE: usize = 8;
/// Rank of the time step's projection.
const TIME_STEP_RANK: usize = 4;

/// Approximate factor by which one layer amplifies a difference: enough to detect one early token, too little to
/// amplify noise.
const GAIN: f32 = 3.0;
/// Standard deviation of an answer token's logit.
const LOGIT: f32 = 4.0;
/// Factor of the end token's logits, which decides how often that token is the best.
const END_FACTOR: f32 = 1.15;

/// Returns the keys and values of the metadata that describe the states.
pub(crate) fn sizes(spec: &Spec) -> [(&'static str, usize); 4] {
    [
        ("ssm.conv_kernel", KERNEL),
        ("ssm.inner_size", 2 * spec.width),
        ("ssm.state_size", STATE_SIZE),
        ("ssm.time_step_rank", TIME_STEP_RANK),
    ]
}

/// Returns the tensors of a recurrent model.
pub(super) fn tensors(spec: &Spec, seed: u64, tokenizer: &Tokenizer) -> Vec<Tensor> {
    let (width, inner, n_tokens) = (spec.width, 2 * spec.width, tokenizer.n_tokens);
    let mut stream = 100;
    let mut random = |name: &str, shape: &[usize], deviation: f32| {
        stream += 1;
        let (n, stream) = (shape.iter().product(), stream);
        tensor(name, TensorType::F32, shape, move || noise(seed, stream, n, deviation))
    };
    let constant = |name: &str, shape: &[usize], value: f32| {
        let n = shape.iter().product();
        tensor(name, TensorType::F32, shape, move || vec![value; n])
    };
    let mut tensors = vec![
        random("token_embd.weight", &[width, n_tokens], 1.0),
        constant("output_norm.weight", &[width], 1.0),
        output(spec, seed, TensorType::F32, tokenizer),
    ];
    for il in 0..spec.layers.len() {
        let name = |part: &str| format!("blk.{il}.{part}");
        tensors.extend([
            constant(&name("attn_norm.weight"), &[width], 1.0),
            random(&name("ssm_in.weight"), &[width, 2 * inner], GAIN / (width as f32).sqrt()),
            random(&name("ssm_conv1d.weight"), &[KERNEL, inner], (KERNEL as f32).powf(-0.5)),
            constant(&name("ssm_conv1d.bias"), &[inner], 0.0),
            projection(&name("ssm_x.weight"), inner, seed, 200 + il as u64),
            constant(&name("ssm_dt.weight"), &[TIME_STEP_RANK, inner], 0.0),
            // The softplus of this value is 1: one token is one unit of time.
            constant(&name("ssm_dt.bias"), &[inner], 0.541_324_9),
            decay(&name("ssm_a"), inner),
            constant(&name("ssm_d"), &[inner], 1.0),
            random(&name("ssm_out.weight"), &[inner, width], 1.0 / (inner as f32).sqrt()),
        ]);
    }
    tensors
}

/// Returns how many tokens state channel `n` remembers: 4, 12, 35, 102, 300, 880, 2585, 7590.
fn memory_tokens(n: usize) -> f32 {
    4.0 * power(2.94, n)
}

/// Returns `base` to the power of `n`, rounded alike in every build; how `powi` rounds depends on the optimization.
fn power(mut base: f32, mut n: usize) -> f32 {
    let mut power = 1.0;
    while n > 0 {
        if n % 2 == 1 {
            power *= base;
        }
        base *= base;
        n /= 2;
    }
    power
}

fn decay(name: &str, inner: usize) -> Tensor {
    tensor(name, TensorType::F32, &[STATE_SIZE, inner], move || {
        (0..inner * STATE_SIZE).map(|i| -1.0 / memory_tokens(i % STATE_SIZE)).collect()
    })
}

/// Returns the weights of time step, input and output of the states. A state that remembers longer grows larger, so its
/// input and output have smaller weights.
fn projection(name: &str, inner: usize, seed: u64, stream: u64) -> Tensor {
    let n_out = TIME_STEP_RANK + 2 * STATE_SIZE;
    tensor(name, TensorType::F32, &[inner, n_out], move || {
        let mut cells = noise(seed, stream, inner * n_out, GAIN / (inner as f32).sqrt());
        for (row, weights) in cells.chunks_exact_mut(inner).enumerate() {
            let scale = match row.checked_sub(TIME_STEP_RANK) {
                None => 0.0,
                Some(n) => memory_tokens(n % STATE_SIZE).powf(-0.25),
            };
            weights.iter_mut().for_each(|weight| *weight *= scale);
        }
        cells
    })
}

/// Returns the output weights: answer tokens compete, no other token is ever the best.
pub(super) fn output(spec: &Spec, seed: u64, kind: TensorType, tokenizer: &Tokenizer) -> Tensor {
    let (width, n_tokens) = (spec.width, tokenizer.n_tokens);
    let (answers, end) = (tokenizer.answers.clone(), tokenizer.end);
    tensor("output.weight", kind, &[width, n_tokens], move || {
        let mut cells = vec![0.0; width * n_tokens];
        let rows = noise(seed, 4, width * (answers.len() + 1), LOGIT / (width as f32).sqrt());
        for (&token, row) in answers.iter().chain(&end).zip(rows.chunks_exact(width)) {
            let factor = if Some(token) == end { END_FACTOR } else { 1.0 };
            let cells = &mut cells[token as usize * width..][..width];
            cells.iter_mut().zip(row).for_each(|(cell, weight)| *cell = factor * weight);
        }
        cells
    })
}

/// Returns `n` uniformly distributed numbers with this standard deviation.
pub(crate) fn noise(seed: u64, stream: u64, n: usize, deviation: f32) -> Vec<f32> {
    let mut rng = rng(seed, stream);
    let range = deviation * 3_f32.sqrt();
    (0..n).map(|_| ((rng.next_u32() as f32 / u32::MAX as f32) * 2.0 - 1.0) * range).collect()
}
