//! A model's vocabulary, loaded without its weights: the only place of this crate that calls llama.cpp.
//!
//! Anything that would make llama.cpp abort is refused when the file is opened, because a router opens files that
//! workers send. Not here: control tokens in prompts (`partition`, `shield`).

use std::path::Path;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;
use warmpath_common::ids::Token;
use warmpath_gguf::Header;

use crate::backend::backend;
use crate::byte_pair::BytePair;
use crate::cancel::end_if_cancelled;
use crate::error::OpenError;
use crate::least_tokens::{LeastTokens, Tokenizer};
use crate::partition::Special;
use crate::runs;
use crate::template_kwargs::TemplateKwargs;
use crate::words::{self, allows_cuts};

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
enum ControlTokens {
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// A loaded vocabulary.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    model: LlamaModel,
    pub info: VocabularyInfo,
    /// Tokens that the vocabulary puts before every text.
    pub prefix: Vec<Token>,
    /// Tokens that the vocabulary puts after every text.
    pub suffix: Vec<Token>,
    cuts: Cuts,
    /// Tokenizer that llama.cpp is not needed for; `None` if the vocabulary has no such.
    pub byte_pair: Option<BytePair>,
    /// Whether long runs of one kind of character are cut, because llama.cpp would end the process on them.
    cuts_runs: bool,
    /// Lower bound on the number of a text's tokens; `None` if they may stand for texts of any length.
    pub least_tokens: Option<LeastTokens>,
    /// Whether the file declares that tools are rendered in front of the system text.
    pub tools_first: bool,
    /// Whether the file declares that the keys of tools are put in one order.
    pub tool_keys_sorted: bool,
    /// Default variables of the chat template that the file declares.
    pub chat_template_kwargs: TemplateKwargs,
}

impl Vocabulary {
    /// Loads the vocabulary of the GGUF file at `path`.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |reason: String| OpenError::Load { path: path.to_owned(), reason };
        let refused = |reason: String| OpenError::Vocabulary { path: path.to_owned(), reason };
        let header = warmpath_gguf::check(path).map_err(|error| failed(error.to_string()))?;
        header.check_tokenizer().map_err(|error| refused(error.to_string()))?;
        let params = LlamaModelParams::default().with_vocab_only(true);
        let model = LlamaModel::load_from_file(backend(), path, &params).map_err(|error| failed(error.to_string()))?;
        check(&model).map_err(refused)?;
        let info = info(&model);
        let pre_tokenizer = header.text("tokenizer.ggml.pre").unwrap_or_default();
        let cuts_runs = runs::must_be_cut(&kind(&model), &pre_tokenizer);
        let (prefix, suffix, cuts, least_tokens) = (Vec::new(), Vec::new(), Cuts::Nowhere, None);
        let (tools_first, tool_keys_sorted) = (header.has_tools_first(), header.has_sorted_tool_keys());
        let kwargs = header.chat_template_kwargs().map(|text| TemplateKwargs::parse(&text)).transpose();
        let kwargs = kwargs.map_err(|reason| OpenError::TemplateKwargs { path: path.to_owned(), reason })?;
        let chat_template_kwargs = kwargs.unwrap_or_default();
        let mut vocabulary = Self {
            model,
            info,
            prefix,
            suffix,
            cuts,
            byte_pair: None,
            cuts_runs,
            least_tokens,
            tools_first,
            tool_keys_sorted,
            chat_template_kwargs,
        };
        vocabulary.cuts = vocabulary.find_cuts();
        vocabulary.find_affixes();
        vocabulary.least_tokens = vocabulary.find_least_tokens();
        vocabulary.byte_pair = vocabulary.find_byte_pair(&header, path);
        Ok(vocabulary)
    }

    /// Returns the tokenizer that llama.cpp is not needed for, if its tokens are the same.
    fn find_byte_pair(&self, header: &Header, path: &Path) -> Option<BytePair> {
        let path = path.display();
        let byte_pair = BytePair::of(header, &self.specials()).unwrap_or_else(|reason| {
            tracing::debug!(%path, %reason, "llama.cpp tokenizes this vocabulary's texts");
            None
        })?;
        let spellings = (0..self.info.n_vocab).map(|token| self.piece(token));
        let compared = byte_pair.compare(spellings, |text| self.tokenize(text, AddSpecial::No, ParseSpecial::No));
        if let Err(text) = compared {
            tracing::warn!(%path, text, "tokens differ from llama.cpp's, which tokenizes this vocabulary's texts");
            return None;
        }
        Some(byte_pair)
    }

    /// Determines what the vocabulary puts around a text by comparing one text tokenized both ways.
    fn find_affixes(&mut self) {
        let bare = self.tokenize("a", AddSpecial::No, ParseSpecial::No);
        let whole = self.tokenize("a", AddSpecial::Yes, ParseSpecial::No);
        let start = whole.windows(bare.len().max(1)).position(|window| window == bare).unwrap_or(0);
        self.prefix = whole[..start].to_vec();
        self.suffix = whole.get(start + bare.len()..).unwrap_or_default().to_vec();
    }

    /// Returns the lower bound on the number of a text's tokens, if there is one.
    fn find_least_tokens(&self) -> Option<LeastTokens> {
        // A token with this flag absorbs white space, even in a client's text.
        if self.specials().iter().any(|special| !special.control && (special.lstrip || special.rstrip)) {
            return None;
        }
        let vocab = self.model.vocab();
        let spelling = |token: Token| vocab.text(LlamaToken(i32::try_from(token).ok()?))?.to_str().ok();
        // A token without a spelling may stand for any text.
        let spellings: Vec<&str> = (0..self.info.n_vocab).map(spelling).collect::<Option<_>>()?;
        let pre = self.model.meta_val_str("tokenizer.ggml.pre").unwrap_or_default();
        LeastTokens::of(Tokenizer { kind: &kind(&self.model), pre: &pre }, &spellings)
    }

    /// Returns where texts may be cut.
    ///
    /// In byte-pair encoding and SentencePiece's they may be cut between a word's end and a space, if no token reaches
    /// across such a place. Both encodings only merge neighbours into tokens of the vocabulary, so no merge depends on
    /// the text beyond the cut. Unigram vocabularies weigh whole texts.
    fn find_cuts(&self) -> Cuts {
        let kind = kind(&self.model);
        if kind == WORD_PIECE {
            return Cuts::Spaces;
        }
        let vocab = self.model.vocab();
        let allows = |token: i32| vocab.text(LlamaToken(token)).is_none_or(|text| allows_cuts(text.to_bytes()));
        if !(0..vocab.n_tokens()).all(allows) {
            return Cuts::Nowhere;
        }
        match kind.as_str() {
            "gpt2" | "gemma4" => Cuts::Words,
            SENTENCE_PIECE => self.find_cuts_between_sentence_pieces(),
            _ => Cuts::Nowhere,
        }
    }

    fn find_cuts_between_sentence_pieces(&self) -> Cuts {
        // Source: llama.cpp's `llama_vocab::impl::load`, with its default.
        let adds_space = self.model.meta_val_str("tokenizer.ggml.add_space_prefix").map_or(true, |adds| adds == "true");
        // Tokens that llama.cpp finds before it encodes: it adds the space behind each of them, and such a token may
        // itself contain the space.
        let mut found_first = self.specials().into_iter().filter(|special| !special.control);
        let reaches_across =
            |special: Special| special.lstrip || special.rstrip || (adds_space && words::may_adjoin_cut(&special.text));
        if found_first.any(reaches_across) { Cuts::Nowhere } else { Cuts::SentencePieces { adds_space } }
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

    /// Returns the tokens of a text without control tokens, equal to those of [`Self::tokenize`], portion by portion.
    pub fn tokenize_plain(&self, text: &str) -> Vec<Token> {
        self.portions(text).flat_map(|portion| self.tokenize_portion(portion)).collect()
    }

    /// Returns the tokens of a portion of a text without control tokens.
    pub fn tokenize_portion(&self, portion: &str) -> Vec<Token> {
        match &self.byte_pair {
            Some(byte_pair) => byte_pair.tokenize(portion),
            None => self.tokenize(portion, AddSpecial::No, ParseSpecial::No),
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
        let mut rest = Some(text);
        std::iter::from_fn(move || {
            let text = rest.take()?;
            end_if_cancelled();
            let portion = self.beginning(text, bytes_min);
            rest = portion.map(|portion| self.without_added_space(&text[portion.len()..]));
            portion.or(Some(text))
        })
    }

    /// Returns the length of the longest part of a text that llama.cpp tokenizes at once. Units: bytes.
    pub fn longest_portion(&self, text: &str) -> usize {
        if self.byte_pair.is_some() {
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

    pub fn tokenize(&self, text: &str, add: AddSpecial, parse: ParseSpecial) -> Vec<Token> {
        let pieces = if self.cuts_runs { runs::pieces(text) } else { vec![text] };
        if pieces.len() == 1 {
            return self.tokenize_whole(text, add, parse);
        }
        let mut tokens = if add == AddSpecial::Yes { self.prefix.clone() } else { Vec::new() };
        tokens.extend(pieces.into_iter().flat_map(|piece| self.tokenize_whole(piece, AddSpecial::No, parse)));
        if add == AddSpecial::Yes {
            tokens.extend_from_slice(&self.suffix);
        }
        tokens
    }

    fn tokenize_whole(&self, text: &str, add: AddSpecial, parse: ParseSpecial) -> Vec<Token> {
        let tokens = self.model.vocab().tokenize(text.as_bytes(), add == AddSpecial::Yes, parse == ParseSpecial::Yes);
        tokens.into_iter().filter_map(|token| Token::try_from(token.0).ok()).collect()
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
        // For a token out of range llama.cpp throws a C++ exception, which would end the process.
        let Ok(id) = i32::try_from(token) else { return Vec::new() };
        if token >= self.info.n_vocab {
            return Vec::new();
        }
        self.model.vocab().token_to_piece(LlamaToken(id), control == ControlTokens::Spelled, None)
    }

    /// Returns the special tokens, by id.
    pub fn specials(&self) -> Vec<Special> {
        let vocab = self.model.vocab();
        let special = |token: Token| {
            let id = LlamaToken(i32::try_from(token).ok()?);
            let attr = vocab.attr(id);
            let control = attr.contains(LlamaTokenAttr::Control) || attr.contains(LlamaTokenAttr::Unknown);
            if !control && !attr.contains(LlamaTokenAttr::UserDefined) {
                return None;
            }
            Some(Special {
                token,
                text: vocab.text(id)?.to_bytes().to_vec(),
                control,
                lstrip: attr.contains(LlamaTokenAttr::LStrip),
                rstrip: attr.contains(LlamaTokenAttr::RStrip),
            })
        };
        (0..self.info.n_vocab).filter_map(special).collect()
    }

    /// Returns the model's own chat template, the default one or one by name.
    pub fn chat_template(&self, name: Option<&str>) -> Option<String> {
        self.model.chat_template(name).ok()?.to_string().ok()
    }
}

/// Kind of vocabularies of word pieces. Source: llama.cpp's `llm_tokenizer_wpm_session`: it cuts at white space first.
const WORD_PIECE: &str = "bert";

/// Kind of SentencePiece vocabularies that merge pairs. Source: llama.cpp's `llm_tokenizer_spm_session`.
const SENTENCE_PIECE: &str = "llama";

/// Returns the kind of a model's tokenizer as its file names it; llama-cpp-2's own function knows two kinds and panics
/// for others.
fn kind(model: &LlamaModel) -> String {
    model.meta_val_str("tokenizer.ggml.model").unwrap_or_default()
}

/// Refuses a vocabulary on which llama.cpp would abort.
fn check(model: &LlamaModel) -> Result<(), String> {
    let vocab = model.vocab();
    let kind = kind(model);
    if matches!(kind.as_str(), "" | "none" | "no_vocab") || vocab.n_tokens() <= 0 {
        return Err("it has no tokenizer".to_owned());
    }
    let wpm = kind == WORD_PIECE;
    if (vocab.should_add_bos() || wpm) && vocab.bos().0 < 0 {
        return Err("texts must start with BOS, but there is no BOS token".to_owned());
    }
    if !wpm && vocab.should_add_eos() && vocab.eos().0 < 0 {
        return Err("texts must end with EOS, but there is no EOS token".to_owned());
    }
    if wpm && vocab.sep().0 < 0 {
        return Err("texts must end with SEP, but there is no SEP token".to_owned());
    }
    Ok(())
}

fn fim(model: &LlamaModel) -> Option<FimTokens> {
    let vocab = model.vocab();
    let present = |token: LlamaToken| Token::try_from(token.0).ok();
    Some(FimTokens {
        prefix: present(vocab.fim_pre())?,
        suffix: present(vocab.fim_suf())?,
        middle: present(vocab.fim_mid())?,
        repository: present(vocab.fim_rep()),
        file: present(vocab.fim_sep()),
    })
}

fn info(model: &LlamaModel) -> VocabularyInfo {
    let vocab = model.vocab();
    let n_vocab = u32::try_from(vocab.n_tokens()).unwrap_or(0);
    let present = |token: LlamaToken| Token::try_from(token.0).ok().filter(|token| *token < n_vocab);
    let spelled = |token: Option<Token>| {
        let Some(id) = token.and_then(|token| i32::try_from(token).ok()) else { return String::new() };
        String::from_utf8_lossy(&vocab.token_to_piece(LlamaToken(id), true, None)).into_owned()
    };
    let (bos, eos) = (present(vocab.bos()), present(vocab.eos()));
    let ends = |token: &Token| i32::try_from(*token).is_ok_and(|id| vocab.is_eog(LlamaToken(id)));
    VocabularyInfo {
        n_vocab,
        add_bos: vocab.should_add_bos(),
        add_eos: vocab.should_add_eos(),
        add_sep: vocab.should_add_sep(),
        sep: present(vocab.sep()),
        bos,
        eos,
        bos_text: spelled(bos),
        eos_text: spelled(eos),
        end_of_generation: (0..n_vocab).filter(ends).collect(),
        fim: fim(model),
    }
}
