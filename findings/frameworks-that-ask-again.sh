#!/bin/sh
# Surprise: one call that is refused with 429 becomes 12 requests in LlamaIndex and 9 in CrewAI, as each has retries
#   around those of OpenAI's SDK; the outer ones of LiteLLM and CrewAI come before the time that `Retry-After` names.
# Versions: llama-index-llms-openai-like 0.8.1, crewai 1.15.30, litellm 1.110.2, langchain-openai 1.7.4
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/uv"
"$work/uv/bin/pip" install --quiet --disable-pip-version-check uv==0.13.9
cat >"$work/ask.py" <<'PYTHON'
"""Prints the seconds at which a framework's one call asks a server that refuses all: ask.py PACKAGE."""
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

WAIT_S = 2
times = []


class Server(BaseHTTPRequestHandler):
    """A server that refuses every request."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        times.append(time.monotonic())
        content = json.dumps({"error": {"message": "later", "type": "rate_limit", "code": "429"}}).encode()
        self.send_response(429)
        for name, value in [("content-type", "application/json"), ("retry-after", WAIT_S)]:
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_port}/v1"


def llama_index():
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(model="m", api_base=URL, api_key="none", is_chat_model=True)
    model.chat([ChatMessage(role="user", content="hello")])


def crewai():
    from crewai import LLM, Agent

    llm = LLM(model="openai/m", base_url=URL, api_key="none")
    Agent(role="clerk", goal="greet", backstory="none", llm=llm).kickoff("hello")


def litellm():
    import litellm

    messages = [{"role": "user", "content": "hello"}]
    litellm.completion("openai/m", messages, api_base=URL, api_key="none", num_retries=2)


def langchain():
    from langchain_openai import ChatOpenAI

    ChatOpenAI(model="m", base_url=URL, api_key="none").invoke("hello")


package = sys.argv[1]
clients = {"llama-index-llms-openai-like": llama_index, "crewai": crewai, "litellm": litellm}
try:
    clients.get(package, langchain)()
except Exception:
    gaps = [after - before for before, after in zip(times, times[1:])]
    result = [len(times), any(gap < WAIT_S for gap in gaps)]
    print(package, version(package), "with openai", version("openai"), file=sys.stderr)
    print("requests at", *(f"{moment - times[0]:.1f}" for moment in times), "s", file=sys.stderr)
    print(json.dumps(result), flush=True)
os._exit(0)
PYTHON
check() {
    package=$1 openai=$2 expected=$3
    "$work/uv/bin/uv" venv --quiet --no-project --python python3 "$work/$package"
    "$work/uv/bin/uv" pip install --quiet --python "$work/$package/bin/python" "$package" "openai==$openai" tenacity==9.2.1
    name=${package%%==*}
    seen=$("$work/$package/bin/python" -W ignore "$work/ask.py" "$name" 2>"$work/log" | tail -1)
    tail -2 "$work/log"
    echo "requests, and whether one came before the time that the answer named: $seen"
    [ "$seen" = "$expected" ] || { echo "the behaviour has changed"; exit 1; }
}
export CREWAI_DISABLE_TELEMETRY=true OTEL_SDK_DISABLED=true LITELLM_LOCAL_MODEL_COST_MAP=True OPENAI_API_KEY=none
check langchain-openai==1.7.4 3.57.0 "[3, false]"
check litellm==1.110.2 3.57.0 "[5, true]"
check crewai==1.15.30 2.54.0 "[9, true]"
check llama-index-llms-openai-like==0.8.1 2.54.0 "[12, false]"
echo "seen: 3, 5, 9 and 12 requests of one call each; two packages do not always wait"
