//! The HTTP headers that router, worker and client exchange; lower case, as `http` wants them.
//!
//! Not here: what they are worth; the worker treats every one of them as a hint.

/// Begins the names of all headers of ours but [`REQUEST_ID`].
pub const PREFIX: &str = "x-warmpath-";
/// Names the request, from client to worker and back.
pub const REQUEST_ID: &str = "x-request-id";
/// Names the worker that answered.
pub const WORKER: &str = "x-warmpath-worker";
/// Names the slot: in a request the wanted one, in a response the one that ran.
pub const SLOT: &str = "x-warmpath-slot";
/// Is the number of prompt tokens, those of several prompts together.
pub const PROMPT_TOKENS: &str = "x-warmpath-prompt-tokens";
/// Is the number of prompt tokens that were reused.
pub const CACHED_TOKENS: &str = "x-warmpath-cached-tokens";
/// Is the number of prompt tokens that the router counted on, in whole blocks.
pub const PREDICTED_CACHED_TOKENS: &str = "x-warmpath-predicted-cached-tokens";
/// Is the reason for the router's choice.
pub const ROUTE: &str = "x-warmpath-route";
/// Names the deepest block, in hexadecimal, that the router counted on.
pub const EXPECTED_BLOCK: &str = "x-warmpath-expected-block";
/// Keeps a tenant's prefixes apart; as the body's `cache_salt`, which wins.
pub const CACHE_SALT: &str = "x-warmpath-cache-salt";
/// Name of the tenant whose request it is, from router to worker: what the request leaves in the cache counts for it.
pub const TENANT: &str = "x-warmpath-tenant";
/// Highest `priority` that the request may have, from router to worker; a higher one counts as this.
pub const PRIORITY_MAX: &str = "x-warmpath-priority-max";
/// Names the model file whose metadata a vocabulary download carries.
pub const MODEL_FINGERPRINT: &str = "x-warmpath-model-fingerprint";
/// Asks the router for more than it says by itself: `prefix`.
pub const DEBUG: &str = "x-warmpath-debug";
/// Says where a conversation broke its own prefix, if the request asked for it.
pub const PREFIX_BREAK: &str = "x-warmpath-prefix-break";
/// Kinds of tools that a request listed, that nobody runs here, and that its answer was made without.
pub const LEFT_OUT_TOOLS: &str = "x-warmpath-left-out-tools";
