#!/bin/sh
# Surprise: Mistral's own encoders put tools, and before v7 the system text as well, in front of the last question, so
#   with each question both move and a prompt shares at most two tokens with the one before it.
# Versions: mistral-common 1.13.1, sentencepiece 0.2.3
# Date: 2026-11-29
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check mistral-common==1.13.1 sentencepiece==0.2.3
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

TEXT = "You keep a house. Answer in one sentence, and name the room in which things are."
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}]
SYSTEM, FIRST = {"role": "system", "content": TEXT}, {"role": "user", "content": "Where is the bread?"}
NEXT = [{"role": "assistant", "content": "In the kitchen."}, {"role": "user", "content": "And the butter?"}]


def kept(tokenizer, first, tools):
    """Returns the tokens of a first prompt, and how many of them the next prompt begins with."""
    prompts = []
    for messages in (first, first + NEXT):
        request = ChatCompletionRequest(messages=messages, tools=tools)
        prompts.append(tokenizer.encode_chat_completion(request).tokens)
    pairs = enumerate(zip(*prompts))
    return len(prompts[0]), next((i for i, (a, b) in pairs if a != b), len(prompts[0]))


print("mistral-common", version("mistral-common"))
seen = {}
for name in ["v1", "v2", "v3", "v7"]:
    tokenizer = getattr(MistralTokenizer, name)()
    for what, first, tools in [("system text", [SYSTEM, FIRST], None), ("tools", [FIRST], TOOLS)]:
        n_tokens, n_kept = kept(tokenizer, first, tools)
        seen[name, what] = n_kept == n_tokens
        print(f"{name}, {what}: {n_kept} of {n_tokens} tokens are kept by the next question")
# v1 has no tools: it leaves them out.
expected = {("v1", "system text"): True, ("v1", "tools"): True}
expected |= {(name, what): False for name in ["v2", "v3", "v7"] for what in ["system text", "tools"]}
expected["v7", "system text"] = True
assert seen == expected, "the behaviour has changed"
print("seen: the system text moves in v2 and v3, tools move in v2, v3 and v7")
PYTHON
