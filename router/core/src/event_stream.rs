//! A stream of server-sent events: where each event ends, what it says, and whether the answer is complete.
//!
//! The idea: a client parses whole events, so a relay passes on whole events. The last event of a dialect completes an answer;
//! the end of the connection says nothing, since a server that fails may end it cleanly.

mod splitter;

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::IgnoredAny;

pub use self::splitter::{Ends, Splitter};
use crate::stock::usage::Usage;

/// Most unfinished choices of one stream that are told apart.
///
/// Source: OpenAI's API has at most 128 choices of one prompt; several prompts multiply them.
const CHOICES_MAX: usize = 4096;

/// What completes a stream, by dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndMark {
    /// `data: [DONE]`: OpenAI's chats and completions.
    Done,
    /// The same of a server that may leave `[DONE]` out: then an object with the `finish_reason` of the only choice.
    DoneOrFinished,
    /// The last object of every choice, whose `stop` is not `false`: llama-server's own completions, which have no `[DONE]`.
    Stop,
    /// `message_stop`: Anthropic's messages.
    MessageStop,
    /// `response.completed`, `response.incomplete` or `response.failed`: OpenAI's responses.
    Response,
}

/// What events say of the answer's progress, the greatest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Says {
    /// Nothing: comments, events without data, Anthropic's `ping`.
    Nothing,
    /// That the answer has begun, with nothing generated yet.
    Opening,
    /// Something of the answer, its end or an error.
    Content,
}

/// What a stream has said so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Told {
    /// Tokens and times, as far as the stream has told them.
    pub usage: Usage,
    /// Events with data, `[DONE]` aside.
    pub n_events: u32,
    /// Whether the dialect's last event has come.
    pub is_complete: bool,
    /// Whether the server has told of an error.
    pub has_failed: bool,
}

/// Reads the events of a stream.
#[derive(Debug, Clone)]
pub struct EventReader {
    mark: EndMark,
    told: Told,
    /// Choices that have begun and not ended; known where [`EndMark::Stop`] ends them.
    open_choices: BTreeSet<u64>,
    /// Whether the last object about the choice has told why it ended; known for [`EndMark::DoneOrFinished`].
    is_finished: bool,
}

/// One event, put together from its lines.
#[derive(Default)]
struct Event<'a> {
    name: Option<&'a [u8]>,
    content: Option<Cow<'a, [u8]>>,
    /// Whether it has the field `error`, by which older llama-servers tell of errors.
    has_error_field: bool,
}

/// The fields of an event's JSON that are of use here.
#[derive(Default, Deserialize)]
struct Fields<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    error: Option<IgnoredAny>,
}

/// The fields of llama-server's own objects that are of use here; `response_fields` may leave out both in the last object.
#[derive(Deserialize)]
struct NativeFields {
    index: Option<u64>,
    stop: Option<bool>,
}

/// The fields of a chat's or completion's object that are of use here.
#[derive(Deserialize)]
struct ChoiceFields<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

impl EventReader {
    /// Returns the reader of a stream that ends with `mark`.
    pub fn new(mark: EndMark) -> Self {
        Self { mark, told: Told::default(), open_choices: BTreeSet::new(), is_finished: false }
    }

    /// Reads whole events; returns the most that one of them says.
    pub fn read(&mut self, events: &[u8]) -> Says {
        let mut says = Says::Nothing;
        let mut event = Event::default();
        for line in lines(events) {
            if line.is_empty() {
                says = says.max(self.read_event(&std::mem::take(&mut event)));
            } else {
                event.add(line);
            }
        }
        says
    }

    /// Counts an event that is too long to be looked at.
    pub fn skip(&mut self) {
        self.told.n_events += 1;
    }

    /// Returns what the stream has said.
    pub fn told(&self) -> Told {
        self.told
    }

    /// Returns whether the stream may end here: the answer is complete, or the client has been told that it is not.
    pub fn may_end(&self) -> bool {
        self.told.is_complete || self.told.has_failed
    }

    /// Returns whether nothing is missing but `[DONE]`, which this server may leave out.
    pub fn lacks_only_done(&self) -> bool {
        self.is_finished && !self.may_end()
    }

    fn read_event(&mut self, event: &Event<'_>) -> Says {
        if event.has_error_field {
            self.told.has_failed = true;
            return Says::Content;
        }
        let Some(content) = event.content.as_deref().map(<[u8]>::trim_ascii).filter(|content| !content.is_empty())
        else {
            return Says::Nothing;
        };
        if content == b"[DONE]" {
            self.told.is_complete |= !matches!(self.mark, EndMark::MessageStop | EndMark::Response);
            return Says::Content;
        }
        self.told.n_events += 1;
        let mentions = |name: &[u8]| content.windows(name.len()).any(|window| window == name);
        if mentions(b"\"usage\"") || mentions(b"\"timings\"") {
            self.told.usage.read(content);
        }
        let is_named = matches!(self.mark, EndMark::MessageStop | EndMark::Response);
        let wants_type = is_named && event.name.is_none();
        let fields: Fields<'_> = if wants_type || mentions(b"\"error\"") {
            serde_json::from_slice(content).unwrap_or_default()
        } else {
            Fields::default()
        };
        match self.mark {
            EndMark::Stop => self.read_native(content),
            EndMark::DoneOrFinished => self.read_choices(content),
            EndMark::Done | EndMark::MessageStop | EndMark::Response => {}
        }
        let kind = fields.kind.as_deref().map(str::as_bytes).filter(|_| is_named);
        let name = event.name.or(kind).unwrap_or_default();
        self.told.has_failed |= fields.error.is_some() || name == b"error";
        self.read_name(name)
    }

    fn read_name(&mut self, name: &[u8]) -> Says {
        match (self.mark, name) {
            (EndMark::MessageStop, b"ping") => return Says::Nothing,
            (EndMark::MessageStop, b"message_start")
            | (EndMark::Response, b"response.created" | b"response.in_progress" | b"response.queued") => {
                return Says::Opening;
            }
            (EndMark::MessageStop, b"message_stop")
            | (EndMark::Response, b"response.completed" | b"response.incomplete") => self.told.is_complete = true,
            (EndMark::Response, b"response.failed") => self.told.has_failed = true,
            _ => {}
        }
        Says::Content
    }

    /// Reads an object of a chat or a completion with one choice; one without choices, which may tell the usage, changes nothing.
    fn read_choices(&mut self, content: &[u8]) {
        let Ok(ChoiceFields { choices }) = serde_json::from_slice(content) else { return };
        if !choices.is_empty() {
            let ends = |choice: &Choice<'_>| choice.finish_reason.as_ref().is_some_and(|reason| !reason.is_empty());
            self.is_finished = choices.iter().all(|choice| choice.index == 0 && ends(choice));
        }
    }

    /// Reads an object of llama-server's own: every object but a choice's last one says `"stop": false`.
    fn read_native(&mut self, content: &[u8]) {
        let Ok(NativeFields { index, stop }) = serde_json::from_slice(content) else { return };
        if stop == Some(false) {
            self.told.is_complete = false;
            if self.open_choices.len() < CHOICES_MAX {
                self.open_choices.insert(index.unwrap_or_default());
            }
            return;
        }
        match index {
            Some(index) => drop(self.open_choices.remove(&index)),
            None => drop(self.open_choices.pop_first()),
        }
        self.told.is_complete = self.open_choices.is_empty();
    }
}

impl<'a> Event<'a> {
    /// Source: the HTML standard, "9.2.6 Interpreting an event stream".
    fn add(&mut self, line: &'a [u8]) {
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"event" => self.name = Some(value),
            b"error" => self.has_error_field = true,
            b"data" => match &mut self.content {
                None => self.content = Some(value.into()),
                Some(content) => {
                    content.to_mut().push(b'\n');
                    content.to_mut().extend_from_slice(value);
                }
            },
            _ => {}
        }
    }
}

/// Returns whether the last event of a stream lacks nothing but its end: its data is JSON or `[DONE]`.
pub fn is_whole(event: &[u8]) -> bool {
    let mut whole = Event::default();
    lines(event).for_each(|line| whole.add(line));
    let content = whole.content.as_deref().map(<[u8]>::trim_ascii).unwrap_or_default();
    content == b"[DONE]" || serde_json::from_slice::<IgnoredAny>(content).is_ok()
}

/// Returns the lines of whole events, without their ends.
fn lines(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'))?;
        let line = &bytes[..end];
        let end_len = if bytes[end..].starts_with(b"\r\n") { 2 } else { 1 };
        bytes = &bytes[end + end_len..];
        Some(line)
    })
}

#[cfg(test)]
mod tests;
