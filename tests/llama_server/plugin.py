"""A pytest plugin for llama-server's own tests: runs them against a worker and records the outcome of each.

Not here: the worker's flags (launcher.py), the page that is made of the results (run.py). In a test
that checks the text of one trained model, only that assertion is replaced. A test that cannot apply is skipped with its
reason. One that fails because a worker is different must fail, so that the list of differences stays true.
"""

import hashlib
import inspect
import json
import os
import random
import re
import struct
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import utils

HERE = Path(__file__).parent
LISTED = json.loads((HERE / "not_applicable.json").read_text())
RESULTS = {}
# Parts of a download from the hub, and the seconds between them: progress that clients can see.
HUB_PARTS, HUB_PAUSE_S = 10, 0.1


class Count(int):
    """A number of tokens under the vocabulary of another model: equal to every positive one."""

    def __eq__(self, other):
        return isinstance(other, int) and other > 0

    __hash__ = int.__hash__


def some_text(_regex, text):
    """Replacement of an assertion about a trained model's text."""
    return isinstance(text, str) and len(text) > 0


def endless(path, data):
    """Returns a request whose answer goes on to its limit: a made model ends its answers at random."""
    generates = path.endswith(("/completion", "/completions", "/infill"))
    decides = {"ignore_eos", "grammar", "json_schema", "response_format", "tools"}
    if not generates or not isinstance(data, dict) or decides & data.keys():
        return data
    return data | {"ignore_eos": True}


def make_endless(name):
    original = getattr(utils.ServerProcess, name)

    def request(self, method, path, data=None, *rest, **more):
        return original(self, method, path, endless(path, data), *rest, **more)

    setattr(utils.ServerProcess, name, request)


make_endless("make_request")
make_endless("make_stream_request")
utils.match_regex = some_text
utils.ServerPreset.load_all = staticmethod(lambda: None)


def png(seed, side=32):
    """Returns a picture of random pixels, in place of a truck and a cat of the hub."""
    rows = b"".join(b"\0" + random.Random(f"{seed} {row}").randbytes(3 * side) for row in range(side))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


class Web(BaseHTTPRequestHandler):
    """The hub of one repository, and a picture of its own at every other path."""

    REPOSITORY, COMMIT, FILE = "ggml-org/test-model-router-download", "0" * 40, "model-F16.gguf"

    def do_GET(self):
        content = Path(os.environ["WARMPATH_TEST_MODELS"], "stories.gguf").read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        file = {"type": "file", "path": self.FILE, "size": len(content), "lfs": {"oid": digest, "size": len(content)}}
        path = self.path.split("?")[0]
        if path == f"/api/models/{self.REPOSITORY}/revision/main":
            return self.answer(json.dumps({"sha": self.COMMIT}).encode())
        if path == f"/api/models/{self.REPOSITORY}/tree/{self.COMMIT}":
            return self.answer(json.dumps([file]).encode())
        if path == f"/{self.REPOSITORY}/resolve/{self.COMMIT}/{self.FILE}":
            return self.answer(content, HUB_PARTS)
        return self.answer(png(self.path))

    def answer(self, content, n_parts=1):
        """Sends the content in some parts, with a pause before each further one."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        size = -(-len(content) // n_parts)
        for start in range(0, len(content), size):
            if start > 0:
                time.sleep(HUB_PAUSE_S)
            self.wfile.write(content[start : start + size])

    def log_message(self, *_):
        pass


def pytest_sessionstart():
    host, port = os.environ["WARMPATH_TEST_IMAGES"].split(":")
    server = ThreadingHTTPServer((host, int(port)), Web)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def entry_of(nodeid):
    """Returns the kind and the reason under which a test is listed: by its name, its name's beginning (`*`) or its file."""
    test = nodeid.split("[")[0]
    for kind, entries in LISTED.items():
        for name, reason in entries.items():
            if name in (nodeid, test, test.split("::")[0]) or (name.endswith("*") and test.startswith(name[:-1])):
                return kind, reason
    return None


def names_in(item):
    """Returns the names by which a test asks for the model."""
    names = set(re.findall(r'"?model"?\s*[:=]\s*"([^"]+)"', inspect.getsource(item.function)))
    if hasattr(item, "callspec"):
        names.add(item.callspec.params.get("model"))
    return sorted(filter(None, names))


def pytest_collection_modifyitems(items):
    for item in items:
        if hasattr(item, "callspec"):
            counts = {name: Count(1) for name in ("n_prompt", "n_token_output") if name in item.callspec.params}
            item.callspec.params.update(counts)
        listed = entry_of(item.nodeid)
        if item.get_closest_marker("slow"):
            listed = ("not_applicable", LISTED["not_applicable"]["(slow)"])
        if listed is None:
            continue
        kind, reason = listed
        mark = pytest.mark.skip if kind == "not_applicable" else pytest.mark.xfail
        item.add_marker(mark(reason=reason, **({} if kind == "not_applicable" else {"strict": True})))
        RESULTS[item.nodeid] = {"outcome": kind, "reason": reason}


def pytest_runtest_setup(item):
    os.environ["WARMPATH_TEST_NAMES"] = ",".join(names_in(item))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed:
        RESULTS[item.nodeid] = {"outcome": "failed", "reason": str(call.excinfo.value if call.excinfo else "").split("\n")[0]}
    elif report.when == "call" and report.passed:
        RESULTS.setdefault(item.nodeid, {"outcome": "passed"})
    elif report.skipped and item.nodeid not in RESULTS:
        RESULTS[item.nodeid] = {"outcome": "not_applicable", "reason": "skipped by its authors"}


def pytest_sessionfinish():
    Path(os.environ["WARMPATH_TEST_RESULTS"]).write_text(json.dumps(RESULTS, indent=1))
