//! A partially tokenized prompt: rendered, cut at its special tokens, with the cached fragments looked up.
//!
//! This takes some nanoseconds per byte, and tokenizing takes twenty times that. A caller that must not block can see
//! how much is left.

use std::ops::Range;
use std::sync::Arc;

use warmpath_common::ids::Token;
use warmpath_common::openai::ChatPrompt;
use warmpath_common::prompts::{MEDIA_MARKER, MediaPrompt};

use super::{Cut, PromptMaker, RawError};
use crate::error::{PromptError, TooManyTokens};
use crate::fragments::Scope;
use crate::media::{self, Budget, Medium, PromptTokens};
use crate::messages::unread::{self, Readable};
use crate::vocabulary::partition::Piece;
use crate::vocabulary::token_bound::assumed;

/// Longest text that is tokenized to its end, however many tokens it has: clients that shorten their prompts rely on an
/// exact number in the error. Units: bytes.
///
/// Source: own choice: tokenizing takes a tenth of a second at most, and the text fills a small context or more.
const COUNTED_BYTES_MAX: usize = 128 << 10;

/// A prompt of which only the new text is still to be tokenized.
#[derive(Debug)]
pub struct PreparedPrompt {
    pub(super) cut: Cut,
    scope: Scope,
    parts: Vec<Part>,
    unseen_bytes: usize,
    /// Media of the prompt, in their order.
    media: Vec<Arc<Medium>>,
    /// Kinds of parts of the history that the model cannot read.
    pub(super) left_out_parts: Vec<&'static str>,
}

/// A part of a prompt.
#[derive(Debug)]
enum Part {
    Special(Token),
    Seen(Arc<[Token]>),
    Unseen(Range<usize>),
    /// The medium of this number.
    Media(usize),
}

impl PreparedPrompt {
    /// Returns the length of the text that is still to be tokenized. Units: bytes.
    pub fn unseen_bytes(&self) -> usize {
        self.unseen_bytes
    }
}

impl PromptMaker {
    /// Renders a chat and looks up the fragments that requests of its salt have cached.
    ///
    /// Cost: rendering, and decoding media that are new; nothing is tokenized. Errors: see [`PromptError`].
    pub fn prepare_chat(&self, request: &ChatPrompt) -> Result<PreparedPrompt, PromptError> {
        let request = &*self.with_ordered_keys(request);
        let (readable, media) = self.readable(request)?;
        let mut prompt = self.prepare(self.cut(self.rendered(&readable.chat)?), scope_of(request));
        prompt.left_out_parts = readable.left_out;
        for kind in media::check_shown(&prompt.cut.pieces, &readable.chat.messages)? {
            if !prompt.left_out_parts.contains(&kind) {
                prompt.left_out_parts.push(kind);
            }
        }
        Ok(PreparedPrompt { media, ..prompt })
    }

    /// Returns a chat whose every part the model reads, and its media in their order.
    ///
    /// Cost: decoding media that are new. Errors: `Messages`, and `Field` for too many media.
    pub(super) fn readable<'r>(
        &self,
        request: &'r ChatPrompt,
    ) -> Result<(Readable<'r>, Vec<Arc<Medium>>), PromptError> {
        let (modalities, scope) = (self.modalities(), scope_of(request));
        let n_media = media::parts(&request.messages).filter(|(_, kind, _)| kind.is_read(modalities)).count();
        let too_many = |reason| PromptError::Field { field: "messages", reason };
        media::check_number(n_media).map_err(too_many)?;
        let (mut budget, mut media_of_chat) = (Budget::full(), Vec::new());
        let readable = unread::readable(request, |kind, part| {
            media::check_read(kind, modalities)?;
            if let Some(media) = &self.media {
                media_of_chat.push(media.known.read(kind, part, scope, &mut budget)?);
            }
            Ok(())
        })?;
        Ok((readable, media_of_chat))
    }

    /// Looks up the cached fragments of a completion request's text, control tokens parsed.
    ///
    /// Cost: finding control tokens; nothing is tokenized.
    pub fn prepare_text(&self, text: String, scope: Scope) -> PreparedPrompt {
        self.prepare(self.cut_text(text), scope)
    }

    /// Looks up the cached fragments of a text with media, control tokens parsed.
    ///
    /// Cost: as of [`Self::prepare_chat`]. Errors: `Media`.
    pub(super) fn prepare_media(&self, prompt: &MediaPrompt, scope: Scope) -> Result<PreparedPrompt, RawError> {
        let refuse = |reason| RawError::Media { reason };
        let Some(media) = &self.media else {
            let reason = "`multimodal_data` is given, and this model reads text only".to_owned();
            return Err(refuse(reason));
        };
        let (text, n_marks) = media::marked(&prompt.text);
        if n_marks != prompt.media.len() {
            let n_media = prompt.media.len();
            let reason =
                format!("the text has {n_marks} marks {MEDIA_MARKER}, and `multimodal_data` has {n_media} files");
            return Err(refuse(reason));
        }
        let modalities = media.reader.reading().modalities;
        let media_of_prompt = media.known.read_files(&prompt.media, scope, modalities).map_err(refuse)?;
        let mut cut = self.cut_text(text);
        cut.pieces = media::cut(cut.pieces, cut.text.as_bytes());
        Ok(PreparedPrompt { media: media_of_prompt, ..self.prepare(cut, scope) })
    }

    fn prepare(&self, cut: Cut, scope: Scope) -> PreparedPrompt {
        let mut unseen_bytes = 0;
        let part = |piece: &Piece| match piece {
            Piece::Special { token, .. } => Part::Special(*token),
            Piece::Media(nth) => Part::Media(*nth),
            Piece::Text(range) => match self.fragments.seen(scope, &cut.fragment(range)) {
                Some(tokens) => Part::Seen(tokens),
                None => {
                    unseen_bytes += range.len();
                    Part::Unseen(range.clone())
                }
            },
        };
        let parts = cut.pieces.iter().map(part).collect();
        PreparedPrompt { cut, scope, parts, unseen_bytes, media: Vec::new(), left_out_parts: Vec::new() }
    }

    /// Returns the tokens of a prompt that this maker has prepared, with those that the vocabulary adds, up to the
    /// first medium whose tokens are not known.
    ///
    /// Cost: that of tokenizing the rest.
    pub fn tokens(&self, prompt: &PreparedPrompt) -> PromptTokens {
        self.tokens_within(prompt, usize::MAX).expect("no prompt has so many tokens")
    }

    /// Returns the tokens of a prompt that this maker has prepared, unless it is far longer than this many tokens.
    ///
    /// Cost: that of tokenizing the rest, but only a small part of a prompt that is far too long. Errors:
    /// `TooManyTokens`; a prompt of at most `COUNTED_BYTES_MAX` returns all its tokens, even if they are too many.
    pub fn tokens_within(&self, prompt: &PreparedPrompt, n_tokens_max: usize) -> Result<PromptTokens, TooManyTokens> {
        self.check_length(prompt, n_tokens_max)?;
        let n_tokens_max = if prompt.unseen_bytes <= COUNTED_BYTES_MAX { usize::MAX } else { n_tokens_max };
        let mut prompt_tokens =
            PromptTokens { tokens: self.vocabulary.settings.prefix.clone(), ..PromptTokens::default() };
        // The parts in their order: what is cached is copied, and only new text is tokenized.
        // The usual number for prose; the list grows if necessary.
        prompt_tokens.tokens.reserve(prompt.cut.text.len() / 4);
        for part in &prompt.parts {
            let tokens = &mut prompt_tokens.tokens;
            match part {
                Part::Media(nth) => {
                    // A mark of another number than a medium's has no medium.
                    let medium = self.media.as_ref().zip(prompt.media.get(*nth));
                    if medium.is_some_and(|(media, medium)| !prompt_tokens.push_medium(medium, &*media.reader)) {
                        return Ok(prompt_tokens);
                    }
                }
                Part::Special(token) => tokens.push(*token),
                Part::Seen(seen) => tokens.extend_from_slice(seen),
                Part::Unseen(range) => {
                    let n_left = n_tokens_max.saturating_sub(tokens.len());
                    let n_before = tokens.len();
                    let new_tokens = self.tokenized_within(prompt.scope, &prompt.cut.fragment(range), n_left);
                    tokens.extend_from_slice(&new_tokens.map_err(|TooManyTokens { n_tokens_min }| TooManyTokens {
                        n_tokens_min: n_before + n_tokens_min,
                    })?);
                }
            }
            if prompt_tokens.tokens.len() > n_tokens_max {
                return Err(TooManyTokens { n_tokens_min: prompt_tokens.tokens.len() });
            }
        }
        prompt_tokens.tokens.extend_from_slice(&self.vocabulary.settings.suffix);
        Ok(prompt_tokens)
    }

    /// Checks that a prompt is not far longer than this many tokens, as far as can be seen without tokenizing it.
    ///
    /// Cost: some nanoseconds per byte, until the bound exceeds the limit. Errors: `TooManyTokens`.
    pub fn check_length(&self, prompt: &PreparedPrompt, n_tokens_max: usize) -> Result<(), TooManyTokens> {
        if prompt.unseen_bytes <= COUNTED_BYTES_MAX {
            return Ok(());
        }
        let mut n_tokens_min = self.vocabulary.settings.prefix.len() + self.vocabulary.settings.suffix.len();
        for part in &prompt.parts {
            n_tokens_min += match part {
                Part::Special(_) | Part::Media(_) => 1,
                Part::Seen(tokens) => tokens.len(),
                Part::Unseen(range) => {
                    let n_left = n_tokens_max.saturating_sub(n_tokens_min).saturating_add(1);
                    self.tokens_min(&prompt.cut.fragment(range), n_left)
                }
            };
            if n_tokens_min > n_tokens_max {
                return Err(TooManyTokens { n_tokens_min });
            }
        }
        Ok(())
    }

    /// Returns a lower bound of the tokens of a text without special tokens; counting stops at `enough`.
    fn tokens_min(&self, text: &str, enough: usize) -> usize {
        let bound = self.vocabulary.token_bound.as_ref();
        bound.map_or_else(|| assumed(text.as_bytes()), |bound| bound.count(text.as_bytes(), enough))
    }

    /// Checks that a text without special tokens is not far longer than this many tokens, as far as can be seen without
    /// tokenizing it.
    ///
    /// Errors: `TooManyTokens`.
    pub(super) fn check_plain(&self, text: &str, n_tokens_max: usize) -> Result<(), TooManyTokens> {
        if text.len() <= COUNTED_BYTES_MAX {
            return Ok(());
        }
        let n_tokens_min = self.tokens_min(text, n_tokens_max.saturating_add(1));
        if n_tokens_min > n_tokens_max { Err(TooManyTokens { n_tokens_min }) } else { Ok(()) }
    }

    /// Tokenizes a fragment in portions, as far as it may be cut, and stops after the portion that exceeds the limit.
    fn tokenized_within(
        &self,
        scope: Scope,
        fragment: &str,
        n_tokens_max: usize,
    ) -> Result<Arc<[Token]>, TooManyTokens> {
        let mut tokens = Vec::new();
        for portion in self.vocabulary.portions(fragment) {
            if tokens.len() > n_tokens_max {
                return Err(TooManyTokens { n_tokens_min: tokens.len() });
            }
            tokens.extend(self.vocabulary.tokenize_portion(portion));
        }
        Ok(self.fragments.add(scope, fragment, tokens))
    }
}

/// Returns the scope of a request's cached fragments and media.
fn scope_of(request: &ChatPrompt) -> Scope {
    Scope::of(request.cache_salt.as_deref().unwrap_or_default())
}
