//! The output of sequences: sampling, grammars and schemas that it follows, drafts.

pub(crate) mod arguments;
pub(crate) mod constraint;
mod grammar;
pub(crate) mod json_schema;
pub(crate) mod reasoning;
pub(crate) mod sampler;
pub(crate) mod sampler_kind;
mod schema_or_call;
pub(crate) mod speculation;
pub(crate) mod tool_grammar;
