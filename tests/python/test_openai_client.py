"""The official OpenAI client against a fleet: test_openai_client.py ROUTER_URL.

tests/tests/system/python.rs starts the fleet: two workers with the tiny model under the names `tiny` and `second-name`, three slots and
one place in the queue each, behind a router that takes eight requests at a time.
"""

import concurrent.futures
import json
import sys
import typing
import unittest

import openai
import pydantic

URL = sys.argv.pop()
MODEL = "tiny"
CHAT = [
    {"role": "system", "content": "You answer in random words."},
    {"role": "user", "content": "What is a prefix?"},
]


def client(**options):
    """Returns a client that does not retry, so that every error is seen."""
    return openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=60, **options)


def chat(**options):
    options = {"model": MODEL, "messages": CHAT, "temperature": 0, "max_tokens": 16} | options
    return client().chat.completions.create(**options)


class Animal(pydantic.BaseModel):
    name: typing.Annotated[str, pydantic.Field(max_length=8)]
    legs: typing.Annotated[int, pydantic.Field(ge=0, le=8)]
    kind: typing.Literal["cat", "dog"]
    parent: typing.Optional[typing.Literal["unknown"]]


class Answers(unittest.TestCase):
    def test_an_answer_has_text_usage_and_a_reason(self):
        answer = chat()
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertTrue(answer.choices[0].message.content)
        self.assertEqual(answer.usage.completion_tokens, 16)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 16)

    def test_a_stream_spells_the_same_answer(self):
        chunks = list(chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, chat().choices[0].message.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, 16)
        self.assertGreater(len(chunks), 10)
        reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        self.assertEqual([reason for reason in reasons if reason], ["length"])

    def test_log_probabilities_come_with_the_tokens_of_the_text(self):
        answer = chat(logprobs=True, top_logprobs=2, max_tokens=5).choices[0]
        tokens = answer.logprobs.content
        self.assertEqual("".join(token.token for token in tokens), answer.message.content)
        self.assertTrue(all(len(token.top_logprobs) == 2 for token in tokens))
        self.assertTrue(all(token.top_logprobs[0].logprob == token.logprob <= 0 for token in tokens))
        completion = client().completions.create(model=MODEL, prompt="One two", max_tokens=3, temperature=0, logprobs=1)
        logprobs = completion.choices[0].logprobs
        self.assertEqual("".join(logprobs.tokens), completion.choices[0].text)
        self.assertEqual((len(logprobs.token_logprobs), logprobs.text_offset[0]), (3, 0))

    def test_a_completion_echoes_its_prompt(self):
        options = {"model": MODEL, "prompt": "One two", "max_tokens": 3, "temperature": 0}
        plain = client().completions.create(**options).choices[0].text
        self.assertEqual(client().completions.create(echo=True, **options).choices[0].text, "One two" + plain)

    def test_max_tokens_limits_the_answer(self):
        for n in (1, 5):
            self.assertEqual(chat(max_tokens=n).usage.completion_tokens, n)
        self.assertEqual(chat(max_tokens=openai.omit, max_completion_tokens=3).usage.completion_tokens, 3)

    def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(self):
        words = chat().choices[0].message.content.split()
        stop = words[4]
        cut = chat(stop=[stop])
        self.assertEqual(cut.choices[0].finish_reason, "stop")
        self.assertNotIn(stop, cut.choices[0].message.content)
        self.assertTrue(chat().choices[0].message.content.startswith(cut.choices[0].message.content))
        streamed = "".join(c.choices[0].delta.content or "" for c in chat(stop=stop, stream=True) if c.choices)
        self.assertEqual(streamed, cut.choices[0].message.content)

    def test_a_seed_fixes_the_answer(self):
        # The tiny model is very sure of its greedy choice: only a high temperature makes the choice random.
        dice = {"temperature": 50.0, "extra_body": {"top_k": 0, "min_p": 0}, "top_p": 1}
        texts = {seed: chat(seed=seed, **dice).choices[0].message.content for seed in (1, 2, 3)}
        self.assertGreater(len(set(texts.values())), 1, "seeds differ")
        for seed, text in texts.items():
            self.assertEqual(chat(seed=seed, **dice).choices[0].message.content, text)

    def test_an_answer_follows_a_schema_whole_and_streamed(self):
        schema = {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["ok", "n"],
            "additionalProperties": False,
        }
        format = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        answer = chat(response_format=format, max_tokens=64).choices[0]
        value = json.loads(answer.message.content)
        self.assertEqual((answer.finish_reason, list(value)), ("stop", ["ok", "n"]))
        self.assertIn(value["n"], range(1, 10))
        chunks = chat(response_format=format, max_tokens=64, stream=True)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), answer.message.content)
        braces = chat(response_format={"type": "json_object"}, max_tokens=64, extra_body={"logit_bias": [["}", 1000]]})
        self.assertEqual(json.loads(braces.choices[0].message.content), {})

    def test_an_answer_is_parsed_into_a_class(self):
        parsed = client().beta.chat.completions.parse(
            model=MODEL, messages=CHAT, response_format=Animal, max_tokens=200, temperature=0
        )
        animal = parsed.choices[0].message.parsed
        self.assertIsInstance(animal, Animal)
        self.assertIn(animal.kind, ("cat", "dog"))

    def test_several_choices(self):
        answer = chat(n=2, temperature=50.0, extra_body={"top_k": 0, "min_p": 0})
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        self.assertNotEqual(answer.choices[0].message.content, answer.choices[1].message.content)

    def test_every_name_of_the_model_works_and_is_listed(self):
        texts = {chat(model=name).choices[0].message.content for name in (MODEL, "second-name")}
        self.assertEqual(len(texts), 1)
        names = [model.id for model in client().models.list()]
        self.assertIn(MODEL, names)
        self.assertIn("second-name", names)
        self.assertEqual(client().models.retrieve(MODEL).id, MODEL)

    def test_completions_take_a_text_tokens_and_several_prompts(self):
        create = client().completions.create
        options = {"model": MODEL, "temperature": 0, "max_tokens": 4}
        one = create(prompt="Once upon a time", **options).choices[0].text
        self.assertTrue(one)
        several = create(prompt=["Once upon a time", "Another day"], **options)
        self.assertEqual([choice.index for choice in several.choices], [0, 1])
        self.assertEqual(several.choices[0].text, one)
        self.assertTrue(create(prompt=[1, 2, 3], **options).choices[0].text)
        stream = create(prompt="Once upon a time", stream=True, **options)
        self.assertEqual("".join(chunk.choices[0].text for chunk in stream if chunk.choices), one)

    def test_a_repeated_prompt_is_reported_as_cached(self):
        messages = [{"role": "user", "content": "repeat after me " * 40}]
        first = chat(messages=messages)
        again = chat(messages=messages)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 100)
        self.assertEqual(again.choices[0].message.content, first.choices[0].message.content)

    def test_headers_report_the_decision(self):
        raw = client().chat.completions.with_raw_response.create(model=MODEL, messages=CHAT, max_tokens=1)
        for name in ("x-request-id", "x-warmpath-worker", "x-warmpath-slot", "x-warmpath-route"):
            self.assertTrue(raw.headers.get(name), name)


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Berlin", "Oslo"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CALL = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}


class Tools(unittest.TestCase):
    def check_arguments(self, text):
        arguments = json.loads(text)
        self.assertEqual(sorted(arguments), ["city", "days"])
        self.assertIn(arguments["city"], ["Berlin", "Oslo"])
        self.assertIn(arguments["days"], range(1, 10))

    def test_a_required_call_is_made_and_fits_its_schema(self):
        choice = chat(**CALL).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertIsNone(choice.message.content)
        [call] = choice.message.tool_calls
        self.assertEqual((call.type, call.function.name), ("function", "get_weather"))
        self.check_arguments(call.function.arguments)

    def test_the_parts_of_a_streamed_call_form_the_same_call(self):
        whole = chat(**CALL).choices[0].message.tool_calls[0].function
        chunks = [chunk.choices[0] for chunk in chat(stream=True, **CALL) if chunk.choices]
        parts = [part for chunk in chunks for part in chunk.delta.tool_calls or []]
        self.assertGreater(len(parts), 3)
        self.assertTrue(parts[0].id)
        self.assertEqual([part.function.name for part in parts if part.function.name], [whole.name])
        self.assertEqual("".join(part.function.arguments for part in parts), whole.arguments)
        self.assertEqual([chunk.finish_reason for chunk in chunks if chunk.finish_reason], ["tool_calls"])

    def test_the_client_s_stream_helper_assembles_the_call(self):
        with client().chat.completions.stream(model=MODEL, messages=CHAT, temperature=0, **CALL) as stream:
            for _ in stream:
                pass
            [call] = stream.get_final_completion().choices[0].message.tool_calls
        self.check_arguments(call.function.arguments)

    def test_a_result_is_sent_back_and_the_router_predicts_the_reuse(self):
        call = chat(**CALL).choices[0].message.tool_calls[0]
        turn = [
            {"role": "assistant", "tool_calls": [call.to_dict()]},
            {"role": "tool", "tool_call_id": call.id, "content": "It rains."},
        ]
        for _ in range(2):
            raw = client().chat.completions.with_raw_response.create(
                model=MODEL, messages=CHAT + turn, tools=[WEATHER], max_tokens=8, temperature=0
            )
        predicted = int(raw.headers["x-warmpath-predicted-cached-tokens"])
        self.assertGreater(predicted, 100)
        self.assertGreaterEqual(int(raw.headers["x-warmpath-cached-tokens"]), predicted)

    def test_errors_name_an_unknown_choice_and_a_wrong_schema(self):
        for wrong, param in [
            ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
            ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ]:
            with self.assertRaises(openai.BadRequestError) as caught:
                chat(**CALL | wrong)
            self.assertEqual(caught.exception.param, param)

    def test_a_message_of_the_assistant_is_continued(self):
        whole = chat(messages=CHAT).choices[0].message.content
        # The whole words of a greedy answer lead to the rest of it.
        begun = whole[: whole.index(" ", len(whole) // 2)]
        rest = chat(messages=CHAT + [{"role": "assistant", "content": begun}]).choices[0].message.content
        self.assertTrue((begun + rest).startswith(whole), (whole, begun, rest))


class Errors(unittest.TestCase):
    def test_an_unsupported_schema_is_refused_with_its_path(self):
        format = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"items": {"uniqueItems": True}}}}
        with self.assertRaises(openai.BadRequestError) as refused:
            chat(response_format=format)
        self.assertEqual(refused.exception.param, "response_format.json_schema.schema.items.uniqueItems")

    def test_an_unknown_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            chat(model="gpt-unknown")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_a_wrong_type_is_a_bad_request_that_names_the_field(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(max_tokens="many")
        self.assertEqual(caught.exception.param, "max_tokens")
        self.assertEqual(caught.exception.type, "invalid_request_error")

    def test_a_prompt_over_the_context_is_a_bad_request_with_a_code(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(messages=[{"role": "user", "content": "word " * 6000}])
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_no_messages_is_a_bad_request(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(messages=[])
        self.assertEqual(caught.exception.param, "messages")

    def test_too_many_requests_are_refused_with_a_code(self):
        def ask(_):
            try:
                return chat(max_tokens=300, extra_body={"ignore_eos": True}).choices[0].finish_reason
            except openai.RateLimitError as error:
                self.assertEqual(error.code, "queue_full")
                self.assertTrue(error.response.headers.get("retry-after"))
                return "refused"

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            ends = list(pool.map(ask, range(24)))
        self.assertIn("refused", ends)
        self.assertIn("length", ends)


class Leaving(unittest.TestCase):
    def test_a_client_that_leaves_frees_its_slot(self):
        # More endless streams than there are slots, one after the other: each must have freed its slot for the next.
        for _ in range(12):
            with chat(stream=True, max_tokens=4000, extra_body={"ignore_eos": True}) as stream:
                for n, _ in enumerate(stream):
                    if n == 3:
                        break
        self.assertEqual(chat(max_tokens=2).usage.completion_tokens, 2)


if __name__ == "__main__":
    unittest.main()
