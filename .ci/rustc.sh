#!/usr/bin/env bash
# Compiles a crate of ours without optimisation: RUSTC_WORKSPACE_WRAPPER of .ci/run.
#
# cargo keeps these builds apart from the ordinary ones, and compiles all other crates as ever. Not for sh: dash drops
# CARGO_BIN_EXE_warmpath-router, whose name it does not accept.
exec "$@" -C opt-level=0
