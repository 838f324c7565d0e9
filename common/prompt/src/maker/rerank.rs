//! The prompt by which a model scores a document for a query.
//!
//! The two texts are put into a template of the model, or between the tokens with which its vocabulary marks a pair. No
//! text of the client becomes a control token.

use warmpath_common::ids::Token;

use super::PromptMaker;
use super::shortened::{FittedText, TextRoom, nearest_tokens, remove};
use crate::error::TooManyTokens;
use crate::vocabulary::partition::Piece;
/// Names of the two texts in a model's template of a pair. Source: llama-server (`format_prompt_rerank`).
const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";

/// A pair's prompt with gaps for the two texts, made once per model.
#[derive(Debug)]
pub(super) struct PairPrompt(Vec<Part>);

#[derive(Debug)]
enum Part {
    Tokens(Vec<Token>),
    Own(String),
    Query,
    Document,
}

/// The two texts of a pair.
struct Pair<'a> {
    query: &'a str,
    document: &'a str,
}

impl PromptMaker {
    /// Returns the prompt by which the model scores `document` for `query`.
    ///
    /// Source: llama-server: the template `rerank`, or `[BOS] query [EOS] [SEP] document [EOS]` as far as the
    /// vocabulary has these tokens. Errors: `TooManyTokens` if it is far longer than this many.
    pub fn pair(&self, query: &str, document: &str, n_tokens_max: usize) -> Result<Vec<Token>, TooManyTokens> {
        self.tokens_of(&self.pair_prompt().0, &Pair { query, document }, n_tokens_max)
    }

    /// Returns the prompt of a pair; a document that is too long is cut.
    ///
    /// Cost: that of tokenizing the part that fits. Errors: `TooManyTokens` if the query leaves no room for a document.
    pub fn fitted_pair(&self, query: &str, document: &str, room: &TextRoom) -> Result<FittedText, TooManyTokens> {
        let (parts, pair) = (&self.pair_prompt().0, Pair { query, document });
        let at = parts.iter().rposition(|part| matches!(part, Part::Document)).unwrap_or(parts.len());
        let (before, behind) = parts.split_at(at);
        let behind = behind.get(1..).unwrap_or_default();
        // The text between two special tokens is tokenized as one, so the document is cut together with its neighbours.
        let is_special = |part: &Part| matches!(part, Part::Tokens(_));
        let (before, near_before) = before.split_at(before.iter().rposition(is_special).map_or(0, |idx| idx + 1));
        let (near_behind, behind) = behind.split_at(behind.iter().position(is_special).unwrap_or(behind.len()));
        let n_max = room.n_tokens_max;
        let (first, last) = (self.tokens_of(before, &pair, n_max)?, self.tokens_of(behind, &pair, n_max)?);
        let (lead, trail) = (text_of(near_before, &pair), text_of(near_behind, &pair));
        self.check_plain(&lead, n_max)?;
        let n_plain = |text: &str| if text.is_empty() { 0 } else { self.vocabulary.tokenize_plain(text).len() };
        let (n_lead, n_trail) = (n_plain(&lead), n_plain(&trail));
        let n_around = first.len() + n_lead + n_trail + last.len();
        let n_free = n_max.saturating_sub(n_around);
        if n_around > n_max || n_free == 0 && !document.is_empty() {
            return Err(TooManyTokens { n_tokens_min: n_around });
        }
        let n_near_max = n_lead + n_free.min(room.n_document_max) + n_trail;
        let tokenize = |document: &str| self.vocabulary.tokenize_plain(&[&lead, document, &trail].concat());
        let mut near = nearest_tokens(document, n_near_max, room.cut_end, tokenize);
        let n_over = near.len().saturating_sub(n_near_max);
        let place = n_lead..near.len().saturating_sub(n_trail);
        remove(&mut near, place, n_over, room.cut_end);
        Ok(FittedText { tokens: [first, near, last].concat(), is_cut: n_over > 0 })
    }

    fn tokens_of(&self, parts: &[Part], pair: &Pair<'_>, n_tokens_max: usize) -> Result<Vec<Token>, TooManyTokens> {
        let mut tokens = Vec::new();
        // The text between two special tokens is tokenized as one, even if it has several authors.
        for part in parts.split_inclusive(|part| matches!(part, Part::Tokens(_))) {
            let text = text_of(part, pair);
            self.check_plain(&text, n_tokens_max)?;
            tokens.extend(self.vocabulary.tokenize_plain(&text));
            if let Some(Part::Tokens(own)) = part.last() {
                tokens.extend(own);
            }
        }
        Ok(tokens)
    }

    fn pair_prompt(&self) -> &PairPrompt {
        self.pair.get_or_init(|| match &self.vocabulary.rerank_template {
            Some(template) => PairPrompt(self.parts_of(template)),
            None => PairPrompt(self.marked()),
        })
    }

    /// Cuts a template at its gaps and special tokens.
    fn parts_of(&self, template: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut remainder = template;
        while !remainder.is_empty() {
            let gaps = [(QUERY, Part::Query), (DOCUMENT, Part::Document)].into_iter();
            let next = gaps
                .filter_map(|(name, gap)| remainder.find(name).map(|at| (at, name, gap)))
                .min_by_key(|(at, ..)| *at);
            let (at, len, gap) = next.map_or((remainder.len(), 0, None), |(at, name, gap)| (at, name.len(), Some(gap)));
            let text = &remainder[..at];
            parts.extend(self.partitioner.partition(text.as_bytes()).into_iter().map(|piece| match piece {
                Piece::Special { token, .. } => Part::Tokens(vec![token]),
                Piece::Media(_) => Part::Tokens(Vec::new()),
                Piece::Text(range) => Part::Own(String::from_utf8_lossy(&text.as_bytes()[range]).into_owned()),
            }));
            parts.extend(gap);
            remainder = &remainder[at + len..];
        }
        parts
    }

    /// Returns a pair with the vocabulary's own marks.
    fn marked(&self) -> Vec<Part> {
        let info = self.vocabulary();
        let present = |add: bool, token: Option<Token>| Part::Tokens(token.filter(|_| add).into_iter().collect());
        let end = || present(info.add_eos, info.eos.or(info.sep));
        vec![
            present(info.add_bos, info.bos),
            Part::Query,
            end(),
            present(info.add_sep, info.sep),
            Part::Document,
            end(),
        ]
    }
}

/// Returns the text of parts, without special tokens.
fn text_of(parts: &[Part], pair: &Pair<'_>) -> String {
    let text = |part: &Part| match part {
        Part::Own(own) => own.clone(),
        Part::Query => pair.query.to_owned(),
        Part::Document => pair.document.to_owned(),
        Part::Tokens(_) => String::new(),
    };
    parts.iter().map(text).collect()
}
