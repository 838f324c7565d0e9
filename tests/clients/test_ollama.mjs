// The official Ollama client for Node against a fleet: node --test test_ollama.mjs, the router's URL in ROUTER_URL.
//
// tests/tests/clients.rs starts the fleet and installs the client.

import assert from "node:assert/strict";
import test from "node:test";

import { Ollama } from "ollama";

const client = new Ollama({ host: process.env.ROUTER_URL });
const messages = [
  { role: "system", content: "You answer in random words." },
  { role: "user", content: "What is a prefix?" },
];
const options = { temperature: 0, num_predict: 16 };
const chat = (more = {}) => client.chat({ model: "tiny", messages, options, ...more });

test("an answer and its stream are the same", async () => {
  const answer = await chat();
  assert.ok(answer.message.content);
  assert.deepEqual([answer.done_reason, answer.eval_count], ["length", 16]);
  let text = "";
  let end;
  for await (const piece of await chat({ stream: true })) {
    text += piece.message.content;
    end = piece;
  }
  assert.equal(text, answer.message.content);
  assert.ok(end.done && end.prompt_eval_count === answer.prompt_eval_count);
});

test("a prompt is answered, whole and as a stream", async () => {
  const request = { model: "tiny", prompt: "One two", raw: true, options };
  const { response } = await client.generate(request);
  let text = "";
  for await (const piece of await client.generate({ ...request, stream: true })) text += piece.response;
  assert.equal(text, response);
});

test("an answer follows a schema", async () => {
  const schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false };
  const answer = await chat({ format: schema, options: { ...options, num_predict: 64 } });
  assert.equal(typeof JSON.parse(answer.message.content).ok, "boolean");
});

test("models are listed and shown", async () => {
  assert.ok((await client.list()).models.some((model) => model.name === "tiny"));
  assert.equal((await client.ps()).models[0].name, "tiny");
  assert.ok((await client.show({ model: "tiny" })).capabilities.includes("completion"));
  assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
});

test("errors are texts", async () => {
  await assert.rejects(chat({ model: "unknown" }), /unknown/);
  await assert.rejects(chat({ options: { temperature: 1000 } }), /options\.temperature/);
  await assert.rejects(client.pull({ model: "tiny" }), /\/api\/pull/);
  await assert.rejects(chat({ model: "unknown", stream: true }), /unknown/);
});

test("an aborted stream frees its slot", async () => {
  for (let n = 0; n < 8; n++) {
    const stream = await chat({ stream: true, options: { num_predict: 2000 } });
    for await (const piece of stream) {
      if (piece.message.content) break;
    }
    stream.abort();
  }
  assert.ok((await chat({ options: { num_predict: 2 } })).message.content);
});
