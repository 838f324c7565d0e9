"""The request and response types of the installed packages `anthropic` and `openai`: fields, members of unions, and a minimal instance."""

import collections.abc
import types
import typing

import anthropic.types as messages
import anthropic.types.beta as beta
import openai.types.chat as chat
import openai.types.responses as responses
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_tokens_params
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import input_token_count_params, response_create_params
from typing_extensions import Annotated, Literal, NotRequired, Required, get_args, get_origin, get_type_hints, is_typeddict

LISTS = (list, collections.abc.Iterable, collections.abc.Sequence)


def bare(hint):
    """Returns a type without what only marks it."""
    while get_origin(hint) in (Annotated, NotRequired, Required):
        hint = get_args(hint)[0]
    return hint


def is_list(hint):
    return get_origin(hint) in LISTS or "SequenceNotStr" in str(get_origin(hint))


def options(hint):
    """Returns the types of which a value may be; of a list, those of its items."""
    hint = bare(hint)
    if get_origin(hint) in (typing.Union, types.UnionType) or is_list(hint):
        return [option for part in get_args(hint) for option in options(part)]
    return [hint]


def fields(kind):
    """Returns the fields of an object's type and their types; empty for other types."""
    if is_typeddict(kind):
        return get_type_hints(kind, include_extras=True)
    return {name: field.annotation for name, field in getattr(kind, "model_fields", {}).items()}


def literals(hint):
    return [value for option in options(hint) if get_origin(option) is Literal for value in get_args(option)]


def members(hint):
    """Returns the objects of a union by the `type` that tells them apart; a request's own types go before those of answers."""
    found = {}
    for option in sorted(filter(fields, options(hint)), key=lambda option: not is_typeddict(option)):
        for name in literals(fields(option).get("type", str)):
            found.setdefault(name, option)
    return found


def minimal(hint):
    """Returns the smallest valid value of a type."""
    hint = bare(hint)
    if is_list(hint):
        return [minimal(get_args(hint)[0])]
    option = options(hint)[0]
    if is_list(option):
        return [minimal(get_args(option)[0])]
    if get_origin(option) is Literal:
        return get_args(option)[0]
    if is_typeddict(option):
        return {name: minimal(of) for name, of in fields(option).items() if get_origin(of) is Required}
    return {str: "x", int: 1, float: 1.0, bool: True, type(None): None}.get(option, {})


def paths(*requests):
    """Returns the fields of request types and with a dot those of the objects in them, with their types."""
    found = {}
    for name, hint in (field for request in requests for field in fields(request).items()):
        found[name] = hint
        if not any(is_list(part) for part in (bare(hint), *map(bare, get_args(bare(hint))))):
            found |= {f"{name}.{inner}": of for option in options(hint) for inner, of in fields(option).items()}
    return found


def fields_of(*kinds):
    return {name: hint for kind in kinds for option in options(kind) for name, hint in fields(option).items()}


# Each kind of object in a request, with the paths of its fields and their types.
FIELDS = {
    "messages": paths(
        message_create_params.MessageCreateParamsStreaming,
        beta_create_params.MessageCreateParamsStreaming,
        message_count_tokens_params.MessageCountTokensParams,
        beta_count_tokens_params.MessageCountTokensParams,
    ),
    "messages, a message": fields_of(messages.MessageParam, beta.BetaMessageParam),
    "messages, a tool": fields_of(messages.ToolParam, beta.BetaToolParam),
    "chats": paths(chat_create_params.CompletionCreateParamsStreaming),
    "chats, a message": fields_of(chat.ChatCompletionMessageParam),
    "chats, a tool": fields_of(chat.ChatCompletionToolUnionParam)
    | {f"function.{name}": of for name, of in fields_of(fields(chat.ChatCompletionFunctionToolParam)["function"]).items()},
    "responses": paths(response_create_params.ResponseCreateParamsStreaming),
    "responses, `input_tokens`": paths(input_token_count_params.InputTokenCountParams),
    "responses, a message": fields_of(
        *(item for item in options(responses.ResponseInputItemParam) if "message" in literals(fields(item).get("type", str)))
    ),
    "responses, a tool": fields_of(responses.FunctionToolParam, responses.CustomToolParam, responses.NamespaceToolParam),
    "completions": paths(completion_create_params.CompletionCreateParamsStreaming),
    "embeddings": paths(embedding_create_params.EmbeddingCreateParams),
}


def both(name, of_beta):
    """Returns the union of a stable type and its beta."""
    return typing.Union[getattr(messages, name), getattr(beta, of_beta)]


BLOCK = both("ContentBlockParam", "BetaContentBlockParam")
TOOL_RESULT = (messages.ToolResultBlockParam, beta.BetaToolResultBlockParam)
IMAGE = (messages.ImageBlockParam, beta.BetaImageBlockParam)
DOCUMENT = (messages.DocumentBlockParam, beta.BetaRequestDocumentBlockParam)

# Each union of objects in a request, and of events in a stream.
UNIONS = {
    "messages: blocks": members(typing.Union[BLOCK, fields(beta.BetaSystemMessageParam)["content"]]),
    "messages: blocks in a result": members(typing.Union[tuple(fields(kind)["content"] for kind in TOOL_RESULT)]),
    "messages: sources of an image": members(typing.Union[tuple(fields(kind)["source"] for kind in IMAGE)]),
    "messages: sources of a document": members(typing.Union[tuple(fields(kind)["source"] for kind in DOCUMENT)]),
    "messages: tools": members(both("ToolUnionParam", "BetaToolUnionParam")),
    "messages: choices": members(both("ToolChoiceParam", "BetaToolChoiceParam")),
    "messages: events": members(both("RawMessageStreamEvent", "BetaRawMessageStreamEvent")),
    "messages: deltas": members(both("RawContentBlockDelta", "BetaRawContentBlockDelta")),
    "chats: parts": members(
        typing.Union[chat.ChatCompletionContentPartParam, fields(chat.ChatCompletionAssistantMessageParam)["content"]]
    ),
    "chats: calls": members(chat.ChatCompletionMessageToolCallUnionParam),
    "chats: tools": members(chat.ChatCompletionToolUnionParam),
    "chats: choices": members(chat.ChatCompletionToolChoiceOptionParam),
    "responses: items": members(responses.ResponseInputItemParam),
    "responses: parts": members(responses.ResponseInputContentParam) | members(fields(responses.ResponseOutputMessageParam)["content"]),
    "responses: tools": members(responses.ToolParam),
    "responses: choices": members(response_create_params.ToolChoice),
    "responses: events": members(responses.ResponseStreamEvent),
}
