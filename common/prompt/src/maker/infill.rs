//! Prompts that are not chats: texts and tokens as a client sends them, and those with a gap to fill (FIM).
//!
//! Not here: chats (`maker`).
//! The idea: a FIM prompt is laid out as llama-server does, [extra texts] [prefix] [suffix] [middle], so that models see what
//! they were trained on. What comes first is what changes least from one key stroke to the next, so that it stays cached.

use warmpath_common::ids::Token;
use warmpath_common::prompts::{InfillPrompt, PromptPart, RawPrompt};

use super::PromptMaker;
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

/// Says that the vocabulary has not all of the tokens that mark a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the model has no tokens for a prefix, a suffix and the middle between them")]
pub struct NoFim;

impl PromptMaker {
    /// Returns the tokens of a prompt that is not a chat: of texts what the vocabulary adds to the first if nothing is
    /// before it, control tokens parsed; of a gap what fills it.
    ///
    /// Units: `context_tokens` is a slot's size. Errors: [`NoFim`].
    pub fn raw(&self, prompt: &RawPrompt, context_tokens: u32) -> Result<Vec<Token>, NoFim> {
        Ok(match prompt {
            RawPrompt::Text(text) => self.text(text),
            RawPrompt::Tokens(tokens) => tokens.clone(),
            RawPrompt::Mixed(parts) => {
                let of_part = |(idx, part): (usize, &PromptPart)| match part {
                    PromptPart::Token(token) => vec![*token],
                    PromptPart::Text(text) => {
                        let add = if idx == 0 { AddSpecial::Yes } else { AddSpecial::No };
                        self.tokenize(text, add, ParseSpecial::Yes)
                    }
                };
                parts.iter().enumerate().flat_map(of_part).collect()
            }
            RawPrompt::Infill(request) => self.infill(request, context_tokens)?,
        })
    }

    /// Returns the prompt by which a model fills a gap. No text of the client becomes a control token; extra texts take what
    /// the rest of the prompt and twice the answer leave of the context, the last ones first.
    fn infill(&self, request: &InfillPrompt, context_tokens: u32) -> Result<Vec<Token>, NoFim> {
        let fim = self.vocabulary.info.fim.ok_or(NoFim)?;
        let known = self.vocabulary.tokenize_plain(&request.prompt);
        let mut prefix = self.vocabulary.tokenize_plain(&request.input_prefix);
        let n_over = prefix.len().saturating_sub(PREFIX_TOKENS_MAX);
        prefix.drain(..n_over.next_multiple_of(CUT_TOKENS).min(prefix.len()));
        let mut suffix = self.vocabulary.tokenize_plain(&request.input_suffix);
        suffix.truncate(SUFFIX_TOKENS_MAX.saturating_sub(2 + known.len()));

        let answer_tokens = request.answer_tokens();
        let taken = SIDES_TOKENS_MAX.saturating_add(answer_tokens.saturating_mul(2));
        let extra = self.extra(request, fim);
        let n_extra = extra.len().min((context_tokens as usize).saturating_sub(taken));

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

    /// Returns the tokens of what stands before the prefix.
    fn extra(&self, request: &InfillPrompt, fim: FimTokens) -> Vec<Token> {
        let plain = |text: &str| self.fragments.tokens(text, |text| self.vocabulary.tokenize_plain(text)).to_vec();
        let mut tokens = Vec::new();
        if let Some(repository) = fim.repository {
            tokens.push(repository);
            tokens.extend(plain("myproject\n"));
        }
        for extra in &request.input_extra {
            match fim.file {
                Some(file) => {
                    tokens.push(file);
                    tokens.extend(plain(&format!("{}\n", extra.filename.as_deref().unwrap_or(FILE_NAME))));
                }
                None => tokens.extend(plain(SNIPPET)),
            }
            tokens.extend(plain(&extra.text));
        }
        if let Some(file) = fim.file {
            tokens.push(file);
            tokens.extend(plain("filename\n"));
        }
        tokens
    }
}
