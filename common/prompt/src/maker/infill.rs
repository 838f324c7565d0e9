//! Prompts that are not chats: texts and tokens as a client sends them, and those with a gap to fill (FIM).
//!
//! Not here: chats (`maker`).
//! The idea: a FIM prompt is laid out as llama-server does, [extra texts] [prefix] [suffix] [middle], so that models see what
//! they were trained on. What comes first is what changes least from one key stroke to the next, so that it stays cached.

use warmpath_common::ids::Token;
use warmpath_common::prompts::{InfillPrompt, PromptPart, RawPrompt};

use super::PromptMaker;
use crate::error::TooManyTokens;
use crate::fragments::Scope;
use crate::vocabulary::{AddSpecial, FimTokens, ParseSpecial};

/// Is the tokens that prefix and suffix take together at most; what is nearest to the gap stays.
///
/// Source: llama-server's default batch, by which it cuts them.
const SIDES_TOKENS_MAX: usize = 2048;
/// Is what the suffix takes of that at most. Source: llama-server.
const SUFFIX_TOKENS_MAX: usize = SIDES_TOKENS_MAX / 4;
/// Is what the prefix takes of that at most.
const PREFIX_TOKENS_MAX: usize = SIDES_TOKENS_MAX - SUFFIX_TOKENS_MAX;
/// Is the step in which a long prefix loses its beginning: in between it only grows, and what is cached of it stays of use.
///
/// Source: a choice; a sixth of the prefix is lost at most, once in that many tokens.
const CUT_TOKENS: usize = 256;
/// Is what stands before an extra text where the vocabulary has no token for it. Source: llama-server.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";
/// Is the name of an extra text without one. Source: llama-server.
const FILE_NAME: &str = "tmp";

/// Longest text beside a gap of which tokens are made; of a longer one what is nearest to the gap. Units: bytes.
///
/// Source: own choice: tens of times the text of the tokens that are taken of it.
const SIDE_BYTES_MAX: usize = 256 << 10;

/// Text of extra texts that is tokenized for each token that the context has room for. Units: bytes.
///
/// Source: own choice: four times what prose and code take.
const EXTRA_TOKEN_BYTES: usize = 16;

/// Reason why there is no prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RawError {
    /// The vocabulary has not all of the tokens that mark a gap.
    #[error("the model has no tokens for a prefix, a suffix and the middle between them")]
    NoFim,
    /// The prompt is far longer than the context.
    #[error(transparent)]
    TooManyTokens(#[from] TooManyTokens),
}

impl PromptMaker {
    /// Returns the tokens of a prompt that is not a chat: of texts what the vocabulary adds to the first if nothing is
    /// before it, control tokens parsed; of a gap what fills it.
    ///
    /// Units: `context_tokens` is a slot's size. Errors: [`RawError`].
    pub fn raw(&self, prompt: &RawPrompt, context_tokens: u32, scope: Scope) -> Result<Vec<Token>, RawError> {
        Ok(match prompt {
            RawPrompt::Text(text) => {
                self.tokens_within(&self.begin_text(text.clone(), scope), context_tokens as usize)?
            }
            RawPrompt::Tokens(tokens) => tokens.clone(),
            RawPrompt::Mixed(parts) => {
                let mut tokens = Vec::new();
                for (idx, part) in parts.iter().enumerate() {
                    match part {
                        PromptPart::Token(token) => tokens.push(*token),
                        PromptPart::Text(text) => {
                            self.check_length(&self.begin_text(text.clone(), scope), context_tokens as usize)?;
                            let add = if idx == 0 { AddSpecial::Yes } else { AddSpecial::No };
                            tokens.extend(self.tokenize(text, add, ParseSpecial::Yes));
                        }
                    }
                }
                tokens
            }
            RawPrompt::Infill(request) => self.infill(request, context_tokens, scope)?,
        })
    }

    /// Returns the prompt by which a model fills a gap. No text of the client becomes a control token; extra texts take what
    /// the rest of the prompt and twice the answer leave of the context, the last ones first.
    fn infill(&self, request: &InfillPrompt, context_tokens: u32, scope: Scope) -> Result<Vec<Token>, RawError> {
        let fim = self.vocabulary.info.fim.ok_or(RawError::NoFim)?;
        self.check_plain(&request.prompt, context_tokens as usize)?;
        let known = self.vocabulary.tokenize_plain(&request.prompt);
        let mut prefix = self.vocabulary.tokenize_plain(end_of(&request.input_prefix, SIDE_BYTES_MAX));
        let n_over = prefix.len().saturating_sub(PREFIX_TOKENS_MAX);
        prefix.drain(..n_over.next_multiple_of(CUT_TOKENS).min(prefix.len()));
        let suffix = &request.input_suffix;
        let mut suffix = self.vocabulary.tokenize_plain(&suffix[..suffix.floor_char_boundary(SIDE_BYTES_MAX)]);
        suffix.truncate(SUFFIX_TOKENS_MAX.saturating_sub(2 + known.len()));

        let answer_tokens = request.answer_tokens();
        let taken = SIDES_TOKENS_MAX.saturating_add(answer_tokens.saturating_mul(2));
        let n_extra_max = (context_tokens as usize).saturating_sub(taken);
        let extra = self.extra(request, fim, (n_extra_max, scope));
        let n_extra = extra.len().min(n_extra_max);

        let mut tokens = extra[extra.len() - n_extra..].to_vec();
        if self.vocabulary.info.add_bos {
            tokens.extend(self.vocabulary.info.bos);
        }
        tokens.push(fim.prefix);
        tokens.extend(prefix);
        tokens.extend(known);
        tokens.push(fim.suffix);
        tokens.extend(suffix);
        tokens.push(fim.middle);
        Ok(tokens)
    }

    /// Returns the tokens of what stands before the prefix; of extra texts, only what so many tokens may need.
    fn extra(&self, request: &InfillPrompt, fim: FimTokens, (n_tokens_max, scope): (usize, Scope)) -> Vec<Token> {
        let tokenize = |text: &str| self.vocabulary.tokenize_plain(text);
        let plain = |text: &str| self.fragments.tokens(scope, text, tokenize).to_vec();
        let mut tokens = Vec::new();
        if let Some(repository) = fim.repository {
            tokens.push(repository);
            tokens.extend(plain("myproject\n"));
        }
        let n_bytes_max = SIDE_BYTES_MAX.max(n_tokens_max.saturating_mul(EXTRA_TOKEN_BYTES));
        for extra in &request.input_extra[n_before(request, n_bytes_max)..] {
            match fim.file {
                Some(file) => {
                    tokens.push(file);
                    tokens.extend(plain(&format!("{}\n", extra.filename.as_deref().unwrap_or(FILE_NAME))));
                }
                None => tokens.extend(plain(SNIPPET)),
            }
            tokens.extend(plain(end_of(&extra.text, n_bytes_max)));
        }
        if let Some(file) = fim.file {
            tokens.push(file);
            tokens.extend(plain("filename\n"));
        }
        tokens
    }
}

/// Returns the end of a text that stands before a gap: all of it, where that is not too long. What is cut off grows in
/// steps, so that what is cached stays of use.
fn end_of(text: &str, n_bytes_max: usize) -> &str {
    let n_over = text.len().saturating_sub(n_bytes_max);
    &text[text.ceil_char_boundary(n_over.next_multiple_of(n_bytes_max / 2).min(text.len()))..]
}

/// Returns how many extra texts stand before those that so much text may be taken of: the last ones stay.
fn n_before(request: &InfillPrompt, n_bytes_max: usize) -> usize {
    let mut n_bytes = 0;
    for (idx, extra) in request.input_extra.iter().enumerate().rev() {
        if n_bytes >= n_bytes_max {
            return idx + 1;
        }
        n_bytes += extra.text.len();
    }
    0
}
