//! Models for tests and benchmarks: made by code, or fetched and quantized.

pub mod cache;
mod made;
pub mod quantize;
pub mod real;
pub mod stability;

use std::path::PathBuf;

pub use made::oracle::Oracle;
pub use made::preset::Preset;
pub use made::write::{write_model, write_model_with, write_split_model};
pub use made::{adapter, hash_net, projector};

/// Flags of `model`.
#[derive(Debug, clap::Args)]
pub struct ModelArgs {
    /// Kind of model.
    #[arg(long, value_enum)]
    pub preset: Preset,
    /// File to write.
    #[arg(long)]
    pub out: PathBuf,
    /// GGUF file whose tokenizer is taken instead of our own.
    #[arg(long)]
    pub vocab: Option<PathBuf>,
    /// Seed, which selects one of the models of this kind.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Makes a LoRA adapter for the model instead of the model itself; the value is the adapter's seed.
    #[arg(long, conflicts_with = "vocab")]
    pub adapter: Option<u64>,
    /// Makes a projector for the model instead of the model itself, for these media.
    #[arg(long, value_enum, conflicts_with_all = ["vocab", "adapter"])]
    pub projector: Option<projector::Reads>,
}

/// Runs `warmpath-bench model`.
///
/// Errors: as [`write_model`].
pub fn run(args: &ModelArgs) -> anyhow::Result<()> {
    if let Some(adapter_seed) = args.adapter {
        return adapter::write_adapter(args.preset, args.seed, adapter_seed, &args.out);
    }
    if let Some(reads) = args.projector {
        return projector::write_projector(args.preset, args.seed, reads, &args.out);
    }
    write_model(args.preset, args.seed, args.vocab.as_deref(), &args.out)
}
