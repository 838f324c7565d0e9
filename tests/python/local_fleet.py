"""Workers, a router and clients as local processes and threads, for tests that change the fleet around them. Not here: those changes."""

import json
import pathlib
import signal
import subprocess
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).parents[2]
MODEL = "tiny"
STARTS_WITHIN_S = 60
STOPS_WITHIN_S = 120
ANSWERS_WITHIN_S = 120
# A load ends by itself after this time, even if the test fails.
LOAD_MAX_S = 900


class Process:
    """A running program, whose log lies in a folder."""

    def __init__(self, name, folder, program, *flags):
        self.name, self.path = name, pathlib.Path(folder, f"{name}.log")
        with open(self.path, "a") as log:
            command = [ROOT / "target/release" / program, *flags]
            self.process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)

    def log(self):
        return f"{self.name}:\n{self.path.read_text()[-3000:]}"

    def stop(self):
        """Ends it by SIGTERM and returns its status."""
        self.ask_to_end()
        return self.ended()

    def ask_to_end(self):
        self.process.send_signal(signal.SIGTERM)

    def ended(self):
        return self.process.wait(timeout=STOPS_WITHIN_S)


def make_model(folder, preset, seed):
    """Returns the file of a model of some megabytes."""
    path = pathlib.Path(folder, f"{preset}-{seed}.gguf")
    command = [ROOT / "target/release/warmpath-bench", "model", "--preset", preset, "--seed", str(seed), "--out", path]
    subprocess.run(command, check=True)
    return path


def start_worker(name, folder, address, flags):
    """Starts a worker of one thread at an address."""
    always = f"--listen {address} --name {name} --threads 1 --flash-attn off --kv-unified off --cache-ram 256"
    return Process(name, folder, "warmpath-worker", *always.split(), *flags.split())


def get(url):
    """Returns the text at a URL; raises OSError where there is none."""
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read().decode()


def wait_until_ready(url, process):
    """Returns once the program serves at its URL; fails with its log where it ends before, or takes too long."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline and process.process.poll() is None:
        try:
            get(f"{url}/readyz")
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(process.log())


class Load:
    """Clients that chat with a router until they are stopped: every second answer is streamed, every fifth is long.

    Half of the conversations are held again and again, so that there is something to reuse; the others are new. `answers` lists of
    each answer when it was asked for and whose it is, `failures` what was not answered as a whole.
    """

    def __init__(self, url, n_clients):
        self.url = url
        self.answers, self.failures = [], []
        self.stopped = threading.Event()
        self.deadline = time.monotonic() + LOAD_MAX_S
        self.threads = [threading.Thread(target=self.talk, args=(idx,)) for idx in range(n_clients)]
        for thread in self.threads:
            thread.start()

    def talk(self, client_idx):
        n_asked = 0
        while not self.stopped.is_set() and time.monotonic() < self.deadline:
            conversation = n_asked if n_asked % 2 else client_idx % 4
            words = " ".join(f"word{(conversation * 31 + client_idx * 7 + n) % 977}" for n in range(100))
            system = {"role": "system", "content": f"Tenant {client_idx % 3}. " + "You know the rules of this house. " * 20}
            messages = [system, {"role": "user", "content": words}]
            for turn in range(3):
                n_asked += 1
                body = {"model": MODEL, "messages": messages, "temperature": 0, "ignore_eos": True}
                if n_asked % 2 == 0:
                    body |= {"stream": True, "stream_options": {"include_usage": True}}
                self.ask(body | {"max_tokens": 400 if n_asked % 5 == 0 else 24})
                messages = [*messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": f"turn {turn}"}]

    def ask(self, body):
        asked = time.monotonic()
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=ANSWERS_WITHIN_S) as response:
                read = read_stream if "stream" in body else read_whole
                n_tokens = read(response.read().decode())
                if n_tokens != body["max_tokens"]:
                    raise ValueError(f"{n_tokens} tokens instead of {body['max_tokens']}")
                self.answers.append((asked, response.headers["x-warmpath-worker"]))
        except Exception as error:
            said = error.read().decode() if hasattr(error, "read") else ""
            self.failures.append(f"{'stream' if 'stream' in body else 'plain'}: {error!r} {said}")

    def answered_by(self, since=0.0):
        """Returns the workers of the answers that were requested since a moment."""
        return {worker for asked, worker in list(self.answers) if asked >= since}

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join()


def read_whole(text):
    return json.loads(text)["usage"]["completion_tokens"]


def read_stream(text):
    """Returns the number of tokens of an answer's stream, which must have reached its end."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if events[-1:] != ["[DONE]"]:
        raise ValueError(f"a stream broke off: {text[-500:]!r}")
    choices = [choice for event in events[:-1] for choice in json.loads(event).get("choices", [])]
    if [choice["finish_reason"] for choice in choices if choice.get("finish_reason")] != ["length"]:
        raise ValueError(f"a stream has no end: {text[-500:]!r}")
    return json.loads(events[-2])["usage"]["completion_tokens"]
