#!/bin/sh
# Surprise: in LiteLLM's proxy one request that its only engine answers with 404 or 401 takes the model from everybody
#   for five seconds, as a 429 that no engine sent; twelve 503s, 500s or 429s do not, nor a 404 behind `openai/*`.
# Versions: litellm 1.108.7, the newest whose proxy can be installed
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile 'litellm[proxy]==1.108.7'
"$work/venv/bin/python" - "$work" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

WORK = sys.argv[1]
models = []


class Engine(BaseHTTPRequestHandler):
    """An engine that answers each chat with the status that its text names, and 404 for a model that it lacks."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        models.append(body["model"])
        status = 404 if body["model"] == "missing" else int(body["messages"][0]["content"])
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        content = json.dumps(answer if status == 200 else {"error": {"message": "no", "type": "refused"}}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def chat(model, status):
    """Asks for an answer with a status, and returns the one that came and its text."""
    body = {"model": model, "messages": [{"role": "user", "content": str(status)}], "num_retries": 0}
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"content-type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def is_alive():
    """Returns whether the proxy answers."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness").close()
        return True
    except (OSError, urllib.error.URLError):
        return False


engine = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
threading.Thread(target=engine.serve_forever, daemon=True).start()
with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
address = {"api_base": f"http://127.0.0.1:{engine.server_port}/v1", "api_key": "none"}
deployments = [("m", "openai/m"), ("fleet/*", "openai/*")]
entries = [{"model_name": name, "litellm_params": {"model": model} | address} for name, model in deployments]
with open(f"{WORK}/config.yaml", "w") as file:
    json.dump({"model_list": entries}, file)
environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
command = [f"{WORK}/venv/bin/litellm", "--config", f"{WORK}/config.yaml", "--host", "127.0.0.1", "--port", str(port)]
with open(f"{WORK}/log", "w") as log:
    proxy = subprocess.Popen([*command, "--telemetry", "False"], stdout=log, stderr=log, env=os.environ | environment)
try:
    while not is_alive():
        assert proxy.poll() is None, "the proxy has ended"
        time.sleep(0.2)
    print("litellm", version("litellm"))
    # A status of the engine, how often, and the status of the request behind.
    for status, n_times, expected in [(503, 12, 200), (500, 12, 200), (429, 12, 200), (401, 1, 429), (404, 1, 429)]:
        assert {chat("m", status)[0] for _ in range(n_times)} == {status}, "the behaviour has changed"
        n_asked = len(models)
        behind, text = chat("m", 200)
        print(f"{n_times} x {status}, then another client: {behind}, the engine was asked", len(models) - n_asked)
        assert behind == expected and len(models) - n_asked == (expected == 200), "the behaviour has changed"
        assert expected == 200 or "cooldown" in text, "the behaviour has changed"
        time.sleep(6 if expected == 429 else 0)
    assert chat("m", 200)[0] == 200, "the behaviour has changed"
    statuses = [chat("fleet/a", 200)[0], chat("fleet/missing", 200)[0], chat("fleet/a", 200)[0]]
    print("`openai/*`: a model, one that the engine lacks, the first one again:", *statuses)
    assert statuses == [200, 404, 200], "the behaviour has changed"
finally:
    proxy.kill()
    proxy.wait()
print("seen: a 404 or 401 for one client is a 429 for the others for five seconds, not behind `openai/*`")
PYTHON
