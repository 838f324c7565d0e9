#!/bin/sh
# Surprise: Ollama's client in Python takes a stream that breaks off for a whole one and fails at an empty line, the one
#   in JavaScript the other way round. An error that is an object is a TypeError in one, "[object Object]" in the other.
# Versions: ollama 0.6.3 (PyPI), ollama 0.6.4 and ollama-ai-provider-v2 4.0.1 (npm), ai 7.0.173
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check ollama==0.6.3
npm install --silent --no-audit --no-fund --prefix "$work/npm" ai@7.0.173 ollama@0.6.4 ollama-ai-provider-v2@4.0.1
cat >"$work/npm/ask.mjs" <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import { streamText } from "ai";
import { Ollama } from "ollama";
import { createOllama } from "ollama-ai-provider-v2";

globalThis.AI_SDK_LOG_WARNINGS = false;
console.warn = () => {};
const [url, names] = [process.argv[2], JSON.parse(process.argv[3])];
const messages = [{ role: "user", content: "hello" }];
const seen = { javascript: {}, "ai-sdk": {} };
for (const model of names) {
  let text = "";
  try {
    const stream = await new Ollama({ host: url }).chat({ model, messages, stream: true });
    for await (const chunk of stream) text += chunk.message?.content ?? "";
    seen.javascript[model] = text;
  } catch (error) {
    seen.javascript[model] = `${error.name}: ${error.message.trim()}`;
  }
  let failure;
  const provider = createOllama({ baseURL: `${url}/api` });
  const settings = { maxRetries: 0, onError: ({ error }) => (failure = error) };
  const answer = streamText({ model: provider(model), messages, ...settings });
  await answer.consumeStream();
  seen["ai-sdk"][model] = failure ? `${failure.name}: ${failure.message}` : `${await answer.text}`;
}
const versions = ["ollama", "ollama-ai-provider-v2", "ai"].map((name) => {
  const file = new URL(`node_modules/${name}/package.json`, import.meta.url);
  return `${name} ${JSON.parse(readFileSync(file)).version}`;
});
console.log(JSON.stringify({ seen, versions }));
JAVASCRIPT
"$work/venv/bin/python" - "$work/npm/ask.mjs" <<'PYTHON'
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from ollama import Client

COMMON = {"model": "m", "created_at": "2026-11-30T00:00:00Z"}
PIECE = json.dumps(COMMON | {"message": {"role": "assistant", "content": "ok"}, "done": False}) + "\n"
EMPTY = json.dumps(COMMON | {"message": {"role": "assistant", "content": ""}, "done": False}) + "\n"
END = COMMON | {"done": True, "done_reason": "stop"}
LAST = json.dumps(END | {"message": {"role": "assistant", "content": ""}}) + "\n"
ERROR = {"message": "the worker left", "type": "server_error"}
# Status and body of an answer.
ANSWERS = {
    "a whole answer": (200, PIECE + LAST),
    "an answer that breaks off": (200, PIECE),
    "an empty line first": (200, "\n" + PIECE + LAST),
    "spaces first": (200, "    " + PIECE + LAST),
    "an empty piece first": (200, EMPTY + PIECE + LAST),
    "an end without a message": (200, PIECE + json.dumps(END) + "\n"),
    "an error in the stream": (200, PIECE + json.dumps({"error": ERROR["message"]}) + "\n"),
    "an error object in the stream": (200, PIECE + json.dumps({"error": ERROR}) + "\n"),
    "a refusal": (503, json.dumps({"error": ERROR["message"]})),
    "a refusal with an error object": (503, json.dumps({"error": ERROR})),
}


class Server(BaseHTTPRequestHandler):
    """A server that gives the answer which the model's name says."""

    def do_POST(self):
        status, text = ANSWERS[json.loads(self.rfile.read(int(self.headers["content-length"])))["model"]]
        self.send_response(status)
        self.send_header("content-type", "application/x-ndjson" if status == 200 else "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_port}"


def python(name):
    """Returns a stream's text, or its error."""
    try:
        pieces = Client(host=URL).chat(name, [{"role": "user", "content": "hello"}], stream=True)
        return "".join(piece.message.content for piece in pieces)
    except Exception as error:
        return f"{type(error).__name__}: {error}".split("\n")[0]


seen = {"python": {name: python(name) for name in ANSWERS}}
command = ["node", sys.argv[1], URL, json.dumps(list(ANSWERS))]
result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
seen |= result["seen"]
print("PyPI: ollama", version("ollama"), "npm:", *result["versions"])
for name in ANSWERS:
    print(name, *(f"{client}: {answers[name]}" for client, answers in seen.items()), sep=" | ")
texts = {client: [name for name, text in answers.items() if text == "ok"] for client, answers in seen.items()}
names = list(ANSWERS)
expected = {"python": ["a whole answer", "an answer that breaks off", "spaces first", "an empty piece first"]}
expected["javascript"] = ["a whole answer", *names[2:6]]
expected["ai-sdk"] = names[:8]
assert texts == expected, f"the behaviour has changed: {texts}"
of_object = [seen[client]["an error object in the stream"] for client in ["python", "javascript"]]
assert of_object[0].startswith("TypeError") and "[object Object]" in of_object[1], "the behaviour has changed"
print("seen: each client tells another story of five answers; the AI SDK takes an error in the stream for an end")
PYTHON
