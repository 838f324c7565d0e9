//! The journal of a response: the tokens of its events, from which another worker can continue it.
//!
//! Every write of a stream ends with a line that has the choice and the tokens since its last write; from the choice's
//! last token on, also the reason of its end. Before a response in one piece there are only lines. A router keeps these
//! lines and never passes them on. The worker that continues the response gets them after the request's body. It
//! replays the tokens through the same sampler, decoder and parsers, and omits the writes that the client already has.
//! Ids and, without a seed, random numbers are derived from the response's identity, so both workers write the same
//! bytes.
//!
//! Not here: the replay of a sequence (`engine`), the events (`http`).

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use warmpath_common::headers;
use warmpath_common::ids::Token;
use warmpath_common::journal::{LINE_START, MARK_ALONE};
use warmpath_worker_output::logprobs::{TokenLogprob, TokenProbabilities};

use crate::engine::{FinishReason, PastToken, SampledToken, Sampling};
use crate::error::RequestError;

/// Number of tokens of a choice in one line before a response in one piece.
///
/// Source: a continuation computes at most this many tokens of each choice again, and there are a sixteenth of the
/// lines of a stream.
const LINE_TOKENS: u32 = 16;

/// Start of the reason of a choice's end, after the tokens of a line.
///
/// Source: a worker that does not know it refuses the line, because no token contains it. So no worker continues a
/// choice that has ended.
const END_START: char = '!';

/// Identity of a response. Its ids, its time and, without a client's seed, its random numbers are derived from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseIdentity {
    id: String,
    /// Time of its start. Units: seconds since 1970.
    pub created: u64,
}

impl ResponseIdentity {
    /// Returns a new identity.
    pub fn fresh() -> Self {
        let created_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { id: uuid::Uuid::new_v4().simple().to_string(), created: created_s }
    }

    /// Returns the identity that a router gave: 32 hexadecimal digits, a dot, seconds since 1970.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, created) = text.split_once('.')?;
        let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then_some(Self { id: id.to_owned(), created: created.parse().ok()? })
    }

    /// Returns the response's id, without a dialect's prefix.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the id of one of its parts. Shape: 32 hexadecimal digits.
    pub fn part_id(&self, kind: &str, idx: usize) -> String {
        let mut id = self.hash(kind, idx).to_hex().to_string();
        id.truncate(32);
        id
    }

    /// Returns the seed of its random numbers; never the one that llama.cpp replaces by a random seed.
    pub fn seed(&self) -> u32 {
        let hash = self.hash("seed", 0);
        let seed = u32::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"));
        seed >> 1
    }

    fn hash(&self, kind: &str, idx: usize) -> blake3::Hash {
        blake3::Hasher::new()
            .update(self.id.as_bytes())
            .update(kind.as_bytes())
            .update(&(idx as u64).to_le_bytes())
            .finalize()
    }
}

/// A router's instructions for the response to a request.
#[derive(Debug, Clone)]
pub struct RouterInstructions {
    /// Its identity.
    pub identity: ResponseIdentity,
    /// Whether the router keeps its journal.
    pub wants_journal: bool,
    /// Response so far, which is continued; `None` for a new one.
    pub past: Option<PastOutput>,
}

impl RouterInstructions {
    /// Returns the instructions of a request without a router.
    pub fn nothing() -> Self {
        Self { identity: ResponseIdentity::fresh(), wants_journal: false, past: None }
    }
}

/// Earlier part of a response.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PastOutput {
    /// Choices that have begun.
    pub choices: Vec<PastChoice>,
    /// Reused prompt tokens that were reported to the client; `None` if none were reported.
    pub cached_tokens: Option<u32>,
}

/// Earlier part of a choice.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PastChoice {
    /// Number of writes that the client already has.
    pub n_writes: u32,
    /// Tokens of these writes.
    pub tokens: Vec<PastToken>,
    /// Reason of its end; `None` if it goes on, or if an older worker did not report its end.
    pub ended: Option<FinishReason>,
}

impl PastOutput {
    /// Reads a journal's lines; `n_choices_max` limits the choices that it may name.
    ///
    /// Errors: `Field`, naming the header.
    pub fn parse(lines: &[u8], n_choices_max: usize) -> Result<Self, RequestError> {
        let refuse = || RequestError::field(headers::JOURNAL_BYTES, "the journal cannot be read");
        let text = std::str::from_utf8(lines).map_err(|_| refuse())?;
        let mut past_output = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let (choice, content) = line.split_once(' ').ok_or_else(refuse)?;
            let choice: usize = choice.parse().map_err(|_| refuse())?;
            if choice >= n_choices_max {
                return Err(refuse());
            }
            if choice >= past_output.choices.len() {
                past_output.choices.resize_with(choice + 1, PastChoice::default);
            }
            let choice = &mut past_output.choices[choice];
            choice.n_writes += 1;
            let (tokens, end) = match content.split_once(END_START) {
                Some((tokens, name)) => (tokens, Some(named_end(name).ok_or_else(refuse)?)),
                None => (content, None),
            };
            for token in tokens.split(',').filter(|token| !token.is_empty()) {
                // No token follows an end.
                let token = past_token(token).filter(|_| choice.ended.is_none());
                choice.tokens.push(token.ok_or_else(refuse)?);
            }
            choice.ended = end.or(choice.ended);
        }
        Ok(past_output)
    }

    /// Returns the tokens of a choice so far.
    pub fn tokens(&self, choice: usize) -> &[PastToken] {
        self.choices.get(choice).map_or(&[], |choice| &choice.tokens)
    }

    /// Returns the reason of a choice's end; `None` if it goes on.
    pub fn end(&self, choice: usize) -> Option<FinishReason> {
        self.choices.get(choice)?.ended
    }

    /// Checks that the earlier part is valid for a request of `n_choices` and a vocabulary.
    ///
    /// Errors: `Field`, naming the header.
    pub fn check(&self, n_choices: usize, n_vocab: u32) -> Result<(), RequestError> {
        let are_known = |likely: &TokenProbabilities| likely.top.iter().all(|likely| likely.token < n_vocab);
        let is_known = |past_token: &PastToken| {
            past_token.sampled.token < n_vocab && past_token.probabilities.as_ref().is_none_or(are_known)
        };
        let fits =
            self.choices.len() <= n_choices && self.choices.iter().flat_map(|choice| &choice.tokens).all(is_known);
        let reason = "the journal does not fit the request or the model";
        if fits { Ok(()) } else { Err(RequestError::field(headers::JOURNAL_BYTES, reason)) }
    }
}

/// Parses a token: its number; after an `x` the number of draws, unless that is 1; after a colon its log probability
/// and those of the most likely tokens, if the response has them.
fn past_token(text: &str) -> Option<PastToken> {
    let (sampled, probabilities) = match text.split_once(':') {
        Some((sampled, probabilities)) => (sampled, Some(probabilities)),
        None => (text, None),
    };
    let (token, n_draws) = sampled.split_once('x').unwrap_or((sampled, "1"));
    let token: Token = token.parse().ok()?;
    let n_draws = n_draws.parse::<u8>().ok().filter(|n_draws| *n_draws <= 2)?;
    let probabilities = match probabilities {
        Some(text) => Some(token_probabilities(token, text)?),
        None => None,
    };
    Some(PastToken { sampled: SampledToken { token, n_draws }, probabilities })
}

fn token_probabilities(token: Token, text: &str) -> Option<TokenProbabilities> {
    let logprob = |text: &str| text.parse().ok().filter(|logprob: &f32| !logprob.is_nan());
    let mut parts = text.split('/');
    let chosen_token = TokenLogprob { token, logprob: logprob(parts.next()?)? };
    let likely = |part: &str| {
        let (token, text) = part.split_once(':')?;
        Some(TokenLogprob { token: token.parse().ok()?, logprob: logprob(text)? })
    };
    Some(TokenProbabilities { chosen: chosen_token, top: parts.map(likely).collect::<Option<_>>()? })
}

/// Writes a token as [`past_token`] reads it.
fn write_token(out: &mut String, sampled_token: SampledToken, probabilities: Option<&TokenProbabilities>) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{}", sampled_token.token);
    if sampled_token.n_draws != 1 {
        let _ = write!(out, "x{}", sampled_token.n_draws);
    }
    let Some(TokenProbabilities { chosen, top }) = probabilities else { return };
    let _ = write!(out, ":{}", chosen.logprob);
    for likely in top {
        let _ = write!(out, "/{}:{}", likely.token, likely.logprob);
    }
}

/// Returns the reason of a choice's end from its name in a line; `None` for an unknown name.
fn named_end(name: &str) -> Option<FinishReason> {
    let all = [FinishReason::EndOfGeneration, FinishReason::StopText, FinishReason::Length];
    all.into_iter().find(|reason| end_name(*reason) == name)
}

/// Returns the name of a reason as [`named_end`] reads it.
fn end_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndOfGeneration => "end",
        FinishReason::StopText => "stop",
        FinishReason::Length => "length",
    }
}

/// Returns `exact` if a continuation gives the same tokens as the uninterrupted response, otherwise `approximate`. It
/// is exact if the state of the samplers depends only on tokens.
pub fn exactness(sampling: &Sampling) -> &'static str {
    let draws_apart = sampling.xtc_probability > 0.0 && sampling.xtc_threshold <= 0.5;
    if sampling.mirostat == 0 && !draws_apart { "exact" } else { "approximate" }
}

/// Journal lines of a response in one piece. A router receives them before the response.
#[derive(Debug)]
pub struct JournalLines {
    /// Receiver of the lines. The task that reads them also computes the response, so few lines wait.
    pub receiver: mpsc::UnboundedReceiver<String>,
    /// Exactness of a continuation, as in [`exactness`].
    pub exactness: &'static str,
}

/// Writer of a response's journal.
#[derive(Debug)]
pub struct Journal {
    choices: Vec<PendingLine>,
}

/// Part of a choice's journal that is not written yet.
#[derive(Debug, Clone, Default)]
struct PendingLine {
    /// Number of further writes that the client already has.
    n_writes_sent: u32,
    /// Tokens since the last line, in the format of a line.
    tokens: String,
    /// Number of these tokens.
    n_tokens: u32,
}

impl Journal {
    /// Returns the journal of a response with `n_choices`, which may continue another.
    pub fn new(n_choices: usize, past_output: Option<&PastOutput>) -> Self {
        let n_writes_sent = |idx: usize| {
            past_output.and_then(|past_output| past_output.choices.get(idx)).map_or(0, |choice| choice.n_writes)
        };
        let pending = |idx| PendingLine { n_writes_sent: n_writes_sent(idx), ..PendingLine::default() };
        Self { choices: (0..n_choices).map(pending).collect() }
    }

    /// Records a token of a choice, with its log probabilities if the response has them.
    pub fn sampled(&mut self, choice: usize, sampled_token: SampledToken, probabilities: Option<&TokenProbabilities>) {
        let pending = &mut self.choices[choice];
        if !pending.tokens.is_empty() {
            pending.tokens.push(',');
        }
        write_token(&mut pending.tokens, sampled_token, probabilities);
        pending.n_tokens += 1;
    }

    /// Returns the next line of a choice before a response in one piece, once it has enough tokens; `end` is the reason
    /// of the choice's end.
    pub fn next_line(&mut self, choice: usize, end: Option<FinishReason>) -> Option<String> {
        (self.choices[choice].n_tokens >= LINE_TOKENS).then(|| self.line(choice, end))
    }

    /// Returns the line of a choice's tokens since the last one, and of its end.
    fn line(&mut self, choice: usize, end: Option<FinishReason>) -> String {
        let pending = &mut self.choices[choice];
        let end = end.map(|reason| format!("{END_START}{}", end_name(reason))).unwrap_or_default();
        let line = format!("{LINE_START} {choice} {}{end}\n", pending.tokens);
        pending.tokens.clear();
        pending.n_tokens = 0;
        line
    }

    /// Appends the journal line that follows a choice's events in `out`; the line reports the choice's `end`. If
    /// an earlier worker has sent these events to the client, empties `out` instead.
    pub fn end_write_of(&mut self, choice: usize, end: Option<FinishReason>, out: &mut Vec<u8>) {
        let line = self.line(choice, end);
        let pending = &mut self.choices[choice];
        if pending.n_writes_sent > 0 {
            pending.n_writes_sent -= 1;
            out.clear();
        } else {
            out.extend_from_slice(line.as_bytes());
        }
    }
}

/// Ends a write that belongs to no choice.
pub fn end_write(out: &mut Vec<u8>) {
    out.extend_from_slice(MARK_ALONE);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(token: Token, n_draws: u8) -> PastToken {
        PastToken { sampled: SampledToken { token, n_draws }, probabilities: None }
    }

    fn likely(token: PastToken, logprob: f32, top: &[(Token, f32)]) -> PastToken {
        let chosen = TokenLogprob { token: token.sampled.token, logprob };
        let top = top.iter().map(|&(token, logprob)| TokenLogprob { token, logprob }).collect();
        PastToken { probabilities: Some(TokenProbabilities { chosen, top }), ..token }
    }

    fn record(journal: &mut Journal, choice: usize, tokens: &[PastToken]) {
        tokens.iter().for_each(|past| journal.sampled(choice, past.sampled, past.probabilities.as_ref()));
    }

    #[test]
    fn a_journal_is_read_back_as_written_without_its_events() {
        let mut journal = Journal::new(2, None);
        let mut lines = Vec::new();
        let mut write = |journal: &mut Journal, choice, tokens: &[PastToken]| {
            record(journal, choice, tokens);
            let mut out = b"data: 1\n\n".to_vec();
            journal.end_write_of(choice, None, &mut out);
            let line = out.strip_prefix(b"data: 1\n\n:wp ").expect("a line").to_vec();
            lines.extend(line);
        };
        let impossible = likely(token(7, 1), -0.1, &[(7, -0.1), (3, -1e-30), (4, f32::NEG_INFINITY)]);
        write(&mut journal, 1, &[impossible.clone(), token(8, 0)]);
        write(&mut journal, 0, &[likely(token(70_000, 2), -3.25, &[])]);
        write(&mut journal, 1, &[]);
        let past = PastOutput::parse(&lines, 2).expect("it can be read");
        let choice = |n_writes, tokens: &[PastToken]| PastChoice { n_writes, tokens: tokens.to_vec(), ended: None };
        let first = choice(1, &[likely(token(70_000, 2), -3.25, &[])]);
        assert_eq!(past.choices, [first, choice(2, &[impossible, token(8, 0)])]);
        let mut again = Journal::new(2, Some(&past));
        for (choice, is_had) in [(1, true), (1, true), (0, true), (0, false), (1, false)] {
            let mut out = b"data: 1\n\n".to_vec();
            again.end_write_of(choice, None, &mut out);
            assert_eq!(out.is_empty(), is_had);
        }
    }

    #[test]
    fn the_end_of_a_choice_is_read_back_as_written() {
        let named = [
            (FinishReason::EndOfGeneration, "!end"),
            (FinishReason::StopText, "!stop"),
            (FinishReason::Length, "!length"),
        ];
        for (reason, mark) in named {
            let mut journal = Journal::new(2, None);
            let mut lines = Vec::new();
            let last = likely(token(8, 2), -0.5, &[(9, -1.5)]);
            record(&mut journal, 1, &[token(7, 1), last.clone()]);
            journal.end_write_of(1, Some(reason), &mut lines);
            // The write with the finish reason has no token of its own.
            journal.end_write_of(1, Some(reason), &mut lines);
            record(&mut journal, 0, &[token(5, 1)]);
            journal.end_write_of(0, None, &mut lines);
            let lines = String::from_utf8(lines).expect("text").replace(":wp ", "");
            assert_eq!(lines, format!("1 7,8x2:-0.5/9:-1.5{mark}\n1 {mark}\n0 5\n"));
            let past = PastOutput::parse(lines.as_bytes(), 2).expect("it can be read");
            assert_eq!([0, 1, 2].map(|choice| past.end(choice)), [None, Some(reason), None]);
            assert_eq!((past.tokens(1), past.choices[1].n_writes), (&[token(7, 1), last][..], 2));
        }
        // A response of which only the prompt was wanted.
        let past = PastOutput::parse(b"0 !length\n", 1).expect("it can be read");
        assert!(past.tokens(0).is_empty());
        assert_eq!(past.end(0), Some(FinishReason::Length));
    }

    #[test]
    fn an_invalid_journal_is_refused() {
        for lines in ["x", "0", "2 1", "0 1,x", "0 -1", "0 1x3", "0 1x", "18446744073709551616 1", "0 99999999999"]
            .into_iter()
            .chain(["0 1:", "0 1:x", "0 1:NaN", "0 1:-1/", "0 1:-1/2", "0 1:-1/2:", "0 1:-1/x:-1", "0 1:-1/2:NaN"])
            .chain(["0 1!", "0 1!x", "0 1!length,2", "0 1!length!length", "0 1!length\n0 2", "0 !end\n1 3\n0 2!end"])
        {
            assert!(PastOutput::parse(lines.as_bytes(), 2).is_err(), "{lines}");
        }
        assert!(PastOutput::parse(b"\xff", 2).is_err());
        let past = PastOutput::parse(b"1 9\n", 2).expect("it can be read");
        assert!(past.check(2, 10).is_ok() && past.check(1, 10).is_err() && past.check(2, 9).is_err());
        let past = PastOutput::parse(b"0 1:-1/9:-1\n", 1).expect("it can be read");
        assert!(past.check(1, 10).is_ok() && past.check(1, 9).is_err());
    }

    #[test]
    fn before_a_whole_response_there_is_a_line_for_every_few_tokens_of_a_choice() {
        let mut journal = Journal::new(2, None);
        let mut lines = String::new();
        for n in 0..2 * LINE_TOKENS + 3 {
            for choice in [0, 1] {
                record(&mut journal, choice, &[token(n + 100 * choice as u32, 1)]);
                lines.extend(journal.next_line(choice, None));
            }
        }
        assert_eq!(lines.lines().count(), 4);
        let past = PastOutput::parse(lines.replace(LINE_START, "").replace("\n ", "\n").trim_start().as_bytes(), 2);
        let past = past.expect("it can be read");
        let tokens = |from: Token| (from..from + 2 * LINE_TOKENS).map(|n| token(n, 1)).collect::<Vec<_>>();
        assert_eq!([past.tokens(0), past.tokens(1)], [tokens(0), tokens(100)]);
    }

    #[test]
    fn values_derived_from_an_identity_are_stable_and_distinct() {
        let identity = ResponseIdentity::parse("0123456789abcdef0123456789abcdef.17").expect("it is one");
        assert_eq!((identity.part_id("item", 1), identity.seed()), (identity.part_id("item", 1), identity.seed()));
        assert_ne!(identity.part_id("item", 1), identity.part_id("item", 2));
        assert_ne!(identity.part_id("item", 1), identity.part_id("call", 1));
        assert_eq!((identity.part_id("item", 1).len(), identity.created), (32, 17));
        for text in ["", "0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdex.1", "01.1", "."] {
            assert_eq!(ResponseIdentity::parse(text), None, "{text}");
        }
    }
}
