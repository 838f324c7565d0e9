//! Machines with published speeds, for workers in `sim --sessions`.
//!
//! A prompt's speed falls with its length, because attention reads all tokens before. Each machine has the speed at the
//! start, and the length behind which it is half of that: two measurements at different lengths give both.

use super::worker::{self, RESTORE_MS_PER_TOKEN};
use crate::virtual_time::simulated::disk::DiskShape;
use crate::virtual_time::simulated::kv::Eviction;

/// Speed of the disk, in either direction. Units: bytes per second.
///
/// Source: the data sheet of Samsung's 990 PRO, sequential writes (6,900 MB/s; reads 7,450 MB/s).
const DISK_BYTES_PER_S: f64 = 6.9e9;

/// Kind of machine, with its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Machine {
    /// A100 of 80 GB with Llama 3 8B at f16.
    ///
    /// Source: XiongjieDai/GPU-Benchmarks-on-LLM-Inference (aa72e0ec): 7,504 tokens/s for 1,024, 54.8 tokens/s decoded;
    /// Jiang et al., "MInference 1.0" (2024): 30 minutes for a million. Slots: 64 GB for four average prompts. Restore:
    /// PCIe 4.0 x16 carries 32 GB/s.
    #[value(name = "gpu-8b")]
    Gpu8b,
    /// M2 Ultra with Qwen3 Coder 30B-A3B at Q8_0.
    ///
    /// Source: ggml-org/llama.cpp pull request 15616: 2,273 tokens/s for 2,048, 1,023 tokens/s for 16,384, 76.3
    /// tokens/s decoded.
    #[value(name = "mac-30b-moe")]
    Mac30bMoe,
    /// Ryzen 7950X with Llama 3.1 8B at IQ3_S.
    ///
    /// Source: ikawrakow/ik_llama.cpp pull request 518: 512 tokens in 1.733 s at the start and in 1.954 s behind 2,048,
    /// 15.5 tokens/s decoded.
    #[value(name = "cpu")]
    Cpu,
}

impl Machine {
    /// Returns the size of a token's state at f16. Units: bytes.
    ///
    /// Source: the models' layers x KV heads x size of a head, for keys and values of two bytes.
    pub fn kv_token_bytes(self) -> u64 {
        match self {
            Self::Gpu8b | Self::Cpu => 32 * 8 * 128 * 4,
            Self::Mac30bMoe => 48 * 4 * 128 * 4,
        }
    }

    /// Returns a worker on this machine with room for so many blocks in RAM and on disk.
    pub fn worker(self, blocks_max: [u64; 2], block_tokens: u32, eviction: Eviction) -> worker::Shape {
        let [n_blocks_max, n_disk_blocks_max] = blocks_max;
        let (n_slots, prefill_tokens_per_s, half_speed_tokens, decode_tokens_per_s, restore_ms_per_token) = match self {
            Self::Gpu8b => (4, 7601.7, 39_423.0, 54.84, self.kv_token_bytes() as f64 / 32e9 * 1e3),
            Self::Mac30bMoe => (4, 2753.1, 4842.4, 76.31, RESTORE_MS_PER_TOKEN),
            Self::Cpu => (2, 300.23, 15_804.0, 15.54, RESTORE_MS_PER_TOKEN),
        };
        let block_bytes = self.kv_token_bytes() * u64::from(block_tokens);
        let ms_per_block = block_bytes as f64 / DISK_BYTES_PER_S * 1e3;
        let disk = DiskShape { n_blocks_max: n_disk_blocks_max, ms_per_block };
        worker::Shape {
            n_slots,
            n_blocks_max: n_blocks_max.max(1),
            disk: (n_disk_blocks_max > 0).then_some(disk),
            eviction,
            prefill_tokens_per_s,
            half_speed_tokens,
            decode_step_ms: 1e3 / decode_tokens_per_s,
            restore_ms_per_token,
            checkpoint_blocks: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_takes_the_published_times() {
        let check = |machine: Machine, n_before: u32, n_tokens: u32, published_s: f64| {
            let worker = machine.worker([1, 0], 64, Eviction::Arc);
            let s = worker.engine(64).prefill_ms(n_before, n_tokens) / 1e3;
            assert!((s / published_s - 1.0).abs() < 0.01, "{machine:?}: {s} s for {n_tokens}, not {published_s}");
        };
        check(Machine::Gpu8b, 0, 1024, 1024.0 / 7504.24);
        check(Machine::Gpu8b, 0, 1_000_000, 30.0 * 60.0);
        check(Machine::Mac30bMoe, 0, 2048, 2048.0 / 2272.56);
        check(Machine::Mac30bMoe, 0, 16_384, 16_384.0 / 1022.81);
        check(Machine::Cpu, 0, 512, 1.733);
        check(Machine::Cpu, 2048, 512, 1.954);
    }
}
