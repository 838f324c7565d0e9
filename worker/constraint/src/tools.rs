//! The arguments of tools in llama.cpp's grammar of calls: as one JSON object, or one by one.

pub mod arguments;
pub mod parameters;
