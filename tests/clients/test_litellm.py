"""LiteLLM against a fleet, as an OpenAI and as an Anthropic provider: test_litellm.py ROUTER_URL.

tests/tests/clients.rs starts the fleet: two workers with the tiny model behind a router.
"""

import asyncio
import json
import os
import sys
import unittest

# Otherwise LiteLLM fetches a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

URL = sys.argv.pop()
CHAT = [
    {"role": "system", "content": "You answer in random words."},
    {"role": "user", "content": "What is a prefix?"},
]
OPENAI = {"model": "openai/tiny", "api_base": URL + "/v1"}
ANTHROPIC = {"model": "anthropic/tiny", "api_base": URL}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Berlin", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def options(provider, more):
    common = {"messages": CHAT, "api_key": "none", "temperature": 0, "max_tokens": 16, "timeout": 60, "num_retries": 0}
    return common | provider | more


def chat(provider=OPENAI, **more):
    return litellm.completion(**options(provider, more))


class LiteLlm(unittest.TestCase):
    def test_answers_and_streams_are_the_same_in_both_dialects(self):
        texts = set()
        for provider in (OPENAI, ANTHROPIC):
            answer = chat(provider)
            self.assertEqual(answer.usage.completion_tokens, 16)
            text = answer.choices[0].message.content
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat(provider, stream=True))
            self.assertEqual(streamed, text)
            texts.add(text)
        self.assertEqual(len(texts), 1)

    def test_a_required_call_is_made_in_both_dialects(self):
        for provider in (OPENAI, ANTHROPIC):
            choice = chat(provider, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=200).choices[0]
            self.assertEqual(choice.finish_reason, "tool_calls")
            [call] = choice.message.tool_calls
            self.assertIn(json.loads(call.function.arguments)["city"], ("Berlin", "Oslo"))

    def test_an_answer_follows_a_schema(self):
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        schema["additionalProperties"] = False
        format = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        answer = chat(response_format=format, max_tokens=64)
        self.assertIn("ok", json.loads(answer.choices[0].message.content))

    def test_completions_and_async(self):
        answer = litellm.text_completion(
            model="text-completion-openai/tiny", api_base=URL + "/v1", api_key="none", prompt="One two", max_tokens=4
        )
        self.assertTrue(answer.choices[0].text)
        answer = asyncio.run(litellm.acompletion(**options(OPENAI, {"max_tokens": 2})))
        self.assertEqual(answer.usage.completion_tokens, 2)

    def test_errors_are_mapped(self):
        for provider in (OPENAI, ANTHROPIC):
            with self.assertRaises(litellm.BadRequestError):
                chat(provider, temperature=1000)
            unknown = provider | {"model": provider["model"].replace("tiny", "unknown")}
            with self.assertRaises(litellm.NotFoundError):
                chat(unknown)
        with self.assertRaises(litellm.ContextWindowExceededError):
            chat(messages=[{"role": "user", "content": "word " * 6000}])

    def test_a_timeout_is_the_client_s_error_and_the_fleet_still_works(self):
        with self.assertRaises(litellm.Timeout):
            chat(timeout=0.01, max_tokens=4000, extra_body={"ignore_eos": True})
        self.assertEqual(chat(max_tokens=2).usage.completion_tokens, 2)

    def test_an_abandoned_stream_frees_its_slot(self):
        for _ in range(12):
            stream = chat(stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
            while not next(stream).choices[0].delta.content:
                pass
            # LiteLLM's wrapper has no way to be closed; without this its connection stays open.
            stream.completion_stream.close()
        self.assertEqual(chat(max_tokens=2).usage.completion_tokens, 2)


if __name__ == "__main__":
    unittest.main()
