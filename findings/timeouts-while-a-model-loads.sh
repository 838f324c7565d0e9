#!/bin/sh
# Surprise: a `timeout` counts from the last byte in Python's SDKs, to the headers in JavaScript's, in all in the AI SDK;
#   LangChain's counts from headers to chunk, so comments are no help. Spaces before JSON help in Python alone.
# Versions: openai 3.57.0, (npm) 7.55.0, anthropic 2.14.0, @anthropic-ai/sdk 1.14.0, langchain-openai 1.7.4, ai 7.0.173
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    anthropic==2.14.0 langchain-openai==1.7.4 openai==3.57.0
npm install --silent --no-audit --no-fund --prefix "$work/npm" \
    @ai-sdk/openai-compatible@3.0.92 @anthropic-ai/sdk@1.14.0 ai@7.0.173 openai@7.55.0
cat >"$work/npm/ask.mjs" <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { streamText } from "ai";
import OpenAI from "openai";

globalThis.AI_SDK_LOG_WARNINGS = false;
const [url, timeout, modes] = [process.argv[2], Number(process.argv[3]) * 1000, JSON.parse(process.argv[4])];
const messages = [{ role: "user", content: "hello" }];
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", timeout, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", timeout, maxRetries: 0 });
const provider = createOpenAICompatible({ name: "stub", baseURL: `${url}/v1`, apiKey: "none" });

async function text(stream, piece) {
  let whole = "";
  for await (const chunk of stream) whole += piece(chunk) ?? "";
  return whole;
}
async function aiSdk(model, limit) {
  let failure;
  const onError = ({ error }) => (failure = error);
  const answer = streamText({ model: provider(model), messages, maxRetries: 0, timeout: limit, onError });
  await answer.consumeStream();
  if (failure) throw failure;
  return answer.text;
}
const CLIENTS = {
  "openai (npm)": async (model) => {
    const stream = await openai.chat.completions.create({ model, messages, stream: true });
    return text(stream, (chunk) => chunk.choices[0].delta.content);
  },
  "openai (npm), JSON": async (model) =>
    (await openai.chat.completions.create({ model, messages })).choices[0].message.content,
  "@anthropic-ai/sdk": async (model) => {
    const stream = await anthropic.messages.create({ model, messages, stream: true, max_tokens: 9 });
    return text(stream, (event) => event.delta?.text);
  },
  "ai": (model) => aiSdk(model, timeout),
  "ai, chunkMs": (model) => aiSdk(model, { chunkMs: timeout }),
};
const seen = {};
async function ask(name, client) {
  const results = modes[name.endsWith("JSON") ? "JSON" : "stream"].map((mode) =>
    client(mode).then((answer) => answer === "ok", () => false),
  );
  seen[name] = await Promise.all(results);
}
await Promise.all(Object.entries(CLIENTS).map(([name, client]) => ask(name, client)));
const versions = ["openai", "@anthropic-ai/sdk", "ai", "@ai-sdk/openai-compatible"].map((name) => {
  const file = new URL(`node_modules/${name}/package.json`, import.meta.url);
  return `${name} ${JSON.parse(readFileSync(file)).version}`;
});
console.log(JSON.stringify({ seen, versions }));
process.exit(0);
JAVASCRIPT
"$work/venv/bin/python" -W ignore - "$work/npm/ask.mjs" <<'PYTHON'
import asyncio
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import anthropic
import openai
from langchain_openai import ChatOpenAI

TIMEOUT_S, LOAD_S = 2, 5
MODES = {"stream": ["no headers", "silence", "comments"], "JSON": ["no headers", "spaces"]}
MESSAGES = [{"role": "user", "content": "hello"}]


def chat(streams):
    """Returns a chat's answer."""
    common = {"id": "1", "created": 1, "model": "m"}
    if not streams:
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        return json.dumps(common | {"object": "chat.completion", "choices": [choice]})
    choice = {"index": 0, "delta": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    chunk = json.dumps(common | {"object": "chat.completion.chunk", "choices": [choice]})
    return f"data: {chunk}\n\ndata: [DONE]\n\n"


def message():
    """Returns a message's stream."""
    start = {"id": "1", "type": "message", "role": "assistant", "content": [], "model": "m", "stop_reason": None}
    start |= {"stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    events = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


class Server(BaseHTTPRequestHandler):
    """A server whose model loads for some seconds, and which does meanwhile what the model's name says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        mode, streams = request["model"], request.get("stream", False)
        if mode == "no headers":
            time.sleep(LOAD_S)
        try:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream" if streams else "application/json")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            if mode != "no headers":
                for _ in range(LOAD_S * 2):
                    self.send({"comments": ": loading\n\n", "spaces": " ", "silence": ""}[mode])
                    time.sleep(0.5)
            self.send(message() if self.path == "/v1/messages" else chat(streams))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def send(self, text):
        if text:
            self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
            self.wfile.flush()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_port}"
chats = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", timeout=TIMEOUT_S, max_retries=0).chat.completions
messages = anthropic.Anthropic(base_url=URL, api_key="none", timeout=TIMEOUT_S, max_retries=0).messages


def openai_stream(mode):
    return "".join(chunk.choices[0].delta.content for chunk in chats.create(model=mode, messages=MESSAGES, stream=True))


def openai_json(mode):
    return chats.create(model=mode, messages=MESSAGES).choices[0].message.content


def anthropic_stream(mode):
    with messages.stream(model=mode, messages=MESSAGES, max_tokens=9) as stream:
        return "".join(stream.text_stream)


def langchain(mode):
    """Streams with LangChain's own limit alone, which has 120 s by default."""
    model = ChatOpenAI(model=mode, base_url=f"{URL}/v1", api_key="none", max_retries=0, stream_chunk_timeout=TIMEOUT_S)

    async def run():
        return "".join([chunk.text async for chunk in model.astream("hello")])

    return asyncio.run(run())


def gets_answer(client, mode):
    """Returns whether a client waits for an answer that comes later than its timeout."""
    try:
        return client(mode) == "ok"
    except Exception:
        return False


clients = {"openai (PyPI)": openai_stream, "openai (PyPI), JSON": openai_json}
clients |= {"anthropic": anthropic_stream, "langchain-openai": langchain}
seen = {}
with ThreadPoolExecutor(12) as pool:
    for name, client in clients.items():
        modes = MODES["JSON" if name.endswith("JSON") else "stream"]
        seen[name] = pool.map(gets_answer, [client] * len(modes), modes)
seen = {name: list(waits) for name, waits in seen.items()}
command = ["node", sys.argv[1], URL, str(TIMEOUT_S), json.dumps(MODES)]
result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
seen |= result["seen"]
packages = ["openai", "anthropic", "langchain-openai"]
print(*(f"{package} {version(package)}," for package in packages), "npm:", *result["versions"])
print(f"does a client with a timeout of {TIMEOUT_S} s wait for an answer that comes after {LOAD_S} s?")
for name, waits in seen.items():
    modes = MODES["JSON" if name.endswith("JSON") else "stream"]
    print(f"{name}:", *(f"{mode} {'yes' if wait else 'no'}" for mode, wait in zip(modes, waits)), sep=" | ")
default = ChatOpenAI.model_fields["stream_chunk_timeout"].get_default(call_default_factory=True)
print(f"langchain-openai waits {default:.0f} s between chunks where nothing else is set")
expected = {"openai (PyPI)": [False, False, True], "openai (PyPI), JSON": [False, True]}
expected |= {"anthropic": [False, False, True]}
expected |= {"langchain-openai": [True, False, False], "openai (npm)": [False, True, True]}
expected |= {"openai (npm), JSON": [False, False], "@anthropic-ai/sdk": [False, True, True]}
expected |= {"ai": [False, False, False], "ai, chunkMs": [True, True, True]}
assert seen == expected and default == 120, "the behaviour has changed"
print("seen: four meanings of one word")
PYTHON
