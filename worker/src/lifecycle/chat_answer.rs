//! The constraints of a chat's response, and the format for parsing it.

use std::sync::Arc;

use warmpath_common::ids::Token;
use warmpath_constraint::{CallGrammar, ReasoningFirst};
use warmpath_prompt::AnswerFormat;

use crate::engine::Generation;
use crate::error::RequestError;
use crate::tools::ReasoningOutput;

/// Constraints and format of the response to a chat.
#[derive(Debug)]
pub struct ChatAnswer {
    /// Format from the template.
    pub format: AnswerFormat,
    /// Field of the response that gets the reasoning.
    pub reasoning_output: ReasoningOutput,
    /// Grammar of its calls; `None` if it may have none.
    pub(super) calls: Option<CallGrammar>,
    /// Whether the response must consist of calls.
    pub(super) must_call: bool,
    /// Names of tools whose arguments may break their schemas.
    pub unconstrained: Vec<String>,
    /// Names of custom tools, whose calls have one free text.
    pub custom_tools: Arc<[String]>,
    /// Control tokens that the response's text shows, ascending.
    pub(super) spelled: Vec<Token>,
    /// Reasoning that may precede the content.
    pub(super) first: Option<ReasoningFirst>,
}

impl ChatAnswer {
    /// Adds this response's constraints to a generation.
    ///
    /// Errors: `Field` if both cannot be combined.
    pub fn constrain(&self, generation: &mut Generation) -> Result<(), RequestError> {
        if self.calls.is_some() && generation.ignore_eos {
            return Err(RequestError::field("ignore_eos", "`ignore_eos` cannot be combined with `tools`"));
        }
        generation.calls.clone_from(&self.calls);
        generation.spelled.clone_from(&self.spelled);
        generation.stop.extend_from_slice(&self.format.format().stops);
        Ok(())
    }

    /// Adds the constraints of a response that is a tool call or follows the generation's schema; if a call is
    /// required, the schema is removed.
    ///
    /// Errors: like [`Self::constrain`].
    pub fn constrain_either(&self, generation: &mut Generation) -> Result<(), RequestError> {
        self.constrain(generation)?;
        if self.must_call {
            generation.schema = None;
        } else {
            generation.reasoning.clone_from(&self.first);
        }
        Ok(())
    }

    /// Allows reasoning before the content in a generation with a schema; returns whether the response may have
    /// reasoning that can be separated.
    pub fn let_reason(&self, generation: &mut Generation) -> bool {
        generation.reasoning.clone_from(&self.first);
        if self.first.is_some() {
            generation.spelled.clone_from(&self.spelled);
        }
        self.first.is_some()
    }

    /// Returns whether tools may be called.
    pub fn may_call(&self) -> bool {
        self.calls.is_some()
    }
}
