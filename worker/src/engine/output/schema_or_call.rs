//! A response that follows a schema or is a tool call: both remain possible until the text fits only one of them.
//!
//! A token is allowed if one of the two allows it. In most formats the first token decides. If a call begins like JSON,
//! as Llama 3.1's, both are followed until they differ.
//!
//! Not here: reasoning before it (`reasoning`), matching either one (`json_schema`, `grammar`).

use llguidance::toktrie::SimpleVob;
use warmpath_common::ids::Token;

use super::constraint::{Rule, unfollowed};
use super::grammar::Followed;
use super::json_schema::{Allowed, Constraint};

/// A schema, and the grammar of calls if these are possible, too.
pub(crate) struct SchemaOrCall {
    schema: Box<Constraint>,
    call: Option<Box<Followed>>,
    /// Whether the response has begun: grammars of optional calls also allow white space, or nothing, instead of one.
    is_begun: bool,
}

impl SchemaOrCall {
    /// Returns the state of a response at its start.
    pub(crate) fn new(schema: Box<Constraint>, call: Option<Box<Followed>>) -> Self {
        Self { schema, call, is_begun: false }
    }

    /// Returns the rule that a response follows from now on.
    pub(crate) fn into_rule(self) -> Rule {
        if self.call.is_some() { Rule::SchemaOrCall(Box::new(self)) } else { Rule::Schema(self.schema) }
    }

    /// Returns the tokens that end a response.
    pub(crate) fn ends(&self) -> &[Token] {
        self.schema.ends()
    }

    /// Returns what may come next.
    ///
    /// Errors: why that cannot be determined within the limits, for the client.
    pub(crate) fn allowed(&mut self) -> Result<Allowed, String> {
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

    /// Takes an allowed token and returns the rule from there on.
    ///
    /// Errors: like [`Self::allowed`].
    pub(crate) fn take(mut self, token: Token) -> Result<Rule, String> {
        let may_begin = std::mem::replace(&mut self.is_begun, true) || self.schema.begins_text(token);
        if let Some(mut call) = self.call.take()
            && may_begin
            && call.allows(token)?
        {
            let is_schema_s = self.schema.allowed().map_err(unfollowed)?.into_mask().is_allowed(token);
            call.take(token)?;
            if !is_schema_s {
                return Ok(Rule::Grammar(call));
            }
            self.call = Some(call);
        }
        self.schema.take(token).map_err(unfollowed)?;
        Ok(self.into_rule())
    }

    /// Takes text that is already part of the response and returns the rule from there on.
    ///
    /// Errors: like [`Self::allowed`], or neither allows it.
    pub(crate) fn take_text(mut self, text: &[u8]) -> Result<Rule, String> {
        self.is_begun = !text.is_empty();
        let mut call = self.call.take();
        if !text.is_empty()
            && let Some(mut followed) = call.take()
            && followed.take_text(text)?
        {
            if !self.schema.fits(text) {
                return Ok(Rule::Grammar(followed));
            }
            call = Some(followed);
        }
        self.call = call;
        self.schema.take_text(text).map_err(unfollowed)?;
        Ok(self.into_rule())
    }
}
