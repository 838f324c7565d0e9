// What a context takes of the machine's memory, which llama.cpp's C interface does not tell.
//
// Not here: decisions. Memory of other devices, such as a GPU's, is left out.

#include "llama-ext.h"

#include "ggml-backend.h"

#include <cstdint>

struct wp_memory {
    uint64_t weights_as_in_file;
    uint64_t weights_repacked;
    uint64_t context;
    uint64_t compute;
};

extern "C" void wp_context_memory(const llama_context * context, wp_memory * memory) {
    *memory = {};
    for (const auto & [kind, sizes] : llama_get_memory_breakdown(context)) {
        const bool is_host = ggml_backend_buft_is_host(kind);
        // Weights that are laid out for the processor's kernels are in a buffer of its own, which is no host buffer.
        ggml_backend_dev_t device = ggml_backend_buft_get_device(kind);
        const bool is_cpu = device && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
        if (!is_host && !is_cpu) {
            continue;
        }
        (is_host ? memory->weights_as_in_file : memory->weights_repacked) += sizes.model;
        memory->context += sizes.context;
        memory->compute += sizes.compute;
    }
}
