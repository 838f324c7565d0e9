//! LoRA adapters for made models: small files that change what a model computes as much as another seed would.
//!
//! The models are in `weights`. An adapter inverts bits in the codes of some tokens. Every state after such a token
//! then differs, in every layer, but still consists of whole bits. So KV state that was computed with another adapter
//! changes the output, and numeric noise does not.

use std::path::Path;

use anyhow::{Context as _, ensure};
use rand_chacha::rand_core::Rng as _;
use warmpath_gguf::{TensorType, Value, Writer};

use crate::model::made::hash_net::{HashNet, rng};
use crate::model::made::preset::{LayerKind, Preset};
use crate::model::made::tokenizer::Tokenizer;
use crate::model::made::weights::code_sign;

/// Number of bits that an adapter inverts, each for about half of all tokens.
const RANK: usize = 4;

/// Writes the adapter of `adapter_seed` for the model of `preset` and `seed` with our own tokenizer.
///
/// Errors: the preset's model is not digital, or `out` cannot be written.
pub fn write_adapter(preset: Preset, seed: u64, adapter_seed: u64, out: &Path) -> anyhow::Result<()> {
    let spec = preset.spec();
    let is_digital = spec.layers.iter().all(|layer| matches!(layer.kind, LayerKind::Full | LayerKind::Sliding));
    ensure!(is_digital, "adapters are made for digital models of attention layers, not for {}", preset.name());
    let n_tokens = Tokenizer::own(seed)?.n_tokens;
    let net = HashNet::new(&spec, seed);
    let mut writer = Writer::new();
    writer.set("general.type", Value::Text("adapter"))?;
    writer.set("general.architecture", Value::Text(spec.architecture))?;
    writer.set("general.name", Value::Text(&format!("adapter {adapter_seed} of warmpath {}", preset.name())))?;
    writer.set("adapter.type", Value::Text("lora"))?;
    writer.set("adapter.lora.alpha", Value::F32(RANK as f32))?;
    writer.declare("token_embd.weight.lora_a", TensorType::F32, &[RANK, n_tokens])?;
    writer.declare("token_embd.weight.lora_b", TensorType::F32, &[RANK, spec.width])?;
    let mut random = rng(adapter_seed, 7);
    let mut bit_flips = vec![0.0; RANK * n_tokens];
    for (token, row) in (0_u32..).zip(bit_flips.chunks_exact_mut(RANK)) {
        for (bit, cell) in row.iter_mut().enumerate() {
            // To invert a sign, twice its opposite is added.
            *cell = if random.next_u32().is_multiple_of(2) { -2.0 * code_sign(&net, token, bit) } else { 0.0 };
        }
    }
    let mut channels = vec![0.0; RANK * spec.width];
    for bit in 0..RANK {
        channels[crate::model::made::weights::state_channel(bit) * RANK + bit] = 1.0;
    }
    if let Some(folder) = out.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let mut sink = writer.begin(out)?;
    sink.write(&bit_flips)?;
    sink.write(&channels)?;
    sink.finish()?;
    Ok(())
}
