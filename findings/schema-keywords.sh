#!/bin/sh
# Surprise: outlines-core ignores ten keywords of JSON schema or combinations of them without an error, so answers break
#   the schema; llguidance follows or refuses nine of them, but rounds integer bounds to 64-bit floats.
# Versions: llguidance 1.9.1, outlines-core 0.2.14, jsonschema 4.26.0
# Date: 2026-11-29
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    jsonschema==4.26.0 llguidance==1.9.1 outlines-core==0.2.14
"$work/venv/bin/python" - <<'PYTHON'
import json
import re
from importlib.metadata import version

from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer
from outlines_core.json_schema import build_regex_from_schema

BYTES, NUMBERS = LLTokenizer("byte"), {"type": "integer"}
# Schemas, each with a text that it forbids.
CASES = [
    ({"type": "integer", "minimum": 9007199254740993}, "9007199254740992"),
    ({"type": "number", "exclusiveMinimum": 0}, "0.0"),
    ({"type": "array", "items": NUMBERS, "uniqueItems": True}, "[1,1]"),
    ({"type": "array", "contains": NUMBERS}, '["a"]'),
    ({"type": "object", "propertyNames": {"pattern": "^x"}}, '{"y":1}'),
    ({"type": "object", "patternProperties": {"^x": NUMBERS}}, '{"xa":"s"}'),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, '{"a":1}'),
    ({"oneOf": [NUMBERS, {"type": "number"}]}, "1"),
    ({"type": "string", "enum": ["a", "b"], "minLength": 5}, '"a"'),
    ({"$ref": "#/$defs/x", "minimum": 5, "$defs": {"x": NUMBERS}}, "1"),
]


def llguidance(schema, text):
    """Returns what the engine makes of a text that it is asked to allow."""
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)
    if matcher.is_error():
        return "refuses the schema"
    consumed = all(matcher.consume_token(byte) for byte in text.encode())
    return "accepts" if consumed and matcher.is_accepting() else "forbids"


def outlines_core(schema, text):
    """Returns what the engine's regular expression makes of a text."""
    return "accepts" if re.fullmatch(build_regex_from_schema(json.dumps(schema)), text) else "forbids"


print(*(f"{package} {version(package)}" for package in ["llguidance", "outlines-core", "jsonschema"]))
accepted = {llguidance: 0, outlines_core: 0}
for schema, text in CASES:
    assert not Draft202012Validator(schema).is_valid(json.loads(text)), schema
    results = {engine: engine(schema, text) for engine in accepted}
    print(json.dumps(schema), text, *(f"{engine.__name__}: {result}" for engine, result in results.items()), sep=" | ")
    for engine, result in results.items():
        accepted[engine] += result == "accepts"
print(f"forbidden texts that are accepted, of {len(CASES)}: {accepted[llguidance]} and {accepted[outlines_core]}")
assert list(accepted.values()) == [1, 10], "the behaviour has changed"
print("seen: llguidance accepts one, outlines-core all of them")
PYTHON
