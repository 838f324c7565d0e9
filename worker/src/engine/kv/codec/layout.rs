//! The layout of one token's state: its layers, their rows, their sizes.
//!
//! In a payload a block's bytes are together: the cells' optional data, then for each layer the keys of its tokens and
//! their values, as rows or, if llama.cpp keeps them transposed, element by element. Not here: parsing (`export`),
//! writing (`assemble`).

/// Sections of a model's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sections {
    /// Attention over the whole past, and nothing else.
    AttentionOnly,
    /// Such attention, then a part that cannot be cut: a sliding window or a recurrent state.
    AttentionAndPartial,
    /// Only a part that cannot be cut.
    PartialOnly,
}

/// Layout of a token's state; equal layouts can exchange payloads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    pub(super) sections: Sections,
    pub(super) block_tokens: u32,
    /// Bytes of a cell's optional data besides position and sequence.
    pub(super) extra_bytes: usize,
    pub(crate) values_transposed: bool,
    pub(super) n_rot_k: u32,
    pub(super) n_rot_v: u32,
    pub(super) layers: Vec<Layer>,
}

/// Layout of a token's state in one layer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Layer {
    pub key: Rows,
    pub value: Value,
}

/// Rows of one type, one for each token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    /// Ggml's number of the type.
    pub kind: i32,
    pub row_bytes: usize,
}

/// Layout of a layer's values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Value {
    /// There are none: they are computed from the keys.
    None,
    /// One row for each token.
    Rows(Rows),
    /// One column of all tokens for each element.
    Columns { kind: i32, element_bytes: usize, n_elements: usize },
}

impl Value {
    pub(super) fn token_bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Rows(rows) => rows.row_bytes,
            Self::Columns { element_bytes, n_elements, .. } => element_bytes * n_elements,
        }
    }
}

impl Layer {
    pub(super) fn token_bytes(&self) -> usize {
        self.key.row_bytes + self.value.token_bytes()
    }
}

impl Layout {
    /// Returns the sections of a state with this layout.
    pub fn sections(&self) -> Sections {
        self.sections
    }

    /// Returns the tokens per block.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Returns the bytes of one token's state in a payload.
    pub fn token_bytes(&self) -> usize {
        self.extra_bytes + self.layers.iter().map(Layer::token_bytes).sum::<usize>()
    }

    /// Returns the bytes of a payload of `n_tokens`.
    pub fn payload_bytes(&self, n_tokens: u32) -> usize {
        self.token_bytes() * n_tokens as usize
    }
}
