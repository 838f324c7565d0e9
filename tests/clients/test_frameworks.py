"""instructor and LlamaIndex against a fleet: test_frameworks.py ROUTER_URL.

tests/tests/clients.rs starts the fleet: two workers with the tiny model behind a router.
"""

import sys
import typing
import unittest

import instructor
import openai
import pydantic
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

URL = sys.argv.pop()
MESSAGES = [{"role": "user", "content": "Which animal is it?"}]


class Animal(pydantic.BaseModel):
    """An animal."""

    # Otherwise the tiny model adds properties of its own.
    model_config = pydantic.ConfigDict(extra="forbid")

    kind: typing.Literal["cat", "dog"]
    legs: typing.Annotated[int, pydantic.Field(ge=0, le=8)]


class Instructor(unittest.TestCase):
    def ask(self, mode, model=Animal, **more):
        client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=60)
        ask = instructor.from_openai(client, mode=mode).create
        limit = "max_output_tokens" if mode is instructor.Mode.RESPONSES_TOOLS else "max_tokens"
        return ask(model="tiny", messages=MESSAGES, response_model=model, temperature=0, **{limit: 200}, **more)

    def test_an_answer_is_a_class_in_each_mode(self):
        modes = instructor.Mode
        for mode in (modes.TOOLS, modes.TOOLS_STRICT, modes.JSON_SCHEMA, modes.RESPONSES_TOOLS):
            self.assertIsInstance(self.ask(mode, max_retries=0), Animal, mode)

    def test_a_rejected_answer_is_sent_back_and_the_next_one_counts(self):
        rejected = []

        class Second(Animal):
            @pydantic.model_validator(mode="after")
            def reject_the_first(self):
                if not rejected:
                    rejected.append(self)
                    raise ValueError("say it again")
                return self

        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            rejected.clear()
            self.assertIsInstance(self.ask(mode, Second, max_retries=2), Second, mode)
            self.assertEqual(len(rejected), 1, mode)


def get_weather(city: typing.Literal["Berlin", "Oslo"]) -> str:
    """Tells the weather."""
    return f"It rains in {city}."


class LlamaIndex(unittest.TestCase):
    def model(self, **more):
        return OpenAILike(
            model="tiny", api_base=URL + "/v1", api_key="none", is_chat_model=True, is_function_calling_model=True,
            context_window=8192, max_retries=0, temperature=0, max_tokens=100, **more,
        )

    def test_a_tool_is_called_and_its_result_is_sent_back(self):
        model, tool = self.model(), FunctionTool.from_defaults(get_weather)
        history = [ChatMessage(role="user", content="Is it raining?")]
        first = model.chat_with_tools([tool], chat_history=history, tool_required=True)
        [call] = model.get_tool_calls_from_response(first)
        self.assertIn(call.tool_kwargs["city"], ("Berlin", "Oslo"))
        result = ChatMessage(
            role="tool", content=str(tool(**call.tool_kwargs)), additional_kwargs={"tool_call_id": call.tool_id}
        )
        second = model.chat_with_tools([tool], chat_history=[*history, first.message, result])
        self.assertTrue(second.message.content)

    def test_a_stream_spells_the_same_answer(self):
        history = [ChatMessage(role="user", content="Is it raining?")]
        *_, last = self.model().stream_chat(history)
        self.assertEqual(last.message.content, self.model().chat(history).message.content)


if __name__ == "__main__":
    unittest.main()
