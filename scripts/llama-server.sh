#!/bin/sh
# Builds llama-server, the server that `warmpath-bench worker` compares with: the same compiler, flags and launcher as
# llama.cpp in our own build (.cargo/config.toml), without web page, TLS and downloads. About ten minutes on two cores, once.
#
# Usage: scripts/llama-server.sh     target/peers/llama-server/llama-server results; does nothing where it is up to date.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/target/peers/llama-server
stamp=$dir/.built

# Whatever decides about the binary: how it is built, from what, with what.
wanted=$(cat "$0" "$root/scripts/llama-cpp-source.sh" "$root/build/cxx-launcher.sh" | sha256sum)
if [ -x "$dir/llama-server" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi
rm -rf "$dir/source"
"$root/scripts/llama-cpp-source.sh" "$dir/source" '*'

echo "building llama-server, once: about ten minutes on two cores" >&2
cmake -S "$dir/source" -B "$dir/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$root/build/cxx-launcher.sh" \
    -DCMAKE_C_FLAGS='-ffunction-sections -fdata-sections -w' -DCMAKE_CXX_FLAGS='-ffunction-sections -fdata-sections -w' \
    -DGGML_NATIVE=ON -DGGML_OPENMP=ON -DGGML_CCACHE=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >"$dir/configure.log" 2>&1 || {
    cat "$dir/configure.log" >&2
    exit 1
}
cmake --build "$dir/build" --target llama-server --parallel "$(getconf _NPROCESSORS_ONLN)" >&2
cp "$dir/build/bin/llama-server" "$dir/llama-server"
rm -rf "$dir/source" "$dir/build"
printf '%s\n' "$wanted" >"$stamp"
