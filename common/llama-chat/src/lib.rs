//! llama.cpp's chat formats: the form of an answer under a chat template, and how to parse it. `memory` and `hidden`
//! have other information that only llama.cpp's C++ interface gives.
//!
//! Prompts are rendered in `warmpath-prompt`; the worker decides which requests are admitted.
//!
//! For nearly every chat template, llama.cpp knows how its models write tool calls and reasoning, and its library is
//! linked anyway. A shim in C++ takes and returns JSON and turns every exception into an error. Code that recurses over
//! text of a client or a model runs on a stack that is large enough for the accepted depth.

mod error;
mod ffi;
mod format;
mod hidden;
mod memory;
mod reader;
mod stack;
mod templates;

pub use error::ChatError;
pub use format::{ChatFormat, FormatInputs, ReasoningFormat, ToolChoice, Trigger};
pub use hidden::{HiddenStates, hidden, write_hidden};
pub use memory::{ContextMemory, DeviceMemory, context_memory, device_memory, projector_memory};
pub use reader::{AnswerParser, CallDelta, DEPTH_MAX, Delta};
pub use templates::ChatTemplates;
