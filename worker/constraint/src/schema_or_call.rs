//! A response that follows a schema or is a tool call: both remain possible until the text matches only one of them.
//!
//! A token is allowed if the schema or the grammar of calls allows it. In most formats the first token decides. Calls
//! that begin like JSON, as in Llama 3.1's format, are matched against both until only one matches.
//!
//! Not here: reasoning before the response (`reasoning`), matching a schema or grammar (`compiler`, `followed`).

use llguidance::toktrie::SimpleVob;
use warmpath_common::ids::Token;

use crate::compiler::{Allowed, Constraint};
use crate::followed::FollowedGrammar;
use crate::rule::{ResponseRule, unfollowed};

/// A schema, and the grammar of tool calls if these are possible, too.
pub struct SchemaOrCall {
    schema: Box<Constraint>,
    call: Option<Box<FollowedGrammar>>,
    /// Whether the response has begun. Before that, a grammar of optional calls also allows white space and an empty
    /// text.
    is_begun: bool,
}

impl SchemaOrCall {
    /// Returns the state of a response at its start.
    pub fn new(schema: Box<Constraint>, call: Option<Box<FollowedGrammar>>) -> Self {
        Self { schema, call, is_begun: false }
    }

    /// Returns the rule that the response follows from now on.
    pub fn into_rule(self) -> ResponseRule {
        if self.call.is_some() { ResponseRule::SchemaOrCall(Box::new(self)) } else { ResponseRule::Schema(self.schema) }
    }

    /// Returns the tokens that end a response.
    pub fn ends(&self) -> &[Token] {
        self.schema.ends()
    }

    /// Returns the tokens that may come next.
    ///
    /// Errors: the reason why they cannot be determined within the limits, for the client.
    pub fn allowed(&mut self) -> Result<Allowed, String> {
        let allowed = self.schema.allowed().map_err(unfollowed)?;
        let Some(call) = &mut self.call else { return Ok(allowed) };
        let mut mask: SimpleVob = allowed.into_mask();
        let of_call = call.allowed()?;
        if self.is_begun {
            mask.or(of_call);
        } else {
            let begins = of_call.iter().filter(|token| self.schema.begins_text(*token));
            begins.for_each(|token| mask.allow_token(token));
        }
        Ok(Allowed::Tokens(mask))
    }

    /// Advances by an allowed token; returns the rule that applies after it.
    ///
    /// Errors: like [`Self::allowed`].
    pub fn take(mut self, token: Token) -> Result<ResponseRule, String> {
        let may_begin = std::mem::replace(&mut self.is_begun, true) || self.schema.begins_text(token);
        if let Some(mut call) = self.call.take()
            && may_begin
            && call.allows(token)?
        {
            let is_schema_s = self.schema.allowed().map_err(unfollowed)?.into_mask().is_allowed(token);
            call.take(token)?;
            if !is_schema_s {
                return Ok(ResponseRule::Grammar(call));
            }
            self.call = Some(call);
        }
        self.schema.take(token).map_err(unfollowed)?;
        Ok(self.into_rule())
    }

    /// Advances by text that is already part of the response; returns the rule that applies after it.
    ///
    /// Errors: like [`Self::allowed`], or neither the schema nor the grammar allows the text.
    pub fn take_text(mut self, text: &[u8]) -> Result<ResponseRule, String> {
        self.is_begun = !text.is_empty();
        let mut call = self.call.take();
        if !text.is_empty()
            && let Some(mut followed_calls) = call.take()
            && followed_calls.take_text(text)?
        {
            if !self.schema.fits(text) {
                return Ok(ResponseRule::Grammar(followed_calls));
            }
            call = Some(followed_calls);
        }
        self.call = call;
        self.schema.take_text(text).map_err(unfollowed)?;
        Ok(self.into_rule())
    }
}
