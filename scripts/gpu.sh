#!/bin/sh
# Runs a command in the environment in which a worker for GPUs is compiled and run, and says what is missing:
# scripts/gpu.sh KIND COMMAND..., KIND being cuda, metal, vulkan or rocm. Builds go into a folder of their own,
# target/gpu-KIND. See docs/accelerators.md.
set -eu
cd "$(dirname "$0")/.."

kind=$1
shift
have() { command -v "$1" >/dev/null 2>&1; }
missing() {
    echo "gpu: $1; see docs/accelerators.md" >&2
    exit 1
}

export CARGO_TARGET_DIR="$PWD/target/gpu-$kind"
case $kind in
cuda)
    PATH="$PATH:${CUDA_PATH:-/usr/local/cuda}/bin"
    export PATH
    have nvcc || missing 'nvcc is missing: install the CUDA toolkit, or set CUDA_PATH to its folder'
    ;;
metal)
    [ "$(uname -s)" = Darwin ] || missing 'Metal is only available on macOS'
    ;;
vulkan)
    settings=$(scripts/vulkan.sh)
    # shellcheck disable=SC2086,SC2163 # each line is a variable and its value
    [ -z "$settings" ] || export $settings
    ;;
rocm)
    PATH="$PATH:${ROCM_PATH:-/opt/rocm}/bin"
    have hipconfig || missing 'hipconfig is missing: install ROCm with its HIP SDK, or set ROCM_PATH to its folder'
    HIPCXX=$(hipconfig -l)/clang
    HIP_PATH=$(hipconfig -R)
    export PATH HIPCXX HIP_PATH
    ;;
*)
    missing "no kind of GPU is called $kind: cuda, metal, vulkan, rocm"
    ;;
esac
exec "$@"
