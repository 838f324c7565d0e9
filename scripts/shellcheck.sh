#!/bin/sh
# Checks every tracked shell script with shellcheck, from the PATH or from the Python environment of the tests.
set -eu
cd "$(dirname "$0")/.."

scripts/python-venv.sh
PATH="$PATH:$PWD/target/venv/bin"
git ls-files '*.sh' .ci/run | xargs shellcheck
