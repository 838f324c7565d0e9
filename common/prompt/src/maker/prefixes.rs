//! Prefixes of a chat's prompt at which later prompts can begin.
//!
//! A prefix is found by rendering the chat that ends there on its own, and counting what both have in common, so it is
//! always one of the prompt.

use serde_json::{Map, Value as Json};
use warmpath_common::cache_breakpoints::CacheBreakpoint;
use warmpath_common::ids::Token;
use warmpath_common::openai::ChatPrompt;

use super::PromptMaker;
use crate::error::PromptError;

/// Two messages that begin differently; the common prefix of their prompts does not depend on the message.
const PROBES: [&str; 2] = ["0", "~"];

impl PromptMaker {
    /// Returns the tokens with which the prompt of every conversation that begins with these messages begins.
    ///
    /// They are found as the common prefix of two prompts that continue the messages with different user's messages.
    /// The prompt of the messages alone would be wrong: many templates render nothing for instructions alone, or put
    /// the first question into the same message; others render the last response with its reasoning and earlier ones
    /// without.
    /// Cost: that of [`Self::chat`], twice. Errors: see [`PromptError`].
    pub fn chat_prefix(&self, request: &ChatPrompt) -> Result<Vec<Token>, PromptError> {
        let role = request.messages.last().and_then(|message| message.get("role")).and_then(Json::as_str);
        if matches!(role, Some("user" | "tool")) {
            let unanswered = ChatPrompt { add_generation_prompt: Some(false), ..request.clone() };
            return Ok(self.chat(&unanswered)?.tokens);
        }
        let go_on = |text: &str| {
            let mut longer = request.clone();
            longer.messages.push(user_message(text));
            self.chat(&longer)
        };
        let mut tokens = go_on(PROBES[0])?.tokens;
        tokens.truncate(n_common(&tokens, &go_on(PROBES[1])?.tokens));
        Ok(tokens)
    }

    /// Returns the number of a chat's tokens before the text of its first message that is no instruction: all
    /// conversations with the same instructions and tools begin with them. `None` if there is no such message or the
    /// template refuses the probe message in its place.
    ///
    /// Cost: like [`Self::chat`] for the instructions. Shape: `tokens` is the result of [`Self::chat`] for the request.
    pub fn instructions_end(&self, request: &ChatPrompt, tokens: &[Token]) -> Option<u32> {
        let is_instruction = |message: &Map<String, Json>| {
            let role = message.get("role").and_then(Json::as_str);
            matches!(role, Some("system" | "developer"))
        };
        let message = request.messages.iter().position(|message| !is_instruction(message))?;
        self.breakpoint(request, tokens, CacheBreakpoint { message, parts: 0 })
    }

    /// Returns the number of a chat's tokens up to a breakpoint; `None` if there is no such message or the template
    /// refuses the chat that ends there.
    ///
    /// That chat is rendered on its own, and what it has in common with the prompt counts, so the prefix is always one
    /// of the prompt. It is shorter where the template renders a last message differently from an earlier one.
    /// Cost: like [`Self::chat`]. Shape: as [`Self::instructions_end`].
    pub fn breakpoint(&self, request: &ChatPrompt, tokens: &[Token], end: CacheBreakpoint) -> Option<u32> {
        let mut other = request.clone();
        other.messages.truncate(end.message.saturating_add(1));
        let last = other.messages.get_mut(end.message)?;
        if end.parts == 0 {
            let said = match last.get("content") {
                Some(Json::Array(parts)) => parts.first().and_then(|part| part.get("text")),
                content => content,
            };
            let begins_alike = said.and_then(Json::as_str).is_some_and(|said| said.trim_start().starts_with(PROBES[0]));
            *last = user_message(PROBES[usize::from(begins_alike)]);
        } else {
            if let Some(Json::Array(parts)) = last.get_mut("content") {
                parts.truncate(end.parts);
            }
            other.add_generation_prompt = Some(false);
        }
        let other = self.chat(&other).ok()?.tokens;
        u32::try_from(n_common(tokens, &other)).ok()
    }
}

pub(super) fn user_message(text: &str) -> Map<String, Json> {
    let field = |name: &str, value: &str| (name.to_owned(), Json::from(value));
    [field("role", "user"), field("content", text)].into_iter().collect()
}

pub(super) fn n_common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
