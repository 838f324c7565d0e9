//! Pictures made by code, for tests and measurements of prompts with images.
//!
//! The same number gives the same picture; every pixel is random, so that two pictures have nothing in common.

use std::io::Cursor;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use image::{ImageFormat, RgbImage};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

/// Returns the picture of a number.
pub fn picture(seed: u64, (width, height): (u32, u32)) -> RgbImage {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut picture = RgbImage::new(width, height);
    rng.fill_bytes(&mut picture);
    picture
}

/// Returns a picture as the data URL of a PNG.
///
/// Panics: never; a PNG of such a picture can always be written.
pub fn data_url(picture: &RgbImage) -> String {
    let mut file = Cursor::new(Vec::new());
    picture.write_to(&mut file, ImageFormat::Png).expect("a picture in memory can be written");
    format!("data:image/png;base64,{}", STANDARD.encode(file.into_inner()))
}
