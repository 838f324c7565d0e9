#!/bin/sh
# Surprise: SMG sends a request that its engine refused with 429 and `Retry-After: 7` five times within a second.
# Versions: smg 1.13.0
# Date: 2026-11-29
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check smg==1.13.0
"$work/venv/bin/python" - "$work" <<'PYTHON'
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

times = []


class Engine(BaseHTTPRequestHandler):
    """An engine that is healthy, lists one model, and refuses every chat."""

    protocol_version = "HTTP/1.1"

    def send(self, status, body, headers=()):
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in [("content-type", "application/json"), ("content-length", len(content)), *headers]:
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        models = {"object": "list", "data": [{"id": "m", "object": "model"}]}
        self.send(200, models if self.path == "/v1/models" else {"status": "ok"})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        times.append(time.monotonic())
        self.send(429, {"error": {"message": "later", "type": "rate_limit"}}, [("retry-after", 7)])

    def log_message(self, *_):
        pass


def free_port():
    """Returns a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fetch(url, body=None):
    """Returns status, headers and text of an answer."""
    request = urllib.request.Request(url, body and json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


engine = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
threading.Thread(target=engine.serve_forever, daemon=True).start()
port, metrics = str(free_port()), str(free_port())
command = ["-m", "smg", "launch", "--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics]
command += ["--worker-urls", f"http://127.0.0.1:{engine.server_port}"]
with open(f"{sys.argv[1]}/log", "w") as log:
    gateway = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)
try:
    for _ in range(600):
        try:
            if '"ready"' in fetch(f"http://127.0.0.1:{port}/workers")[2]:
                break
        except urllib.error.URLError:
            pass
        time.sleep(0.1)
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    status, headers, _ = fetch(f"http://127.0.0.1:{port}/v1/chat/completions", body)
finally:
    gateway.kill()
print("smg", version("smg"))
print(f"the engine was asked {len(times)} times in {times[-1] - times[0]:.1f} s")
print(f"the client got {status} with Retry-After {headers['retry-after']}")
unchanged = len(times) == 5 and times[-1] - times[0] < 7 and status == 429 and headers["retry-after"] == "7"
assert unchanged, "the behaviour has changed"
print("seen: five attempts, all of them before the time that the engine named")
PYTHON
