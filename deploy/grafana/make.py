"""Writes the dashboards beside it: make.py [--check]. Needs tests/python/requirements.txt; `make pages` runs it.

Not here: what is on them (fleet.py, router.py, worker.py).
"""

import pathlib
import sys

import fleet
import router
import worker
from grafana_foundation_sdk.cog.encoder import JSONEncoder

HERE = pathlib.Path(__file__).parent


def main():
    for name, built in (("fleet", fleet.FLEET), ("router", router.ROUTER), ("worker", worker.WORKER)):
        path = HERE / f"{name}.json"
        text = JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"
        if sys.argv[1:] == ["--check"]:
            if not path.exists() or path.read_text() != text:
                sys.exit(f"{path} is out of date: run `make pages`")
        else:
            path.write_text(text)


main()
