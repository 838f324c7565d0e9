//! LFM2's short convolution as a fetch of the last few states.
//!
//! The operation is `out_proj(c * conv(b * x))` with constant `b` and `c`. Each tap has a copy of the state's bits in
//! channels of its own, where the kernel is one at the tap's distance and zero elsewhere.

use crate::model::made::hash_net::{N_BITS, Round};
use crate::model::made::preset::Spec;
use crate::model::made::weights::matrix::Matrix;
use crate::model::made::weights::{FETCHED, STATE};

/// Returns the weights of `b`, `c` and `x`, one after another.
pub(super) fn input(round: &Round, spec: &Spec) -> Matrix {
    let mut matrix = Matrix::zero(spec.width, 3 * spec.width, spec.constant);
    for channel in 0..round.taps.len() * N_BITS {
        matrix.set_constant(channel, 1.0);
        matrix.set_constant(spec.width + channel, 1.0);
        matrix.set(2 * spec.width + channel, STATE + channel % N_BITS, 1.0);
    }
    matrix
}

/// Returns the kernel; its last element is for the newest input.
pub(super) fn kernel(round: &Round, spec: &Spec) -> Matrix {
    let length = kernel_length(round);
    let mut matrix = Matrix::zero(length, spec.width, spec.constant);
    for (tap, (distance, _)) in round.taps.iter().enumerate() {
        for bit in 0..N_BITS {
            matrix.set(tap * N_BITS + bit, length - 1 - distance, 1.0);
        }
    }
    matrix
}

/// Returns the length of the kernel that reaches every tap.
pub(super) fn kernel_length(round: &Round) -> usize {
    round.taps.iter().map(|tap| tap.0).max().unwrap_or(0) + 1
}

/// Returns the weights that permute what each tap fetched and add it up.
pub(super) fn output(round: &Round, spec: &Spec) -> Matrix {
    let mut matrix = Matrix::zero(spec.width, spec.width, spec.constant);
    for (tap, (_, permutation)) in round.taps.iter().enumerate() {
        for (bit, &place) in permutation.0.iter().enumerate() {
            matrix.set(FETCHED + place, tap * N_BITS + bit, 1.0);
        }
    }
    matrix
}
