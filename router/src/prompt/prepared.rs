//! What routing needs to know of a request.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use warmpath_common::block_hash::{BlockHash, BlockKey};
use warmpath_common::ids::RequestId;
use warmpath_common::model::{Capability, ModelInfo};
use warmpath_prompt::DroppedReasoning;
use warmpath_router_core::diagnostics::prefix_breaks::ChatHashes;
use warmpath_router_core::diagnostics::tool_lists::ToolsBehindText;
use warmpath_router_core::index::{Match, PrefixIndex};
use warmpath_router_core::ledger::RouteRequest;
use warmpath_router_core::routing::choose::PromptView;

use super::body::{Delivery, Purpose};

/// Properties of a request that routing needs.
#[derive(Debug)]
pub struct Prepared {
    /// Name of the requested model; its own name if no worker has the one in the request.
    pub model_name: Option<String>,
    /// Body with the parameters that its name sets, or with the model's own name if no worker has the requested one;
    /// absent if it is the request's own.
    pub changed_body: Option<Bytes>,
    /// The model of that name.
    pub model: Arc<ModelInfo>,
    /// Capability that its worker needs; `None` if any worker will do.
    pub wanted: Option<Capability>,
    /// Form of the response.
    pub delivery: Delivery,
    /// What the request is for.
    pub purpose: Purpose,
    /// The prompt.
    pub prompt: PreparedPrompt,
    /// Hashes of a chat.
    pub chat: ChatHashes,
    /// A chat's tools, if the template renders them behind its system text.
    pub tools: Option<ToolsBehindText>,
    /// Earlier reasoning that the template leaves out, if the client asks for a report.
    pub dropped_reasoning: Option<DroppedReasoning>,
    /// Number of choices of all prompts, as requested; 1 where no text is generated.
    pub n_sequences: u32,
    /// Times of the phases.
    pub phases: Phases,
}

/// A prompt as far as the router knows it.
#[derive(Debug)]
pub enum PreparedPrompt {
    /// The prompt was tokenized.
    Known {
        /// Length. Units: tokens.
        n_tokens: u32,
        /// Root of its hash chain: model, adapter and salt.
        root: BlockHash,
        /// Keys of its full blocks; empty if the request forbids reuse.
        keys: Vec<BlockKey>,
        /// Places of its media tokens, in their order.
        media: Vec<Range<u32>>,
    },
    /// The prompt could not be tokenized.
    Estimated {
        /// Estimated length. Units: tokens.
        n_tokens: u32,
        /// Reason, for metrics.
        cause: &'static str,
    },
}

/// Times of the phases of preparation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Phases {
    /// Time to parse the body.
    pub parse: Duration,
    /// Time to render and tokenize.
    pub prompt: Duration,
    /// Time to hash.
    pub hash: Duration,
}

impl Prepared {
    /// Returns the cached prefixes of the prompt; none if the prompt is not known.
    pub fn matches(&self, index: &PrefixIndex) -> Vec<Match> {
        match &self.prompt {
            PreparedPrompt::Known { keys, .. } => index.matches(keys),
            PreparedPrompt::Estimated { .. } => Vec::new(),
        }
    }

    /// Returns the request's input to the decision at its first attempt.
    pub fn route_request<'a>(&'a self, request_id: &'a RequestId, matches: &'a [Match]) -> RouteRequest<'a> {
        let prompt = match &self.prompt {
            PreparedPrompt::Known { n_tokens, keys, media, .. } => {
                PromptView::Known { n_tokens: *n_tokens, keys, matches, media }
            }
            PreparedPrompt::Estimated { n_tokens, .. } => PromptView::Estimated { n_tokens: *n_tokens },
        };
        RouteRequest {
            request_id,
            model_name: self.model_name.as_deref(),
            account: None,
            model: &self.model,
            wanted: self.wanted,
            prompt,
            tried: &[],
            awaited: &[],
            n_sequences: self.n_sequences,
            now: Instant::now(),
        }
    }
}
