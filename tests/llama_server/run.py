#!/usr/bin/env python3
"""Runs llama-server's own tests against warmpath-worker and `warmpath serve`, and writes docs/llama-server-tests.md.

Usage: run.py [--check] [PYTEST ARGUMENT...]     --check compares the page instead of writing it.
With pytest arguments (a file, -k ...) only those tests run and the page stays.

Not here: how a test is run (plugin.py, launcher.py), which ones cannot apply (not_applicable.json), which looks at a trained
model's text or at the letter of llama-server's answers are replaced (replacements.json).
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/llama_server"
PAGE = ROOT / "docs/llama-server-tests.md"
WORK = ROOT / "target/llama-server-tests"
BIN = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
# The first port that the servers take; nothing else of this repository does.
PORT = 18500
# Host and port of the tests' pictures and of their hub (plugin.py).
IMAGES = f"127.0.0.1:{PORT - 1}"
# Seconds after which a test has failed.
TEST_TIMEOUT_S = 60
# The version of the package that scripts/llama-cpp-source.sh fetches.
VERSION = (ROOT / "scripts/llama-cpp-source.sh").read_text().split("\nversion=")[1].split("\n")[0]


def extract():
    """Takes llama-server's tests out of its package and replaces what looks at one trained model."""
    source = WORK / "source"
    shutil.rmtree(source, ignore_errors=True)
    script = ROOT / "scripts/llama-cpp-source.sh"
    subprocess.run([script, source, "tools/server/tests/*", "models/templates/*"], check=True)
    tests = source / "tools/server/tests"
    for entry in read("replacements.json"):
        path = tests / entry["file"]
        text = path.read_text()
        count = entry.get("count", 1)
        if text.count(entry["old"]) != count:
            sys.exit(f"{entry['file']} does not have {count} times: {entry['old']}")
        path.write_text(text.replace(entry["old"], entry["new"].replace("{images}", IMAGES)))
    (tests / "tmp").mkdir(exist_ok=True)
    return tests


def read(name):
    return json.loads((HERE / name).read_text())


def environment():
    """Makes the Python environment of llama-server's tests; does nothing where it is up to date."""
    wanted, venv = HERE / "requirements.txt", ROOT / "target/llama-server-venv"
    installed = venv / "installed.txt"
    if not installed.exists() or installed.read_text() != wanted.read_text():
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        pip = [venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", wanted]
        subprocess.run(pip, check=True)
        shutil.copy(wanted, installed)
    return venv / "bin/python"


def make_models():
    models = WORK / "models"
    models.mkdir(parents=True, exist_ok=True)
    for stale in models.glob("template-*.jinja"):
        stale.unlink()
    for stale in WORK.glob("serve-*"):
        shutil.rmtree(stale)
    for name, arguments in read("models.json").items():
        vocabulary = arguments.get("vocab")
        more = ["--vocab", ROOT / "target/fixtures/vocab" / vocabulary] if vocabulary else []
        more += ["--adapter", str(arguments["adapter"])] if "adapter" in arguments else []
        more += ["--projector", "images"] if "projector" in arguments else []
        command = [BIN / "warmpath-bench", "model", "--preset", arguments["preset"], "--out", models / name, *more]
        subprocess.run(command, check=True)
    return models


def run(python, tests, models, arguments):
    results = WORK / "results.json"
    results.unlink(missing_ok=True)
    env = os.environ | {
        "PYTHONPATH": f"{HERE}:{tests}",
        "LLAMA_SERVER_BIN_PATH": str(HERE / "launcher.py"),
        "WARMPATH_TEST_PROGRAMS": str(BIN),
        "WARMPATH_TEST_MODELS": str(models),
        "WARMPATH_TEST_RESULTS": str(results),
        "WARMPATH_TEST_IMAGES": IMAGES,
        "HF_ENDPOINT": f"http://{IMAGES}",
        "PORT": str(PORT),
    }
    command = [python, "-m", "pytest", "-p", "plugin", "-p", "no:cacheprovider", "-o", "addopts=", "--tb=short", "-q", "-rf"]
    subprocess.run([*command, f"--timeout={TEST_TIMEOUT_S}", *arguments], cwd=tests, env=env, check=False)
    if not results.exists():
        sys.exit("the tests did not run")
    return json.loads(results.read_text())


def page(results):
    """Returns the page with the outcome of each test."""
    files = defaultdict(Counter)
    reasons = {"not_applicable": defaultdict(Counter), "differs": defaultdict(Counter)}
    for nodeid, result in results.items():
        file = nodeid.split("::")[0].removeprefix("unit/")
        files[file][result["outcome"]] += 1
        if result["outcome"] in reasons:
            reasons[result["outcome"]][result["reason"]][nodeid.removeprefix("unit/").split("[")[0]] += 1
    total = sum(files.values(), Counter())
    counts = {name: total[name] for name in ("passed", "differs", "not_applicable")}
    out = [(HERE / "page.md").read_text().format(version=VERSION, **counts)]
    out.append("| file | passes | differs | not applicable |\n|---|---|---|---|\n")
    for file in sorted(files):
        counts = files[file]
        out.append(f"| `{file}` | {counts['passed']} | {counts['differs']} | {counts['not_applicable']} |\n")
    out.append("\n## What differs, and why\n\n" + listing(reasons["differs"]))
    out.append("\n## What cannot apply, and why\n\n" + listing(reasons["not_applicable"]))
    out.append("\n## Replaced assertions\n\n| file | assertion | why |\n|---|---|---|\n")
    for entry in read("replacements.json"):
        look = entry["old"].strip().split("\n")[0].replace("|", "\\|")
        out.append(f"| `{Path(entry['file']).name}` | `{look}` | {entry['why']} |\n")
    return "".join(out)


def listing(by_reason):
    lines = ["| why | tests |\n|---|---|\n"]
    for reason, tests in sorted(by_reason.items()):
        names = ", ".join(f"`{test.split('::')[1]}`" + (f" ({n})" if n > 1 else "") for test, n in sorted(tests.items()))
        files = sorted({test.split("::")[0] for test in tests})
        shown = names if len(tests) <= 12 else f"{sum(tests.values())} in " + ", ".join(f"`{file}`" for file in files)
        lines.append(f"| {reason} | {shown} |\n")
    return "".join(lines)


def main():
    arguments = sys.argv[1:]
    check = "--check" in arguments
    arguments = [argument for argument in arguments if argument != "--check"]
    results = run(environment(), extract(), make_models(), arguments or ["unit"])
    failed = [nodeid for nodeid, result in results.items() if result["outcome"] == "failed"]
    if not arguments and not failed:
        wanted = page(results)
        if check and PAGE.read_text() != wanted:
            sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: run `make test-llama-server`")
        if not check:
            PAGE.write_text(wanted)
    if failed:
        sys.exit(f"{len(failed)} failed")


if __name__ == "__main__":
    main()
