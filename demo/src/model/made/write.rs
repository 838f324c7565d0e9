//! Writes a made model: its metadata, its tokenizer, its tensors.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use warmpath_gguf::{Value, Writer, shard_path};

use crate::model::made::hash_net::HashNet;
use crate::model::made::preset::{Head, Layer, LayerKind, Preset, Spec, WINDOW_TOKENS};
use crate::model::made::tokenizer::Tokenizer;
use crate::model::made::weights::{Tensor, delta_net, mamba2, recurrent, tensors};

/// Writes the model of `preset` and `seed` to `out`, with the tokenizer of `vocab` or our own.
///
/// The same arguments give the same bytes. A file at `out` is replaced once the new one is complete.
/// Errors: `vocab` cannot be used or `out` cannot be written.
pub fn write_model(preset: Preset, seed: u64, vocab: Option<&Path>, out: &Path) -> anyhow::Result<()> {
    let (writer, tensors) = made(preset, seed, vocab)?;
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    write_file(writer, &tensors, preset.name(), out)
}

/// Writes the model of `preset` and `seed` to `out`, with further metadata.
///
/// Errors: a key cannot be written, or `out` cannot.
pub fn write_model_with(preset: Preset, seed: u64, metadata: &[(&str, Value<'_>)], out: &Path) -> anyhow::Result<()> {
    let (mut writer, tensors) = made(preset, seed, None)?;
    metadata.iter().try_for_each(|(key, value)| writer.set(key, *value))?;
    write_file(writer, &tensors, preset.name(), out)
}

/// Writes the model of `preset` and `seed` as files whose names begin with `prefix`; returns the path of the first.
///
/// Shape: one file for each of the first `n_files - 1` tensors, the rest in the last one, the metadata in the first
/// one, as llama.cpp's `gguf-split` lays them out.
/// Errors: a file cannot be written.
pub fn write_split_model(preset: Preset, seed: u64, prefix: &Path, n_files: u16) -> anyhow::Result<PathBuf> {
    let (first, tensors) = made(preset, seed, None)?;
    let mut writers = vec![first];
    writers.resize_with(usize::from(n_files), Writer::new);
    let n_tensors = tensors.len();
    let mut tensors_left = tensors;
    for (no, mut writer) in (0..n_files).zip(writers) {
        writer.set("split.no", Value::U16(no))?;
        writer.set("split.count", Value::U16(n_files))?;
        writer.set("split.tensors.count", Value::I32(i32::try_from(n_tensors)?))?;
        let n_here = if no + 1 == n_files { tensors_left.len() } else { 1.min(tensors_left.len()) };
        let behind = tensors_left.split_off(n_here);
        write_file(writer, &tensors_left, preset.name(), &shard_path(prefix, u64::from(no) + 1, n_files.into()))?;
        tensors_left = behind;
    }
    Ok(shard_path(prefix, 1, n_files.into()))
}

/// Returns the metadata and the tensors of a model.
fn made(preset: Preset, seed: u64, vocab: Option<&Path>) -> anyhow::Result<(Writer, Vec<Tensor>)> {
    let spec = preset.spec();
    let tokenizer = match vocab {
        Some(path) => Tokenizer::of_file(path, seed)?,
        None => Tokenizer::own(seed)?,
    };
    let net = HashNet::new(&spec, seed);
    let tensors = tensors(&spec, &net, &tokenizer);
    let mut writer = Writer::new();
    set_metadata(&mut writer, preset, &spec)?;
    tokenizer.set_keys(&mut writer)?;
    if let Some(LayerKind::Encoder(head)) = spec.layers.first().map(|layer| layer.kind) {
        set_encoder_metadata(&mut writer, head, &tokenizer)?;
    }
    Ok((writer, tensors))
}

/// Writes one file of a model with these tensors.
fn write_file(mut writer: Writer, tensors: &[Tensor], name: &'static str, out: &Path) -> anyhow::Result<()> {
    for tensor in tensors {
        writer.declare(&tensor.name, tensor.kind, &tensor.shape)?;
    }
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = tempfile::NamedTempFile::new_in(folder)?.into_temp_path();
    let mut sink = writer.begin(&temporary)?;
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len} tensors")?;
    let progress = ProgressBar::new(tensors.len() as u64).with_style(style).with_message(name);
    for tensor in tensors {
        sink.write(&(tensor.fill)())?;
        progress.inc(1);
    }
    sink.finish()?;
    progress.finish_and_clear();
    // Only its owner can read a temporary file; a model may be read by others.
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o644))?;
    temporary.persist(out).with_context(|| format!("cannot write {}", out.display()))?;
    Ok(())
}

fn set_metadata(writer: &mut Writer, preset: Preset, spec: &Spec) -> anyhow::Result<()> {
    let arch = spec.architecture;
    writer.set("general.architecture", Value::Text(arch))?;
    writer.set("general.name", Value::Text(&format!("warmpath {}", preset.name())))?;
    let mut number = |key: &str, value: usize| -> anyhow::Result<()> {
        Ok(writer.set(&format!("{arch}.{key}"), Value::U32(u32::try_from(value)?))?)
    };
    number("context_length", spec.context_tokens)?;
    number("embedding_length", spec.width)?;
    number("block_count", spec.layers.len())?;
    number("feed_forward_length", spec.n_ff)?;
    number("attention.head_count", spec.n_heads)?;
    if spec.n_heads > 0 {
        number("attention.key_length", spec.head_size)?;
        number("attention.value_length", spec.head_size)?;
        number("rope.dimension_count", spec.head_size)?;
    }
    writer.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), Value::F32(1e-6))?;
    writer.set(&format!("{arch}.rope.freq_base"), Value::F32(spec.rope_base))?;
    set_own_metadata(writer, spec)
}

/// Pairs of channels that turn with each dimension of a position: time, height, width, and one that is not used.
const MROPE_SECTIONS: [i32; 4] = [8, 12, 12, 0];

/// Sets the keys that only some architectures have.
fn set_own_metadata(writer: &mut Writer, spec: &Spec) -> anyhow::Result<()> {
    let key = |key: &str| format!("{}.{key}", spec.architecture);
    let has = |kind: LayerKind| spec.layers.iter().any(|layer| layer.kind == kind);
    let kv_heads = |layer: &Layer| match layer.kind {
        LayerKind::Convolution | LayerKind::Mamba2 | LayerKind::FeedForward => 0,
        LayerKind::Encoder(_) => spec.n_heads as i32,
        _ => spec.n_kv_heads as i32,
    };
    let state_sizes = match spec.layers[0].kind {
        LayerKind::Recurrent => recurrent::sizes(spec).to_vec(),
        LayerKind::DeltaNet => delta_net::SIZES.to_vec(),
        LayerKind::Mamba2 => mamba2::SIZES.to_vec(),
        _ => Vec::new(),
    };
    for (name, value) in state_sizes {
        writer.set(&key(name), Value::U32(u32::try_from(value)?))?;
    }
    if !has(LayerKind::Recurrent) {
        let kv_heads: Vec<i32> = spec.layers.iter().map(kv_heads).collect();
        writer.set(&key("attention.head_count_kv"), Value::I32s(&kv_heads))?;
    }
    let n_heads = spec.layers.iter().filter(|layer| layer.kind == LayerKind::NextToken).count();
    if n_heads > 0 {
        writer.set(&key("nextn_predict_layers"), Value::U32(u32::try_from(n_heads)?))?;
    }
    if spec.architecture == "nemotron_h" {
        // llama.cpp distinguishes the three kinds of layers by these sizes.
        let n_ff = |layer: &Layer| if layer.kind == LayerKind::FeedForward { spec.n_ff as i32 } else { 0 };
        let n_ff: Vec<i32> = spec.layers.iter().map(n_ff).collect();
        writer.set(&key("feed_forward_length"), Value::I32s(&n_ff))?;
        writer.set(&key("attention.layer_norm_epsilon"), Value::F32(1e-6))?;
    }
    if matches!(spec.architecture, "qwen2vl" | "qwen35") {
        writer.set(&key("rope.dimension_sections"), Value::I32s(&MROPE_SECTIONS))?;
    }
    if has(LayerKind::Convolution) {
        let reach =
            spec.layers.iter().filter(|layer| layer.kind == LayerKind::Convolution).map(|layer| layer.n_offsets);
        let length = reach.max().unwrap_or(0) + 1;
        writer.set(&key("shortconv.l_cache"), Value::U32(u32::try_from(length)?))?;
    }
    if has(LayerKind::Sliding) {
        let pattern: Vec<bool> = spec.layers.iter().map(|layer| layer.kind == LayerKind::Sliding).collect();
        writer.set(&key("attention.sliding_window"), Value::U32(u32::try_from(WINDOW_TOKENS)?))?;
        writer.set(&key("attention.sliding_window_pattern"), Value::Bools(&pattern))?;
        writer.set(&key("logit_scale"), Value::F32(1.0))?;
    }
    Ok(())
}

/// Sets the keys of encoders, and the markers of their texts: a text begins with BOS and ends with EOS, a pair has a
/// separator between its two parts.
fn set_encoder_metadata(writer: &mut Writer, head: Head, tokenizer: &Tokenizer) -> anyhow::Result<()> {
    // Source: llama.cpp's `llama_pooling_type`.
    let pooling = match head {
        Head::Mean => 1,
        Head::Rank => 4,
    };
    writer.set("bert.pooling_type", Value::U32(pooling))?;
    writer.set("bert.attention.causal", Value::Bool(false))?;
    writer.set("bert.attention.layer_norm_epsilon", Value::F32(1e-6))?;
    writer.set("tokenizer.ggml.token_type_count", Value::U32(1))?;
    for affix in ["bos", "eos", "sep"] {
        writer.set(&format!("tokenizer.ggml.add_{affix}_token"), Value::Bool(true))?;
    }
    if let Some(end) = tokenizer.end {
        // GGUF spells it this way.
        writer.set("tokenizer.ggml.seperator_token_id", Value::U32(end))?;
    }
    Ok(())
}
