//! The arguments of tool calls, kept to their schemas within an answer that follows the grammar of calls.
//!
//! Not here: the grammar around them (`grammar`), the schemas (`constraint`).
//! The idea: where a tool's arguments may begin, the grammar names a token that no vocabulary has. Where all arguments
//! are one object, from the bracket there to the one that closes it the schema decides besides the grammar, which takes
//! any balanced brackets. Where each argument stands apart, its constraint decides alone, up to the mark that closes
//! it, and the grammar goes on behind the named token.

use std::sync::Arc;

use llguidance::toktrie::{SimpleVob, TokTrie};
use warmpath_common::ids::Token;

use super::constraint::{CompiledSchema, Compiler, Constraint};
use super::rule::unfollowed;

/// Schemas of arguments, by the tokens that stand for them in a grammar.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ArgumentSchemas {
    /// Token that stands for the first schema; the others follow. It is the size of the vocabulary.
    pub first: Token,
    /// What each of the schemas is of.
    pub extent: Extent,
    /// Schemas, compiled.
    pub schemas: Vec<CompiledSchema>,
}

/// What of a call's arguments a schema is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Extent {
    /// All of them, an object.
    #[default]
    Object,
    /// One of them, with the mark that closes it.
    Value,
}

impl ArgumentSchemas {
    /// Returns the schema of an object for which a token stands.
    pub(super) fn object(&self, token: Token) -> Option<&CompiledSchema> {
        (self.extent == Extent::Object).then(|| self.of(token)).flatten()
    }

    /// Returns the schema of a single argument for which a token stands.
    pub(super) fn value(&self, token: Token) -> Option<&CompiledSchema> {
        (self.extent == Extent::Value).then(|| self.of(token)).flatten()
    }

    fn of(&self, token: Token) -> Option<&CompiledSchema> {
        self.schemas.get(usize::try_from(token.checked_sub(self.first)?).ok()?)
    }
}

/// Follows the arguments of one answer's calls.
pub(super) struct FollowedArguments {
    pub(super) schemas: Arc<ArgumentSchemas>,
    /// Tokens with a curly bracket, ascending.
    pub(super) bracketed: Arc<[Token]>,
    /// Arguments that the answer is in.
    pub(super) begun: Option<Begun>,
    /// Single argument that the answer is in, or may begin.
    pub(super) value: Option<FollowedValue>,
}

impl FollowedArguments {
    /// Returns an answer without arguments that a schema decides about.
    pub(super) fn none(compiler: &Compiler) -> Self {
        Self::new(compiler, Arc::default())
    }

    /// Returns an answer at its start.
    pub(super) fn new(compiler: &Compiler, schemas: Arc<ArgumentSchemas>) -> Self {
        Self { schemas, bracketed: Arc::clone(compiler.bracketed()), begun: None, value: None }
    }
}

/// Arguments that have begun and are not closed.
pub(super) struct Begun {
    constraint: Constraint,
    brackets: Brackets,
    /// Tokens that the schema allows next; absent until it is asked.
    mask: Option<SimpleVob>,
}

impl Begun {
    /// Returns arguments that begin with `text`; absent where it closes them, whatever stands behind.
    ///
    /// Errors: the schema does not allow it, or that cannot be told.
    pub(super) fn with(schema: &CompiledSchema, text: &[u8]) -> Result<Option<Self>, String> {
        let mut constraint = schema.begin();
        let mut brackets = Brackets::default();
        let closed_at = brackets.closed_at(text);
        constraint.take_text(closed_at.map_or(text, |idx| &text[..=idx]))?;
        Ok(closed_at.is_none().then_some(Self { constraint, brackets, mask: None }))
    }

    /// Returns whether the schema allows a token next, as far as it belongs to the arguments.
    ///
    /// Errors: as [`Constraint::allowed`].
    pub(super) fn allows(&mut self, token: Token, bytes: &[u8]) -> Result<bool, String> {
        match self.own_part(bytes) {
            Some(own) => Ok(self.constraint.fits(own)),
            None => Ok(self.allowed()?.is_allowed(token)),
        }
    }

    /// Returns the tokens that the schema allows next and, of those that go on behind the closing bracket, the permitted ones.
    ///
    /// Errors: as [`Constraint::allowed`].
    pub(super) fn allowed(&mut self) -> Result<&mut SimpleVob, String> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.constraint.allowed().map_err(unfollowed)?.into_mask(),
        };
        Ok(self.mask.insert(mask))
    }

    /// Returns the part of a token that belongs to arguments which it closes and goes on behind; absent of other tokens.
    pub(super) fn own_part<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let idx = self.brackets.clone().closed_at(bytes).filter(|idx| idx + 1 < bytes.len())?;
        Some(&bytes[..=idx])
    }

    /// Takes a token that is allowed, and returns whether it closes the arguments.
    ///
    /// Errors: as [`Constraint::take`].
    pub(super) fn take(&mut self, token: Token, bytes: &[u8]) -> Result<bool, String> {
        self.mask = None;
        match self.own_part(bytes).map(<[u8]>::to_vec) {
            Some(own) => self.constraint.take_text(&own),
            None => self.constraint.take(token),
        }
        .map_err(unfollowed)?;
        Ok(self.brackets.closed_at(bytes).is_some())
    }
}

/// A single argument: the answer is in it, or at a place where it may begin.
pub(super) struct FollowedValue {
    /// Token that stands for it in the grammar.
    pub(super) named: Token,
    /// Whether some of it was said.
    pub(super) is_begun: bool,
    constraint: Constraint,
    /// Tokens that may come next; absent until they are asked for.
    mask: Option<SimpleVob>,
}

impl FollowedValue {
    /// Returns an argument that may begin.
    pub(super) fn at_start(named: Token, schema: &CompiledSchema) -> Self {
        Self { named, is_begun: false, constraint: schema.begin(), mask: None }
    }

    /// Returns whether a token may come next; control tokens count by the bytes that spell them.
    ///
    /// Errors: as [`Constraint::allowed`].
    pub(super) fn allows(&mut self, token: Token, control: Option<&[u8]>) -> Result<bool, String> {
        match control {
            Some(bytes) => Ok(self.constraint.fits(bytes)),
            None => Ok(self.allowed()?.is_allowed(token)),
        }
    }

    /// Returns the tokens that may come next, without control tokens.
    ///
    /// Errors: as [`Constraint::allowed`].
    pub(super) fn allowed(&mut self) -> Result<&SimpleVob, String> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.constraint.allowed().map_err(unfollowed)?.into_mask(),
        };
        Ok(self.mask.insert(mask))
    }

    /// Takes these bytes, which `token` spells where that is given, and returns whether the argument is closed.
    ///
    /// Errors: as [`Constraint::take`], and they are not allowed.
    pub(super) fn take(&mut self, token: Option<Token>, bytes: &[u8]) -> Result<bool, String> {
        (self.mask, self.is_begun) = (None, true);
        match token {
            Some(token) => self.constraint.take(token),
            None => self.constraint.take_text(bytes),
        }
        .map_err(unfollowed)?;
        Ok(self.constraint.is_complete())
    }

    /// Returns whether these bytes may come next.
    pub(super) fn fits(&self, bytes: &[u8]) -> bool {
        self.constraint.fits(bytes)
    }
}

/// Lists the tokens with a curly bracket, ascending: all others neither begin nor close arguments.
pub(super) fn bracketed(trie: &TokTrie) -> Arc<[Token]> {
    let n_vocab = Token::try_from(trie.vocab_size()).expect("tokens are numbered by a u32");
    (0..n_vocab).filter(|token| trie.token(*token).iter().any(|byte| matches!(byte, b'{' | b'}'))).collect()
}

/// Follows the brackets of JSON.
#[derive(Debug, Clone, Default)]
struct Brackets {
    depth: u32,
    in_text: bool,
    is_escaped: bool,
}

impl Brackets {
    /// Takes more of an object and returns where its closing bracket is, if it is in there.
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
