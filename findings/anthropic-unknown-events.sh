#!/bin/sh
# Surprise: Anthropic's SDK gives an event of an unknown type the class of a message's start, and an unknown content
#   block that of a text, whose text is None; both against their annotated types.
# Versions: anthropic 2.14.0
# Date: 2026-11-29
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check anthropic==2.14.0
"$work/venv/bin/python" - <<'PYTHON'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import anthropic
from anthropic.types import RawMessageStartEvent, TextBlock

MESSAGE = {"id": "a", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
MESSAGE |= {"stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
EVENTS = [
    {"type": "message_start", "message": MESSAGE | {"content": []}},
    {"type": "made_up_event", "note": 1},
    {"type": "message_stop"},
]
BLOCKS = [{"type": "made_up_block", "note": 1}, {"type": "text", "text": "one"}]


class Server(BaseHTTPRequestHandler):
    """A server that answers with an event and with a block of types that are newer than its client."""

    def do_POST(self):
        streams = json.loads(self.rfile.read(int(self.headers["content-length"]))).get("stream")
        events = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in EVENTS)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if streams else "application/json")
        self.end_headers()
        self.wfile.write((events if streams else json.dumps(MESSAGE | {"content": BLOCKS})).encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
messages = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.server_port}", api_key="none").messages
question = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
event = list(messages.create(stream=True, **question))[1]
block = messages.create(**question).content[0]
print("anthropic", version("anthropic"))
print(f"event {event.type}: {type(event).__name__}; block {block.type}: {type(block).__name__}, text {block.text}")
is_start, is_text = isinstance(event, RawMessageStartEvent), isinstance(block, TextBlock)
assert is_start and is_text and block.text is None, "the behaviour has changed"
print("seen: isinstance finds a second start of the message, and a text without a text")
PYTHON
