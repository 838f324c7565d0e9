//! An operation of the API as OpenAPI describes it.
//!
//! Not here: the list of operations (`paths`).

use serde_json::{Map, Value, json};

use super::{DescribedServer, reference};

/// Header that separates a tenant's prompts from others.
const SALT: Parameter = header("x-warmpath-cache-salt", "Like `cache_salt`, which takes precedence.");
pub const NAME: Parameter = header("x-request-id", "Id of the request, up to 128 visible characters.");
const OF_GENERATION: &[Parameter] = &[SALT, NAME];

/// A method at a path.
#[derive(Debug, Clone)]
pub struct Operation {
    pub method: &'static str,
    pub path: &'static str,
    pub summary: &'static str,
    pub tag: Tag,
    /// Schema of the body, if there is one.
    pub request: Option<&'static str>,
    pub answer: SuccessBody,
    /// Statuses of errors, except 405, which every path returns for other methods.
    pub errors: &'static [u16],
    pub parameters: &'static [Parameter],
}

/// Subject of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// Generation, in the dialects of OpenAI and llama-server.
    Generation,
    /// Generation, in Anthropic's dialect.
    Anthropic,
    /// Everything in Ollama's dialect, only at a router.
    Ollama,
    /// Models.
    Models,
    /// Models that a router's hosts load.
    Hosts,
    /// Vocabulary and template.
    Tokens,
    /// A worker's cache.
    Cache,
    /// State of a server.
    Health,
    /// For routers.
    Internal,
}

/// Body of a success.
#[derive(Debug, Clone, Copy)]
pub enum SuccessBody {
    /// One object, by the name of its schema.
    Json(&'static str),
    /// One object, or events if the request has `stream`.
    JsonOrEvents { whole: &'static str, event: &'static str },
    /// One object, or lines of such objects unless the request has `stream: false`.
    JsonOrLines(&'static str),
    /// Bytes of this content type.
    Bytes(&'static str),
    /// No success.
    Never,
}

/// Part of a request outside its body.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    pub name: &'static str,
    /// `path`, `query` or `header`.
    pub place: &'static str,
    pub description: &'static str,
    /// Its JSON schema as text.
    pub schema: &'static str,
}

impl Tag {
    const ALL: [(Self, &'static str, &'static str); 9] = [
        (Self::Generation, "generation", "Chats, completions and responses, as in OpenAI's and llama-server's APIs."),
        (Self::Anthropic, "anthropic", "Messages, as in Anthropic's API."),
        (Self::Ollama, "ollama", "Chats, prompts, vectors and models, as in Ollama's API."),
        (Self::Models, "models", "The served models."),
        (Self::Hosts, "hosts", "Loading and unloading of models, at a router with hosts."),
        (Self::Tokens, "tokens", "Vocabulary and chat template."),
        (Self::Cache, "cache", "Slots, pins and the cache of a worker."),
        (Self::Health, "health", "For orchestrators and monitoring."),
        (Self::Internal, "internal", "Between workers and routers."),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(tag, ..)| *tag == self).map_or("", |(_, name, _)| name)
    }
}

pub const fn header(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, place: "header", description, schema: r#"{"type": "string"}"# }
}

pub fn post(path: &'static str, request: &'static str, answer: SuccessBody) -> Operation {
    let errors = &[400, 404, 413, 415, 429, 500, 501, 503];
    let (tag, parameters) = (Tag::Generation, OF_GENERATION);
    Operation { method: "post", path, summary: "", tag, request: Some(request), answer, errors, parameters }
}

pub fn get(path: &'static str, answer: SuccessBody) -> Operation {
    let (tag, errors) = (Tag::Health, &[503]);
    Operation { method: "get", path, summary: "", tag, request: None, answer, errors, parameters: &[] }
}

impl Operation {
    /// Returns the tags as a document lists them.
    pub fn tags() -> Value {
        Tag::ALL.iter().map(|(_, name, description)| json!({"name": name, "description": description})).collect()
    }

    /// Returns the operation under another path.
    pub fn also_at(&self, path: &'static str) -> Self {
        Self { path, ..self.clone() }
    }

    /// Returns whether a server has the operation.
    pub fn is_served_by(&self, server: DescribedServer) -> bool {
        let of_workers = matches!(self.tag, Tag::Cache | Tag::Internal) && !self.is_report();
        match server {
            DescribedServer::Worker => !matches!(self.tag, Tag::Hosts | Tag::Ollama),
            DescribedServer::Router => !of_workers,
        }
    }

    /// Returns the operation as a document has it.
    pub fn describe(&self, server: DescribedServer) -> Value {
        let mut description = json!({
            "operationId": self.id(),
            "summary": self.summary,
            "tags": [self.tag.name()],
            "responses": self.responses(server),
        });
        if let Some(request) = self.request {
            let content = json!({"application/json": {"schema": reference(request)}});
            description["requestBody"] = json!({"required": true, "content": content});
        }
        if self.is_open(server) {
            description["security"] = json!([]);
        }
        if !self.parameters.is_empty() {
            description["parameters"] = self.parameters.iter().map(Parameter::describe).collect();
        }
        description
    }

    /// Returns whether a router passes the operation to a worker of the named model.
    fn is_report(&self) -> bool {
        self.method == "get" && ["/slots", "/metrics", "/lora-adapters"].contains(&self.path)
    }

    /// Returns whether the operation needs no key even if others do.
    fn is_open(&self, server: DescribedServer) -> bool {
        self.tag == Tag::Health && !(server == DescribedServer::Router && self.is_report())
    }

    fn id(&self) -> String {
        let plain: String = self.path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        format!("{}{}", self.method, plain.trim_end_matches('_'))
    }

    fn responses(&self, server: DescribedServer) -> Map<String, Value> {
        let mut responses = Map::new();
        let mut add = |status: &str, response: Value| drop(responses.insert(status.to_owned(), response));
        match self.answer {
            SuccessBody::Json(schema) => add("200", with_content("application/json", reference(schema))),
            SuccessBody::JsonOrEvents { whole, event } => add("200", whole_or_events(whole, event)),
            SuccessBody::JsonOrLines(schema) => add("200", whole_or_lines(schema)),
            SuccessBody::Bytes(kind) => add("200", with_content(kind, json!({}))),
            SuccessBody::Never => {}
        }
        if self.path.ends_with("/vocabulary") {
            add("304", json!({"description": "The router has the file already."}));
        }
        let unauthorized_status: &[u16] = if self.is_open(server) { &[] } else { &[401] };
        for status in self.errors.iter().chain(unauthorized_status).chain(self.errors_of_router(server)) {
            let schema = match (self.tag, self.path) {
                (Tag::Anthropic, _) => reference("AnthropicError"),
                (Tag::Ollama, _) => reference("OllamaError"),
                (Tag::Models, path) if path.contains("/models") => {
                    json!({"anyOf": [reference("ErrorBody"), reference("AnthropicError")]})
                }
                (_, "/readyz") => reference("Unready"),
                (_, "/health" | "/v1/health") => reference("Unhealthy"),
                _ => reference("ErrorBody"),
            };
            add(&status.to_string(), with_content("application/json", schema));
        }
        for response in responses.values_mut() {
            response["headers"] = json!({"x-request-id": {"schema": {"type": "string"}}});
        }
        if let Some(response) = responses.get_mut("401") {
            response["headers"]["www-authenticate"] = json!({"schema": {"const": "Bearer"}});
        }
        responses
    }

    /// Returns the errors that a router adds to those of its workers.
    fn errors_of_router(&self, server: DescribedServer) -> &'static [u16] {
        match (server, self.tag) {
            (DescribedServer::Router, Tag::Generation | Tag::Tokens) if self.request.is_some() => {
                &[404, 408, 429, 502, 503, 504]
            }
            (DescribedServer::Router, _) if self.is_report() => &[400, 403, 404, 429, 502, 503, 504],
            (DescribedServer::Router, Tag::Anthropic) => &[404, 408, 429, 502, 504],
            _ => &[],
        }
    }
}

impl Parameter {
    fn describe(&self) -> Value {
        let schema: Value = serde_json::from_str(self.schema).expect("the table's schemas are JSON");
        json!({
            "name": self.name,
            "in": self.place,
            "required": self.place == "path",
            "description": self.description,
            "schema": schema,
        })
    }
}

fn with_content(kind: &str, schema: Value) -> Value {
    json!({"description": "", "content": {kind: {"schema": schema}}})
}

/// Description of the schema of an event.
const DATA: &str = "Server-sent events; `x-event-schema` is the schema of the data of each event.";

/// Returns the response of an operation that can be streamed; OpenAPI 3.1 has no keyword for the schema of an event's
/// `data`.
fn whole_or_events(whole_schema: &str, event: &str) -> Value {
    json!({
        "description": "One object, or server-sent events if the request has `stream`.",
        "content": {
            "application/json": {"schema": reference(whole_schema)},
            "text/event-stream": {"schema": {"description": DATA}, "x-event-schema": reference(event)},
        },
    })
}

/// Returns the response of an operation that streams lines; OpenAPI 3.1 has no keyword for the schema of a line.
fn whole_or_lines(schema: &str) -> Value {
    let lines = "Lines of JSON; `x-line-schema` is the schema of each, the last of which may be an error instead.";
    json!({
        "description": "Lines of JSON, or one object if the request has `stream: false`.",
        "content": {
            "application/json": {"schema": reference(schema)},
            "application/x-ndjson": {"schema": {"description": lines}, "x-line-schema": reference(schema)},
        },
    })
}
