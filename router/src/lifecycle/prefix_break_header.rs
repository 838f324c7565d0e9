//! Where a conversation broke its own prefix: asked for by a header, counted for every chat.
//!
//! Not here: how that is found out (the core's `prefix_breaks`). The idea: it never decides anything, so where nobody asks
//! for it, it is done after the answer has begun.

use axum::http::HeaderMap;
use axum::response::Response;
use warmpath_router_core::diagnostics::prefix_breaks::{PrefixContinuity, PromptFingerprint};

use super::headers;
use crate::http::state::App;
use crate::prompt::{Prepared, Prompt};

/// Diagnosis of a prompt that continues what was said before.
const INTACT: &str = "intact";

/// Whose break it is where a prompt has an answer of the worker's otherwise than it was given.
const ANSWER: &str = "answer";

/// Is the diagnosis that a request asks for.
pub(super) struct PrefixBreakHeader(Option<String>);

impl PrefixBreakHeader {
    /// Makes the diagnosis of a prompt if the request's headers ask for it.
    pub(super) fn of(app: &App, asked: &HeaderMap, prepared: &mut Prepared) -> Self {
        let wanted = headers::text(asked, warmpath_common::headers::DEBUG);
        if !wanted.is_some_and(|wanted| wanted.split(',').any(|part| part.trim() == "prefix")) {
            return Self(None);
        }
        let Prompt::Known { root, keys, .. } = &prepared.prompt else {
            return Self(Some("unknown".to_owned()));
        };
        let (root, keys) = (*root, keys.clone());
        let marks = std::mem::take(&mut prepared.marks);
        let text = match observe(app, PromptFingerprint { root, marks, keys }) {
            PrefixContinuity::New => "new".to_owned(),
            PrefixContinuity::Intact => INTACT.to_owned(),
            PrefixContinuity::Broken(found) => {
                let token = found.block.saturating_mul(prepared.model.block_size_tokens);
                let message = found.message.map(|message| format!("; message={message}")).unwrap_or_default();
                format!("token={token}{message}; role={}", found.label())
            }
        };
        Self(Some(text))
    }

    /// Adds the diagnosis to the response, and counts the break within an earlier answer that the worker has found.
    pub(super) fn add_to(&self, app: &App, response: &mut Response) {
        let in_answer: Option<u32> = headers::number(response.headers(), warmpath_common::headers::ANSWER_BREAK);
        if in_answer.is_some() {
            app.metrics.prefix_breaks.with_label_values(&[ANSWER]).inc();
        }
        let Some(text) = &self.0 else { return };
        let text = match in_answer {
            Some(token) if text == INTACT => format!("token={token}; role={ANSWER}"),
            _ => text.clone(),
        };
        headers::set(response.headers_mut(), warmpath_common::headers::PREFIX_BREAK, &text);
    }
}

/// Compares a prompt with what was said before, counts the result, and remembers the prompt.
pub(super) fn observe(app: &App, spoken: PromptFingerprint) -> PrefixContinuity {
    if spoken.marks.is_empty() {
        return PrefixContinuity::New;
    }
    let continuity = app.conversations().observe(spoken);
    let (label, found) = match continuity {
        PrefixContinuity::New => ("new", None),
        PrefixContinuity::Intact => ("intact", None),
        PrefixContinuity::Broken(found) => ("broken", Some(found)),
    };
    app.metrics.conversations.with_label_values(&[label]).inc();
    if let Some(found) = found {
        app.metrics.prefix_breaks.with_label_values(&[found.label()]).inc();
    }
    continuity
}
