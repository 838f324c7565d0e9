#!/bin/sh
# Builds the programs as images and releases have them and lays them out in a folder that can be moved anywhere: bin/,
# lib/, and lib/warmpath/ with llama.cpp's backends, among them a set of CPU kernels for each generation of processors
# (docs/decisions/0034-cpu-variants.md).
# Usage: scripts/image-files.sh DEST [CARGO_FLAG...], as --features warmpath-worker/cuda.
# CARGO_TARGET_DIR is the folder of the build [target/image].
set -eu
cd "$(dirname "$0")/.."

dest=$1
shift
target=${CARGO_TARGET_DIR:-target/image}
# The build script of llama-cpp-sys-2 links its libraries to these folders, too, and fails over links that an earlier build has left there.
for folder in "$target/dist" "$target/dist/deps" "$target/dist/examples"; do
    rm -f "$folder"/libllama*.so* "$folder"/libggml*.so*
done
# llama.cpp would download models with OpenSSL if it found that; Warmpath does not use this, and images have no OpenSSL.
export CMAKE_DISABLE_FIND_PACKAGE_OpenSSL=TRUE
# Takes the place of the project's target-cpu=native: no processor is named, so that Rust and the rest of C++ run on any. The path (not the
# newer kind, which libraries of libraries do not inherit) lets the folder be put anywhere.
# shellcheck disable=SC2016 # the loader expands $ORIGIN
RUSTFLAGS='-C strip=symbols -C link-arg=-Wl,--disable-new-dtags,-rpath,$ORIGIN/../lib' CARGO_TARGET_DIR=$target \
    cargo build --profile dist --locked -p warmpath-cli -p warmpath-router -p warmpath-worker --features warmpath-worker/dynamic-backends "$@"

# Newest first, where an older build of llama.cpp lies beside this one.
# shellcheck disable=SC2012 # these names are cargo's
out=$(ls -td "$target"/dist/build/llama-cpp-sys-2-*/out/lib | head -1)
rm -rf "$dest"
mkdir -p "$dest/bin" "$dest/lib/warmpath"
install "$target/dist/warmpath" "$target/dist/warmpath-router" "$target/dist/warmpath-worker" "$dest/bin/"
for library in libllama libggml libggml-base libllama-common; do
    cp -a "$out/$library".so* "$dest/lib/"
done
install -m 644 "$(sed -n 's/^WARMPATH_OPENMP:FILEPATH=//p' "$out/../build/CMakeCache.txt")" "$dest/lib/"
install -m 644 "$out"/../backends/libggml-*.so "$dest/lib/warmpath/"
