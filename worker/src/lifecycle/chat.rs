//! A chat on its way in: its prompt, what constrains its answer, and how the answer is read.
//!
//! Not here: the fields' shapes (`tools`), the format itself (`warmpath-prompt`), reading (`reading`).
//! The idea: every dialect that holds chats makes a [`ChatPrompt`] and [`ToolFields`] of its body and calls [`read`].

use std::sync::Arc;

use warmpath_common::ids::Token;
use warmpath_common::openai::ChatPrompt;
use warmpath_llama_chat::Trigger;
use warmpath_prompt::{AddSpecial, AnswerFormat, AnswerGrammar, GrammarFrom, ParseSpecial, PromptError};
use warmpath_worker_core::call_watch;

use super::ReadPrompt;
use crate::engine::{Begin, CallGrammar, Generation};
use crate::error::RequestError;
use crate::serving::Serving;
use crate::tools::{Thoughts, ToolFields};

/// Says how an answer to a chat is constrained and read.
#[derive(Debug)]
pub struct ChatAnswer {
    /// Is the format that its template gives it.
    pub format: AnswerFormat,
    /// Says where thoughts go.
    pub thoughts: Thoughts,
    calls: Option<CallGrammar>,
    spelled: Vec<Token>,
}

impl ChatAnswer {
    /// Adds to a generation what this answer needs.
    ///
    /// Errors: `Field` where both cannot be.
    pub fn constrain(&self, generation: &mut Generation) -> Result<(), RequestError> {
        if self.calls.is_some() && generation.ignore_eos {
            return Err(RequestError::field("ignore_eos", "`ignore_eos` cannot be combined with `tools`"));
        }
        generation.calls.clone_from(&self.calls);
        generation.spelled.clone_from(&self.spelled);
        generation.stop.extend_from_slice(&self.format.format().stops);
        Ok(())
    }

    /// Returns whether tools may be called.
    pub fn may_call(&self) -> bool {
        self.calls.is_some()
    }
}

/// Returns the prompt of a chat with what its answer needs.
///
/// Errors: `Field` for tools, `Prompt` for messages.
pub fn read(serving: &Serving, chat: &ChatPrompt, tools: &ToolFields) -> Result<ReadPrompt, RequestError> {
    let (wish, thoughts) = tools.resolve()?;
    let prompt = serving.prompts.chat(chat)?;
    let format = serving.prompts.answer_format(chat, &prompt, &wish).map_err(|error| match error {
        PromptError::Tool { index, reason } => tools.refused(&wish.tools[index], &reason),
        error => error.into(),
    })?;
    // Others resume anywhere, so the second rendering would be for nothing.
    let needs_checkpoints = !serving.model.memory.stored_state_rewinds();
    let last_message_token =
        if needs_checkpoints { serving.prompts.last_user_message_start(chat, &prompt.tokens) } else { None };
    let answer = format.map(|format| {
        let calls = format.grammar().map(|grammar| call_grammar(serving, &format, grammar));
        let spelled = spelled(serving, &format.format().preserved_tokens);
        Arc::new(ChatAnswer { format, thoughts, calls, spelled })
    });
    Ok(ReadPrompt { tokens: prompt.tokens, last_message_token, text: None, is_echoed: false, answer })
}

fn call_grammar(serving: &Serving, answer: &AnswerFormat, grammar: AnswerGrammar<'_>) -> CallGrammar {
    let format = answer.format();
    let begin = match grammar.from {
        GrammarFrom::PromptEnd(prefix) => Begin::AtOnce { seen: seen(serving, prefix) },
        GrammarFrom::Call => {
            let (mut words, mut patterns) = (Vec::new(), Vec::new());
            for trigger in &format.triggers {
                match trigger {
                    Trigger::Word(word) => words.push(word.clone()),
                    Trigger::Pattern(pattern) => patterns.push(pattern.clone()),
                }
            }
            let (start, ends) = (format.thinking_start.clone(), format.thinking_ends.clone());
            let thoughts = call_watch::Thoughts { start, ends };
            Begin::AtCall { words, patterns, thoughts, prefix: answer.prefix().to_owned() }
        }
    };
    CallGrammar { text: grammar.text.to_owned(), begin }
}

/// Returns the tokens of the prompt's end; a space that a vocabulary puts before every text is none of them.
fn seen(serving: &Serving, prefix: &str) -> Vec<Token> {
    let mut tokens = serving.prompts.tokenize(prefix, AddSpecial::No, ParseSpecial::Yes);
    let is_space = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_whitespace);
    let first = tokens.first().map(|token| serving.prompts.piece(*token)).unwrap_or_default();
    if is_space(first.first()) && !is_space(prefix.as_bytes().first()) {
        tokens.remove(0);
    }
    tokens
}

/// Returns those of the texts that are tokens of their own, ascending.
fn spelled(serving: &Serving, texts: &[String]) -> Vec<Token> {
    let single = |text: &String| match serving.prompts.tokenize(text, AddSpecial::No, ParseSpecial::Yes)[..] {
        [token] => Some(token),
        _ => None,
    };
    let mut tokens: Vec<Token> = texts.iter().filter_map(single).collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}
