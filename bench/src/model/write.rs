//! Writes a made model: its metadata, its tokenizer, its tensors.

use std::path::Path;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use warmpath_gguf::{Value, Writer};

use crate::model::hash_net::HashNet;
use crate::model::preset::{HEAD_SIZE, N_HEADS, N_KV_HEADS, Preset, Spec};
use crate::model::tokenizer::Tokenizer;
use crate::model::weights::{ROPE_BASE, tensors};

/// Writes the model that `preset` and `seed` name to `out`, with the tokenizer of `vocab` or our own.
///
/// The same arguments give the same bytes. A file at `out` is replaced once the new one is whole.
/// Errors: where `vocab` cannot be used or `out` cannot be written.
pub fn write_model(preset: Preset, seed: u64, vocab: Option<&Path>, out: &Path) -> anyhow::Result<()> {
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
    for tensor in &tensors {
        writer.declare(&tensor.name, tensor.kind, &tensor.shape)?;
    }
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let unfinished = tempfile::NamedTempFile::new_in(folder)?.into_temp_path();
    let mut sink = writer.begin(&unfinished)?;
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len} tensors")?;
    let progress = ProgressBar::new(tensors.len() as u64).with_style(style).with_message(preset.name());
    for tensor in &tensors {
        sink.write(&(tensor.fill)())?;
        progress.inc(1);
    }
    sink.finish()?;
    progress.finish_and_clear();
    unfinished.persist(out).with_context(|| format!("cannot write {}", out.display()))?;
    Ok(())
}

fn set_metadata(writer: &mut Writer, preset: Preset, spec: &Spec) -> anyhow::Result<()> {
    let arch = spec.architecture;
    writer.set("general.architecture", Value::Text(arch))?;
    writer.set("general.name", Value::Text(&format!("warmpath {}", preset.name())))?;
    writer.set("general.file_type", Value::U32(if preset == Preset::Bench { 7 } else { 1 }))?;
    for (key, number) in [
        ("context_length", spec.context_tokens),
        ("embedding_length", spec.width),
        ("block_count", spec.layers.len()),
        ("feed_forward_length", spec.n_ff),
        ("attention.head_count", N_HEADS),
        ("attention.head_count_kv", N_KV_HEADS),
        ("attention.key_length", HEAD_SIZE),
        ("attention.value_length", HEAD_SIZE),
        ("rope.dimension_count", HEAD_SIZE),
    ] {
        writer.set(&format!("{arch}.{key}"), Value::U32(u32::try_from(number)?))?;
    }
    writer.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), Value::F32(1e-6))?;
    writer.set(&format!("{arch}.rope.freq_base"), Value::F32(ROPE_BASE))?;
    Ok(())
}
