#!/bin/sh
# Compiler launcher for llama.cpp's C++: compiles ggml's AMX kernels at -O2, everything else as asked.
# Why: GCC 12 at -O3 miscompiles their tile set-up (SIGILL); see docs/decisions/0001-build.md.
case "$*" in
*amx/mmq.cpp*) exec "$@" -O2 ;;
*) exec "$@" ;;
esac
