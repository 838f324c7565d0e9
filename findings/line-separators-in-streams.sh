#!/bin/sh
# Surprise: Hugging Face's and Ollama's clients break off a stream at U+0085, U+2028 or U+2029 in its text, which JSON
#   and server-sent events allow unescaped; Hugging Face's also closes any stream whose client is not kept.
# Versions: huggingface_hub 2.4.0, ollama 0.6.3, openai 3.57.0
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check huggingface_hub==2.4.0 ollama==0.6.3 openai==3.57.0
"$work/venv/bin/python" - <<'PYTHON'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from huggingface_hub import InferenceClient
from ollama import Client
from openai import OpenAI

MESSAGES = [{"role": "user", "content": "hello"}]


class Engine(BaseHTTPRequestHandler):
    """An engine that streams two pieces of text, in OpenAI's API or in Ollama's."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        ends, text = [False, True], request["model"]
        if self.path == "/api/chat":
            message = {"role": "assistant", "content": text}
            chunks, before, after = [{"message": message, "done": end} for end in ends], "", "\n"
        else:
            choice = {"index": 0, "delta": {"role": "assistant", "content": text}}
            choices = [[choice | {"finish_reason": "stop" if end else None}] for end in ends]
            common = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            chunks, before, after = [common | {"choices": one} for one in choices], "data: ", "\n\n"
        lines = [json.dumps(chunk | {"model": "m"}, ensure_ascii=not request_is_raw) for chunk in chunks]
        body = "".join(f"{before}{line}{after}" for line in lines) + ("data: [DONE]\n\n" if before else "")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if before else "application/x-ndjson")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


engine = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
threading.Thread(target=engine.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{engine.server_port}"


def openai(text):
    """Returns the text of a stream."""
    chats = OpenAI(base_url=f"{URL}/v1", api_key="none").chat.completions
    stream = chats.create(model=text, messages=MESSAGES, stream=True)
    return "".join(chunk.choices[0].delta.content for chunk in stream)


def hugging_face(text):
    """Returns the text of a stream."""
    client = InferenceClient(base_url=f"{URL}/v1", api_key="none")
    stream = client.chat_completion(MESSAGES, model=text, stream=True)
    return "".join(chunk.choices[0].delta.content for chunk in stream)


def hugging_face_stream_alone(text):
    """Returns the text of a stream whose client nobody holds any more."""
    stream = InferenceClient(base_url=f"{URL}/v1", api_key="none").chat_completion(MESSAGES, model=text, stream=True)
    return "".join(chunk.choices[0].delta.content for chunk in stream)


def ollama(text):
    """Returns the text of a stream."""
    return "".join(chunk.message.content for chunk in Client(host=URL).chat(text, MESSAGES, stream=True))


print(*(f"{package} {version(package)}" for package in ["huggingface_hub", "ollama", "openai"]))
TEXTS = {"plain": "ab", "next line": "a\u0085b", "line separator": "a\u2028b", "paragraph separator": "a\u2029b"}
results = {}
for client in [openai, hugging_face, hugging_face_stream_alone, ollama]:
    for request_is_raw in [True, False]:
        seen = []
        for text in TEXTS.values():
            try:
                seen.append("text" if client(text) == 2 * text else "other text")
            except Exception as error:
                seen.append(type(error).__name__)
        results[client.__name__, request_is_raw] = seen
        how = "unescaped" if request_is_raw else "escaped"
        print(f"{client.__name__}, {how}:", *(f"{name}: {result}" for name, result in zip(TEXTS, seen)), sep=" | ")
broken = ["text", *["JSONDecodeError"] * 3]
expected = {"openai": ["text"] * 4, "hugging_face": broken, "ollama": broken}
expected["hugging_face_stream_alone"] = ["StreamClosed"] * 4
for (name, raw), seen in results.items():
    wanted = ["text"] * 4 if not raw and name != "hugging_face_stream_alone" else expected[name]
    assert seen == wanted, f"the behaviour has changed: {name} {seen}"
print("seen: two clients split a line inside its JSON unless the character is escaped; one closes a stream too early")
PYTHON
