//! The stages of a prompt from its body to its tokens: each takes longer than the one before, and may run on another
//! thread.
//!
//! The length of the text to tokenize is known as soon as a chat is rendered, because tokens of known text are cached.
//!
//! Not here: rendering and tokenizing (`warmpath-prompt`), the choice of thread (the module above).

use std::sync::Arc;

use warmpath_common::ids::Token;
use warmpath_common::model::ModelInfo;
use warmpath_common::prompts::RawPrompt;
use warmpath_prompt::{DroppedReasoning, PreparedPrompt, PromptError, PromptTokens, Scope, TooManyTokens};
use warmpath_router_core::stock::text_blocks;

use super::body::Parsed;
use crate::error::RequestError;
use crate::fleet::Fleet;
use crate::fleet::vocabulary::{TemplateUse, Vocabulary, VocabularyState};

/// Stage of a prompt.
pub(super) enum PromptStage {
    /// Its body has been parsed.
    Parsed(Parsed),
    /// It has been rendered.
    Rendered(Arc<Vocabulary>, Box<PreparedPrompt>),
    /// It is neither a chat nor a text, and has this part to tokenize.
    Raw(Arc<Vocabulary>, Box<RawPrompt>),
    /// Its tokens are known.
    Tokens(Vec<Token>),
    /// It cannot be tokenized here; the reason is for metrics.
    Unknown(&'static str),
}

impl PromptStage {
    /// Returns the number of messages that have yet to be rendered.
    pub(super) fn n_unrendered(&self) -> usize {
        match self {
            Self::Parsed(Parsed::Chat(chat)) => chat.messages.len(),
            _ => 0,
        }
    }

    /// Returns whether it has media, which take long to read.
    pub(super) fn has_media(&self) -> bool {
        match self {
            Self::Parsed(Parsed::Chat(chat)) => warmpath_prompt::has_media(chat),
            Self::Parsed(Parsed::Raw(prompts)) => prompts.iter().any(|prompt| matches!(prompt, RawPrompt::Media(_))),
            _ => false,
        }
    }

    /// Returns whether the rest is tokenized in less time than moving it to another thread would be worth.
    pub(super) fn is_quick(&self) -> bool {
        match self {
            Self::Rendered(vocabulary, text) => text.unseen_bytes() <= vocabulary.maker.quick_bytes_max(),
            Self::Raw(vocabulary, prompt) => prompt.n_bytes() <= vocabulary.maker.quick_bytes_max(),
            Self::Parsed(_) | Self::Tokens(_) | Self::Unknown(_) => true,
        }
    }

    /// Returns whether the prompt is a chat whose template renders tools behind the system text.
    pub(super) fn has_tools_behind_system_text(&self) -> bool {
        matches!(self, Self::Rendered(vocabulary, _) if vocabulary.maker.has_tools_behind_system_text())
    }

    /// Checks that the rendered text is not far longer than a context.
    ///
    /// Errors: `TooManyTokens`.
    pub(super) fn check_length(&self, context_tokens: u32) -> Result<(), TooManyTokens> {
        match self {
            Self::Rendered(vocabulary, text) => vocabulary.maker.check_length(text, context_tokens as usize),
            Self::Parsed(_) | Self::Raw(..) | Self::Tokens(_) | Self::Unknown(_) => Ok(()),
        }
    }

    /// Returns the earlier reasoning that the template leaves out of a chat that has not been rendered.
    ///
    /// Cost: that of rendering and tokenizing it, several times.
    pub(super) fn dropped_reasoning(&self, fleet: &Fleet, model: &ModelInfo) -> Option<DroppedReasoning> {
        let Self::Parsed(Parsed::Chat(chat)) = self else { return None };
        match fleet.vocabulary(model)? {
            VocabularyState::Ready(vocabulary) if vocabulary.template == TemplateUse::Known => {
                vocabulary.maker.dropped_reasoning(chat)
            }
            _ => None,
        }
    }

    /// Renders a prompt that is only parsed.
    ///
    /// Errors: `Field` if the messages are plainly invalid; `Dialect` if they cannot be converted to a chat and only
    /// Warmpath workers could get them.
    pub(super) fn rendered(self, fleet: &Fleet, model: &ModelInfo, scope: Scope) -> Result<Self, RequestError> {
        let Self::Parsed(parsed) = self else { return Ok(self) };
        // Of several prompts the longest has the most to gain.
        let longest = |prompts: Vec<RawPrompt>| prompts.into_iter().max_by_key(RawPrompt::n_bytes);
        if text_blocks::is_text(model) {
            return Ok(match parsed {
                Parsed::Chat(chat) => Self::Tokens(text_blocks::chat(&chat)),
                Parsed::Raw(prompts) => match longest(prompts) {
                    Some(RawPrompt::Text(prompt)) => Self::Tokens(text_blocks::cut(prompt.as_bytes())),
                    Some(RawPrompt::Tokens(tokens)) => Self::Tokens(tokens),
                    Some(RawPrompt::Mixed(_) | RawPrompt::Media(_) | RawPrompt::Infill(_)) | None => {
                        Self::Unknown("no_prompt")
                    }
                },
                Parsed::Foreign(_) => Self::Unknown("foreign"),
                Parsed::None => Self::Unknown("no_prompt"),
            });
        }
        let vocabulary = || match fleet.vocabulary(model) {
            Some(VocabularyState::Ready(vocabulary)) => Ok(vocabulary),
            _ => Err(Self::Unknown("no_vocabulary")),
        };
        match parsed {
            Parsed::Foreign(error) => Err(error.into()),
            Parsed::None => Ok(Self::Unknown("no_prompt")),
            Parsed::Raw(prompts) => Ok(match longest(prompts) {
                Some(RawPrompt::Tokens(tokens)) => Self::Tokens(tokens),
                Some(RawPrompt::Text(text)) => vocabulary().map_or_else(
                    |none| none,
                    |known| {
                        let text = Box::new(known.maker.prepare_text(text, scope));
                        Self::Rendered(known, text)
                    },
                ),
                Some(prompt) => vocabulary().map_or_else(|none| none, |known| Self::Raw(known, Box::new(prompt))),
                None => Self::Unknown("no_prompt"),
            }),
            Parsed::Chat(chat) => match vocabulary() {
                Err(none) => Ok(none),
                Ok(vocabulary) if vocabulary.template == TemplateUse::Unknown => Ok(Self::Unknown("other_template")),
                Ok(vocabulary) => match vocabulary.maker.prepare_chat(&chat) {
                    Ok(text) => Ok(Self::Rendered(vocabulary, Box::new(text))),
                    Err(PromptError::Messages { index, reason }) => {
                        Err(RequestError::field(format!("messages[{index}]"), reason))
                    }
                    Err(PromptError::Refused { .. }) => Ok(Self::Unknown("refused")),
                    Err(error) => {
                        tracing::debug!(%error, "a chat could not be rendered");
                        Ok(Self::Unknown("template"))
                    }
                },
            },
        }
    }

    /// Returns the tokens of a rendered prompt, or why there are none: a prompt that was not rendered for lack of time
    /// is left to the worker.
    pub(super) fn into_tokens(self, model: &ModelInfo, scope: Scope) -> Result<PromptTokens, &'static str> {
        match self {
            Self::Parsed(_) => Err("busy"),
            // The tokens end before the first medium whose layout is unknown here.
            Self::Rendered(vocabulary, text) => Ok(vocabulary.maker.tokens(&text)),
            Self::Raw(vocabulary, prompt) => {
                vocabulary.maker.raw(&prompt, model.context_tokens, scope).map_err(|_| "no_prompt")
            }
            Self::Tokens(tokens) => Ok(PromptTokens { tokens, ..PromptTokens::default() }),
            Self::Unknown(cause) => Err(cause),
        }
    }
}
