//! The layout of one token's state: its layers, their rows, their sizes.
//!
//! A payload has the bytes of each block together: the cells' optional data, then for each layer the keys and the
//! values of the block's tokens. Values are rows or, if llama.cpp keeps them transposed, columns. Not here: parsing
//! (`export`), writing (`assemble`).

/// Sections of a model's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sections {
    /// Only attention over all earlier tokens.
    AttentionOnly,
    /// Attention over all earlier tokens, then a part that cannot be cut: a sliding window or a recurrent state.
    AttentionAndPartial,
    /// Only a part that cannot be cut.
    PartialOnly,
}

/// Layout of a token's state; equal layouts can exchange payloads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StateLayout {
    pub(super) sections: Sections,
    pub(super) block_tokens: u32,
    /// Bytes of a cell's optional data besides position and sequence.
    pub(super) extra_bytes: usize,
    pub(crate) values_transposed: bool,
    pub(super) n_rot_k: u32,
    pub(super) n_rot_v: u32,
    pub(super) layers: Vec<LayerLayout>,
}

/// Layout of a token's state in one layer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LayerLayout {
    pub key: Rows,
    pub value: ValueLayout,
}

/// Type of a tensor that has one row for each token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    /// Ggml's number of the type.
    pub kind: i32,
    pub row_bytes: usize,
}

/// Layout of a layer's values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ValueLayout {
    /// No values: they are computed from the keys.
    None,
    /// One row for each token.
    Rows(Rows),
    /// One column with all tokens for each element.
    Columns { kind: i32, element_bytes: usize, n_elements: usize },
}

impl ValueLayout {
    pub(super) fn token_bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Rows(rows) => rows.row_bytes,
            Self::Columns { element_bytes, n_elements, .. } => element_bytes * n_elements,
        }
    }
}

impl LayerLayout {
    pub(super) fn token_bytes(&self) -> usize {
        self.key.row_bytes + self.value.token_bytes()
    }
}

impl StateLayout {
    /// Returns the sections of a state with this layout.
    pub fn sections(&self) -> Sections {
        self.sections
    }

    /// Returns the tokens per block.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Returns the size of one token's state in a payload. Units: bytes.
    pub fn token_bytes(&self) -> usize {
        self.extra_bytes + self.layers.iter().map(LayerLayout::token_bytes).sum::<usize>()
    }

    /// Returns the size of a payload of `n_tokens`. Units: bytes.
    pub fn payload_bytes(&self, n_tokens: u32) -> usize {
        self.token_bytes() * n_tokens as usize
    }
}
