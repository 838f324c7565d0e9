//! Projectors for made models: small files that turn images and audio into states which the model's function can hash.
//!
//! A projector cuts an image of 128 x 128 pixels into 64 patches. A random weighing of a patch's pixels gives a number
//! for each bit of a state, and a steep step rounds the number to +1 or -1. So an image is 64 tokens whose codes follow
//! from its pixels, and numeric noise is removed as within the model (`weights`). The architecture is LLaVA's: patches,
//! positions, and two linear layers with a GELU between them. Its transformer layers end before the last one, so a file
//! of a single layer has none that is computed.
//!
//! Audio is cut into frames of 40 ms, each a token, as for Gemma 4: the frame's samples are normed, and a linear layer
//! makes the state of them. Nothing rounds there, so audio for these models is digital itself (`sounds` of the
//! benchmarks).

use std::path::Path;

use anyhow::ensure;
use warmpath_gguf::{TensorType, Value, Writer};

use crate::model::made::hash_net::N_BITS;
use crate::model::made::preset::{LayerKind, Preset};
use crate::model::made::weights::{CONSTANT, noise, state_channel};

/// Width and height to which an image is fitted. Units: pixels.
const IMAGE_SIZE: usize = 128;
/// Width and height of a patch. Units: pixels.
const PATCH_SIZE: usize = 16;
/// Tokens of an image.
pub const IMAGE_TOKENS: usize = (IMAGE_SIZE / PATCH_SIZE) * (IMAGE_SIZE / PATCH_SIZE);
/// Patches of each side that make one token of an image without a causal mask.
const MERGED: usize = 2;
/// Tokens of an image without a causal mask.
pub const NON_CAUSAL_IMAGE_TOKENS: usize = IMAGE_TOKENS / (MERGED * MERGED);
/// Channels of a patch's pixels.
const PATCH_FLOATS: usize = PATCH_SIZE * PATCH_SIZE * 3;

/// Slope of the step that rounds a weighed sum to a bit.
///
/// Source: of the 2,048 sums of an image, whose deviation is about 1, one in three images has one on the slope.
const SLOPE: f32 = 2e5;
/// Half the height of the step. Source: beyond 10, ggml computes a GELU as exactly its input or zero.
const HALF_STEP: f32 = 16.0;

/// Samples of a frame of audio, which is a token. Source: Gemma 4's encoder in llama.cpp.
pub const FRAME_SAMPLES: usize = 640;
/// Sample rate of audio. Units: hertz.
pub const SAMPLE_RATE: u32 = 16_000;
/// Samples that hold a bit; those after the last bit are always positive.
pub const BIT_SAMPLES: usize = 19;

/// What a projector reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Reads {
    /// Images.
    Images,
    /// Audio.
    Audio,
    /// Images and audio.
    Both,
    /// Images whose tokens attend to each other in both directions, as of Gemma 3.
    NonCausal,
}

impl Reads {
    fn images(self) -> bool {
        matches!(self, Self::Images | Self::Both)
    }

    fn audio(self) -> bool {
        matches!(self, Self::Audio | Self::Both)
    }
}

/// Writes the projector for the model of `preset` and `seed`.
///
/// Errors: the preset's model is not digital, or `out` cannot be written.
pub fn write_projector(preset: Preset, seed: u64, reads: Reads, out: &Path) -> anyhow::Result<()> {
    let spec = preset.spec();
    let is_digital = |kind| matches!(kind, LayerKind::Full | LayerKind::Sliding | LayerKind::Convolution);
    // What has no causal mask is not digital itself.
    let is_digital = reads == Reads::NonCausal || spec.layers.iter().all(|layer| is_digital(layer.kind));
    ensure!(is_digital, "projectors are made for digital models, not for {}", preset.name());
    let mut writer = Writer::new();
    writer.set("general.type", Value::Text("mmproj"))?;
    writer.set("general.architecture", Value::Text("clip"))?;
    writer.set("general.name", Value::Text(&format!("projector of warmpath {}", preset.name())))?;
    let mut tensors = Vec::new();
    if reads == Reads::NonCausal {
        describe_images(&mut writer, spec.width, "clip.projector_type", "gemma3")?;
        tensors.append(&mut non_causal_tensors(spec.width, seed));
    }
    if reads.images() {
        describe_images(&mut writer, spec.width, &type_key(reads, "vision"), "mlp")?;
        tensors.append(&mut image_tensors(spec.width, spec.constant, seed));
    }
    if reads.audio() {
        describe_audio(&mut writer, spec.width, type_key(reads, "audio"))?;
        tensors.push(audio_tensor(spec.width, spec.constant));
    }
    for (name, shape, _) in &tensors {
        writer.declare(name, TensorType::F32, shape)?;
    }
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    // Two tests may make the same file at once.
    let temporary = tempfile::NamedTempFile::new_in(folder)?.into_temp_path();
    let mut sink = writer.begin(&temporary)?;
    for (.., floats) in &tensors {
        sink.write(floats)?;
    }
    sink.finish()?;
    temporary.persist(out)?;
    Ok(())
}

/// Returns the name of the field with a projector's type: that of one kind of media, if the file has several.
fn type_key(reads: Reads, kind: &str) -> String {
    if reads == Reads::Both { format!("clip.{kind}.projector_type") } else { "clip.projector_type".to_owned() }
}

fn describe_images(writer: &mut Writer, width: usize, type_key: &str, kind: &str) -> anyhow::Result<()> {
    let is_mlp = kind == "mlp";
    writer.set(type_key, Value::Text(kind))?;
    writer.set("clip.has_vision_encoder", Value::Bool(true))?;
    writer.set("clip.use_gelu", Value::Bool(true))?;
    for (key, value) in [
        ("embedding_length", N_BITS),
        ("feed_forward_length", 2 * N_BITS),
        ("block_count", usize::from(is_mlp)),
        ("projection_dim", width),
        ("attention.head_count", 1),
        ("image_size", IMAGE_SIZE),
        ("patch_size", PATCH_SIZE),
    ] {
        writer.set(&format!("clip.vision.{key}"), Value::U32(u32::try_from(value)?))?;
    }
    writer.set("clip.vision.attention.layer_norm_epsilon", Value::F32(1e-6))?;
    for key in ["image_mean", "image_std"] {
        writer.set(&format!("clip.vision.{key}"), Value::F32s(&[0.5; 3]))?;
    }
    if !is_mlp {
        writer.set("clip.vision.projector.scale_factor", Value::U32(u32::try_from(MERGED)?))?;
    }
    Ok(())
}

fn describe_audio(writer: &mut Writer, width: usize, type_key: String) -> anyhow::Result<()> {
    writer.set(&type_key, Value::Text("gemma4ua"))?;
    writer.set("clip.has_audio_encoder", Value::Bool(true))?;
    for (key, value) in [
        ("embedding_length", FRAME_SAMPLES),
        ("feed_forward_length", 0),
        ("block_count", 0),
        ("projection_dim", width),
        ("attention.head_count", 1),
        ("num_mel_bins", FRAME_SAMPLES),
    ] {
        writer.set(&format!("clip.audio.{key}"), Value::U32(u32::try_from(value)?))?;
    }
    writer.set("clip.audio.attention.layer_norm_epsilon", Value::F32(1e-6))?;
    Ok(())
}

/// A tensor: name, shape, values.
type Tensor = (&'static str, Vec<usize>, Vec<f32>);

/// Returns the linear layer that makes a state of a frame whose samples are normed to +1 and -1.
fn audio_tensor(width: usize, constant: f32) -> Tensor {
    let mut weights = vec![0.0; width * FRAME_SAMPLES];
    let mut average = |channel: usize, samples: std::ops::Range<usize>, value: f32| {
        let share = value / samples.len() as f32;
        weights[channel * FRAME_SAMPLES..][samples].fill(share);
    };
    for bit in 0..N_BITS {
        average(state_channel(bit), bit * BIT_SAMPLES..(bit + 1) * BIT_SAMPLES, 1.0);
    }
    average(CONSTANT, N_BITS * BIT_SAMPLES..FRAME_SAMPLES, constant);
    ("mm.a.input_projection.weight", vec![FRAME_SAMPLES, width], weights)
}

/// Returns the tensors that read images for Gemma 3, with nothing between patches and projection.
fn non_causal_tensors(width: usize, seed: u64) -> Vec<Tensor> {
    let random = |stream: u64, n: usize| noise(seed, stream, n, 0.5);
    vec![
        ("v.patch_embd.weight", vec![PATCH_SIZE, PATCH_SIZE, 3, N_BITS], random(702, N_BITS * PATCH_FLOATS)),
        ("v.position_embd.weight", vec![N_BITS, IMAGE_TOKENS], random(703, N_BITS * IMAGE_TOKENS)),
        ("mm.soft_emb_norm.weight", vec![N_BITS], vec![1.0; N_BITS]),
        ("mm.input_projection.weight", vec![width, N_BITS], random(704, width * N_BITS)),
    ]
}

/// Returns the tensors that read images.
fn image_tensors(width: usize, constant: f32, seed: u64) -> Vec<Tensor> {
    // The sum over a patch has a deviation of about 1.
    let of_pixels = noise(seed, 700, N_BITS * PATCH_FLOATS, (3.0 / PATCH_FLOATS as f32).sqrt());
    let of_places = noise(seed, 701, N_BITS * IMAGE_TOKENS, 0.5);
    let n_units = 2 * N_BITS;
    let (mut rise, mut bends) = (vec![0.0; n_units * N_BITS], vec![0.0; n_units]);
    let (mut sum, mut floor) = (vec![0.0; width * n_units], vec![0.0; width]);
    floor[CONSTANT] = constant;
    for bit in 0..N_BITS {
        // The difference of two units whose bends lie at both ends of the step is the step.
        for (unit, direction) in [(2 * bit, 1.0), (2 * bit + 1, -1.0)] {
            rise[unit * N_BITS + bit] = SLOPE;
            bends[unit] = direction * HALF_STEP;
            sum[state_channel(bit) * n_units + unit] = direction / HALF_STEP;
        }
        floor[state_channel(bit)] = -1.0;
    }
    let zeros = |n: usize| vec![0.0; n];
    vec![
        ("v.patch_embd.weight", vec![PATCH_SIZE, PATCH_SIZE, 3, N_BITS], of_pixels),
        ("v.position_embd.weight", vec![N_BITS, IMAGE_TOKENS], of_places),
        ("v.blk.0.attn_out.weight", vec![N_BITS, N_BITS], zeros(N_BITS * N_BITS)),
        ("v.blk.0.ffn_up.weight", vec![N_BITS, n_units], zeros(N_BITS * n_units)),
        ("v.blk.0.ffn_down.weight", vec![n_units, N_BITS], zeros(N_BITS * n_units)),
        ("mm.0.weight", vec![N_BITS, n_units], rise),
        ("mm.0.bias", vec![n_units], bends),
        ("mm.2.weight", vec![n_units, width], sum),
        ("mm.2.bias", vec![width], floor),
    ]
}
