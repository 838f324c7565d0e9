#!/bin/sh
# Surprise: in an agent's loop of the AI SDK a stream that breaks within a call's arguments is followed at once by
#   another request, even with `maxRetries: 0`, up to the limit of steps; one that breaks elsewhere ends the loop.
# Versions: ai 7.0.173, @ai-sdk/openai-compatible 3.0.92
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" ai@7.0.173 @ai-sdk/openai-compatible@3.0.92
cat >"$work/broken.mjs" <<'JAVASCRIPT'
import assert from "node:assert";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { jsonSchema, stepCountIs, streamText, tool } from "ai";

globalThis.AI_SDK_LOG_WARNINGS = false;
const STEPS_MAX = 4;
const part = (delta) => {
  const choices = [{ index: 0, delta: { role: "assistant", ...delta }, finish_reason: null }];
  return `data: ${JSON.stringify({ id: "1", object: "chat.completion.chunk", created: 1, model: "m", choices })}\n\n`;
};
const call = (text) => {
  const f = { name: "f", arguments: text };
  return part({ tool_calls: [{ index: 0, id: "1", type: "function", function: f }] });
};
const failure = { message: "the worker left", type: "server_error", code: "gone" };
const error = `data: ${JSON.stringify({ error: failure })}\n\n`;
const STREAMS = {
  "text, then an error": part({ content: "a" }) + error,
  "whole arguments, then an error": call('{"a":1}') + error,
  "half the arguments, then an error": call('{"a":') + error,
  "half the arguments, then the end": call('{"a":'),
};

let stream;
const requests = [];
const server = createServer(async (request, response) => {
  let body = "";
  for await (const piece of request) body += piece;
  requests.push(JSON.parse(body).messages);
  response.writeHead(200, { "content-type": "text/event-stream" }).end(stream);
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const baseURL = `http://127.0.0.1:${server.address().port}/v1`;
const provider = createOpenAICompatible({ name: "stub", baseURL, apiKey: "none" });
for (const name of ["ai", "@ai-sdk/openai-compatible"]) {
  console.log(name, JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version);
}
const counts = {};
let n_runs = 0;
for (const [name, content] of Object.entries(STREAMS)) {
  stream = content;
  requests.length = 0;
  const f = tool({ inputSchema: jsonSchema({ type: "object" }), execute: async () => (n_runs += 1) });
  const settings = { maxRetries: 0, stopWhen: stepCountIs(STEPS_MAX), tools: { f }, onError() {} };
  const answer = streamText({ model: provider("m"), prompt: "hello", ...settings });
  await answer.consumeStream();
  counts[name] = requests.length;
  console.log(`${name}: ${requests.length} requests; the last has`, JSON.stringify(requests.at(-1)).slice(0, 420));
}
server.close();
assert.deepEqual(Object.values(counts), [1, 1, STEPS_MAX, STEPS_MAX], "the behaviour has changed");
assert.equal(n_runs, 0, "the behaviour has changed");
console.log("seen: half a call becomes a failed call of the history and a new request, and the tool never runs");
JAVASCRIPT
node "$work/broken.mjs"
