//! From a request to the prompt's tokens, the same in router and worker: chat template, control tokens, tokenizer.
//!
//! A template renders the request's text. Control tokens are recognized only where the template wrote them. The
//! fragments between them are tokenized one by one and cached, so a long chat costs only its new text.
//!
//! Not here: the use of the tokens (block hashes are in `warmpath-common`, the engine is the worker's).

mod answer_format;
mod backend;
mod cancel;
mod error;
mod fragments;
mod maker;
mod media;
mod messages;
mod template;
mod vocabulary;

pub use answer_format::key::FormatOptions;
pub use answer_format::{AnswerFormat, AnswerGrammar, GrammarFrom};
pub use backend::{backend, forward_logs};
pub use cancel::{end_if_cancelled, unless_cancelled};
pub use error::{OpenError, PromptError, TokenCount, TooManyTokens};
pub use fragments::{CacheCounters, Scope};
pub use maker::dropped_reasoning::{DroppedReasoning, TemplateSwitch};
pub use maker::{
    CutEnd, DeclaredVocabulary, FittedText, PreparedPrompt, Prompt, PromptMaker, PromptOptions, RawError,
    TemplateOrigin, TextRoom,
};
pub use media::{KnownMedia, MediaContent, MediaReader, MediaRun, Medium, PromptTokens, has_media, is_readable};
pub use template::builtin::{builtin_chat_template, builtin_chat_template_names};
pub use template::caps::Separators;
pub use template::kwargs::TemplateKwargs;
pub use template::{
    ChatTemplate, Clock, RENDERED_BYTES_MAX, TEMPLATE_BYTES_MAX, TEMPLATE_FUEL_FREE, TEMPLATE_FUEL_MAX,
    TEMPLATE_FUEL_PER_BYTE, TEMPLATE_RECURSION_MAX,
};
pub use vocabulary::{AddSpecial, ParseSpecial, VocabularyInfo};
