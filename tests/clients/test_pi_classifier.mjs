// pi's classifier for llama-server against a fleet: it reads the probabilities of labels at one token.
//
// tests/tests/clients.rs starts the fleet with the tiny model. Its vocabulary has a token for each letter.
import assert from "node:assert/strict";
import { test } from "node:test";
import { classify } from "@earendil-works/pi-ai/api/llama-cpp-classify";

const model = { id: "tiny", api: "llama-cpp-classify", provider: "llama.cpp", baseUrl: `${process.env.ROUTER_URL}/v1` };

test("a choice and a score are read from one token each", async () => {
  const questions = {
    taste: { type: "choice", instructions: "How does it taste?", criteria: { sweet: "", sour: "", salty: "" } },
    size: { type: "score", instructions: "How large is it?", criteria: ["small", "middle", "large"] },
  };
  const result = await classify(model, { state: { fruit: "lemon" }, questions }, { apiKey: "none" });
  assert.equal(result.stopReason, "stop", result.errorMessage);
  const { taste, size } = result.answers;
  const sum = Object.values(taste.probabilities).reduce((total, probability) => total + probability, 0);
  assert.ok(Math.abs(sum - 1) < 1e-6 && taste.choice in questions.taste.criteria, JSON.stringify(taste));
  assert.ok(size.score >= 0 && size.score <= 2, JSON.stringify(size));
});
