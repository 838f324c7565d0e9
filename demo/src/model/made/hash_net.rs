//! The function that a generated test model computes: the next token is chosen by a hash of the context.
//!
//! The weights that make llama.cpp compute it are in `weights`. Every token has a random code of [`N_BITS`] bits. In
//! each layer, a position xors its state with the permuted states of earlier positions. The distances grow from layer
//! to layer, so that the last state is a hash of the whole window. Eight of its bits choose one of 256 answer tokens;
//! if six of these are set, the answer ends. Each layer rounds its states to bits, which removes numeric noise, but a
//! different token anywhere in the window gives a different state.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use warmpath_common::ids::Token;

use crate::model::made::preset::{LayerKind, Spec};

/// Number of bits of a state.
pub const N_BITS: usize = 32;
/// Number of bits that choose the answer token.
pub const N_ANSWER_BITS: usize = 8;
/// Number of answer tokens.
pub const N_ANSWERS: usize = 1 << N_ANSWER_BITS;
/// Number of bits that end the answer when all are set: one state in 64.
pub const N_END_BITS: usize = 6;

/// Permutation of the bits: bit `j` goes to `self.0[j]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Permutation(pub [usize; N_BITS]);

impl Permutation {
    fn random(rng: &mut ChaCha8Rng) -> Self {
        let mut places: [usize; N_BITS] = std::array::from_fn(|i| i);
        for i in (1..N_BITS).rev() {
            places.swap(i, below(rng, i + 1));
        }
        Self(places)
    }

    fn apply(&self, state: u32) -> u32 {
        self.0.iter().enumerate().fold(0, |out, (from, &to)| out | (((state >> from) & 1) << to))
    }
}

/// One layer: the states at these distances are permuted and xored in.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    /// Distances and permutations.
    pub taps: Vec<(usize, Permutation)>,
    /// Replacement of a state before the first token.
    pub missing: Missing,
}

/// Operand of a layer whose distance reaches before the first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The position's own state, to which attention falls back.
    Own,
    /// Nothing: the state of a convolution starts as zeros. The first and third missing operand count as ones, others
    /// as zeros, because a step rises after the whole number in its middle (`weights::parity`).
    Nothing,
}

impl Round {
    /// Returns the state at `t` after this layer, from all states before the layer.
    fn state(&self, before: &[u32], t: usize) -> u32 {
        let mut state = before[t];
        let mut n_missing = 0_u32;
        for (distance, permutation) in &self.taps {
            match (t.checked_sub(*distance), self.missing) {
                (Some(from), _) => state ^= permutation.apply(before[from]),
                (None, Missing::Own) => state ^= permutation.apply(before[t]),
                (None, Missing::Nothing) => n_missing += 1,
            }
        }
        if n_missing.div_ceil(2) % 2 == 1 { !state } else { state }
    }
}

/// The function of one seed.
#[derive(Debug, Clone)]
pub struct HashNet {
    seed: u64,
    pub(crate) rounds: Vec<Round>,
}

impl HashNet {
    /// Returns the function of `seed` for models of this shape.
    pub(crate) fn new(spec: &Spec, seed: u64) -> Self {
        let mut rng = rng(seed, 1);
        let rounds = spec
            .layers
            .iter()
            .map(|layer| Round {
                taps: (1..=layer.n_offsets).map(|i| (i * layer.stride, Permutation::random(&mut rng))).collect(),
                missing: if layer.kind == LayerKind::Convolution { Missing::Nothing } else { Missing::Own },
            })
            .collect();
        Self { seed, rounds }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the code of `token`.
    pub fn code(&self, token: Token) -> u32 {
        // Source: splitmix64's finalizer, a full avalanche of 64 bits.
        let mut z = self.seed.wrapping_add((u64::from(token) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z >> 32) as u32
    }

    /// Returns the state after the last of `tokens`.
    ///
    /// Cost: O(n x layers); for tests.
    pub fn state(&self, tokens: &[Token]) -> u32 {
        let mut states: Vec<u32> = tokens.iter().map(|&token| self.code(token)).collect();
        for round in &self.rounds {
            states = (0..states.len()).map(|t| round.state(&states, t)).collect();
        }
        states.last().copied().unwrap_or(0)
    }
}

/// Returns the random generator for one purpose of one seed.
pub(crate) fn rng(seed: u64, purpose: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(purpose);
    rng
}

/// Returns a number below `n`; the bias is negligible, since `n` is small against 2^64.
pub(crate) fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    usize::try_from(rng.next_u64() % n as u64).expect("below a usize")
}
