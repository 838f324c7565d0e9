//! The presets of generated models: architecture, sizes and layers.
//!
//! The weights are in `weights`. The presets form one table, so that sizes and distances can be compared.

use warmpath_gguf::TensorType;

/// Preset of a generated model.
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
    /// Llama architecture with ordinary random weights, whose keys depend on the content; for tests of the KV state's
    /// bytes.
    TinyKeys,
    /// The same with positions in several dimensions (M-RoPE, as of Qwen2-VL).
    TinyMrope,
    /// Gemma 3's architecture with random weights: sliding windows, and norms behind each half of a layer. Its noise is
    /// that of 32-bit sums.
    TinyGemma3,
    /// Gated delta nets with random weights below attention (Qwen 3.5). Its noise is that of 32-bit sums.
    TinyQwen35,
    /// The same with a head that predicts one token more (MTP), often rightly.
    TinyQwen35Mtp,
    /// State spaces with scalar decay, attention and feed-forward layers with random weights (Nemotron-H). Its noise is
    /// that of 32-bit sums.
    TinyNemotronH,
    /// An encoder with mean pooling (BERT), for embeddings.
    TinyEmbed,
    /// An encoder with a classification head (BERT), for reranking.
    TinyRank,
    /// Llama architecture, 12 layers of width 512, 8-bit weights, context 32768; for benchmarks.
    Bench,
    /// Shape of Llama 3.1 8B with random 8-bit weights, 7 GB and those of the vocabulary; for benchmarks on GPUs.
    #[value(name = "llama-8b")]
    Llama8b,
}

impl Preset {
    /// The presets that are small enough for tests.
    pub const SMALL: [Self; 13] = [
        Self::Tiny,
        Self::TinySwa,
        Self::TinyRecurrent,
        Self::TinyHybrid,
        Self::TinyKeys,
        Self::TinyMrope,
        Self::TinyGemma3,
        Self::TinyQwen35,
        Self::TinyQwen35Mtp,
        Self::TinyNemotronH,
        Self::TinyEmbed,
        Self::TinyRank,
        Self::Bench,
    ];

    /// Returns the name of the preset on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::TinySwa => "tiny-swa",
            Self::TinyRecurrent => "tiny-recurrent",
            Self::TinyHybrid => "tiny-hybrid",
            Self::TinyKeys => "tiny-keys",
            Self::TinyMrope => "tiny-mrope",
            Self::TinyGemma3 => "tiny-gemma3",
            Self::TinyQwen35 => "tiny-qwen35",
            Self::TinyQwen35Mtp => "tiny-qwen35-mtp",
            Self::TinyNemotronH => "tiny-nemotron-h",
            Self::TinyEmbed => "tiny-embed",
            Self::TinyRank => "tiny-rank",
            Self::Bench => "bench",
            Self::Llama8b => "llama-8b",
        }
    }

    /// Returns the specification of the preset's model.
    pub(crate) fn spec(self) -> Spec {
        match self {
            Self::Tiny => Spec { layers: [1, 9, 81, 729].map(|stride| full(stride, 8)).to_vec(), ..TINY },
            Self::TinySwa => Spec {
                architecture: "granite_swa",
                layers: vec![sliding(1, 8), full(81, 8), sliding(9, 8), full(729, 8)],
                ..TINY
            },
            Self::TinyHybrid => Spec {
                architecture: "lfm2",
                width: 256,
                n_heads: 4,
                n_ff: 416,
                layers: vec![
                    convolution(3),
                    full(4, 4),
                    full(20, 4),
                    convolution(3),
                    full(100, 4),
                    full(500, 4),
                    full(2500, 4),
                ],
                ..TINY
            },
            Self::TinyRecurrent => Spec {
                architecture: "mamba",
                width: 64,
                n_heads: 0,
                n_ff: 0,
                weight_type: TensorType::F32,
                layers: vec![random(LayerKind::Recurrent); 4],
                ..TINY
            },
            Self::TinyKeys => {
                Spec { n_ff: 256, rope_base: 10_000.0, layers: vec![random(LayerKind::Random); 4], ..TINY }
            }
            // Its output projection is square, so the heads together are as wide as the residual stream.
            Self::TinyMrope => Spec { architecture: "qwen2vl", n_heads: 2, ..Self::TinyKeys.spec() },
            Self::TinyGemma3 => gemma3(),
            Self::TinyQwen35 => Spec {
                architecture: "qwen35",
                n_heads: 4,
                weight_type: TensorType::F32,
                // llama.cpp takes every fourth layer for attention.
                layers: [LayerKind::DeltaNet, LayerKind::DeltaNet, LayerKind::DeltaNet, LayerKind::Random]
                    .map(random)
                    .to_vec(),
                ..Self::TinyKeys.spec()
            },
            Self::TinyQwen35Mtp => {
                let mut spec = Self::TinyQwen35.spec();
                spec.layers.push(random(LayerKind::NextToken));
                spec
            }
            Self::TinyNemotronH => Spec {
                architecture: "nemotron_h",
                n_heads: 4,
                weight_type: TensorType::F32,
                layers: [
                    LayerKind::Mamba2,
                    LayerKind::FeedForward,
                    LayerKind::Mamba2,
                    LayerKind::Random,
                    LayerKind::FeedForward,
                ]
                .map(random)
                .to_vec(),
                ..Self::TinyKeys.spec()
            },
            Self::TinyEmbed => encoder(Head::Mean),
            Self::TinyRank => encoder(Head::Rank),
            Self::Bench => Spec {
                width: 512,
                n_ff: 1536,
                weight_type: TensorType::Q8_0,
                context_tokens: 32768,
                constant: 256.0,
                rope_base: 0.2529,
                layers: (0..12).map(|il| full(3_usize.pow(il % 10), 2)).collect(),
                ..TINY
            },
            Self::Llama8b => Spec {
                width: 4096,
                n_heads: 32,
                n_kv_heads: 8,
                head_size: 128,
                n_ff: 14336,
                weight_type: TensorType::Q8_0,
                context_tokens: 131_072,
                rope_base: 500_000.0,
                layers: vec![random(LayerKind::Random); 32],
                ..TINY
            },
        }
    }
}

/// Specification of `tiny` without its layers, on which other presets are based.
const TINY: Spec = Spec {
    architecture: "llama",
    width: 128,
    n_heads: 8,
    n_kv_heads: N_KV_HEADS,
    head_size: HEAD_SIZE,
    n_ff: 672,
    weight_type: TensorType::F16,
    context_tokens: 8192,
    constant: 2048.0,
    rope_base: 0.1374,
    layers: Vec::new(),
};

fn gemma3() -> Spec {
    let kinds = [LayerKind::Random, LayerKind::Sliding, LayerKind::Random, LayerKind::Sliding];
    Spec {
        architecture: "gemma3",
        weight_type: TensorType::F32,
        layers: kinds.map(random).to_vec(),
        ..Preset::TinyKeys.spec()
    }
}

fn encoder(head: Head) -> Spec {
    Spec {
        architecture: "bert",
        n_heads: 2,
        n_ff: 256,
        context_tokens: 512,
        layers: vec![random(LayerKind::Encoder(head)); 3],
        ..TINY
    }
}

fn full(stride: usize, n_offsets: usize) -> Layer {
    Layer { kind: LayerKind::Full, stride, n_offsets }
}

fn sliding(stride: usize, n_offsets: usize) -> Layer {
    Layer { kind: LayerKind::Sliding, stride, n_offsets }
}

fn convolution(n_offsets: usize) -> Layer {
    Layer { kind: LayerKind::Convolution, stride: 1, n_offsets }
}

fn random(kind: LayerKind) -> Layer {
    Layer { kind, stride: 1, n_offsets: 0 }
}

/// Number of key and value heads of a digital model's attention layer.
pub(crate) const N_KV_HEADS: usize = 2;
/// Size of a digital model's heads.
pub(crate) const HEAD_SIZE: usize = 64;
/// Window of a sliding layer; the farthest distance that such a layer fetches, 72, lies inside it. Units: tokens.
pub(crate) const WINDOW_TOKENS: usize = 128;

/// Specification of a model.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// llama.cpp's name of the architecture.
    pub architecture: &'static str,
    /// Size of the residual stream.
    pub width: usize,
    /// Number of query heads of an attention layer.
    pub n_heads: usize,
    /// Number of key and value heads of an attention layer.
    pub n_kv_heads: usize,
    /// Size of one head.
    pub head_size: usize,
    /// Number of hidden units of a feed-forward layer.
    pub n_ff: usize,
    /// Type of the matrices.
    pub weight_type: TensorType,
    /// Longest context. Units: tokens.
    pub context_tokens: usize,
    /// Value of the constant channel.
    ///
    /// A larger value makes norms depend less on the content; 8-bit weights, whose scales are 16-bit floats, limit it.
    pub constant: f32,
    /// Base of the rotary frequencies; below 1 in digital models, so that the frequencies rise, from 1 radian per
    /// token.
    ///
    /// Source: our search for the base that distinguishes the required distances from all others up to the context's
    /// length (`docs/decisions/0004-test-models.md`).
    pub rope_base: f32,
    /// The layers.
    pub layers: Vec<Layer>,
}

/// One layer: it fetches the states `stride`, `2 x stride`, ..., `n_offsets x stride` tokens back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layer {
    /// Operation by which the layer fetches them.
    pub kind: LayerKind,
    /// Distance between two fetched states. Units: tokens.
    pub stride: usize,
    /// Number of fetched states.
    pub n_offsets: usize,
}

/// Operation by which a layer fetches earlier states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerKind {
    /// Attention over the whole context.
    Full,
    /// Attention over the last [`WINDOW_TOKENS`].
    Sliding,
    /// A short convolution, whose state is its last inputs.
    Convolution,
    /// A selective state space, whose state decays.
    Recurrent,
    /// A state that maps keys to values: a token corrects the value of its key, and the state decays.
    DeltaNet,
    /// A selective state space with one rate of decay for each head.
    Mamba2,
    /// No fetching: a feed-forward layer that is a layer of its own.
    FeedForward,
    /// Attention over the whole context with random weights, which mixes states instead of fetching them.
    Random,
    /// Not a layer of the model, but its head for one token more: attention with the weights of the last layer.
    NextToken,
    /// Attention in both directions with random weights, without a cache.
    Encoder(Head),
}

/// Output of an encoder for a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    /// The mean of all tokens' states.
    Mean,
    /// One score, from the first token's state.
    Rank,
}
