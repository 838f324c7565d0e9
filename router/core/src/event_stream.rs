//! A stream of server-sent events: where each event ends, what it contains, and whether the response is complete.
//!
//! A client parses whole events, so a relay passes on whole events. The last event of a dialect completes a response;
//! the end of the connection proves nothing, since a server that fails may close it cleanly.

mod content;
pub(crate) mod splitter;

use std::borrow::Cow;

use memchr::memmem::Finder;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

pub use self::content::{EndMark, StreamProgress};
pub use self::splitter::{Ends, Splitter};
use crate::stock::reported_error;
use crate::stock::usage::Usage;

/// State of a stream so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StreamState {
    /// Token counts and times, as far as the stream has reported them.
    pub usage: Usage,
    /// Events with data, except `[DONE]` and events that keep the stream alive.
    pub n_events: u32,
    /// Whether a part of the response has arrived, or its end.
    pub has_begun: bool,
    /// Whether the dialect's last event has arrived.
    pub is_complete: bool,
    /// Whether the server has reported an error.
    pub has_failed: bool,
    /// HTTP status that the error names; `None` if it names none.
    pub error_status: Option<u16>,
    /// Choices that have ended, also before this stream continued their response; counted for [`EndMark::Stop`] only.
    pub n_ended_choices: u32,
}

/// Reader of a stream's events.
#[derive(Debug, Clone)]
pub struct EventReader {
    mark: EndMark,
    state: StreamState,
    /// Whether the choice's last object had a `finish_reason`; tracked for [`EndMark::DoneOrFinished`] only.
    is_finished: bool,
    names: FieldNames,
}

/// Finders of the names of fields for which an event is parsed, made once because every event is searched.
#[derive(Debug, Clone)]
struct FieldNames {
    usage: Finder<'static>,
    timings: Finder<'static>,
    error: Finder<'static>,
}

/// One event, assembled from its lines.
#[derive(Default)]
struct Event<'a> {
    name: Option<&'a [u8]>,
    content: Option<Cow<'a, [u8]>>,
    /// Value of its field `error`, in which older llama-servers report errors.
    error: Option<&'a [u8]>,
}

/// The fields of an event's JSON that are read here.
#[derive(Default, Deserialize)]
struct Fields<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    error: Option<Value>,
}

/// The field of llama-server's own objects that is read here; `response_fields` may leave it out in the last object.
#[derive(Deserialize)]
struct NativeFields {
    stop: Option<bool>,
}

/// The fields of an object of a chat or completion that are read here.
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
        let names = FieldNames {
            usage: Finder::new("\"usage\""),
            timings: Finder::new("\"timings\""),
            error: Finder::new("\"error\""),
        };
        Self { mark, state: StreamState::default(), is_finished: false, names }
    }

    /// Returns the reader of a stream that continues a response of which so many choices have ended.
    pub fn after(mut self, n_ended_choices: u32) -> Self {
        self.state.n_ended_choices = n_ended_choices;
        self
    }

    /// Reads whole events; returns the furthest progress that one of them shows.
    pub fn read(&mut self, events: &[u8]) -> StreamProgress {
        let mut progress = StreamProgress::Nothing;
        let mut event = Event::default();
        for line in lines(events) {
            if line.is_empty() {
                progress = progress.max(self.read_event(&std::mem::take(&mut event)));
            } else {
                event.add(line);
            }
        }
        progress
    }

    /// Counts an event that is too long to be read, and so to be held back.
    pub fn skip(&mut self) {
        self.state.n_events += 1;
        self.state.has_begun = true;
    }

    /// Returns the state of the stream so far.
    pub fn state(&self) -> StreamState {
        self.state
    }

    /// Returns whether the stream may end here: the response is complete, or the client has received an error.
    pub fn may_end(&self) -> bool {
        self.state.is_complete || self.state.has_failed
    }

    /// Returns whether only `[DONE]` is missing, which this server may leave out.
    pub fn lacks_only_done(&self) -> bool {
        self.is_finished && !self.may_end()
    }

    fn read_event(&mut self, event: &Event<'_>) -> StreamProgress {
        if let Some(error) = event.error {
            self.fail(serde_json::from_slice(error).ok().as_ref());
            return StreamProgress::Content;
        }
        let Some(content) = event.content.as_deref().map(<[u8]>::trim_ascii).filter(|content| !content.is_empty())
        else {
            return StreamProgress::Nothing;
        };
        if content == b"[DONE]" {
            self.state.is_complete |= !matches!(self.mark, EndMark::MessageStop | EndMark::Response);
            self.state.has_begun |= self.state.is_complete && !self.state.has_failed;
            return StreamProgress::Content;
        }
        // Most events are only searched: parsing each would cost more than relaying it.
        let mentions = |name: &Finder<'_>| name.find(content).is_some();
        if mentions(&self.names.usage) || mentions(&self.names.timings) {
            self.state.usage.read(content);
        }
        let is_named = matches!(self.mark, EndMark::MessageStop | EndMark::Response);
        let wants_type = is_named && event.name.is_none();
        let fields: Fields<'_> = if wants_type || mentions(&self.names.error) {
            serde_json::from_slice(content).unwrap_or_default()
        } else {
            Fields::default()
        };
        match self.mark {
            EndMark::Stop { n_choices } if fields.error.is_none() => self.read_native(content, n_choices),
            EndMark::DoneOrFinished => self.read_choices(content),
            EndMark::Done | EndMark::Stop { .. } | EndMark::MessageStop | EndMark::Response => {}
        }
        // Some servers name their events only in the field `type`.
        let kind = fields.kind.as_deref().map(str::as_bytes).filter(|_| is_named);
        let name = event.name.or(kind).unwrap_or_default();
        if fields.error.is_some() || name == b"error" {
            self.fail(fields.error.as_ref());
        }
        let mut progress = self.read_name(name);
        if progress == StreamProgress::Content && !self.state.has_begun && !self.may_end() {
            // Until then each event is parsed; there are few of them.
            progress = content::progress(self.mark, content);
        }
        self.state.has_begun |= progress == StreamProgress::Content && !self.state.has_failed;
        // The first `response.in_progress` is a part of the response; a repeated one keeps the stream alive.
        let is_second = name == b"response.in_progress" && self.state.n_events == 1;
        self.state.n_events += u32::from(progress > StreamProgress::Nothing || is_second);
        progress
    }

    /// Records an error that the server reports.
    fn fail(&mut self, error: Option<&Value>) {
        self.state.has_failed = true;
        self.state.error_status = error.and_then(reported_error::status);
    }

    fn read_name(&mut self, name: &[u8]) -> StreamProgress {
        match (self.mark, name) {
            (EndMark::MessageStop, b"ping") | (EndMark::Response, b"response.in_progress" | b"keepalive") => {
                return StreamProgress::Nothing;
            }
            (EndMark::MessageStop, b"message_start")
            | (EndMark::Response, b"response.created" | b"response.queued") => return StreamProgress::Opening,
            (EndMark::MessageStop, b"message_stop")
            | (EndMark::Response, b"response.completed" | b"response.incomplete") => self.state.is_complete = true,
            (EndMark::Response, b"response.failed") => self.state.has_failed = true,
            _ => {}
        }
        StreamProgress::Content
    }

    /// Reads an object of a chat or a completion with one choice. An object without choices, such as one with the
    /// usage, changes nothing.
    fn read_choices(&mut self, content: &[u8]) {
        let Ok(ChoiceFields { choices }) = serde_json::from_slice(content) else { return };
        if !choices.is_empty() {
            let ends = |choice: &Choice<'_>| choice.finish_reason.as_ref().is_some_and(|reason| !reason.is_empty());
            self.is_finished = choices.iter().all(|choice| choice.index == 0 && ends(choice));
        }
    }

    /// Reads an object of llama-server's own format: every object but a choice's last one contains `"stop": false`.
    fn read_native(&mut self, content: &[u8], n_choices: u32) {
        let Ok(NativeFields { stop }) = serde_json::from_slice(content) else { return };
        if stop != Some(false) {
            self.state.n_ended_choices = self.state.n_ended_choices.saturating_add(1);
            self.state.is_complete |= self.state.n_ended_choices >= n_choices;
        }
    }
}

impl<'a> Event<'a> {
    /// Adds a line to the event.
    ///
    /// Source: the HTML standard, "9.2.6 Interpreting an event stream".
    fn add(&mut self, line: &'a [u8]) {
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"event" => self.name = Some(value),
            b"error" => self.error = Some(value),
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

/// Returns the data of each of these whole events; `None` for an event without data, such as a comment.
pub fn contents(events: &[u8]) -> impl Iterator<Item = Option<Cow<'_, [u8]>>> {
    let mut event = Event::default();
    lines(events).filter_map(move |line| {
        if !line.is_empty() {
            event.add(line);
            return None;
        }
        let Event { content, error, .. } = std::mem::take(&mut event);
        let error = error.map(|error| Cow::from([&b"{\"error\":"[..], error, b"}"].concat()));
        Some(error.or(content))
    })
}

/// Returns whether the last event of a stream is complete except for its blank line: its data is JSON or `[DONE]`.
pub fn is_whole(event: &[u8]) -> bool {
    let mut fields = Event::default();
    lines(event).for_each(|line| fields.add(line));
    let content = fields.content.as_deref().map(<[u8]>::trim_ascii).unwrap_or_default();
    content == b"[DONE]" || serde_json::from_slice::<IgnoredAny>(content).is_ok()
}

/// Returns the lines of whole events, without their ends.
fn lines(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let end = memchr::memchr2(b'\n', b'\r', bytes)?;
        let line = &bytes[..end];
        let end_len = if bytes[end..].starts_with(b"\r\n") { 2 } else { 1 };
        bytes = &bytes[end + end_len..];
        Some(line)
    })
}

#[cfg(test)]
mod tests;
