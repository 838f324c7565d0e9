#!/bin/sh
# Surprise: LiteLLM sends an Anthropic message for a model `openai/...` as a response: without `stop_sequences` and
#   `top_k`, with at least 16 tokens, and with an answer's text behind its calls; one with `thinking` it refuses itself.
#   For `hosted_vllm/...` it sends a chat, which has all of them.
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
CALL = {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "sky"}}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": "blue"}
HISTORY = [
    {"role": "user", "content": "What colour is the sky?"},
    {"role": "assistant", "content": [{"type": "text", "text": "I look."}, CALL]},
    {"role": "user", "content": [RESULT]},
]
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
FIELDS = {"max_tokens": 8, "messages": HISTORY, "tools": [TOOL], "top_k": 3, "stop_sequences": ["END"]}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
received = []


class Engine(BaseHTTPRequestHandler):
    """An engine that has chats and responses."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        received.append((self.path, request))
        answer = {"id": "1", "created": 1, "model": "m"}
        if self.path.endswith("/responses"):
            part = {"type": "output_text", "text": "Blue.", "annotations": []}
            item = {"type": "message", "id": "2", "role": "assistant", "status": "completed", "content": [part]}
            usage = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
            answer |= {"object": "response", "created_at": 1, "status": "completed", "output": [item], "usage": usage}
        else:
            message = {"role": "assistant", "content": "Blue."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
            answer |= {"object": "chat.completion", "choices": [choice], "usage": usage}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def post(model, **fields):
    """Returns the status of a message."""
    content = json.dumps(FIELDS | {"model": model} | fields).encode()
    url = f"http://127.0.0.1:{port}/v1/messages"
    request = urllib.request.Request(url, content, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def is_alive():
    """Returns whether the proxy answers."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness").close()
        return True
    except (OSError, urllib.error.URLError):
        return False


def order(path, request):
    """Returns the kinds of what the engine gets for the answer in the history, in their order."""
    if path.endswith("/responses"):
        return [item["type"] for item in request["input"]][1:-1]
    return [name for name in request["messages"][1] if name in ("content", "tool_calls")]


engine = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
threading.Thread(target=engine.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{engine.server_port}/v1"
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
models = [
    {"model_name": prefix, "litellm_params": {"model": f"{prefix}/m", "api_base": base, "api_key": "none"}}
    for prefix in ["openai", "hosted_vllm"]
]
with open(f"{WORK}/config.yaml", "w") as file:
    json.dump({"model_list": models}, file)
command = [f"{WORK}/venv/bin/litellm", "--config", f"{WORK}/config.yaml", "--port", str(port), "--host", "127.0.0.1"]
environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
with open(f"{WORK}/log", "w") as log:
    proxy = subprocess.Popen([*command, "--telemetry", "False"], stdout=log, stderr=log, env=os.environ | environment)
try:
    deadline = time.monotonic() + 150
    while not is_alive():
        assert proxy.poll() is None and time.monotonic() < deadline, "the proxy does not start"
        time.sleep(0.5)
    seen = {}
    for model in ["openai", "hosted_vllm"]:
        status, thinking = post(model), post(model, **THINKING)
        path, request = received[0]
        limit = request.get("max_output_tokens") or request.get("max_tokens")
        kept = [name for name in ["top_k", "stop", "stop_sequences"] if name in request]
        seen[model] = path, limit, kept, order(path, request), status, thinking
        received.clear()
finally:
    proxy.terminate()
    proxy.wait()
print("litellm", version("litellm"))
for model, (path, limit, kept, parts, status, thinking) in seen.items():
    print(f"{model}: {status}; the engine gets {path}, a limit of {limit} tokens, {kept}, {parts}")
    print(f"  with `thinking`: {thinking}")
call_first, text_first = ["function_call", "message"], ["content", "tool_calls"]
assert seen["openai"] == ("/v1/responses", 16, [], call_first, 200, 400), "the behaviour has changed"
expected = ("/v1/chat/completions", 8, ["top_k", "stop"], text_first, 200, 200)
assert seen["hosted_vllm"] == expected, "the behaviour has changed"
print("seen: behind `openai/` the next prompt has the call before the text, as no model has written it")
PYTHON
