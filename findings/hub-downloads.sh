#!/bin/sh
# Surprise: a download of huggingface_hub that breaks off resumes within its call only: the next call begins at the
#   first byte, and what a killed process has left behind (`.incomplete`) is neither used nor deleted by it.
# Versions: huggingface_hub 2.4.0
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check huggingface-hub==2.4.0
"$work/venv/bin/python" - "$work" 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import hashlib
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

# The client writes pieces of this size.
PIECE = 10 * 2**20
FILE = bytes(range(256)) * (4 * PIECE // 256)
NAME = hashlib.sha256(FILE).hexdigest()
DOWNLOAD = "from huggingface_hub import hf_hub_download; hf_hub_download('team/model', 'model.gguf')"
firsts = []
mode = "whole"


class Hub(BaseHTTPRequestHandler):
    """A hub of one file that honours `Range`; it can break off at the middle once, and later at once."""

    protocol_version = "HTTP/1.1"

    def send(self, first):
        self.send_response(206 if first else 200)
        if first:
            self.send_header("content-range", f"bytes {first}-{len(FILE) - 1}/{len(FILE)}")
        names = {"etag": f'"{NAME}"', "x-linked-etag": f'"{NAME}"', "x-repo-commit": "a" * 40, "accept-ranges": "bytes"}
        for name, value in (names | {"content-length": str(len(FILE) - first)}).items():
            self.send_header(name, value)
        self.end_headers()

    def do_HEAD(self):
        self.send(0)

    def do_GET(self):
        first = int((self.headers["range"] or "bytes=0-").removeprefix("bytes=").split("-")[0])
        firsts.append(first)
        self.send(first)
        half = FILE[first : first + 2 * PIECE + 1]
        if mode == "whole":
            return self.wfile.write(FILE[first:])
        if mode == "pauses":
            self.wfile.write(half)
            time.sleep(60)
        elif len(firsts) == 1:
            self.wfile.write(half)
        self.close_connection = True

    def log_message(self, *_):
        pass


def download():
    """Returns a process that downloads the file, with the cache of the ones before it."""
    own = {"HF_ENDPOINT": url, "HF_HOME": f"{sys.argv[1]}/hub", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return subprocess.Popen([sys.executable, "-c", DOWNLOAD], env=os.environ | own, stderr=subprocess.DEVNULL)


def leftovers():
    """Returns the unfinished files in the cache."""
    return list(Path(sys.argv[1], "hub").rglob("*.incomplete"))


hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
# A client that is killed resets its connection.
hub.handle_error = lambda *_: None
hub.daemon_threads = True
threading.Thread(target=hub.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{hub.server_port}"
seen = {}
mode = "breaks"
code = download().wait()
seen["breaks off at the middle, then at once"] = code, [*firsts], len(leftovers())
firsts.clear()
mode = "pauses"
process = download()
while not any(file.stat().st_size >= PIECE for file in leftovers()):
    time.sleep(0.1)
process.terminate()
process.wait()
n_killed = len(leftovers())
firsts.clear()
mode = "whole"
code = download().wait()
seen["the next call behind both"] = code, [*firsts], len(leftovers())
print("huggingface_hub", version("huggingface_hub"))
for name, (code, first_bytes, n_left) in seen.items():
    print(f"{name}: exit status {code}; requests from bytes {first_bytes}; {n_left} unfinished files")
broken, behind = seen.values()
assert broken[0] == 1 and set(broken[1]) == {0, 2 * PIECE} and broken[2] == 0, "the behaviour has changed"
assert n_killed == 1 and behind == (0, [0], 1), "the behaviour has changed"
print("seen: what a failed call has downloaded is deleted, what a killed one has stays, and neither is resumed")
PYTHON
