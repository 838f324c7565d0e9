// The official OpenAI client for Node against a fleet: node --test test_openai.mjs, the router's URL in ROUTER_URL.
//
// tests/tests/clients.rs starts the fleet and installs the client.

import assert from "node:assert/strict";
import test from "node:test";

import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.ROUTER_URL}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const messages = [
  { role: "system", content: "You answer in random words." },
  { role: "user", content: "What is a prefix?" },
];
const options = { model: "tiny", messages, temperature: 0, max_tokens: 16 };
const chat = (more = {}, request = {}) => client.chat.completions.create({ ...options, ...more }, request);
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Berlin", "Oslo"] } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

test("an answer has text, usage and a reason", async () => {
  const answer = await chat();
  assert.ok(answer.choices[0].message.content);
  assert.equal(answer.choices[0].finish_reason, "length");
  assert.equal(answer.usage.completion_tokens, 16);
});

test("a stream spells the same answer", async () => {
  let text = "";
  let usage;
  for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, (await chat()).choices[0].message.content);
  assert.equal(usage.completion_tokens, 16);
});

test("a required call is made, whole and through the stream helper", async () => {
  const call = { tools: [weather], tool_choice: "required", parallel_tool_calls: false, max_tokens: 200 };
  const whole = (await chat(call)).choices[0];
  assert.equal(whole.finish_reason, "tool_calls");
  const stream = client.chat.completions.stream({ ...options, ...call });
  const streamed = (await stream.finalChatCompletion()).choices[0].message.tool_calls[0].function;
  assert.equal(streamed.name, "get_weather");
  assert.equal(streamed.arguments, whole.message.tool_calls[0].function.arguments);
  assert.ok(["Berlin", "Oslo"].includes(JSON.parse(streamed.arguments).city));
});

test("an answer follows a schema", async () => {
  const schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false };
  const response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
  const answer = await chat({ response_format, max_tokens: 64 });
  assert.equal(typeof JSON.parse(answer.choices[0].message.content).ok, "boolean");
});

test("responses are streamed event by event", async () => {
  const stream = await client.responses.create({ model: "tiny", input: "Hello", max_output_tokens: 8, stream: true });
  const kinds = [];
  let text = "";
  for await (const event of stream) {
    kinds.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(kinds[0], "response.created");
  assert.ok(["response.completed", "response.incomplete"].includes(kinds.at(-1)));
  assert.ok(text);
});

test("errors have their types and name their fields", async () => {
  await assert.rejects(chat({ max_tokens: "many" }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "max_tokens");
    return true;
  });
  await assert.rejects(chat({ model: "gpt-unknown" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
});

// An answer that goes on for thousands of tokens, whatever the machine's speed.
const endless = { max_tokens: 4000, ignore_eos: true };

test("a client that leaves a stream frees its slot for the next", async () => {
  for (let n = 0; n < 12; n += 1) {
    for await (const chunk of await chat({ ...endless, stream: true })) {
      if (chunk.choices[0]?.delta.content) break;
    }
  }
  assert.equal((await chat({ max_tokens: 2 })).usage.completion_tokens, 2);
});

test("a client that aborts gets its own error, and the fleet still works", async () => {
  const controller = new AbortController();
  const asked = chat(endless, { signal: controller.signal });
  controller.abort();
  await assert.rejects(asked, OpenAI.APIUserAbortError);
  assert.equal((await chat({ max_tokens: 2 })).usage.completion_tokens, 2);
});

test("a client's own timeout is its error, and the fleet still works", async () => {
  await assert.rejects(chat(endless, { timeout: 1 }), OpenAI.APIConnectionTimeoutError);
  assert.equal((await chat({ max_tokens: 2 })).usage.completion_tokens, 2);
});
