//! The operations of the API, each with its request and response.
//!
//! Not here: the handlers (`http`); `every_route_is_in_the_document` compares the two.

use super::operation::{NAME, Operation, Parameter, SuccessBody, Tag, get, header, post};
use super::{ollama, vectors};

const MODEL: Parameter = path("model", "A name of the model.", r#"{"type": "string", "minLength": 1}"#);
const MODEL_OF_PROPS: Parameter =
    query("model", "A name of the model; at a router absent for the only one.", r#"{"type": "string"}"#);
pub(super) const MODEL_OF_REPORT: Parameter =
    query("model", "At a router a name of the model; absent for the only one.", r#"{"type": "string"}"#);
pub(super) const AUTOLOAD: Parameter =
    query("autoload", "At a router `true` has the request load the model.", r#"{"type": "string"}"#);
const REMOVED_MODEL: Parameter = query("model", "The name of the model; required.", r#"{"type": "string"}"#);
const VERSION: Parameter = header("anthropic-version", "Requests Anthropic's format, also for errors.");
const LIMIT: Parameter = query(
    "limit",
    "Number of models per page, in Anthropic's format.",
    r#"{"type": "integer", "minimum": 1, "maximum": 1000, "default": 20}"#,
);
const AFTER_MODEL: Parameter = query("after_id", "The model before the page.", r#"{"type": "string"}"#);
const BEFORE_MODEL: Parameter = query("before_id", "The model after the page.", r#"{"type": "string"}"#);
const RELOAD: Parameter = query(
    "reload",
    "At a router `1` has the hosts read their catalogues before; needs the rights of `/models/load`.",
    r#"{"type": "string"}"#,
);
const STORED: Parameter = path("id", "Any text: responses are not stored.", r#"{"type": "string", "minLength": 1}"#);
const SLOT: Parameter = path("id", "The slot.", r#"{"type": "integer", "minimum": 0, "maximum": 65535}"#);
const PIN: Parameter = path("id", "The pin's name.", r#"{"type": "string", "minLength": 1}"#);
const ACTION: Parameter =
    query("action", "The action; required.", r#"{"type": "string", "enum": ["save", "restore", "erase"]}"#);
const ENTRIES: Parameter =
    query("entries", "Number of entries per page.", r#"{"type": "integer", "minimum": 0, "maximum": 10000}"#);
const AFTER_ENTRY: Parameter = query(
    "after",
    "The entry before the page.",
    r#"{"type": "integer", "minimum": 0, "maximum": 18446744073709551615}"#,
);
const LAST_BLOCK: Parameter =
    path("key", "Chain hash of the last block.", r#"{"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}"#);
const IMAGE_WIDTH: Parameter =
    query("width", "Width of an image in pixels; required for one.", r#"{"type": "integer", "minimum": 1}"#);
const IMAGE_HEIGHT: Parameter =
    query("height", "Height of an image in pixels; required for one.", r#"{"type": "integer", "minimum": 1}"#);
const AUDIO_SAMPLES: Parameter = query(
    "n_samples",
    "Number of samples of a channel of audio; required for audio.",
    r#"{"type": "integer", "minimum": 1}"#,
);
const AUDIO_RATE: Parameter = query(
    "sample_rate",
    "Sample rate of audio in hertz; required for audio.",
    r#"{"type": "integer", "minimum": 4000, "maximum": 192000}"#,
);
const N_TOKENS: Parameter = query(
    "tokens",
    "Maximum number of tokens of all prefixes; common ones count once; required.",
    r#"{"type": "integer", "minimum": 0}"#,
);
const N_BLOCKS: Parameter =
    query("blocks", "Number of blocks of the run; required.", r#"{"type": "integer", "minimum": 1}"#);
const STATE_LAYOUT: Parameter = query(
    "layout",
    "Identity of the state that the caller can use; required.",
    r#"{"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}"#,
);
const SHORTER_RUNS: Parameter = query(
    "or",
    "Shorter runs: `HASH.BLOCKS`, separated by commas. If the worker does not have the named run, it sends the first of these that it has.",
    r#"{"type": "string"}"#,
);
const AFTER_STAMP: Parameter = query("after", "The last stamp that the router has.", r#"{"type": "string"}"#);

/// Returns every operation of a worker and a router.
pub(super) fn operations() -> impl Iterator<Item = Operation> {
    let operations = [generation(), dialects(), ollama::operations(), vectors::operations(), tokens(), models()];
    operations.into_iter().chain([cache(), health(), internal()]).flatten()
}

const fn path(name: &'static str, description: &'static str, schema: &'static str) -> Parameter {
    Parameter { name, place: "path", description, schema }
}

const fn query(name: &'static str, description: &'static str, schema: &'static str) -> Parameter {
    Parameter { name, place: "query", description, schema }
}

fn generation() -> Vec<Operation> {
    let answer = SuccessBody::JsonOrEvents { whole: "OpenAiAnswer", event: "OpenAiAnswer" };
    let native = SuccessBody::JsonOrEvents { whole: "NativeAnswers", event: "NativeEvent" };
    let chat = Operation {
        summary: "Responds to a conversation, with the model's chat template.",
        ..post("/v1/chat/completions", "ChatRequest", answer)
    };
    let completion = Operation {
        summary: "Continues one or several raw prompts.",
        ..post("/v1/completions", "CompletionRequest", answer)
    };
    let llama_server_operation = Operation {
        summary: "Continues raw prompts, in llama-server's format.",
        ..post("/completion", "NativeCompletionRequest", native)
    };
    let infill = Operation {
        summary: "Generates the text between two texts.",
        errors: &[400, 404, 413, 415, 429, 500, 501, 503],
        ..post("/infill", "InfillRequest", native)
    };
    vec![
        chat.also_at("/chat/completions"),
        chat,
        completion,
        llama_server_operation.also_at("/completions"),
        llama_server_operation,
        infill,
    ]
}

fn dialects() -> Vec<Operation> {
    let message = SuccessBody::JsonOrEvents { whole: "Message", event: "MessageEvent" };
    let response = SuccessBody::JsonOrEvents { whole: "Response", event: "NumberedResponseEvent" };
    let anthropic =
        |operation| Operation { tag: Tag::Anthropic, errors: &[400, 404, 413, 415, 429, 500, 501, 529], ..operation };
    let responses = Operation {
        summary: "Creates a response, which is not stored.",
        ..post("/v1/responses", "ResponsesRequest", response)
    };
    let stored_operation = Operation {
        summary: "Always fails, because responses are not stored.",
        tag: Tag::Generation,
        errors: &[404],
        parameters: &[STORED],
        ..get("/v1/responses/{id}", SuccessBody::Never)
    };
    vec![
        anthropic(Operation { summary: "Creates a message.", ..post("/v1/messages", "MessagesRequest", message) }),
        anthropic(Operation {
            summary: "Counts the tokens of a message's prompt.",
            parameters: &[NAME],
            ..post("/v1/messages/count_tokens", "CountTokensRequest", SuccessBody::Json("InputTokens"))
        }),
        responses.also_at("/responses"),
        responses,
        Operation {
            summary: "Counts the tokens of a response's prompt.",
            parameters: &[NAME],
            ..post("/v1/responses/input_tokens", "InputTokensRequest", SuccessBody::Json("ResponseInputTokens"))
        },
        Operation { method: "delete", ..stored_operation.clone() },
        stored_operation,
    ]
}

fn tokens() -> Vec<Operation> {
    let post = |path, request, answer| Operation {
        tag: Tag::Tokens,
        errors: &[400, 413, 415, 429, 500, 503],
        parameters: &[NAME],
        ..post(path, request, SuccessBody::Json(answer))
    };
    let count = Operation {
        summary: "Counts the tokens of a chat's prompt.",
        ..post("/v1/chat/completions/input_tokens", "TemplateRequest", "InputTokens")
    };
    vec![
        Operation { summary: "Returns the tokens of a text.", ..post("/tokenize", "TokenizeRequest", "Tokens") },
        Operation { summary: "Returns the text of tokens.", ..post("/detokenize", "DetokenizeRequest", "Text") },
        Operation {
            summary: "Renders a conversation.",
            ..post("/apply-template", "TemplateRequest", "RenderedPrompt")
        },
        count.also_at("/chat/completions/input_tokens"),
        count,
    ]
}

fn models() -> Vec<Operation> {
    let get = |path, answer| Operation { tag: Tag::Models, ..get(path, SuccessBody::Json(answer)) };
    let order = |path| Operation {
        tag: Tag::Hosts,
        errors: &[400, 403, 404, 408, 413, 502, 503, 504],
        parameters: &[],
        ..post(path, "ModelOrder", SuccessBody::Json("ModelOrdered"))
    };
    let list = Operation {
        summary: "Returns the models, each under each of its names.",
        errors: &[400, 503, 529],
        parameters: &[VERSION, LIMIT, AFTER_MODEL, BEFORE_MODEL],
        ..get("/v1/models", "ModelList")
    };
    vec![
        Operation { parameters: &[VERSION, LIMIT, AFTER_MODEL, BEFORE_MODEL, RELOAD], ..list.also_at("/models") },
        list,
        Operation { summary: "Has a host download a model of Hugging Face.", ..order("/models") },
        Operation {
            method: "delete",
            summary: "Has the hosts remove a downloaded model with its files.",
            request: None,
            parameters: &[REMOVED_MODEL],
            ..order("/models")
        },
        Operation { summary: "Has a host load a model.", ..order("/models/load") },
        Operation { summary: "Has the hosts unload a model.", ..order("/models/unload") },
        Operation {
            summary: "Returns the states of the models as events, until the client leaves.",
            tag: Tag::Hosts,
            errors: &[429, 503],
            answer: SuccessBody::Bytes("text/event-stream"),
            ..get("/models/sse", "ModelOrdered")
        },
        Operation {
            summary: "Describes a model.",
            errors: &[404, 503, 529],
            parameters: &[MODEL, VERSION],
            ..get("/v1/models/{model}", "Model")
        },
        Operation {
            summary: "Returns the settings, at a router those of a model.",
            errors: &[404, 503, 529],
            parameters: &[MODEL_OF_PROPS],
            ..get("/props", "Props")
        },
    ]
}

fn cache() -> Vec<Operation> {
    let get = |path, answer| Operation { tag: Tag::Cache, errors: &[400, 429, 500, 503], ..get(path, answer) };
    let post = |path, answer| Operation { method: "post", ..get(path, SuccessBody::Json(answer)) };
    vec![
        Operation {
            summary: "Returns the request and the state of each slot.",
            parameters: &[MODEL_OF_REPORT, AUTOLOAD],
            ..get("/slots", SuccessBody::Json("Slots"))
        },
        Operation {
            summary: "Saves, restores or erases the state of a slot.",
            request: Some("SlotFileRequest"),
            errors: &[400, 404, 413, 415, 429, 500, 501, 503],
            parameters: &[SLOT, ACTION],
            ..post("/slots/{id}", "SlotAction")
        },
        Operation {
            summary: "Returns the content of the cache, in pages.",
            parameters: &[ENTRIES, AFTER_ENTRY],
            ..get("/cache", SuccessBody::Json("Cache"))
        },
        Operation { summary: "Clears the cache.", ..post("/cache/clear", "Cleared") },
        Operation { summary: "Returns the pins.", ..get("/cache/pin", SuccessBody::Json("Pins")) },
        Operation {
            summary: "Pins a prefix.",
            request: Some("PinRequest"),
            errors: &[400, 404, 413, 415, 429, 500, 501, 503],
            ..post("/cache/pin", "Pin")
        },
        Operation {
            method: "delete",
            summary: "Removes a pin.",
            errors: &[400, 404, 429, 500, 501, 503],
            parameters: &[PIN],
            ..get("/cache/pin/{id}", SuccessBody::Json("Unpinned"))
        },
    ]
}

fn health() -> Vec<Operation> {
    let health = Operation {
        summary: "Returns whether requests are accepted, in llama-server's format.",
        ..get("/health", SuccessBody::Json("Status"))
    };
    vec![
        Operation {
            summary: "Returns whether the process serves HTTP.",
            errors: &[],
            ..get("/livez", SuccessBody::Json("Status"))
        },
        Operation { summary: "Returns whether requests are accepted.", ..get("/readyz", SuccessBody::Json("Status")) },
        health.also_at("/v1/health"),
        health,
        Operation {
            summary: "Returns the metrics in Prometheus' text format.",
            errors: &[],
            parameters: &[MODEL_OF_REPORT, AUTOLOAD],
            ..get("/metrics", SuccessBody::Bytes("text/plain"))
        },
        Operation {
            summary: "This document.",
            tag: Tag::Models,
            errors: &[],
            ..get("/openapi.json", SuccessBody::Json("Document"))
        },
    ]
}

fn internal() -> Vec<Operation> {
    let get = |path, answer| Operation { tag: Tag::Internal, errors: &[400, 500, 503], ..get(path, answer) };
    vec![
        Operation {
            summary: "Returns the cached blocks and the load of the worker.",
            ..get("/internal/v1/summary", SuccessBody::Json("Summary"))
        },
        Operation {
            summary: "Returns the cached blocks and the load as frames, then every change.",
            parameters: &[AFTER_STAMP],
            ..get("/internal/v1/summary/stream", SuccessBody::Bytes(warmpath_common::summary::CONTENT_TYPE))
        },
        Operation {
            summary: "Returns the model's metadata as a GGUF file without tensors.",
            ..get("/internal/v1/vocabulary", SuccessBody::Bytes("application/octet-stream"))
        },
        Operation {
            summary: "Returns the tokens that stand for an image or audio of a size.",
            errors: &[400, 500, 501, 503],
            parameters: &[IMAGE_WIDTH, IMAGE_HEIGHT, AUDIO_SAMPLES, AUDIO_RATE],
            ..get("/internal/v1/media-layout", SuccessBody::Json("MediaLayout"))
        },
        Operation {
            summary: "Returns the KV state of the blocks that end with the named one, as records of the disk tier.",
            errors: &[400, 404, 500, 501, 503],
            parameters: &[LAST_BLOCK, N_BLOCKS, STATE_LAYOUT, SHORTER_RUNS],
            ..get("/internal/v1/kv/{key}", SuccessBody::Bytes("application/octet-stream"))
        },
        Operation {
            summary: "Returns the most valuable prefixes in the cache.",
            errors: &[400, 404, 429, 500, 501, 503],
            parameters: &[N_TOKENS],
            ..get("/internal/v1/kv", SuccessBody::Json("HotPrefixes"))
        },
        Operation {
            tag: Tag::Internal,
            summary: "Fetches KV state from other workers in the background.",
            errors: &[400, 404, 413, 415, 500, 501, 503],
            parameters: &[],
            ..post("/internal/v1/kv", "PrefetchRequest", SuccessBody::Json("Prefetching"))
        },
    ]
}
