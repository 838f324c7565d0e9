//! The part of a request's body that routing reads: the fields of every endpoint, and the prompt in its endpoint's
//! form.
//!
//! A dialect's body is first converted to a chat, by the function that the worker uses as well. Not here: the prompt's
//! tokens.

use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use warmpath_common::dialects::{Converted, DialectError, Spelling, anthropic, responses};
use warmpath_common::empty_maps;
use warmpath_common::fields::{self, ReadError};
use warmpath_common::host::RequestFields;
use warmpath_common::lora::RequestedAdapter;
use warmpath_common::openai::{self, ChatPrompt};
use warmpath_common::prompts::{CompletionPrompt, InfillPrompt, RawPrompt, SuffixOfTokens};
use warmpath_common::salt;
use warmpath_common::whole::Whole;
use warmpath_shell::refusal::respelled;

use crate::endpoint::EndpointKind;
use crate::error::RequestError;

/// The parsed part of a body.
pub struct ParsedBody {
    /// Fields that every endpoint has.
    pub options: Options,
    /// The prompt.
    pub parsed: Parsed,
    /// Converts a chat's field names to those of the client's dialect.
    pub spelling: Spelling,
}

/// Form in which a client wants the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delivery {
    /// One object.
    #[default]
    Whole,
    /// Events.
    Stream,
}

impl Delivery {
    /// Returns the form that `stream` asks for; a value that is no bool asks for nothing, and the worker refuses it.
    fn of_field<'de, D: Deserializer<'de>>(stream: D) -> Result<Self, D::Error> {
        let wanted = Value::deserialize(stream)?;
        Ok(if wanted == Value::Bool(true) { Self::Stream } else { Self::Whole })
    }

    /// Returns the form that a body asks for, which need not be valid.
    pub fn of_body(body: &[u8]) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Wanted {
            #[serde(deserialize_with = "Delivery::of_field")]
            stream: Delivery,
        }
        serde_json::from_slice(body).map(|Wanted { stream }| stream).unwrap_or_default()
    }
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// A response.
    #[default]
    Response,
    /// Filling the cache for later requests; nothing is generated.
    Prewarm,
}

/// Fields that every endpoint has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Name of the model; absent means the only one.
    pub model: Option<String>,
    /// Salt in the body.
    #[serde(deserialize_with = "salt::of_body")]
    pub cache_salt: Option<String>,
    /// Whether the request reuses cached state.
    pub cache_prompt: Option<bool>,
    /// Number of choices of each prompt.
    #[serde(alias = "n_cmpl")]
    pub n: Option<Whole<u32>>,
    /// Adapters to apply, with their scales.
    pub lora: Option<Vec<RequestedAdapter>>,
    /// Form of the response.
    #[serde(rename = "stream", deserialize_with = "Delivery::of_field")]
    pub delivery: Delivery,
    /// Limit of the response's length, of any type; the worker checks it.
    pub max_completion_tokens: Option<Value>,
    /// The same limit; the first of the three fields that is set counts.
    pub max_tokens: Option<Value>,
    /// The same limit.
    pub n_predict: Option<Value>,
    /// Key of similar prompts, which clients set to a session's id; of any type, since nothing is decided by it.
    pub prompt_cache_key: Option<Value>,
}

impl Options {
    /// Returns what the request is for.
    pub fn purpose(&self) -> Purpose {
        let limit = self.max_completion_tokens.as_ref().or(self.max_tokens.as_ref()).or(self.n_predict.as_ref());
        let is_none = limit.is_some_and(|limit| limit.as_f64() == Some(0.0));
        if is_none { Purpose::Prewarm } else { Purpose::Response }
    }
}

/// All fields read from a chat's body, in one pass: skipping a long body takes as long as reading it.
#[derive(Debug, Deserialize)]
struct ChatBody {
    model: Option<String>,
    #[serde(deserialize_with = "openai::messages_to_show")]
    messages: Vec<Map<String, Value>>,
    #[serde(default, deserialize_with = "openai::tools_to_offer")]
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    #[serde(default, deserialize_with = "empty_maps::optional_object")]
    chat_template_kwargs: Option<Map<String, Value>>,
    reasoning_effort: Option<String>,
    add_generation_prompt: Option<bool>,
    #[serde(default, deserialize_with = "salt::of_body")]
    cache_salt: Option<String>,
    cache_prompt: Option<bool>,
    #[serde(alias = "n_cmpl")]
    n: Option<Whole<u32>>,
    lora: Option<Vec<RequestedAdapter>>,
    #[serde(default, rename = "stream", deserialize_with = "Delivery::of_field")]
    delivery: Delivery,
    max_completion_tokens: Option<Value>,
    max_tokens: Option<Value>,
    n_predict: Option<Value>,
    prompt_cache_key: Option<Value>,
}

impl ChatBody {
    fn into_parts(self) -> (Options, ChatPrompt) {
        let options = Options {
            model: self.model.clone(),
            cache_salt: self.cache_salt.clone(),
            cache_prompt: self.cache_prompt,
            n: self.n,
            lora: self.lora,
            delivery: self.delivery,
            max_completion_tokens: self.max_completion_tokens,
            max_tokens: self.max_tokens,
            n_predict: self.n_predict,
            prompt_cache_key: self.prompt_cache_key,
        };
        let chat = ChatPrompt {
            model: self.model,
            messages: self.messages,
            tools: self.tools,
            tool_choice: self.tool_choice,
            chat_template_kwargs: self.chat_template_kwargs,
            reasoning_effort: self.reasoning_effort,
            add_generation_prompt: self.add_generation_prompt,
            cache_salt: self.cache_salt,
            cache_breakpoints: Vec::new(),
        };
        (options, chat)
    }
}

/// The one field read from a body without a prompt.
#[derive(Debug, Deserialize)]
struct Named {
    model: Option<String>,
}

/// Fields read from a body about a prompt, whatever their types: as JSON text, because a parsed value may take many
/// times the memory.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Aside {
    model: Option<Box<RawValue>>,
    cache_salt: Option<Box<RawValue>>,
}

/// Parsed prompt of a body.
pub enum Parsed {
    /// A conversation.
    Chat(Box<ChatPrompt>),
    /// Texts or tokens.
    Raw(Vec<RawPrompt>),
    /// It cannot be converted to a chat here; a stock server may accept it.
    Foreign(DialectError),
    /// The endpoint has no prompt.
    None,
}

/// Returns the part of a body that routing reads.
///
/// Errors: `Unreadable`, `Dialect` and `Field` if the body is plainly invalid.
pub fn parse(endpoint: EndpointKind, body: &[u8]) -> Result<ParsedBody, RequestError> {
    let (options, parsed) = match endpoint {
        EndpointKind::Passthrough(_) => (parse_passthrough(body)?, Parsed::None),
        EndpointKind::Embeddings | EndpointKind::Rerank => {
            let Named { model } = fields::read(body)?;
            (Options { model, ..Options::default() }, Parsed::None)
        }
        EndpointKind::Chat => parse_chat(body)?,
        EndpointKind::Completion => {
            let prompts = fields::read::<CompletionPrompt>(body)?.into_prompts();
            let prompts = prompts.map_err(|error| RequestError::field(SuffixOfTokens::PARAM, error.to_string()))?;
            (fields::read(body)?, Parsed::Raw(prompts))
        }
        EndpointKind::Infill => {
            (fields::read(body)?, Parsed::Raw(vec![RawPrompt::Infill(fields::read::<InfillPrompt>(body)?)]))
        }
        EndpointKind::Messages => return parse_dialect(body, anthropic::messages),
        EndpointKind::Responses => return parse_dialect(body, responses::responses),
    };
    Ok(ParsedBody { options, parsed, spelling: Spelling::default() })
}

/// Returns a body with these fields in place of its own ones, and without those that are `null` in these.
///
/// Errors: `Unreadable` if it is no JSON object.
pub(super) fn with_fields(body: &[u8], changes: &RequestFields) -> Result<Bytes, RequestError> {
    let mut fields: RequestFields = fields::read_untyped(body)?;
    for (name, value) in changes {
        if value.is_null() {
            fields.remove(name);
        } else {
            fields.insert(name.clone(), value.clone());
        }
    }
    Ok(Value::Object(fields).to_string().into())
}

/// Returns the fields of a body about a prompt; the worker reports any other error in it.
///
/// Errors: `Unreadable` if it is no JSON object, or has one of the fields twice, because the worker might take the
/// other one.
fn parse_passthrough(body: &[u8]) -> Result<Options, RequestError> {
    let Aside { model, cache_salt } = fields::read(body)?;
    // A tenant's key forbids a salt of any form in the body, so a salt that is not text must be seen as well.
    let cache_salt = cache_salt.map(|salt| text(&salt).unwrap_or_else(|| salt.get().to_owned()));
    let model = model.and_then(|model| text(&model));
    Ok(Options { model, cache_salt, ..Options::default() })
}

/// Returns the text that a field has; `None` if it has anything else.
fn text(field: &RawValue) -> Option<String> {
    serde_json::from_str(field.get()).ok()
}

fn parse_chat(body: &[u8]) -> Result<(Options, Parsed), RequestError> {
    let (options, chat) = fields::read_untyped::<ChatBody>(body)?.into_parts();
    if chat.messages.is_empty() {
        return Err(RequestError::field("messages", "`messages` must not be empty"));
    }
    Ok((options, Parsed::Chat(Box::new(chat))))
}

fn parse_dialect(
    body: &[u8],
    convert: fn(&[u8]) -> Result<Converted, DialectError>,
) -> Result<ParsedBody, RequestError> {
    let (parsed, spelling) = match convert(body) {
        Ok(Converted { body: chat, spelling, .. }) => (parse_chat(&chat), spelling),
        // A stock server would answer without the conversation that another request left somewhere.
        Err(
            error @ (DialectError::Thread
            | DialectError::Read(ReadError::Json { .. } | ReadError::Field { param: None, .. })),
        ) => return Err(error.into()),
        Err(error) => (
            fields::read(body).map(|options| (options, Parsed::Foreign(error))).map_err(Into::into),
            Spelling::default(),
        ),
    };
    let (options, parsed) = parsed.map_err(|error| respelled(error, &spelling))?;
    Ok(ParsedBody { options: Options { n: None, ..options }, parsed, spelling })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_limit_of_no_tokens_only_fills_the_cache_in_every_dialect() {
        let check = |endpoint, body: Value, expected: Purpose| {
            let parsed = parse(endpoint, body.to_string().as_bytes()).expect("it is valid");
            assert_eq!(parsed.options.purpose(), expected, "{body}");
        };
        let messages = json!([{"role": "user", "content": "Hi"}]);
        for (name, n, expected) in [
            ("max_tokens", json!(0), Purpose::Prewarm),
            ("max_tokens", json!(0.0), Purpose::Prewarm),
            ("max_tokens", json!(1), Purpose::Response),
            ("max_tokens", json!("0"), Purpose::Response),
            ("max_completion_tokens", json!(0), Purpose::Prewarm),
            ("n_predict", json!(0), Purpose::Prewarm),
            ("n_predict", json!(null), Purpose::Response),
        ] {
            check(EndpointKind::Chat, json!({"messages": messages, name: n}), expected);
            check(EndpointKind::Completion, json!({"prompt": "Hi", name: n}), expected);
        }
        check(EndpointKind::Chat, json!({"messages": messages, "max_tokens": 5, "n_predict": 0}), Purpose::Response);
        check(EndpointKind::Messages, json!({"messages": messages, "max_tokens": 0}), Purpose::Prewarm);
        let prewarm = json!({"input": "Hi", "prompt_cache_options": {"prewarm": true}, "max_output_tokens": 9});
        check(EndpointKind::Responses, prewarm, Purpose::Prewarm);
        check(EndpointKind::Responses, json!({"input": "Hi", "prompt_cache_options": {}}), Purpose::Response);
    }

    #[test]
    fn empty_lists_in_place_of_maps_give_the_prompt_of_empty_maps() {
        let chat = |body: Value| match parse(EndpointKind::Chat, body.to_string().as_bytes()) {
            Ok(ParsedBody { parsed: Parsed::Chat(chat), .. }) => *chat,
            _ => panic!("{body} is a chat"),
        };
        let body = |empty: Value| {
            let parameters = json!({"type": "object", "properties": {"a": empty}, "patternProperties": empty});
            let tools = [empty.clone(), parameters]
                .map(|parameters| json!({"type": "function", "function": {"name": "f", "parameters": parameters}}));
            json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools})
        };
        assert_eq!(chat(body(json!([]))), chat(body(json!({}))));
        let mut with_nothing = body(json!({}));
        for field in ["chat_template_kwargs", "metadata", "logit_bias", "response_format"] {
            with_nothing[field] = json!([]);
        }
        assert_eq!(chat(with_nothing), chat(body(json!({}))));
    }
}
