//! Conversion of Ollama's requests into those of OpenAI's API.
//!
//! Only a router speaks Ollama's API: it converts a request before its way through the router, and the answer behind it
//! (`warmpath-router-core`), so workers and stock servers need not know it. As in Ollama, unknown fields are ignored;
//! some fields of a chat are passed on (`settings`).
//! Source: Ollama 0.33, `docs/api.md` and `api/types.go`.

mod messages;
mod settings;

use serde_json::{Map, Value, json};

use super::field::{Field, Object, unsupported};
use super::spelling::{Origins, RenamedField, renamed};
use super::{DialectError, Spelling, read_object, write};
use messages::{Reader, content};

/// Version of the API; clients compare it with the one that they need.
pub const VERSION: &str = "0.33.0";

/// Tag of a name that has none.
pub const LATEST: &str = ":latest";

/// Field names of OpenAI's API, each with its name in Ollama's; options are read by this table.
const RENAMED: &[RenamedField] = &[
    renamed("response_format.json_schema.schema", "format"),
    renamed("response_format", "format"),
    renamed("reasoning_effort", "think"),
    renamed("max_tokens", "options.num_predict"),
    renamed("n_keep", "options.num_keep"),
    renamed("temperature", "options.temperature"),
    renamed("top_k", "options.top_k"),
    renamed("top_p", "options.top_p"),
    renamed("min_p", "options.min_p"),
    renamed("typical_p", "options.typical_p"),
    renamed("repeat_last_n", "options.repeat_last_n"),
    renamed("repeat_penalty", "options.repeat_penalty"),
    renamed("presence_penalty", "options.presence_penalty"),
    renamed("frequency_penalty", "options.frequency_penalty"),
    renamed("mirostat_tau", "options.mirostat_tau"),
    renamed("mirostat_eta", "options.mirostat_eta"),
    renamed("mirostat", "options.mirostat"),
    renamed("seed", "options.seed"),
    renamed("stop", "options.stop"),
];

/// The same of a request to `/api/embeddings`.
const RENAMED_OF_EMBEDDINGS: &[RenamedField] = &[renamed("input", "prompt")];

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OllamaTask {
    /// An answer to a chat.
    Chat,
    /// The continuation of a text.
    Completion,
    /// Vectors of texts.
    Embeddings,
    /// Nothing but loading the model: there is no prompt.
    Load,
    /// Nothing but unloading the model: there is no prompt, and `keep_alive` is 0.
    Unload,
}

/// Form of the answer: that of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerForm {
    /// `/api/chat`.
    Chat,
    /// `/api/generate`.
    Generate,
    /// `/api/embed`.
    Embed,
    /// `/api/embeddings`, with one vector.
    Embedding,
}

/// A request of Ollama's API, converted.
#[derive(Debug, Clone, PartialEq)]
pub struct OllamaRequest {
    /// Name of the model as the client wrote it; `None` for the only one.
    pub model: Option<String>,
    /// Purpose.
    pub task: OllamaTask,
    /// Form of the answer.
    pub form: AnswerForm,
    /// Map from the field names of the converted request back to Ollama's.
    pub spelling: Spelling,
    /// Fields of the converted request, without the model.
    fields: Map<String, Value>,
}

impl OllamaRequest {
    /// Takes the converted request as JSON, with this name of the model.
    pub fn take_body(&mut self, model: Option<&str>) -> Vec<u8> {
        let mut fields = std::mem::take(&mut self.fields);
        if let Some(model) = model {
            fields.insert("model".to_owned(), model.into());
        }
        write(&fields)
    }

    /// Returns the request of a body without a prompt.
    fn without_prompt(model: Option<String>, task: OllamaTask, form: AnswerForm) -> Self {
        Self { model, task, form, spelling: Spelling::default(), fields: Map::new() }
    }
}

/// Returns whether a path is one of Ollama's API.
pub fn is_path(path: &str) -> bool {
    path.strip_prefix("/api").is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// Converts a request to `/api/chat`.
///
/// Errors: every [`DialectError`] but `Thread`.
pub fn chat(body: &[u8]) -> Result<OllamaRequest, DialectError> {
    let mut fields = read_object(body)?;
    let model = take_model(&mut fields)?;
    let task_without_prompt = settings::read_keep_alive(&mut fields)?;
    let mut reader = Reader::default();
    for message in fields.optional_items("messages")? {
        reader.read(message.object()?)?;
    }
    let (messages, origins) = reader.finish();
    if messages.is_empty() {
        return Ok(OllamaRequest::without_prompt(model, task_without_prompt, AnswerForm::Chat));
    }
    let tools: Vec<Value> = fields.optional_items("tools")?.into_iter().map(|tool| tool.value).collect();
    let mut chat = Map::new();
    chat.insert("messages".to_owned(), messages.into());
    if !tools.is_empty() {
        chat.insert("tools".to_owned(), tools.into());
    }
    settings::read_shared(&mut fields, &mut chat)?;
    settings::read_thinking(&mut fields, &mut chat)?;
    settings::read_logprobs_of_chat(&mut fields, &mut chat)?;
    let spelling = Spelling::new(RENAMED, "", Origins { messages: origins, tools: Vec::new() });
    Ok(OllamaRequest { model, task: OllamaTask::Chat, form: AnswerForm::Chat, spelling, fields: chat })
}

/// Converts a request to `/api/generate`: to a chat with one question, or to a completion of a raw prompt or of a gap.
///
/// Errors: as of [`chat`].
pub fn generate(body: &[u8]) -> Result<OllamaRequest, DialectError> {
    let mut fields = read_object(body)?;
    let model = take_model(&mut fields)?;
    let task_without_prompt = settings::read_keep_alive(&mut fields)?;
    let text = |fields: &mut Object, name: &str| fields.optional_text(name).map(Option::unwrap_or_default);
    let (prompt, suffix) = (text(&mut fields, "prompt")?, text(&mut fields, "suffix")?);
    let images = fields.optional_items("images")?;
    if prompt.is_empty() && suffix.is_empty() && images.is_empty() {
        return Ok(OllamaRequest::without_prompt(model, task_without_prompt, AnswerForm::Generate));
    }
    // What a router cannot do with a prompt.
    let system = text(&mut fields, "system")?;
    if !text(&mut fields, "template")?.is_empty() {
        let reason = "the model's own chat template is used; with `raw` a prompt is sent as it is";
        return Err(unsupported("template", reason));
    }
    if fields.take("context").is_some_and(|context| context.value != json!([])) {
        return Err(unsupported("context", "conversations are sent as messages, to `/api/chat`"));
    }
    let is_raw = settings::take_switch(&mut fields, "raw")?.unwrap_or_default();
    let mut request = Map::new();
    settings::read_shared(&mut fields, &mut request)?;
    // A raw prompt, or a gap.
    if is_raw || !suffix.is_empty() {
        if !images.is_empty() {
            return Err(unsupported("images", "images need a prompt that is not `raw` and has no `suffix`"));
        }
        if is_raw && !system.is_empty() {
            return Err(unsupported("system", "a `raw` prompt is sent as it is"));
        }
        request.insert("prompt".to_owned(), prompt.into());
        if !suffix.is_empty() {
            request.insert("suffix".to_owned(), suffix.into());
        }
        settings::read_logprobs_of_completion(&mut fields, &mut request)?;
        let spelling = Spelling::new(RENAMED, "", Origins::default());
        let (task, form) = (OllamaTask::Completion, AnswerForm::Generate);
        return Ok(OllamaRequest { model, task, form, spelling, fields: request });
    }
    // A question.
    let (mut messages, mut origins) = (Vec::new(), Vec::new());
    if !system.is_empty() {
        messages.push(json!({"role": "system", "content": system}));
        origins.push("system".to_owned());
    }
    messages.push(json!({"role": "user", "content": content(prompt, images)?}));
    origins.push("prompt".to_owned());
    request.insert("messages".to_owned(), messages.into());
    settings::read_thinking(&mut fields, &mut request)?;
    settings::read_logprobs_of_chat(&mut fields, &mut request)?;
    let spelling = Spelling::new(RENAMED, "", Origins { messages: origins, tools: Vec::new() });
    Ok(OllamaRequest { model, task: OllamaTask::Chat, form: AnswerForm::Generate, spelling, fields: request })
}

/// Converts a request to `/api/embed`.
///
/// Errors: as of [`chat`].
pub fn embed(body: &[u8]) -> Result<OllamaRequest, DialectError> {
    let mut fields = read_object(body)?;
    let input = fields.take("input");
    let is_empty = |input: &Field| input.value == json!("") || input.value == json!([]);
    let texts = match input.filter(|input| !is_empty(input)) {
        None => None,
        Some(Field { value: Value::String(text), .. }) => Some(Value::String(text)),
        Some(input) => Some(input.items()?.into_iter().map(Field::text).collect::<Result<Vec<_>, _>>()?.into()),
    };
    let dimensions = fields.take("dimensions").filter(|dimensions| dimensions.value.as_f64() != Some(0.0));
    let is_cut = settings::take_switch(&mut fields, "truncate")?.unwrap_or(true);
    let mut request = vectors(&mut fields, texts, AnswerForm::Embed)?;
    if request.task == OllamaTask::Embeddings {
        request.fields.insert("truncate".to_owned(), is_cut.into());
        request.fields.extend(dimensions.map(|dimensions| ("dimensions".to_owned(), dimensions.value)));
    }
    Ok(request)
}

/// Converts a request to `/api/embeddings`.
///
/// Errors: as of [`chat`].
pub fn embeddings(body: &[u8]) -> Result<OllamaRequest, DialectError> {
    let mut fields = read_object(body)?;
    let prompt = fields.optional_text("prompt")?.filter(|prompt| !prompt.is_empty());
    let mut request = vectors(&mut fields, prompt.map(Value::String), AnswerForm::Embedding)?;
    request.spelling = Spelling::new(RENAMED_OF_EMBEDDINGS, "", Origins::default());
    Ok(request)
}

/// Returns the model that a request to `/api/show` names; `None` for the only one.
///
/// Errors: as of [`chat`].
pub fn shown_model(body: &[u8]) -> Result<Option<String>, DialectError> {
    let mut fields = read_object(body)?;
    let model = take_model(&mut fields)?;
    // Its former name.
    Ok(model.or(fields.optional_text("name")?.filter(|name| !name.is_empty())))
}

fn vectors(fields: &mut Object, input: Option<Value>, form: AnswerForm) -> Result<OllamaRequest, DialectError> {
    let model = take_model(fields)?;
    let task_without_prompt = settings::read_keep_alive(fields)?;
    let Some(input) = input else { return Ok(OllamaRequest::without_prompt(model, task_without_prompt, form)) };
    let mut request = Map::new();
    request.insert("input".to_owned(), input);
    settings::pass_salt(fields, &mut request);
    let (task, spelling) = (OllamaTask::Embeddings, Spelling::default());
    Ok(OllamaRequest { model, task, form, spelling, fields: request })
}

fn take_model(fields: &mut Object) -> Result<Option<String>, DialectError> {
    Ok(fields.optional_text("model")?.filter(|name| !name.is_empty()))
}

#[cfg(test)]
mod tests;
