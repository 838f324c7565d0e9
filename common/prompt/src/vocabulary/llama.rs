//! A vocabulary loaded by llama.cpp, without its weights: the only place of this crate that calls its tokenizer.
//!
//! Anything that would make llama.cpp abort is refused when the file is opened, because a router opens files that
//! workers send.

mod runs;

use std::path::Path;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;
use warmpath_common::ids::Token;
use warmpath_gguf::Header;

use super::{AddSpecial, ControlTokens, FimTokens, ParseSpecial, Settings, VocabularyInfo};
use crate::backend::backend;
use crate::error::OpenError;
use crate::vocabulary::partition::Special;

/// Kind of vocabularies of word pieces. Source: llama.cpp's `llm_tokenizer_wpm_session`: it cuts at white space first.
pub(super) const WORD_PIECE: &str = "bert";

/// A loaded vocabulary.
#[derive(Debug)]
pub(crate) struct LlamaVocabulary {
    model: LlamaModel,
    /// Whether long runs of one kind of character are cut, because llama.cpp would end the process on them.
    cuts_runs: bool,
    /// Tokens that the vocabulary puts before every text.
    prefix: Vec<Token>,
    /// Tokens that the vocabulary puts after every text.
    suffix: Vec<Token>,
    n_vocab: u32,
}

impl LlamaVocabulary {
    /// Loads the vocabulary of the GGUF file at `path`, whose header was checked, and its settings.
    pub fn load(path: &Path, header: &Header) -> Result<(Self, Settings), OpenError> {
        let load_error = |reason: String| OpenError::Load { path: path.to_owned(), reason };
        let vocabulary_error = |reason: String| OpenError::Vocabulary { path: path.to_owned(), reason };
        let params = LlamaModelParams::default().with_vocab_only(true);
        let model =
            LlamaModel::load_from_file(backend(), path, &params).map_err(|error| load_error(error.to_string()))?;
        check(&model).map_err(vocabulary_error)?;
        let info = info(&model);
        let pre_tokenizer = header.text("tokenizer.ggml.pre").unwrap_or_default();
        let cuts_runs = runs::must_be_cut(&kind(&model), &pre_tokenizer);
        let mut llama = Self { model, cuts_runs, prefix: Vec::new(), suffix: Vec::new(), n_vocab: info.n_vocab };
        llama.find_affixes();
        let (prefix, suffix, specials) = (llama.prefix.clone(), llama.suffix.clone(), llama.specials());
        Ok((llama, Settings { info, prefix, suffix, specials }))
    }

    /// Determines what the vocabulary puts around a text by comparing one text tokenized both ways.
    fn find_affixes(&mut self) {
        let text_tokens = self.tokenize("a", AddSpecial::No, ParseSpecial::No);
        let all_tokens = self.tokenize("a", AddSpecial::Yes, ParseSpecial::No);
        let start = all_tokens.windows(text_tokens.len().max(1)).position(|window| window == text_tokens).unwrap_or(0);
        self.prefix = all_tokens[..start].to_vec();
        self.suffix = all_tokens.get(start + text_tokens.len()..).unwrap_or_default().to_vec();
    }

    /// Returns the tokens of a text as llama.cpp's tokenizer gives them.
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

    /// Returns the bytes of `token`; empty if there is no such token.
    pub fn piece(&self, token: Token, control: ControlTokens) -> Vec<u8> {
        // For a token out of range llama.cpp throws a C++ exception, which would end the process.
        let Ok(id) = i32::try_from(token) else { return Vec::new() };
        if token >= self.n_vocab {
            return Vec::new();
        }
        self.model.vocab().token_to_piece(LlamaToken(id), control == ControlTokens::Spelled, None)
    }

    /// Returns the special tokens, by id.
    fn specials(&self) -> Vec<Special> {
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
        (0..self.n_vocab).filter_map(special).collect()
    }

    /// Returns the model's own chat template.
    ///
    /// One by name is not asked for: llama-cpp-2 0.1.160 passes llama.cpp a pointer to a name that it has freed.
    pub fn chat_template(&self) -> Option<String> {
        self.model.chat_template(None).ok()?.to_string().ok()
    }
}

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
    let spelling = |token: Option<Token>| {
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
        bos_text: spelling(bos),
        eos_text: spelling(eos),
        end_of_generation: (0..n_vocab).filter(ends).collect(),
        fim: fim(model),
    }
}
