//! Test computations for CPU kernels: matrix products in the types that models have, and attention, each compared with
//! a result in double precision.
//!
//! The computations use the same code paths as a model: weights in each buffer type of the backend, which may reorder
//! them, with few and with many tokens. Not here: the process (`check`), the speed.

mod ggml;
mod reference;

#[cfg(test)]
mod tests;

use llama_cpp_sys_2 as sys;

use ggml::{Cpu, WeightMemory};

/// Width of the weights, a multiple of every type's block.
const WIDTH: usize = 512;

/// Rows of the weights, a multiple of the tile sizes of kernels.
const ROWS: usize = 64;

/// Shapes of inputs: number of tokens, and size of the third dimension. There are one token and a few (decode), more
/// than a tile (prefill), and a third dimension (recurrent models).
const INPUTS: [(usize, usize); 4] = [(1, 1), (5, 1), (67, 1), (5, 3)];

/// Types of weights in model files.
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

/// Maximum of the squared error relative to the squared result. Source: the tolerance of llama.cpp's tests of matrix
/// products (`test-backend-ops`).
const ERROR_MAX: f64 = 5e-4;

/// A failure of kernels.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KernelFault {
    /// The backend does not start.
    #[error("does not start")]
    NoStart,
    /// A result is wrong.
    #[error("computes {what} wrong: the relative error is {error:.1e}, at most {ERROR_MAX:.0e} is allowed")]
    Wrong {
        /// Name of the result.
        what: String,
        /// Square of its error, relative to the expected result.
        error: f64,
    },
}

/// Runs all computations on `device` and compares their results.
///
/// Errors: the first [`KernelFault`]. Panics: never; a `device` that is not a CPU's ends the process.
pub fn try_all(device: sys::ggml_backend_dev_t) -> Result<(), KernelFault> {
    let cpu = Cpu::open(device).ok_or(KernelFault::NoStart)?;
    for memory in cpu.memories() {
        for kind in TYPES {
            try_products(&cpu, &memory, kind)?;
        }
    }
    [1, 67].into_iter().try_for_each(|n_tokens| try_attention(&cpu, n_tokens))
}

fn try_products(cpu: &Cpu, memory: &WeightMemory, kind: sys::ggml_type) -> Result<(), KernelFault> {
    let weights = reference::numbers(WIDTH * ROWS, 1);
    let stored_weights = ggml::quantized(kind, &weights, WIDTH);
    let weights = ggml::floats(kind, &stored_weights, weights.len());
    for (n_tokens, n_behind) in INPUTS {
        let inputs = reference::numbers(WIDTH * n_tokens * n_behind, 2);
        let shape = ggml::Product { kind, width: WIDTH, rows: ROWS, n_tokens, n_behind };
        let Some(result) = cpu.product(memory, &shape, &stored_weights, &inputs) else { continue };
        let what = format!("{} times {n_tokens} x {n_behind} tokens in {memory}", ggml::type_name(kind));
        compare(what, &result, &reference::product(&weights, &inputs, WIDTH))?;
    }
    Ok(())
}

fn try_attention(cpu: &Cpu, n_tokens: usize) -> Result<(), KernelFault> {
    let shape = reference::Attention { width: 64, n_heads: 4, n_kv_heads: 2, n_kept: 160, n_tokens };
    let queries = reference::numbers(shape.width * shape.n_heads * n_tokens, 3);
    let n_kept = shape.width * shape.n_kv_heads * shape.n_kept;
    let half = |seed| ggml::quantized(sys::GGML_TYPE_F16, &reference::numbers(n_kept, seed), shape.width);
    let (keys, values) = (half(4), half(5));
    let result = cpu.attention(&shape, &queries, &keys, &values);
    let floats = |bytes| ggml::floats(sys::GGML_TYPE_F16, bytes, n_kept);
    let expected = reference::attention(&shape, &queries, &floats(&keys), &floats(&values));
    compare(format!("attention of {n_tokens} tokens"), &result, &expected)
}

/// Compares a result with the expected one.
///
/// Errors: `Wrong`, beyond the rounding of types with few bits.
fn compare(what: String, result: &[f32], expected: &[f64]) -> Result<(), KernelFault> {
    let error = reference::relative_square_error(result, expected);
    // A comparison with NaN is false.
    if error <= ERROR_MAX { Ok(()) } else { Err(KernelFault::Wrong { what, error }) }
}
