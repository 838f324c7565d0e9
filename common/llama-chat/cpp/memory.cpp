// What a context or a projector takes of the machine's memory and of that of devices, which llama.cpp's C interface does
// not tell.
//
// Not here: decisions.

#include "llama-ext.h"

#include "ggml-backend.h"
#include "mtmd.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

struct wp_device_memory {
    const char * name;
    uint64_t     available;
    uint64_t     weights;
    uint64_t     context;
    uint64_t     compute;
};

struct wp_memory {
    uint64_t weights_as_in_file;
    uint64_t weights_repacked;
    uint64_t context;
    uint64_t compute;
};

// Returns the device of a kind of buffer that is not in the machine's memory.
static ggml_backend_dev_t device_of(ggml_backend_buffer_type_t kind) {
    if (ggml_backend_buft_is_host(kind)) {
        return nullptr;
    }
    ggml_backend_dev_t device = ggml_backend_buft_get_device(kind);
    const bool is_cpu = device && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
    return is_cpu ? nullptr : device;
}

// Writes the memory that a context takes on each device, at most n_max of them; returns the number of devices.
extern "C" size_t wp_device_memory_of(const llama_context * context, wp_device_memory * devices, size_t n_max) {
    std::vector<ggml_backend_dev_t> known;
    for (const auto & [kind, sizes] : llama_get_memory_breakdown(context)) {
        ggml_backend_dev_t device = device_of(kind);
        if (!device) {
            continue;
        }
        const size_t idx = std::find(known.begin(), known.end(), device) - known.begin();
        if (idx >= n_max) {
            continue;
        }
        if (idx == known.size()) {
            known.push_back(device);
            size_t available = 0;
            size_t total = 0;
            ggml_backend_dev_memory(device, &available, &total);
            // A device that does not report its memory is not checked.
            devices[idx] = {ggml_backend_dev_name(device), total > 0 ? available : UINT64_MAX, 0, 0, 0};
        }
        devices[idx].weights += sizes.model;
        devices[idx].context += sizes.context;
        devices[idx].compute += sizes.compute;
    }
    return known.size();
}

extern "C" void wp_context_memory(const llama_context * context, wp_memory * memory) {
    *memory = {};
    for (const auto & [kind, sizes] : llama_get_memory_breakdown(context)) {
        const bool is_host = ggml_backend_buft_is_host(kind);
        // Weights that are repacked for the processor's kernels are in a separate buffer, which is not a host buffer.
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

// Writes what a projector takes of the machine's memory, and of each device as weights, and returns how many devices
// there are; n_max of them are written. All of it is 0 if llama.cpp cannot read the file.
extern "C" size_t wp_projector_memory(
    const char * path, const mtmd_context_params * params, uint64_t * host, wp_device_memory * devices, size_t n_max) {
    *host = 0;
    size_t n_devices = 0;
    for (const auto & [device, size] : mtmd_get_memory_usage(path, *params).backend_mem_usage) {
        const bool is_cpu = !device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
        if (is_cpu) {
            *host += size;
        } else if (n_devices < n_max) {
            size_t available = 0;
            size_t total = 0;
            ggml_backend_dev_memory(device, &available, &total);
            devices[n_devices++] = {ggml_backend_dev_name(device), total > 0 ? available : UINT64_MAX, size, 0, 0};
        }
    }
    return n_devices;
}
