//! Prompts that are not chats: texts and tokens as a client sends them, and fill-in-the-middle (FIM) prompts.
//!
//! A FIM prompt has the layout of llama-server, [extra texts] [prefix] [suffix] [middle], with which models were
//! trained. The text that changes least from one key stroke to the next comes first, so that it stays cached.

use warmpath_common::ids::Token;
use warmpath_common::prompts::{InfillPrompt, PromptPart, RawPrompt};
use warmpath_common::whole::Whole;

use super::{PreparedPrompt, PromptMaker};
use crate::error::TooManyTokens;
use crate::fragments::Scope;
use crate::media::PromptTokens;
use crate::vocabulary::{AddSpecial, FimTokens, ParseSpecial};

/// Most tokens of prefix and suffix together; the text nearest to the gap is kept.
///
/// Source: llama-server's default batch, to which it cuts them.
const SIDES_TOKENS_MAX: usize = 2048;
/// Most tokens of the suffix among these. Source: llama-server.
const SUFFIX_TOKENS_MAX: usize = SIDES_TOKENS_MAX / 4;
/// Most tokens of the prefix among these.
const PREFIX_TOKENS_MAX: usize = SIDES_TOKENS_MAX - SUFFIX_TOKENS_MAX;
/// Step by which a long prefix is cut at its start. Between two cuts the prefix only grows, so its cached part stays
/// usable.
///
/// Source: own choice; at most a sixth of the prefix is lost, once per this many tokens.
const CUT_TOKENS: usize = 256;
/// Text before an extra text if the vocabulary has no token for repositories. Source: llama-server.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";
/// Name of an extra text that has none. Source: llama-server.
const FILE_NAME: &str = "tmp";

/// Longest text before or after a gap that is tokenized; of a longer text, only the part nearest to the gap is. Units:
/// bytes.
///
/// Source: own choice: the tokens that are kept have a fraction of this text, even with long tokens.
const SIDE_BYTES_MAX: usize = 256 << 10;

/// Bytes of extra texts that are tokenized for each free token of the context. Units: bytes.
///
/// Source: own choice: four times the need of prose and code.
const EXTRA_TOKEN_BYTES: usize = 16;

/// Reason why there is no prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RawError {
    /// The vocabulary lacks some of the tokens that mark a gap.
    #[error("the model has no tokens for a prefix, a suffix and the middle between them")]
    NoFim,
    /// The prompt is far longer than the context.
    #[error(transparent)]
    TooManyTokens(#[from] TooManyTokens),
    /// The prompt's media cannot be read, or do not match its text.
    #[error("{reason}")]
    Media {
        /// Reason.
        reason: String,
    },
}

impl PromptMaker {
    /// Returns the tokens of a prompt that is not a chat. Texts get the tokens that the vocabulary adds at the start,
    /// and control tokens in them are parsed. A gap gets a fill-in-the-middle prompt. A prompt with media ends at the
    /// first one whose tokens are not known.
    ///
    /// Units: `context_tokens` is a slot's size. Errors: [`RawError`].
    pub fn raw(&self, prompt: &RawPrompt, context_tokens: u32, scope: Scope) -> Result<PromptTokens, RawError> {
        let tokens_of = |prompt: &PreparedPrompt| Ok(self.tokens_within(prompt, context_tokens as usize)?);
        let tokens = match prompt {
            RawPrompt::Text(text) => return tokens_of(&self.prepare_text(text.clone(), scope)),
            RawPrompt::Media(media) => return tokens_of(&self.prepare_media(media, scope)?),
            RawPrompt::Tokens(tokens) => tokens.clone(),
            RawPrompt::Mixed(parts) => {
                let mut tokens = Vec::new();
                for (idx, part) in parts.iter().enumerate() {
                    match part {
                        PromptPart::Token(Whole(token)) => tokens.push(*token),
                        PromptPart::Text(text) => {
                            self.check_length(&self.prepare_text(text.clone(), scope), context_tokens as usize)?;
                            let add = if idx == 0 { AddSpecial::Yes } else { AddSpecial::No };
                            tokens.extend(self.tokenize(text, add, ParseSpecial::Yes));
                        }
                    }
                }
                tokens
            }
            RawPrompt::Infill(request) => self.infill(request, context_tokens, scope)?,
        };
        Ok(PromptTokens { tokens, ..PromptTokens::default() })
    }

    /// Returns the prompt by which a model fills a gap. No text of the client becomes a control token. Extra texts get
    /// the part of the context that is left after the rest of the prompt and twice the response's maximum; the last
    /// extra texts have precedence.
    fn infill(&self, request: &InfillPrompt, context_tokens: u32, scope: Scope) -> Result<Vec<Token>, RawError> {
        let fim = self.vocabulary.info().fim.ok_or(RawError::NoFim)?;
        self.check_plain(&request.prompt, context_tokens as usize)?;
        // The text around the gap, cut at its far ends. The cuts move in steps, so that the beginning stays cached.
        let typed_tokens = self.vocabulary.tokenize_plain(&request.prompt);
        let mut prefix = self.vocabulary.tokenize_plain(end_of(&request.input_prefix, SIDE_BYTES_MAX));
        let n_over = prefix.len().saturating_sub(PREFIX_TOKENS_MAX);
        prefix.drain(..n_over.next_multiple_of(CUT_TOKENS).min(prefix.len()));
        let suffix = &request.input_suffix;
        let mut suffix = self.vocabulary.tokenize_plain(&suffix[..suffix.floor_char_boundary(SIDE_BYTES_MAX)]);
        suffix.truncate(SUFFIX_TOKENS_MAX.saturating_sub(2 + typed_tokens.len()));

        // Extra texts get what is left of the context; the last ones have precedence.
        let answer_tokens = request.answer_tokens();
        let n_reserved = SIDES_TOKENS_MAX.saturating_add(answer_tokens.saturating_mul(2));
        let n_extra_max = (context_tokens as usize).saturating_sub(n_reserved);
        let extra = self.extra(request, fim, n_extra_max, scope);
        let n_extra = extra.len().min(n_extra_max);

        // The order in which models were trained, with the text that changes least in front.
        let mut tokens = extra[extra.len() - n_extra..].to_vec();
        if self.vocabulary.info().add_bos {
            tokens.extend(self.vocabulary.info().bos);
        }
        tokens.push(fim.prefix);
        tokens.extend(prefix);
        tokens.extend(typed_tokens);
        tokens.push(fim.suffix);
        tokens.extend(suffix);
        tokens.push(fim.middle);
        Ok(tokens)
    }

    /// Returns the tokens of the extra texts, which stand before the prefix; the texts are first cut to a length that
    /// this many tokens may have.
    fn extra(&self, request: &InfillPrompt, fim: FimTokens, n_tokens_max: usize, scope: Scope) -> Vec<Token> {
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

/// Returns the end of a text before a gap: all of it, if it is not too long. The cut moves in steps, so that the cached
/// part stays usable.
fn end_of(text: &str, n_bytes_max: usize) -> &str {
    let n_over = text.len().saturating_sub(n_bytes_max);
    &text[text.ceil_char_boundary(n_over.next_multiple_of(n_bytes_max / 2).min(text.len()))..]
}

/// Returns the number of extra texts before the last ones that together reach this many bytes.
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
