//! A vocabulary whose file declares what llama.cpp makes of its settings, so that llama.cpp is not needed.
//!
//! A worker adds the declaration to the vocabulary that it serves, if everything that follows from it is what llama.cpp
//! says. Whatever a declaration has, nothing worse than wrong tokens follows.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use warmpath_common::ids::Token;
use warmpath_gguf::Header;
use warmpath_tokenizer::alphabet::byte_of;

use super::{ControlTokens, LlamaVocabulary, Settings, VocabularyInfo};
use crate::vocabulary::partition::Special;

/// What a worker declares.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Declaration {
    info: VocabularyInfo,
    prefix: Vec<Token>,
    suffix: Vec<Token>,
    specials: Vec<DeclaredSpecial>,
    /// Tokens that stand for no text.
    unused: HashSet<Token>,
}

/// A special token, whose text is in the file's list.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DeclaredSpecial {
    token: Token,
    control: bool,
    lstrip: bool,
    rstrip: bool,
}

/// A declared vocabulary.
#[derive(Debug)]
pub(crate) struct DeclaredTokens {
    /// Text of each token, spelled as the file spells it.
    texts: Vec<Vec<u8>>,
    /// Special tokens, and whether each is a control token.
    specials: HashMap<Token, bool>,
    unused: HashSet<Token>,
    /// The model's own chat template.
    pub chat_template: Option<String>,
}

impl DeclaredTokens {
    /// Reads a vocabulary with the tokens `texts` and this declaration. Errors: a reason why it is invalid.
    pub fn read(header: &Header, texts: &[Vec<u8>], declaration: &str) -> Result<(Self, Settings), String> {
        let declaration: Declaration =
            serde_json::from_str(declaration).map_err(|error| format!("its declaration is invalid: {error}"))?;
        Self::new(header, texts, declaration)
    }

    fn new(header: &Header, texts: &[Vec<u8>], declaration: Declaration) -> Result<(Self, Settings), String> {
        let Declaration { info, prefix, suffix, specials, unused } = declaration;
        if usize::try_from(info.n_vocab) != Ok(texts.len()) {
            return Err(format!("{} tokens are declared, and it has {}", info.n_vocab, texts.len()));
        }
        // Every token that the declaration names must be one of the vocabulary.
        let fim = info.fim.iter().flat_map(|fim| [fim.prefix, fim.suffix, fim.middle]);
        let of_info = [info.bos, info.eos, info.sep].into_iter().flatten().chain(fim);
        let declared_tokens = of_info.chain(info.end_of_generation.iter().copied()).chain(prefix.iter().copied());
        let declared_tokens =
            declared_tokens.chain(suffix.iter().copied()).chain(specials.iter().map(|special| special.token));
        if let Some(token) = declared_tokens.chain(unused.iter().copied()).find(|token| *token >= info.n_vocab) {
            return Err(format!("token {token} is declared, and there are {} tokens", info.n_vocab));
        }
        let texts: Vec<Vec<u8>> = texts.to_vec();
        // A special token's text is the one in the file.
        let kinds = specials.iter().map(|special| (special.token, special.control)).collect();
        let specials = specials.into_iter().map(|DeclaredSpecial { token, control, lstrip, rstrip }| Special {
            token,
            text: texts[token as usize].clone(),
            control,
            lstrip,
            rstrip,
        });
        let settings = Settings { info, prefix, suffix, specials: specials.collect() };
        let chat_template = header.text("tokenizer.chat_template");
        Ok((Self { texts, specials: kinds, unused, chat_template }, settings))
    }

    /// Returns the bytes of `token`; empty if there is no such token.
    pub fn piece(&self, token: Token, control: ControlTokens) -> Vec<u8> {
        let Some(text) = self.texts.get(token as usize) else { return Vec::new() };
        match self.specials.get(&token) {
            Some(true) if control == ControlTokens::Empty => Vec::new(),
            Some(_) => text.clone(),
            None if self.unused.contains(&token) => Vec::new(),
            None => unspelled(text),
        }
    }
}

/// Returns the bytes that a token's text spells; characters that spell none are as llama.cpp's `llama_decode_text`
/// writes them.
fn unspelled(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match byte_of(character) {
            Some(byte) => bytes.push(byte),
            None => {
                let hex: String = character.to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
                bytes.extend(format!("[UNK_BYTE_0x{hex}{text}]").into_bytes());
            }
        }
    }
    bytes
}

/// Returns the declaration of a vocabulary that llama.cpp has loaded; `None` if something in it cannot be declared.
pub(super) fn declaration(
    header: &Header,
    texts: &[Vec<u8>],
    llama: &LlamaVocabulary,
    settings: &Settings,
) -> Option<String> {
    let Settings { info, prefix, suffix, specials } = settings;
    let special = |special: &Special| DeclaredSpecial {
        token: special.token,
        control: special.control,
        lstrip: special.lstrip,
        rstrip: special.rstrip,
    };
    let is_special: HashSet<Token> = specials.iter().map(|special| special.token).collect();
    let is_unused =
        |token: &Token| !is_special.contains(token) && llama.piece(*token, ControlTokens::Spelled).is_empty();
    let declaration = Declaration {
        info: info.clone(),
        prefix: prefix.clone(),
        suffix: suffix.clone(),
        specials: specials.iter().map(special).collect(),
        unused: (0..info.n_vocab).filter(is_unused).collect(),
    };
    let text = serde_json::to_string(&declaration).ok()?;
    // Everything that follows from it is compared.
    let (tokens, declared_settings) = DeclaredTokens::new(header, texts, declaration).ok()?;
    let has_piece = |token: Token| {
        let kinds = [ControlTokens::Spelled, ControlTokens::Empty];
        kinds.into_iter().all(|control| tokens.piece(token, control) == llama.piece(token, control))
    };
    let is_same = declared_settings == *settings
        && tokens.chat_template == llama.chat_template()
        && (0..info.n_vocab).all(has_piece);
    is_same.then_some(text)
}

#[cfg(test)]
mod tests;
