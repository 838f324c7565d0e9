#!/bin/sh
# Compiles a crate of ours with the coverage that libFuzzer reads: RUSTC_WORKSPACE_WRAPPER of scripts/fuzz.sh.
#
# cargo keeps these builds apart from the ordinary ones and uses the ordinary builds of all other crates, llama.cpp's
# too. The flags are those of cargo-fuzz, without AddressSanitizer, so that the stable compiler will do.
set -eu

case " $* " in
    # A build script has no libFuzzer; the others are queries about the compiler.
    *" --crate-name build_script_"* | *" --crate-name ___ "*) exec "$@" ;;
    *" --crate-name "*) ;;
    *) exec "$@" ;;
esac
exec "$@" -C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=4 \
    -C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table \
    -C llvm-args=-sanitizer-coverage-trace-compares -C debug-assertions=on
