#!/bin/sh
# Surprise: while its only worker restarts, Dynamo's frontend answers 404 with an empty body, not 503, so clients give
#   up at once, and calls itself healthy. It refuses fields that it does not know, and counts the tokens of a message
#   for `count_tokens` by a third of its bytes.
# Versions: ai-dynamo 1.6.1, ai-dynamo-runtime 1.6.1, transformers 5.23.0
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip="$work/venv/bin/pip install --quiet --disable-pip-version-check --no-compile"
$pip ai-dynamo-runtime==1.6.1 transformers==5.23.0 aiohttp==3.14.5 kubernetes==32.0.1 msgspec==0.23.0 \
    prometheus-client==0.26.0 pyzmq==27.3.0
$pip --no-deps ai-dynamo==1.6.1
"$work/venv/bin/python" - "$work" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

WORK = Path(sys.argv[1])
TEXT = "The weather in Munich is fine. " * 10


def write_model(folder):
    """Writes what the frontend reads of a model: a tokenizer with a token for each byte, and its settings."""
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = {"bos_token_id": tokenizer.token_to_id("<s>"), "eos_token_id": tokenizer.token_to_id("</s>")}
    template = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096}
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": tokenizer.get_vocab_size()}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | ends | sizes
    for name, content in [("tokenizer_config", settings), ("config", config), ("generation_config", ends)]:
        (folder / f"{name}.json").write_text(json.dumps(content))


def start(module, *args):
    """Starts a part of Dynamo, on the loopback interface alone."""
    names = ["DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST"]
    environment = os.environ | dict.fromkeys(names, "127.0.0.1") | {"DYN_FILE_KV": str(WORK / "discovery")}
    environment |= {"DYN_DISCOVERY_BACKEND": "file", "DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq"}
    command = [sys.executable, "-m", f"dynamo.{module}", *args]
    with open(WORK / "log", "a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment | {"HF_HUB_OFFLINE": "1"})


def call(path, **body):
    """Returns the status, the headers and the text of an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, json.dumps(body).encode() if body else None, timeout=60) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def chat(**fields):
    """Returns the answer to a chat."""
    messages = [{"role": "user", "content": TEXT}]
    return call("/v1/chat/completions", **{"model": "m", "messages": messages, "max_tokens": 1} | fields)


def wait_until(condition):
    """Waits until a condition holds."""
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline and frontend.poll() is None, "Dynamo does not start"
        time.sleep(0.2)


def serves():
    """Returns whether the frontend knows the model."""
    try:
        return '"m"' in call("/v1/models")[2]
    except OSError:
        return False


write_model(WORK / "model")
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
frontend = start("frontend", "--http-host", "127.0.0.1", "--http-port", str(port), "--enable-anthropic-api")
worker = start("mocker", "--model-path", str(WORK / "model"), "--model-name", "m")
try:
    wait_until(serves)
    usage = json.loads(chat()[2])["usage"]
    unknown = {name: chat(**{name: 1})[0] for name in ["top_k", "cache_prompt"]}
    counted = call("/v1/messages/count_tokens", model="m", messages=[{"role": "user", "content": TEXT}])
    n_counted = json.loads(counted[2])["input_tokens"]
    worker.terminate()
    worker.wait()
    wait_until(lambda: chat()[0] == 404)
    status, headers, text = chat()
    healthy = json.loads(call("/health")[2])["status"]
finally:
    worker.terminate()
    frontend.terminate()
    worker.wait()
    frontend.wait()
print(*(f"{package} {version(package)}" for package in ["ai-dynamo", "ai-dynamo-runtime", "transformers"]))
print(f"a text of {len(TEXT)} bytes, a token for each: {usage['prompt_tokens']} tokens as a chat, count_tokens {n_counted}")
print("fields that OpenAI's API does not have:", unknown)
print(f"a chat without a worker: {status}, body {text!r}, Retry-After {headers['retry-after']}; /health: {healthy}")
assert (status, text, headers["retry-after"], healthy) == (404, "", None, "healthy"), "the behaviour has changed"
assert unknown == {"top_k": 200, "cache_prompt": 400}, "the behaviour has changed"
assert abs(n_counted - len(TEXT) / 3) < 5 and usage["prompt_tokens"] > len(TEXT), "the behaviour has changed"
print("seen: to a client a model that restarts looks like a wrong address")
PYTHON
