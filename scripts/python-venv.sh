#!/bin/sh
# Makes target/venv with the packages of tests/python/requirements.txt; does nothing where it is up to date.
# Called by `make test` and by the tests that need Python, so that a bare `cargo test` works too.
set -eu
cd "$(dirname "$0")/.."

wanted=tests/python/requirements.txt
if cmp -s "$wanted" target/venv/installed.txt; then
    exit 0
fi
rm -rf target/venv
python3 -m venv target/venv
target/venv/bin/pip install --quiet --disable-pip-version-check --requirement "$wanted"
cp "$wanted" target/venv/installed.txt
