//! Tokenizing without llama.cpp, for vocabularies that `warmpath-tokenizer` knows.
//!
//! llama.cpp stays the reference: a vocabulary is used only if some thousand words of its own have the same tokens.

use warmpath_common::ids::Token;
use warmpath_gguf::Header;
use warmpath_tokenizer::{BytePairTokenizer, Source, UnsupportedVocabulary};

use crate::vocabulary::partition::{Partitioner, Piece, Special};

/// Tokens of the vocabulary whose spellings are compared at load.
///
/// Source: own choice: llama.cpp takes some ten milliseconds for them.
const COMPARED_TOKENS: usize = 2_000;

/// Spellings in a compared text.
const SPELLINGS_PER_TEXT: usize = 32;

/// Texts with what splitters distinguish: cases, contractions, digits, white space, accents, scripts, symbols.
const COMPARED_TEXTS: [&str; 8] = [
    "It's they'RE we'Ve I'm you'll he'D 'sup 'x camelCaseWord HTTPServer x1y22z333 4444 55555",
    "fn main() {\n\tlet x = a[0] + b->c;\r\n\r\n    // done...\n}\n\n\n  ",
    "{\"key\": [1, 2.5, -3e10], \"url\": \"https://a.b/c?d=e&f\"}  \t end ",
    "Straße über naïve e\u{301}a\u{308} ÄÖÜäöü İstanbul ſ K",
    "中文字符，日本語のテキスト・カタカナー。한국어 텍스트 ไทย العربية हिन्दी",
    "🙂🙃👩‍👩‍👧 €£$ ²³½ Ⅷ Ⓐ ∑≠ \u{a0}nbsp\u{3000}wide\u{85}next\u{2028}line",
    "\u{1}\u{2}control\u{7f}\u{ad}soft\u{200b}zero\u{feff}bom \u{10ffff}",
    "   leading\n \n \t\n//comment/* x */ #include <a.h>\n\n\t\treturn 'it''s';",
];

/// Tokenizer of a vocabulary.
#[derive(Debug)]
pub(crate) struct BytePair {
    tokenizer: BytePairTokenizer,
    /// Tokens that llama.cpp finds in any text before it encodes what is between.
    user_defined: Partitioner,
}

impl BytePair {
    /// Makes the tokenizer of a vocabulary; `None` if it is of another kind. Errors: why it is not known.
    pub fn of(
        header: &Header,
        tokens: &[Vec<u8>],
        specials: &[Special],
    ) -> Result<Option<Self>, UnsupportedVocabulary> {
        if header.text("tokenizer.ggml.model").as_deref() != Some("gpt2") {
            return Ok(None);
        }
        let pre = header.text("tokenizer.ggml.pre").unwrap_or_default();
        let merges = header.texts("tokenizer.ggml.merges");
        let source = Source { pre: &pre, tokens, merges: merges.as_deref() };
        let tokenizer = BytePairTokenizer::new(source)?;
        let user_defined = Partitioner::new(specials.iter().filter(|special| !special.control).cloned().collect());
        Ok(Some(Self { tokenizer, user_defined }))
    }

    /// Returns the tokens of a text; control tokens in it are text.
    pub fn tokenize(&self, text: &str) -> Vec<Token> {
        let mut tokens = Vec::with_capacity(text.len() / 4 + 1);
        for piece in self.user_defined.partition(text.as_bytes()) {
            match piece {
                Piece::Special { token, .. } => tokens.push(token),
                // A special token is cut out between characters, or its vocabulary is none that a model has.
                Piece::Text(range) => match text.get(range.clone()) {
                    Some(text) => self.tokenizer.tokenize(text, &mut tokens),
                    None => self.tokenizer.tokenize(&String::from_utf8_lossy(&text.as_bytes()[range]), &mut tokens),
                },
                Piece::Media(_) => {}
            }
        }
        tokens
    }

    /// Compares the tokens of some texts, and of every so many of the vocabulary's `spellings`, with llama.cpp's.
    ///
    /// Errors: a text with other tokens.
    pub fn compare(
        &self,
        spellings: impl ExactSizeIterator<Item = Vec<u8>>,
        llama: impl Fn(&str) -> Vec<Token>,
    ) -> Result<(), String> {
        let stride = (spellings.len() / COMPARED_TOKENS).max(1);
        let words: Vec<String> =
            spellings.step_by(stride).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect();
        let texts = words.chunks(SPELLINGS_PER_TEXT).map(<[String]>::concat);
        let differs = |text: &String| self.tokenize(text) != llama(text);
        COMPARED_TEXTS.into_iter().map(str::to_owned).chain(texts).find(differs).map_or(Ok(()), Err)
    }
}
