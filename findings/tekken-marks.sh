#!/bin/sh
# Surprise: llama.cpp splits Hindi and Thai words of a Mistral vocabulary (tekken) at their vowel signs, mistral-common
#   does not, so a GGUF gives a model other tokens than it was trained with.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), mistral-common 1.13.1, gguf 0.19.0, numpy 2.3.5
# Date: 2026-11-29
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    gguf==0.19.0 mistral-common==1.13.1 numpy==2.3.5 xllamacpp==2026.10.11549
"$work/venv/bin/python" - "$work" 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import shutil
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path

import mistral_common
import numpy
import xllamacpp
from gguf import GGUFWriter
from gguf.vocab import MistralVocab
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

WIDTH, FOLDER = 32, Path(sys.argv[1]) / "mistral"


def write_model(file):
    """Writes a model with random weights and the vocabulary that llama.cpp's own converter would write."""
    vocabulary = MistralVocab(FOLDER)
    tokens, _, kinds = zip(*vocabulary.all_tokens())
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(WIDTH)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(vocabulary.gguf_tokenizer_model)
    writer.add_tokenizer_pre("tekken")
    writer.add_token_merges(vocabulary.extract_vocab_merges_from_model())
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(vocabulary.bos_id)
    writer.add_eos_token_id(vocabulary.eos_id)
    matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    shapes |= {f"blk.0.{name}": (WIDTH, WIDTH) for name in matrices}
    shapes |= {f"blk.0.{name}": (WIDTH,) for name in ["attn_norm", "ffn_norm"]}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", numpy.zeros(shape, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


FOLDER.mkdir()
shutil.copy(Path(mistral_common.__file__).parent / "data" / "tekken_240911.json", FOLDER / "tekken.json")
write_model(FOLDER / "model.gguf")
params = xllamacpp.CommonParams()
params.model.path = str(FOLDER / "model.gguf")
params.n_ctx, params.n_parallel = 256, 1
server = xllamacpp.Server(params)
tekkenizer = Tekkenizer.from_file(str(FOLDER / "tekken.json"))


def llama_cpp(text):
    """Returns llama.cpp's tokens of a text."""
    body = json.dumps({"content": text, "add_special": False}).encode()
    request = urllib.request.Request(f"{server.listening_address}/tokenize", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["tokens"]


packages = ["xllamacpp", "mistral-common", "gguf", "numpy"]
print(*(f"{package} {version(package)}" for package in packages))
TEXTS = {
    "English": "Internationalization of 12345 words",
    "Chinese": "今天天气很好，我们去公园吧。",
    "Arabic": "مرحبا بالعالم",
    "Hindi": "देवनागरी लिपि",
    "Thai": "ไทยแลนด์",
}
equal = {}
for language, text in TEXTS.items():
    ours, theirs = llama_cpp(text), tekkenizer.encode(text, bos=False, eos=False)
    equal[language] = ours == theirs
    print(f"{language}: llama.cpp {ours}, mistral-common {theirs}")
expected = {"English": True, "Chinese": True, "Arabic": True, "Hindi": False, "Thai": False}
assert equal == expected, f"the behaviour has changed: {equal}"
print("seen: Hindi and Thai have other tokens in llama.cpp, the rest has the same")
PYTHON
