#!/bin/sh
# Unpacks files of llama.cpp's source tree as llama-cpp-python's source package on PyPI carries it: models and tools that
# the crate llama-cpp-sys-2 does not ship. The package is fetched once, into target/downloads.
#
# Usage: scripts/llama-cpp-source.sh DIR PATTERN...     DIR/PATH results for every PATH of llama.cpp that a pattern matches.
# LLAMA_CPP_SDIST=FILE.tar.gz uses a package that is already here, after checking that it is the right one.
set -eu

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
root=$(cd "$(dirname "$0")/.." && pwd)
dir=$1
shift

archive=${LLAMA_CPP_SDIST:-}
if [ -z "$archive" ]; then
    archive=$root/target/downloads/llama_cpp_python-$version.tar.gz
    if [ ! -f "$archive" ]; then
        echo "fetching llama-cpp-python $version from PyPI" >&2
        mkdir -p "$root/target/downloads"
        work=$(mktemp -d "$root/target/downloads/.fetch.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        # pip asks the package for its metadata, which takes its build tools and some seconds; nothing is compiled.
        "$root/scripts/pip-download.sh" "$work" --quiet --no-binary llama-cpp-python "llama-cpp-python==$version"
        mv -f "$work/llama_cpp_python-$version.tar.gz" "$archive"
    fi
fi
echo "$sha256  $archive" | sha256sum --check --quiet -

inside=llama_cpp_python-$version/vendor/llama.cpp
for pattern in "$@"; do
    set -- "$@" "$inside/$pattern"
    shift
done
mkdir -p "$dir"
tar -xzf "$archive" -C "$dir" --strip-components=3 --wildcards "$@"
