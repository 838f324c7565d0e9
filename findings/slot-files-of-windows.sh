#!/bin/sh
# Surprise: a slot that llama.cpp's server restores from a file goes on behind its last answer with a recurrent model,
#   but computes that answer again with a sliding-window one, although the file has it and the server says so.
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
import urllib.request
from importlib.metadata import version
from pathlib import Path

import numpy
import xllamacpp
from gguf import GGUFWriter, TokenType

WIDTH, INNER, STATE, N_LAYERS, FOLDER = 64, 128, 16, 4, Path(sys.argv[1])
N_TOKENS = 259
MODELS = {"llama": "full attention", "cohere2": "sliding window of 128", "mamba": "recurrent"}
TEXT = "The history of the city begins with a small village at the river. " * 10
QUESTION = "What was there before? "


def write_model(architecture):
    """Writes a model with random weights and a token for each byte; its file has the architecture's name."""
    writer = GGUFWriter(str(FOLDER / architecture), architecture)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_layer_norm_rms_eps(1e-5)
    random = numpy.random.default_rng(1)
    weights = {"token_embd.weight": random.normal(0, 0.5, (N_TOKENS, WIDTH)), "output_norm.weight": numpy.ones(WIDTH)}
    layer = {"attn_norm.weight": numpy.ones(WIDTH)}
    if architecture == "mamba":
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(INNER)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_time_step_rank(4)
        layer |= {"ssm_conv1d.bias": numpy.zeros(INNER), "ssm_dt.bias": numpy.full(INNER, 0.1)}
        layer["ssm_d"] = numpy.ones(INNER)
        layer["ssm_a"] = -numpy.tile(numpy.arange(1.0, STATE + 1), (INNER, 1))
        matrices = {"ssm_in": (2 * INNER, WIDTH), "ssm_conv1d": (INNER, 4), "ssm_x": (4 + 2 * STATE, INNER)}
        matrices |= {"ssm_dt": (INNER, 4), "ssm_out": (WIDTH, INNER)}
    else:
        writer.add_head_count(2)
        writer.add_head_count_kv(2)
        writer.add_rope_dimension_count(WIDTH // 2)
        names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
        matrices = dict.fromkeys(names, (WIDTH, WIDTH))
        if architecture == "cohere2":
            writer.add_layer_norm_eps(1e-5)
            writer.add_sliding_window(128)
            writer.add_logit_scale(0.25)
        else:
            layer["ffn_norm.weight"] = numpy.ones(WIDTH)
    for index in range(N_LAYERS):
        weights |= {f"blk.{index}.{name}": values for name, values in layer.items()}
        weights |= {f"blk.{index}.{name}.weight": random.normal(0, 0.15, shape) for name, shape in matrices.items()}
    for name, values in weights.items():
        writer.add_tensor(name, values.astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def start(architecture):
    """Returns a server with one slot."""
    params = xllamacpp.CommonParams()
    params.model.path, params.slot_save_path = str(FOLDER / architecture), f"{FOLDER}/"
    params.n_ctx, params.n_parallel = 4096, 1
    return xllamacpp.Server(params)


def post(server, path, **body):
    """Returns the answer to a request."""
    content = json.dumps(body).encode()
    request = urllib.request.Request(server.listening_address + path, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def complete(server, prompt, n_predict):
    """Returns the tokens of an answer, and how many of the prompt's were computed."""
    fields = {"n_predict": n_predict, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    answer = post(server, "/completion", prompt=prompt, **fields)
    return answer["tokens"], answer["timings"]["prompt_n"]


print(*(f"{package} {version(package)}" for package in ["xllamacpp", "gguf", "numpy"]))
for architecture, kind in MODELS.items():
    write_model(architecture)
    server = start(architecture)
    prompt = post(server, "/tokenize", content=TEXT, add_special=True)["tokens"]
    answer, _ = complete(server, prompt, 700)
    saved = post(server, "/slots/0?action=save", filename="slot")["n_saved"]
    following = prompt + answer + post(server, "/tokenize", content=QUESTION)["tokens"]
    _, computed = complete(server, following, 1)
    other = start(architecture)
    restored = post(other, "/slots/0?action=restore", filename="slot")["n_restored"]
    _, computed_then = complete(other, following, 1)
    n_new = len(following) - restored
    print(f"{kind}: {restored} of {saved} tokens restored; of a prompt with {n_new} more, computed: {computed_then}")
    print(f"  by the server that never stopped: {computed}")
    expected = n_new + len(answer) if architecture == "cohere2" else n_new
    assert restored == saved and computed == n_new, "the behaviour has changed"
    assert abs(computed_then - expected) <= 8, "the behaviour has changed"
print("seen: with a sliding window the answer of 700 tokens is computed again behind a restore, and only there")
PYTHON
