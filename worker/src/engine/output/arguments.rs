//! The arguments of tool calls, which follow their schemas within a response that follows the grammar of calls.
//!
//! Where a tool's arguments may begin, the grammar has a token that no vocabulary has. If all arguments are one object,
//! the schema applies in addition to the grammar, which allows any balanced brackets, from the opening bracket to its
//! closing one. If each argument is written apart, only its constraint applies, up to the mark that closes it, and the
//! grammar continues after the special token.
//!
//! Not here: the grammar around them (`grammar`), the schemas (`constraint`).

use std::sync::Arc;

use llguidance::toktrie::{SimpleVob, TokTrie};
use warmpath_common::ids::Token;

use super::constraint::unfollowed;
use super::json_schema::{CompiledSchema, Constraint, SchemaCompiler};

/// Schemas of arguments, by the tokens that stand for them in a grammar.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ArgumentSchemas {
    /// Token of the first schema; the others follow. It is the size of the vocabulary.
    pub first: Token,
    /// Extent of each schema.
    pub extent: ArgumentsExtent,
    /// The schemas, compiled.
    pub schemas: Vec<CompiledSchema>,
}

/// Part of a call's arguments that a schema covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ArgumentsExtent {
    /// All of them, an object.
    #[default]
    Object,
    /// One of them, with the mark that closes it.
    Value,
}

impl ArgumentSchemas {
    /// Returns the schema of an object, given its token.
    pub(crate) fn object(&self, token: Token) -> Option<&CompiledSchema> {
        (self.extent == ArgumentsExtent::Object).then(|| self.of(token)).flatten()
    }

    /// Returns the schema of a single argument, given its token.
    pub(crate) fn value(&self, token: Token) -> Option<&CompiledSchema> {
        (self.extent == ArgumentsExtent::Value).then(|| self.of(token)).flatten()
    }

    fn of(&self, token: Token) -> Option<&CompiledSchema> {
        self.schemas.get(usize::try_from(token.checked_sub(self.first)?).ok()?)
    }
}

/// State of the arguments of one response's calls.
pub(crate) struct FollowedArguments {
    pub(crate) schemas: Arc<ArgumentSchemas>,
    /// Tokens with a curly bracket, ascending.
    pub(crate) bracketed: Arc<[Token]>,
    /// Arguments that the response is within.
    pub(crate) begun: Option<Begun>,
    /// Single argument that the response is within, or may begin.
    pub(crate) value: Option<FollowedValue>,
}

impl FollowedArguments {
    /// Returns the state of a response without arguments that follow a schema.
    pub(crate) fn none(compiler: &SchemaCompiler) -> Self {
        Self::new(compiler, Arc::default())
    }

    /// Returns the state of a response at its start.
    pub(crate) fn new(compiler: &SchemaCompiler, schemas: Arc<ArgumentSchemas>) -> Self {
        Self { schemas, bracketed: Arc::clone(compiler.bracketed()), begun: None, value: None }
    }
}

/// Arguments that have begun and are not closed.
pub(crate) struct Begun {
    constraint: Constraint,
    brackets: Brackets,
    /// Tokens that the schema allows next; `None` until they are needed.
    mask: Option<SimpleVob>,
}

impl Begun {
    /// Returns arguments that begin with `text`; `None` if it closes them, whatever follows.
    ///
    /// Errors: the schema does not allow it, or that cannot be determined.
    pub(crate) fn with(schema: &CompiledSchema, text: &[u8]) -> Result<Option<Self>, String> {
        let mut constraint = schema.begin();
        let mut brackets = Brackets::default();
        let closed_at = brackets.closed_at(text);
        constraint.take_text(closed_at.map_or(text, |idx| &text[..=idx]))?;
        Ok(closed_at.is_none().then_some(Self { constraint, brackets, mask: None }))
    }

    /// Returns whether the schema allows a token next, as far as it belongs to the arguments.
    ///
    /// Errors: like [`Constraint::allowed`].
    pub(crate) fn allows(&mut self, token: Token, bytes: &[u8]) -> Result<bool, String> {
        match self.own_part(bytes) {
            Some(own) => Ok(self.constraint.fits(own)),
            None => Ok(self.allowed()?.is_allowed(token)),
        }
    }

    /// Returns the tokens that the schema allows next and, of those that continue after the closing bracket, the
    /// permitted ones.
    ///
    /// Errors: like [`Constraint::allowed`].
    pub(crate) fn allowed(&mut self) -> Result<&mut SimpleVob, String> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.constraint.allowed().map_err(unfollowed)?.into_mask(),
        };
        Ok(self.mask.insert(mask))
    }

    /// Returns the first part of a token that closes arguments and has more text after them; `None` for other tokens.
    pub(crate) fn own_part<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let idx = self.brackets.clone().closed_at(bytes).filter(|idx| idx + 1 < bytes.len())?;
        Some(&bytes[..=idx])
    }

    /// Takes an allowed token, and returns whether it closes the arguments.
    ///
    /// Errors: like [`Constraint::take`].
    pub(crate) fn take(&mut self, token: Token, bytes: &[u8]) -> Result<bool, String> {
        self.mask = None;
        match self.own_part(bytes).map(<[u8]>::to_vec) {
            Some(own) => self.constraint.take_text(&own),
            None => self.constraint.take(token),
        }
        .map_err(unfollowed)?;
        Ok(self.brackets.closed_at(bytes).is_some())
    }
}

/// A single argument: the response is within it, or at a place where it may begin.
pub(crate) struct FollowedValue {
    /// Its token in the grammar.
    pub(crate) named: Token,
    /// Whether it has begun.
    pub(crate) is_begun: bool,
    constraint: Constraint,
    /// Tokens that may come next; `None` until they are needed.
    mask: Option<SimpleVob>,
}

impl FollowedValue {
    /// Returns an argument that may begin.
    pub(crate) fn at_start(named: Token, schema: &CompiledSchema) -> Self {
        Self { named, is_begun: false, constraint: schema.begin(), mask: None }
    }

    /// Returns whether a token may come next; control tokens count by the bytes that spell them.
    ///
    /// Errors: like [`Constraint::allowed`].
    pub(crate) fn allows(&mut self, token: Token, control: Option<&[u8]>) -> Result<bool, String> {
        match control {
            Some(bytes) => Ok(self.constraint.fits(bytes)),
            None => Ok(self.allowed()?.is_allowed(token)),
        }
    }

    /// Returns the tokens that may come next, without control tokens.
    ///
    /// Errors: like [`Constraint::allowed`].
    pub(crate) fn allowed(&mut self) -> Result<&SimpleVob, String> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.constraint.allowed().map_err(unfollowed)?.into_mask(),
        };
        Ok(self.mask.insert(mask))
    }

    /// Takes these bytes, spelled by `token` if that is given, and returns whether the argument is closed.
    ///
    /// Errors: like [`Constraint::take`], or the bytes are not allowed.
    pub(crate) fn take(&mut self, token: Option<Token>, bytes: &[u8]) -> Result<bool, String> {
        (self.mask, self.is_begun) = (None, true);
        match token {
            Some(token) => self.constraint.take(token),
            None => self.constraint.take_text(bytes),
        }
        .map_err(unfollowed)?;
        Ok(self.constraint.is_complete())
    }

    /// Returns whether these bytes may come next.
    pub(crate) fn fits(&self, bytes: &[u8]) -> bool {
        self.constraint.fits(bytes)
    }
}

/// Returns the tokens with a curly bracket, ascending: all others neither begin nor close arguments.
pub(crate) fn bracketed(trie: &TokTrie) -> Arc<[Token]> {
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
    /// Takes further text of an object and returns the index of its closing bracket, if the text contains it.
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
