//! Images of requests: from a data URL to pixels, within limits that hold before anything is decoded.
//!
//! Sizes and pixel hashes of files are cached by their bytes, so an image in a conversation is decoded once and not in
//! every turn. The cache is separate for each cache salt, so the time of a request does not reveal the images of
//! others.
//!
//! Not here: where images stand in a prompt (the module above).

use std::fmt;
use std::io::Cursor;
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use image::codecs::gif::GifDecoder;
use image::codecs::jpeg::JpegDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::{AnimationDecoder as _, DynamicImage, ImageDecoder, ImageResult, Limits};
use moka::sync::Cache;
use serde_json::{Map, Value as Json};
use warmpath_common::images::{IMAGE_BYTES_MAX, ImageFormat, ImageSize, PixelHash};

use super::parts;
use crate::cancel::end_if_cancelled;
use crate::error::PromptError;
use crate::fragments::Scope;

/// Most images of a prompt. Source: Anthropic's API allows 100, and no more have a byte as their number.
pub const IMAGES_MAX: usize = 100;

/// Largest width and height of an image. Source: Anthropic's API. Units: pixels.
pub const IMAGE_SIDE_MAX: u32 = 8000;

/// Most pixels of an image. Source: a photo of 32 megapixels takes 96 MB and a third of a second to decode.
pub const IMAGE_PIXELS_MAX: u64 = 32 << 20;

/// Most pixels of a prompt's images that are decoded. Source: ten photos of a phone, a second or two.
pub const IMAGES_PIXELS_MAX: u64 = 128 << 20;

/// Most memory of a decoder besides its result. Source: a progressive JPEG of the largest size has 4 bytes for each of
/// 3 channels. Units: bytes.
const DECODER_BYTES_MAX: u64 = 512 << 20;

/// Most files in the cache. Source: own choice: some 100 bytes for each, 6 MB in all.
const KNOWN_MAX: u64 = 1 << 16;

/// Base64 with or without padding, as clients write it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// An image of a request: its file, its size and the hash of its pixels.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    file: Arc<[u8]>,
    format: ImageFormat,
    /// Size.
    pub size: ImageSize,
    /// Hash of size and pixels.
    pub hash: PixelHash,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("size", &self.size).field("hash", &self.hash).finish_non_exhaustive()
    }
}

impl Image {
    /// Returns the pixels, decoded again: they take more memory than the file, and only an encoder needs them.
    ///
    /// Shape: `[height x width x 3]`, red, green, blue. Errors: the reason why it could not be decoded.
    pub fn pixels(&self) -> Result<Vec<u8>, String> {
        decode(&self.file, self.format).map_err(|error| error.to_string())
    }
}

/// Cache of sizes and pixel hashes by the hash of scope and file.
pub(crate) struct KnownImages(Cache<[u8; 32], (ImageSize, PixelHash)>);

impl fmt::Debug for KnownImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownImages").finish_non_exhaustive()
    }
}

impl Default for KnownImages {
    fn default() -> Self {
        Self(Cache::new(KNOWN_MAX))
    }
}

impl KnownImages {
    /// Returns a conversation's images, in their order.
    ///
    /// Cost: hashing each file, and decoding those that are new in this scope. Errors: `Messages`, `Field`.
    pub fn read(&self, messages: &[Map<String, Json>], scope: Scope) -> Result<Vec<Arc<Image>>, PromptError> {
        let too_many = |reason| PromptError::Field { field: "messages", reason };
        check_number(parts(messages).count()).map_err(too_many)?;
        let mut n_pixels_left = IMAGES_PIXELS_MAX;
        let mut images = Vec::new();
        for (index, part) in parts(messages) {
            end_if_cancelled();
            let refused = |reason: String| PromptError::Messages { index, reason };
            let image = file(part).and_then(|(kind, file)| {
                let format = format_of(&file, kind)?;
                self.image((file, format), scope, &mut n_pixels_left)
            });
            images.push(Arc::new(image.map_err(refused)?));
        }
        Ok(images)
    }

    /// Returns the images of files in base64, in their order.
    ///
    /// Cost: as of [`Self::read`]. Errors: the reason, with the place of the file that is no usable image.
    pub fn read_files(&self, files: &[String], scope: Scope) -> Result<Vec<Arc<Image>>, String> {
        check_number(files.len())?;
        let mut n_pixels_left = IMAGES_PIXELS_MAX;
        let mut image = |text: &String| {
            end_if_cancelled();
            let file = decoded(text)?;
            let format = format(&file)?;
            self.image((file, format), scope, &mut n_pixels_left)
        };
        let place = |idx: usize, reason: String| format!("multimodal_data[{idx}]: {reason}");
        let images = files.iter().enumerate().map(|(idx, text)| image(text).map_err(|reason| place(idx, reason)));
        images.map(|image| image.map(Arc::new)).collect()
    }

    fn image(
        &self,
        (file, format): (Vec<u8>, ImageFormat),
        scope: Scope,
        n_pixels_left: &mut u64,
    ) -> Result<Image, String> {
        let mut hasher = blake3::Hasher::new_derive_key("warmpath 2026 image file v1");
        hasher.update(scope.bytes()).update(&file);
        let key = *hasher.finalize().as_bytes();
        let (size, hash) = match self.0.get(&key) {
            Some(known) => known,
            None => {
                let measured = measure(&file, format, n_pixels_left)?;
                self.0.insert(key, measured);
                measured
            }
        };
        Ok(Image { file: file.into(), format, size, hash })
    }
}

/// Returns the media type and the bytes of an image in a message.
fn file(part: &Json) -> Result<(&str, Vec<u8>), String> {
    let url = part.get("image_url").and_then(|image| image.get("url")).and_then(Json::as_str);
    let url = url.ok_or("a content part of type image_url must have an image_url with a url")?;
    let Some(data) = url.strip_prefix("data:") else {
        return Err("images are not fetched: send a data URL, data:image/png;base64,...".to_owned());
    };
    let (kind, text) = data.split_once(";base64,").ok_or("a data URL of an image must be written in base64")?;
    Ok((kind, decoded(text)?))
}

/// Returns the bytes of a file in base64.
fn decoded(text: &str) -> Result<Vec<u8>, String> {
    if text.len() / 4 * 3 > IMAGE_BYTES_MAX {
        return Err(format!("an image may have {IMAGE_BYTES_MAX} bytes"));
    }
    BASE64.decode(text).map_err(|error| format!("the image is not valid base64: {error}"))
}

fn check_number(n_images: usize) -> Result<(), String> {
    if n_images > IMAGES_MAX { Err(format!("a prompt may have {IMAGES_MAX} images")) } else { Ok(()) }
}

/// Returns the format of a file.
fn format(file: &[u8]) -> Result<ImageFormat, String> {
    ImageFormat::of(file).ok_or_else(|| "an image must be a PNG, JPEG, WebP or GIF".to_owned())
}

/// Returns the format of a file, which its media type must name.
fn format_of(file: &[u8], media_type: &str) -> Result<ImageFormat, String> {
    let format = format(file)?;
    if !format.has_media_type(media_type) {
        let actual = format.media_type();
        return Err(format!("the image's media type is {media_type:.40}, and its bytes are {actual}"));
    }
    Ok(format)
}

/// Returns size and hash of an image, unless it is too large.
fn measure(file: &[u8], format: ImageFormat, n_pixels_left: &mut u64) -> Result<(ImageSize, PixelHash), String> {
    let broken = |error: image::ImageError| format!("the image cannot be decoded: {error}");
    let size = size(file, format).map_err(broken)?;
    let ImageSize { width, height } = size;
    let n_pixels = u64::from(width) * u64::from(height);
    if width.max(height) > IMAGE_SIDE_MAX || n_pixels > IMAGE_PIXELS_MAX || n_pixels == 0 {
        return Err(format!(
            "the image has {width} x {height} pixels; it may have {IMAGE_SIDE_MAX} on a side and {IMAGE_PIXELS_MAX} in all"
        ));
    }
    *n_pixels_left = n_pixels_left
        .checked_sub(n_pixels)
        .ok_or_else(|| format!("the images of a prompt may have {IMAGES_PIXELS_MAX} pixels in all"))?;
    if is_animated(file, format).map_err(broken)? {
        return Err("the image is animated; send one picture".to_owned());
    }
    let pixels = decode(file, format).map_err(broken)?;
    Ok((size, PixelHash::of(size, &pixels)))
}

/// Returns the limits of decoders; sizes are checked before.
fn limits() -> Limits {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(DECODER_BYTES_MAX);
    limits
}

/// Calls `$use` with the decoder of a file.
macro_rules! with_decoder {
    ($file:expr, $format:expr, $use:expr) => {{
        let file = Cursor::new($file);
        match $format {
            ImageFormat::Png => $use(PngDecoder::with_limits(file, limits())?),
            ImageFormat::Jpeg => $use(JpegDecoder::new(file)?),
            ImageFormat::WebP => $use(WebPDecoder::new(file)?),
            ImageFormat::Gif => $use(GifDecoder::new(file)?),
        }
    }};
}

/// Returns the size of an image, whose pixels are not decoded.
fn size(file: &[u8], format: ImageFormat) -> ImageResult<ImageSize> {
    fn of(decoder: impl ImageDecoder) -> ImageResult<ImageSize> {
        let (width, height) = decoder.dimensions();
        Ok(ImageSize { width, height })
    }
    with_decoder!(file, format, of)
}

fn decode(file: &[u8], format: ImageFormat) -> ImageResult<Vec<u8>> {
    fn of(mut decoder: impl ImageDecoder) -> ImageResult<Vec<u8>> {
        decoder.set_limits(limits())?;
        // Transparency is dropped and the colours stay, as in llama.cpp.
        Ok(DynamicImage::from_decoder(decoder)?.into_rgb8().into_raw())
    }
    with_decoder!(file, format, of)
}

fn is_animated(file: &[u8], format: ImageFormat) -> ImageResult<bool> {
    let read = Cursor::new(file);
    match format {
        ImageFormat::Png => PngDecoder::with_limits(read, limits())?.is_apng(),
        ImageFormat::WebP => Ok(WebPDecoder::new(read)?.has_animation()),
        ImageFormat::Gif => {
            let mut decoder = GifDecoder::new(read)?;
            decoder.set_limits(limits())?;
            Ok(decoder.into_frames().take(2).collect::<ImageResult<Vec<_>>>()?.len() > 1)
        }
        ImageFormat::Jpeg => Ok(false),
    }
}

#[cfg(test)]
mod tests;
