//! GGUF models made by code: small files for tests, a larger one for benchmarks.
//!
//! GGUF files are read and checked in `warmpath-gguf`. A made model computes a hash of its whole context bit by bit
//! (`hash_net`), so that its greedy output depends on every token and is still insensitive to numeric noise.

pub mod adapter;
pub mod cache;
pub mod hash_net;
mod oracle;
pub mod preset;
pub mod projector;
pub mod quantize;
pub mod real;
pub mod stability;
pub mod tokenizer;
pub mod vocabulary;
mod weights;
mod write;

use std::path::PathBuf;

pub use oracle::Oracle;
pub use preset::Preset;
pub use write::{write_model, write_model_with, write_split_model};

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
        return projector::write_projector((args.preset, args.seed), reads, &args.out);
    }
    write_model(args.preset, args.seed, args.vocab.as_deref(), &args.out)
}
