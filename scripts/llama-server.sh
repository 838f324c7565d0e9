#!/bin/sh
# Builds llama-server, the server that `warmpath-bench worker` compares with: the same compiler, flags and launcher as
# llama.cpp in our own build (.cargo/config.toml), without web page, TLS and downloads. About ten minutes on two cores, once.
#
# Usage: scripts/llama-server.sh     target/peers/llama-server/llama-server results; does nothing where it is up to date.
# GPU=cuda, metal, vulkan or rocm builds it for a GPU, as `make build GPU=...` builds the worker.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/target/peers/llama-server
stamp=$dir/.built

case ${GPU:-} in
'') backend='' ;;
cuda) backend='-DGGML_CUDA=ON -DGGML_CUDA_NCCL=OFF' ;;
metal) backend=-DGGML_METAL=ON ;;
vulkan) backend=-DGGML_VULKAN=ON ;;
rocm) backend=-DGGML_HIP=ON ;;
*)
    echo "llama-server: no kind of GPU is called $GPU: cuda, metal, vulkan, rocm" >&2
    exit 1
    ;;
esac
# Runs a command with what a build for the GPU needs.
with_gpu() {
    if [ -n "$backend" ]; then "$root/scripts/gpu.sh" "$GPU" "$@"; else "$@"; fi
}

# Whatever decides about the binary: how it is built, from what, with what, for what.
wanted=$(echo "$backend" | cat - "$0" "$root/scripts/llama-cpp-source.sh" "$root/build/cxx-launcher.sh" | sha256sum)
if [ -x "$dir/llama-server" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi
rm -rf "$dir/source"
"$root/scripts/llama-cpp-source.sh" "$dir/source" '*'

echo "building llama-server, once: about ten minutes on two cores" >&2
# shellcheck disable=SC2086 # flags
with_gpu cmake -S "$dir/source" -B "$dir/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$root/build/cxx-launcher.sh" \
    -DCMAKE_C_FLAGS='-ffunction-sections -fdata-sections -w' -DCMAKE_CXX_FLAGS='-ffunction-sections -fdata-sections -w' \
    -DGGML_NATIVE=ON -DGGML_OPENMP=ON -DGGML_CCACHE=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF $backend >"$dir/configure.log" 2>&1 || {
    cat "$dir/configure.log" >&2
    exit 1
}
with_gpu cmake --build "$dir/build" --target llama-server --parallel "$(getconf _NPROCESSORS_ONLN)" >&2
cp "$dir/build/bin/llama-server" "$dir/llama-server"
rm -rf "$dir/source" "$dir/build"
printf '%s\n' "$wanted" >"$stamp"
