//! llama.cpp's chat formats: what an answer under a chat template looks like, and how to read it. And what else only its C++
//! interface tells (`memory`).
//!
//! Not here: rendering prompts (`warmpath-prompt`), which requests are let in (the worker).
//! The idea: llama.cpp knows for nearly every chat template how its models write tool calls and thoughts; its library is
//! linked anyway. A shim in C++ hands JSON in and out and turns every exception into an error. Whatever recurses over what
//! a client or a model wrote runs on a stack that is large enough for what is let through.

mod error;
mod ffi;
mod format;
mod memory;
mod reader;
mod stack;
mod templates;

pub use error::ChatError;
pub use format::{ChatFormat, FormatInputs, ReasoningFormat, ToolChoice, Trigger};
pub use memory::{ContextMemory, context_memory};
pub use reader::{CallDelta, DEPTH_MAX, Delta, Reader};
pub use templates::ChatTemplates;
