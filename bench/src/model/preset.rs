//! The presets: which architecture, how large, which layers.
//!
//! Not here: the weights. One table, so that sizes and reach can be read side by side.

use warmpath_gguf::TensorType;

/// Names a kind of model that can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Preset {
    /// Llama architecture, a few megabytes, context 8192; for tests.
    Tiny,
    /// Sliding-window layers between full ones (Granite with sliding windows).
    TinySwa,
    /// Recurrent layers only (Mamba).
    TinyRecurrent,
    /// Convolution layers between attention layers (LFM2).
    TinyHybrid,
    /// Llama architecture, 12 layers of width 512, 8-bit weights, context 32768; for benchmarks.
    Bench,
}

impl Preset {
    /// Lists every preset.
    pub const ALL: [Self; 5] = [Self::Tiny, Self::TinySwa, Self::TinyRecurrent, Self::TinyHybrid, Self::Bench];

    /// Returns the preset's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::TinySwa => "tiny-swa",
            Self::TinyRecurrent => "tiny-recurrent",
            Self::TinyHybrid => "tiny-hybrid",
            Self::Bench => "bench",
        }
    }

    /// Returns what the preset's model is made of.
    pub(crate) fn spec(self) -> Spec {
        match self {
            Self::Tiny => Spec {
                architecture: "llama",
                width: 128,
                n_ff: 672,
                weight_type: TensorType::F16,
                context_tokens: 8192,
                layers: [1, 9, 81, 729].map(|stride| LayerSpec { kind: LayerKind::Full, stride, n_offsets: 8 }).to_vec(),
            },
            Self::Bench => Spec {
                architecture: "llama",
                width: 512,
                n_ff: 1536,
                weight_type: TensorType::Q8_0,
                context_tokens: 32768,
                layers: (0..12)
                    .map(|il| LayerSpec { kind: LayerKind::Full, stride: 3_usize.pow(il % 10), n_offsets: 2 })
                    .collect(),
            },
            Self::TinySwa | Self::TinyRecurrent | Self::TinyHybrid => unimplemented!("not yet made"),
        }
    }
}

/// Is the number of query heads of an attention layer.
pub(crate) const N_HEADS: usize = 8;
/// Is the number of key and value heads of an attention layer.
pub(crate) const N_KV_HEADS: usize = 2;
/// Is the size of one head.
pub(crate) const HEAD_SIZE: usize = 64;

/// Says what a model is made of.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Is llama.cpp's name of the architecture.
    pub architecture: &'static str,
    /// Is the size of the residual stream.
    pub width: usize,
    /// Is the number of hidden units of a feed-forward layer.
    pub n_ff: usize,
    /// Is the type of the matrices.
    pub weight_type: TensorType,
    /// Is the longest context.
    pub context_tokens: usize,
    /// Lists the layers.
    pub layers: Vec<LayerSpec>,
}

/// Says what one layer does: it fetches the states `stride`, `2 x stride`, ..., `n_offsets x stride` tokens back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerSpec {
    /// Says how the layer fetches.
    pub kind: LayerKind,
    /// Units: tokens.
    pub stride: usize,
    /// Is how many states are fetched.
    pub n_offsets: usize,
}

/// Says how a layer looks back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerKind {
    /// Attention over the whole context.
    Full,
}
