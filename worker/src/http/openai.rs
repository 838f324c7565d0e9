//! OpenAI's API, with the objects that the other APIs build on.

pub mod answer;
pub mod calls;
pub mod chat;
pub mod completions;
pub mod free_text;
pub mod logprobs;
pub mod models;
pub mod wire;
