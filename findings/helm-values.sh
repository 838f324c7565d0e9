#!/bin/sh
# Surprise: in Helm 4 `--set ratio=0.1` is the text "0.1", which a schema's `number` refuses, as only whole numbers are
#   read; the values file has it as a number, and `0777` there as 511. A key `on` or `n` becomes "true" or "false".
# Versions: helm-python-sdk 0.2.2 (Helm 4.2.3)
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check helm-python-sdk==0.2.2
mkdir -p "$work/chart/templates"
printf 'apiVersion: v2\nname: chart\nversion: 0.1.0\n' >"$work/chart/Chart.yaml"
printf 'ratio: 1\n' >"$work/chart/values.yaml"
printf '{"properties": {"ratio": {"type": "number"}, "mode": {"type": "integer"}}}' >"$work/chart/values.schema.json"
"$work/venv/bin/python" - "$work/chart" <<'PYTHON'
import sys
from importlib.metadata import version

from helm_python import Chart, HelmError, helm_sdk_version, parse_set_json, parse_set_string, values_from_yaml

chart = Chart.load(sys.argv[1])


def check(values):
    """Returns what the chart's schema says of values."""
    try:
        chart.validate_schema(values)
        return "valid"
    except HelmError as error:
        return str(error).rsplit("- at ", 1)[1].strip()


CASES = [
    ("--set ratio=0.1", parse_set_string("ratio=0.1"), {"ratio": "0.1"}, False),
    ("--set ratio=1", parse_set_string("ratio=1"), {"ratio": 1}, True),
    ("--set-json ratio=0.1", parse_set_json("ratio=0.1"), {"ratio": 0.1}, True),
    ("a file with ratio: 0.1", values_from_yaml("ratio: 0.1"), {"ratio": 0.1}, True),
    ("--set mode=0777", parse_set_string("mode=0777"), {"mode": "0777"}, False),
    ("a file with mode: 0777", values_from_yaml("mode: 0777"), {"mode": 511}, True),
    ("--set on=1", parse_set_string("on=1"), {"on": 1}, True),
    ("a file with on: 1 and n: 1", values_from_yaml("on: 1\nn: 1"), {"true": 1, "false": 1}, True),
]
print(f"helm-python-sdk {version('helm-python-sdk')} (Helm {helm_sdk_version()})")
for name, values, expected, valid in CASES:
    verdict = check(values)
    print(f"{name}: {values}, {verdict}")
    assert values == expected and (verdict == "valid") == valid, "the behaviour has changed"
print("seen: the same value is a number or a text, by the way it comes in")
PYTHON
