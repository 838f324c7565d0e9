#!/bin/sh
# Surprise: OpenAI's and Anthropic's SDKs report neither a stream that ends in the middle of an answer nor a JSON answer
#   to a request for a stream, but a keep-alive event without data ends an OpenAI stream with an error.
# Versions: openai 3.57.0, anthropic 2.14.0
# Date: 2026-11-29
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check anthropic==2.14.0 openai==3.57.0
"$work/venv/bin/python" - <<'PYTHON'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import anthropic
import openai


def chunk(delta, finish_reason=None):
    """Returns an event of a chat's stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(body)}\n\n"


def event(kind, **fields):
    """Returns an event of a message's stream."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


MESSAGE = {"id": "a", "type": "message", "role": "assistant", "content": [], "model": "m", "stop_reason": None}
MESSAGE |= {"stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
CHAT = chunk({"role": "assistant", "content": "one"})
BLOCK = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
DELTA = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "one"})
ANSWERS = {
    "chat ends early": CHAT,
    "chat in JSON": json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": []}),
    "chat with empty event": f"{CHAT}data:\n\n{chunk({}, 'stop')}data: [DONE]\n\n",
    "message ends early": event("message_start", message=MESSAGE) + BLOCK + DELTA,
    "message in JSON": json.dumps(MESSAGE | {"content": [{"type": "text", "text": "one"}], "stop_reason": "end_turn"}),
}


class Server(BaseHTTPRequestHandler):
    """A server that gives the answer which the question names, and then closes the connection in order."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = ANSWERS[request["messages"][0]["content"]]
        self.send_response(200)
        self.send_header("content-type", "application/json" if answer.startswith("{") else "text/event-stream")
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
chats = openai.OpenAI(base_url=f"{url}/v1", api_key="none").chat.completions
messages = anthropic.Anthropic(base_url=url, api_key="none").messages


def streamed(name):
    """Returns the number of events that a client gets, or the error."""
    question = [{"role": "user", "content": name}]
    create = chats.create if name.startswith("chat") else messages.create
    try:
        return len(list(create(model="m", max_tokens=9, stream=True, messages=question)))
    except Exception as error:
        return type(error).__name__


print("openai", version("openai"), "anthropic", version("anthropic"))
seen = {name: streamed(name) for name in ANSWERS}
for name, result in seen.items():
    print(f"{name}: {result} events" if isinstance(result, int) else f"{name}: {result}")
expected = {"chat ends early": 1, "chat in JSON": 0, "chat with empty event": "JSONDecodeError"}
expected |= {"message ends early": 3, "message in JSON": 0}
assert seen == expected, "the behaviour has changed"
print("seen: two cut answers and two unread ones without an error, and an error where nothing was wrong")
PYTHON
