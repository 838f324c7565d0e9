//! The fleet's token: a bearer secret that routers send to workers, and that workers require of every client.
//!
//! Not here: on which paths it is sent and required.
//!
//! A file may have several tokens, one a line, so that the token can be changed while the fleet runs. A server accepts
//! each of them. A client sends the first one, and the next one if that is rejected.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::HeaderValue;
use subtle::{Choice, ConstantTimeEq};

use crate::files::{self, FileFailure};

/// Length of the shortest token. Units: bytes.
///
/// Source: 128 random bits in hexadecimal digits, which cannot be guessed.
pub const TOKEN_BYTES_MIN: usize = 32;

/// Length of the longest token. Units: bytes.
///
/// Source: own choice: far below the 8 KiB that servers accept as a header.
pub const TOKEN_BYTES_MAX: usize = 1024;

/// Most tokens of a file.
///
/// Source: own choice: a change needs two.
pub const TOKENS_MAX: usize = 8;

/// Length of the longest file of tokens. Units: bytes.
///
/// Source: own choice: all tokens at their maximum length, and as many bytes of comments.
pub const FILE_BYTES_MAX: usize = 16 << 10;

/// Reason why a file of tokens cannot be used. Messages never contain a token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("it cannot be read")]
    Read(#[source] std::io::Error),
    /// It is too long.
    #[error("it has more than {FILE_BYTES_MAX} bytes")]
    FileTooLong,
    /// It has no token.
    #[error("it contains no token")]
    Empty,
    /// It has too many tokens.
    #[error("it contains more than {TOKENS_MAX} tokens")]
    TooMany,
    /// A token is too short or too long.
    #[error("line {line}: a token must have {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes")]
    Length {
        /// Line number, from 1.
        line: usize,
    },
    /// A token has characters that a header cannot carry.
    #[error("line {line}: a token must be of letters, digits, and - . _ ~ + / =")]
    Characters {
        /// Line number, from 1.
        line: usize,
    },
}

/// A token in the form in which it is sent and compared; it is never logged.
#[derive(Clone, PartialEq, Eq)]
struct Token(HeaderValue);

impl Token {
    /// Prefix of the token in the header.
    const SCHEME: &'static str = "Bearer ";

    fn bytes(&self) -> &[u8] {
        &self.0.as_bytes()[Self::SCHEME.len()..]
    }
}

/// Tokens that are currently valid.
pub struct FleetTokens {
    tokens: ArcSwap<Vec<Token>>,
}

impl std::fmt::Debug for FleetTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetTokens").finish_non_exhaustive()
    }
}

impl FleetTokens {
    /// Reads a file of tokens: one a line; empty lines and those that start with `#` are ignored.
    ///
    /// Errors: every [`TokenError`].
    pub fn open(path: &Path) -> Result<Self, TokenError> {
        Ok(Self { tokens: ArcSwap::from_pointee(read(path)?) })
    }

    /// Returns whether a presented secret is one of the tokens; the time that this takes does not reveal how similar
    /// they are.
    pub fn accept(&self, client_token: &[u8]) -> bool {
        let tokens = self.tokens.load();
        tokens.iter().fold(Choice::from(0), |is_known, token| is_known | token.bytes().ct_eq(client_token)).into()
    }

    /// Returns the values for the header `authorization`, in the order of the file; at least one.
    pub fn shown(&self) -> Vec<HeaderValue> {
        self.tokens.load().iter().map(|token| token.0.clone()).collect()
    }

    /// Rereads the file for as long as the future is polled; an invalid or missing file changes nothing.
    pub async fn watch(self: Arc<Self>, path: PathBuf, mut on_failure: impl FnMut()) {
        let poll = || {
            let tokens = read(&path)?;
            if **self.tokens.load() != tokens {
                tracing::info!(path = %path.display(), n_tokens = tokens.len(), "the fleet's tokens were read again");
                self.tokens.store(Arc::new(tokens));
            }
            Ok::<_, TokenError>(())
        };
        let report = |FileFailure { reason, is_new }| {
            on_failure();
            if is_new {
                tracing::error!(path = %path.display(), %reason, "the file of the fleet's tokens cannot be used; the last tokens stay in force");
            }
        };
        files::watch(poll, report).await;
    }
}

fn read(path: &Path) -> Result<Vec<Token>, TokenError> {
    let text = std::fs::read_to_string(path).map_err(TokenError::Read)?;
    if text.len() > FILE_BYTES_MAX {
        return Err(TokenError::FileTooLong);
    }
    let lines = text.lines().map(str::trim).enumerate().map(|(idx, line)| (idx + 1, line));
    let mut tokens = Vec::new();
    for (line, text) in lines.filter(|(_, text)| !text.is_empty() && !text.starts_with('#')) {
        if tokens.len() == TOKENS_MAX {
            return Err(TokenError::TooMany);
        }
        tokens.push(token(line, text)?);
    }
    if tokens.is_empty() { Err(TokenError::Empty) } else { Ok(tokens) }
}

/// Returns the token of a line. Source of the characters: RFC 6750, section 2.1.
fn token(line: usize, text: &str) -> Result<Token, TokenError> {
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&text.len()) {
        return Err(TokenError::Length { line });
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    if !text.bytes().all(is_plain) {
        return Err(TokenError::Characters { line });
    }
    let value = HeaderValue::from_str(&format!("{}{text}", Token::SCHEME));
    let mut value = value.map_err(|_| TokenError::Characters { line })?;
    value.set_sensitive(true);
    Ok(Token(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str) -> Result<FleetTokens, TokenError> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("it can be written");
        FleetTokens::open(file.path())
    }

    #[test]
    fn any_token_of_the_file_is_accepted_and_the_first_is_sent_first() {
        let (first, second) = ("a".repeat(TOKEN_BYTES_MIN), "b/+=._~-".repeat(8));
        let tokens = open(&format!("# ours\n{first}\n\n  {second}  \r\n")).expect("a good file");
        assert!(tokens.accept(first.as_bytes()) && tokens.accept(second.as_bytes()));
        for wrong in ["", &first[1..], &format!("{first}a"), &first.to_uppercase(), "# ours"] {
            assert!(!tokens.accept(wrong.as_bytes()), "{wrong}");
        }
        let shown = tokens.shown();
        assert_eq!((shown.len(), shown[0].to_str().expect("text")), (2, format!("Bearer {first}").as_str()));
        assert!(!format!("{tokens:?} {shown:?}").contains(&first), "logs do not show it");
    }

    #[test]
    fn an_invalid_file_is_refused_with_the_reason_and_without_its_tokens() {
        let good = "a".repeat(TOKEN_BYTES_MIN);
        let check = |text: &str, expected: &str| {
            let error = crate::chain(&open(text).expect_err(text));
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains(&good[1..]), "{error}");
        };
        check("", "it contains no token");
        check("# nothing\n\n", "it contains no token");
        check(&format!("{good}\n{}", &good[1..]), "line 2: a token must have 32 to 1024 bytes");
        check(&"a".repeat(TOKEN_BYTES_MAX + 1), "line 1: a token must have");
        check(&format!("#\n{good} {good}"), "line 2: a token must be of letters");
        check(&format!("{good}\u{e9}"), "line 1: a token must be of letters");
        check(&format!("{good}\n").repeat(TOKENS_MAX + 1), "more than 8 tokens");
        check(&"#".repeat(FILE_BYTES_MAX + 1), "more than 16384 bytes");
        let error = FleetTokens::open(Path::new("/nonexistent/token")).expect_err("no file");
        assert!(matches!(error, TokenError::Read(_)), "{error:?}");
    }
}
