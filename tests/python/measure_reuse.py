#!/usr/bin/env python3
"""Prints how many tokens of a prompt are computed again, by kind of layers and by what came before.

    python3 -m venv .venv && .venv/bin/pip install xllamacpp==2026.10.11549
    cargo build --workspace && .venv/bin/python tests/python/measure_reuse.py

Asks a worker and llama.cpp's server, which xllamacpp has, with the models of `warmpath-bench model` and one slot each.
Each cell has a server of its own. docs/cache.md has the result.
"""

import json
import pathlib
import random
import socket
import subprocess
import tempfile
import time
import urllib.request

PROGRAMS = pathlib.Path(__file__).resolve().parents[2] / "target/debug"
PRESETS = {"full": "tiny", "window": "tiny-swa", "recurrent": "tiny-recurrent", "hybrid": "tiny-hybrid"}
SEED = 5
N_PROMPT, N_ANSWER, N_QUESTION = 1800, 400, 40
CONTEXT = 4096


def words(n_words, seed):
    """Returns a text of random words."""
    letters = random.Random(SEED + seed)
    return " ".join("".join(letters.choices("etaoinshr", k=letters.randint(2, 7))) for _ in range(n_words))


class Worker:
    def __init__(self, folder, model):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{address}"
        flags = ["--slots", "1", "--ctx-size", str(CONTEXT), "--cache-ram", "512", "--slot-save-path", folder]
        command = [PROGRAMS / "warmpath-worker", "--model", model, "--listen", address, *flags]
        self.log = open(f"{folder}/log", "a")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 60
        while not self.is_ready():
            assert self.process.poll() is None and time.monotonic() < deadline, "the worker does not start"
            time.sleep(0.1)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}/health") as response:
                return response.status == 200
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


class LlamaServer:
    def __init__(self, folder, model):
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path, params.slot_save_path = model, f"{folder}/"
        params.n_ctx, params.n_parallel = CONTEXT, 1
        self.server = xllamacpp.Server(params)
        self.url = self.server.listening_address

    def stop(self):
        self.server = None


def post(server, path, **body):
    request = urllib.request.Request(
        server.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def complete(server, prompt, n_predict):
    """Returns the answer's tokens and how many of the prompt's were computed."""
    fields = {"n_predict": n_predict, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    answer = post(server, "/completion", prompt=prompt, **fields)
    return answer["tokens"], answer["timings"]["prompt_n"]


def chat(server, system, question):
    """Returns how many tokens of a chat's prompt were computed."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    usage = post(server, "/v1/chat/completions", messages=messages, max_tokens=8, temperature=0)["usage"]
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


def tokens(server, n_tokens, seed):
    return post(server, "/tokenize", content=words(n_tokens, seed))["tokens"][:n_tokens]


def edited_question(start):
    server = start()
    chat(server, words(N_PROMPT // 4, 1), words(N_QUESTION // 4, 2))
    computed = chat(server, words(N_PROMPT // 4, 1), words(N_QUESTION // 4, 3))
    server.stop()
    return computed


def after_answer(start, event):
    """Returns how many tokens of the prompt that follows an event behind an answer were computed."""
    server = start()
    prompt, question = tokens(server, N_PROMPT, 1), tokens(server, N_QUESTION, 2)
    answer, _ = complete(server, prompt, N_ANSWER)
    following = prompt + answer + question
    match event:
        case "the same prompt again":
            following = prompt
        case "the next question":
            pass
        case "the answer is cut in half, and the next question":
            following = prompt + answer[: N_ANSWER // 2] + question
        case "the prompt's last quarter is edited":
            following = prompt[: N_PROMPT * 3 // 4] + tokens(server, N_PROMPT // 4, 3)
        case "another conversation in this slot, then the next question":
            complete(server, tokens(server, N_PROMPT, 4), 8)
        case "the slot is saved and restored by another process, and the next question":
            post(server, "/slots/0?action=save", filename="slot")
            server.stop()
            server = start()
            post(server, "/slots/0?action=restore", filename="slot")
    _, computed = complete(server, following, 1)
    server.stop()
    return computed


def main():
    events = [
        "the same prompt again",
        "the next question",
        "the answer is cut in half, and the next question",
        "the prompt's last quarter is edited",
        "another conversation in this slot, then the next question",
        "the slot is saved and restored by another process, and the next question",
    ]
    print("event", *PRESETS, sep=" | ")
    with tempfile.TemporaryDirectory() as folder:
        for kind, preset in PRESETS.items():
            command = [PROGRAMS / "warmpath-bench", "model", "--preset", preset, "--out", f"{folder}/{kind}"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for event in [*events, "the last question is edited"]:
            cells = []
            for kind in PRESETS:
                pair = []
                for server in [Worker, LlamaServer]:
                    start = lambda: server(folder, f"{folder}/{kind}")  # noqa: E731
                    pair.append(edited_question(start) if event.startswith("the last") else after_answer(start, event))
                cells.append(", ".join(map(str, pair)))
            print(event, *cells, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
