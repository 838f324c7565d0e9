//! A model's vocabulary, without its weights: its properties, its pieces and the tokens of texts.
//!
//! llama.cpp loads it, or its file declares all that llama.cpp would say (`declared`).

mod byte_pair;
mod declared;
mod llama;
pub(crate) mod partition;
pub(crate) mod token_bound;
mod words;

use std::path::Path;

use serde::{Deserialize, Serialize};
use warmpath_common::ids::Token;
use warmpath_gguf::{Header, MetadataValue, TOOL_USE_TEMPLATE_KEY};

use crate::cancel::end_if_cancelled;
use crate::error::OpenError;
use crate::template::kwargs::TemplateKwargs;
use crate::vocabulary::byte_pair::BytePair;
use crate::vocabulary::partition::Special;
use crate::vocabulary::token_bound::{TokenBound, Tokenizer};
use crate::vocabulary::words::allows_cuts;

use declared::DeclaredTokens;
use llama::{LlamaVocabulary, WORD_PIECE};

/// Length of a portion, if the text may be cut at its end: cancelled work ends after a portion. Units: bytes.
///
/// Source: own choice: tokenizing it takes some ten milliseconds.
const PORTION_BYTES: usize = 64 << 10;

/// Whether the tokens of the vocabulary's settings (BOS, EOS, ...) are put around a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddSpecial {
    /// They are added.
    Yes,
    /// They are not added.
    No,
}

/// Text of a control token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlTokens {
    /// Its spelling.
    Spelled,
    /// Empty.
    Empty,
}

/// Whether the spelling of a control token in a text becomes that token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseSpecial {
    /// It becomes the token.
    Yes,
    /// It stays text.
    No,
}

/// Properties of a vocabulary: its size, and how its prompts begin and end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VocabularyInfo {
    /// Number of tokens.
    pub n_vocab: u32,
    /// Whether a text starts with BOS.
    pub add_bos: bool,
    /// Whether a text ends with EOS.
    pub add_eos: bool,
    /// Beginning-of-sequence token, if there is one.
    pub bos: Option<Token>,
    /// End-of-sequence token, if there is one.
    pub eos: Option<Token>,
    /// Whether a separator stands between the texts of a pair.
    pub add_sep: bool,
    /// Separator token, if there is one.
    pub sep: Option<Token>,
    /// Spelling of BOS in templates; empty if there is none.
    pub bos_text: String,
    /// Spelling of EOS in templates; empty if there is none.
    pub eos_text: String,
    /// Every token that ends a generation.
    pub end_of_generation: Vec<Token>,
    /// Fill-in-the-middle tokens, if all required ones exist.
    pub fim: Option<FimTokens>,
}

/// Tokens of fill-in-the-middle prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FimTokens {
    /// Precedes the text before the gap.
    pub prefix: Token,
    /// Precedes the text after the gap.
    pub suffix: Token,
    /// Precedes the generated text.
    pub middle: Token,
    /// Precedes a repository's name.
    pub repository: Option<Token>,
    /// Precedes a file's name.
    pub file: Option<Token>,
}

/// What llama.cpp makes of a vocabulary's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub info: VocabularyInfo,
    /// Tokens that the vocabulary puts before every text.
    pub prefix: Vec<Token>,
    /// Tokens that the vocabulary puts after every text.
    pub suffix: Vec<Token>,
    /// Special tokens, by id.
    pub specials: Vec<Special>,
}

/// Places where a text may be cut so that the tokens of its portions, joined, are those of the text.
#[derive(Debug)]
enum Cuts {
    /// No place is known.
    Nowhere,
    /// Words' ends, in byte-pair encoding.
    Words,
    /// Words' ends, in SentencePiece's encoding.
    SentencePieces {
        /// Whether llama.cpp puts a space before each text; it must then be left out before each portion except the
        /// first.
        adds_space: bool,
    },
    /// White space, because no token contains any.
    Spaces,
}

/// Where pieces and tokens come from.
#[derive(Debug)]
enum Source {
    /// llama.cpp has loaded the vocabulary; it tokenizes unless there is a tokenizer with the same tokens.
    Llama { llama: LlamaVocabulary, byte_pair: Option<BytePair> },
    /// llama.cpp is not needed.
    Declared { declared: DeclaredTokens, byte_pair: BytePair },
}

/// An open vocabulary.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    source: Source,
    pub settings: Settings,
    /// Architecture that the file names.
    pub architecture: String,
    cuts: Cuts,
    /// Lower bound on the number of a text's tokens; `None` if they may stand for texts of any length.
    pub token_bound: Option<TokenBound>,
    /// Whether the file declares that tools are rendered in front of the system text.
    pub tools_first: bool,
    /// Whether the file declares that the keys of tools are put in one order.
    pub tool_keys_sorted: bool,
    /// Default variables of the chat template that the file declares.
    pub chat_template_kwargs: TemplateKwargs,
    /// The model's chat template for requests with tools, if it has another one for them.
    pub tool_use_template: Option<String>,
    /// The model's template of a question and a document to rank, if it has one.
    pub rerank_template: Option<String>,
}

/// Key of [`Vocabulary::rerank_template`].
const RERANK_TEMPLATE_KEY: &str = "tokenizer.chat_template.rerank";

impl Vocabulary {
    /// Opens the vocabulary of the GGUF file at `path` with llama.cpp.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let (header, texts) = check(path)?;
        let (source, settings) = loaded(path, &header, &texts)?;
        Self::of(path, &header, &texts, source, settings)
    }

    /// Opens the vocabulary at `path` without llama.cpp; `None` if llama.cpp is needed.
    pub fn open_declared(path: &Path) -> Result<Option<Self>, OpenError> {
        let (header, texts) = check(path)?;
        let Some(declaration) = header.vocabulary_declaration() else { return Ok(None) };
        let (source, settings) = declared(path, &header, &texts, &declaration)?;
        Self::of(path, &header, &texts, source, settings).map(Some)
    }

    fn of(
        path: &Path,
        header: &Header,
        texts: &[Vec<u8>],
        source: Source,
        settings: Settings,
    ) -> Result<Self, OpenError> {
        let kwargs = header.chat_template_kwargs().map(|text| TemplateKwargs::parse(&text)).transpose();
        let kwargs = kwargs.map_err(|reason| OpenError::TemplateKwargs { path: path.to_owned(), reason })?;
        Ok(Self {
            source,
            architecture: header.architecture().to_owned(),
            cuts: cuts(header, texts, &settings.specials),
            token_bound: token_bound(header, texts, &settings.specials),
            settings,
            tools_first: header.has_tools_first(),
            tool_keys_sorted: header.has_sorted_tool_keys(),
            chat_template_kwargs: kwargs.unwrap_or_default(),
            tool_use_template: header.text(TOOL_USE_TEMPLATE_KEY),
            rerank_template: header.text(RERANK_TEMPLATE_KEY),
        })
    }

    /// Returns the declaration for this vocabulary, which llama.cpp has loaded from the file at `path`; `None` if
    /// llama.cpp is needed to tokenize.
    pub fn declaration(&self, path: &Path) -> Option<String> {
        let Source::Llama { llama, byte_pair: Some(_) } = &self.source else { return None };
        let (header, texts) = check(path).ok()?;
        declared::declaration(&header, &texts, llama, &self.settings)
    }

    /// Returns the vocabulary's properties.
    pub fn info(&self) -> &VocabularyInfo {
        &self.settings.info
    }

    /// Returns llama.cpp's vocabulary. Panics: if there is none.
    #[cfg(test)]
    pub fn llama(&self) -> &LlamaVocabulary {
        match &self.source {
            Source::Llama { llama, .. } => llama,
            Source::Declared { .. } => panic!("it was opened without llama.cpp"),
        }
    }

    /// Returns the tokenizer that llama.cpp is not needed for, if the vocabulary has one.
    pub fn byte_pair(&self) -> Option<&BytePair> {
        match &self.source {
            Source::Llama { byte_pair, .. } => byte_pair.as_ref(),
            Source::Declared { byte_pair, .. } => Some(byte_pair),
        }
    }

    /// Returns whether texts are cut at words' ends, as in byte-pair encoding.
    #[cfg(test)]
    pub fn cuts_at_words(&self) -> bool {
        matches!(self.cuts, Cuts::Words)
    }

    /// Returns whether texts are cut into portions.
    #[cfg(test)]
    pub fn cuts_into_portions(&self) -> bool {
        !matches!(self.cuts, Cuts::Nowhere)
    }

    /// Returns the tokens of a text without control tokens, portion by portion.
    pub fn tokenize_plain(&self, text: &str) -> Vec<Token> {
        self.portions(text).flat_map(|portion| self.tokenize_portion(portion)).collect()
    }

    /// Returns the tokens of a portion of a text without control tokens.
    pub fn tokenize_portion(&self, portion: &str) -> Vec<Token> {
        match &self.source {
            Source::Llama { byte_pair: Some(byte_pair), .. } | Source::Declared { byte_pair, .. } => {
                byte_pair.tokenize(portion)
            }
            Source::Llama { llama, byte_pair: None } => llama.tokenize(portion, AddSpecial::No, ParseSpecial::No),
        }
    }

    /// Cuts a text into portions whose tokens, concatenated, are the text's; one portion if it may not be cut.
    ///
    /// The work of a cancelled request ends before the next portion.
    pub fn portions<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        self.portions_of(text, PORTION_BYTES)
    }

    /// Cuts a text like [`Self::portions`], into portions of at least `bytes_min` bytes.
    pub fn portions_of<'t>(&self, text: &'t str, bytes_min: usize) -> impl Iterator<Item = &'t str> {
        let mut remainder = Some(text);
        std::iter::from_fn(move || {
            let text = remainder.take()?;
            end_if_cancelled();
            let portion = self.beginning(text, bytes_min);
            remainder = portion.map(|portion| self.without_added_space(&text[portion.len()..]));
            portion.or(Some(text))
        })
    }

    /// Returns the length of the longest part of a text that llama.cpp tokenizes at once. Units: bytes.
    pub fn longest_portion(&self, text: &str) -> usize {
        if self.byte_pair().is_some() {
            return 0;
        }
        self.portions(text).map(str::len).max().unwrap_or(0)
    }

    /// Removes the space with which a portion begins, if llama.cpp adds one.
    fn without_added_space<'t>(&self, portion: &'t str) -> &'t str {
        match self.cuts {
            Cuts::SentencePieces { adds_space: true } => portion.strip_prefix(' ').unwrap_or(portion),
            Cuts::Nowhere | Cuts::Words | Cuts::SentencePieces { adds_space: false } | Cuts::Spaces => portion,
        }
    }

    /// Returns the shortest prefix of a text, of at least this many bytes, whose tokens are a prefix of the text's
    /// tokens.
    fn beginning<'t>(&self, text: &'t str, bytes_min: usize) -> Option<&'t str> {
        match &self.cuts {
            Cuts::Words | Cuts::SentencePieces { .. } => words::beginning(text, bytes_min),
            Cuts::Spaces => words::beginning_before_space(text, bytes_min),
            Cuts::Nowhere => None,
        }
    }

    /// Returns the bytes of `token`, control tokens spelled out; empty if there is no such token.
    pub fn piece(&self, token: Token) -> Vec<u8> {
        self.piece_as(token, ControlTokens::Spelled)
    }

    /// Returns the bytes that `token` adds to a response: none for a control token.
    pub fn answer_piece(&self, token: Token) -> Vec<u8> {
        self.piece_as(token, ControlTokens::Empty)
    }

    fn piece_as(&self, token: Token, control: ControlTokens) -> Vec<u8> {
        match &self.source {
            Source::Llama { llama, .. } => llama.piece(token, control),
            Source::Declared { declared, .. } => declared.piece(token, control),
        }
    }

    /// Returns the model's own chat template.
    pub fn chat_template(&self) -> Option<String> {
        match &self.source {
            Source::Llama { llama, .. } => llama.chat_template(),
            Source::Declared { declared, .. } => declared.chat_template.clone(),
        }
    }
}

/// Kind of SentencePiece vocabularies that merge pairs. Source: llama.cpp's `llm_tokenizer_spm_session`.
const SENTENCE_PIECE: &str = "llama";

/// Reads the header of a file and the texts of its tokens, and checks its vocabulary.
fn check(path: &Path) -> Result<(Header, Vec<Vec<u8>>), OpenError> {
    let load_error = |reason| OpenError::Load { path: path.to_owned(), reason };
    let header = warmpath_gguf::check(path).map_err(|error| load_error(error.to_string()))?;
    let vocabulary_error = |reason| OpenError::Vocabulary { path: path.to_owned(), reason };
    let texts = header.checked_tokens().map_err(|error| vocabulary_error(error.to_string()))?;
    Ok((header, texts))
}

/// Loads a vocabulary with llama.cpp.
fn loaded(path: &Path, header: &Header, texts: &[Vec<u8>]) -> Result<(Source, Settings), OpenError> {
    let (llama, settings) = LlamaVocabulary::load(path, header)?;
    let byte_pair = compared_byte_pair(path, header, texts, &llama, &settings);
    Ok((Source::Llama { llama, byte_pair }, settings))
}

/// Returns the tokenizer that llama.cpp is not needed for, if its tokens are the same.
fn compared_byte_pair(
    path: &Path,
    header: &Header,
    texts: &[Vec<u8>],
    llama: &LlamaVocabulary,
    settings: &Settings,
) -> Option<BytePair> {
    let path = path.display();
    let byte_pair = BytePair::of(header, texts, &settings.specials).unwrap_or_else(|reason| {
        tracing::debug!(%path, %reason, "llama.cpp tokenizes this vocabulary's texts");
        None
    })?;
    let spellings = (0..settings.info.n_vocab).map(|token| llama.piece(token, ControlTokens::Spelled));
    let comparison = byte_pair.compare(spellings, |text| llama.tokenize(text, AddSpecial::No, ParseSpecial::No));
    if let Err(text) = comparison {
        tracing::warn!(%path, text, "tokens differ from llama.cpp's, which tokenizes this vocabulary's texts");
        return None;
    }
    Some(byte_pair)
}

/// Reads a vocabulary that declares itself.
fn declared(
    path: &Path,
    header: &Header,
    texts: &[Vec<u8>],
    declaration: &str,
) -> Result<(Source, Settings), OpenError> {
    let vocabulary_error = |reason| OpenError::Vocabulary { path: path.to_owned(), reason };
    let (declared, settings) = DeclaredTokens::read(header, texts, declaration).map_err(vocabulary_error)?;
    let byte_pair =
        BytePair::of(header, texts, &settings.specials).map_err(|reason| vocabulary_error(reason.to_string()))?;
    let byte_pair = byte_pair.ok_or_else(|| vocabulary_error("it declares itself and is not byte-level".to_owned()))?;
    Ok((Source::Declared { declared, byte_pair }, settings))
}

/// Returns the lower bound on the number of a text's tokens, if there is one.
fn token_bound(header: &Header, texts: &[Vec<u8>], specials: &[Special]) -> Option<TokenBound> {
    // A token with this flag absorbs white space, even in a client's text.
    if specials.iter().any(|special| !special.control && (special.lstrip || special.rstrip)) {
        return None;
    }
    // A token without a spelling may stand for any text.
    let spellings: Vec<&str> = texts.iter().map(|text| str::from_utf8(text).ok()).collect::<Option<_>>()?;
    let (kind, pre) = (kind(header), header.text("tokenizer.ggml.pre").unwrap_or_default());
    TokenBound::of(Tokenizer { kind: &kind, pre: &pre }, &spellings)
}

/// Returns the kind of a vocabulary as its file names it.
fn kind(header: &Header) -> String {
    header.text("tokenizer.ggml.model").unwrap_or_default()
}

/// Returns where texts may be cut.
///
/// In byte-pair encoding and SentencePiece's they may be cut between a word's end and a space, if no token reaches
/// across such a place. Both encodings only merge neighbours into tokens of the vocabulary, so no merge depends on the
/// text beyond the cut. Unigram vocabularies weigh whole texts.
fn cuts(header: &Header, texts: &[Vec<u8>], specials: &[Special]) -> Cuts {
    let kind = kind(header);
    if kind == WORD_PIECE {
        return Cuts::Spaces;
    }
    if !texts.iter().all(|text| allows_cuts(text)) {
        return Cuts::Nowhere;
    }
    match kind.as_str() {
        "gpt2" | "gemma4" => Cuts::Words,
        SENTENCE_PIECE => cuts_between_sentence_pieces(header, specials),
        _ => Cuts::Nowhere,
    }
}

fn cuts_between_sentence_pieces(header: &Header, specials: &[Special]) -> Cuts {
    // Source: llama.cpp's `llama_vocab::impl::load`, with its default.
    let adds_space = header.scalar("tokenizer.ggml.add_space_prefix") != Some(MetadataValue::Bool(false));
    // Tokens that llama.cpp finds before it encodes: it adds the space behind each of them, and such a token may itself
    // contain the space.
    let mut found_first = specials.iter().filter(|special| !special.control);
    let reaches_across =
        |special: &Special| special.lstrip || special.rstrip || (adds_space && words::may_adjoin_cut(&special.text));
    if found_first.any(reaches_across) { Cuts::Nowhere } else { Cuts::SentencePieces { adds_space } }
}
