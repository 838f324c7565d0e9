//! The arguments of tools in llama.cpp's grammar of calls: as one JSON object, one by one, or in a template's own form.

pub mod arguments;
pub mod forms;
pub mod parameters;
