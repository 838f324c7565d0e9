"""Every field and every member of a union of the packages `anthropic` and `openai` against docs/dialects.md and a router: test_dialects.py
ROUTER_URL.

tests/tests/system/python.rs starts the fleet, as for test_anthropic_client.py. The packages' types are in sdk_types.py.
"""

import json
import pathlib
import re
import sys
import unittest
import urllib.error
import urllib.request

import anthropic
from sdk_types import FIELDS, UNIONS, minimal
from typing_extensions import is_typeddict

URL = sys.argv.pop()
PAGE = pathlib.Path(__file__).parents[2] / "docs/dialects.md"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCHEMA = {"type": "object", "properties": {}}


def rows(title):
    """Returns the rows of the table below a title: the objects of the first cell, the names of the second, and the others."""
    section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [(first.split("; "), re.findall(r"`([^`]+)`", names), rest) for first, names, *rest in cells]


class Table(unittest.TestCase):
    def test_every_field_has_a_line_and_every_line_a_field(self):
        listed = {request: {} for request in FIELDS}
        for requests, names, [treatment] in rows("Every field"):
            verdict = re.match(r"\*\*(honoured|ignored|refused)\*\*", treatment)
            self.assertTrue(verdict and names, f"{names}: {treatment}")
            for request in requests:
                for name in names:
                    self.assertNotIn(name, listed[request], f"{request}: two lines")
                    listed[request][name] = verdict[1]
        for request, known in FIELDS.items():
            inherits = {name for name, verdict in listed[request].items() if verdict != "honoured"}
            missing = {name for name in known if name not in listed[request] and name.split(".")[0] not in inherits}
            self.assertEqual((missing, listed[request].keys() - known.keys()), (set(), set()), request)

    def test_every_member_has_a_line_and_every_line_a_member(self):
        listed = {union: [] for union in UNIONS}
        for [union], names, _ in rows("Every member of a union"):
            listed[union] += names
        for union, known in UNIONS.items():
            self.assertEqual(sorted(listed[union]), sorted(known), union)


def ask(path, body):
    """Returns the status, the headers and the object of an answer."""
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, error.headers, json.load(error)


def say(role, content):
    return {"role": role, "content": content}


def call(name="x"):
    return {"type": "function_call", "call_id": "x", "name": name, "arguments": "{}"}


def instance(union, name):
    """Returns the smallest member of a union that the packages' types allow, with values that a text cannot be."""
    member = minimal(UNIONS[union][name]) | {"type": name}
    match name:
        case "image" | "base64" if "image" in (name, union.split()[-1]):
            source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
            return member | ({"source": source} if name == "image" else source)
        case "url" if "image" in union:
            return member | {"url": "http://127.0.0.1:9/x.png"}
        case "image_url":
            return member | {"image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
        case "input_image":
            return member | {"image_url": f"data:image/png;base64,{PIXEL}"}
        case "function_call":
            return call()
        case "custom" | "function" if union == "chats: calls":
            return {"id": "x", "type": name, name: member[name] | ({"arguments": "{}"} if name == "function" else {})}
        case "allowed_tools":
            return allowed(union)
    return member


def allowed(union):
    tool = {"type": "function", "function": {"name": "x"}} if "chats" in union else {"type": "function", "name": "x"}
    choice = {"mode": "auto", "tools": [tool]}
    return {"type": "allowed_tools"} | ({"allowed_tools": choice} if "chats" in union else choice)


MESSAGES = "/v1/messages"
CHATS = "/v1/chat/completions"
RESPONSES = "/v1/responses"


def request(union, member, is_new):
    """Returns the path and the body of a request with a member; with `None` the body that it is compared with."""
    dialect, kind = union.split(": ")
    parts = [{"type": "text", "text": "Say it."}] + [member] * (member is not None)
    later = [] if is_new else [say("assistant", "b"), say("user", "c")]
    if dialect == "messages":
        body = {"model": "tiny", "max_tokens": 1, "messages": [say("user", "a")]}
        result = {"type": "tool_result", "tool_use_id": "x"}
        use = {"type": "tool_use", "id": "x", "name": "x", "input": {}}
        own = {"name": "x", "input_schema": SCHEMA}
        match kind:
            case "blocks" if member and member["type"] == "tool_result":
                body["messages"] = [say("user", "a"), say("assistant", [use]), say("user", [member]), *later]
            case "blocks" if member and member["type"] in ("tool_addition", "tool_removal"):
                body |= {"messages": [say("user", "a"), *later, say("system", parts)], "tools": [own]}
            case "blocks" if is_new or (member and member["type"] in ("image", "document", "search_result", "container_upload")):
                body["messages"] = [say("user", parts), *later]
            case "blocks":
                body["messages"] = [say("user", "a"), say("assistant", parts[1:] + parts[:1]), say("user", "c")]
            case "blocks in a result":
                body["messages"] = [say("user", "a"), say("assistant", [use]), say("user", [result | {"content": parts}]), *later]
            case "sources of an image" | "sources of a document":
                block = {"type": kind.split()[-1], "source": member}
                body["messages"] = [say("user", parts[:1] + [block] * (member is not None)), *later]
            case "tools":
                body["tools"] = [{"name": "y", "input_schema": SCHEMA}] + [member] * (member is not None)
            case "choices":
                body |= {"tools": [own], "tool_choice": member}
        return MESSAGES, body
    if dialect == "chats":
        body = {"model": "tiny", "max_tokens": 1, "messages": [say("user", "a")]}
        own = {"type": "function", "function": {"name": "x", "parameters": SCHEMA}}
        match kind:
            case "parts" if member and member["type"] == "refusal":
                body["messages"] = [say("user", "a"), say("assistant", parts), say("user", "c")]
            case "parts":
                body["messages"] = [say("user", parts), *later]
            case "calls":
                said = say("assistant", "b") | ({"tool_calls": [member]} if member else {})
                body["messages"] = [say("user", "a"), said] + [say("tool", "r") | {"tool_call_id": "x"}] * (member is not None) + later
            case "tools":
                body["tools"] = [{"type": "function", "function": {"name": "y"}}] + [member] * (member is not None)
            case "choices":
                custom = {"type": "custom", "custom": {"name": "x"}}
                is_custom = member is not None and member["type"] == "custom"
                body |= {"tools": [custom if is_custom else own], "tool_choice": member}
        return CHATS, body
    body = {"model": "tiny", "max_output_tokens": 1, "input": [say("user", "a")]}
    own = {"type": "function", "name": "x", "parameters": SCHEMA}
    match kind:
        case "items":
            before = [call()] * bool(member and member["type"] in ("function_call_output", "custom_tool_call_output"))
            items = [*before, *[member] * (member is not None)]
            body["input"] = [say("user", "a"), *items] if is_new else [say("user", "a"), *items, *later]
        case "parts":
            is_said = member and member["type"] in ("output_text", "refusal")
            parts = [{"type": "output_text" if is_said else "input_text", "text": "Say it."}, *parts[1:]]
            body["input"] = [say("user", "a"), say("assistant", parts), say("user", "c")] if is_said else [say("user", parts), *later]
        case "tools":
            body["tools"] = [{"type": "function", "name": "y", "parameters": SCHEMA}] + [member] * (member is not None)
        case "choices":
            is_custom = member is not None and member["type"] == "custom"
            body |= {"tools": [{"type": "custom", "name": "x"} if is_custom else own], "tool_choice": member}
    return RESPONSES, body


def prompt_tokens(answer):
    usage = answer["usage"]
    return sum(usage.get(name, 0) for name in ("input_tokens", "cache_read_input_tokens", "prompt_tokens"))


def treatment(union, name, is_new):
    """Returns what a fleet does with a member, in the words of the table."""
    path, body = request(union, instance(union, name), is_new)
    status, headers, answer = ask(path, body)
    if status != 200:
        return "refused" if status == 400 else f"{status}: {answer}"
    if "x-warmpath-left-out-parts" in headers:
        return "text"
    if "x-warmpath-left-out-tools" in headers:
        return "left out"
    _, _, without = ask(path, request(union, None, is_new)[1])
    is_config = name == "configuration_update" or union.endswith("choices")
    return "read" if is_config or prompt_tokens(answer) != prompt_tokens(without) else "nothing"


def claim(cell, union, name, is_new):
    """Returns the treatment that a cell of the table claims for a member on a worker without a projector."""
    if cell == "as blocks":
        cell = "text"
    if cell.startswith("read with a projector") or cell.startswith("read if it is text") or "unless the router" in cell:
        return "refused" if is_new else "text"
    # The template of the made model does not.
    if cell == "read if the chat template shows reasoning":
        return "nothing"
    if name == "compaction" and union == "messages: blocks":
        return "nothing"
    return re.match(r"read|text|left out|nothing|refused", cell)[0]


class Sent(unittest.TestCase):
    def test_each_member_is_treated_as_its_line_says(self):
        for [union], names, [in_history, when_new] in rows("Every member of a union"):
            if union.endswith(("events", "deltas")):
                continue
            for name in names:
                for cell, is_new in ((in_history, False), (when_new, True)):
                    if cell:
                        with self.subTest(union=union, member=name, is_new=is_new):
                            self.assertEqual(treatment(union, name, is_new), claim(cell, union, name, is_new))

    def test_ignored_fields_change_no_prompt_and_refused_ones_are_refused(self):
        for requests, names, [treatment] in rows("Every field"):
            # Other values of the fields with a condition are in the tests of the parsers.
            verdict = re.match(r"\*\*(ignored)\*\*|\*\*(refused)\*\*(?=: | with)", treatment)
            for dialect in set(requests) & {"messages", "chats", "responses"} if verdict else ():
                path, body = request(f"{dialect}: none", None, True)
                expected = prompt_tokens(ask(path, body)[2])
                for name in names:
                    with self.subTest(request=dialect, field=name):
                        outer, _, inner = name.partition(".")
                        value = minimal(FIELDS[dialect][name])
                        if inner:
                            value = minimal(FIELDS[dialect][outer]) | {inner: value}
                        status, _, answer = ask(path, body | {outer: value})
                        said = "refused" if status == 400 else "ignored" if prompt_tokens(answer) == expected else "read"
                        self.assertEqual(said, verdict[1] or verdict[2], answer)

    def test_streams_have_no_event_that_the_table_calls_never_sent(self):
        own = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"], "additionalProperties": False}
        choice = {"type": "function", "name": "x"}
        bodies = {
            "messages": (MESSAGES, {"max_tokens": 60, "tool_choice": {"type": "tool", "name": "x"}}, {"input_schema": own}),
            "responses": (RESPONSES, {"max_output_tokens": 60, "tool_choice": choice}, {"type": "function", "parameters": own}),
        }
        sent = {}
        for [union], names, [_, cell] in rows("Every member of a union"):
            sent.setdefault(union, set()).update(names if cell == "sent" else [])
        for dialect, (path, more, tool) in bodies.items():
            body = {"model": "tiny", "stream": True, "temperature": 0} | request(f"{dialect}: none", None, True)[1] | more
            for with_tools in ({"tools": [{"name": "x"} | tool]}, {"tool_choice": None}):
                with urllib.request.urlopen(URL + path, json.dumps(body | with_tools).encode(), timeout=60) as response:
                    events = [json.loads(line[6:]) for line in response.read().decode().splitlines() if line.startswith("data: ")]
                self.assertLessEqual({event["type"] for event in events} - {"ping"}, sent[f"{dialect}: events"])
                if dialect == "messages":
                    deltas = {event["delta"]["type"] for event in events if event["type"] == "content_block_delta"}
                    self.assertTrue(deltas and deltas <= sent["messages: deltas"], deltas)

    def test_types_that_no_package_knows_are_treated_by_the_rule(self):
        for union, name, is_new, expected in (
            ("messages: tools", "unheard_of_20990101", True, "left out"),
            ("chats: tools", "unheard_of", True, "left out"),
            ("responses: tools", "unheard_of", True, "left out"),
            ("messages: blocks", "unheard_of_tool_result", False, "left out"),
            ("messages: blocks", "unheard_of", False, "text"),
            ("messages: blocks", "unheard_of", True, "refused"),
            ("responses: items", "unheard_of_call", False, "left out"),
            ("responses: items", "unheard_of", False, "text"),
        ):
            with self.subTest(union=union, member=name, is_new=is_new):
                path, body = request(union, {"type": name, "id": "x"}, is_new)
                status, headers, _ = ask(path, body)
                kinds = {"text": "parts", "left out": "tools"}
                said = [word for word, kind in kinds.items() if f"x-warmpath-left-out-{kind}" in headers]
                self.assertEqual(said or ["refused" if status == 400 else status], [expected])


class Threads(unittest.TestCase):
    def test_the_sdk_s_tool_runner_sends_whole_conversations(self):
        sent = []

        def note(request):
            sent.append(json.loads(request.content))

        http = anthropic.DefaultHttpxClient(event_hooks={"request": [note]})
        client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, http_client=http)

        city = {"type": "object", "properties": {"city": {"enum": ["Berlin"]}}, "required": ["city"], "additionalProperties": False}

        @anthropic.beta_tool(input_schema=city)
        def look(city: str) -> str:
            """Looks."""
            return f"rain in {city}"

        runner = client.beta.messages.tool_runner(
            model="tiny", max_tokens=100, messages=[say("user", "Look!")], system="Be brief.", tools=[look], max_iterations=2,
            tool_choice={"type": "tool", "name": "look"}, extra_body={"temperature": 0},
        )
        steps = list(runner)
        self.assertEqual([step.stop_reason for step in steps], ["tool_use", "tool_use"])
        whole = [body for body in sent if "thread" not in body]
        self.assertEqual([len(body["messages"]) for body in whole], [1, 3])
        self.assertTrue(all(body["system"] and body["tools"] for body in whole))


if __name__ == "__main__":
    unittest.main()
