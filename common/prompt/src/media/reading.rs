//! Media of requests: from a message's part to a file, its kind, its size and the hash of its content.
//!
//! Sizes and hashes are cached by the files' bytes, so a medium in a conversation is decoded once and not in every
//! turn. The cache is separate for each cache salt, so the time of a request does not reveal the media of others.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use moka::sync::Cache;
use serde_json::Value as Json;
use warmpath_common::media::{ContentHash, ImageFormat, MEDIA_BYTES_MAX, MediaSize};
use warmpath_common::model::Modalities;

use super::audio::{self, AUDIOS_SAMPLES_MAX, AudioFormat};
use super::images::{self, IMAGES_PIXELS_MAX};
use super::{MediaError, MediaKind};
use crate::cancel::end_if_cancelled;
use crate::fragments::Scope;

/// Most media of a prompt. Source: Anthropic's API allows 100 images, and no more have a byte as their number.
const MEDIA_MAX: usize = 100;

/// Most files in the cache. Source: own choice: some 100 bytes for each, 6 MB in all.
const KNOWN_MAX: u64 = 1 << 16;

/// Base64 with or without padding, as clients write it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// An image or audio of a request: its file, its size and the hash of its content.
#[derive(Clone, PartialEq, Eq)]
pub struct Medium {
    file: Arc<[u8]>,
    format: MediaFormat,
    /// Size.
    pub size: MediaSize,
    /// Hash of size and content.
    pub hash: ContentHash,
}

impl fmt::Debug for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Medium").field("size", &self.size).field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// Decoded content of a medium.
#[derive(Debug, Clone, PartialEq)]
pub enum MediaContent {
    /// Pixels of an image. Shape: `[height x width x 3]`, red, green, blue.
    Pixels(Vec<u8>),
    /// Samples of audio, one channel, at the file's sample rate.
    Samples(Vec<f32>),
}

impl Medium {
    /// Returns the content, decoded again: it takes more memory than the file, and only an encoder needs it.
    ///
    /// Errors: the reason why it could not be decoded.
    pub fn content(&self) -> Result<MediaContent, String> {
        match self.format {
            MediaFormat::Image(format) => images::pixels(&self.file, format).map(MediaContent::Pixels),
            MediaFormat::Audio(format) => audio::samples(&self.file, format).map(MediaContent::Samples),
        }
    }
}

/// Format of a medium's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MediaFormat {
    Image(ImageFormat),
    Audio(AudioFormat),
}

impl MediaFormat {
    /// Returns the format of a file of any kind.
    ///
    /// Errors: the reason.
    fn of(file: &[u8]) -> Result<Self, String> {
        let image = || ImageFormat::of(file).map(Self::Image);
        let audio = || AudioFormat::of(file).map(Self::Audio);
        image().or_else(audio).ok_or_else(|| format!("a file must be a {}, or a {}", images::NAMES, audio::NAMES))
    }

    fn kind(self) -> MediaKind {
        match self {
            Self::Image(_) => MediaKind::Image,
            Self::Audio(_) => MediaKind::Audio,
        }
    }
}

/// What may still be decoded for a prompt.
pub(crate) struct Budget {
    n_pixels: u64,
    n_samples: u64,
}

impl Budget {
    pub fn full() -> Self {
        Self { n_pixels: IMAGES_PIXELS_MAX, n_samples: AUDIOS_SAMPLES_MAX }
    }
}

/// Cache of sizes and content hashes by the hash of scope and file.
pub struct KnownMedia(Cache<[u8; 32], (MediaSize, ContentHash)>);

impl fmt::Debug for KnownMedia {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownMedia").finish_non_exhaustive()
    }
}

impl Default for KnownMedia {
    fn default() -> Self {
        Self(Cache::new(KNOWN_MAX))
    }
}

impl KnownMedia {
    /// Returns the medium of a message's part.
    ///
    /// Cost: hashing the file, and decoding it if it is new in this scope. Errors: every [`MediaError`].
    pub(crate) fn read(
        &self,
        kind: MediaKind,
        part: &Json,
        scope: Scope,
        budget: &mut Budget,
    ) -> Result<Arc<Medium>, MediaError> {
        end_if_cancelled();
        let (file, format) = match kind {
            MediaKind::Image => image_file(part),
            MediaKind::Audio => audio_file(part),
        }?;
        self.medium(file, format, scope, budget).map(Arc::new)
    }

    /// Returns the media of files in base64, in their order.
    ///
    /// Cost: as of `read`. Errors: the reason, with the place of the file that is no usable medium.
    pub fn read_files(
        &self,
        files: &[String],
        scope: Scope,
        modalities: Modalities,
    ) -> Result<Vec<Arc<Medium>>, String> {
        check_number(files.len())?;
        let mut budget = Budget::full();
        let mut medium = |text: &String| {
            end_if_cancelled();
            let file = decoded(text, "file")?;
            let format = MediaFormat::of(&file)?;
            if !format.kind().is_read(modalities) {
                return Err(format!("it is {}, and this model reads {modalities}", format.kind().name()));
            }
            self.medium(file, format, scope, &mut budget).map_err(|error| error.to_string())
        };
        let place = |idx: usize, reason: String| format!("multimodal_data[{idx}]: {reason}");
        let media = files.iter().enumerate().map(|(idx, text)| medium(text).map_err(|reason| place(idx, reason)));
        media.map(|medium| medium.map(Arc::new)).collect()
    }

    fn medium(
        &self,
        file: Vec<u8>,
        format: MediaFormat,
        scope: Scope,
        budget: &mut Budget,
    ) -> Result<Medium, MediaError> {
        // The scope is part of the key, so that one tenant's files are not known to another.
        let mut hasher = blake3::Hasher::new_derive_key("warmpath 2026 media file v1");
        hasher.update(scope.bytes()).update(&file);
        let key = *hasher.finalize().as_bytes();
        let (size, hash) = match self.0.get(&key) {
            Some(size_and_hash) => size_and_hash,
            None => {
                let size_and_hash = match format {
                    MediaFormat::Image(format) => {
                        let (size, hash) = images::measure(&file, format, &mut budget.n_pixels)?;
                        (MediaSize::Image(size), hash)
                    }
                    MediaFormat::Audio(format) => {
                        let (size, hash) = audio::measure(&file, format, &mut budget.n_samples)?;
                        (MediaSize::Audio(size), hash)
                    }
                };
                self.0.insert(key, size_and_hash);
                size_and_hash
            }
        };
        Ok(Medium { file: file.into(), format, size, hash })
    }
}

/// Checks that a prompt may have so many media.
///
/// Errors: the reason.
pub(crate) fn check_number(n_media: usize) -> Result<(), String> {
    if n_media > MEDIA_MAX {
        return Err(format!("a prompt may have {MEDIA_MAX} images and audio files"));
    }
    Ok(())
}

/// Returns the bytes of an image in a message, and the format that they have.
///
/// The media type of the URL is ignored, as by OpenAI's API: many clients send `image/jpeg` for every image.
fn image_file(part: &Json) -> Result<(Vec<u8>, MediaFormat), String> {
    let url = part.get("image_url").and_then(|image| image.get("url")).and_then(Json::as_str);
    let url = url.ok_or("a content part of type image_url must have an image_url with a url")?;
    let Some(data) = url.strip_prefix("data:") else {
        return Err("images are not fetched: send a data URL, data:image/png;base64,...".to_owned());
    };
    let (_, text) = data.split_once(";base64,").ok_or("a data URL of an image must be written in base64")?;
    let file = decoded(text, "image")?;
    let format = images::format_of(&file)?;
    Ok((file, MediaFormat::Image(format)))
}

/// Returns the bytes of audio in a message, and the format that they have; the named one is ignored.
///
/// Source: OpenAI's `input_audio`; llama-server also takes a data URL in the place of the data, and needs no format.
fn audio_file(part: &Json) -> Result<(Vec<u8>, MediaFormat), String> {
    let audio = part.get("input_audio");
    let data = audio.and_then(|audio| audio.get("data")).and_then(Json::as_str);
    let data = data.ok_or("a content part of type input_audio must have an input_audio with data in base64")?;
    let text = match data.strip_prefix("data:") {
        Some(url) => url.split_once(";base64,").ok_or("a data URL of audio must be written in base64")?.1,
        None => data,
    };
    let file = decoded(text, "audio")?;
    let format = AudioFormat::of(&file).ok_or_else(|| format!("audio must be a {}", audio::NAMES))?;
    Ok((file, MediaFormat::Audio(format)))
}

/// Returns the bytes of a file in base64; `what` is its name in errors.
fn decoded(text: &str, what: &str) -> Result<Vec<u8>, String> {
    if text.len() / 4 * 3 > MEDIA_BYTES_MAX {
        return Err(format!("the {what} is too long; it may have {MEDIA_BYTES_MAX} bytes"));
    }
    BASE64.decode(text).map_err(|error| format!("the {what} is not valid base64: {error}"))
}

#[cfg(test)]
mod tests;
