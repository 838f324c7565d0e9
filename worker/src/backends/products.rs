//! What CPU kernels are tried with: products of matrices in the types that models have, attention, each compared with
//! sums in double precision.
//!
//! Not here: in which process (`check`), and how fast they are. The idea: everything goes the way of a model: weights lie in each kind
//! of memory that the backend offers for them, where it may keep them in an order of its own, and few and many tokens
//! go different ways.

mod ggml;
mod reference;

#[cfg(test)]
mod tests;

use llama_cpp_sys_2 as sys;

use ggml::{Cpu, Memory};

/// Is the width of the weights, a multiple of every type's block.
const WIDTH: usize = 512;

/// Is the weights' rows, a multiple of what kernels that work on tiles want.
const ROWS: usize = 64;

/// Are the shapes of inputs: tokens, and how often as many lie behind each other. One token and a few (decode), more than a tile
/// (prefill), and a third dimension, as recurrent models have.
const INPUTS: [(usize, usize); 4] = [(1, 1), (5, 1), (67, 1), (5, 3)];

/// Are the types that weights have in the files of models.
const TYPES: [sys::ggml_type; 9] = [
    sys::GGML_TYPE_F32,
    sys::GGML_TYPE_F16,
    sys::GGML_TYPE_BF16,
    sys::GGML_TYPE_Q8_0,
    sys::GGML_TYPE_Q4_0,
    sys::GGML_TYPE_Q4_K,
    sys::GGML_TYPE_Q5_K,
    sys::GGML_TYPE_Q6_K,
    sys::GGML_TYPE_IQ4_XS,
];

/// Is the largest part of the result's square that the square of its error may be. Source: what llama.cpp's own tests allow
/// matrix products (`test-backend-ops`).
const ERROR_MAX: f64 = 5e-4;

/// Says what kernels cannot do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The backend does not start.
    #[error("does not start")]
    NoStart,
    /// A result is wrong.
    #[error("computes {what} wrong: its error is {error:.1e} of the result, at most {ERROR_MAX:.0e} may be")]
    Wrong {
        /// Names the result.
        what: String,
        /// Is the square of its error, as a part of what it should be.
        error: f64,
    },
}

/// Computes everything on `device` and compares.
///
/// Errors: the first [`Fault`]. Panics: never; a `device` that is not a CPU's ends the process.
pub fn try_all(device: sys::ggml_backend_dev_t) -> Result<(), Fault> {
    let cpu = Cpu::open(device).ok_or(Fault::NoStart)?;
    for memory in cpu.memories() {
        for kind in TYPES {
            try_products(&cpu, &memory, kind)?;
        }
    }
    [1, 67].into_iter().try_for_each(|n_tokens| try_attention(&cpu, n_tokens))
}

fn try_products(cpu: &Cpu, memory: &Memory, kind: sys::ggml_type) -> Result<(), Fault> {
    let weights = reference::numbers(WIDTH * ROWS, 1);
    let stored = ggml::quantized(kind, &weights, WIDTH);
    let weights = ggml::floats(kind, &stored, weights.len());
    for (n_tokens, n_behind) in INPUTS {
        let inputs = reference::numbers(WIDTH * n_tokens * n_behind, 2);
        let shape = ggml::Product { kind, width: WIDTH, rows: ROWS, n_tokens, n_behind };
        let Some(result) = cpu.product(memory, &shape, (&stored, &inputs)) else { continue };
        let what = format!("{} times {n_tokens} x {n_behind} tokens in {memory}", ggml::type_name(kind));
        compare(what, &result, &reference::product(&weights, &inputs, WIDTH))?;
    }
    Ok(())
}

fn try_attention(cpu: &Cpu, n_tokens: usize) -> Result<(), Fault> {
    let shape = reference::Attention { width: 64, n_heads: 4, n_kv_heads: 2, n_kept: 160, n_tokens };
    let queries = reference::numbers(shape.width * shape.n_heads * n_tokens, 3);
    let kept = shape.width * shape.n_kv_heads * shape.n_kept;
    let half = |seed| ggml::quantized(sys::GGML_TYPE_F16, &reference::numbers(kept, seed), shape.width);
    let (keys, values) = (half(4), half(5));
    let result = cpu.attention(&shape, &queries, (&keys, &values));
    let floats = |stored| ggml::floats(sys::GGML_TYPE_F16, stored, kept);
    let expected = reference::attention(&shape, &queries, (&floats(&keys), &floats(&values)));
    compare(format!("attention of {n_tokens} tokens"), &result, &expected)
}

/// Errors: `result` is not `expected`, within what types of few bits allow.
fn compare(what: String, result: &[f32], expected: &[f64]) -> Result<(), Fault> {
    let error = reference::relative_square_error(result, expected);
    // A comparison with no number is false.
    if error <= ERROR_MAX { Ok(()) } else { Err(Fault::Wrong { what, error }) }
}
