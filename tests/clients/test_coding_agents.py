"""One coding agent against a fleet: test_coding_agents.py AGENT FOLDER ROUTER_URL, where FOLDER holds the agent's program.

tests/tests/clients.rs starts the fleet: workers with a tiny model, which calls a tool only where it must, behind a router. So a proxy of ours
stands between agent and router. It requires a harmless tool in the agent's first turn and none in the next, and records the answers.
The agent runs in a folder and a home of its own, and reaches nothing but the proxy.
"""

import http.client
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse

PROGRAM, FOLDER, ROUTER = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), urllib.parse.urlparse(sys.argv[3])
del sys.argv[1:]

ENDS_WITHIN_S = 900
ANSWER_TOKENS = 192


def tool_names(body):
    """Returns the names of a request's functions, whatever its dialect."""
    tools = body.get("tools") or []
    return [tool.get("function", tool).get("name") for tool in tools if isinstance(tool, dict)]


def has_result(body):
    """Returns whether a request brings the result of a call."""
    text = json.dumps(body.get("messages") or body.get("input") or [])
    return any(kind in text for kind in ('"role": "tool"', '"type": "tool_result"', '"type": "function_call_output"'))


def demand(path, tool):
    """Returns the choice of a tool as a dialect writes it."""
    if "/messages" in path:
        return {"type": "tool", "name": tool}
    if "/responses" in path:
        return {"type": "function", "name": tool}
    return {"type": "function", "function": {"name": tool}}


class Proxy(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, tool):
        self.tool, self.seen = tool, []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        seen = {"path": self.path, "tools": [], "demanded": False, "result": False}
        if self.command == "POST" and body:
            body = self.change(json.loads(body), seen)
        upstream = http.client.HTTPConnection(ROUTER.hostname, ROUTER.port, timeout=ENDS_WITHIN_S)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "content-length", "accept-encoding")}
        upstream.request(self.command, self.path, body, headers)
        response = upstream.getresponse()
        self.send_response(response.status)
        self.send_header("content-type", response.getheader("content-type") or "application/json")
        self.send_header("connection", "close")
        self.end_headers()
        said = b""
        while piece := response.read1(1 << 16):
            said += piece
            self.wfile.write(piece)
            self.wfile.flush()
        upstream.close()
        self.server.seen.append(seen | {"status": response.status, "said": said.decode(errors="replace")})
        self.close_connection = True

    do_GET = do_POST = do_HEAD = pass_on

    def change(self, body, seen):
        seen["tools"] = tool_names(body)
        seen["result"] = has_result(body)
        if "/responses" in self.path:
            # Codex fails with an answer that was cut off.
            schema = {"type": "string", "enum": ["Flour is in it."]}
            schema = {"type": "object", "properties": {"answer": schema}, "required": ["answer"], "additionalProperties": False}
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
        elif "max_tokens" in body or "/chat/completions" in self.path:
            body["max_tokens"] = ANSWER_TOKENS
        if self.server.tool in tool_names(body):
            seen["demanded"] = not seen["result"]
            none = {"type": "none"} if "/messages" in self.path else "none"
            body["tool_choice"] = demand(self.path, self.server.tool) if seen["demanded"] else none
            # Anthropic's API allows no forced call together with reasoning.
            body.pop("thinking", None)
        return json.dumps(body).encode()


def environment(home, **own):
    """Returns an environment from which nothing but loopback can be reached."""
    nowhere = "http://127.0.0.1:9"
    proxies = {"HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "NO_PROXY": "127.0.0.1,localhost"}
    proxies |= {name.lower(): value for name, value in proxies.items()}
    path = f"{FOLDER}/node_modules/.bin:{FOLDER}/bin:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", "CI": "1", **proxies, **own}


def claude_code(url, home):
    models = ["ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"]
    own = {name: "tiny" for name in models} | {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none"}
    own |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    return ["claude", "-p", "What is in notes.txt?", "--max-turns", "4"], own


def codex(url, home):
    settings = pathlib.Path(home, ".codex")
    settings.mkdir()
    text = f'model = "tiny"\nmodel_provider = "fleet"\nmodel_context_window = 60000\n[model_providers.fleet]\nname = "fleet"\n'
    pathlib.Path(settings, "config.toml").write_text(text + f'base_url = "{url}/v1"\nwire_api = "responses"\n')
    return ["codex", "exec", "--skip-git-repo-check", "What is in notes.txt?"], {"CODEX_HOME": str(settings)}


def opencode(url, home):
    options = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{url}/v1", "apiKey": "none"}}
    options["models"] = {"tiny": {"limit": {"context": 60000, "output": 4096}}}
    settings = {"provider": {"fleet": options}, "model": "fleet/tiny", "small_model": "fleet/tiny", "autoupdate": False}
    own = {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return ["opencode", "run", "What is in notes.txt?"], own


def qwen_code(url, home):
    settings = pathlib.Path(home, ".qwen")
    settings.mkdir()
    quiet = {"privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False}, "general": {"disableAutoUpdate": True}}
    pathlib.Path(settings, "settings.json").write_text(json.dumps(quiet))
    # It would go to loopback through a proxy as well.
    own = {"HTTP_PROXY": "", "HTTPS_PROXY": "", "http_proxy": "", "https_proxy": ""}
    own |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "tiny"}
    return ["qwen", "-p", "What is in notes.txt?", "--auth-type", "openai"], own


def continue_cli(url, home):
    # JSON is YAML.
    model = {"name": "tiny", "provider": "openai", "model": "tiny", "apiBase": f"{url}/v1", "apiKey": "none"}
    model |= {"roles": ["chat"], "capabilities": ["tool_use"]}
    model["defaultCompletionOptions"] = {"contextLength": 60000, "maxTokens": ANSWER_TOKENS}
    settings = pathlib.Path(home, "config.yaml")
    settings.write_text(json.dumps({"name": "fleet", "version": "0.0.1", "schema": "v1", "models": [model]}))
    own = {"CONTINUE_GLOBAL_DIR": str(home), "CONTINUE_CLI_ENABLE_TELEMETRY": "0"}
    return ["cn", "--config", str(settings), "-p", "What is in notes.txt?"], own


# Command line of each agent, and one of its tools that is harmless with any arguments.
AGENTS = {
    "claude-code": (claude_code, "Read"),
    "codex": (codex, "get_goal"),
    "opencode": (opencode, "read"),
    "qwen-code": (qwen_code, "read_file"),
    "continue": (continue_cli, "Read"),
}


class CodingAgent(unittest.TestCase):
    def test_a_tool_is_called_and_its_result_is_sent_back(self):
        start, tool = AGENTS[PROGRAM]
        proxy = Proxy(tool)
        with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as project:
            pathlib.Path(project, "notes.txt").write_text("Buy flour.\n")
            command, own = start(proxy.url, home)
            done = subprocess.run(
                command, cwd=project, env=environment(home, **own), stdin=subprocess.DEVNULL, capture_output=True, timeout=ENDS_WITHIN_S
            )
        said = f"{done.stdout.decode(errors='replace')[-2000:]}\n{done.stderr.decode(errors='replace')[-2000:]}"
        told = [{**seen, "said": seen["said"][-400:]} for seen in proxy.seen]
        self.assertEqual(done.returncode, 0, f"{said}\n{told}")
        wrong = [seen for seen in told if seen["status"] != 200 and seen["path"].startswith(("/v1/chat", "/v1/messages", "/v1/responses"))]
        self.assertEqual(wrong, [], said)
        self.assertTrue(any(seen["demanded"] for seen in proxy.seen), f"{said}\n{told}")
        self.assertTrue(any(seen["result"] and seen["tools"] for seen in proxy.seen), f"{said}\n{told}")


if __name__ == "__main__":
    unittest.main()
