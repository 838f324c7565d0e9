#!/bin/sh
# Surprise: LangChain and pydantic-ai add up the usage of a stream's chunks, so five chunks with running totals are five
#   prompts; LangChain takes a Claude stream's input tokens from its end alone, so without them there they are 0.
# Versions: langchain-openai 1.7.4, langchain-anthropic 1.7.10, pydantic-ai-slim 2.68.0
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    langchain-openai==1.7.4 langchain-anthropic==1.7.10 "pydantic-ai-slim[openai,anthropic]==2.68.0"
"$work/venv/bin/python" - <<'PYTHON'
import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

PROMPT, CACHED, PIECES = 100, 80, ["", "a", "b", "c"]


def chat_chunks(usage_in_each):
    """Returns the chunks of an answer of three tokens, with its usage so far in each of them or only in the last."""
    chunks = []
    for n_tokens, piece in enumerate([*PIECES, None]):
        n_answer = min(n_tokens, 3)
        usage = {"prompt_tokens": PROMPT, "completion_tokens": n_answer, "total_tokens": PROMPT + n_answer}
        usage["prompt_tokens_details"] = {"cached_tokens": CACHED}
        choice = {"index": 0, "delta": {"content": piece}, "finish_reason": "stop" if n_tokens == 3 else None}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        chunk["choices"] = [] if piece is None else [choice]
        chunks.append(chunk | ({"usage": usage} if usage_in_each or piece is None else {}))
    return chunks


def message_events(input_at_end):
    """Returns the events of a message, with the input tokens at its start or also at its end."""
    of_input = {"input_tokens": PROMPT - CACHED, "cache_read_input_tokens": CACHED, "cache_creation_input_tokens": 0}
    message = {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": of_input | {"output_tokens": 1}}
    at_end = (of_input if input_at_end else {}) | {"output_tokens": 3}
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "abc"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": delta, "usage": at_end},
        {"type": "message_stop"},
    ]


class Engine(BaseHTTPRequestHandler):
    """An engine that streams the answer that was asked for by its model's name."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        everywhere = body["model"] == "everywhere"
        if self.path.startswith("/v1/messages"):
            parts = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in message_events(everywhere)]
        else:
            parts = [f"data: {json.dumps(chunk)}\n\n" for chunk in chat_chunks(everywhere)] + ["data: [DONE]\n\n"]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write("".join(parts).encode())

    def log_message(self, *_):
        pass


engine = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
threading.Thread(target=engine.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{engine.server_port}"


def langchain(model):
    """Returns the input and output tokens and the cached ones that LangChain reports."""
    chunks = list(model.stream("hello"))
    usage = sum(chunks[1:], start=chunks[0]).usage_metadata
    return usage["input_tokens"], usage["output_tokens"], usage["input_token_details"].get("cache_read", 0)


def pydantic_ai(model):
    """Returns the input and output tokens and the cached ones that pydantic-ai reports."""

    async def run():
        async with Agent(model).run_stream("hello") as result:
            await result.get_output()
            return result.usage

    usage = asyncio.run(run())
    return usage.input_tokens, usage.output_tokens, usage.cache_read_tokens


openai_provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
anthropic_provider = AnthropicProvider(base_url=URL, api_key="none")
packages = ["langchain-openai", "langchain-anthropic", "pydantic-ai-slim"]
print(*(f"{package} {version(package)}" for package in packages))
seen = {}
for name in ["once", "everywhere"]:
    seen["chat", "LangChain", name] = langchain(
        ChatOpenAI(base_url=f"{URL}/v1", api_key="none", model=name, stream_usage=True)
    )
    seen["chat", "pydantic-ai", name] = pydantic_ai(OpenAIChatModel(name, provider=openai_provider))
    seen["message", "LangChain", name] = langchain(ChatAnthropic(base_url=URL, api_key="none", model=name))
    seen["message", "pydantic-ai", name] = pydantic_ai(AnthropicModel(name, provider=anthropic_provider))
for (kind, client, name), counts in seen.items():
    print(f"{client}, a {kind} with usage {name}: input, output, cached", *counts)
expected = dict.fromkeys(seen, (100, 3, 80))
expected["chat", "LangChain", "everywhere"] = expected["chat", "pydantic-ai", "everywhere"] = (500, 9, 400)
expected["message", "LangChain", "once"] = (0, 3, 0)
assert seen == expected, "the behaviour has changed"
print("seen: 500 tokens of a prompt of 100, and in LangChain none of them")
PYTHON
