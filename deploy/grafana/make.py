"""Writes the dashboards beside it, and the chart's copies of them and of the alerts: make.py [--check]. Needs tests/python/requirements.txt; `make pages` runs it.

Not here: the panels (fleet.py, router.py, worker.py).
"""

import pathlib
import sys

import fleet
import router
import worker
from grafana_foundation_sdk.cog.encoder import JSONEncoder

HERE = pathlib.Path(__file__).resolve().parent
# The chart's folder is packed and copied by itself, so nothing in it may lead out of it.
CHART = HERE.parents[1] / "helm/warmpath/files"
RULES = HERE.parent / "prometheus/rules.yaml"


def write(path, text):
    if sys.argv[1:] != ["--check"]:
        path.write_text(text)
    elif not path.exists() or path.read_text() != text:
        sys.exit(f"{path} is out of date: run `make pages`")


def main():
    for name, built in (("fleet", fleet.FLEET), ("router", router.ROUTER), ("worker", worker.WORKER)):
        text = JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"
        for folder in (HERE, CHART / "grafana"):
            write(folder / f"{name}.json", text)
    write(CHART / "rules.yaml", RULES.read_text())


main()
