#!/bin/sh
# Surprise: LiteLLM's proxy ends a stream that an engine left without a `finish_reason` with "stop" and a usage that it
#   counts itself; it hides `Retry-After` after three tries, and lets an engine finish for a client that has left.
# Versions: litellm 1.108.7, the newest whose proxy can be installed
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile 'litellm[proxy]==1.108.7'
"$work/venv/bin/python" - "$work" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import http.client
import json
import os
import select
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
SESSION = {"x-session-id": "s", "user": "u", "metadata": {"user": "u"}, "prompt_cache_key": "k", "cache_salt": "c"}
requests = []


class Engine(BaseHTTPRequestHandler):
    """An engine that refuses, that ends a stream too early, or that notices whether its client is still there."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        requests.append({"time": time.monotonic(), "fields": request, "headers": self.headers, "left": None})
        text = request["messages"][0]["content"]
        if text == "refuse":
            return self.send(503, "application/json", b'{"error": {"message": "full"}}', [("retry-after", "2")])
        if text == "slow":
            readable, _, _ = select.select([self.connection], [], [], 4)
            requests[-1]["left"] = bool(readable)
        common = {"id": "1", "created": 1, "model": "m"}
        choice = {"index": 0, "delta": {"role": "assistant", "content": "Once upon"}}
        chunk = common | {"object": "chat.completion.chunk", "choices": [choice]}
        if request.get("stream"):
            return self.send(200, "text/event-stream", f"data: {json.dumps(chunk)}\n\n".encode())
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        answer = common | {"object": "chat.completion", "choices": [choice]}
        self.send(200, "application/json", json.dumps(answer).encode())

    def send(self, status, kind, content, headers=()):
        self.send_response(status)
        for name, value in [("content-type", kind), ("content-length", str(len(content))), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def chat(text, headers=(), **fields):
    """Returns a connection that has sent a chat."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"model": "m", "messages": [{"role": "user", "content": text}]} | fields
    headers = {"content-type": "application/json"} | dict(headers)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    return connection


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
entries = [{"model_name": "m", "litellm_params": {"model": "openai/m"} | address}]
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
    answer = chat("break", stream=True, stream_options={"include_usage": True}).getresponse()
    chunks = [json.loads(line[6:]) for line in answer.read().decode().splitlines() if line.startswith("data: {")]
    end = [choice["finish_reason"] for c in chunks for choice in c["choices"] if choice.get("finish_reason")]
    usage = next(chunk["usage"] for chunk in chunks if "usage" in chunk)
    n_prompt, n_answer = usage["prompt_tokens"], usage["completion_tokens"]
    print(f"a stream without an end: finish_reason {end}, {n_prompt} and {n_answer} tokens")
    assert end == ["stop"] and n_answer > 0, "the behaviour has changed"

    requests.clear()
    answer = chat("refuse").getresponse()
    names = {name.lower() for name, _ in answer.getheaders() if "retry-after" in name.lower()}
    took = requests[-1]["time"] - requests[0]["time"]
    print(f"503 with Retry-After: {len(requests)} requests in {took:.1f} s, then {answer.status} with {names}")
    assert len(requests) == 3 and took > 4 and names == {"llm_provider-retry-after"}, "the behaviour has changed"

    requests.clear()
    connection = chat("slow")
    while not requests:
        time.sleep(0.1)
    connection.close()
    while requests[0]["left"] is None:
        time.sleep(0.1)
    print("a client leaves, its answer is not a stream: the engine is told within 4 s:", requests[0]["left"])
    assert not requests[0]["left"], "the behaviour has changed"

    requests.clear()
    fields = {name: value for name, value in SESSION.items() if name != "x-session-id"}
    chat("hello", {"x-session-id": "s"}, **fields).getresponse().read()
    passed = [name for name in SESSION if name in requests[0]["fields"] or name in requests[0]["headers"]]
    print("of", *SESSION, "it passes on:", *passed)
    assert passed == ["prompt_cache_key", "cache_salt"], "the behaviour has changed"
finally:
    proxy.kill()
    proxy.wait()
print("seen: a whole answer where an engine broke off, no Retry-After, no word of a client that left, no session")
PYTHON
