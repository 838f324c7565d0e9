#!/bin/sh
# Runs a command as a named stage: scripts/stage.sh NAME COMMAND...; prints its name at the start and the seconds that
# it took.
name=$1
shift
echo "== $name: $*" >&2
started=$(date +%s)
"$@"
status=$?
echo "== $name: $(($(date +%s) - started)) s$([ $status -eq 0 ] || echo ", failed with status $status")" >&2
exit $status
