//! Files of images and audio, as a request has them in base64: what is decoded has the measured size.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use warmpath_common::media::MediaSize;
use warmpath_common::model::Modalities;
use warmpath_prompt::{KnownMedia, MediaContent, Scope};

static KNOWN: LazyLock<KnownMedia> = LazyLock::new(KnownMedia::default);

/// Measures a file, and decodes it.
pub(crate) fn run(input: &[u8]) {
    let modalities = Modalities { vision: true, audio: true };
    let Ok(media) = KNOWN.read_files(&[STANDARD.encode(input)], Scope::of(""), modalities) else { return };
    for medium in media {
        let n_expected = match medium.size {
            MediaSize::Image(size) => 3 * size.width as usize * size.height as usize,
            MediaSize::Audio(size) => size.n_samples as usize,
        };
        let n_found = match medium.content().expect("what was measured can be decoded") {
            MediaContent::Pixels(pixels) => pixels.len(),
            MediaContent::Samples(samples) => samples.len(),
        };
        assert_eq!(n_found, n_expected, "{:?}", medium.size);
    }
}
