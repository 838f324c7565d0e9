//! The longest common prefix of a prompt with earlier ones, in the model's tokens.
//!
//! Prompts are made as router and worker make them, so the count is exact. Not here: the reuse that a server achieves.

use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;
use warmpath_common::dialects::{anthropic, responses};
use warmpath_common::ids::Token;
use warmpath_common::openai::ChatPrompt;
use warmpath_prompt::{PromptMaker, PromptOptions};

use super::shape::Dialect;

/// Makes prompts of a model.
pub(super) struct Prefixes {
    prompts: PromptMaker,
}

/// Prompts that have been sent.
pub(super) struct Earlier<'a> {
    prompts: &'a PromptMaker,
    sent: Vec<Vec<Token>>,
}

impl Prefixes {
    /// Opens a model's vocabulary and template.
    ///
    /// Errors: the file cannot be read, or its template cannot render tools first.
    pub(super) fn open(model: &Path, options: PromptOptions) -> anyhow::Result<Self> {
        Ok(Self { prompts: PromptMaker::open(model, options)? })
    }

    /// Returns a record without prompts.
    pub(super) fn none_yet(&self) -> Earlier<'_> {
        Earlier { prompts: &self.prompts, sent: Vec::new() }
    }
}

impl Earlier<'_> {
    /// Returns the length of the longest common prefix of a body's prompt with earlier prompts, and adds the prompt to
    /// them. Units: tokens.
    ///
    /// Errors: no prompt can be made of the body.
    pub(super) fn shared(&mut self, body: &Value, dialect: Dialect) -> anyhow::Result<u64> {
        let bytes = serde_json::to_vec(body)?;
        let chat = match dialect {
            Dialect::Chat => bytes,
            Dialect::Messages => anthropic::messages(&bytes)?.body,
            Dialect::Responses => responses::responses(&bytes)?.body,
        };
        let chat: ChatPrompt = serde_json::from_slice(&chat).context("reading the chat")?;
        let tokens = self.prompts.chat(&chat)?.tokens;
        let common =
            |earlier_prompt: &Vec<Token>| earlier_prompt.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        let n_shared = self.sent.iter().map(common).max().unwrap_or_default();
        self.sent.push(tokens);
        Ok(n_shared as u64)
    }
}
