//! A request's body as far as routing reads it: the fields that every endpoint has, and the prompt as its endpoint spells it.
//!
//! Not here: what the prompt's tokens are. The idea: a dialect's body is first turned into the chat that it means, by the function that the
//! worker calls as well; from there on it is a chat.

use serde::Deserialize;
use serde_json::{Map, Value};
use warmpath_common::dialects::{Converted, DialectError, Spelling, anthropic, responses};
use warmpath_common::fields::{self, ReadError};
use warmpath_common::lora::Wanted;
use warmpath_common::openai::{self, ChatPrompt};
use warmpath_common::prompts::{CompletionPrompt, InfillPrompt, RawPrompt};
use warmpath_common::salt;

use super::{RawRequest, Shape};
use crate::error::RequestError;

/// Is what is read of a body.
pub(super) struct Body {
    pub(super) options: Options,
    pub(super) parsed: Parsed,
    /// Turns a chat's names into those of the dialect that the client speaks.
    pub(super) spelling: Spelling,
}

/// Is the fields that every endpoint reads alike.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Options {
    pub(super) model: Option<String>,
    #[serde(deserialize_with = "salt::of_body")]
    pub(super) cache_salt: Option<String>,
    pub(super) cache_prompt: Option<bool>,
    pub(super) n: Option<u32>,
    pub(super) lora: Option<Vec<Wanted>>,
}

/// Is a chat's body with all that is read of it, in one pass: a long body takes as long to skip as to read.
#[derive(Debug, Deserialize)]
struct ChatBody {
    model: Option<String>,
    messages: Vec<Map<String, Value>>,
    #[serde(default, deserialize_with = "openai::tools_to_offer")]
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    chat_template_kwargs: Option<Map<String, Value>>,
    reasoning_effort: Option<String>,
    add_generation_prompt: Option<bool>,
    #[serde(default, deserialize_with = "salt::of_body")]
    cache_salt: Option<String>,
    cache_prompt: Option<bool>,
    n: Option<u32>,
    lora: Option<Vec<Wanted>>,
}

impl ChatBody {
    fn into_parts(self) -> (Options, ChatPrompt) {
        let options = Options {
            model: self.model.clone(),
            cache_salt: self.cache_salt.clone(),
            cache_prompt: self.cache_prompt,
            n: self.n,
            lora: self.lora,
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
        };
        (options, chat)
    }
}

/// Is the one field that is read of a body without a prompt.
#[derive(Debug, Deserialize)]
struct Named {
    model: Option<String>,
}

/// Fields that are read of a body about a prompt, whatever they are.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Aside {
    model: Option<Value>,
    cache_salt: Option<Value>,
}

/// Is a body's prompt, parsed.
pub(super) enum Parsed {
    Chat(Box<ChatPrompt>),
    Raw(Vec<RawPrompt>),
    /// No chat can be made of it here; a stock server may know better.
    Foreign(DialectError),
    None,
}

/// Returns what routing reads of a body.
///
/// Errors: `Unreadable`, `Dialect` and `Field` where the body is plainly wrong.
pub(super) fn parse(draft: &RawRequest) -> Result<Body, RequestError> {
    let body = &draft.body;
    let (options, parsed) = match draft.shape {
        Shape::Aside(_) => (parse_aside(body)?, Parsed::None),
        Shape::Embeddings | Shape::Rerank => {
            let Named { model } = fields::read(body)?;
            (Options { model, ..Options::default() }, Parsed::None)
        }
        Shape::Chat => parse_chat(body)?,
        Shape::Completion => {
            let prompts = fields::read::<CompletionPrompt>(body)?.into_prompts();
            let prompts = prompts.map_err(|unusable| RequestError::field(unusable.param(), unusable.to_string()))?;
            (fields::read(body)?, Parsed::Raw(prompts))
        }
        Shape::Infill => {
            (fields::read(body)?, Parsed::Raw(vec![RawPrompt::Infill(fields::read::<InfillPrompt>(body)?)]))
        }
        Shape::Messages => return parse_dialect(body, anthropic::messages),
        Shape::Responses => return parse_dialect(body, responses::responses),
    };
    Ok(Body { options, parsed, spelling: Spelling::default() })
}

/// Returns what is read of a body that is about a prompt: what else is wrong with it, its worker says.
///
/// Errors: `Unreadable` where it is no JSON object, or has one of the fields twice, of which the worker might take the other.
fn parse_aside(body: &[u8]) -> Result<Options, RequestError> {
    let Aside { model, cache_salt } = fields::read(body)?;
    // No tenant's key goes with a salt of any form in the body, so one that is no text must be seen as well.
    let cache_salt = cache_salt.map(|salt| salt.as_str().map_or_else(|| salt.to_string(), str::to_owned));
    let model = model.as_ref().and_then(Value::as_str).map(str::to_owned);
    Ok(Options { model, cache_salt, ..Options::default() })
}

fn parse_chat(body: &[u8]) -> Result<(Options, Parsed), RequestError> {
    let (options, chat) = fields::read::<ChatBody>(body)?.into_parts();
    if chat.messages.is_empty() {
        return Err(RequestError::field("messages", "`messages` must not be empty"));
    }
    Ok((options, Parsed::Chat(Box::new(chat))))
}

fn parse_dialect(body: &[u8], convert: fn(&[u8]) -> Result<Converted, DialectError>) -> Result<Body, RequestError> {
    let (parsed, spelling) = match convert(body) {
        Ok(Converted { body: chat, spelling, .. }) => (parse_chat(&chat), spelling),
        Err(error @ DialectError::Read(ReadError::Json { .. } | ReadError::Field { param: None, .. })) => {
            return Err(error.into());
        }
        Err(error) => (
            fields::read(body).map(|options| (options, Parsed::Foreign(error))).map_err(Into::into),
            Spelling::default(),
        ),
    };
    let (options, parsed) = parsed.map_err(|error| error.respelled(&spelling))?;
    Ok(Body { options: Options { n: None, ..options }, parsed, spelling })
}
