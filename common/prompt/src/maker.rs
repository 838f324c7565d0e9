//! From a request to its prompt: variables, rendering, control tokens, fragments, tokens.
//!
//! There is one [`PromptMaker`] per model, shared by all requests.

mod declared;
pub(crate) mod dropped_reasoning;
mod infill;
mod options;
mod prefixes;
mod prepared;
mod rerank;
mod shortened;

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::string::FromUtf8Error;
use std::sync::{Arc, OnceLock};

use serde_json::Value as Json;
use warmpath_common::ids::Token;
use warmpath_common::model::{Fingerprint, Modalities};
use warmpath_common::openai::ChatPrompt;

use crate::answer_format::AnswerFormat;
use crate::answer_format::key::FormatOptions;
use crate::cancel::end_if_cancelled;
use crate::error::{OpenError, PromptError};
use crate::fragments::{CacheCounters, FragmentCache};
use crate::media::{self, KnownMedia, Media, MediaReader, MediaRun, PromptTokens};
use crate::messages::tool_keys::sort_keys;
use crate::messages::unread;
use crate::template::Clock;
use crate::template::builtin::CHATML;
use crate::template::fitted::{FittedTemplate, Rendered};
use crate::template::kwargs::TemplateKwargs;
use crate::template::shield::StandIns;
use crate::template::tools_first::ToolsPlace;
use crate::vocabulary::partition::{Partitioner, Piece};
use crate::vocabulary::{AddSpecial, ParseSpecial, Vocabulary, VocabularyInfo};

pub use declared::DeclaredVocabulary;
pub use infill::RawError;
pub use options::PromptOptions;
pub use prepared::PreparedPrompt;
use rerank::PairPrompt;
pub use shortened::{CutEnd, FittedText, TextRoom};

/// A request's prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Text rendered by the chat template, without the BOS and EOS that the vocabulary adds itself.
    pub text: String,
    /// Tokens, with those that the vocabulary adds.
    pub tokens: Vec<Token>,
    /// Runs of media tokens among them, in their order.
    pub runs: Vec<MediaRun>,
    /// Kinds of parts of the history that the model cannot read: a short text is in their place.
    pub left_out_parts: Vec<&'static str>,
}

/// Tokens whose pieces are joined without interruption: cancelled work ends after a portion. Units: tokens.
///
/// Source: own choice: a portion takes some milliseconds.
const PORTION_TOKENS: usize = 32 << 10;

/// Longest text that is tokenized in a millisecond or two. Units: bytes. Source: docs/decisions/0021-prompt-path.md: 60
/// ns for a byte of Japanese or Chinese, the slowest.
const QUICK_BYTES_MAX: usize = 16 << 10;

/// The same where llama.cpp tokenizes, which takes half a microsecond for a byte.
const QUICK_BYTES_MAX_OF_LLAMA: usize = 4 << 10;

/// Maker of prompts for one model.
#[derive(Debug)]
pub struct PromptMaker {
    vocabulary: Vocabulary,
    partitioner: Partitioner,
    /// An error if the model's own template is invalid: completions work without one.
    templates: Result<Templates, WrongTemplate>,
    /// Whether the keys of tools come in one order.
    tool_keys_sorted: bool,
    /// Default variables of the chat templates.
    chat_template_kwargs: TemplateKwargs,
    fragments: FragmentCache,
    /// Media settings of the model; `None` if it reads text only.
    media: Option<Media>,
    /// Made at its first use, since few models score documents.
    pair: OnceLock<PairPrompt>,
}

/// A model's chat templates, compiled.
#[derive(Debug)]
struct Templates {
    default: FittedTemplate,
    /// Template for requests with tools, if the model has one named `tool_use`.
    tool_use: Option<FittedTemplate>,
    origin: TemplateOrigin,
}

/// Origin of the chat template in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateOrigin {
    /// The model's file.
    Model,
    /// A replacement given by the operator.
    Given,
    /// ChatML, because neither exists.
    Default,
}

/// Reason why a model's own template cannot be used.
#[derive(Debug)]
struct WrongTemplate {
    reason: String,
}

/// A text cut at its special tokens.
#[derive(Debug)]
struct Cut {
    text: String,
    pieces: Vec<Piece>,
    stand_ins: Option<StandIns>,
}

impl PromptMaker {
    /// Loads the vocabulary and the chat template of the GGUF file at `gguf`; its tensors are not read.
    ///
    /// Cost: 30-700 ms. Errors: `Load` if llama.cpp refuses the file, `Vocabulary` if it lacks a token that its own
    /// settings need, `Template` if the chat template in `options` does not compile, `ToolsFirst` if tools cannot be
    /// rendered in front of the system text. If the model's own template is invalid, `open` succeeds and [`Self::chat`]
    /// returns the error.
    pub fn open(gguf: &Path, options: PromptOptions) -> Result<Self, OpenError> {
        Self::of(Vocabulary::open(gguf)?, gguf, options)
    }

    fn of(vocabulary: Vocabulary, gguf: &Path, options: PromptOptions) -> Result<Self, OpenError> {
        let partitioner = Partitioner::new(vocabulary.settings.specials.clone());
        let kwargs = options.chat_template_kwargs.as_ref().unwrap_or(&vocabulary.chat_template_kwargs);
        let mut templates = match &options.chat_template {
            Some(source) => {
                FittedTemplate::new(source, vocabulary.info(), &partitioner, &options.clock, kwargs.clone())
                    .map(|default| Ok(Templates { default, tool_use: None, origin: TemplateOrigin::Given }))
                    .map_err(|source| OpenError::Template { path: gguf.to_owned(), source: Box::new(source) })?
            }
            None => Templates::of_model(&vocabulary, &partitioner, &options.clock, kwargs),
        };
        if let Err(WrongTemplate { reason }) = &templates {
            tracing::warn!(path = %gguf.display(), reason, "the model's chat template cannot be used; chats are refused");
        }
        if options.tools_first || vocabulary.tools_first {
            put_tools_first(&mut templates)
                .map_err(|reason| OpenError::ToolsFirst { path: gguf.to_owned(), reason })?;
        }
        let tool_keys_sorted = options.tool_keys_sorted || vocabulary.tool_keys_sorted;
        let chat_template_kwargs = kwargs.clone();
        let fragments = FragmentCache::new(options.fragment_cache_bytes_max);
        let (media, pair) = (None, OnceLock::new());
        Ok(Self { vocabulary, partitioner, templates, tool_keys_sorted, chat_template_kwargs, fragments, media, pair })
    }

    /// Returns a maker that takes media, which the model reads in this way.
    #[must_use]
    pub fn with_media(self, reader: Arc<dyn MediaReader>) -> Self {
        Self { media: Some(Media { reader, known: KnownMedia::default() }), ..self }
    }

    /// Returns the prompt of a chat request.
    ///
    /// Cost: rendering, plus tokenizing those fragments that are not cached. Errors: see [`PromptError`].
    pub fn chat(&self, request: &ChatPrompt) -> Result<Prompt, PromptError> {
        self.chat_within(request, usize::MAX)
    }

    /// Returns the prompt of a chat request, unless it is far longer than this many tokens.
    ///
    /// Cost: like [`Self::chat`], but only a small part of a prompt that is far too long is tokenized. Errors: see
    /// [`PromptError`].
    pub fn chat_within(&self, request: &ChatPrompt, n_tokens_max: usize) -> Result<Prompt, PromptError> {
        let prompt = self.prepare_chat(request)?;
        let tokens = self.tokens_within(&prompt, n_tokens_max)?.whole();
        let unread = |reason| PromptError::Field { field: "messages", reason };
        let PromptTokens { tokens, runs, .. } = tokens.map_err(unread)?;
        Ok(Prompt { tokens, runs, text: prompt.cut.into_text(), left_out_parts: prompt.left_out_parts })
    }

    /// Returns the text of a chat request's prompt, like llama-server's `/apply-template`.
    ///
    /// Errors: see [`PromptError`].
    pub fn render(&self, request: &ChatPrompt) -> Result<String, PromptError> {
        let request = &*self.with_ordered_keys(request);
        let (readable, _) = self.readable(request)?;
        Ok(self.cut(self.rendered(&readable.chat)?).into_text())
    }

    /// Returns the tokens of `text` as llama.cpp's own tokenizer produces them, portion by portion.
    pub fn tokenize(&self, text: &str, add: AddSpecial, parse: ParseSpecial) -> Vec<Token> {
        let (prefix, suffix) = match add {
            AddSpecial::Yes => (&self.vocabulary.settings.prefix[..], &self.vocabulary.settings.suffix[..]),
            AddSpecial::No => Default::default(),
        };
        let mut tokens = prefix.to_vec();
        match parse {
            ParseSpecial::No => tokens.extend(self.vocabulary.tokenize_plain(text)),
            ParseSpecial::Yes => {
                let cut = self.cut_text(text.to_owned());
                tokens.extend(cut.pieces.iter().flat_map(|piece| match piece {
                    Piece::Special { token, .. } => vec![*token],
                    Piece::Text(range) => self.vocabulary.tokenize_plain(&cut.fragment(range)),
                    Piece::Media(_) => Vec::new(),
                }));
            }
        }
        tokens.extend_from_slice(suffix);
        tokens
    }

    /// Returns the length of the longest part of a text that llama.cpp tokenizes and [`Self::tokenize`] cannot cut.
    ///
    /// Units: bytes. Cost: O(n).
    pub fn longest_portion(&self, text: &str) -> usize {
        self.vocabulary.longest_portion(text)
    }

    /// Returns the length up to which tokenizing a text takes no longer than moving the work to another thread and back
    /// is worth. Units: bytes.
    pub fn quick_bytes_max(&self) -> usize {
        if self.vocabulary.byte_pair().is_some() { QUICK_BYTES_MAX } else { QUICK_BYTES_MAX_OF_LLAMA }
    }

    /// Returns the text of `tokens`: control tokens are spelled out, invalid UTF-8 is replaced.
    pub fn detokenize(&self, tokens: &[Token]) -> String {
        self.detokenize_within(tokens, usize::MAX).expect("no text has so many bytes")
    }

    /// Returns the text of `tokens` like [`Self::detokenize`]; `None` if their pieces have more bytes than the limit.
    ///
    /// Cost: a piece for each token, until the limit is exceeded.
    pub fn detokenize_within(&self, tokens: &[Token], n_bytes_max: usize) -> Option<String> {
        let mut bytes = Vec::new();
        for portion in tokens.chunks(PORTION_TOKENS) {
            end_if_cancelled();
            for token in portion {
                bytes.extend(self.vocabulary.piece(*token));
            }
            if bytes.len() > n_bytes_max {
                return None;
            }
        }
        // Valid text is not copied.
        let with_replacements = |error: FromUtf8Error| String::from_utf8_lossy(error.as_bytes()).into_owned();
        Some(String::from_utf8(bytes).unwrap_or_else(with_replacements))
    }

    /// Returns the bytes of one token, a control token spelled out; empty for a token that is not in the vocabulary.
    pub fn piece(&self, token: Token) -> Vec<u8> {
        self.vocabulary.piece(token)
    }

    /// Returns the bytes that a generated token adds to a response: those of [`Self::piece`], but none for a control
    /// token.
    pub fn answer_piece(&self, token: Token) -> Vec<u8> {
        self.vocabulary.answer_piece(token)
    }

    /// Returns the vocabulary's properties.
    pub fn vocabulary(&self) -> &VocabularyInfo {
        self.vocabulary.info()
    }

    /// Returns the architecture of the model, as its file names it.
    pub fn architecture(&self) -> &str {
        &self.vocabulary.architecture
    }

    /// Returns the origin of the chat template in use; `None` if the model's own cannot be used.
    pub fn chat_template_origin(&self) -> Option<TemplateOrigin> {
        self.templates.as_ref().ok().map(|templates| templates.origin)
    }

    /// Returns the source of the chat template in use; `None` if the model's own cannot be used.
    pub fn chat_template(&self) -> Option<&str> {
        self.templates.as_ref().ok().map(|templates| templates.default.template.source())
    }

    /// Returns whether tools stand behind the system text in a prompt that has both.
    pub fn has_tools_behind_system_text(&self) -> bool {
        self.templates.as_ref().is_ok_and(|templates| {
            let of_tools = templates.tool_use.as_ref().unwrap_or(&templates.default);
            !of_tools.tools_first && matches!(of_tools.tools_place, ToolsPlace::Behind | ToolsPlace::Apart)
        })
    }

    /// Puts the keys of tools in the order in which prompts have them, if that is not the client's.
    pub fn order_keys(&self, tools: &mut [Json]) {
        if self.tool_keys_sorted {
            tools.iter_mut().for_each(sort_keys);
        }
    }

    /// Returns a chat as prompts have it, with the keys of its tools in order.
    fn with_ordered_keys<'r>(&self, request: &'r ChatPrompt) -> Cow<'r, ChatPrompt> {
        let Some(tools) = request.tools.as_ref().filter(|_| self.tool_keys_sorted) else {
            return Cow::Borrowed(request);
        };
        let mut tools = tools.clone();
        self.order_keys(&mut tools);
        Cow::Owned(ChatPrompt { tools: Some(tools), ..request.clone() })
    }

    /// Returns the default variables of the chat template.
    pub fn chat_template_kwargs(&self) -> &TemplateKwargs {
        &self.chat_template_kwargs
    }

    /// Returns the fingerprint of the chat templates in use, of their default variables, of `tools_first`
    /// and of `tool_keys_sorted`. The templates of all models whose own one cannot be used count as the same.
    pub fn chat_template_fingerprint(&self) -> Fingerprint {
        let mut hasher = blake3::Hasher::new_derive_key("warmpath 2026 chat template v1");
        let templates =
            self.templates.iter().flat_map(|templates| [Some(&templates.default), templates.tool_use.as_ref()]);
        for template in templates.flatten() {
            let source = template.template.source().as_bytes();
            hasher.update(&(source.len() as u64).to_le_bytes()).update(source);
            if template.tools_first {
                hasher.update(b"tools first");
            }
            if self.tool_keys_sorted {
                hasher.update(b"tool keys sorted");
            }
        }
        if !self.chat_template_kwargs.variables().is_empty() {
            hasher.update(b"default variables").update(self.chat_template_kwargs.to_json().as_bytes());
        }
        Fingerprint(*hasher.finalize().as_bytes())
    }

    /// Returns the counters of the fragment cache.
    pub fn cache_counters(&self) -> CacheCounters {
        self.fragments.counters()
    }

    /// Returns the format in which the response to a chat request is constrained and parsed; `None` if the whole
    /// response is its content.
    ///
    /// Shape: `prompt` is the result of [`Self::chat`] for the request.
    /// Cost: milliseconds if no request before had the same tools and switches. Errors: `Tool`, `Field` and those of
    /// [`Self::chat`].
    pub fn answer_format(
        &self,
        request: &ChatPrompt,
        prompt: &Prompt,
        options: &FormatOptions,
    ) -> Result<Option<AnswerFormat>, PromptError> {
        let request = &*self.with_ordered_keys(request);
        // Whether a medium is malformed does not matter here.
        let readable = unread::readable(request, |kind, _| media::check_read(kind, self.modalities()))?;
        self.template_of(request)?.answer_format(&readable.chat, options, &prompt.text)
    }

    fn modalities(&self) -> Modalities {
        self.media.as_ref().map(|media| media.reader.reading().modalities).unwrap_or_default()
    }

    fn rendered(&self, request: &ChatPrompt) -> Result<Rendered, PromptError> {
        end_if_cancelled();
        self.template_of(request)?.rendered(request)
    }

    /// Returns the template that renders a request.
    pub(crate) fn template_of(&self, request: &ChatPrompt) -> Result<&FittedTemplate, PromptError> {
        let bad_template = |wrong: &WrongTemplate| PromptError::BadTemplate { reason: wrong.reason.clone() };
        let templates = self.templates.as_ref().map_err(bad_template)?;
        let has_tools = request.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let tool_use = templates.tool_use.as_ref().filter(|_| has_tools);
        Ok(tool_use.unwrap_or(&templates.default))
    }

    /// Removes a BOS and EOS that the template writes if the vocabulary adds them too, like llama.cpp.
    fn without_affixes(&self, mut text: String) -> String {
        let info = self.vocabulary.info();
        if info.add_bos && text.starts_with(&info.bos_text) {
            text.drain(..info.bos_text.len());
        }
        if info.add_eos && text.ends_with(&info.eos_text) {
            text.truncate(text.len() - info.eos_text.len());
        }
        text
    }

    /// Cuts a text at all its special tokens, whether the template or the client wrote them.
    fn cut_text(&self, text: String) -> Cut {
        Cut { pieces: self.partitioner.partition(text.as_bytes()), text, stand_ins: None }
    }

    /// Cuts a rendered request at the control tokens that the template itself wrote.
    fn cut(&self, rendered: Rendered) -> Cut {
        let cut = |text: String, stand_ins| {
            let text = self.without_affixes(text);
            let pieces = self.partitioner.partition(text.as_bytes());
            let pieces = if self.media.is_some() { media::cut(pieces, text.as_bytes()) } else { pieces };
            Cut { pieces, text, stand_ins }
        };
        let plain = cut(rendered.plain, None);
        let Some(safe_rendering) = rendered.shielded else { return plain };
        let safe = cut(safe_rendering.text, Some(safe_rendering.stand_ins));
        // If both renderings have the same control tokens, none comes from the client's text.
        if !safe_rendering.hostile && plain.controls().eq(safe.controls()) { plain } else { safe }
    }
}

impl Cut {
    /// Returns the text between two special tokens, as the client wrote it.
    fn fragment(&self, range: &Range<usize>) -> Cow<'_, str> {
        // A special token that is not text may have cut a character.
        let text = self
            .text
            .get(range.clone())
            .map_or_else(|| String::from_utf8_lossy(&self.text.as_bytes()[range.clone()]), Cow::Borrowed);
        match &self.stand_ins {
            Some(stand_ins) => stand_ins.restore(&text).into(),
            None => text,
        }
    }

    fn into_text(self) -> String {
        media::show(match self.stand_ins {
            Some(stand_ins) => stand_ins.restore(&self.text),
            None => self.text,
        })
    }

    /// Returns the control tokens in their order.
    fn controls(&self) -> impl Iterator<Item = Token> + '_ {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Special { token, control: true } => Some(*token),
            _ => None,
        })
    }
}

impl Templates {
    /// Compiles the templates in the model's file, or ChatML if it has none, like llama-server.
    fn of_model(
        vocabulary: &Vocabulary,
        partitioner: &Partitioner,
        clock: &Clock,
        kwargs: &TemplateKwargs,
    ) -> Result<Self, WrongTemplate> {
        let compile = |source: &str| {
            let template = FittedTemplate::new(source, vocabulary.info(), partitioner, clock, kwargs.clone());
            template.map_err(|error| WrongTemplate { reason: error.to_string() })
        };
        // An empty template counts as absent.
        let compile_some = |source: Option<String>| {
            source.filter(|source| !source.is_empty()).map(|source| compile(&source)).transpose()
        };
        let origin = TemplateOrigin::Model;
        Ok(match (compile_some(vocabulary.chat_template())?, compile_some(vocabulary.tool_use_template.clone())?) {
            (Some(default), tool_use) => Self { default, tool_use, origin },
            (None, Some(default)) => Self { default, tool_use: None, origin },
            (None, None) => Self { default: compile(CHATML)?, tool_use: None, origin: TemplateOrigin::Default },
        })
    }
}

/// Renders tools in front of the system text from now on.
///
/// Errors: the reason why the template that renders tools cannot do so.
fn put_tools_first(templates: &mut Result<Templates, WrongTemplate>) -> Result<(), String> {
    let templates = templates.as_mut().map_err(|wrong| wrong.reason.clone())?;
    let of_tools = templates.tool_use.as_mut().unwrap_or(&mut templates.default);
    if let Some(reason) = of_tools.tools_place.refusal() {
        return Err(reason.to_owned());
    }
    of_tools.tools_first = true;
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
