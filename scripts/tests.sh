#!/usr/bin/env bash
# Runs the tests by the given command, and repeats the failures at the end, because CI keeps the end of a log.
set -uo pipefail
log=target/tests.log
"$@" 2>&1 | tee "$log"
status=$?
if [ "$status" -ne 0 ]; then
    echo "== failures (the whole log is $log):"
    grep -aE -A 4 '^test .* FAILED$|^thread .* panicked at |^error: test failed|\(signal: ' "$log" | tail -n 80
fi
exit "$status"
