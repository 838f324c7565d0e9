//! Formats of image files, and images and audio as tokens of a prompt: the number of tokens and their values.
//!
//! In a prompt a *medium*, an image or audio, is the text tokens that its model's format puts around it and runs of
//! *media tokens*. Their numbers lie outside every vocabulary. They are cut from a hash of the pixels or samples, of
//! the way in which the model reads media, and of the run's place in the medium. So hash chains, prefix trees and
//! stores know nothing of media: equal tokens are the same medium, read in the same way.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::Token;
use crate::model::Fingerprint;

/// Path at which a worker tells the layout of a medium, whose size is the query, as [`SizeQuery`].
pub const MEDIA_LAYOUT_PATH: &str = "/internal/v1/media-layout";

/// Largest file of a medium. Source: OpenAI's limit of 20 MB for images. Units: bytes.
pub const MEDIA_BYTES_MAX: usize = 20 << 20;

/// Smallest media token. Source: llama.cpp's tokens are signed numbers of 32 bits and never negative in a prompt.
pub const MEDIA_TOKEN_MIN: Token = 1 << 31;

/// Fewest tokens of a run: they hold 248 bits of the hash, so that no two media have the same ones.
///
/// Source: the birthday bound of a hash; models read an image as 16 tokens or more, and eight tokens of audio are half
/// a second at most.
pub const RUN_TOKENS_MIN: u32 = 8;

/// Format of an image's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    /// PNG, animated or not.
    Png,
    /// JPEG.
    Jpeg,
    /// WebP.
    WebP,
    /// GIF.
    Gif,
}

impl ImageFormat {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::Png, Self::Jpeg, Self::WebP, Self::Gif];

    /// Returns the format that the first bytes of a file name; `None` for any other file.
    pub fn of(file: &[u8]) -> Option<Self> {
        match file {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            _ => None,
        }
    }

    /// Returns the registered media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::WebP => "image/webp",
            Self::Gif => "image/gif",
        }
    }
}

/// Width and height of an image. Units: pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageSize {
    /// Width.
    pub width: u32,
    /// Height.
    pub height: u32,
}

/// Length of audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AudioSize {
    /// Number of samples of a channel.
    pub n_samples: u32,
    /// Sample rate of the file. Units: hertz.
    pub sample_rate: u32,
}

/// Everything besides its content that decides a medium's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MediaSize {
    /// Size of an image.
    Image(ImageSize),
    /// Length of audio.
    Audio(AudioSize),
}

impl MediaSize {
    /// Returns the size as a URL's query, which is read as [`SizeQuery`].
    pub fn query(self) -> String {
        match self {
            Self::Image(ImageSize { width, height }) => format!("width={width}&height={height}"),
            Self::Audio(AudioSize { n_samples, sample_rate }) => {
                format!("n_samples={n_samples}&sample_rate={sample_rate}")
            }
        }
    }
}

impl fmt::Display for MediaSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(ImageSize { width, height }) => write!(f, "an image of {width} x {height} pixels"),
            Self::Audio(AudioSize { n_samples, sample_rate }) => {
                write!(f, "audio of {n_samples} samples at {sample_rate} Hz")
            }
        }
    }
}

/// Query of [`MEDIA_LAYOUT_PATH`]: the two fields of an image, or those of audio.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct SizeQuery {
    /// Width of an image. Units: pixels.
    pub width: Option<u32>,
    /// Height of an image. Units: pixels.
    pub height: Option<u32>,
    /// Number of samples of a channel of audio.
    pub n_samples: Option<u32>,
    /// Sample rate of audio. Units: hertz.
    pub sample_rate: Option<u32>,
}

impl SizeQuery {
    /// Returns the size; `None` unless exactly one kind of medium has its two fields.
    pub fn size(self) -> Option<MediaSize> {
        match self {
            Self { width: Some(width), height: Some(height), n_samples: None, sample_rate: None } => {
                Some(MediaSize::Image(ImageSize { width, height }))
            }
            Self { width: None, height: None, n_samples: Some(n_samples), sample_rate: Some(sample_rate) } => {
                Some(MediaSize::Audio(AudioSize { n_samples, sample_rate }))
            }
            _ => None,
        }
    }
}

/// Hash of a medium's size and content: its pixels or samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentHash(pub [u8; 32]);

impl ContentHash {
    /// Returns the hash of an image.
    ///
    /// Shape: `pixels` `[height x width x 3]`, red, green, blue.
    pub fn of_pixels(size: ImageSize, pixels: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("warmpath 2026 pixels v1");
        hasher.update(&size.width.to_le_bytes()).update(&size.height.to_le_bytes()).update(pixels);
        Self(*hasher.finalize().as_bytes())
    }
}

/// Number of samples that are hashed at a time. Source: blake3 hashes 1 KiB blocks, several at a time.
const PORTION_SAMPLES: usize = 4096;

/// Hasher of audio, whose samples come in portions.
#[derive(Debug)]
pub struct SampleHasher(blake3::Hasher);

impl SampleHasher {
    /// Returns the hasher of audio with this sample rate. Units: hertz.
    pub fn new(sample_rate: u32) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("warmpath 2026 samples v1");
        hasher.update(&sample_rate.to_le_bytes());
        Self(hasher)
    }

    /// Adds samples of one channel.
    pub fn add(&mut self, samples: &[f32]) {
        // The hash is fast for long inputs only.
        let mut bytes = [0; PORTION_SAMPLES * size_of::<f32>()];
        for portion in samples.chunks(PORTION_SAMPLES) {
            for (place, sample) in bytes.chunks_exact_mut(size_of::<f32>()).zip(portion) {
                place.copy_from_slice(&sample.to_le_bytes());
            }
            self.0.update(&bytes[..size_of_val(portion)]);
        }
    }

    /// Returns the hash.
    pub fn finish(&self) -> ContentHash {
        ContentHash(*self.0.finalize().as_bytes())
    }
}

/// Tokens that stand for a medium of one size, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaLayout {
    /// Parts, in their order.
    pub parts: Vec<LayoutPart>,
}

impl MediaLayout {
    /// Returns whether a run is too short to tell media apart: shorter than [`RUN_TOKENS_MIN`].
    pub fn has_short_run(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, LayoutPart::Run(n_tokens) if *n_tokens < RUN_TOKENS_MIN))
    }
}

/// A part of a medium's tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayoutPart {
    /// Tokens of the model's format.
    Text(Vec<Token>),
    /// A run of this many media tokens, at least [`RUN_TOKENS_MIN`].
    Run(u32),
}

/// Returns the tokens of a medium's run.
///
/// `reading` is the fingerprint of the way in which the model reads media, `run` the run's place among the medium's.
pub fn run_tokens(reading: &Fingerprint, medium: &ContentHash, run: u32, n_tokens: u32) -> impl Iterator<Item = Token> {
    let mut hasher = blake3::Hasher::new_derive_key("warmpath 2026 media tokens v1");
    hasher.update(&reading.0).update(&medium.0).update(&run.to_le_bytes());
    let mut output = hasher.finalize_xof();
    (0..n_tokens).map(move |_| {
        let mut bytes = [0; 4];
        output.fill(&mut bytes);
        Token::from_le_bytes(bytes) | MEDIA_TOKEN_MIN
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: ImageSize = ImageSize { width: 2, height: 1 };

    fn of_hash(reading: u8, hash: &ContentHash, run: u32) -> Vec<Token> {
        run_tokens(&Fingerprint([reading; 32]), hash, run, RUN_TOKENS_MIN).collect()
    }

    fn tokens(reading: u8, pixels: &[u8], run: u32) -> Vec<Token> {
        of_hash(reading, &ContentHash::of_pixels(SIZE, pixels), run)
    }

    fn sound(sample_rate: u32, samples: &[f32]) -> Vec<Token> {
        let mut hasher = SampleHasher::new(sample_rate);
        samples.chunks(2).for_each(|samples| hasher.add(samples));
        of_hash(1, &hasher.finish(), 0)
    }

    #[test]
    fn tokens_depend_on_every_pixel_the_reading_and_the_run_and_on_nothing_else() {
        let first = tokens(1, b"abcdef", 0);
        assert_eq!(first, tokens(1, b"abcdef", 0));
        for other in [tokens(1, b"abcdeg", 0), tokens(2, b"abcdef", 0), tokens(1, b"abcdef", 1)] {
            assert!(first.iter().zip(&other).all(|(a, b)| a != b), "{first:?} {other:?}");
        }
        let turned = ContentHash::of_pixels(ImageSize { width: 1, height: 2 }, b"abcdef");
        assert_ne!(
            turned,
            ContentHash::of_pixels(SIZE, b"abcdef"),
            "the same bytes in another shape are another image"
        );
        assert!(first.iter().all(|token| *token >= MEDIA_TOKEN_MIN));
    }

    #[test]
    fn tokens_of_audio_depend_on_every_sample_and_on_the_rate() {
        let first = sound(16_000, &[0.0, 0.5, -0.5]);
        assert_eq!(first, sound(16_000, &[0.0, 0.5, -0.5]));
        for other in [sound(16_000, &[0.0, 0.5, -0.25]), sound(16_000, &[0.0, 0.5]), sound(8_000, &[0.0, 0.5, -0.5])] {
            assert!(first.iter().zip(&other).all(|(a, b)| a != b), "{first:?} {other:?}");
        }
    }

    #[test]
    fn a_longer_run_begins_with_the_tokens_of_a_shorter_one() {
        let hash = ContentHash::of_pixels(SIZE, b"abcdef");
        let longer: Vec<Token> = run_tokens(&Fingerprint([1; 32]), &hash, 0, 16).collect();
        assert_eq!(longer[..8], tokens(1, b"abcdef", 0));
    }

    #[test]
    fn a_query_has_the_fields_of_one_kind() {
        let image = SizeQuery { width: Some(2), height: Some(1), ..SizeQuery::default() };
        assert_eq!(image.size(), Some(MediaSize::Image(SIZE)));
        let audio = SizeQuery { n_samples: Some(3), sample_rate: Some(8_000), ..SizeQuery::default() };
        assert_eq!(audio.size(), Some(MediaSize::Audio(AudioSize { n_samples: 3, sample_rate: 8_000 })));
        let both = SizeQuery { width: Some(2), height: Some(1), ..audio };
        let halves = [SizeQuery { width: None, ..image }, SizeQuery { n_samples: None, ..audio }];
        for query in [SizeQuery::default(), halves[0], halves[1], both] {
            assert_eq!(query.size(), None, "{query:?}");
        }
    }
}
