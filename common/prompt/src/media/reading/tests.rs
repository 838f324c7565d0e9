//! Tests of reading media: what is the same image, and what hostile ones are refused for, before they cost anything.

use std::io::Cursor;

use image::{ExtendedColorType, ImageEncoder as _, RgbImage};
use serde_json::{Map, json};
use warmpath_common::media::ImageSize;

use super::super::parts;
use super::*;

fn picture(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| image::Rgb([x as u8, y as u8, (x * y) as u8]))
}

fn encoded(picture: &RgbImage, format: ImageFormat) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    let format = image::ImageFormat::from_mime_type(format.media_type()).expect("a known media type");
    picture.write_to(&mut file, format).expect("it is written");
    file.into_inner()
}

fn url(kind: &str, file: &[u8]) -> String {
    format!("data:{kind};base64,{}", base64::engine::general_purpose::STANDARD.encode(file))
}

fn chat(urls: &[String]) -> Vec<Map<String, Json>> {
    let parts: Vec<Json> = urls.iter().map(|url| json!({"type": "image_url", "image_url": {"url": url}})).collect();
    let message = json!({"role": "user", "content": parts});
    vec![message.as_object().expect("an object").clone()]
}

/// Reads all media of a conversation.
fn read_all(known: &KnownMedia, chat: &[Map<String, Json>], scope: Scope) -> Result<Vec<Arc<Medium>>, MediaError> {
    let mut budget = Budget::full();
    parts(chat).map(|(_, kind, part)| known.read(kind, part, scope, &mut budget)).collect()
}

fn read(url: String) -> Result<Arc<Medium>, MediaError> {
    read_all(&KnownMedia::default(), &chat(&[url]), Scope::default()).map(|mut media| media.remove(0))
}

#[track_caller]
fn check_refused(url: String, says: &str) {
    let error = read(url).expect_err("it is refused");
    assert!(matches!(&error, MediaError::Unread(reason) if reason.contains(says)), "{error}");
}

#[test]
fn the_same_pixels_are_the_same_image_in_any_file() {
    let picture = picture(40, 30);
    let png = read(url("image/png", &encoded(&picture, ImageFormat::Png))).expect("a PNG");
    assert_eq!(png.size, MediaSize::Image(ImageSize { width: 40, height: 30 }));
    assert_eq!(png.content(), Ok(MediaContent::Pixels(picture.as_raw().clone())));
    let webp = read(url("image/webp", &encoded(&picture, ImageFormat::WebP))).expect("a WebP without loss");
    assert_eq!((webp.size, webp.hash), (png.size, png.hash));
    let unpadded = url("image/png", &encoded(&picture, ImageFormat::Png)).trim_end_matches('=').to_owned();
    assert_eq!(read(unpadded).expect("padding is not needed").hash, png.hash);
    // The bytes decide, not the media type.
    for kind in ["image/jpeg", "IMAGE/JPG", "image/svg+xml", "text/plain", "image/png;a=b", ""] {
        assert_eq!(read(url(kind, &encoded(&picture, ImageFormat::Png))).expect(kind), png);
        assert_eq!(read(url(kind, &encoded(&picture, ImageFormat::Jpeg))).expect(kind).size, png.size);
    }
    let mut other = picture;
    other.get_pixel_mut(39, 29).0[2] ^= 1;
    assert_ne!(read(url("image/png", &encoded(&other, ImageFormat::Png))).expect("a PNG").hash, png.hash);
}

#[test]
fn what_is_no_usable_image_is_refused() {
    let png = encoded(&picture(40, 30), ImageFormat::Png);
    for (url, says) in [
        ("https://127.0.0.1/a.png".to_owned(), "not fetched"),
        ("file:///etc/passwd".to_owned(), "not fetched"),
        ("data:image/png,abc".to_owned(), "base64"),
        ("data:image/png;base64,!!!".to_owned(), "not valid base64"),
        (url("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"), "must be a PNG"),
        (url("image/bmp", b"BM\0\0\0\0\0\0\0\0\0\0\0\0"), "must be a PNG"),
        (url("image/png", b""), "must be a PNG"),
        (url("image/png", &png[..png.len() / 2]), "cannot be decoded"),
        (url("image/png", &png[..20]), "cannot be decoded"),
        (format!("data:image/png;base64,{}", "A".repeat(MEDIA_BYTES_MAX / 3 * 4 + 8)), "may have 20971520 bytes"),
    ] {
        check_refused(url, says);
    }
    let nameless = vec![json!({"role": "user", "content": [{"type": "image_url"}]}).as_object().unwrap().clone()];
    assert!(read_all(&KnownMedia::default(), &nameless, Scope::default()).is_err());
}

/// Returns a PNG of one colour, whose file is a thousandth of its pixels.
fn bomb(width: u32, height: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let encoder = image::codecs::png::PngEncoder::new(&mut file);
    let pixels = vec![0; width as usize * height as usize];
    encoder.write_image(&pixels, width, height, ExtendedColorType::L8).expect("it is written");
    file
}

#[test]
fn bombs_are_refused_by_what_they_declare() {
    check_refused(url("image/png", &bomb(8001, 1)), "8001 x 1 pixels");
    check_refused(url("image/png", &bomb(1, 8001)), "1 x 8001 pixels");
    check_refused(url("image/png", &bomb(6000, 6000)), "6000 x 6000 pixels");
    // The header says more than the file has.
    let mut liar = encoded(&picture(40, 30), ImageFormat::Png);
    liar[16..20].copy_from_slice(&7000_u32.to_be_bytes());
    check_refused(url("image/png", &liar), "cannot be decoded");
    let many = vec![url("image/png", &bomb(4000, 4000)); 9];
    // The first one is known by now.
    let several: Vec<String> = (0..10).map(|n| url("image/png", &bomb(4000, 4000 - n))).collect();
    let known = KnownMedia::default();
    assert!(read_all(&known, &chat(&many), Scope::default()).is_ok(), "one image is decoded once");
    let refused = read_all(&known, &chat(&several), Scope::default()).expect_err("they are too many pixels");
    assert!(matches!(&refused, MediaError::TooMuch(reason) if reason.contains("pixels in all")), "{refused}");
}

#[test]
fn a_conversation_has_no_more_media_than_its_limit() {
    assert!(check_number(MEDIA_MAX).is_ok());
    for n in [MEDIA_MAX + 1, 10_000] {
        let error = check_number(n).expect_err("they are too many");
        assert_eq!(error, "a prompt may have 100 images and audio files");
    }
}

#[test]
fn animations_are_refused_and_single_pictures_are_not() {
    let frames = |n_frames: u8| {
        let mut file = Vec::new();
        let mut encoder = image::codecs::gif::GifEncoder::new(&mut file);
        for n in 0..n_frames {
            let frame = image::RgbaImage::from_pixel(8, 8, image::Rgba([n * 40, 0, 0, 255]));
            encoder.encode_frame(image::Frame::new(frame)).expect("it is written");
        }
        drop(encoder);
        file
    };
    let one = read(url("image/gif", &frames(1))).expect("one picture");
    assert_eq!(one.size, MediaSize::Image(ImageSize { width: 8, height: 8 }));
    check_refused(url("image/gif", &frames(2)), "animated");
    // A PNG says by a chunk before its pixels that it is animated.
    let png = encoded(&picture(8, 8), ImageFormat::Png);
    let mut animated = png[..33].to_vec();
    let mut chunk = b"acTL".to_vec();
    chunk.extend_from_slice(&[0, 0, 0, 2, 0, 0, 0, 0]);
    animated.extend_from_slice(&8_u32.to_be_bytes());
    animated.extend_from_slice(&chunk);
    animated.extend_from_slice(&crc(&chunk).to_be_bytes());
    animated.extend_from_slice(&png[33..]);
    check_refused(url("image/png", &animated), "animated");
}

/// Returns the checksum of a PNG's chunk.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { 0xedb8_8320 ^ (crc >> 1) } else { crc >> 1 })
    })
}

#[test]
fn an_image_is_decoded_once_under_each_salt() {
    let known = KnownMedia::default();
    let chat = chat(&[url("image/png", &encoded(&picture(40, 30), ImageFormat::Png))]);
    let first = read_all(&known, &chat, Scope::default()).expect("it is read");
    let measured = |salt: &str| {
        known.0.run_pending_tasks();
        let n_known = known.0.entry_count();
        assert_eq!(read_all(&known, &chat, Scope::of(salt)).expect("it is read"), first);
        known.0.run_pending_tasks();
        known.0.entry_count() - n_known
    };
    assert_eq!((measured(""), measured("a"), measured("a"), measured("")), (0, 1, 0, 0));
}

const BOTH: Modalities = Modalities { vision: true, audio: true };

fn base64(file: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(file)
}

/// Returns a WAV file of one channel of bytes.
fn wav(samples: &[u8]) -> Vec<u8> {
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x40\x1f\0\0\x01\0\x08\0data".to_vec();
    file.extend(u32::try_from(samples.len()).expect("it is short").to_le_bytes());
    file.extend(samples);
    file
}

#[test]
fn files_without_a_media_type_are_the_same_media() {
    let (png, wav) = (encoded(&picture(40, 30), ImageFormat::Png), wav(&[7; 2000]));
    let known = KnownMedia::default();
    let files = [base64(&png), base64(&wav), base64(&png)];
    let read = known.read_files(&files, Scope::default(), BOTH).expect("they are read");
    let image = json!({"type": "image_url", "image_url": {"url": url("image/png", &png)}});
    let audio = json!({"type": "input_audio", "input_audio": {"data": base64(&wav), "format": "mp3"}});
    let message = json!({"role": "user", "content": [image, audio, image]});
    let chat = [message.as_object().expect("an object").clone()];
    assert_eq!(read, read_all(&known, &chat, Scope::default()).expect("they are read"));
    assert!(matches!((read[0].size, read[1].size), (MediaSize::Image(_), MediaSize::Audio(_))));
    for (wrong, says) in [
        (String::new(), "must be a PNG, JPEG, WebP or GIF, or a WAV, MP3 or FLAC"),
        ("!".to_owned(), "not valid base64"),
        (url("image/png", &png), "not valid base64"),
        (base64(&bomb(8001, 1)), "8001 x 1 pixels"),
        (base64(&wav[..60]), "cut off"),
    ] {
        let read = known.read_files(&[files[0].clone(), wrong], Scope::default(), BOTH);
        let reason = read.expect_err("it is refused");
        assert!(reason.starts_with("multimodal_data[1]: ") && reason.contains(says), "{reason}");
    }
    let vision = Modalities { audio: false, ..BOTH };
    let deaf = known.read_files(&files, Scope::default(), vision).expect_err("it reads no audio");
    assert_eq!(deaf, "multimodal_data[1]: it is audio, and this model reads text and images");
    assert!(known.read_files(&vec![files[0].clone(); MEDIA_MAX + 1], Scope::default(), BOTH).is_err());
}

#[test]
fn a_data_url_of_audio_may_name_any_media_type() {
    let wav = wav(&[7; 2000]);
    let read = |data: String| {
        let audio = json!({"type": "input_audio", "input_audio": {"data": data}});
        let message = json!({"role": "user", "content": [audio]});
        let chat = [message.as_object().expect("an object").clone()];
        read_all(&KnownMedia::default(), &chat, Scope::default()).expect("it is read")
    };
    for kind in ["audio/wav", "application/octet-stream", ""] {
        assert_eq!(read(url(kind, &wav)), read(base64(&wav)), "{kind}");
    }
}
