// The AI SDK against a fleet: node --test test_ai_sdk.mjs, the router's URL in ROUTER_URL.
//
// tests/tests/clients.rs starts the fleet and installs the SDK. The tiny model calls a tool only where it must, so the first step demands a
// call and the second brings its result.

import assert from "node:assert/strict";
import test from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { defaultSettingsMiddleware, generateText, isStepCount, Output, streamText, tool, wrapLanguageModel } from "ai";
import { z } from "zod";

const baseURL = `${process.env.ROUTER_URL}/v1`;
const sent = [];
const fetch = (url, request) => {
  sent.push(request.body);
  return globalThis.fetch(url, request);
};
const openai = createOpenAI({ baseURL, apiKey: "none", fetch });
const compatible = createOpenAICompatible({
  name: "fleet",
  baseURL,
  apiKey: "none",
  fetch,
  includeUsage: true,
  supportsStructuredOutputs: true,
});

// As docs/agents.md has it: nothing is stored, so items are sent whole.
const settings = { providerOptions: { openai: { store: false } } };
const responses = wrapLanguageModel({ model: openai("tiny"), middleware: defaultSettingsMiddleware({ settings }) });
const models = { compatible: compatible("tiny"), chat: openai.chat("tiny"), responses };

const loop = (model, called) => ({
  model,
  maxRetries: 0,
  temperature: 0,
  maxOutputTokens: 200,
  prompt: "Is it raining?",
  providerOptions: { openai: { parallelToolCalls: false }, fleet: { parallel_tool_calls: false } },
  tools: {
    getWeather: tool({
      description: "Tells the weather.",
      inputSchema: z.object({ city: z.enum(["Berlin", "Oslo"]) }),
      execute: async ({ city }) => {
        called.push(city);
        return `It rains in ${city}.`;
      },
    }),
  },
  stopWhen: isStepCount(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
});

for (const [name, model] of Object.entries(models)) {
  test(`${name}: a tool is called and its result goes back`, async () => {
    const called = [];
    const { steps, text } = await generateText(loop(model, called));
    assert.equal(steps.length, 2);
    assert.equal(called.length, 1);
    assert.ok(text);
    assert.ok(steps[1].usage.inputTokenDetails.cacheReadTokens > 0);
  });

  test(`${name}: a streamed loop comes to the same`, async () => {
    const called = [];
    const stream = streamText(loop(model, called));
    let text = "";
    for await (const piece of stream.textStream) text += piece;
    assert.equal(called.length, 1);
    assert.equal(text, (await generateText(loop(model, []))).text);
  });

  test(`${name}: an answer by a schema comes after a call`, async () => {
    const called = [];
    sent.length = 0;
    const schema = z.object({ city: z.enum(["Berlin", "Oslo"]), rains: z.boolean() });
    const asked = { ...loop(model, called), output: Output.object({ schema }) };
    const { output, steps } = await generateText(asked);
    assert.deepEqual([called.length, steps.length], [1, 2]);
    assert.equal(typeof output.rains, "boolean");
    assert.ok(sent.every((body) => body.includes('"json_schema"') && body.includes('"getWeather"')), sent);
    assert.deepEqual(await streamText(asked).output, output);
  });

  test(`${name}: a conversation goes on`, async () => {
    const ask = (messages) => generateText({ model, messages, maxRetries: 0, temperature: 0, maxOutputTokens: 16 });
    const messages = [{ role: "user", content: "Hello" }];
    const first = await ask(messages);
    const second = await ask([...messages, ...first.response.messages, { role: "user", content: "And now?" }]);
    assert.ok(second.text);
    assert.ok(second.usage.inputTokenDetails.cacheReadTokens > 0);
  });
}

test("the error for a reference to a stored item names the setting", async () => {
  const ask = (messages) => generateText({ model: openai("tiny"), messages, maxRetries: 0, maxOutputTokens: 8 });
  const messages = [{ role: "user", content: "Hello" }];
  const first = await ask(messages);
  await assert.rejects(ask([...messages, ...first.response.messages, { role: "user", content: "Go on" }]), (error) => {
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /store: false/);
    return true;
  });
});
