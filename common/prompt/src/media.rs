//! Images and audio in chats: where they stand in the rendered prompt, and which tokens stand for them.
//!
//! A template gets a mark in a medium's place, as text: every template renders it where it renders the message's texts,
//! as in llama-server. The mark is random, so that no client writes it. The rendered text is cut at the marks, and the
//! tokens of the media stand between those of the texts.

mod audio;
mod images;
mod reading;

use std::fmt::Debug;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, LazyLock};

use memchr::memmem;
use serde_json::{Map, Value as Json};
use warmpath_common::history::new_message;
use warmpath_common::ids::Token;
use warmpath_common::media::{ImageSize, LayoutPart, MediaLayout, MediaSize, RUN_TOKENS_MIN, run_tokens};
use warmpath_common::model::{MediaReading, Modalities};
use warmpath_common::openai::ChatPrompt;
use warmpath_common::prompts::MEDIA_MARKER;

use crate::error::PromptError;
use crate::vocabulary::partition::Piece;

use images::IMAGE_SIDE_MAX;
pub(crate) use reading::{Budget, check_number};
pub use reading::{KnownMedia, MediaContent, Medium};

/// A model's way of reading media.
pub trait MediaReader: Debug + Send + Sync {
    /// Returns which media it reads, and the fingerprint of the way.
    fn reading(&self) -> MediaReading;

    /// Returns the tokens of a medium of a size; `None` if they are not known here.
    fn layout(&self, size: MediaSize) -> Option<Arc<MediaLayout>>;
}

/// A model's reader of media, with the media that have been read.
#[derive(Debug)]
pub(crate) struct Media {
    pub reader: Arc<dyn MediaReader>,
    pub known: KnownMedia,
}

/// A kind of media.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MediaKind {
    Image,
    Audio,
}

impl MediaKind {
    /// Returns the kind of a part of a message's content; `None` if it is no medium.
    pub fn of(part: &Json) -> Option<Self> {
        match part.get("type")?.as_str()? {
            "image_url" => Some(Self::Image),
            "input_audio" => Some(Self::Audio),
            _ => None,
        }
    }

    /// Returns the type of such parts.
    fn part_type(self) -> &'static str {
        match self {
            Self::Image => "image_url",
            Self::Audio => "input_audio",
        }
    }

    /// Returns the kind's name in a sentence about one medium.
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
        }
    }

    /// Returns whether a model of these modalities reads such media.
    pub fn is_read(self, modalities: Modalities) -> bool {
        match self {
            Self::Image => modalities.vision,
            Self::Audio => modalities.audio,
        }
    }
}

/// Reason why a medium cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MediaError {
    /// The model, or this program, cannot read it.
    #[error("{0}")]
    Unread(String),
    /// It can be read, but the prompt's media are too much.
    #[error("{0}")]
    TooMuch(String),
}

impl From<String> for MediaError {
    fn from(reason: String) -> Self {
        Self::Unread(reason)
    }
}

/// A run of media tokens in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaRun {
    /// Place of its first token in the prompt.
    pub start: u32,
    /// Number of its tokens.
    pub n_tokens: u32,
    /// Place among the medium's runs.
    pub nth: u32,
    /// The medium.
    pub medium: Arc<Medium>,
}

impl MediaRun {
    /// Returns the place behind its last token.
    pub fn end(&self) -> u32 {
        self.start + self.n_tokens
    }
}

/// Tokens of a prompt, and the media among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptTokens {
    /// Tokens.
    pub tokens: Vec<Token>,
    /// Runs of media tokens, in their order.
    pub runs: Vec<MediaRun>,
    /// Medium whose tokens are not known here: the prompt goes on with it. `None` for a whole prompt.
    pub unknown: Option<Arc<Medium>>,
}

impl PromptTokens {
    /// Returns the same tokens if they are the whole prompt.
    ///
    /// Errors: the reason why they are not.
    pub fn whole(self) -> Result<Self, String> {
        let Some(medium) = &self.unknown else { return Ok(self) };
        let hint = match medium.size {
            MediaSize::Image(_) => "",
            MediaSize::Audio(_) => "; it may be too short or too long for it",
        };
        Err(format!("{} cannot be read by this model's projector{hint}", medium.size))
    }

    /// Appends the tokens of a medium; returns whether they are known.
    pub(crate) fn push_medium(&mut self, medium: &Arc<Medium>, reader: &dyn MediaReader) -> bool {
        let Some(layout) = reader.layout(medium.size) else {
            self.unknown = Some(Arc::clone(medium));
            return false;
        };
        let mut n_runs = 0;
        for part in &layout.parts {
            match part {
                LayoutPart::Text(tokens) => self.tokens.extend_from_slice(tokens),
                LayoutPart::Run(n_tokens) => {
                    debug_assert!(*n_tokens >= RUN_TOKENS_MIN, "layouts were checked");
                    let start = u32::try_from(self.tokens.len()).unwrap_or(u32::MAX);
                    self.tokens.extend(run_tokens(&reader.reading().fingerprint, &medium.hash, n_runs, *n_tokens));
                    self.runs.push(MediaRun { start, n_tokens: *n_tokens, nth: n_runs, medium: Arc::clone(medium) });
                    n_runs += 1;
                }
            }
        }
        true
    }
}

/// First of the private characters of which marks consist: one for each value of a byte.
///
/// No control token begins or ends with them, so they are never taken for a part of one.
const FIRST_MARK: u32 = 0xe000;

/// Beginning of every mark.
static MARK: LazyLock<String> = LazyLock::new(|| {
    let random = [RandomState::new().hash_one(0), RandomState::new().hash_one(1)];
    random.iter().flat_map(|number| number.to_le_bytes()).map(mark_of).collect()
});

fn mark_of(byte: u8) -> char {
    char::from_u32(FIRST_MARK + u32::from(byte)).expect("private characters begin there")
}

/// Returns the text that marks the place of a chat's medium.
pub(crate) fn mark(nth: usize) -> String {
    // A chat with more media has been refused.
    let nth = u8::try_from(nth).unwrap_or(u8::MAX);
    format!("{}{}", *MARK, mark_of(nth))
}

/// Returns the media in a conversation, each with the index of its message and its kind.
pub(crate) fn parts(messages: &[Map<String, Json>]) -> impl Iterator<Item = (usize, MediaKind, &Json)> {
    messages.iter().enumerate().flat_map(|(index, message)| {
        let parts = message.get("content").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
        parts.iter().filter_map(move |part| Some((index, MediaKind::of(part)?, part)))
    })
}

/// Checks that a model of these modalities reads such media in chats.
///
/// Errors: `Unread`.
pub(crate) fn check_read(kind: MediaKind, modalities: Modalities) -> Result<(), MediaError> {
    if kind.is_read(modalities) {
        return Ok(());
    }
    let kind = kind.part_type();
    let reason = format!("content parts of type \"{kind}\" are not supported by this model, which reads {modalities}");
    Err(MediaError::Unread(reason))
}

/// Returns whether a file of this size may be read.
pub fn is_readable(size: MediaSize) -> bool {
    match size {
        MediaSize::Image(ImageSize { width, height }) => {
            [width, height].iter().all(|side| (1..=IMAGE_SIDE_MAX).contains(side))
        }
        MediaSize::Audio(size) => audio::is_possible(size),
    }
}

/// Returns whether a chat has media.
///
/// Cost: a look at each part of each message.
pub fn has_media(chat: &ChatPrompt) -> bool {
    parts(&chat.messages).next().is_some()
}

/// Cuts the texts among `pieces` at the marks.
pub(crate) fn cut(pieces: Vec<Piece>, text: &[u8]) -> Vec<Piece> {
    let finder = memmem::Finder::new(MARK.as_bytes());
    let mut cut = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let Piece::Text(mut range) = piece else {
            cut.push(piece);
            continue;
        };
        while let Some(at) = finder.find(&text[range.clone()]) {
            let start = range.start + at;
            let after = start + MARK.len();
            let end = after + MARK_BYTES;
            // Only these bytes are decoded: a text may have many marks.
            let nth = text[..range.end].get(after..end).and_then(|nth| std::str::from_utf8(nth).ok());
            let nth = nth.and_then(|nth| nth.chars().next());
            let Some(nth) = nth.and_then(|nth| u32::from(nth).checked_sub(FIRST_MARK)) else { break };
            if start > range.start {
                cut.push(Piece::Text(range.start..start));
            }
            cut.push(Piece::Media(nth as usize));
            range.start = end;
        }
        if !range.is_empty() {
            cut.push(Piece::Text(range));
        }
    }
    cut
}

/// Length of one of the marks' characters in UTF-8.
const MARK_BYTES: usize = 3;

/// Returns a client's text with marks in place of the [`MEDIA_MARKER`]s, and their number.
pub(crate) fn marked(text: &str) -> (String, usize) {
    let mut marked_text = String::with_capacity(text.len());
    let mut n_marks = 0;
    for (idx, part) in text.split(MEDIA_MARKER).enumerate() {
        if idx > 0 {
            marked_text.push_str(&mark(n_marks));
            n_marks += 1;
        }
        marked_text.push_str(part);
    }
    (marked_text, n_marks)
}

/// Returns a rendered text with [`MEDIA_MARKER`] in place of the marks.
pub(crate) fn show(text: String) -> String {
    if !text.contains(MARK.as_str()) {
        return text;
    }
    let mut shown_text = String::with_capacity(text.len());
    for (idx, part) in text.split(MARK.as_str()).enumerate() {
        if idx == 0 {
            shown_text.push_str(part);
            continue;
        }
        shown_text.push_str(MEDIA_MARKER);
        let mut behind_mark = part.chars();
        behind_mark.next();
        shown_text.push_str(behind_mark.as_str());
    }
    shown_text
}

/// Checks that a rendered prompt has the media of the message that the user has just written; returns the kinds of
/// those in the history that the template left out.
///
/// Errors: `Messages` for the first one that is missing.
pub(crate) fn check_shown(pieces: &[Piece], messages: &[Map<String, Json>]) -> Result<Vec<&'static str>, PromptError> {
    let newest = new_message(messages.iter().map(Some));
    let is_shown = |number: usize| pieces.iter().any(|piece| matches!(piece, Piece::Media(nth) if *nth == number));
    let mut left_out = Vec::new();
    for (_, (index, kind, _)) in parts(messages).enumerate().filter(|(nth, _)| !is_shown(*nth)) {
        if newest == Some(index) {
            let reason = format!("the model's chat template shows no {} in this message", kind.name());
            return Err(PromptError::Messages { index, reason });
        }
        if !left_out.contains(&kind.name()) {
            left_out.push(kind.name());
        }
    }
    Ok(left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_marks_and_shown_without_them() {
        let text = format!("a{}{}bc{}", mark(0), mark(1), mark(2));
        let pieces = cut(vec![Piece::Text(0..text.len())], text.as_bytes());
        let text_of = |piece: &Piece| match piece {
            Piece::Text(range) => text[range.clone()].to_owned(),
            Piece::Media(nth) => nth.to_string(),
            Piece::Special { .. } => unreachable!("there is none"),
        };
        assert_eq!(pieces.iter().map(text_of).collect::<Vec<_>>(), ["a", "0", "1", "bc", "2"]);
        assert_eq!(show(text), "a<__media__><__media__>bc<__media__>");
        assert_eq!(show("plain".to_owned()), "plain");
        assert_eq!(marked("a<__media__><__media__>b"), (format!("a{}{}b", mark(0), mark(1)), 2));
        assert_eq!(marked("<__media_>"), ("<__media_>".to_owned(), 0));
        let cut_off = MARK.clone();
        assert_eq!(cut(vec![Piece::Text(0..cut_off.len())], cut_off.as_bytes()), [Piece::Text(0..cut_off.len())]);
    }

    #[test]
    fn a_long_text_of_many_marks_is_cut_in_one_pass() {
        // Ten MB: decoding the rest at each mark would take minutes.
        const N_MARKS: usize = 100_000;
        let text =
            format!("{}{}", mark(7), "some text that follows the mark: ä, ö and ü, 語 and so on").repeat(N_MARKS);
        let pieces = cut(vec![Piece::Text(0..text.len())], text.as_bytes());
        assert_eq!(pieces.len(), 2 * N_MARKS);
        assert_eq!(pieces.iter().filter(|piece| **piece == Piece::Media(7)).count(), N_MARKS);
    }
}
