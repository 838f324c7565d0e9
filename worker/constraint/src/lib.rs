//! Rules of responses: a JSON schema, a client's grammar or tools in, a rule out that says which tokens may come next.
//!
//! llguidance follows JSON schemas, and `gbnf` clients' grammars. The crate does not use llama.cpp: the engine gives it
//! the vocabulary. Not here: the requests' fields and the formats of calls (the worker), choosing a token (the engine).

mod arguments;
mod call_grammar;
mod compiler;
mod followed;
pub mod gbnf;
mod reasoning;
mod rule;
pub mod schema;
mod schema_or_call;
pub mod tools;

pub use arguments::{ArgumentSchemas, ArgumentsExtent};
pub use call_grammar::{Begin, CallGrammar, CallStart};
pub use compiler::{Allowed, CompiledSchema, Constraint, RuleCompiler, Separators};
pub use followed::{FollowedGrammar, SpelledTokens};
pub use llguidance::toktrie::SimpleVob as TokenMask;
pub use reasoning::ReasoningFirst;
pub use rule::{ResponseRule, unfollowed};
