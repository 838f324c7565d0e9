#!/usr/bin/env bash
# Coverage-guided fuzzing of the targets in fuzz/src, one after the other.
#
# Usage: scripts/fuzz.sh SECONDS [TARGET ...]      target/fuzz/findings/TARGET-* are inputs that break a rule
#
# New inputs are kept in target/fuzz/corpus, and the next run begins with them.
set -euo pipefail

seconds=$1
shift
cd "$(dirname "$0")/.."

messages=$(RUSTC_WORKSPACE_WRAPPER="$PWD/fuzz/rustc.sh" "${CARGO:-cargo}" build --release --workspace --test libfuzzer \
    --features warmpath-fuzz/libfuzzer --message-format json-render-diagnostics)
fuzzer=$(sed -n 's/.*"executable":"\([^"]*\/libfuzzer-[^"]*\)".*/\1/p' <<<"$messages")

# The stack of tokio's threads, on which the code under test runs.
ulimit -s 2048
mkdir -p target/fuzz/findings
[ $# -gt 0 ] || set -- fuzz/corpus/*
status=0
for target in "${@##*/}"; do
    # Bodies, schemas and grammars that the worker's own test sends over HTTP.
    case $target in
        bodies) seeds=(worker/tests/corpus/{chat,completion,infill,messages,native,responses}) ;;
        schema | grammar) seeds=("worker/tests/corpus/$target") ;;
        *) seeds=() ;;
    esac
    echo "== fuzz $target" >&2
    mkdir -p "target/fuzz/corpus/$target"
    WARMPATH_FUZZ_TARGET=$target "$fuzzer" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=8192 \
        -print_final_stats=1 -artifact_prefix="target/fuzz/findings/$target-" "target/fuzz/corpus/$target" \
        "fuzz/corpus/$target" "${seeds[@]}" || status=1
done
exit $status
