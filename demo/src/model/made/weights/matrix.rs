//! A matrix as llama.cpp stores it: one row per output.

/// Channel that holds the constant, alone in its block of 32.
pub(crate) const CONSTANT: usize = 0;

/// A matrix that knows the value of the constant channel in its input.
pub(super) struct Matrix {
    n_in: usize,
    /// Value of the constant channel.
    pub constant: f32,
    /// Weights, row by row.
    pub cells: Vec<f32>,
}

impl Matrix {
    /// Returns a matrix of zeros.
    pub(super) fn zero(n_in: usize, n_out: usize, constant: f32) -> Self {
        Self { n_in, constant, cells: vec![0.0; n_in * n_out] }
    }

    /// Returns the number of outputs.
    pub(super) fn n_out(&self) -> usize {
        self.cells.len() / self.n_in
    }

    /// Returns GGUF's shape: the length of a row first.
    pub(super) fn shape(&self) -> [usize; 2] {
        [self.n_in, self.n_out()]
    }

    /// Sets the weight from `input` to `output`.
    pub(super) fn set(&mut self, output: usize, input: usize, weight: f32) {
        self.cells[output * self.n_in + input] = weight;
    }

    /// Sets the part of an output that does not depend on the content.
    pub(super) fn set_constant(&mut self, output: usize, value: f32) {
        self.set(output, CONSTANT, value / self.constant);
    }
}
