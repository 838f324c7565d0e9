#!/bin/sh
# Surprise: each process of Mistral Vibe sends its tools with a schema's keys in an order that is left to chance, so a
#   session that is continued may share no more than the tools before that; while a server refuses, it asks again each
#   time that `Retry-After` allows, with no limit seen.
# Versions: mistral-vibe 3.0.3 (Python 3.12 or newer), certifi 2026.10.19.post1 in place of one that PyPI does not have
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/uv"
"$work/uv/bin/pip" install --quiet --disable-pip-version-check uv==0.13.9
for python in python3 python3.14 python3.13 python3.12 "$HOME"/.pyenv/versions/*/bin/python3; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then break; fi
done
"$work/uv/bin/uv" venv --quiet --no-project --python "$python" "$work/venv"
echo certifi==2026.10.19.post1 >"$work/overrides.txt"
"$work/uv/bin/uv" pip install --quiet --python "$work/venv/bin/python" --overrides "$work/overrides.txt" \
    mistral-vibe==3.0.3
"$work/venv/bin/python" - "$work" <<'PYTHON'
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

WORK = Path(sys.argv[1])
# With two orders by chance, this many processes have one order in one of 2,048 runs.
N_PROCESSES_MAX = 12
COMMON = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
DELTA = {"index": 0, "delta": {"role": "assistant", "content": "Fine."}, "finish_reason": None}
END = {"index": 0, "delta": {}, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
CHUNKS = [{"choices": [DELTA]}, {"choices": [END]}, {"choices": [], "usage": USAGE}]
LINES = [f"data: {json.dumps(COMMON | chunk)}\n\n" for chunk in CHUNKS] + ["data: [DONE]\n\n"]
requests = []
refused = threading.Event()


class Engine(BaseHTTPRequestHandler):
    """Answers every chat with one word, or refuses it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        requests.append((time.monotonic(), self.headers["x-affinity"], request))
        if refused.is_set():
            return self.send(429, "application/json", b'{"error": {"message": "full"}}', [("retry-after", "1")])
        self.send(200, "text/event-stream", "".join(LINES).encode())

    def send(self, status, kind, content, headers=()):
        self.send_response(status)
        for name, value in [("content-type", kind), ("content-length", str(len(content))), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def start(*args):
    """Starts the agent in its project."""
    nowhere = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    environment = {"PATH": os.environ["PATH"], "HOME": str(WORK / "home"), "LANG": "C.UTF-8", "TERM": "dumb"} | nowhere
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [str(WORK / "venv/bin/vibe"), "--trust", *args]
    return subprocess.Popen(command, cwd=WORK / "project", env=environment, **quiet)


engine = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
engine.handle_error = lambda *_: None
threading.Thread(target=engine.serve_forever, daemon=True).start()
(WORK / "home/.vibe").mkdir(parents=True)
(WORK / "project").mkdir()
url = f"http://127.0.0.1:{engine.server_port}/v1"
provider = f'[[providers]]\nname = "here"\napi_base = "{url}"\napi_key_env_var = ""\n'
model = '[[models]]\nname = "tiny"\nprovider = "here"\nalias = "tiny"\n'
quiet = 'active_model = "tiny"\nenable_telemetry = false\nenable_update_checks = false\nenable_auto_update = false\n'
(WORK / "home/.vibe/config.toml").write_text(quiet + provider + model)
while len(requests) < N_PROCESSES_MAX and len({json.dumps(request["tools"]) for _, _, request in requests}) < 2:
    n_before = len(requests)
    assert start(*["-c"][:n_before], "-p", f"Question {n_before}?").wait(60) == 0, "the agent fails"
    assert len(requests) == n_before + 1, "the behaviour has changed"
chats = [request for _, _, request in requests]
sessions = {session for _, session, _ in requests}
messages = [chat["messages"] for chat in chats]
same_messages = all(after[: len(before)] == before for before, after in zip(messages, messages[1:]))
orders = {json.dumps(chat["tools"]) for chat in chats}
contents = {json.dumps(chat["tools"], sort_keys=True) for chat in chats}
shared = os.path.commonprefix(sorted(orders))
requests.clear()
refused.set()
process = start("-p", "Another question?")
while not requests or time.monotonic() < requests[0][0] + 15:
    time.sleep(0.1)
running = process.poll() is None
process.kill()
process.wait()
n_tries = len(requests)
print("mistral-vibe", version("mistral-vibe"))
print(f"{len(chats)} processes, one session ({len(sessions)} `x-affinity`), messages that go on: {same_messages}")
print(f"their tools: {len(orders)} texts, {len(contents)} with sorted keys")
print(f"  {len(shared)} of {len(min(orders))} characters are shared")
print(f"refused with `Retry-After: 1`: {n_tries} requests in 15 s, and on: {running}")
assert len(sessions) == 1 and same_messages, "the behaviour has changed"
assert len(orders) > 1 and len(contents) == 1, "the behaviour has changed"
assert n_tries > 8 and running, "the behaviour has changed"
print("seen: tools that are equal but for the order of keys, which a template renders as another prompt")
PYTHON
