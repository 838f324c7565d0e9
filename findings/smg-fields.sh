#!/bin/sh
# Surprise: SMG passes unknown fields of a request on, drops those of its messages and every header of the client, and
#   refuses a message with reasoning under both names that engines give it (`reasoning`, `reasoning_content`).
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

received = []


class Engine(BaseHTTPRequestHandler):
    """An engine that is healthy, lists one model, and keeps what it receives."""

    protocol_version = "HTTP/1.1"

    def send(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in [("content-type", "application/json"), ("content-length", len(content))]:
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        models = {"object": "list", "data": [{"id": "m", "object": "model"}]}
        self.send(200, models if self.path == "/v1/models" else {"status": "ok"})

    def do_POST(self):
        received.append((self.headers, json.loads(self.rfile.read(int(self.headers["content-length"])))))
        message = {"role": "assistant", "content": "Hello."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self.send(200, {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})

    def log_message(self, *_):
        pass


def free_port():
    """Returns a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fetch(url, body=None):
    """Returns status and text of an answer."""
    headers = {"content-type": "application/json", "x-session-affinity": "one"}
    request = urllib.request.Request(url, body and json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


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
            if '"ready"' in fetch(f"http://127.0.0.1:{port}/workers")[1]:
                break
        except urllib.error.URLError:
            pass
        time.sleep(0.1)
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    question = {"role": "user", "content": "hello", "cache_control": {"type": "ephemeral"}}
    fetch(url, {"model": "m", "messages": [question], "min_p": 0.1, "made_up": 1})
    answer = {"role": "assistant", "content": "Hello.", "reasoning": "Greet.", "reasoning_content": "Greet."}
    status, text = fetch(url, {"model": "m", "messages": [question, answer, question]})
finally:
    gateway.kill()
print("smg", version("smg"))
headers, body = received[0]
print("received by the engine:", json.dumps(body), "x-session-affinity:", headers["x-session-affinity"])
print("reasoning under two names:", status, text)
passed, dropped = body.get("made_up") == 1, body["messages"] == [{"role": "user", "content": "hello"}]
refused = status == 400 and "duplicate field" in text
assert passed and dropped and headers["x-session-affinity"] is None and refused, "the behaviour has changed"
print("seen: `made_up` passed, `cache_control` and the header did not, and the second request is refused")
PYTHON
