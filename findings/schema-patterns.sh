#!/bin/sh
# Surprise: llguidance reads a schema's `pattern` as Rust's regex crate does, with `--`, `&&` and `~~` as operations on
#   sets in a class, `.` also for U+2028 and `\s` also for U+0085, so it allows what ECMA-262's pattern forbids.
# Versions: llguidance 1.9.1, jsonschema 4.26.0, regress 2026.9.1 (ECMA-262)
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    jsonschema==4.26.0 llguidance==1.9.1 regress==2026.9.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import json
from importlib.metadata import version

from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer
from regress import Regex

BYTES = LLTokenizer("byte")
# Patterns, each with a text.
CASES = [
    (r"^[^+--]$", ","),
    (r"^[^a&&b]$", "a"),
    (r"^[^a~~a]$", "a"),
    (r"^[^ -~&&\w]$", "!"),
    (r"^.$", "\u2028"),
    (r"^.$", "\r"),
    (r"^\s$", "\u0085"),
    (r"^[+--]$", ","),
    (r"^[A-Z&&]$", "Z"),
    (r"^[a[]$", "["),
    (r"^\s$", "\ufeff"),
    (r"^\d$", "\u0663"),
    (r"^\w$", "\u00e9"),
]


def llguidance(pattern, text):
    """Returns what the engine makes of a text that it is asked to allow."""
    schema = json.dumps({"type": "string", "pattern": pattern})
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(schema), log_level=0)
    if matcher.is_error():
        return "refuses the pattern"
    value = json.dumps(text, ensure_ascii=False)
    consumed = all(matcher.consume_token(byte) for byte in value.encode())
    return "accepts" if consumed and matcher.is_accepting() else "forbids"


def python(pattern, text):
    """Returns what Python's validator makes of a text."""
    return "accepts" if Draft202012Validator({"pattern": pattern}).is_valid(text) else "forbids"


def ecma(pattern, text):
    """Returns what an expression of JavaScript, which JSON schema asks for, makes of a text."""
    return "accepts" if Regex(pattern, "u").find(text) else "forbids"


print(*(f"{package} {version(package)}" for package in ["llguidance", "jsonschema", "regress"]))
ENGINES = {"llguidance": llguidance, "Python": python, "ECMA-262": ecma}
counts = {"too much": 0, "too little": 0, "refused": 0, "alike": 0}
for pattern, text in CASES:
    results = {name: engine(pattern, text) for name, engine in ENGINES.items()}
    print(pattern, ascii(text), *(f"{name}: {result}" for name, result in results.items()), sep=" | ")
    verdict = {"accepts": "too much", "forbids": "too little"}.get(results["llguidance"], "refused")
    if results["llguidance"] == results["ECMA-262"]:
        verdict = "alike"
    counts[verdict] += 1
print("llguidance, against ECMA-262:", *(f"{name} {count}" for name, count in counts.items()))
assert counts == {"too much": 7, "too little": 2, "refused": 2, "alike": 2}, "the behaviour has changed"
print("seen: seven forbidden texts are allowed, four of them by a negated class")
PYTHON
