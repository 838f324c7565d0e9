//! Other APIs for chats: Anthropic's messages and OpenAI's responses, converted to chats and back.

pub mod anthropic;
pub mod api_adapter;
pub mod cache_diagnostics;
pub mod content_parts;
pub mod responses;
