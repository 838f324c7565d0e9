"""LangChain's OpenAI integration against a fleet: test_langchain.py ROUTER_URL.

tests/tests/clients.rs starts the fleet: two workers with the tiny model behind a router.
"""

import asyncio
import sys
import typing
import unittest

import openai
import pydantic
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

URL = sys.argv.pop()
CHAT = [SystemMessage("You answer in random words."), HumanMessage("What is a prefix?")]


def model(**options):
    options = {"temperature": 0, "max_tokens": 16, "max_retries": 0, "timeout": 60} | options
    return ChatOpenAI(model="tiny", base_url=URL + "/v1", api_key="none", **options)


@tool
def get_weather(city: typing.Literal["Berlin", "Oslo"]) -> str:
    """Tells the weather."""
    return f"It rains in {city}."


class Animal(pydantic.BaseModel):
    """An animal."""

    # Otherwise the tiny model adds properties of its own.
    model_config = pydantic.ConfigDict(extra="forbid")

    kind: typing.Literal["cat", "dog"]
    legs: typing.Annotated[int, pydantic.Field(ge=0, le=8)]


class LangChain(unittest.TestCase):
    def test_an_answer_and_its_stream_are_the_same(self):
        answer = model().invoke(CHAT)
        self.assertTrue(answer.content)
        self.assertEqual(answer.usage_metadata["output_tokens"], 16)
        chunks = list(model(stream_usage=True).stream(CHAT))
        self.assertEqual("".join(chunk.content for chunk in chunks), answer.content)
        self.assertGreater(len(chunks), 5)
        usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
        self.assertEqual(usage[-1]["output_tokens"], 16)

    def test_a_tool_is_called_and_its_result_is_sent_back(self):
        bound = model(max_tokens=200).bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
        asked = bound.invoke(CHAT)
        [call] = asked.tool_calls
        self.assertEqual(call["name"], "get_weather")
        result = get_weather.invoke(call)
        self.assertIsInstance(result, ToolMessage)
        self.assertTrue(model().bind_tools([get_weather]).invoke(CHAT + [asked, result]).content)

    def test_a_streamed_call_is_assembled(self):
        bound = model(max_tokens=200).bind_tools([get_weather], tool_choice="get_weather")
        whole = None
        for chunk in bound.stream(CHAT):
            whole = chunk if whole is None else whole + chunk
        self.assertIn(whole.tool_calls[0]["args"]["city"], ("Berlin", "Oslo"))

    def test_structured_output_is_a_class_by_schema_and_by_function(self):
        for method in ("json_schema", "function_calling"):
            animal = model(max_tokens=200).with_structured_output(Animal, method=method).invoke(CHAT)
            self.assertIsInstance(animal, Animal, method)

    def test_an_agent_answers_by_a_schema_beside_tools(self):
        # A model of equal likelihoods calls or answers; with this seed it answers.
        random = {"temperature": 50, "top_p": 1.0, "max_tokens": 200, "extra_body": {"top_k": 0, "min_p": 0.0, "seed": 0}}
        for more in ({}, {"use_responses_api": True}):
            agent = create_agent(model(**random, **more), tools=[get_weather], response_format=ProviderStrategy(Animal))
            answered = agent.invoke({"messages": [{"role": "user", "content": "Which animal is it?"}]})
            self.assertIsInstance(answered["structured_response"], Animal, more)

    def test_many_at_once_and_async(self):
        answers = model(max_tokens=4).batch([CHAT] * 4, config={"max_concurrency": 2})
        self.assertEqual(len({answer.content for answer in answers}), 1)
        self.assertIsInstance(asyncio.run(model(max_tokens=4).ainvoke(CHAT)), AIMessage)

    def test_the_responses_api_is_used_if_requested(self):
        answer = model(use_responses_api=True).invoke(CHAT)
        self.assertTrue(answer.text)

    def test_errors_are_the_client_s(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            model(temperature=1000).invoke(CHAT)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.APITimeoutError):
            model(timeout=0.001, max_tokens=4000, extra_body={"ignore_eos": True}).invoke(CHAT)

    def test_an_abandoned_stream_frees_its_slot(self):
        for _ in range(12):
            for chunk in model(max_tokens=4000, extra_body={"ignore_eos": True}).stream(CHAT):
                if chunk.content:
                    break
        self.assertTrue(model(max_tokens=2).invoke(CHAT).content)


if __name__ == "__main__":
    unittest.main()
