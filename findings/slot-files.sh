#!/bin/sh
# Surprise: llama.cpp's server restores a slot's file only with as many slots as it was saved with, or from and into one
#   buffer, and names another reason; with another base frequency of rope it restores without an error.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), gguf 0.19.0, numpy 2.3.5
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.3.5 xllamacpp==2026.10.11549
"$work/venv/bin/python" - "$work" 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import sys
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

import numpy
import xllamacpp
from gguf import GGUFWriter, TokenType

WIDTH, N_LAYERS, FOLDER = 128, 2, Path(sys.argv[1])
TEXT = "The history of the city begins with a small village at the river. "


def write_model(file):
    """Writes a model with random weights and a token for each byte."""
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random = numpy.random.default_rng(1)
    matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(N_LAYERS):
        shapes |= {f"blk.{layer}.{name}": (WIDTH, WIDTH) for name in matrices}
        shapes |= {f"blk.{layer}.{name}": (WIDTH,) for name in ["attn_norm", "ffn_norm"]}
    for name, shape in shapes.items():
        weights = numpy.ones(shape) if len(shape) == 1 else random.normal(0, 0.1, shape)
        writer.add_tensor(f"{name}.weight", weights.astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def start(**settings):
    """Returns a server with these settings instead of the usual ones: one slot with a buffer of its own."""
    params = xllamacpp.CommonParams()
    params.model.path, params.slot_save_path = str(FOLDER / "model.gguf"), f"{FOLDER}/"
    for name, value in ({"n_ctx": 2048, "n_parallel": 1, "kv_unified": False} | settings).items():
        setattr(params, name, value)
    return xllamacpp.Server(params)


def post(server, path, **body):
    """Returns the answer to a request, or the message of its error."""
    url = f"{server.listening_address}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)["error"]["message"]


write_model(str(FOLDER / "model.gguf"))
print(*(f"{package} {version(package)}" for package in ["xllamacpp", "gguf", "numpy"]))
saved = {}
for n_slots in [1, 2]:
    server = start(n_parallel=n_slots)
    post(server, "/completion", prompt=TEXT, n_predict=1, id_slot=0)
    saved[n_slots] = post(server, "/slots/0?action=save", filename=f"of-{n_slots}")["n_saved"]
CASES = [
    ("the same", 1, {}, True),
    ("less context", 1, {"n_ctx": 512}, True),
    ("two slots", 1, {"n_parallel": 2}, False),
    ("two slots with one buffer", 1, {"n_parallel": 2, "kv_unified": True}, True),
    ("another base of rope", 1, {"rope_freq_base": 5000.0}, True),
    ("the same", 2, {"n_parallel": 2}, True),
    ("one slot", 2, {}, False),
    ("four slots", 2, {"n_parallel": 4}, False),
    ("two slots with one buffer", 2, {"n_parallel": 2, "kv_unified": True}, False),
]
for name, n_slots, settings, expected in CASES:
    result = post(start(**settings), "/slots/0?action=restore", filename=f"of-{n_slots}")
    restored = isinstance(result, dict) and result["n_restored"] == saved[n_slots]
    print(f"saved with {n_slots} slots, restored with {name}:", "restored" if restored else result)
    assert restored == expected, "the behaviour has changed"
print("seen: the number of separate buffers decides, rope does not")
PYTHON
