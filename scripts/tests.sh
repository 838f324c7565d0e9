#!/usr/bin/env bash
# Runs the tests by the command given, and repeats what failed at the end: CI keeps the end of a log.
set -uo pipefail
log=target/tests.log
"$@" 2>&1 | tee "$log"
status=$?
if [ "$status" -ne 0 ]; then
    echo "== what failed (the whole is in $log):"
    grep -aE -A 4 '^test .* FAILED$|^thread .* panicked at |^error: test failed|\(signal: ' "$log" | tail -n 80
fi
exit "$status"
