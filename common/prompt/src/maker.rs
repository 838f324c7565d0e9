//! The way from a request to its prompt: variables, rendering, control tokens, fragments, tokens.
//!
//! Not here: each of these steps. The idea: one value per model, shared by all requests.

use std::path::Path;
use std::sync::Arc;

use minijinja::value::Value;
use serde_json::Value as Json;
use warmpath_common::ids::Token;
use warmpath_common::model::Fingerprint;
use warmpath_common::openai::ChatPrompt;

use crate::caps::Caps;
use crate::error::{OpenError, PromptError};
use crate::fragments::{CacheCounters, FragmentCache};
use crate::messages::{to_template_value, variables};
use crate::partition::{Partitioner, Piece};
use crate::shield::{Shield, StandIns};
use crate::template::{ChatTemplate, Clock};
use crate::vocabulary::{AddSpecial, ParseSpecial, Vocabulary, VocabularyInfo};

/// Says how a [`PromptMaker`] differs from what the model's file says.
#[derive(Clone)]
pub struct PromptOptions {
    /// Replaces the model's chat template.
    pub chat_template: Option<String>,
    /// Is the most that the fragment cache may weigh.
    pub fragment_cache_bytes_max: u64,
    /// Is the time that a template's `strftime_now` writes; local time by default, as Hugging Face and llama.cpp have it.
    pub clock: Clock,
}

/// Is the default weight of the fragment cache: the fragments of some 5 million tokens.
///
/// Source: four bytes of text and four of token for each token of prose, and the overhead of short fragments.
pub const FRAGMENT_CACHE_BYTES_MAX_DEFAULT: u64 = 64 << 20;

impl Default for PromptOptions {
    fn default() -> Self {
        Self {
            chat_template: None,
            fragment_cache_bytes_max: FRAGMENT_CACHE_BYTES_MAX_DEFAULT,
            clock: Arc::new(jiff::Zoned::now),
        }
    }
}

impl std::fmt::Debug for PromptOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PromptOptions")
            .field("chat_template", &self.chat_template)
            .field("fragment_cache_bytes_max", &self.fragment_cache_bytes_max)
            .finish_non_exhaustive()
    }
}

/// Is a request's prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Is what the chat template rendered, without a BOS or EOS that the vocabulary adds itself.
    pub text: String,
    /// Are the tokens, with those that the vocabulary adds.
    pub tokens: Vec<Token>,
}

/// Makes prompts for one model.
#[derive(Debug)]
pub struct PromptMaker {
    vocabulary: Vocabulary,
    partitioner: Partitioner,
    templates: Option<Templates>,
    fragments: FragmentCache,
}

/// Are a model's chat templates, compiled.
#[derive(Debug)]
struct Templates {
    default: FittedTemplate,
    /// Is used instead where the request has tools and the model has a template named `tool_use`.
    tool_use: Option<FittedTemplate>,
}

/// Is a template with what is known about it.
#[derive(Debug)]
struct FittedTemplate {
    template: ChatTemplate,
    caps: Caps,
    shield: Shield,
}

/// Is a rendered request: as it is, and with stand-ins where the client wrote what control tokens are made of.
struct Rendered {
    plain: String,
    shielded: Option<Shielded>,
}

struct Shielded {
    text: String,
    stand_ins: StandIns,
    /// Says that some text of the client spells a control token.
    hostile: bool,
}

impl PromptMaker {
    /// Loads the vocabulary and the chat template of the GGUF file at `gguf`; its tensors are not read.
    ///
    /// Cost: 30-700 ms. Errors: `Load` where llama.cpp refuses the file, `Vocabulary` where it lacks a token that its own
    /// settings need, `Template` where the chat template does not compile.
    pub fn open(gguf: &Path, options: PromptOptions) -> Result<Self, OpenError> {
        let vocabulary = Vocabulary::open(gguf)?;
        let partitioner = Partitioner::new(vocabulary.specials());
        let wrong = |source| OpenError::Template { path: gguf.to_owned(), source: Box::new(source) };
        let fitted = |source: String| FittedTemplate::new(&source, &partitioner, &options.clock);
        let (default, tool_use) = match options.chat_template.clone() {
            Some(source) => (Some(source), None),
            None => (vocabulary.chat_template(None), vocabulary.chat_template(Some("tool_use"))),
        };
        let templates = match (default.map(fitted).transpose(), tool_use.map(fitted).transpose()) {
            (Ok(None), Ok(None)) => None,
            (Ok(Some(default)), Ok(tool_use)) => Some(Templates { default, tool_use }),
            (Ok(None), Ok(Some(default))) => Some(Templates { default, tool_use: None }),
            (Err(error), _) | (_, Err(error)) => return Err(wrong(error)),
        };
        let fragments = FragmentCache::new(options.fragment_cache_bytes_max);
        Ok(Self { vocabulary, partitioner, templates, fragments })
    }

    /// Returns the prompt of a chat request.
    ///
    /// Cost: rendering, plus tokenizing those fragments that are not cached. Errors: see [`PromptError`].
    pub fn chat(&self, request: &ChatPrompt) -> Result<Prompt, PromptError> {
        let rendered = self.rendered(request)?;
        let tokens = self.chat_tokens(&rendered);
        Ok(Prompt { text: self.without_affixes(&rendered.plain).to_owned(), tokens })
    }

    /// Returns the text of a chat request's prompt, as llama-server's `/apply-template` does.
    ///
    /// Errors: see [`PromptError`].
    pub fn render(&self, request: &ChatPrompt) -> Result<String, PromptError> {
        Ok(self.without_affixes(&self.rendered(request)?.plain).to_owned())
    }

    /// Returns the tokens of a completion request's text: what the vocabulary adds, and control tokens parsed.
    pub fn text(&self, text: &str) -> Vec<Token> {
        self.with_affixes(|tokens| self.append(&self.partitioner.partition(text.as_bytes()), text, None, tokens))
    }

    /// Returns the tokens of `text` as llama.cpp's own tokenizer gives them.
    pub fn tokenize(&self, text: &str, add: AddSpecial, parse: ParseSpecial) -> Vec<Token> {
        self.vocabulary.tokenize(text, add, parse)
    }

    /// Returns the text of `tokens`, control tokens spelled out, what is not UTF-8 replaced.
    pub fn detokenize(&self, tokens: &[Token]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| self.vocabulary.piece(*token)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the bytes of one token, a control token spelled out; none for a token that is not in the vocabulary.
    pub fn piece(&self, token: Token) -> Vec<u8> {
        self.vocabulary.piece(token)
    }

    /// Returns the bytes that a generated token adds to an answer: those of [`Self::piece`], but none for a control token.
    pub fn answer_piece(&self, token: Token) -> Vec<u8> {
        self.vocabulary.answer_piece(token)
    }

    /// Returns what the vocabulary contains.
    pub fn vocabulary(&self) -> &VocabularyInfo {
        &self.vocabulary.info
    }

    /// Returns the source of the chat template in use; `None` where the model has none.
    pub fn chat_template(&self) -> Option<&str> {
        self.templates.as_ref().map(|templates| templates.default.template.source())
    }

    /// Names the chat templates in use; a model without any has a name of its own.
    pub fn chat_template_fingerprint(&self) -> Fingerprint {
        let mut hasher = blake3::Hasher::new_derive_key("warmpath 2026 chat template v1");
        let templates =
            self.templates.iter().flat_map(|templates| [Some(&templates.default), templates.tool_use.as_ref()]);
        for template in templates.flatten() {
            let source = template.template.source().as_bytes();
            hasher.update(&(source.len() as u64).to_le_bytes()).update(source);
        }
        Fingerprint(*hasher.finalize().as_bytes())
    }

    /// Returns what the fragment cache has saved so far.
    pub fn cache_counters(&self) -> CacheCounters {
        self.fragments.counters()
    }

    fn rendered(&self, request: &ChatPrompt) -> Result<Rendered, PromptError> {
        let templates = self.templates.as_ref().ok_or(PromptError::NoTemplate)?;
        let has_tools = request.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let tool_use = templates.tool_use.as_ref().filter(|_| has_tools);
        tool_use.unwrap_or(&templates.default).rendered(request, &self.vocabulary.info)
    }

    /// Cuts off a BOS and EOS that the template writes where the vocabulary adds them too, as llama.cpp does.
    fn without_affixes<'t>(&self, text: &'t str) -> &'t str {
        let info = &self.vocabulary.info;
        let text = if info.add_bos { text.strip_prefix(info.bos_text.as_str()).unwrap_or(text) } else { text };
        if info.add_eos { text.strip_suffix(info.eos_text.as_str()).unwrap_or(text) } else { text }
    }

    fn chat_tokens(&self, rendered: &Rendered) -> Vec<Token> {
        let plain = self.without_affixes(&rendered.plain);
        let pieces = self.partitioner.partition(plain.as_bytes());
        let Some(shielded) = &rendered.shielded else {
            return self.with_affixes(|tokens| self.append(&pieces, plain, None, tokens));
        };
        let shielded_text = self.without_affixes(&shielded.text);
        let shielded_pieces = self.partitioner.partition(shielded_text.as_bytes());
        // Nothing of the client's became a control token where both renderings have the same ones.
        if !shielded.hostile && controls(&pieces).eq(controls(&shielded_pieces)) {
            return self.with_affixes(|tokens| self.append(&pieces, plain, None, tokens));
        }
        let stand_ins = Some(&shielded.stand_ins);
        self.with_affixes(|tokens| self.append(&shielded_pieces, shielded_text, stand_ins, tokens))
    }

    fn with_affixes(&self, append: impl FnOnce(&mut Vec<Token>)) -> Vec<Token> {
        let mut tokens = self.vocabulary.prefix.clone();
        append(&mut tokens);
        tokens.extend_from_slice(&self.vocabulary.suffix);
        tokens
    }

    /// Appends the tokens of the pieces of `text`.
    fn append(&self, pieces: &[Piece], text: &str, stand_ins: Option<&StandIns>, tokens: &mut Vec<Token>) {
        for piece in pieces {
            match piece {
                Piece::Special { token, .. } => tokens.push(*token),
                Piece::Text(range) => {
                    let fragment = String::from_utf8_lossy(&text.as_bytes()[range.clone()]);
                    let fragment = stand_ins.map_or(fragment.clone(), |stand_ins| stand_ins.restore(&fragment).into());
                    tokens.extend_from_slice(&self.fragments.tokens(&fragment, |fragment| {
                        self.vocabulary.tokenize(fragment, AddSpecial::No, ParseSpecial::No)
                    }));
                }
            }
        }
    }
}

impl FittedTemplate {
    fn new(source: &str, partitioner: &Partitioner, clock: &Clock) -> Result<Self, PromptError> {
        let template = ChatTemplate::compile(source, Arc::clone(clock))?;
        let caps = Caps::probe(&template);
        let shield = Shield::new(partitioner.controls().map(|special| special.text.as_slice()), source);
        Ok(Self { template, caps, shield })
    }

    fn rendered(&self, request: &ChatPrompt, info: &VocabularyInfo) -> Result<Rendered, PromptError> {
        let variables = variables(request, &self.caps)?;
        let stand_ins = self.shield.stand_ins(&variables).map_err(|()| {
            let reason = "they contain too many different private-use characters".to_owned();
            PromptError::Field { field: "messages", reason }
        })?;
        let variables = Json::Object(variables);
        let plain = self.template.render(with_tokens(to_template_value(&variables), info))?;
        let Some(stand_ins) = stand_ins else { return Ok(Rendered { plain, shielded: None }) };
        let text = self.template.render(with_tokens(self.shield.shielded(&variables, &stand_ins), info))?;
        let hostile = self.shield.spells_control(&variables);
        Ok(Rendered { plain, shielded: Some(Shielded { text, stand_ins, hostile }) })
    }
}

/// Adds the vocabulary's own texts to a template's variables, unless the request has set them.
fn with_tokens(variables: Value, info: &VocabularyInfo) -> Value {
    let own = [("bos_token", &info.bos_text), ("eos_token", &info.eos_text)];
    let own: Value = Value::from_pairs(own.map(|(name, text)| (name, Value::from(text.as_str()))));
    minijinja::value::merge_maps([variables, own])
}

/// Returns the control tokens among `pieces`.
fn controls(pieces: &[Piece]) -> impl Iterator<Item = Token> + '_ {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Special { token, control: true, .. } => Some(*token),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
