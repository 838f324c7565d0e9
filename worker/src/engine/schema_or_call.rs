//! An answer that follows a schema or is a tool call: both may go on until what was said fits one of them alone.
//!
//! Not here: thoughts before it (`thoughts`), following either one (`constraint`, `grammar`).
//! The idea: a token may come that one of the two allows. Most formats tell them apart with the first token; where a
//! call begins like JSON, as Llama 3.1's, both are followed until they differ.

use llguidance::toktrie::SimpleVob;
use warmpath_common::ids::Token;

use super::constraint::{Allowed, Constraint};
use super::grammar::Followed;
use super::rule::{Rule, unfollowed};

/// A schema, and the grammar of calls where these may come instead.
pub(super) struct SchemaOrCall {
    schema: Box<Constraint>,
    call: Option<Box<Followed>>,
    /// Whether something was said: grammars of calls that are optional also allow white space, or nothing, instead of one.
    is_begun: bool,
}

impl SchemaOrCall {
    /// Returns an answer at its start.
    pub(super) fn new(schema: Box<Constraint>, call: Option<Box<Followed>>) -> Self {
        Self { schema, call, is_begun: false }
    }

    /// Returns the rule that an answer follows from here on.
    pub(super) fn into_rule(self) -> Rule {
        if self.call.is_some() { Rule::SchemaOrCall(Box::new(self)) } else { Rule::Schema(self.schema) }
    }

    /// Lists the tokens that end an answer.
    pub(super) fn ends(&self) -> &[Token] {
        self.schema.ends()
    }

    /// Returns what may come next.
    ///
    /// Errors: why that cannot be told within the limits, fit for the client.
    pub(super) fn allowed(&mut self) -> Result<Allowed, String> {
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

    /// Takes a token that is allowed and returns the rule from there on.
    ///
    /// Errors: as [`Self::allowed`].
    pub(super) fn take(mut self, token: Token) -> Result<Rule, String> {
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

    /// Takes a text that was said already and returns the rule from there on.
    ///
    /// Errors: as [`Self::allowed`], and neither allows it.
    pub(super) fn take_text(mut self, text: &[u8]) -> Result<Rule, String> {
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
