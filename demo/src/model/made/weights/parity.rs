//! The feed-forward part: it replaces the state by the parity of the state and the fetched bits.
//!
//! A hidden unit is `silu(gate) * up`. Two of them make a step, and steps up and down between the whole numbers make
//! the parity of a sum. The steps are flat around every whole number, so that noise is removed.

use crate::model::made::hash_net::{Missing, N_BITS, Round};
use crate::model::made::preset::Spec;
use crate::model::made::weights::matrix::Matrix;
use crate::model::made::weights::{FETCHED, STATE};

/// Steepness of the gates; far enough from zero, SiLU is a straight line with a bend at zero.
///
/// Source: at 0.3 from a bend, `silu(-64 x 0.3)` is below 1e-7; the largest hidden value, 64 x 17, is far below the
/// largest 16-bit float.
const SHARPNESS: f32 = 64.0;
/// Start and end of a step's rise, relative to the whole number half way between two sums of the same parity.
const STEP: (f32, f32) = (-0.5, 0.5);
/// The same where operands may be missing: the sum may then be that number itself, which must lie in a flat part.
const STEP_WHERE_MISSING: (f32, f32) = (0.3, 0.7);

/// Returns gate, up and down of the layer that follows `round`'s fetch.
///
/// Units: a step's two bends; units with a constant gate, which pass a channel on, so that the old state and the
/// fetched sum can be subtracted; and one that is always on, for the constant.
/// Panics: where the preset has too few hidden units.
pub(super) fn feed_forward(round: &Round, spec: &Spec) -> [Matrix; 3] {
    let mut gate = Matrix::zero(spec.width, spec.n_ff, spec.constant);
    let mut up = Matrix::zero(spec.width, spec.n_ff, spec.constant);
    let mut down = Matrix::zero(spec.n_ff, spec.width, spec.constant);
    let mut units = 0..spec.n_ff;
    let mut unit = || units.next().expect("the preset has enough hidden units");
    let n_operands = round.taps.len() + 1;
    let step_at = if round.missing == Missing::Own { STEP } else { STEP_WHERE_MISSING };
    // The product of as many -1 as there are operands: the parity of the lowest sum.
    let lowest = if n_operands.is_multiple_of(2) { 1.0 } else { -1.0 };
    for step in 0..n_operands {
        // The sum lies at `middle - 1` or below, or at `middle + 1` or above.
        let middle = 2.0 * step as f32 + 1.0 - n_operands as f32;
        let rise = if step % 2 == 0 { -2.0 * lowest } else { 2.0 * lowest };
        // Bits innermost: units of similar size share a block of 32, and so an 8-bit scale.
        for (bend, direction) in [(step_at.0, 1.0), (step_at.1, -1.0)] {
            for bit in 0..N_BITS {
                let unit = unit();
                gate.set(unit, STATE + bit, SHARPNESS);
                gate.set(unit, FETCHED + bit, SHARPNESS);
                gate.set_constant(unit, -SHARPNESS * (middle + bend));
                up.set_constant(unit, 1.0);
                down.set(STATE + bit, unit, direction * rise / (step_at.1 - step_at.0) / SHARPNESS);
            }
        }
    }
    for channel in [STATE, FETCHED].into_iter().flat_map(|first| first..first + N_BITS) {
        let unit = unit();
        gate.set_constant(unit, SHARPNESS);
        up.set(unit, channel, 1.0);
        down.set(channel, unit, -1.0 / SHARPNESS);
    }
    let constant = unit();
    gate.set_constant(constant, SHARPNESS);
    up.set_constant(constant, 1.0);
    for bit in 0..N_BITS {
        down.set(STATE + bit, constant, lowest / SHARPNESS);
    }
    [gate, up, down]
}
