//! Types of weights that llama.cpp computes on a CPU without kernels for several tokens at once.
//!
//! With such a type a prompt costs about as much a token as an answer (docs/tuning.md has figures).
//!
//! Source: the types that llama.cpp lists in `ggml-cpu/repack.cpp`, `ggml-cpu/llamafile/sgemm.cpp` and
//! `ggml-cpu/amx/common.h`.

use std::path::Path;

use tracing::warn;

use crate::backends;
use crate::engine::Placement;

/// Key of a file's most frequent type of weights.
const FILE_TYPE: &str = "general.file_type";
/// Value of `LLAMA_FTYPE_MOSTLY_Q4_1`.
const Q4_1: u64 = 3;
/// Value of `LLAMA_FTYPE_MOSTLY_Q5_1`.
const Q5_1: u64 = 9;

/// Logs that a file with another type of weights would be faster, for a model that is computed on the CPU.
pub(super) fn warn_of_weights(path: &Path, placement: &Placement) {
    if placement.is_offloaded() {
        return;
    }
    let file_type = warmpath_gguf::check(path).ok().and_then(|header| header.unsigned(FILE_TYPE));
    let Some(name) = file_type.and_then(|file_type| slow_type(file_type, backends::cpu_features(), placement.repack))
    else {
        return;
    };
    warn!(
        weights = name,
        "llama.cpp has no CPU kernel for several tokens at once with weights of this type: prompts are computed slowly. \
         A Q4_0 or Q8_0 file of the same model is faster here (docs/tuning.md)"
    );
}

/// Returns the name of a file's type if the kernels in use compute one token at a time with it.
///
/// AMX kernels are used with repacked weights only.
fn slow_type(file_type: u64, cpu_features: &str, repacks: bool) -> Option<&'static str> {
    let has_amx = repacks && cpu_features.contains("AMX_INT8 = 1");
    match file_type {
        Q4_1 if !has_amx => Some("Q4_1"),
        Q5_1 => Some("Q5_1"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_without_a_batched_kernel_are_known_by_the_kernels_in_use() {
        let (plain, amx) = ("CPU : AVX2 = 1 | AVX512_VNNI = 1 |", "CPU : AVX2 = 1 | AMX_INT8 = 1 |");
        assert_eq!(slow_type(Q4_1, plain, true), Some("Q4_1"));
        assert_eq!(slow_type(Q4_1, amx, true), None);
        assert_eq!(slow_type(Q4_1, amx, false), Some("Q4_1"));
        assert_eq!(slow_type(Q5_1, amx, true), Some("Q5_1"));
        // Q4_0, Q8_0, Q4_K_M.
        for file_type in [2, 7, 15] {
            assert_eq!(slow_type(file_type, plain, true), None);
        }
    }
}
