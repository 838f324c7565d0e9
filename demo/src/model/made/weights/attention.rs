//! Attention heads that each fetch the state at exactly one distance.
//!
//! Queries and keys are constant, and rotary embedding turns a constant into a function of the distance. A query that
//! is rotated back by its distance scores highest at that distance. Its own position comes second, for positions that
//! have no token so far back. All other scores are too low to matter in a 32-bit float.

use crate::model::made::hash_net::{N_BITS, Round};
use crate::model::made::preset::{HEAD_SIZE, N_KV_HEADS, Spec};
use crate::model::made::weights::matrix::Matrix;
use crate::model::made::weights::{FETCHED, STATE};

/// Weight of a query's own position beside the wanted distance.
///
/// Source: our search, together with the rotary base (`docs/decisions/0004-test-models.md`).
const SELF_WEIGHT: f64 = 0.70;
/// Attention score that the wanted distance adds, in nats; other scores are at least a fifth of it lower.
const SCORE: f64 = 120.0;
/// Score of a head's sink, in architectures that have one: so low that the sink gets no attention.
pub(super) const SINK_SCORE: f32 = -10_000.0;

const N_PAIRS: usize = HEAD_SIZE / 2;

/// Returns the two channels of a head that are rotated together.
fn pair_channels(spec: &Spec, pair: usize) -> (usize, usize) {
    match spec.architecture {
        // LFM2 rotates like GPT-NeoX, the others like the first Llama.
        "lfm2" => (pair, pair + N_PAIRS),
        _ => (2 * pair, 2 * pair + 1),
    }
}

/// Returns the rotary frequencies of a head, multiplied up in 32 bits like ggml does. Units: radians per token.
fn frequencies(spec: &Spec) -> [f64; N_PAIRS] {
    let factor = spec.rope_base.powf(-2.0 / HEAD_SIZE as f32);
    let mut next = 1.0_f32;
    std::array::from_fn(|_| {
        let frequency = next;
        next *= factor;
        f64::from(frequency)
    })
}

/// Returns the amplitude of queries and keys; llama.cpp divides scores by the root of the head size.
fn amplitude() -> f64 {
    (SCORE * (HEAD_SIZE as f64).sqrt() / N_PAIRS as f64).sqrt()
}

/// Returns the weight of query and key norms, in architectures that have them: the norms first scale both to a mean
/// square of 1 per channel.
pub(super) fn normed_amplitude() -> f32 {
    // Mean square of a query of unit amplitude, if its two parts were independent; that of a key is one half.
    let query_square = (1.0 + SELF_WEIGHT * SELF_WEIGHT) / 2.0;
    (amplitude() * (query_square * 0.5).sqrt().sqrt()) as f32
}

/// Returns the query weights: head `h` looks back by the distance of tap `h` modulo the number of taps.
pub(super) fn queries(round: &Round, spec: &Spec) -> Matrix {
    let mut matrix = Matrix::zero(spec.width, spec.n_heads * HEAD_SIZE, spec.constant);
    for head in 0..spec.n_heads {
        let distance = round.taps[head % round.taps.len()].0 as f64;
        for (pair, frequency) in frequencies(spec).iter().enumerate() {
            let (sin, cos) = (distance * frequency).sin_cos();
            let (first, second) = pair_channels(spec, pair);
            matrix.set_constant(head * HEAD_SIZE + first, (amplitude() * (cos + SELF_WEIGHT)) as f32);
            matrix.set_constant(head * HEAD_SIZE + second, (-amplitude() * sin) as f32);
        }
    }
    matrix
}

/// Returns the key weights: the same constant everywhere.
pub(super) fn keys(spec: &Spec) -> Matrix {
    let mut matrix = Matrix::zero(spec.width, N_KV_HEADS * HEAD_SIZE, spec.constant);
    for head in 0..N_KV_HEADS {
        for pair in 0..N_PAIRS {
            matrix.set_constant(head * HEAD_SIZE + pair_channels(spec, pair).0, amplitude() as f32);
        }
    }
    matrix
}

/// Returns the value weights: the state's bits.
pub(super) fn values(spec: &Spec) -> Matrix {
    let mut matrix = Matrix::zero(spec.width, N_KV_HEADS * HEAD_SIZE, spec.constant);
    for head in 0..N_KV_HEADS {
        for bit in 0..N_BITS {
            matrix.set(head * HEAD_SIZE + bit, STATE + bit, 1.0);
        }
    }
    matrix
}

/// Returns the weights that permute what each head fetched and add it up; heads with the same tap share its weight.
pub(super) fn output(round: &Round, spec: &Spec) -> Matrix {
    let mut matrix = Matrix::zero(spec.n_heads * HEAD_SIZE, spec.width, spec.constant);
    let share = round.taps.len() as f32 / spec.n_heads as f32;
    for head in 0..spec.n_heads {
        let (_, permutation) = &round.taps[head % round.taps.len()];
        for (bit, &place) in permutation.0.iter().enumerate() {
            matrix.set(FETCHED + place, head * HEAD_SIZE + bit, share);
        }
    }
    matrix
}
