//! The prompts of a request as tokens.
//!
//! Not here: the fields of bodies (`request`), a chat's prompt (`lifecycle::chat`).

use warmpath_common::prompts::RawPrompt;
use warmpath_prompt::{PromptTokens, Scope};

use super::chat;
use super::tokenized_prompt::TokenizedPrompt;
use crate::error::RequestError;
use crate::loaded_model::generator::Generator;
use crate::request::{Repeats, UntokenizedPrompts};

/// Returns a request's prompts, at least one; only requests with the same `salt` share cached tokens.
///
/// Errors: `Field` for tools, prompts and media, `Prompt` for messages, `Unsupported`, `NoFim`, `PromptTooLong` if one
/// is far too long.
pub fn read(
    generator: &Generator,
    prompt: UntokenizedPrompts,
    salt: &str,
) -> Result<Vec<TokenizedPrompt>, RequestError> {
    match prompt {
        UntokenizedPrompts::Chat(mut chat, tools) => {
            chat.cache_salt = Some(salt.to_owned());
            Ok(vec![chat::read(generator, &chat, &tools)?])
        }
        UntokenizedPrompts::Raw(prompts, repeats) => raw(generator, &prompts, salt)?
            .into_iter()
            .map(|prompt_tokens| TokenizedPrompt::raw(generator, prompt_tokens, repeats))
            .collect(),
        UntokenizedPrompts::Infill(gap) => {
            let prompt_tokens = tokens(generator, &RawPrompt::Infill(gap), salt)?;
            Ok(vec![TokenizedPrompt::raw(generator, prompt_tokens, Repeats::Text)?])
        }
    }
}

/// Returns the tokens of a completion's prompts.
///
/// Errors: `Field` for too many prompts and for media, `Unsupported` for a suffix, `PromptTooLong`.
pub fn raw(generator: &Generator, prompts: &[RawPrompt], salt: &str) -> Result<Vec<PromptTokens>, RequestError> {
    let n_prompts = prompts.len();
    if n_prompts > generator.n_places() {
        let reason = format!("{n_prompts} prompts are given; this worker allows at most {}", generator.n_places());
        return Err(RequestError::field("prompt", reason));
    }
    let of_suffix = |error| match error {
        RequestError::NoFim => RequestError::Unsupported { param: "suffix", only: Some("the model cannot fill gaps") },
        error => error,
    };
    prompts.iter().map(|prompt| tokens(generator, prompt, salt).map_err(of_suffix)).collect()
}

fn tokens(generator: &Generator, prompt: &RawPrompt, salt: &str) -> Result<PromptTokens, RequestError> {
    let slot = generator.slot_context();
    let prompt_tokens = generator.common.prompts.raw(prompt, slot.context_tokens, Scope::of(salt));
    let prompt_tokens = prompt_tokens.map_err(|error| RequestError::of_raw(error, slot))?;
    prompt_tokens.whole().map_err(|reason| RequestError::field("prompt", reason))
}
