"""The official Ollama client for Python against a fleet: test_ollama.py ROUTER_URL.

tests/tests/clients.rs starts the fleet: two workers with the tiny model behind a router.
"""

import asyncio
import base64
import sys
import typing
import unittest

import httpx
import ollama
import pydantic

URL = sys.argv.pop()
CHAT = [
    {"role": "system", "content": "You answer in random words."},
    {"role": "user", "content": "What is a prefix?"},
]
OPTIONS = {"temperature": 0, "num_predict": 16, "num_ctx": 2048}
client = ollama.Client(host=URL, timeout=60)


def chat(**more):
    options = OPTIONS | more.pop("options", {})
    return client.chat(**{"model": "tiny", "messages": CHAT} | more, options=options)


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Berlin", "Oslo"]}},
            "required": ["city"],
        },
    },
}


class Animal(pydantic.BaseModel):
    """An animal."""

    # Otherwise the tiny model adds properties of its own.
    model_config = pydantic.ConfigDict(extra="forbid")

    kind: typing.Literal["cat", "dog"]
    legs: typing.Annotated[int, pydantic.Field(ge=0, le=8)]


class Ollama(unittest.TestCase):
    def test_an_answer_and_its_stream_are_the_same(self):
        answer = chat()
        self.assertTrue(answer.message.content)
        self.assertEqual((answer.model, answer.done_reason, answer.eval_count), ("tiny", "length", 16))
        self.assertGreater(answer.total_duration, answer.prompt_eval_duration)
        self.assertGreater(answer.eval_duration, 0)
        pieces = list(chat(stream=True))
        self.assertEqual("".join(piece.message.content for piece in pieces), answer.message.content)
        self.assertGreater(len(pieces), 5)
        end = pieces[-1]
        self.assertTrue(end.done)
        self.assertEqual((end.eval_count, end.prompt_eval_count), (16, answer.prompt_eval_count))

    def test_the_latest_model_is_the_model(self):
        self.assertEqual(chat(model="tiny:latest").message.content, chat().message.content)

    def test_a_prompt_is_a_chat_unless_it_is_raw(self):
        said = client.generate("tiny", CHAT[1]["content"], system=CHAT[0]["content"], options=OPTIONS)
        self.assertEqual(said.response, chat().message.content)
        raw = client.generate("tiny", "One two", raw=True, options=OPTIONS)
        self.assertEqual(raw.eval_count, 16)
        pieces = client.generate("tiny", "One two", raw=True, stream=True, options=OPTIONS)
        self.assertEqual("".join(piece.response for piece in pieces), raw.response)

    def test_a_tool_is_called_and_its_result_is_sent_back(self):
        # The API cannot require a call: a model of equal likelihoods calls, or answers by the schema.
        for seed in range(60):
            random = {"temperature": 50, "top_k": 0, "top_p": 1, "min_p": 0, "num_predict": 200, "seed": seed}
            request = {"tools": [WEATHER], "format": Animal.model_json_schema(), "options": random}
            asked = chat(**request)
            if asked.message.tool_calls:
                break
        [call, *_] = asked.message.tool_calls
        self.assertEqual(call.function.name, "get_weather")
        self.assertIn(call.function.arguments["city"], ("Berlin", "Oslo"))
        result = {"role": "tool", "tool_name": "get_weather", "content": "It rains."}
        self.assertEqual(chat(messages=[*CHAT, asked.message, result], tools=[WEATHER]).eval_count, 16)
        calls = [call for piece in chat(**request, stream=True) for call in piece.message.tool_calls or []]
        self.assertEqual([call.function for call in calls], [call.function for call in asked.message.tool_calls])

    def test_an_answer_follows_a_schema_and_is_json(self):
        answer = chat(format=Animal.model_json_schema(), options={"num_predict": 200})
        self.assertIsInstance(Animal.model_validate_json(answer.message.content), Animal)
        self.assertTrue(chat(format="json").message.content.lstrip().startswith("{"))

    def test_log_probabilities_are_given(self):
        answer = chat(logprobs=True, top_logprobs=2)
        self.assertEqual(len(answer.logprobs), 16)
        self.assertEqual(len(answer.logprobs[0].top_logprobs), 2)
        self.assertLessEqual(answer.logprobs[0].logprob, 0)

    def test_models_are_listed_shown_and_loaded(self):
        self.assertIn("tiny", [model.model for model in client.list().models])
        [running] = client.ps().models
        self.assertEqual(running.model, "tiny")
        self.assertGreater(running.context_length, 1000)
        shown = client.show("tiny:latest")
        self.assertIn("completion", shown.capabilities)
        architecture = shown.modelinfo["general.architecture"]
        self.assertGreater(shown.modelinfo[f"{architecture}.context_length"], 1000)
        self.assertEqual(client.generate("tiny", keep_alive="5m").done_reason, "load")

    def test_errors_are_texts(self):
        for call, status, says in [
            (lambda: chat(model="unknown"), 404, "unknown"),
            (lambda: chat(options={"temperature": 1000}), 400, "options.temperature"),
            (lambda: chat(format="yaml"), 400, "format"),
            (lambda: client.generate("tiny", keep_alive=0), 400, "stays loaded"),
            (lambda: client.pull("tiny"), 404, "/api/pull"),
            (lambda: client.delete("tiny"), 404, "/api/delete"),
            (lambda: client.embed("tiny", "a"), 501, "tiny"),
            (lambda: chat(messages=[{"role": "user", "content": "word " * 6000}]), 400, "context"),
        ]:
            with self.assertRaises((ollama.ResponseError, pydantic.ValidationError)) as caught:
                call()
            if isinstance(caught.exception, ollama.ResponseError):
                self.assertEqual(caught.exception.status_code, status, caught.exception.error)
                self.assertIn(says, caught.exception.error)
        picture = base64.b64encode(b"no image").decode()
        with self.assertRaises(ollama.ResponseError) as caught:
            chat(messages=[{"role": "user", "content": "What?", "images": [picture]}])
        self.assertEqual(caught.exception.status_code, 400)

    def test_a_stream_that_is_refused_is_an_error(self):
        with self.assertRaises(ollama.ResponseError):
            list(chat(model="unknown", stream=True))

    def test_many_at_once_and_async(self):
        async def ask():
            return (await ollama.AsyncClient(host=URL).chat("tiny", CHAT, options=OPTIONS)).message.content

        async def four():
            return await asyncio.gather(*(ask() for _ in range(4)))

        self.assertEqual(len(set(asyncio.run(four()))), 1)

    def test_an_abandoned_stream_frees_its_slot(self):
        for _ in range(12):
            for piece in chat(stream=True, options={"num_predict": 2000}):
                if piece.message.content:
                    break
        self.assertTrue(chat(options={"num_predict": 2}).message.content)

    def test_a_second_turn_reuses_the_first(self):
        reused = []
        # On a busy machine a second turn may come before the router knows what the first one left.
        for topic in ("bread", "stars", "rivers", "trains", "glass"):
            messages = [{"role": "user", "content": f"Tell me about {topic}. " * 30}]
            first = chat(messages=messages)
            messages += [first.message.model_dump(exclude_none=True), {"role": "user", "content": "And milk?"}]
            body = {"model": "tiny", "messages": messages, "options": OPTIONS, "stream": False}
            response = httpx.post(f"{URL}/api/chat", json=body, timeout=60)
            self.assertEqual(response.json()["prompt_eval_count"], int(response.headers["x-warmpath-prompt-tokens"]))
            reused.append(int(response.headers["x-warmpath-cached-tokens"]))
        self.assertGreater(max(reused), 100, reused)


if __name__ == "__main__":
    unittest.main()
