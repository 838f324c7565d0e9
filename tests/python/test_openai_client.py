"""The official OpenAI client against a fleet: test_openai_client.py ROUTER_URL.

tests/tests/python.rs starts the fleet: two workers with the tiny model under the names `tiny` and `second-name`, three slots and
one place in the queue each, behind a router that takes eight requests at a time.
"""

import concurrent.futures
import sys
import unittest

import openai

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

    def test_max_tokens_is_kept(self):
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
        # The tiny model is very sure of its greedy choice: it takes a high temperature to hear the dice.
        dice = {"temperature": 50.0, "extra_body": {"top_k": 0, "min_p": 0}, "top_p": 1}
        texts = {seed: chat(seed=seed, **dice).choices[0].message.content for seed in (1, 2, 3)}
        self.assertGreater(len(set(texts.values())), 1, "seeds differ")
        for seed, text in texts.items():
            self.assertEqual(chat(seed=seed, **dice).choices[0].message.content, text)

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

    def test_headers_say_what_was_decided(self):
        raw = client().chat.completions.with_raw_response.create(model=MODEL, messages=CHAT, max_tokens=1)
        for name in ("x-request-id", "x-warmpath-worker", "x-warmpath-slot", "x-warmpath-route"):
            self.assertTrue(raw.headers.get(name), name)


class Errors(unittest.TestCase):
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

    def test_too_many_requests_are_refused_and_named(self):
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
