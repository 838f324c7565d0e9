#!/usr/bin/env python3
"""Replacement of the binary `llama-server` in its own tests: starts warmpath-worker with the equivalent flags, or for
several models and for one that sleeps `warmpath serve` (serve.py).

Not here: which tests run (plugin.py). The idea: a flag is translated, or has no meaning for a worker and is dropped, or
asks for something that a worker does not do; then the launcher ends with status 64 and says so.
"""

import os
import sys
from pathlib import Path

import serve

ROOT = Path(__file__).resolve().parents[2]

# The models of this repository that replace those of the hub, by the requested name.
MODELS = {
    "ggml-org/test-model-stories260K": "stories.gguf",
    "ggml-org/test-model-stories260K-infill": "infill.gguf",
    "ggml-org/stories15M_MOE": "infill.gguf",
    "ggml-org/tinygemma3-GGUF:Q8_0": "infill.gguf",
    "ggml-org/models/bert-bge-small/ggml-model-f16.gguf": "embed.gguf",
    "ggml-org/models/jina-reranker-v1-tiny-en/ggml-model-f16.gguf": "rank.gguf",
}

# The projectors of those that read images.
PROJECTORS = {"ggml-org/tinygemma3-GGUF:Q8_0": "projector.gguf"}

# Flags without a value that mean nothing to a worker: what they ask for is always so, or is about the web page.
DROPPED = {
    "--offline", "--cont-batching", "--metrics", "--slots", "--no-slots", "--swa-full", "--verbose", "--no-ui",
    "--jinja", "--no-jinja", "--no-cache-idle-slots", "--backend_sampling", "--no-mmproj",
}  # fmt: skip
# Flags with a value that mean nothing to a worker.
DROPPED_WITH_VALUE = {"--tags", "--n-gpu-layers", "--media-path"}
# Flags with a value that a worker has, too, and their names there.
RENAMED = {
    "--parallel": "--slots", "--n-predict": "--predict", "-ctk": "--cache-type-k", "-ctv": "--cache-type-v",
    "-fa": "--flash-attn",
}  # fmt: skip
SAME = {
    "--temp", "--seed", "--batch-size", "--ubatch-size", "--threads", "--alias", "--ctx-size", "--slot-save-path",
    "--cache-ram", "--chat-template-file", "--model", "--pooling", "--reasoning",
}  # fmt: skip
WITHOUT_VALUE = {"--context-shift", "--embedding", "--reranking"}

# Templates that llama-server has by name, as its tests need them; any other text is a template itself.
TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama3": "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim"
    " + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "command-r": "{% set names = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} %}{% for m in messages %}"
    "{{ '<|START_OF_TURN_TOKEN|><|' + names[m.role] + '_TOKEN|>' + m.content + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
}


def refuse(what):
    print(f"a worker has nothing for {what}", file=sys.stderr)
    sys.exit(64)


def translate(arguments):
    """Returns a worker's arguments."""
    given, out, address = {}, [], {}
    words = iter(arguments)
    for flag in words:
        if flag in DROPPED:
            continue
        if flag in WITHOUT_VALUE:
            out.append(flag)
        elif flag == "--kv-unified":
            given["--kv-unified"] = "on"
        elif flag in ("--host", "--port"):
            address[flag] = next(words)
        elif flag in ("--hf-repo", "--hf-file", "--chat-template") or flag in DROPPED_WITH_VALUE:
            given[flag] = next(words)
        elif flag == "--lora":
            # A worker's requests ask for an adapter; llama-server's all have it, unless they say otherwise.
            given["--lora-scaled"] = f"{next(words)}:1"
        elif flag in SAME:
            given[flag] = next(words)
        elif flag in RENAMED:
            given[RENAMED[flag]] = next(words)
        else:
            refuse(flag)
    if "," in address["--host"]:
        refuse("several addresses")
    repo, file = given.pop("--hf-repo", None), given.pop("--hf-file", None)
    if "--model" not in given:
        name = MODELS.get(f"{repo}/{file}") or MODELS.get(repo)
        if name is None:
            refuse(f"the model {repo}")
        given["--model"] = str(Path(os.environ["WARMPATH_TEST_MODELS"]) / name)
    if repo in PROJECTORS and "--no-mmproj" not in arguments:
        given["--mmproj"] = str(Path(os.environ["WARMPATH_TEST_MODELS"]) / PROJECTORS[repo])
        given["--image-url-host"] = os.environ["WARMPATH_TEST_IMAGES"]
    # A worker answers to the names of its model alone; llama-server to every name.
    names = [given.pop("--alias", "tinyllama-2"), *os.environ.get("WARMPATH_TEST_NAMES", "").split(",")]
    has_own = "--chat-template-file" in given or not {"--embedding", "--reranking"}.isdisjoint(out)
    template = given.pop("--chat-template", None if has_own else "chatml")
    if template is not None:
        given["--chat-template-file"] = write_template(TEMPLATES.get(template, template))
    if int(given.get("--ctx-size", 0)) > 0 and "--kv-unified" not in given:
        # llama-server gives each slot at least 256 tokens, whatever the flag says; a worker refuses less.
        least = 256 * int(given.get("--slots", 1))
        given["--ctx-size"] = str(max(int(given["--ctx-size"]), least))
    # The self-test's choice differs from machine to machine.
    fixed = {"--kv-unified": "off", "--flash-attn": "off", "--threads": "1"}
    for flag, value in (fixed | given).items():
        if flag not in DROPPED_WITH_VALUE:
            out += [flag, value]
    out += ["--alias", ",".join(filter(None, names))]
    return [*out, "--listen", f"{address['--host']}:{address['--port']}"]


def write_template(text):
    path = Path(os.environ["WARMPATH_TEST_MODELS"]) / f"template-{os.getpid()}.jinja"
    path.write_text(text)
    return str(path)


if __name__ == "__main__":
    programs = Path(os.environ["WARMPATH_TEST_PROGRAMS"])
    if serve.is_meant(sys.argv[1:]):
        command = serve.command(sys.argv[1:], translate, lambda name: write_template(TEMPLATES[name]))
        os.execv(programs / "warmpath", ["warmpath", "serve", *command])
    os.execv(programs / "warmpath-worker", ["warmpath-worker", *translate(sys.argv[1:])])
