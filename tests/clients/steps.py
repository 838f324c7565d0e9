"""A proxy that chooses the steps of a coding agent in each turn: calls of tools, and then an answer.

A tiny model calls a tool only where it must, and finds no arguments that matter: the proxy writes such a call itself.
"""

import json
import typing

from reuse import RecordingProxy

ANSWER_TOKENS = 192


class Step(typing.NamedTuple):
    """Call of a tool."""

    tool: str
    # `None`: the model writes the call, with any arguments that the tool's schema permits.
    arguments: dict | None = None


def tool_names(body):
    """Returns the names of a request's tools, whatever its dialect; the type of a tool without a name."""
    tools = [tool.get("function", tool) for tool in body.get("tools") or [] if isinstance(tool, dict)]
    return [tool.get("name") or tool.get("type") for tool in tools]


def n_results(body):
    """Returns how many results of calls a request brings."""
    text = json.dumps(body.get("messages") or body.get("input") or [])
    types = ("tool_result", "function_call_output", "tool_search_output")
    return sum(text.count(kind) for kind in ('"role": "tool"', *(f'"type": "{name}"' for name in types)))


def demand(path, tool):
    """Returns the choice of a tool as a dialect writes it."""
    if "/messages" in path:
        return {"type": "tool", "name": tool}
    if "/responses" in path:
        namespace, _, name = tool.rpartition("__")
        return {"type": "function", "name": name} | ({"namespace": namespace} if namespace else {})
    return {"type": "function", "function": {"name": tool}}


def end_answer(path, body):
    """Has the answer be a short text that ends: agents take one that was cut off for a failure, or ask to go on."""
    schema = {"type": "string", "enum": ["Flour is in it."]}
    schema = {"type": "object", "properties": {"answer": schema}, "required": ["answer"], "additionalProperties": False}
    if "/messages" in path:
        body["output_config"] = (body.get("output_config") or {}) | {"format": {"type": "json_schema", "schema": schema}}
    elif "/responses" in path:
        body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
    else:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def search_response(arguments):
    """Returns the events of a response that searches for tools."""
    item = {"type": "tool_search_call", "id": "tsc_1", "call_id": "call_1", "execution": "client", "arguments": arguments}
    item["status"] = "completed"
    tokens = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1, "total_tokens": 2}
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "usage": tokens}
    return [
        {"type": "response.created", "response": response | {"status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]


def call_message(step):
    """Returns the events of a message that calls a tool."""
    block = {"type": "tool_use", "id": "toolu_1", "name": step.tool, "input": {}}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "tiny"}
    message |= {"usage": {"input_tokens": 1, "output_tokens": 1}, "stop_reason": None, "stop_sequence": None}
    delta = {"type": "input_json_delta", "partial_json": json.dumps(step.arguments)}
    ending = {"stop_reason": "tool_use", "stop_sequence": None}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


class StepsProxy(RecordingProxy):
    """Has each turn consist of its steps and then an answer; the first step's tool tells which requests are the agent's main ones."""

    def __init__(self, agent, router, turns):
        super().__init__(agent, router)
        self.turns, self.n_results = turns, None

    def begin_turn(self):
        super().begin_turn()
        # Not those of the turn before: an agent may also keep calls that were cut off.
        self.n_results = None

    def change(self, path, body, seen):
        body["model"] = "tiny"
        seen["is_main"] = self.turns[0][0].tool in tool_names(body)
        seen["n_results"] = n_results(body)
        if "max_tokens" in body or "/chat/completions" in path:
            body["max_tokens"] = ANSWER_TOKENS
            body.pop("max_completion_tokens", None)
        if seen["is_main"]:
            if self.n_results is None:
                self.n_results = seen["n_results"]
            steps, n_done = self.turns[self.turn - 1], max(seen["n_results"] - self.n_results, 0)
            step = steps[n_done] if n_done < len(steps) else None
            seen["step"] = step
            if n_done:
                seen["kind"] = "found tool" if steps[min(n_done, len(steps)) - 1].arguments else "result"
            else:
                seen["kind"] = "question"
            is_demanded = step is not None and step.arguments is None
            none = {"type": "none"} if "/messages" in path else "none"
            body["tool_choice"] = demand(path, step.tool) if is_demanded else none
            if not is_demanded or "/responses" in path:
                end_answer(path, body)
            # Anthropic's API allows no forced call together with reasoning.
            body.pop("thinking", None)

    def own_answer(self, path, seen):
        step = seen["step"]
        if step is None or step.arguments is None:
            return None
        events = search_response(step.arguments) if "/responses" in path else call_message(step)
        return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
