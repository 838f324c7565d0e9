#!/bin/sh
# Surprise: with flash attention on a processor, llama.cpp's logits are the same for micro-batches of 2 to 63 tokens and
#   change with the size from 64 on, and so with what is cached. Without it they are the same for 2 to 512.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), gguf 0.19.0, numpy 2.3.5
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.3.5 xllamacpp==2026.10.11549
"$work/venv/bin/python" - "$work/model.gguf" 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import sys
import urllib.request
from importlib.metadata import version

import numpy
import xllamacpp
from gguf import GGUFWriter, TokenType

WIDTH, N_LAYERS = 128, 2
TEXT = "The history of the city begins with a small village at the river. " * 3


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


def start(flash, size):
    """Returns a server with flash attention on or off and micro-batches of this size."""
    kinds = xllamacpp.llama_flash_attn_type
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_ctx, params.n_parallel, params.n_ubatch = 512, 1, size
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.flash_attn_type = kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)


def first_logprob(server, text):
    """Returns the log probability of the likeliest first token, and how many tokens of the prompt were cached."""
    body = json.dumps({"prompt": text, "n_predict": 1, "n_probs": 1, "temperature": 0}).encode()
    url = f"{server.listening_address}/completion"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        result = json.load(answer)
    return result["completion_probabilities"][0]["top_logprobs"][0]["logprob"], result["timings"]["cache_n"]


write_model(sys.argv[1])
print(*(f"{package} {version(package)}" for package in ["xllamacpp", "gguf", "numpy"]))
SIZES = [2, 8, 63, 64, 65, 128, 512]
for flash in [True, False]:
    how = "flash attention" if flash else "no flash attention"
    logprobs = {size: first_logprob(start(flash, size), TEXT)[0] for size in SIZES}
    print(f"{how}, by size of micro-batches:", *(f"{size}: {logprob:.7f}" for size, logprob in logprobs.items()))
    n_distinct = len(set(logprobs.values()))
    assert logprobs[2] == logprobs[8] == logprobs[63], "the behaviour has changed"
    assert n_distinct > 3 if flash else n_distinct == 1, "the behaviour has changed"
    server = start(flash, 512)
    first_logprob(server, TEXT[:-20])
    warm, n_cached = first_logprob(server, TEXT)
    print(f"{how}, the same prompt behind {n_cached} cached tokens: {warm:.7f}")
    assert n_cached > 0 and (warm == logprobs[512]) is not flash, "the behaviour has changed"
print("seen: with flash attention a cached prompt and sizes of 64 or more change the logits; without, neither does")
PYTHON
