"""One coding agent against a fleet: test_coding_agents.py AGENT FOLDER ROUTER_URL, where FOLDER holds the agent's program.

tests/tests/clients.rs starts the fleet: workers with a tiny model, which calls a tool only where it must, behind a router. So a proxy of ours
stands between agent and router. It chooses the calls of two turns, each before an answer, and records the requests and what of their prompts
was reused, which is printed as a table. The agent runs in a folder and a home of its own, and reaches nothing but the proxy.
"""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

from steps import ANSWER_TOKENS, Step, StepsProxy

PROGRAM, FOLDER, ROUTER = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), sys.argv[3]
del sys.argv[1:]

ENDS_WITHIN_S = 900
QUESTIONS = ["What is in notes.txt?", "And how much of it?"]
# Most tokens that a step computes beside the prompt of the step before: a result, a tool's definition, reminders.
STEP_TOKENS_MAX = 2000
# Most tokens that are computed again at a prompt's end: a state is kept where a block ends.
REPEATED_TOKENS_MAX = 64


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


def codex(url, home, model="tiny"):
    settings = pathlib.Path(home, ".codex")
    settings.mkdir()
    text = f'model = "{model}"\nmodel_provider = "fleet"\nmodel_context_window = 60000\n[model_providers.fleet]\nname = "fleet"\n'
    pathlib.Path(settings, "config.toml").write_text(text + f'base_url = "{url}/v1"\nwire_api = "responses"\n')
    start, flags = ["codex", "exec"], ["--skip-git-repo-check"]
    return [[*start, *flags], [*start, "resume", "--last", *flags]], {"CODEX_HOME": str(settings)}


# A server of tools, one message a line. Source: the Model Context Protocol's transport over standard input and output.
MCP_SERVER = """
import json, sys
schema = {"type": "object", "properties": {"name": {"enum": ["Ann"]}}, "required": ["name"], "additionalProperties": False}
tool = {"name": "find", "description": "Finds a customer's record.", "inputSchema": schema, "annotations": {"readOnlyHint": True}}
for line in sys.stdin:
    request = json.loads(line)
    start = {"capabilities": {"tools": {}}, "serverInfo": {"name": "crm", "version": "1"}}
    start["protocolVersion"] = (request.get("params") or {}).get("protocolVersion")
    results = {"initialize": start, "tools/list": {"tools": [tool]}, "tools/call": {"content": [{"type": "text", "text": "Ann"}]}}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": results.get(request["method"], {})}), flush=True)
"""


def codex_with_search(url, home):
    # Codex searches for the tools of such servers where it knows that the model can.
    commands, own = codex(url, home, model="gpt-5.5")
    server = pathlib.Path(home, "crm.py")
    server.write_text(MCP_SERVER)
    with pathlib.Path(home, ".codex", "config.toml").open("a") as settings:
        settings.write(f'[mcp_servers.crm]\ncommand = "{sys.executable}"\nargs = ["{server}"]\n')
    return commands, own


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


def each_turn(tool):
    return [[Step(tool)], [Step(tool)]]


def first_found(search, tool):
    """Returns the steps of two turns that call a tool, which the first turn finds with a search."""
    return [[search, Step(tool)], [Step(tool)]]


# Command lines of each agent's first and second turn, and the steps of these turns: tools that are harmless with any arguments.
AGENTS = {
    "claude-code": (claude_code, each_turn("Read")),
    "claude-code-tool-search": (claude_code, first_found(Step("ToolSearch", {"query": "select:CronList"}), "CronList")),
    "codex": (codex, each_turn("get_goal")),
    "codex-tool-search": (codex_with_search, first_found(Step("tool_search", {"query": "customer record"}), "mcp__crm__find")),
    "opencode": (opencode, each_turn("read")),
    "qwen-code": (qwen_code, each_turn("read_file")),
    "continue": (continue_cli, each_turn("Read")),
    "pi": (pi, each_turn("read")),
}


class CodingAgent(unittest.TestCase):
    def test_two_turns_call_tools_and_send_their_results_back(self):
        start, turns = AGENTS[PROGRAM]
        proxy = StepsProxy(PROGRAM, ROUTER, turns)
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
        for turn, steps in enumerate(turns, 1):
            called = [seen["step"] for seen in proxy.seen if seen["is_main"] and seen["turn"] == turn]
            self.assertEqual([step for n, step in enumerate(called) if step not in called[:n]], [*steps, None], f"{said}\n{told}")
        if PROGRAM.startswith(("claude-code", "codex")):
            self.check_reuse([seen["usage"] for seen in proxy.seen if seen["is_main"]])

    def check_reuse(self, usages):
        """Checks that each prompt reuses that of the step before."""
        for (n_before, _), (n_prompt, n_reused) in itertools.pairwise(usages):
            self.assertGreaterEqual(n_reused, n_before - REPEATED_TOKENS_MAX, usages)
            self.assertLess(n_prompt - n_reused, STEP_TOKENS_MAX, usages)


if __name__ == "__main__":
    unittest.main()
