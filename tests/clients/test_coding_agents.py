"""One coding agent against a fleet: test_coding_agents.py AGENT FOLDER ROUTER_URL, where FOLDER holds the agent's program.

tests/tests/clients.rs starts the fleet: workers with a tiny model, which calls a tool only where it must, behind a router. So a proxy of ours
stands between agent and router. It requires a harmless tool in each of two turns and then an answer, and records the requests and what of
their prompts was reused, which is printed as a table. The agent runs in a folder and a home of its own, and reaches nothing but the proxy.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

from reuse import RecordingProxy

PROGRAM, FOLDER, ROUTER = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), sys.argv[3]
del sys.argv[1:]

ENDS_WITHIN_S = 900
ANSWER_TOKENS = 192
QUESTIONS = ["What is in notes.txt?", "And how much of it?"]


def tool_names(body):
    """Returns the names of a request's functions, whatever its dialect."""
    tools = body.get("tools") or []
    return [tool.get("function", tool).get("name") for tool in tools if isinstance(tool, dict)]


def n_results(body):
    """Returns how many results of calls a request brings."""
    text = json.dumps(body.get("messages") or body.get("input") or [])
    return sum(text.count(kind) for kind in ('"role": "tool"', '"type": "tool_result"', '"type": "function_call_output"'))


def demand(path, tool):
    """Returns the choice of a tool as a dialect writes it."""
    if "/messages" in path:
        return {"type": "tool", "name": tool}
    if "/responses" in path:
        return {"type": "function", "name": tool}
    return {"type": "function", "function": {"name": tool}}


def end_answer(path, body):
    """Has the answer be a short text that ends: agents take one that was cut off for a failure, or ask to go on."""
    schema = {"type": "string", "enum": ["Flour is in it."]}
    schema = {"type": "object", "properties": {"answer": schema}, "required": ["answer"], "additionalProperties": False}
    if "/messages" in path:
        body["output_config"] = (body.get("output_config") or {}) | {"format": {"type": "json_schema", "schema": schema}}
    elif "/responses" in path:
        body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
    else:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


class DemandingProxy(RecordingProxy):
    """Requires a tool in each turn until its result is there, and then an answer."""

    def __init__(self, tool):
        super().__init__(PROGRAM, ROUTER)
        self.tool, self.n_results = tool, 0

    def begin_turn(self):
        super().begin_turn()
        self.n_results = max((seen["n_results"] for seen in self.seen if seen["is_main"]), default=0)

    def change(self, path, body, seen):
        seen["is_main"] = self.tool in tool_names(body)
        seen["n_results"] = n_results(body)
        if "max_tokens" in body or "/chat/completions" in path:
            body["max_tokens"] = ANSWER_TOKENS
            body.pop("max_completion_tokens", None)
        if seen["is_main"]:
            seen["demanded"] = seen["n_results"] <= self.n_results
            seen["kind"] = "question" if seen["demanded"] else "result"
            none = {"type": "none"} if "/messages" in path else "none"
            body["tool_choice"] = demand(path, self.tool) if seen["demanded"] else none
            if not seen["demanded"] or "/responses" in path:
                end_answer(path, body)
            # Anthropic's API allows no forced call together with reasoning.
            body.pop("thinking", None)


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
    own |= {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "60000"}
    return [["claude", "-p", "--max-turns", "4"], ["claude", "--continue", "-p", "--max-turns", "4"]], own


def codex(url, home):
    settings = pathlib.Path(home, ".codex")
    settings.mkdir()
    text = f'model = "tiny"\nmodel_provider = "fleet"\nmodel_context_window = 60000\n[model_providers.fleet]\nname = "fleet"\n'
    pathlib.Path(settings, "config.toml").write_text(text + f'base_url = "{url}/v1"\nwire_api = "responses"\n')
    start, flags = ["codex", "exec"], ["--skip-git-repo-check"]
    return [[*start, *flags], [*start, "resume", "--last", *flags]], {"CODEX_HOME": str(settings)}


def opencode(url, home):
    options = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{url}/v1", "apiKey": "none"}}
    options["models"] = {"tiny": {"limit": {"context": 60000, "output": 4096}}}
    settings = {"provider": {"fleet": options}, "model": "fleet/tiny", "small_model": "fleet/tiny", "autoupdate": False}
    # It may read any path, which the tiny model chooses.
    settings["permission"] = {"external_directory": "allow"}
    own = {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return [["opencode", "run"], ["opencode", "run", "--continue"]], own


def qwen_code(url, home):
    settings = pathlib.Path(home, ".qwen")
    settings.mkdir()
    quiet = {"privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False}, "general": {"disableAutoUpdate": True}}
    pathlib.Path(settings, "settings.json").write_text(json.dumps(quiet))
    # It would go to loopback through a proxy as well.
    own = {"HTTP_PROXY": "", "HTTPS_PROXY": "", "http_proxy": "", "https_proxy": ""}
    own |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "tiny"}
    return [["qwen", "--auth-type", "openai", "-p"], ["qwen", "--auth-type", "openai", "--continue", "-p"]], own


def continue_cli(url, home):
    # JSON is YAML.
    model = {"name": "tiny", "provider": "openai", "model": "tiny", "apiBase": f"{url}/v1", "apiKey": "none"}
    model |= {"roles": ["chat"], "capabilities": ["tool_use"]}
    model["defaultCompletionOptions"] = {"contextLength": 60000, "maxTokens": ANSWER_TOKENS}
    settings = pathlib.Path(home, "config.yaml")
    settings.write_text(json.dumps({"name": "fleet", "version": "0.0.1", "schema": "v1", "models": [model]}))
    own = {"CONTINUE_GLOBAL_DIR": str(home), "CONTINUE_CLI_ENABLE_TELEMETRY": "0"}
    start = ["cn", "--config", str(settings)]
    return [[*start, "-p"], [*start, "--resume", "-p"]], own


def pi(url, home):
    settings = pathlib.Path(home, ".pi", "agent")
    settings.mkdir(parents=True)
    # What `/login llama.cpp` writes.
    key = {"llama.cpp": {"type": "api_key", "key": "none", "env": {"LLAMA_BASE_URL": url}}}
    pathlib.Path(settings, "auth.json").write_text(json.dumps(key))
    own = {"PI_TELEMETRY": "0"}
    # Only a lasting session asks for the server's models, and stores them for the next one.
    asking = ["pi", "--mode", "rpc"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(asking, cwd=home, env=environment(home, **own), **pipes) as session:
        watchdog = threading.Timer(ENDS_WITHIN_S, session.kill)
        watchdog.start()
        listed = ""
        while '"id":"tiny"' not in listed and session.poll() is None:
            session.stdin.write('{"type": "get_available_models"}\n')
            session.stdin.flush()
            listed = session.stdout.readline()
        watchdog.cancel()
        session.terminate()
    start = ["pi", "--model", "llama.cpp/tiny"]
    return [[*start, "-p"], [*start, "--continue", "-p"]], own


# Command lines of each agent's first and second turn, and one of its tools that is harmless with any arguments.
AGENTS = {
    "claude-code": (claude_code, "Read"),
    "codex": (codex, "get_goal"),
    "opencode": (opencode, "read"),
    "qwen-code": (qwen_code, "read_file"),
    "continue": (continue_cli, "Read"),
    "pi": (pi, "read"),
}


class CodingAgent(unittest.TestCase):
    def test_two_turns_call_a_tool_and_send_its_result_back(self):
        start, tool = AGENTS[PROGRAM]
        proxy = DemandingProxy(tool)
        said = ""
        with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as project:
            pathlib.Path(project, "notes.txt").write_text("Buy flour.\n")
            commands, own = start(proxy.url, home)
            for command, question in zip(commands, QUESTIONS, strict=True):
                proxy.begin_turn()
                done = subprocess.run(
                    [*command, question], cwd=project, env=environment(home, **own), stdin=subprocess.DEVNULL, capture_output=True,
                    timeout=ENDS_WITHIN_S,
                )
                said += f"{done.stdout.decode(errors='replace')[-2000:]}\n{done.stderr.decode(errors='replace')[-2000:]}\n"
                told = [{**seen, "said": seen["said"][-400:]} for seen in proxy.seen]
                self.assertEqual(done.returncode, 0, f"{said}\n{told}")
        proxy.write_table(FOLDER.parent / "reuse")
        wrong = [seen for seen in told if seen["status"] != 200 and seen["is_generation"]]
        self.assertEqual(wrong, [], said)
        for turn in (1, 2):
            main = [seen for seen in proxy.seen if seen["is_main"] and seen["turn"] == turn]
            self.assertTrue(any(seen["demanded"] for seen in main), f"{said}\n{told}")
            self.assertTrue(any(not seen["demanded"] for seen in main), f"{said}\n{told}")


if __name__ == "__main__":
    unittest.main()
