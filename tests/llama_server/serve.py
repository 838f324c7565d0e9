"""The command line of `warmpath serve` for llama-server's router mode, and for its one model that sleeps.

Not here: the flags of a worker (launcher.py), the hub from which models are downloaded (plugin.py).
"""

import hashlib
import os
from pathlib import Path

# The models that llama-server's tests have in their cache, and those of this repository that replace them. The first
# one is slow, so that a request keeps it busy for a while.
CACHED = {
    "ggml-org/tinygemma3-GGUF:Q8_0": "slow.gguf",
    "ggml-org/test-model-stories260K:F32": "stories.gguf",
    "ggml-org/test-model-stories260K-infill:F32": "infill.gguf",
}

# Flags of llama-server in router mode without a value: those that both have, and those that mean nothing here.
SAME = {"--no-models-autoload"}
DROPPED = {"--offline", "--no-jinja", "--no-slots", "--slots", "--metrics"}
# Flags with a value: those that both have, and those of workers with their names there.
SAME_WITH_VALUE = {"--models-max", "--models-preset", "--sleep-idle-seconds"}
OF_WORKERS = {
    "--temp": "--temp", "--seed": "--seed", "--ctx-size": "--ctx-size", "--batch-size": "--batch-size",
    "--parallel": "--slots", "--n-predict": "--predict",
}  # fmt: skip
# What keeps the processes small and alike on every machine.
FIXED = ["--threads", "1", "--flash-attn", "off", "--kv-unified", "off", "--cache-ram", "16"]


def is_meant(arguments):
    """Returns whether llama-server would be a router, or a server that sleeps."""
    return "--sleep-idle-seconds" in arguments or not {"--model", "--hf-repo", "--model-url"} & set(arguments)


def command(arguments, translate, write_template):
    """Returns the command line; `translate` gives that of a worker."""
    folder = Path(os.environ["WARMPATH_TEST_MODELS"]).parent / f"serve-{os.getpid()}"
    folder.mkdir()
    if {"--model", "--hf-repo"} & set(arguments):
        return [*one_model(arguments, translate), *places(folder)]
    return several_models(arguments, write_template, folder)


def one_model(arguments, translate):
    """Returns the flags of a server whose only model sleeps: a worker's, and the time."""
    arguments = list(arguments)
    at = arguments.index("--sleep-idle-seconds")
    _, seconds = arguments[at : at + 2]
    del arguments[at : at + 2]
    return ["--sleep-idle-seconds", seconds, *translate(arguments), "--cache-ram", "16"]


def several_models(arguments, write_template, folder):
    """Returns the flags of a server with the models of llama-server's cache, or with those of a test's own file."""
    out, address, router = [], {}, []
    words = iter(arguments)
    for flag in words:
        if flag in DROPPED:
            continue
        if flag in SAME:
            out.append(flag)
        elif flag in ("--host", "--port"):
            address[flag] = next(words)
        elif flag in SAME_WITH_VALUE:
            out += [flag, next(words)]
        elif flag in OF_WORKERS:
            out += [OF_WORKERS[flag], next(words)]
        elif flag == "--api-key":
            router = ["--", "--api-keys-file", write_keys(folder, next(words))]
        else:
            raise SystemExit(f"`warmpath serve` has nothing for {flag}")
    if "--models-preset" not in out:
        out += ["--models-preset", write_preset(folder)]
    template = write_template("chatml")
    listen = f"{address['--host']}:{address['--port']}"
    return ["--listen", listen, *out, *FIXED, "--chat-template-file", template, *places(folder), *router]


def places(folder):
    """Returns the flags for what only one server of a machine can have."""
    admin = f"127.0.0.1:{int(os.environ['PORT']) + 1}"
    return ["--models-cache", str(folder), "--host-listen", "127.0.0.1:0", "--admin-listen", admin]


def write_preset(folder):
    models = Path(os.environ["WARMPATH_TEST_MODELS"])
    path = folder / "models.ini"
    path.write_text("".join(f"[{name}]\nmodel = {models / file}\n" for name, file in CACHED.items()))
    return str(path)


def write_keys(folder, key):
    path = folder / "keys.toml"
    path.write_text(f'[[key]]\nname = "test"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\nadmin = true\n')
    return str(path)
