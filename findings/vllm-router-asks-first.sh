#!/bin/sh
# Surprise: vllm-router sends every chat to its engine's `/v1/chat/completions/render` first, then to `/tokenize` if
#   that is missing, and waits up to a second; it adds fields of SGLang's and renames a history's `reasoning_content`.
# Versions: vllm-router 0.1.17
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check vllm-router==0.1.17
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

SLOW_S = 3
seen = []
render_is_slow = False


class Engine(BaseHTTPRequestHandler):
    """An engine that is healthy, lists one model, and answers chats."""

    protocol_version = "HTTP/1.1"

    def send(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        models = {"object": "list", "data": [{"id": "m", "object": "model"}]}
        self.send(200, models if self.path == "/v1/models" else {"status": "ok"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        seen.append((self.path, time.monotonic(), body))
        if self.path == "/v1/chat/completions":
            choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
            common = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
            self.send(200, common | {"choices": [choice]})
            return
        if render_is_slow:
            time.sleep(SLOW_S)
            self.close_connection = True
            return
        self.send(404, {"error": "not found"})

    def log_message(self, *_):
        pass


def free_port():
    """Returns a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def chat():
    """Sends a chat with a history to the router and returns its status."""
    answer = {"role": "assistant", "content": "hi", "reasoning_content": "polite"}
    question = {"role": "user", "content": "hello"}
    body = {"model": "m", "messages": [question, answer, question], "unknown": 1}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status
    except (urllib.error.URLError, ConnectionError):
        return None


engine = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
threading.Thread(target=engine.serve_forever, daemon=True).start()
port, metrics = str(free_port()), str(free_port())
command = ["-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics]
command += ["--worker-urls", f"http://127.0.0.1:{engine.server_port}"]
with open(f"{sys.argv[1]}/log", "w") as log:
    router = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)
try:
    for _ in range(600):
        if chat() == 200:
            break
        time.sleep(0.1)
    seen.clear()
    statuses = [chat(), chat()]
    paths, last = [path for path, _, _ in seen], seen[-1][2]
    seen.clear()
    render_is_slow = True
    statuses.append(chat())
    waited = seen[-1][1] - seen[0][1]
finally:
    router.kill()
print("vllm-router", version("vllm-router"))
print("an engine without the first two paths is asked for two chats:", *paths)
print(f"the chat comes {waited:.1f} s after a `render` that does not answer for {SLOW_S} s")
added = sorted(set(last) - {"model", "messages", "unknown"})
print("fields that the client did not send:", *added)
print("the history's answer arrives as", json.dumps(last["messages"][1]))
one = ["/v1/chat/completions/render", "/tokenize", "/v1/chat/completions"]
assert statuses == [200] * 3 and paths == one * 2 and 0.5 < waited < SLOW_S, "the behaviour has changed"
of_sglang = {"no_stop_trim", "separate_reasoning", "stream_reasoning", "return_hidden_states"}
assert of_sglang <= set(added) and last["unknown"] == 1, "the behaviour has changed"
assert last["messages"][1] == {"role": "assistant", "content": "hi", "reasoning": "polite"}, "the behaviour has changed"
print("seen: three requests for each chat, a wait, fields that nobody asked for, and reasoning under its other name")
PYTHON
