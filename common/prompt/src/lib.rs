//! From a request to the prompt's tokens, the same in router and worker: chat template, control tokens, tokenizer.
//!
//! A template renders the request's text. Control tokens are recognized only where the template wrote them. The
//! fragments between them are tokenized one by one and cached, so a long chat costs only its new text.
//!
//! Not here: the use of the tokens (block hashes are in `warmpath-common`, the engine is the worker's).

mod answers;
mod backend;
mod builtin;
mod byte_pair;
mod calls;
mod cancel;
mod caps;
mod dropped_reasoning;
mod error;
mod fitted;
mod format_key;
mod formats;
mod fragments;
mod least_tokens;
mod maker;
mod media;
mod messages;
mod partition;
mod runs;
mod shield;
mod spacing;
mod stand_in;
mod template;
mod template_kwargs;
mod tool_keys;
mod tools_first;
mod turns;
mod unread;
mod vocabulary;
mod words;

pub use answers::{AnswerFormat, AnswerGrammar, GrammarFrom};
pub use backend::{backend, forward_logs};
pub use builtin::{builtin_chat_template, builtin_chat_template_names};
pub use cancel::{end_if_cancelled, unless_cancelled};
pub use caps::Separators;
pub use dropped_reasoning::{DroppedReasoning, TemplateSwitch};
pub use error::{OpenError, PromptError, TokenCount, TooManyTokens};
pub use format_key::FormatOptions;
pub use fragments::{CacheCounters, Scope};
pub use maker::{
    BegunPrompt, CutEnd, DeclaredVocabulary, FittedText, Prompt, PromptMaker, PromptOptions, RawError, TemplateOrigin,
    TextRoom,
};
pub use media::{KnownMedia, MediaContent, MediaReader, MediaRun, Medium, PromptTokens, has_media, is_readable};
pub use template::{
    ChatTemplate, Clock, RENDERED_BYTES_MAX, TEMPLATE_BYTES_MAX, TEMPLATE_FUEL_FREE, TEMPLATE_FUEL_MAX,
    TEMPLATE_FUEL_PER_BYTE, TEMPLATE_RECURSION_MAX,
};
pub use template_kwargs::TemplateKwargs;
pub use vocabulary::{AddSpecial, ParseSpecial, VocabularyInfo};
