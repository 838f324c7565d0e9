//! Bodies of generation requests: the router must read them as the worker does.
//!
//! The router refuses only what the worker refuses as well. Where both accept a body, they agree on everything that
//! decides the root of the prompt's hash chain: two readings of a salt would share a tenant's prefixes.

use std::fmt::Debug;

use warmpath_common::dialects::ollama::{self, OllamaRequest, OllamaTask};
use warmpath_common::dialects::{Converted, DialectError, anthropic, responses};
use warmpath_router::endpoint::EndpointKind;
use warmpath_router::prompt::body::{self, ParsedBody};
use warmpath_worker::request::{
    BodyReader, ChatRequest, CompletionRequest, InfillRequest, NativeCompletionRequest, Request,
};

/// The worker's readers of bodies in its own formats, each with the router's kind of endpoint.
const READERS: [(EndpointKind, BodyReader); 4] = [
    (EndpointKind::Chat, ChatRequest::read),
    (EndpointKind::Completion, CompletionRequest::read),
    (EndpointKind::Completion, NativeCompletionRequest::read),
    (EndpointKind::Infill, InfillRequest::read),
];

/// Converter of a dialect's body into a chat's.
type Convert = fn(&[u8]) -> Result<Converted, DialectError>;

/// The converters of dialects, each with the router's kind of endpoint.
const DIALECTS: [(EndpointKind, Convert); 2] =
    [(EndpointKind::Messages, anthropic::messages), (EndpointKind::Responses, responses::responses)];

/// Converter of one of Ollama's requests.
type ConvertOllama = fn(&[u8]) -> Result<OllamaRequest, DialectError>;

/// The converters of Ollama's requests.
const OF_OLLAMA: [ConvertOllama; 4] = [ollama::chat, ollama::generate, ollama::embed, ollama::embeddings];

/// Reads a body as each endpoint does.
pub(crate) fn run(input: &[u8]) {
    for (endpoint, read) in READERS {
        compare(endpoint, input, read(input).ok());
    }
    for (endpoint, convert) in DIALECTS {
        let chat = convert(input).ok();
        compare(endpoint, input, chat.and_then(|chat| ChatRequest::read(&chat.body).ok()));
    }
    for mut request in OF_OLLAMA.iter().filter_map(|convert| convert(input).ok()) {
        let body = request.take_body(None);
        match request.task {
            OllamaTask::Chat => compare(EndpointKind::Chat, &body, ChatRequest::read(&body).ok()),
            OllamaTask::Completion => compare(EndpointKind::Completion, &body, CompletionRequest::read(&body).ok()),
            OllamaTask::Embeddings => drop(body::parse(EndpointKind::Embeddings, &body)),
            OllamaTask::Load | OllamaTask::Unload => {}
        }
    }
    for endpoint in [EndpointKind::Embeddings, EndpointKind::Rerank, EndpointKind::Passthrough(None)] {
        drop(body::parse(endpoint, input));
    }
}

fn compare(endpoint: EndpointKind, input: &[u8], worker: Option<Request>) {
    let router = body::parse(endpoint, input);
    let Some(worker) = worker else { return };
    let ParsedBody { options: router, .. } =
        router.unwrap_or_else(|error| panic!("{endpoint:?}: the worker accepts it, the router does not: {error}"));
    let worker = worker.shared.options;
    agree(endpoint, "model", &router.model, &worker.model);
    agree(endpoint, "cache_salt", &router.cache_salt, &worker.cache_salt);
    agree(endpoint, "cache_prompt", router.cache_prompt, worker.cache_prompt);
    agree(endpoint, "lora", &router.lora, &worker.lora);
}

fn agree(endpoint: EndpointKind, field: &str, router: impl Debug, worker: impl Debug) {
    assert_eq!(format!("{router:?}"), format!("{worker:?}"), "{endpoint:?}: `{field}`, router and worker");
}
