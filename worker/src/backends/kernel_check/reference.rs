//! Expected results of the kernels, computed in double precision and in the simplest way.
//!
//! Not here: the kernels (`ggml`).

/// Shape of one attention: queries of `n_tokens` over `n_kept` keys and values.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// Width of one head.
    pub width: usize,
    /// Heads of queries.
    pub n_heads: usize,
    /// Heads of keys and values, shared by heads of queries.
    pub n_kv_heads: usize,
    /// Number of keys.
    pub n_kept: usize,
    /// Number of queries.
    pub n_tokens: usize,
}

impl Attention {
    /// Returns the factor for products of keys and queries.
    pub fn scale(&self) -> f32 {
        (self.width as f32).sqrt().recip()
    }
}

/// Returns `n` numbers between -1 and 1, the same ones for the same `seed`.
pub fn numbers(n: usize, seed: u32) -> Vec<f32> {
    // A linear congruential generator: random enough to hit no special case of a kernel. Source: Numerical Recipes,
    // 7.1.
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(n).collect()
}

/// Returns each row of `weights` times each row of `inputs`.
///
/// Shape: `[rows, width]`, `[n, width]` -> `[n, rows]`.
pub fn product(weights: &[f32], inputs: &[f32], width: usize) -> Vec<f64> {
    inputs.chunks(width).flat_map(|input| weights.chunks(width).map(move |row| dot(row, input))).collect()
}

/// Returns the attention of the queries.
///
/// Shape: `queries` `[n_heads, n_tokens, width]`, keys and values `[n_kv_heads, n_kept, width]` -> `[n_tokens, n_heads,
/// width]`.
pub fn attention(shape: &Attention, queries: &[f32], keys: &[f32], values: &[f32]) -> Vec<f64> {
    let Attention { width, n_heads, n_kv_heads, n_kept, n_tokens } = *shape;
    let mut outputs = Vec::with_capacity(n_tokens * n_heads * width);
    for token in 0..n_tokens {
        for head in 0..n_heads {
            let query = &queries[(head * n_tokens + token) * width..][..width];
            let from = head / (n_heads / n_kv_heads) * n_kept * width;
            let (keys, values) = (&keys[from..][..n_kept * width], &values[from..][..n_kept * width]);
            let weights: Vec<f64> =
                keys.chunks(width).map(|key| (dot(key, query) * f64::from(shape.scale())).exp()).collect();
            let total: f64 = weights.iter().sum();
            let at = |i: usize| -> f64 {
                weights.iter().enumerate().map(|(n, w)| w * f64::from(values[n * width + i])).sum()
            };
            outputs.extend((0..width).map(|i| at(i) / total));
        }
    }
    outputs
}

/// Returns the sum of squared differences relative to the squares of `expected`; NaN if `result` has a NaN.
pub fn relative_square_error(result: &[f32], expected: &[f64]) -> f64 {
    let difference: f64 =
        result.iter().zip(expected).map(|(&result, expected)| (f64::from(result) - expected).powi(2)).sum();
    difference / expected.iter().map(|expected| expected.powi(2)).sum::<f64>()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}
