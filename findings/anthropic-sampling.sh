#!/bin/sh
# Surprise: Anthropic's SDK in Python, since 1.0, has no `temperature`, `top_p` and `top_k`: each is a TypeError before
#   anything is sent. `extra_body` sends them, the SDK in JavaScript and LangChain do so as before.
# Versions: anthropic 2.14.0, langchain-anthropic 1.7.10 (PyPI), @anthropic-ai/sdk 1.14.0 (npm)
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check anthropic==2.14.0 langchain-anthropic==1.7.10
npm install --silent --no-audit --no-fund --prefix "$work/npm" @anthropic-ai/sdk@1.14.0
cat >"$work/npm/ask.mjs" <<'JAVASCRIPT'
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
await client.messages.create(JSON.parse(process.argv[3]));
JAVASCRIPT
"$work/venv/bin/python" - "$work/npm/ask.mjs" <<'PYTHON'
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import anthropic
from langchain_anthropic import ChatAnthropic

SAMPLING = {"temperature": 0.5, "top_p": 0.5, "top_k": 3}
FIELDS = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
ANSWER = {"id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
ANSWER |= {"content": [{"type": "text", "text": "ok"}], "usage": {"input_tokens": 1, "output_tokens": 1}}
received = []


class Engine(BaseHTTPRequestHandler):
    """Answers every message, and keeps the sampling parameters of its request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        received.append({name: request[name] for name in SAMPLING if name in request})
        content = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


engine = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
threading.Thread(target=engine.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{engine.server_port}"
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
print(*(f"{package} {version(package)}" for package in ["anthropic", "langchain-anthropic"]))
for name, value in SAMPLING.items():
    try:
        client.messages.create(**FIELDS, **{name: value})
        raise SystemExit("the behaviour has changed")
    except TypeError as error:
        print(f"anthropic, {name}: TypeError: {error}")
assert not received, "the behaviour has changed"
client.messages.create(**FIELDS, extra_body=SAMPLING)
ChatAnthropic(base_url=url, api_key="none", model="m", **SAMPLING).invoke("hello")
subprocess.check_call(["node", sys.argv[1], url, json.dumps(FIELDS | SAMPLING)])
for name, fields in zip(["anthropic, extra_body", "LangChain", "JavaScript"], received, strict=True):
    print(f"{name}: the engine gets {fields}")
assert received == [SAMPLING] * 3, "the behaviour has changed"
print("seen: what the protocol still has, a call in Python cannot name")
PYTHON
