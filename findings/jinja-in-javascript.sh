#!/bin/sh
# Surprise: Hugging Face's Jinja in JavaScript renders some templates otherwise than jinja2, without an error:
#   `continue` and `break` take back what their round has written, variables of a round stay set, `==` is JavaScript's.
# Versions: @huggingface/jinja 0.5.11, jinja2 3.1.6
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check jinja2==3.1.6
npm install --silent --no-audit --no-fund --prefix "$work/npm" @huggingface/jinja@0.5.11
cat >"$work/npm/render.mjs" <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import { Template } from "@huggingface/jinja";

const templates = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(templates.map((template) => new Template(template).render({}))));
JAVASCRIPT
"$work/venv/bin/python" - "$work/npm" <<'PYTHON'
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = Path(sys.argv[1])
# What a template does, a template, what Python makes of it, and what JavaScript does.
CASES = [
    ("continue", "{% for x in [1, 2] %}{{ x }}{% if x == 1 %}{% continue %}{% endif %}-{% endfor %}", "12-", "2-"),
    ("break", "{% for x in [1, 2, 3] %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}", "12", "1"),
    ("a round's variable", "{% for x in [1, 2] %}{{ y }}{% set y = 'set' %};{% endfor %}", ";;", ";set;"),
    ("text and number", "{{ 'equal' if '1' == 1 else 'other' }}", "other", "equal"),
    ("empty text and zero", "{{ 'equal' if '' == 0 else 'other' }}", "other", "equal"),
    ("equal lists", "{{ 'equal' if ['a'] == ['a'] else 'other' }}", "equal", "other"),
    ("equal dicts", "{{ 'equal' if {'a': 1} == {'a': 1} else 'other' }}", "equal", "other"),
    ("none and undefined", "{{ 'equal' if none == missing else 'other' }}", "other", "equal"),
    ("capitalize", "{{ 'toolCall'|capitalize }}", "Toolcall", "ToolCall"),
]

templates = [template for _, template, _, _ in CASES]
command = ["node", str(FOLDER / "render.mjs")]
result = subprocess.run(command, input=json.dumps(templates), stdout=subprocess.PIPE, text=True, check=True)
javascript = json.loads(result.stdout)
environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
python = [environment.from_string(template).render() for template in templates]
package = json.loads((FOLDER / "node_modules/@huggingface/jinja/package.json").read_text())
print("@huggingface/jinja", package["version"], "jinja2", version("jinja2"))
for (name, template, _, _), in_python, in_javascript in zip(CASES, python, javascript):
    print(name, template, f"Python: {in_python}", f"JavaScript: {in_javascript}", sep=" | ")
expected = [list(column) for column in zip(*((in_python, in_javascript) for _, _, in_python, in_javascript in CASES))]
assert [python, javascript] == expected, "the behaviour has changed"
print("seen: nine templates with two texts each, and no error")
PYTHON
