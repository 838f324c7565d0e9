//! Prefix breaks of conversations, reported to a client that sends a header.
//!
//! Unless a client asks for the report, the comparison runs after the response has begun. Not here: the comparison
//! (`conversations`).

use axum::http::HeaderMap;
use axum::response::Response;
use warmpath_prompt::DroppedReasoning;
use warmpath_router_core::diagnostics::prefix_breaks::{PrefixContinuity, PromptFingerprint};

use super::headers;
use super::keepalive::Keepalive;
use crate::app::App;
use crate::conversations::PromptRelation;
use crate::prompt::{Prepared, PreparedPrompt};

/// Report for a prompt that continues its conversation unchanged.
const INTACT: &str = "intact";

/// Role reported if the prompt contains a response of the worker in a changed form.
const ANSWER: &str = "answer";

/// Cause of a break where the template leaves out reasoning that an earlier prompt had.
const REASONING_DROPPED: &str = "reasoning dropped by the template";

/// Addition to a report if the tools were computed again behind another system text.
const TOOLS_AGAIN: &str = "; tools=again";

/// Report that a request asked for; `None` if it asked for none.
pub(super) struct PrefixBreakHeader(Option<Report>);

/// Report before the worker has responded.
struct Report {
    text: String,
    /// Earlier reasoning that the template leaves out.
    dropped_reasoning: Option<DroppedReasoning>,
}

impl PrefixBreakHeader {
    /// Returns whether the request's headers ask for a report.
    pub(super) fn is_wanted(client_headers: &HeaderMap) -> bool {
        let debug_options = headers::text(client_headers, warmpath_common::headers::DEBUG);
        debug_options.is_some_and(|debug_options| debug_options.split(',').any(|part| part.trim() == "prefix"))
    }

    /// Returns the report for a prompt if the request's headers ask for it.
    pub(super) fn of(app: &App, client_headers: &HeaderMap, prepared_request: &mut Prepared) -> Self {
        if !Self::is_wanted(client_headers) {
            return Self(None);
        }
        let dropped_reasoning = prepared_request.dropped_reasoning.take();
        let PreparedPrompt::Known { root, keys, .. } = &prepared_request.prompt else {
            return Self(Some(Report { text: "unknown".to_owned(), dropped_reasoning }));
        };
        let (root, keys) = (*root, keys.clone());
        let chat = std::mem::take(&mut prepared_request.chat);
        let PromptRelation { continuity, repeats_tools } =
            app.conversations.observe(PromptFingerprint { root, chat, keys }, prepared_request.tools);
        let mut text = match continuity {
            PrefixContinuity::New => "new".to_owned(),
            PrefixContinuity::Intact => INTACT.to_owned(),
            PrefixContinuity::Broken(found) => {
                let n_block_tokens = prepared_request.model.block_size_tokens;
                let token = found.block.saturating_mul(n_block_tokens);
                let message = found.message.map(|message| format!("; message={message}")).unwrap_or_default();
                // The difference is within the block behind the last common one.
                let last = token.saturating_add(n_block_tokens);
                let cause =
                    dropped_reasoning.as_ref().filter(|_| found.message.is_none()).map(|left| cause(left, last));
                let tools = found.tools.map(|change| format!("; cause={}", change.label()));
                format!("token={token}{message}; role={}{}", found.label(), tools.or(cause).unwrap_or_default())
            }
        };
        if repeats_tools {
            text += TOOLS_AGAIN;
        }
        Self(Some(Report { text, dropped_reasoning }))
    }

    /// Adds the report to the response if that begins with comments before a worker responds.
    pub(super) fn announce(&self, comments: &Keepalive) {
        if let Some(report) = &self.0 {
            comments.set_header(warmpath_common::headers::PREFIX_BREAK, report.text.clone());
        }
    }

    /// Adds the report to the response, and counts a break within an earlier response if the worker has found one.
    pub(super) fn add_to(&self, app: &App, response: &mut Response) {
        let in_answer: Option<u32> = headers::number(response.headers(), warmpath_common::headers::ANSWER_BREAK);
        if in_answer.is_some() {
            app.metrics.prefix_breaks.with_label_values(&[ANSWER]).inc();
        }
        let Some(Report { text, dropped_reasoning }) = &self.0 else { return };
        let text = match in_answer {
            Some(token) if text == INTACT => {
                let cause = dropped_reasoning.as_ref().map(|dropped| cause(dropped, token));
                format!("token={token}; role={ANSWER}{}", cause.unwrap_or_default())
            }
            _ => text.clone(),
        };
        headers::set(response.headers_mut(), warmpath_common::headers::PREFIX_BREAK, &text);
    }
}

/// Returns the cause of a break that lies at `token` or before it; empty if the template leaves out no reasoning
/// before that token.
fn cause(dropped: &DroppedReasoning, token: u32) -> String {
    if dropped.n_tokens_before > token {
        return String::new();
    }
    let setting = dropped.kept_by.as_ref().map(|switch| {
        format!("; setting=chat_template_kwargs: {switch} (for all requests: --chat-template-kwargs of the workers)")
    });
    format!("; cause={REASONING_DROPPED}{}", setting.unwrap_or_default())
}
