#!/bin/sh
# Downloads packages from the Python package index with pip: the one of python3 or, where it has none (Debian's has none of its
# own), that of a virtual environment, which scripts/setup.sh makes possible.
#
# Usage: scripts/pip-download.sh DIR ARGUMENT...     ARGUMENTs are those of `pip download`; DIR holds the packages afterwards.
set -eu

dir=$1
shift
python=python3
if ! python3 -m pip --version >/dev/null 2>&1; then
    venv=$(mktemp -d)
    trap 'rm -rf "$venv"' EXIT
    python3 -m venv "$venv"
    python=$venv/bin/python
fi
"$python" -m pip download --disable-pip-version-check --no-deps --dest "$dir" "$@" >&2
