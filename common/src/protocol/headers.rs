//! The HTTP headers that router, worker and client exchange; lower case, as `http` requires.
//!
//! The worker treats all of them as hints.

/// Prefix of the names of all Warmpath headers except [`REQUEST_ID`].
pub const PREFIX: &str = "x-warmpath-";
/// Id of the request, from client to worker and back.
pub const REQUEST_ID: &str = "x-request-id";
/// Worker that ran the request.
pub const WORKER: &str = "x-warmpath-worker";
/// Slot: in a request the wanted slot, in a response the slot that ran the request.
pub const SLOT: &str = "x-warmpath-slot";
/// Number of prompt tokens; of several prompts, their sum.
pub const PROMPT_TOKENS: &str = "x-warmpath-prompt-tokens";
/// Number of prompt tokens that were reused.
pub const CACHED_TOKENS: &str = "x-warmpath-cached-tokens";
/// Number of prompt tokens that the router expected to be reused, in whole blocks.
pub const PREDICTED_CACHED_TOKENS: &str = "x-warmpath-predicted-cached-tokens";
/// Longest pause between two frames of a worker's summary stream. Without this header, three and a half seconds of
/// silence count as a loss. Units: milliseconds.
pub const HEARTBEAT_MS: &str = "x-warmpath-heartbeat-ms";
/// Reason for the router's choice.
pub const ROUTE: &str = "x-warmpath-route";
/// Deepest block that the router expected to be reused, in hexadecimal.
pub const EXPECTED_BLOCK: &str = "x-warmpath-expected-block";
/// Salt that separates a tenant's prefixes from others'; the body's `cache_salt` takes precedence.
pub const CACHE_SALT: &str = "x-warmpath-cache-salt";
/// Name of the request's tenant, from router to worker; the KV state that the request leaves is counted for that
/// tenant.
pub const TENANT: &str = "x-warmpath-tenant";
/// Highest `priority` that the request may have, from router to worker; a higher `priority` is reduced to it.
pub const PRIORITY_MAX: &str = "x-warmpath-priority-max";
/// Worker that holds more of the prompt's state, from router to worker: that worker's base URL, then `;blocks=` and the
/// number of the prompt's first blocks that it holds.
pub const KV_PEER: &str = "x-warmpath-kv-peer";
/// State that a worker fetched from another for the request, from worker to router: `<bytes>;<milliseconds>`.
pub const KV_FETCHED: &str = "x-warmpath-kv-fetched";
/// Fingerprint of a model file: of the one whose metadata a vocabulary download carries, and, from router to worker, of
/// the one that the request is for. A worker that serves another one refuses the request, so that another worker gets
/// it.
pub const MODEL_FINGERPRINT: &str = "x-warmpath-model-fingerprint";
/// Request for more information from the router: `prefix`.
pub const DEBUG: &str = "x-warmpath-debug";
/// Place where a conversation broke its own prefix, if the request asked for it.
pub const PREFIX_BREAK: &str = "x-warmpath-prefix-break";
/// Types of tools in the request that were left out, because neither the router nor the worker runs them.
pub const LEFT_OUT_TOOLS: &str = "x-warmpath-left-out-tools";
/// Kinds of parts in the request's history that the model cannot read, and in whose place a short text is.
pub const LEFT_OUT_PARTS: &str = "x-warmpath-left-out-parts";
/// Names of tools whose arguments may break their schemas in the answer.
pub const UNCONSTRAINED_TOOLS: &str = "x-warmpath-unconstrained-tools";
/// Number of a request's texts that were shortened to fit, for vectors and scores.
pub const TRUNCATED_TEXTS: &str = "x-warmpath-truncated-texts";
/// Identity of the response, from router to worker. It asks the worker to add the tokens of its events to the stream,
/// or to send those of a response in one piece before it, so that another worker can continue the response. In the
/// worker's response `exact` or `approximate`, the quality of such a continuation.
pub const JOURNAL: &str = "x-warmpath-journal";
/// Length of the journal that follows the request's own body, from router to a worker that is to continue the response.
/// Units: bytes.
pub const JOURNAL_BYTES: &str = "x-warmpath-journal-bytes";
/// Number of times that a stream was continued at another worker; the name of a comment in the stream, since headers
/// are sent before it is known.
pub const FAILOVERS: &str = "x-warmpath-failovers";
/// Number of prompt tokens before the place where the prompt differs from an earlier answer of the worker.
pub const ANSWER_BREAK: &str = "x-warmpath-answer-break";
