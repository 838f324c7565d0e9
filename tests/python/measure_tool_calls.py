"""Measures how well a model calls tools, by the order in which it reads them: measure_tool_calls.py --model FILE.

A worker with the model is asked for calls that one of eight tools answers, at temperature 0: `tool_choice` auto, where the model may answer
in words, and required, where it must call. A call counts as right if its tool is, and its argument has what the question names.
The worker is started with each flag about order, and a client sends its tools in each of several orders.
"""

import argparse
import json
import tempfile
import urllib.request

from local_fleet import start_worker, wait_until_ready

WORKER = "127.0.0.1:18490"
SYSTEM = """You are an assistant in a terminal. You work in /home/me/projects/bakery on Linux, in a git repository.
Answer briefly. Use a tool whenever it can do what the user asks for, and never invent what a tool can find out. Change
files only if the user asks for it, and read a file before you change it. The user's shell is bash."""

# Name, what it does, its argument, and what that is.
TOOLS = [
    ("get_weather", "Returns the weather of today in a city.", "city", "Name of the city"),
    ("read_file", "Returns the text of a file.", "path", "Path of the file"),
    ("list_folder", "Lists the files in a folder.", "path", "Path of the folder"),
    ("search_text", "Searches all files for a word and returns the lines that have it.", "word", "The word"),
    ("run_command", "Runs a command in the shell and returns its output.", "command", "The command"),
    ("send_mail", "Sends a mail with a greeting to a person.", "person", "Name of the person"),
    ("open_web_page", "Opens a web page and returns its text.", "url", "Address of the page"),
    ("translate", "Translates a word into French.", "word", "The word"),
]
# Question, the tool that answers it, what its argument must contain.
TASKS = [
    ("What is the weather in Oslo?", "get_weather", "oslo"),
    ("Is it raining in Lisbon today?", "get_weather", "lisbon"),
    ("Tell me the weather in Tokyo.", "get_weather", "tokyo"),
    ("Show me the file src/oven.py.", "read_file", "src/oven.py"),
    ("What does README.md say?", "read_file", "readme.md"),
    ("Read the file config/prices.json.", "read_file", "config/prices.json"),
    ("Which files are in the folder src?", "list_folder", "src"),
    ("List the folder docs/images.", "list_folder", "docs/images"),
    ("What is in the folder tests?", "list_folder", "tests"),
    ("Where does the word flour occur in the files?", "search_text", "flour"),
    ("Search all files for the word yeast.", "search_text", "yeast"),
    ("Find every line with the word discount.", "search_text", "discount"),
    ("Run the command git status.", "run_command", "git status"),
    ("Execute ls -la in the shell.", "run_command", "ls -la"),
    ("Run make test.", "run_command", "make test"),
    ("Send a greeting to Alice by mail.", "send_mail", "alice"),
    ("Mail a greeting to Mister Brown.", "send_mail", "brown"),
    ("Please greet Fatima by mail.", "send_mail", "fatima"),
    ("Open the page https://example.com/bread.", "open_web_page", "example.com/bread"),
    ("What does the web page http://bakery.test/news say?", "open_web_page", "bakery.test/news"),
    ("Open https://example.org.", "open_web_page", "example.org"),
    ("Translate the word bread into French.", "translate", "bread"),
    ("How do you say oven in French? Translate it.", "translate", "oven"),
    ("Translate the word sugar.", "translate", "sugar"),
]


def tool(name, description, argument, meaning):
    properties = {argument: {"type": "string", "description": meaning}}
    parameters = {"type": "object", "properties": properties, "required": [argument], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def with_keys(value, order):
    """Returns JSON with the keys of all objects in another order."""
    if isinstance(value, dict):
        return {key: with_keys(value[key], order) for key in order(list(value))}
    return [with_keys(item, order) for item in value] if isinstance(value, list) else value


def reversed_list(names):
    return names[::-1]


USUAL = [tool(*line) for line in TOOLS]
# Orders of a client's tools, which are equal JSON but for the last, where the list has another order.
ORDERS = {
    "as usual": USUAL,
    "keys reversed": [with_keys(one, reversed_list) for one in USUAL],
    "keys by alphabet": [with_keys(one, sorted) for one in USUAL],
    "tools by name": sorted(USUAL, key=lambda one: one["function"]["name"]),
}
# Flags of a worker, each with the orders that are measured.
RUNS = [("", list(ORDERS)), ("--tools-first", ["as usual"]), ("--tool-keys-sorted", ["as usual", "keys reversed"])]


def call(question, tool_choice, tools):
    """Returns name and arguments of the first call of an answer, or None."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"messages": messages, "tools": tools, "tool_choice": tool_choice}
    body |= {"temperature": 0, "max_tokens": 96, "parallel_tool_calls": False}
    request = urllib.request.Request(f"http://{WORKER}/v1/chat/completions", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=600) as response:
        message = json.load(response)["choices"][0]["message"]
    calls = message.get("tool_calls") or []
    return (calls[0]["function"]["name"], calls[0]["function"]["arguments"]) if calls else None


def is_valid(name, arguments):
    """Returns whether a call is one that the tool's schema allows; a call that was cut off is not."""
    wanted = {line[0]: line[2] for line in TOOLS}
    try:
        given = json.loads(arguments)
    except ValueError:
        return False
    return isinstance(given, dict) and list(given) == [wanted.get(name)] and isinstance(given[wanted[name]], str)


def ask_all(tool_choice, tools):
    """Returns how many answers call a tool, validly, the right one, with the right argument."""
    counts = [0, 0, 0, 0]
    for question, name, argument in TASKS:
        called = call(question, tool_choice, tools)
        is_called = called is not None
        valid = is_called and is_valid(*called)
        right = valid and called[0] == name
        exact = right and argument in called[1].lower()
        counts = [count + int(found) for count, found in zip(counts, (is_called, valid, right, exact))]
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--chat-template-file", help="template in place of the model's")
    parser.add_argument("--flag", action="append", help="measure only with this flag of the worker, or '' for none")
    parsed = parser.parse_args()
    flags = f"--model {parsed.model} --slots 1 --ctx-size 8192"
    if parsed.chat_template_file:
        flags += f" --chat-template-file {parsed.chat_template_file}"
    print("| worker | tools | `tool_choice` | questions | calls | valid calls | right tool | right argument |\n" + "|---" * 8 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for flag, orders in RUNS:
            if parsed.flag is not None and flag not in parsed.flag:
                continue
            worker = start_worker("worker", folder, WORKER, f"{flags} {flag}")
            try:
                wait_until_ready(f"http://{WORKER}", worker)
                for order in orders:
                    for tool_choice in ("auto", "required"):
                        counts = " | ".join(map(str, ask_all(tool_choice, ORDERS[order])))
                        print(f"| {f'`{flag}`' if flag else 'default'} | {order} | {tool_choice} | {len(TASKS)} | {counts} |", flush=True)
            finally:
                worker.stop()


if __name__ == "__main__":
    main()
