#!/bin/sh
# Prints which accelerator this machine has, and how a worker is built for it; after a build for one, how the worker is
# started on it.
# Usage: scripts/accelerator.sh [KIND], KIND being the kind of the build.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }
build() { echo "accelerator: $2: make build GPU=$1 builds a worker for it (docs/accelerators.md)"; }

if [ -n "${1:-}" ]; then
    echo "accelerator: built for $1: target/gpu-$1/release/warmpath-worker --list-devices lists the devices, which are used by default"
elif [ "$(uname -s)" = Darwin ]; then
    case $(uname -m) in
    # llama-cpp-2 always has Metal there.
    arm64) echo "accelerator: Apple's GPU, which the worker uses by default (docs/accelerators.md)" ;;
    *) build metal "Apple's Metal" ;;
    esac
elif have nvidia-smi && name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1) && [ -n "$name" ]; then
    build cuda "$name"
elif [ -e /dev/kfd ]; then
    build rocm "AMD's compute driver (/dev/kfd)"
elif have vulkaninfo && name=$(vulkaninfo --summary 2>/dev/null | awk -F '= ' '
    /deviceType/ { gpu = $2 ~ /(DISCRETE|INTEGRATED|VIRTUAL)_GPU/ }
    /deviceName/ && gpu { print $2; exit }') && [ -n "$name" ]; then
    build vulkan "$name"
elif ls /dev/dri/renderD* >/dev/null 2>&1; then
    build vulkan 'a GPU (/dev/dri)'
else
    echo 'accelerator: none was found; the worker runs on the CPU'
fi
