//! The prompt by which a model scores a document for a query.
//!
//! The two texts are put into a template of the model, or between the tokens with which its vocabulary marks a pair. No
//! text of the client becomes a control token. Not here: the score.

use warmpath_common::ids::Token;

use super::PromptMaker;
use crate::error::TooManyTokens;
use crate::partition::Piece;

/// Name of the template for a pair, and its names for the two texts. Source: llama-server (`format_prompt_rerank`).
const TEMPLATE: &str = "rerank";
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

impl PromptMaker {
    /// Returns the prompt by which the model scores `document` for `query`.
    ///
    /// Source: llama-server: the template `rerank`, or `[BOS] query [EOS] [SEP] document [EOS]` as far as the
    /// vocabulary has these tokens. Errors: `TooManyTokens` if it is far longer than this many.
    pub fn pair(&self, query: &str, document: &str, n_tokens_max: usize) -> Result<Vec<Token>, TooManyTokens> {
        let mut tokens = Vec::new();
        // The text between two special tokens is tokenized as one, even if it has several authors.
        let mut text = String::new();
        let flush = |text: &mut String, tokens: &mut Vec<Token>| {
            self.check_plain(text, n_tokens_max)?;
            tokens.extend(self.vocabulary.tokenize_plain(text));
            text.clear();
            Ok(())
        };
        for part in &self.pair_prompt().0 {
            match part {
                Part::Own(own) => text.push_str(own),
                Part::Query => text.push_str(query),
                Part::Document => text.push_str(document),
                Part::Tokens(own) => {
                    flush(&mut text, &mut tokens)?;
                    tokens.extend(own);
                }
            }
        }
        flush(&mut text, &mut tokens)?;
        Ok(tokens)
    }

    fn pair_prompt(&self) -> &PairPrompt {
        self.pair.get_or_init(|| match self.vocabulary.chat_template(Some(TEMPLATE)) {
            Some(template) => PairPrompt(self.parts_of(&template)),
            None => PairPrompt(self.marked()),
        })
    }

    /// Cuts a template at its gaps and special tokens.
    fn parts_of(&self, template: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut rest = template;
        while !rest.is_empty() {
            let gaps = [(QUERY, Part::Query), (DOCUMENT, Part::Document)].into_iter();
            let next =
                gaps.filter_map(|(name, gap)| rest.find(name).map(|at| (at, name, gap))).min_by_key(|(at, ..)| *at);
            let (at, len, gap) = next.map_or((rest.len(), 0, None), |(at, name, gap)| (at, name.len(), Some(gap)));
            let own = &rest[..at];
            parts.extend(self.partitioner.partition(own.as_bytes()).into_iter().map(|piece| match piece {
                Piece::Special { token, .. } => Part::Tokens(vec![token]),
                Piece::Media(_) => Part::Tokens(Vec::new()),
                Piece::Text(range) => Part::Own(String::from_utf8_lossy(&own.as_bytes()[range]).into_owned()),
            }));
            parts.extend(gap);
            rest = &rest[at + len..];
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
