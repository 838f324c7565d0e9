//! Formats of image files, and images as tokens of a prompt: the number of tokens and their values.
//!
//! In a prompt an image is the text tokens that its model's format puts around it and runs of *image tokens*. Their
//! numbers lie outside every vocabulary. They are cut from a hash of the pixels, of the way in which the model reads
//! images, and of the run's place in the image. So hash chains, prefix trees and stores know nothing of images: equal
//! tokens are the same image, read in the same way.
//!
//! Not here: reading images from requests (`warmpath-prompt`), encoding them (the worker).

use serde::{Deserialize, Serialize};

use crate::ids::Token;
use crate::model::Fingerprint;

/// Path at which a worker tells the layout of an image, whose size is the query.
pub const IMAGE_LAYOUT_PATH: &str = "/internal/v1/image-layout";

/// Largest file of an image. Source: OpenAI's limit of 20 MB. Units: bytes.
pub const IMAGE_BYTES_MAX: usize = 20 << 20;

/// Smallest image token. Source: llama.cpp's tokens are signed numbers of 32 bits and never negative in a prompt.
pub const IMAGE_TOKEN_MIN: Token = 1 << 31;

/// Fewest tokens of a run: they hold 248 bits of the hash, so that no two images have the same ones.
///
/// Source: the birthday bound of a hash; models read an image as 16 tokens or more.
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

    /// Returns whether a media type names this format; clients also write `image/jpg`.
    pub fn has_media_type(self, text: &str) -> bool {
        let is_usual = text.eq_ignore_ascii_case(self.media_type());
        is_usual || (self == Self::Jpeg && text.eq_ignore_ascii_case("image/jpg"))
    }
}

/// Width and height of an image. Units: pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageSize {
    /// Width.
    pub width: u32,
    /// Height.
    pub height: u32,
}

/// Hash of an image's size and pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PixelHash(pub [u8; 32]);

impl PixelHash {
    /// Returns the hash of an image.
    ///
    /// Shape: `pixels` `[height x width x 3]`, red, green, blue.
    pub fn of(size: ImageSize, pixels: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("warmpath 2026 pixels v1");
        hasher.update(&size.width.to_le_bytes()).update(&size.height.to_le_bytes()).update(pixels);
        Self(*hasher.finalize().as_bytes())
    }
}

/// Tokens that stand for an image of one size, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageLayout {
    /// Parts, in their order.
    pub parts: Vec<LayoutPart>,
}

impl ImageLayout {
    /// Returns whether a run is too short to tell images apart: shorter than [`RUN_TOKENS_MIN`].
    pub fn has_short_run(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, LayoutPart::Run(n_tokens) if *n_tokens < RUN_TOKENS_MIN))
    }
}

/// A part of an image's tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayoutPart {
    /// Tokens of the model's format.
    Text(Vec<Token>),
    /// A run of this many image tokens, at least [`RUN_TOKENS_MIN`].
    Run(u32),
}

/// Returns the tokens of an image's run.
///
/// `reading` is the fingerprint of the way in which the model reads images, `run` the run's place among the image's.
pub fn run_tokens(reading: &Fingerprint, image: &PixelHash, run: u32, n_tokens: u32) -> impl Iterator<Item = Token> {
    let mut hasher = blake3::Hasher::new_derive_key("warmpath 2026 image tokens v1");
    hasher.update(&reading.0).update(&image.0).update(&run.to_le_bytes());
    let mut output = hasher.finalize_xof();
    (0..n_tokens).map(move |_| {
        let mut bytes = [0; 4];
        output.fill(&mut bytes);
        Token::from_le_bytes(bytes) | IMAGE_TOKEN_MIN
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: ImageSize = ImageSize { width: 2, height: 1 };

    fn tokens(reading: u8, pixels: &[u8], run: u32) -> Vec<Token> {
        run_tokens(&Fingerprint([reading; 32]), &PixelHash::of(SIZE, pixels), run, RUN_TOKENS_MIN).collect()
    }

    #[test]
    fn tokens_depend_on_every_pixel_the_reading_and_the_run_and_on_nothing_else() {
        let first = tokens(1, b"abcdef", 0);
        assert_eq!(first, tokens(1, b"abcdef", 0));
        for other in [tokens(1, b"abcdeg", 0), tokens(2, b"abcdef", 0), tokens(1, b"abcdef", 1)] {
            assert!(first.iter().zip(&other).all(|(a, b)| a != b), "{first:?} {other:?}");
        }
        let turned = PixelHash::of(ImageSize { width: 1, height: 2 }, b"abcdef");
        assert_ne!(turned, PixelHash::of(SIZE, b"abcdef"), "the same bytes in another shape are another image");
        assert!(first.iter().all(|token| *token >= IMAGE_TOKEN_MIN));
    }

    #[test]
    fn a_format_is_named_by_the_first_bytes_and_by_its_media_types() {
        for (file, format) in [
            (&b"\x89PNG\r\n\x1a\nIHDR"[..], Some(ImageFormat::Png)),
            (b"\xff\xd8\xff\xe0", Some(ImageFormat::Jpeg)),
            (b"RIFF\x10\0\0\0WEBPVP8 ", Some(ImageFormat::WebP)),
            (b"RIFF\x10\0\0\0WAVEfmt ", None),
            (b"GIF89a", Some(ImageFormat::Gif)),
            (b"GIF87a", Some(ImageFormat::Gif)),
            (b"GIF88a", None),
            (b"\x89PNG", None),
            (b"<svg", None),
            (b"", None),
        ] {
            assert_eq!(ImageFormat::of(file), format, "{file:?}");
        }
        assert!(ImageFormat::Jpeg.has_media_type("image/jpg") && ImageFormat::Jpeg.has_media_type("IMAGE/JPEG"));
        assert!(!ImageFormat::Png.has_media_type("image/jpg") && !ImageFormat::Gif.has_media_type(""));
    }

    #[test]
    fn a_longer_run_begins_with_the_tokens_of_a_shorter_one() {
        let hash = PixelHash::of(SIZE, b"abcdef");
        let longer: Vec<Token> = run_tokens(&Fingerprint([1; 32]), &hash, 0, 16).collect();
        assert_eq!(longer[..8], tokens(1, b"abcdef", 0));
    }
}
