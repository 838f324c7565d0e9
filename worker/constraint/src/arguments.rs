//! The arguments of tool calls: constrained by the tool's schema, within a response that follows the grammar of calls.
//!
//! At the start of a tool's arguments, the grammar has a placeholder token beyond the vocabulary. There are two forms.
//! If the arguments are one object, the grammar allows any balanced brackets, and the schema applies in addition from
//! the opening bracket to the closing one. If each argument is written separately, only the argument's constraint
//! applies, up to the argument's closing mark, and then the grammar continues after the placeholder.
//!
//! Not here: the grammar around them (`followed`), the schemas (`compiler`).

use std::sync::Arc;

use llguidance::toktrie::{SimpleVob, TokTrie};
use warmpath_common::ids::Token;

use crate::compiler::{CompiledSchema, Constraint, RuleCompiler};
use crate::rule::unfollowed;

/// Schemas of arguments, by their placeholder tokens in a grammar.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ArgumentSchemas {
    /// Placeholder of the first schema, which is the size of the vocabulary; those of the others follow.
    pub first: Token,
    /// Extent of each schema.
    pub extent: ArgumentsExtent,
    /// Compiled schemas.
    pub schemas: Vec<CompiledSchema>,
}

/// Part of a call's arguments that a schema covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ArgumentsExtent {
    /// All arguments, as one object.
    #[default]
    Object,
    /// One argument, with its closing mark.
    Value,
}

impl ArgumentSchemas {
    /// Returns the schema of an object, given its placeholder.
    pub fn object(&self, token: Token) -> Option<&CompiledSchema> {
        (self.extent == ArgumentsExtent::Object).then(|| self.of(token)).flatten()
    }

    /// Returns the schema of a single argument, given its placeholder.
    pub fn value(&self, token: Token) -> Option<&CompiledSchema> {
        (self.extent == ArgumentsExtent::Value).then(|| self.of(token)).flatten()
    }

    fn of(&self, token: Token) -> Option<&CompiledSchema> {
        self.schemas.get(usize::try_from(token.checked_sub(self.first)?).ok()?)
    }
}

/// State of the arguments of one response's calls.
pub struct FollowedArguments {
    pub schemas: Arc<ArgumentSchemas>,
    /// Tokens with a curly bracket, ascending.
    pub bracketed: Arc<[Token]>,
    /// Arguments that are being written.
    pub begun: Option<BegunArguments>,
    /// Single argument that is being written or may begin.
    pub value: Option<FollowedValue>,
}

impl FollowedArguments {
    /// Returns the state of a response without arguments that follow a schema.
    pub fn none(compiler: &RuleCompiler) -> Self {
        Self::new(compiler, Arc::default())
    }

    /// Returns the state of a response at its start.
    pub fn new(compiler: &RuleCompiler, schemas: Arc<ArgumentSchemas>) -> Self {
        Self { schemas, bracketed: Arc::clone(compiler.bracketed()), begun: None, value: None }
    }
}

/// Arguments that have begun and are not complete.
pub struct BegunArguments {
    constraint: Constraint,
    brackets: Brackets,
    /// Tokens that the schema allows next; `None` until they are needed.
    mask: Option<SimpleVob>,
}

impl BegunArguments {
    /// Returns arguments that begin with `text`; `None` if the text also closes them.
    ///
    /// Errors: the schema does not allow the text, or checking it exceeds the limits.
    pub fn with(schema: &CompiledSchema, text: &[u8]) -> Result<Option<Self>, String> {
        let mut constraint = schema.begin();
        let mut brackets = Brackets::default();
        let closed_at = brackets.closed_at(text);
        constraint.take_text(closed_at.map_or(text, |idx| &text[..=idx]))?;
        Ok(closed_at.is_none().then_some(Self { constraint, brackets, mask: None }))
    }

    /// Returns whether the schema allows a token next; text after the closing bracket is not checked.
    ///
    /// Errors: like [`Constraint::allowed`].
    pub fn allows(&mut self, token: Token, bytes: &[u8]) -> Result<bool, String> {
        match self.own_part(bytes) {
            Some(object) => Ok(self.constraint.fits(object)),
            None => Ok(self.allowed()?.is_allowed(token)),
        }
    }

    /// Returns the tokens that the schema allows next, including the permitted ones with text after the closing
    /// bracket.
    ///
    /// Errors: like [`Constraint::allowed`].
    pub fn allowed(&mut self) -> Result<&mut SimpleVob, String> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.constraint.allowed().map_err(unfollowed)?.into_mask(),
        };
        Ok(self.mask.insert(mask))
    }

    /// Returns a token's part up to the bracket that closes the arguments, if more text follows that bracket; `None`
    /// for other tokens.
    pub fn own_part<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let idx = self.brackets.clone().closed_at(bytes).filter(|idx| idx + 1 < bytes.len())?;
        Some(&bytes[..=idx])
    }

    /// Adds an allowed token; returns whether it closes the arguments.
    ///
    /// Errors: like [`Constraint::take`].
    pub fn take(&mut self, token: Token, bytes: &[u8]) -> Result<bool, String> {
        self.mask = None;
        match self.own_part(bytes).map(<[u8]>::to_vec) {
            Some(object) => self.constraint.take_text(&object),
            None => self.constraint.take(token),
        }
        .map_err(unfollowed)?;
        Ok(self.brackets.closed_at(bytes).is_some())
    }
}

/// A single argument that is being written or may begin.
pub struct FollowedValue {
    /// Placeholder token in the grammar.
    pub named: Token,
    /// Whether it has begun.
    pub is_begun: bool,
    constraint: Constraint,
    /// Tokens that may come next; `None` until they are needed.
    mask: Option<SimpleVob>,
}

impl FollowedValue {
    /// Returns an argument that may begin.
    pub fn at_start(named: Token, schema: &CompiledSchema) -> Self {
        Self { named, is_begun: false, constraint: schema.begin(), mask: None }
    }

    /// Returns whether a token may come next; control tokens count by the bytes that spell them.
    ///
    /// Errors: like [`Constraint::allowed`].
    pub fn allows(&mut self, token: Token, control: Option<&[u8]>) -> Result<bool, String> {
        match control {
            Some(bytes) => Ok(self.constraint.fits(bytes)),
            None => Ok(self.allowed()?.is_allowed(token)),
        }
    }

    /// Returns the tokens that may come next, without control tokens.
    ///
    /// Errors: like [`Constraint::allowed`].
    pub fn allowed(&mut self) -> Result<&SimpleVob, String> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.constraint.allowed().map_err(unfollowed)?.into_mask(),
        };
        Ok(self.mask.insert(mask))
    }

    /// Adds bytes, which are the text of `token` if that is given; returns whether the argument is complete.
    ///
    /// Errors: like [`Constraint::take`], or the bytes are not allowed.
    pub fn take(&mut self, token: Option<Token>, bytes: &[u8]) -> Result<bool, String> {
        (self.mask, self.is_begun) = (None, true);
        match token {
            Some(token) => self.constraint.take(token),
            None => self.constraint.take_text(bytes),
        }
        .map_err(unfollowed)?;
        Ok(self.constraint.is_complete())
    }

    /// Returns whether these bytes may come next.
    pub fn fits(&self, bytes: &[u8]) -> bool {
        self.constraint.fits(bytes)
    }
}

/// Returns the tokens with a curly bracket, ascending. Only these can begin or close arguments.
pub fn bracketed(trie: &TokTrie) -> Arc<[Token]> {
    let n_vocab = Token::try_from(trie.vocab_size()).expect("tokens are numbered by a u32");
    (0..n_vocab).filter(|token| trie.token(*token).iter().any(|byte| matches!(byte, b'{' | b'}'))).collect()
}

/// Nesting of JSON brackets.
#[derive(Debug, Clone, Default)]
struct Brackets {
    depth: u32,
    in_text: bool,
    is_escaped: bool,
}

impl Brackets {
    /// Reads further text of an object; returns the index of the object's closing bracket, if the text contains it.
    fn closed_at(&mut self, bytes: &[u8]) -> Option<usize> {
        for (idx, byte) in bytes.iter().enumerate() {
            if std::mem::take(&mut self.is_escaped) {
                continue;
            }
            match byte {
                b'\\' if self.in_text => self.is_escaped = true,
                b'"' => self.in_text = !self.in_text,
                b'{' if !self.in_text => self.depth += 1,
                b'}' if !self.in_text => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if *byte == b'}' && self.depth == 0 && !self.in_text {
                return Some(idx);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_closed_by_its_own_bracket() {
        let closed_at = |parts: &[&str]| {
            let mut brackets = Brackets::default();
            parts.iter().map(|part| brackets.closed_at(part.as_bytes())).collect::<Vec<_>>()
        };
        assert_eq!(closed_at(&["{}"]), [Some(1)]);
        assert_eq!(closed_at(&["{\"a\": {}", "}}\n"]), [None, Some(0)]);
        assert_eq!(closed_at(&["{\"}\\\"", "}\"", "}x"]), [None, None, Some(0)]);
        assert_eq!(closed_at(&["{\"\\", "\"}\"}"]), [None, Some(3)]);
    }
}
