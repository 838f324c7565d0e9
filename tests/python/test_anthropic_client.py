"""The official Anthropic client against a fleet: test_anthropic_client.py ROUTER_URL.

tests/tests/system/python.rs starts the fleet: two workers with the tiny model, three slots and one place in the queue each, behind a router
that takes eight requests at a time.
"""

import concurrent.futures
import sys
import unittest

import anthropic

URL = sys.argv.pop()
MODEL = "tiny"
MESSAGES = [{"role": "user", "content": "What is a prefix?"}]


def client(**options):
    """Returns a client that does not retry, so that every error is seen."""
    return anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=60, **options)


def options(**more):
    body = {"temperature": 0} | more.pop("extra_body", {})
    system = [{"type": "text", "text": "You answer in random words.", "cache_control": {"type": "ephemeral"}}]
    return {"model": MODEL, "messages": MESSAGES, "system": system, "max_tokens": 16, "extra_body": body} | more


def ask(**more):
    return client().messages.create(**options(**more))


class Answers(unittest.TestCase):
    def test_a_message_has_text_usage_and_a_reason(self):
        message = ask()
        self.assertEqual((message.type, message.role, message.model), ("message", "assistant", MODEL))
        self.assertEqual(message.stop_reason, "max_tokens")
        self.assertTrue(message.content[0].text)
        self.assertEqual(message.usage.output_tokens, 16)

    def test_a_stream_spells_the_same_message(self):
        with client().messages.stream(**options()) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, ask().content[0].text)
        self.assertEqual(final.content[0].text, text)
        self.assertEqual((final.stop_reason, final.usage.output_tokens), ("max_tokens", 16))

    def test_events_arrive_in_order(self):
        kinds = [event.type for event in client().messages.create(stream=True, **options())]
        self.assertEqual(kinds[:2], ["message_start", "content_block_start"])
        self.assertEqual(kinds[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertEqual(set(kinds[2:-3]), {"content_block_delta"})

    def test_models_are_listed_and_described(self):
        models = list(client().models.list(limit=1))
        self.assertIn(MODEL, [model.id for model in models])
        model = client().models.retrieve(MODEL)
        self.assertEqual((model.id, model.type, model.display_name), (MODEL, "model", MODEL))
        self.assertGreater(model.created_at.year, 2020)
        with self.assertRaises(anthropic.NotFoundError):
            client().models.retrieve("claude-unknown")

    def test_a_stop_sequence_ends_the_message_and_is_reported(self):
        stop = ask().content[0].text.split()[3]
        message = ask(stop_sequences=["never said", stop])
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", stop))
        self.assertNotIn(stop, message.content[0].text if message.content else "")

    def test_counted_tokens_equal_the_usage(self):
        counted = client().messages.count_tokens(model=MODEL, messages=MESSAGES, system="You answer in random words.")
        usage = ask().usage
        self.assertEqual(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_a_continued_conversation_reads_the_cache(self):
        messages = [{"role": "user", "content": "repeat after me " * 40}]
        first = ask(messages=messages)
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "again"}]
        again = ask(messages=messages)
        self.assertGreater(again.usage.cache_read_input_tokens, 100)
        self.assertEqual(again.usage.cache_creation_input_tokens, 0)

    def test_a_tool_is_called_whole_and_streamed(self):
        schema = {"type": "object", "properties": {"city": {"enum": ["Berlin", "Oslo"]}}, "required": ["city"]}
        tools = [{"name": "look", "description": "Looks.", "input_schema": schema | {"additionalProperties": False}}]
        choice = {"type": "tool", "name": "look"}
        message = ask(tools=tools, tool_choice=choice, max_tokens=100)
        self.assertEqual(message.stop_reason, "tool_use")
        self.assertEqual((message.content[0].type, message.content[0].name), ("tool_use", "look"))
        self.assertIn(message.content[0].input["city"], ("Berlin", "Oslo"))
        with client().messages.stream(**options(tools=tools, tool_choice=choice, max_tokens=100)) as stream:
            streamed = stream.get_final_message()
        self.assertEqual(streamed.content[0].input, message.content[0].input)

    def test_results_of_tools_are_read(self):
        tool = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
        call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"place": "here"}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "rain"}
        messages = MESSAGES + [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        self.assertEqual(ask(messages=messages, tools=[tool]).usage.output_tokens, 16)

    def test_headers_report_the_decision(self):
        self.assertTrue(ask()._request_id)
        raw = client().messages.with_raw_response.create(**options())
        for name in ("x-request-id", "x-warmpath-worker", "x-warmpath-slot", "x-warmpath-route"):
            self.assertTrue(raw.headers.get(name), name)


class Errors(unittest.TestCase):
    def check(self, kind, error, says, **more):
        with self.assertRaises(kind) as caught:
            ask(**more)
        body = caught.exception.body
        self.assertEqual((body["type"], body["error"]["type"]), ("error", error))
        self.assertIn(says, body["error"]["message"])

    def test_an_unknown_model_is_not_found(self):
        self.check(anthropic.NotFoundError, "not_found_error", "claude-unknown", model="claude-unknown")

    def test_wrong_fields_are_bad_requests_that_name_them(self):
        bad = anthropic.BadRequestError
        self.check(bad, "invalid_request_error", "`max_tokens`", max_tokens="many")
        self.check(bad, "invalid_request_error", "`stop_sequences`", stop_sequences=["x" * 600])
        self.check(bad, "invalid_request_error", "`messages` is empty", messages=[])
        self.check(bad, "invalid_request_error", "prompt is too long", messages=[{"role": "user", "content": "word " * 6000}])

    def test_unsupported_features_are_bad_requests(self):
        source = {"type": "base64", "media_type": "image/png", "data": "AA=="}
        image = [{"role": "user", "content": [{"type": "image", "source": source}]}]
        self.check(anthropic.BadRequestError, "invalid_request_error", "image", messages=image)
        search = [{"type": "web_search_20250305", "name": "web_search"}]
        choice = {"type": "tool", "name": "web_search"}
        self.check(anthropic.BadRequestError, "invalid_request_error", "web_search", tools=search, tool_choice=choice)

    def test_too_many_requests_are_refused_with_a_code(self):
        def try_to(_):
            try:
                return ask(max_tokens=300, extra_body={"ignore_eos": True}).stop_reason
            except anthropic.RateLimitError as error:
                self.assertEqual(error.body["error"]["type"], "rate_limit_error")
                self.assertTrue(error.response.headers.get("retry-after"))
                return "refused"

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            ends = list(pool.map(try_to, range(24)))
        self.assertIn("refused", ends)
        self.assertIn("max_tokens", ends)


class Leaving(unittest.TestCase):
    def test_a_client_that_leaves_frees_its_slot(self):
        for _ in range(12):
            endless = options(max_tokens=4000, extra_body={"ignore_eos": True})
            with client().messages.create(stream=True, **endless) as stream:
                for n, _ in enumerate(stream):
                    if n == 4:
                        break
        self.assertEqual(ask(max_tokens=2).usage.output_tokens, 2)


if __name__ == "__main__":
    unittest.main()
