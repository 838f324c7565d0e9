"""Agents of openai-agents and pydantic-ai against a fleet: test_agents.py ROUTER_URL.

tests/tests/clients.rs starts the fleet: two workers with the tiny model behind a router. The tiny model calls a tool only where it must, so
the first turn requires a call and the second sends its result.
"""

import asyncio
import json
import sys
import typing
import unittest

import agents
import openai
import pydantic
from pydantic_ai import Agent, ModelRequest, ModelResponse, NativeOutput, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.direct import model_request_sync
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

URL = sys.argv.pop()
City = typing.Literal["Berlin", "Oslo"]
# How a model of equal likelihoods chooses; with this seed it answers where it may call.
AT_RANDOM = {"temperature": 50, "top_p": 1.0, "max_tokens": 200, "extra_body": {"top_k": 0, "min_p": 0.0, "seed": 0}}
agents.set_tracing_disabled(True)


def client(sent=None):
    """Returns a client that adds the bodies of its requests to `sent`."""

    async def keep(request):
        if sent is not None:
            sent.append(json.loads(request.content))

    http_client = openai.DefaultAsyncHttpxClient(event_hooks={"request": [keep]})
    return openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=60, http_client=http_client)


def has_tools_and_schema(body):
    """Returns whether a request asks for a call or an answer by a schema."""
    format = body.get("response_format") or (body.get("text") or {}).get("format") or {}
    return bool(body.get("tools")) and format.get("type") == "json_schema"


class Weather(pydantic.BaseModel):
    """The weather."""

    model_config = pydantic.ConfigDict(extra="forbid")

    city: City
    rains: bool


class OpenAiAgents(unittest.TestCase):
    def agent(self, model, output_type=None, **more):
        asked = []

        @agents.function_tool
        def get_weather(city: City) -> str:
            """Tells the weather."""
            asked.append(city)
            return f"It rains in {city}."

        more = {"temperature": 0, "max_tokens": 100} | more
        settings = agents.ModelSettings(tool_choice="required", parallel_tool_calls=False, **more)
        instructions = "You answer in random words."
        agent = agents.Agent(
            name="A", instructions=instructions, model=model, tools=[get_weather], model_settings=settings, output_type=output_type
        )
        return agent, asked

    def test_a_tool_is_called_and_its_result_is_sent_back(self):
        for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
            agent, asked = self.agent(kind("tiny", client()))
            result = agents.Runner.run_sync(agent, "Is it raining?", max_turns=3)
            self.assertEqual((len(asked), len(result.raw_responses)), (1, 2), kind)
            self.assertTrue(result.final_output, kind)
            second = result.raw_responses[1].usage
            self.assertGreater(second.input_tokens_details.cached_tokens, 0, kind)

    def test_a_streamed_run_has_the_same_result(self):
        for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
            agent, asked = self.agent(kind("tiny", client()))

            async def run():
                result = agents.Runner.run_streamed(agent, "Is it raining?", max_turns=3)
                return [event.type async for event in result.stream_events()], result.final_output

            kinds, streamed = asyncio.run(run())
            self.assertIn("raw_response_event", kinds)
            agent, _ = self.agent(kind("tiny", client()))
            whole = agents.Runner.run_sync(agent, "Is it raining?", max_turns=3).final_output
            self.assertEqual((len(asked), streamed), (1, whole), kind)

    def test_an_answer_by_a_schema_comes_after_calls(self):
        for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
            sent = []
            agent, asked = self.agent(kind("tiny", client(sent)), Weather, **AT_RANDOM)
            result = agents.Runner.run_sync(agent, "Is it raining?", max_turns=20)
            self.assertIsInstance(result.final_output, Weather, kind)
            self.assertGreaterEqual(len(asked), 1, kind)
            self.assertTrue(all(has_tools_and_schema(body) for body in sent), sent)


class PydanticAi(unittest.TestCase):
    SETTINGS = {"temperature": 0, "max_tokens": 100, "parallel_tool_calls": False}

    def test_a_tool_is_called_and_its_result_is_sent_back(self):
        schema = {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Berlin", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        }
        tool = ToolDefinition(name="get_weather", description="Tells the weather.", parameters_json_schema=schema)
        for kind in (OpenAIChatModel, OpenAIResponsesModel):
            model = kind("tiny", provider=OpenAIProvider(openai_client=client()))
            # A call is required because text is not allowed as output.
            demands = ModelRequestParameters(function_tools=[tool], allow_text_output=False)
            history = [ModelRequest(parts=[UserPromptPart("Is it raining?")])]
            first = model_request_sync(
                model, history, model_settings=self.SETTINGS, model_request_parameters=demands
            )
            [call] = [part for part in first.parts if isinstance(part, ToolCallPart)]
            self.assertIn(call.args_as_dict()["city"], ("Berlin", "Oslo"))
            result = ToolReturnPart(tool_name=call.tool_name, content="It rains.", tool_call_id=call.tool_call_id)
            history += [first, ModelRequest(parts=[result])]
            leaves = ModelRequestParameters(function_tools=[tool], allow_text_output=True)
            second = model_request_sync(model, history, model_settings=self.SETTINGS, model_request_parameters=leaves)
            self.assertIsInstance(second, ModelResponse)
            self.assertTrue(any(isinstance(part, TextPart) and part.content for part in second.parts), kind)
            self.assertGreater(second.usage.cache_read_tokens, 0, kind)

    def test_an_answer_by_a_schema_comes_beside_tools(self):
        for kind in (OpenAIChatModel, OpenAIResponsesModel):
            sent = []
            model = kind("tiny", provider=OpenAIProvider(openai_client=client(sent)))
            agent = Agent(model, output_type=NativeOutput(Weather), model_settings=AT_RANDOM)

            @agent.tool_plain
            def get_weather(city: City) -> str:
                """Tells the weather."""
                return f"It rains in {city}."

            self.assertIsInstance(agent.run_sync("Is it raining?").output, Weather, kind)
            self.assertTrue(all(has_tools_and_schema(body) for body in sent), sent)

    def test_an_output_type_is_a_call_of_its_own(self):
        for kind in (OpenAIChatModel, OpenAIResponsesModel):
            model = kind("tiny", provider=OpenAIProvider(openai_client=client()))
            agent = Agent(model, output_type=bool, model_settings=self.SETTINGS)
            self.assertIsInstance(agent.run_sync("Is it raining?").output, bool, kind)


if __name__ == "__main__":
    unittest.main()
