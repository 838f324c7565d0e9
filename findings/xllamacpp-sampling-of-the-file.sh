#!/bin/sh
# Surprise: in xllamacpp a model's sampling defaults win over the values that a program sets in CommonParams.sampling.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), gguf 0.19.0, numpy 2.3.5
# Date: 2026-11-28
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.3.5 xllamacpp==2026.10.11549
"$work/venv/bin/python" - "$work" 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path

import numpy
import xllamacpp
from gguf import GGUFWriter, TokenType

WIDTH, N_FF, BYTES = 64, 128, [f"<0x{byte:02X}>" for byte in range(256)]


def write_model(file, top_k):
    """Writes a small model with random weights."""
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<unk>", "<s>", "</s>", *BYTES, "\u2581", "a", "\u2581a"]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * 3]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if top_k is not None:
        writer.add_sampling_top_k(top_k)
    random = numpy.random.default_rng(1)
    square = ["attn_q", "attn_k", "attn_v", "attn_output"]
    shapes = {"token_embd": (len(tokens), WIDTH), "output": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    shapes |= {f"blk.0.{name}": (WIDTH, WIDTH) for name in square}
    shapes |= {f"blk.0.{name}": (WIDTH,) for name in ["attn_norm", "ffn_norm"]}
    shapes |= {f"blk.0.{name}": (N_FF, WIDTH) for name in ["ffn_gate", "ffn_up"]} | {"blk.0.ffn_down": (WIDTH, N_FF)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.1, shape).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def top_k_in_force(name, of_file, marks=0):
    """Returns the top_k of a request without one, at a server that was started with 9 and these marks of set values."""
    file = Path(sys.argv[1]) / name
    write_model(file, of_file)
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel = 256, 1
    params.sampling.top_k = 9
    params.sampling.user_sampling_config = marks
    server = xllamacpp.Server(params)
    body = json.dumps({"prompt": "a", "n_predict": 1}).encode()
    url = f"{server.listening_address}/completion"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["generation_settings"]["top_k"]


print("xllamacpp", version("xllamacpp"), "gguf", version("gguf"))
without, with_key = top_k_in_force("without.gguf", None), top_k_in_force("with.gguf", 7)
marked = top_k_in_force("marked.gguf", 7, marks=1 << 1)
print(f"params.sampling.top_k = 9, a file without the key: a request has top_k {without}")
print(f"params.sampling.top_k = 9, general.sampling.top_k 7 in the file: a request has top_k {with_key}")
print(f"the same with params.sampling.user_sampling_config = 2: a request has top_k {marked}")
assert (without, with_key, marked) == (9, 7, 9), "the behaviour has changed"
print("seen: the program's 9 is lost without an error, unless it also sets the bit that marks top_k as set")
PYTHON
