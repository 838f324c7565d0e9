//! Types of weights for which llama.cpp has no CPU kernels that compute several tokens together.
//!
//! With such a type, a prompt token takes about as long as a response token (docs/tuning.md has figures).
//!
//! Source: the types that llama.cpp lists in `ggml-cpu/repack.cpp`, `ggml-cpu/llamafile/sgemm.cpp` and
//! `ggml-cpu/amx/common.h`.

use std::path::Path;

use tracing::warn;

use crate::backends;
use crate::engine::Placement;

/// Key of a file's most frequent type of weights.
const FILE_TYPE: &str = "general.file_type";

/// Values of [`FILE_TYPE`] without kernels for several tokens together, with the types' names.
///
/// Source: llama.cpp's `llama_ftype`.
const SLOW_TYPES: &[(u64, &str)] = &[(3, "Q4_1"), (9, "Q5_1")];

/// Types of these that AMX kernels do not support either.
const SLOW_WITH_AMX: &[(u64, &str)] = &[(9, "Q5_1")];

/// Logs a warning if a model is computed on the CPU and a file with another type of weights would be faster.
pub(super) fn warn_of_weights(path: &Path, placement: &Placement) {
    if placement.is_offloaded() {
        return;
    }
    let file_type = warmpath_gguf::check(path).ok().and_then(|header| header.unsigned(FILE_TYPE));
    // AMX kernels need repacked weights.
    let has_amx = placement.repack && backends::cpu_features().contains("AMX_INT8 = 1");
    let slow_types = if has_amx { SLOW_WITH_AMX } else { SLOW_TYPES };
    let Some((_, name)) = slow_types.iter().find(|(slow, _)| Some(*slow) == file_type) else {
        return;
    };
    warn!(
        weights = name,
        "llama.cpp has no CPU kernel for several tokens together with weights of this type, so prompts are slow. \
         A Q4_0 or Q8_0 file of the same model is faster here (docs/tuning.md)"
    );
}
