"""aider against a fleet: test_aider.py ROUTER_URL.

tests/tests/clients.rs starts the fleet: two workers with the tiny model behind a router. aider has no tools: it finds edits in the text of an
answer. The tiny model writes one only if a grammar requires it, so both turns are answered by the same edit. aider runs in a repository and a
home of its own, and reaches nothing but the router.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from reuse import RecordingProxy

ROUTER = sys.argv.pop()
AIDER = pathlib.Path(sys.executable).with_name("aider")
ENDS_WITHIN_S = 300
EDIT = "notes.txt\n```\nBuy flour and milk.\n```\n"
FLAGS = """--edit-format whole --no-auto-commits --yes-always --no-check-update --analytics-disable --no-show-release-notes
    --no-show-model-warnings --no-gitignore --no-suggest-shell-commands --no-pretty --no-fancy-input""".split()


class Proxy(RecordingProxy):
    def change(self, path, body, seen):
        # aider's questions come in one run.
        seen["turn"] = 2 if "Is it in?" in json.dumps(body["messages"]) else 1
        seen["kind"] = "question"


def environment(home, url="http://127.0.0.1:9"):
    """Returns an environment from which nothing but loopback can be reached."""
    nowhere = "http://127.0.0.1:9"
    proxies = {"HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "NO_PROXY": "127.0.0.1,localhost"}
    proxies |= {name.lower(): value for name, value in proxies.items()}
    own = {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", **proxies, **own}


class Aider(unittest.TestCase):
    def test_two_turns_edit_a_file(self):
        grammar = {"extra_body": {"grammar": f"root ::= {json.dumps(EDIT)}"}}
        settings = [{"name": "openai/tiny", "edit_format": "whole", "extra_params": grammar}]
        # Otherwise aider looks for the model on the internet.
        limits = {"openai/tiny": {"max_input_tokens": 4096, "max_output_tokens": 1024, "litellm_provider": "openai", "mode": "chat"}}
        with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as project:
            notes, history = pathlib.Path(project, "notes.txt"), pathlib.Path(project, ".aider.chat.history.md")
            notes.write_text("Buy flour.\n")
            # JSON is YAML as well.
            pathlib.Path(home, ".aider.model.settings.yml").write_text(json.dumps(settings))
            pathlib.Path(home, ".aider.model.metadata.json").write_text(json.dumps(limits))
            proxy = Proxy("aider", ROUTER)
            subprocess.run(["git", "init", "--quiet"], cwd=project, env=environment(home), check=True)
            done = subprocess.run(
                [AIDER, "--model", "openai/tiny", *FLAGS, "notes.txt"], cwd=project, env=environment(home, proxy.url), text=True,
                input="Add milk.\nIs it in?\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=ENDS_WITHIN_S,
            )
            self.assertEqual((done.returncode, notes.read_text()), (0, "Buy flour and milk.\n"), done.stdout)
            turns = history.read_text()
        proxy.write_table(AIDER.parents[2] / "reuse")
        self.assertEqual(turns.count("#### "), 2, turns)
        self.assertEqual(turns.count("Buy flour and milk."), 2, turns)
        self.assertEqual(done.stdout.count("Tokens: "), 2, done.stdout)
        self.assertNotIn("Error", done.stdout)


if __name__ == "__main__":
    unittest.main()
