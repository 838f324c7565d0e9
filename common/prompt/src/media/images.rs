//! Decoding of images, within limits that hold before anything is decoded.

use std::io::Cursor;

use image::codecs::gif::GifDecoder;
use image::codecs::jpeg::JpegDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::{AnimationDecoder as _, DynamicImage, ImageDecoder, ImageResult, Limits};
use warmpath_common::media::{ContentHash, ImageFormat, ImageSize};

use super::MediaError;

/// Largest width and height of an image. Source: Anthropic's API. Units: pixels.
pub(super) const IMAGE_SIDE_MAX: u32 = 8000;

/// Most pixels of an image. Source: a photo of 32 megapixels takes 96 MB and a third of a second to decode.
const IMAGE_PIXELS_MAX: u64 = 32 << 20;

/// Most pixels of a prompt's images that are decoded. Source: ten photos of a phone, a second or two.
pub(super) const IMAGES_PIXELS_MAX: u64 = 128 << 20;

/// Most memory of a decoder besides its result. Source: a progressive JPEG of the largest size has 4 bytes for each of
/// 3 channels. Units: bytes.
const DECODER_BYTES_MAX: u64 = 512 << 20;

/// Names of the formats.
pub(super) const NAMES: &str = "PNG, JPEG, WebP or GIF";

/// Returns the format of a file, which its first bytes name.
pub(super) fn format_of(file: &[u8]) -> Result<ImageFormat, String> {
    ImageFormat::of(file).ok_or_else(|| format!("an image must be a {NAMES}"))
}

/// Returns size and hash of an image, unless it is too large.
pub(super) fn measure(
    file: &[u8],
    format: ImageFormat,
    n_pixels_left: &mut u64,
) -> Result<(ImageSize, ContentHash), MediaError> {
    let broken = |error: image::ImageError| format!("the image cannot be decoded: {error}");
    let size = size(file, format).map_err(broken)?;
    let ImageSize { width, height } = size;
    let n_pixels = u64::from(width) * u64::from(height);
    if width.max(height) > IMAGE_SIDE_MAX || n_pixels > IMAGE_PIXELS_MAX || n_pixels == 0 {
        let reason = format!(
            "the image has {width} x {height} pixels; it may have {IMAGE_SIDE_MAX} on a side and {IMAGE_PIXELS_MAX} in all"
        );
        return Err(reason.into());
    }
    *n_pixels_left = n_pixels_left.checked_sub(n_pixels).ok_or_else(|| {
        MediaError::TooMuch(format!("the images of a prompt may have {IMAGES_PIXELS_MAX} pixels in all"))
    })?;
    if is_animated(file, format).map_err(broken)? {
        return Err("the image is animated; send one picture".to_owned().into());
    }
    let pixels = decode(file, format).map_err(broken)?;
    Ok((size, ContentHash::of_pixels(size, &pixels)))
}

/// Returns the pixels of an image that has been measured.
///
/// Errors: the reason why it could not be decoded.
pub(super) fn pixels(file: &[u8], format: ImageFormat) -> Result<Vec<u8>, String> {
    decode(file, format).map_err(|error| error.to_string())
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
    let reader = Cursor::new(file);
    match format {
        ImageFormat::Png => PngDecoder::with_limits(reader, limits())?.is_apng(),
        ImageFormat::WebP => Ok(WebPDecoder::new(reader)?.has_animation()),
        ImageFormat::Gif => {
            let mut decoder = GifDecoder::new(reader)?;
            decoder.set_limits(limits())?;
            Ok(decoder.into_frames().take(2).collect::<ImageResult<Vec<_>>>()?.len() > 1)
        }
        ImageFormat::Jpeg => Ok(false),
    }
}
