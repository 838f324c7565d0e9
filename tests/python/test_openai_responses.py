"""Responses by the official OpenAI client against a fleet: test_openai_responses.py ROUTER_URL.

tests/tests/system/python.rs starts the fleet: two workers with the tiny model, three slots and one place in the queue each, behind a router
that takes eight requests at a time.
"""

import json
import sys
import unittest

import openai

URL = sys.argv.pop()
MODEL = "tiny"


def client():
    """Returns a client that does not retry, so that every error is seen."""
    return openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=60)


def ask(**more):
    options = {"model": MODEL, "input": "What is a prefix?", "temperature": 0, "max_output_tokens": 16} | more
    return client().responses.create(**options)


class Answers(unittest.TestCase):
    def test_a_response_has_text_usage_and_a_status(self):
        response = ask(instructions="You answer in random words.", metadata={"a": "b"})
        self.assertTrue(response.output_text)
        self.assertEqual((response.object, response.status), ("response", "incomplete"))
        self.assertEqual(response.incomplete_details.reason, "max_output_tokens")
        self.assertEqual(response.usage.output_tokens, 16)
        self.assertEqual(response.usage.total_tokens, response.usage.input_tokens + 16)
        self.assertEqual((response.metadata, response.store), ({"a": "b"}, False))

    def test_a_stream_spells_the_same_response(self):
        events = list(ask(stream=True))
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        self.assertEqual("".join(deltas), ask().output_text)
        self.assertEqual(events[-1].response.output_text, "".join(deltas))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        kinds = [event.type for event in events]
        self.assertEqual(kinds[:4], ["response.created", "response.in_progress", "response.output_item.added",
                                     "response.content_part.added"])
        self.assertEqual(kinds[-4:], ["response.output_text.done", "response.content_part.done",
                                      "response.output_item.done", "response.incomplete"])

    def test_the_stream_helper_assembles_a_complete_response(self):
        options = {"model": MODEL, "input": "Hi", "extra_body": {"grammar": 'root ::= "yes" | "no"'}}
        with client().responses.stream(**options) as stream:
            for _ in stream:
                pass
            response = stream.get_final_response()
        self.assertEqual(response.status, "completed")
        self.assertIn(response.output_text, ("yes", "no"))

    def test_a_conversation_continues_with_its_own_items(self):
        said = [{"role": "user", "content": "repeat after me " * 40}]
        first = ask(input=said)
        said += [item.model_dump(exclude_none=True) for item in first.output] + [{"role": "user", "content": "again"}]
        again = ask(input=said)
        self.assertGreater(again.usage.input_tokens_details.cached_tokens, 100)

    def test_a_function_is_called_whole_and_streamed(self):
        schema = {"type": "object", "properties": {"city": {"enum": ["Berlin", "Oslo"]}}, "required": ["city"]}
        parameters = schema | {"additionalProperties": False}
        tools = [{"type": "function", "name": "look", "parameters": parameters, "strict": True}]
        options = {"tools": tools, "tool_choice": {"type": "function", "name": "look"}, "max_output_tokens": 100}
        response = ask(**options)
        call = response.output[0]
        self.assertEqual((response.status, call.type, call.name), ("completed", "function_call", "look"))
        self.assertIn(json.loads(call.arguments)["city"], ("Berlin", "Oslo"))
        last = list(ask(stream=True, **options))[-1]
        self.assertEqual(last.response.output[0].arguments, call.arguments)

    def test_results_of_functions_are_read(self):
        tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
        call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
        response = ask(input=[{"role": "user", "content": "Weather?"}, call, result], tools=[tool])
        self.assertEqual(response.usage.output_tokens, 16)

    def test_counted_tokens_equal_the_usage(self):
        counted = client().responses.input_tokens.count(model=MODEL, input="What is a prefix?")
        self.assertEqual(counted.input_tokens, ask().usage.input_tokens)


class Errors(unittest.TestCase):
    def check(self, param, code=None, **more):
        with self.assertRaises(openai.BadRequestError) as caught:
            ask(**more)
        self.assertEqual((caught.exception.param, caught.exception.code), (param, code))

    def test_wrong_fields_are_bad_requests_that_name_them(self):
        self.check("max_output_tokens", max_output_tokens=-2)
        self.check("input", input=[])
        self.check("input[0].content", input=[{"role": "user", "content": 5}])
        self.check(None, "context_length_exceeded", input="word " * 6000)

    def test_unsupported_features_are_bad_requests(self):
        unsupported = "unsupported_parameter"
        self.check("previous_response_id", unsupported, previous_response_id="resp_1")
        self.check("background", unsupported, background=True)
        search = {"type": "web_search"}
        self.check("tool_choice.type", unsupported, tools=[search], tool_choice=search)

    def test_tools_that_nobody_runs_here_are_left_out(self):
        for kind in ("web_search", "teleport"):
            self.assertEqual(ask(tools=[{"type": kind}]).output_text, ask().output_text)

    def test_no_token_only_fills_the_cache(self):
        response = ask(max_output_tokens=0)
        self.assertEqual((response.output, response.usage.output_tokens), ([], 0))

    def test_nothing_is_stored(self):
        with self.assertRaises(openai.NotFoundError):
            client().responses.retrieve("resp_1")
        with self.assertRaises(openai.NotFoundError):
            client().responses.delete("resp_1")

    def test_an_unknown_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            ask(model="gpt-unknown")
        self.assertEqual(caught.exception.code, "model_not_found")


if __name__ == "__main__":
    unittest.main()
