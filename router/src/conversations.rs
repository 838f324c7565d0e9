//! The recent conversations: how a prompt continues an earlier one. They never influence a decision.
//!
//! Not here: the comparison (the core's `prefix_breaks`), the report for a client (`lifecycle::prefix_break_header`).

use std::sync::{Arc, Mutex, PoisonError};

use warmpath_router_core::diagnostics::prefix_breaks::{Conversations, PrefixContinuity, PromptFingerprint};
use warmpath_router_core::diagnostics::tool_lists::ToolsBehindText;

use crate::metrics::Metrics;

/// Recent conversations of a router's clients.
pub struct RecentConversations {
    /// The lock is held for one comparison, never across `.await`.
    conversations: Mutex<Conversations>,
    metrics: Arc<Metrics>,
}

/// Relation of a prompt to earlier ones.
#[derive(Debug, Clone, Copy)]
pub struct PromptRelation {
    /// Whether and where the prompt departs from the earlier prompts of its conversation.
    pub continuity: PrefixContinuity,
    /// Whether earlier prompts had its tools, but behind other system texts.
    pub repeats_tools: bool,
}

impl RecentConversations {
    /// Returns the state of a router that has seen no prompt.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { conversations: Mutex::default(), metrics }
    }

    /// Compares a prompt with the recent conversations, counts the result, and records the prompt.
    pub fn observe(&self, prompt: PromptFingerprint, tools: Option<ToolsBehindText>) -> PromptRelation {
        if prompt.chat.messages.is_empty() {
            return PromptRelation { continuity: PrefixContinuity::New, repeats_tools: false };
        }
        let mut conversations = self.conversations.lock().unwrap_or_else(PoisonError::into_inner);
        let repeats_tools = tools.is_some_and(|tools| conversations.tools.observe(prompt.root, tools));
        let continuity = conversations.observe(prompt);
        drop(conversations);
        let (label, prefix_break) = match continuity {
            PrefixContinuity::New => ("new", None),
            PrefixContinuity::Intact => ("intact", None),
            PrefixContinuity::Broken(prefix_break) => ("broken", Some(prefix_break)),
        };
        self.metrics.conversations.with_label_values(&[label]).inc();
        if let Some(prefix_break) = prefix_break {
            self.metrics.prefix_breaks.with_label_values(&[prefix_break.label()]).inc();
        }
        // A conversation that continues reuses its tools, even if this router has forgotten its system text.
        let repeats_tools = repeats_tools && continuity != PrefixContinuity::Intact;
        self.metrics.repeated_tools.inc_by(repeats_tools.into());
        PromptRelation { continuity, repeats_tools }
    }
}
